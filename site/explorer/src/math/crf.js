// The dependency CRF of one sentence: mean field, its bound, exact sums over labellings, Gibbs sampling, annealing.
//
// crf: { unary (N, L), ternary (C, G, L, L), distances [s_1 < ...], root (C, L, K) or null }
// Slots of a head, in this order: the root (if there is one), then the words; a word is never its own head.
// docs/mathematics.md, sections 5.1, 5.2 and 5.4; names as in models.DependencyCRF.

import { logSumExp } from "./adapt.js";

const TINY = Number.EPSILON ** 2; // marginals below it are zero, as in the library

// Number of the distance group of word i and its head j; rings to the right (j > i) first, then those to the left.
export function groupOf(distances, i, j) {
  const offset = j - i;
  let ring = 0;
  while (ring < distances.length && Math.abs(offset) >= distances[ring]) ring++;
  return offset < 0 ? ring + distances.length + 1 : ring;
}

export function sizes(crf) {
  const words = crf.unary.length;
  return { words, labels: crf.unary[0].length, channels: crf.ternary.length, first: crf.root ? 1 : 0, slots: words + (crf.root ? 1 : 0) };
}

const zeros = (...shape) =>
  shape.length === 1 ? new Array(shape[0]).fill(0) : Array.from({ length: shape[0] }, () => zeros(...shape.slice(1)));

export function softmax(logits) {
  const top = Math.max(...logits);
  if (top === -Infinity) return logits.map(() => 0);
  const raised = logits.map((x) => Math.exp(x - top));
  const sum = raised.reduce((a, b) => a + b, 0);
  return raised.map((x) => (x / sum > TINY ? x / sum : 0));
}

const mixed = (found, before, share) => (share ? found.map((x, k) => x + share * (before[k] - x)) : found);
const entropy = (p) => -p.reduce((sum, x) => sum + (x > 0 ? x * Math.log(x) : 0), 0);

// ---- mean field ------------------------------------------------------------------------------------------------------------

// Q(Z) ∝ exp(S), uniform heads; logits of heads start at 1, as in the library.
export function start(crf) {
  const { words, channels, slots, first } = sizes(crf);
  const heads = zeros(channels, words, slots);
  for (let c = 0; c < channels; c++) {
    for (let i = 0; i < words; i++) heads[c][i] = softmax(Array.from({ length: slots }, (_, s) => (s === i + first ? -Infinity : 0)));
  }
  return {
    labels: crf.unary.map(softmax),
    labelLogits: crf.unary.map((row) => [...row]),
    heads,
    headLogits: heads.map((rows) => rows.map((row) => row.map(() => 1))),
    root: crf.root ? softmax(crf.root[0][0].map(() => 0)) : null,
    rootLogits: crf.root ? crf.root[0][0].map(() => 0) : null,
  };
}

// F^c_i(s): the expected score of every slot, (C, N, S); 0 for a word and itself.
export function headScores(crf, labels, root) {
  const { words, labels: count, channels, slots, first } = sizes(crf);
  const scores = zeros(channels, words, slots);
  for (let c = 0; c < channels; c++) {
    for (let i = 0; i < words; i++) {
      if (crf.root) {
        for (let a = 0; a < count; a++) for (let k = 0; k < root.length; k++) scores[c][i][0] += labels[i][a] * crf.root[c][a][k] * root[k];
      }
      for (let j = 0; j < words; j++) {
        if (j === i) continue;
        const table = crf.ternary[c][groupOf(crf.distances, i, j)];
        let sum = 0;
        for (let a = 0; a < count; a++) for (let b = 0; b < count; b++) sum += labels[i][a] * table[a][b] * labels[j][b];
        scores[c][i][j + first] = sum;
      }
    }
  }
  return scores;
}

// G_i(a): what word i hears from its heads and from the words that may have it as their head, (L).
function message(crf, labels, heads, root, i) {
  const { words, labels: count, channels, first } = sizes(crf);
  const total = zeros(count);
  for (let c = 0; c < channels; c++) {
    for (let a = 0; a < count; a++) {
      if (crf.root) for (let k = 0; k < root.length; k++) total[a] += heads[c][i][0] * crf.root[c][a][k] * root[k];
      for (let j = 0; j < words; j++) {
        if (j === i) continue;
        const out = crf.ternary[c][groupOf(crf.distances, i, j)][a];
        const back = crf.ternary[c][groupOf(crf.distances, j, i)];
        for (let b = 0; b < count; b++) {
          total[a] += (heads[c][i][j + first] * out[b] + heads[c][j][i + first] * back[b][a]) * labels[j][b];
        }
      }
    }
  }
  return total;
}

function rootMessage(crf, labels, heads) {
  const total = zeros(crf.root[0][0].length);
  crf.root.forEach((table, c) =>
    labels.forEach((row, i) => row.forEach((q, a) => table[a].forEach((x, k) => (total[k] += heads[c][i][0] * q * x)))),
  );
  return total;
}

export const PLAIN = { schedule: "asynchronous", labelTemperature: 1, headTemperature: 1, labelDamping: 0, headDamping: 0 };

// One sweep: (5.3), then (5.4) and (5.5). In the synchronous schedule labels hear from the heads before.
export function sweep(crf, state, options = PLAIN) {
  const { words, channels, first } = sizes(crf);
  const { schedule, labelTemperature, headTemperature, labelDamping, headDamping } = { ...PLAIN, ...options };
  const scores = headScores(crf, state.labels, state.root);
  const headLogits = scores.map((rows, c) => rows.map((row, i) => mixed(row.map((x) => x / headTemperature), state.headLogits[c][i], headDamping)));
  const heads = headLogits.map((rows) => rows.map((row, i) => softmax(row.map((x, s) => (s === i + first ? -Infinity : x)))));
  const sent = schedule === "synchronous" ? state.heads : heads;
  const labels = state.labels.map((row) => [...row]);
  const labelLogits = state.labelLogits.map((row) => [...row]);
  for (let i = 0; i < words; i++) {
    const heard = message(crf, schedule === "sequential" ? labels : state.labels, sent, state.root, i);
    const logits = heard.map((x, a) => (crf.unary[i][a] + x) / labelTemperature);
    labelLogits[i] = mixed(logits, state.labelLogits[i], labelDamping);
    labels[i] = softmax(labelLogits[i]);
  }
  let { root, rootLogits } = state;
  if (crf.root) {
    const heard = rootMessage(crf, schedule === "sequential" ? labels : state.labels, sent).map((x) => x / labelTemperature);
    rootLogits = mixed(heard, state.rootLogits, labelDamping);
    root = softmax(rootLogits);
  }
  return { labels, labelLogits, heads, headLogits, root, rootLogits };
}

// (5.2): the ELBO where both temperatures are 1.
export function objective(crf, state, options = PLAIN) {
  const { labelTemperature, headTemperature } = { ...PLAIN, ...options };
  const scores = headScores(crf, state.labels, state.root);
  let total = 0;
  state.labels.forEach((row, i) => {
    row.forEach((q, a) => (total += q * crf.unary[i][a]));
    total += labelTemperature * entropy(row);
  });
  state.heads.forEach((rows, c) =>
    rows.forEach((row, i) => {
      row.forEach((q, s) => (total += q * scores[c][i][s]));
      total += headTemperature * entropy(row);
    }),
  );
  return crf.root ? total + labelTemperature * entropy(state.root) : total;
}

// States of so many sweeps, the start first.
export function meanField(crf, numSweeps, options = PLAIN) {
  const states = [start(crf)];
  for (let t = 0; t < numSweeps; t++) states.push(sweep(crf, states[t], options));
  return states;
}

// ---- exact sums ------------------------------------------------------------------------------------------------------------

// Scores of the slots of word i in channel c given all labels; -Infinity for the word itself.
export function slotScores(crf, labels, rootLabel, c, i) {
  const { words, first, slots } = sizes(crf);
  const scores = new Array(slots).fill(-Infinity);
  if (crf.root) scores[0] = crf.root[c][labels[i]][rootLabel];
  for (let j = 0; j < words; j++) {
    if (j !== i) scores[j + first] = crf.ternary[c][groupOf(crf.distances, i, j)][labels[i]][labels[j]];
  }
  return scores;
}

// log phi_beta(Z), heads summed out (5.7); beta multiplies all scores but the unary ones. A word without a head to choose counts 0.
export function logDensity(crf, labels, rootLabel = 0, beta = 1) {
  const { words, channels } = sizes(crf);
  let total = 0;
  for (let i = 0; i < words; i++) {
    total += crf.unary[i][labels[i]];
    for (let c = 0; c < channels; c++) {
      const scores = slotScores(crf, labels, rootLabel, c, i).map((x) => (x === -Infinity ? x : beta * x));
      const found = logSumExp(scores);
      if (found !== -Infinity) total += found;
    }
  }
  return total;
}

export function numLabellings(crf) {
  const { words, labels } = sizes(crf);
  return labels ** words * (crf.root ? crf.root[0][0].length : 1);
}

// log Z and the marginals of labels (N, L) and heads (C, N, S), by a sum over all labellings; null where there are more than `most`.
export function enumerate(crf, most = 20000) {
  if (numLabellings(crf) > most) return null;
  const { words, labels: count, channels, slots, first } = sizes(crf);
  const roots = crf.root ? crf.root[0][0].length : 1;
  const groups = zeros(words, words).map((row, i) => row.map((_, j) => groupOf(crf.distances, i, j)));
  const raised = crf.ternary.map((g) => g.map((rows) => rows.map((row) => row.map(Math.exp))));
  const raisedRoot = crf.root?.map((rows) => rows.map((row) => row.map(Math.exp)));
  const visit = (take) => {
    const labels = new Array(words).fill(0);
    const sums = zeros(channels, words);
    for (let number = 0; number < count ** words; number++) {
      for (let i = 0, rest = number; i < words; i++, rest = Math.floor(rest / count)) labels[i] = rest % count;
      for (let k = 0; k < roots; k++) {
        let total = 0;
        for (let i = 0; i < words; i++) {
          total += crf.unary[i][labels[i]];
          for (let c = 0; c < channels; c++) {
            let sum = crf.root ? raisedRoot[c][labels[i]][k] : 0;
            for (let j = 0; j < words; j++) if (j !== i) sum += raised[c][groups[i][j]][labels[i]][labels[j]];
            sums[c][i] = sum;
            if (sum > 0) total += Math.log(sum);
          }
        }
        take(labels, k, total, sums);
      }
    }
  };
  const densities = [];
  visit((labels, k, total) => densities.push(total));
  const top = densities.reduce((a, b) => Math.max(a, b));
  const whole = densities.reduce((sum, x) => sum + Math.exp(x - top), 0);
  const labelMarginals = zeros(words, count);
  const headMarginals = zeros(channels, words, slots);
  let place = 0;
  visit((labels, k, total, sums) => {
    const p = Math.exp(densities[place++] - top) / whole;
    if (p < TINY) return;
    for (let i = 0; i < words; i++) {
      labelMarginals[i][labels[i]] += p;
      for (let c = 0; c < channels; c++) {
        if (!(sums[c][i] > 0)) continue;
        const share = p / sums[c][i];
        if (crf.root) headMarginals[c][i][0] += share * raisedRoot[c][labels[i]][k];
        for (let j = 0; j < words; j++) if (j !== i) headMarginals[c][i][j + first] += share * raised[c][groups[i][j]][labels[i]][labels[j]];
      }
    }
  });
  return { logPartition: top + Math.log(whole), labels: labelMarginals, heads: headMarginals };
}

// ---- draws -----------------------------------------------------------------------------------------------------------------

// exp(beta * score) of arcs and of the root, over the largest score of the channel: what sweeps at one beta look up.
export function tablesOf(crf, beta = 1) {
  const { words, labels: count, channels } = sizes(crf);
  const roots = crf.root ? crf.root[0][0].length : 0;
  const tops = crf.ternary.map((groups, c) => Math.max(...groups.flat(2), ...(crf.root ? crf.root[c].flat() : [])));
  const raised = (rows, c) => Float64Array.from(rows.flat(), (x) => Math.exp(beta * (x - tops[c])));
  return {
    crf, beta, words, count, channels, roots, tops,
    arcs: crf.ternary.map((groups, c) => groups.map((rows) => raised(rows, c))),
    root: crf.root ? crf.root.map((rows, c) => raised(rows, c)) : null,
    groups: Array.from({ length: words }, (_, i) => Array.from({ length: words }, (_, j) => groupOf(crf.distances, i, j))),
  };
}

// The sum over the heads of word k in channel c, but for word `without`.
function headSum({ words, count, roots, arcs, root, groups }, labels, rootLabel, c, k, without = -1) {
  const own = labels[k] * count;
  let sum = root ? root[c][labels[k] * roots + rootLabel] : 0;
  for (let j = 0; j < words; j++) if (j !== k && j !== without) sum += arcs[c][groups[k][j]][own + labels[j]];
  return sum;
}

// log phi_beta(Z), as `logDensity`.
export function tabledDensity(tables, labels, rootLabel) {
  const { crf, beta, words, channels, tops } = tables;
  let total = 0;
  for (let i = 0; i < words; i++) {
    total += crf.unary[i][labels[i]];
    for (let c = 0; c < channels; c++) {
      const sum = headSum(tables, labels, rootLabel, c, i);
      if (sum > 0) total += Math.log(sum) + beta * tops[c];
    }
  }
  return total;
}

// log p(Z_i = a | all other labels) but for a constant, (L), heads summed out (5.8).
export function conditional(tables, labels, rootLabel, word) {
  const { crf, words, count, channels, arcs, groups } = tables;
  const logits = Float64Array.from(crf.unary[word]);
  const trial = [...labels];
  for (let c = 0; c < channels; c++) {
    for (let a = 0; a < count; a++) {
      trial[word] = a;
      const told = headSum(tables, trial, rootLabel, c, word);
      if (told > 0) logits[a] += Math.log(told);
    }
    for (let k = 0; k < words; k++) {
      if (k === word) continue;
      const rest = headSum(tables, labels, rootLabel, c, k, word);
      const row = arcs[c][groups[k][word]];
      for (let a = 0; a < count; a++) logits[a] += Math.log(rest + row[labels[k] * count + a]);
    }
  }
  return logits;
}

function draw(logits, rng) {
  let top = -Infinity;
  for (const x of logits) if (x > top) top = x;
  const raised = Float64Array.from(logits, (x) => Math.exp(x - top));
  let total = 0;
  for (const x of raised) total += x;
  let left = rng.uniform() * total;
  let k = 0;
  while (k < raised.length - 1 && left >= raised[k]) left -= raised[k++];
  return k;
}

// One Gibbs sweep: the label of one word after the other, then the root's.
export function gibbsSweep(tables, state, rng) {
  const labels = [...state.labels];
  for (let i = 0; i < labels.length; i++) labels[i] = draw(conditional(tables, labels, state.rootLabel, i), rng);
  let { rootLabel } = state;
  if (tables.roots > 1) rootLabel = draw(Array.from({ length: tables.roots }, (_, k) => tabledDensity(tables, labels, k)), rng);
  return { labels, rootLabel };
}

// Labels from softmax(S), and a uniform label of the root: an exact draw at beta = 0.
export function drawStart(crf, rng) {
  const labels = crf.unary.map((row) => draw(row, rng));
  return { labels, rootLabel: crf.root ? draw(crf.root[0][0].map(() => 0), rng) : 0 };
}

// Heads given labels, (C, N) slots: exact; -1 for a word that has none to choose.
export function drawHeads(crf, state, rng) {
  const { words, channels } = sizes(crf);
  return Array.from({ length: channels }, (_, c) =>
    Array.from({ length: words }, (_, i) => {
      const scores = slotScores(crf, state.labels, state.rootLabel, c, i);
      return Math.max(...scores) === -Infinity ? -1 : draw(scores, rng);
    }),
  );
}

// log Z at beta = 0: labels independent, every allowed head alike.
export function basePartition(crf) {
  const { words, channels, slots } = sizes(crf);
  const labels = crf.unary.reduce((sum, row) => sum + logSumExp(row), 0);
  return labels + channels * words * Math.log(Math.max(1, slots - 1)) + (crf.root ? Math.log(crf.root[0][0].length) : 0);
}

// Annealed importance sampling (5.9): { logPartition, standardError, logWeights }.
export function annealed(crf, betas, numChains, rng) {
  let states = Array.from({ length: numChains }, () => drawStart(crf, rng));
  const logWeights = states.map(() => 0);
  let before = tablesOf(crf, betas[0]);
  for (const beta of betas.slice(1)) {
    const tables = tablesOf(crf, beta);
    states.forEach(({ labels, rootLabel }, x) => {
      logWeights[x] += tabledDensity(tables, labels, rootLabel) - tabledDensity(before, labels, rootLabel);
    });
    if (beta !== betas.at(-1)) states = states.map((state) => gibbsSweep(tables, state, rng));
    before = tables;
  }
  const { mean, standardError } = logMean(logWeights);
  return { logPartition: basePartition(crf) + mean, standardError, logWeights };
}

// Log of the mean weight and its standard error, sd(w) / (mean(w) sqrt(n)).
export function logMean(logWeights) {
  const count = logWeights.length;
  const mean = logSumExp(logWeights) - Math.log(count);
  const spread = logWeights.reduce((sum, x) => sum + (Math.exp(x - mean) - 1) ** 2, 0) / (count - 1);
  return { mean, standardError: Math.sqrt(spread / count) };
}

// ---- as the cases ask for them -----------------------------------------------------------------------------------------------

// The objective of every sweep, and the marginals after the last.
export function summary(crf, numSweeps, options = PLAIN) {
  const states = meanField(crf, numSweeps, options);
  const { labels, heads } = states.at(-1);
  return { labels, heads, objective: states.map((state) => objective(crf, state, options)) };
}

// The probabilities of a word's labels given all others.
export function probabilities(crf, labels, rootLabel, word, beta = 1) {
  return softmax([...conditional(tablesOf(crf, beta), labels, rootLabel, word)]);
}

// The log density as sweeps compute it.
export function sweptDensity(crf, labels, rootLabel, beta = 1) {
  return tabledDensity(tablesOf(crf, beta), labels, rootLabel);
}

// exp of `slotScores` of all words, (C, N, S).
export function slotWeights(crf, labels, rootLabel) {
  return crf.ternary.map((_, c) => labels.map((_, i) => slotScores(crf, labels, rootLabel, c, i).map(Math.exp)));
}
