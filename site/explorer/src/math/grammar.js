// A small English grammar as a dependency CRF: scores of five labels for every word, and of arcs by labels, side and distance.
//
// The numbers are made by hand, in nats, so that a reader can follow them; nothing is learned.

export const LABELS = ["noun", "verb", "det.", "adj.", "prep."];
export const CHANNELS = ["head", "next word"];
export const DISTANCES = [2]; // adjacent words, and all others
export const MOST_WORDS = 10;

const LEXICON = {
  the: [0, 0, 4, 0, 0], a: [0, 0, 4, 0, 0], an: [0, 0, 4, 0, 0], this: [0.5, 0, 3, 0, 0], his: [0, 0, 3.5, 0, 0],
  her: [1.5, 0, 2, 0, 0], he: [3, 0, 0, 0, 0], she: [3, 0, 0, 0, 0], they: [3, 0, 0, 0, 0], we: [3, 0, 0, 0, 0], i: [3, 0, 0, 0, 0],
  time: [2, 1, 0, 0, 0], flies: [1.5, 1.7, 0, 0, 0], like: [0, 1.6, 0, 0, 1.8], arrow: [3, 0, 0, 0, 0], fruit: [2.5, 0, 0, 0.5, 0],
  banana: [3, 0, 0, 0, 0], saw: [1, 2, 0, 0, 0], duck: [1.7, 1.5, 0, 0, 0], telescope: [3, 0, 0, 0, 0], man: [2, 0.8, 0, 0, 0],
  old: [1.2, 0, 0, 2, 0], boats: [2.5, 0.3, 0, 0, 0], dogs: [2.5, 0.5, 0, 0, 0], cat: [3, 0, 0, 0, 0], dog: [3, 0.3, 0, 0, 0],
  can: [1, 1.5, 0, 0, 0], fish: [1.7, 1.5, 0, 0, 0], is: [0, 3, 0, 0, 0], are: [0, 3, 0, 0, 0], with: [0, 0, 0, 0, 4],
  in: [0, 0, 0, 0, 4], on: [0, 0, 0, 0, 4], of: [0, 0, 0, 0, 4], at: [0, 0, 0, 0, 4], to: [0, 0, 0, 0, 3.5], from: [0, 0, 0, 0, 4],
  big: [0, 0, 0, 3, 0], small: [0, 0, 0, 3, 0], red: [0.7, 0, 0, 2.5, 0], quick: [0, 0, 0, 3, 0], visiting: [0.5, 1.5, 0, 1, 0],
};
const ENDINGS = [
  [/ly$/, [0, 0, 0, 1.5, 0]], [/ing$/, [1, 1.6, 0, 0.4, 0]], [/ed$/, [0, 2, 0, 0.8, 0]], [/(ous|ful|ic|al)$/, [0.3, 0, 0, 2, 0]],
  [/s$/, [1.3, 1, 0, 0, 0]], [/.*/, [1.2, 0.6, 0, 0.6, 0]],
];

export function wordsOf(sentence) {
  return sentence.trim().split(/[\s.,;:!?]+/).filter(Boolean);
}

// Words of which the lexicon knows nothing, so that their endings decide.
export const unknown = (words) => words.filter((word) => !Object.hasOwn(LEXICON, word.toLowerCase()));

export function unaryOf(word) {
  const own = word.toLowerCase();
  return [...(Object.hasOwn(LEXICON, own) ? LEXICON[own] : ENDINGS.find(([ending]) => ending.test(own))[1])];
}

// Rules: label of the word, label of its head, and scores by group: head next to the right, farther right, next to the left, farther.
const [N, V, D, A, P] = [0, 1, 2, 3, 4];
const RULES = [
  [
    [D, N, [3, 2, -2, -3]], [A, N, [2.5, 1, -1, -2]], [N, V, [1.5, 1.2, 1.8, 1.2]], [N, N, [1.2, -1, -1, -2]],
    [N, P, [-2, -2, 2.2, 1.8]], [P, V, [-1, -1, 1.6, 1.2]], [P, N, [-1, -2, 1.3, 0.5]], [V, V, [-1, -1.5, -1, -1.5]],
  ],
  [
    [D, N, [1.5, -2, -2, -3]], [D, A, [1.2, -2, -2, -3]], [A, N, [1.5, -2, -2, -3]], [N, V, [1, -2, -2, -3]],
    [V, D, [0.8, -2, -2, -3]], [V, P, [0.8, -2, -2, -3]], [V, N, [0.5, -2, -2, -3]], [P, D, [1, -2, -2, -3]], [P, N, [0.8, -2, -2, -3]],
  ],
];
const OTHERWISE = [[-2, -2.5, -2, -2.5], [-0.5, -2, -2, -3]];
const ROOT = [[0.3, 2.6, -3, -2, -2], [0.5, 0, -1, -1, -1]];

// The CRF of a sentence: so many channels, every score of an arc times the coupling.
export function crfOf(words, channels, coupling) {
  const ternary = RULES.slice(0, channels).map((rules, c) =>
    OTHERWISE[c].map((other, g) => {
      const table = LABELS.map(() => LABELS.map(() => other));
      for (const [a, b, scores] of rules) table[a][b] = scores[g];
      return table.map((row) => row.map((x) => x * coupling));
    }),
  );
  const root = ROOT.slice(0, channels).map((row) => row.map((x) => [x * coupling]));
  return { unary: words.map(unaryOf), ternary, distances: DISTANCES, root };
}
