// A memory of patterns, as models.Hopfield: retrieval is attention, by softmax, 1.5-entmax or sparsemax.

import { average, distance2, dot, entropy, logSumExp, softmax } from "./mixture.js";

export function sparsemax(scores) {
  const ordered = [...scores].sort((a, b) => b - a);
  let [sum, threshold] = [0, 0];
  for (let n = 1; n <= ordered.length; n++) {
    sum += ordered[n - 1];
    if (ordered[n - 1] > (sum - 1) / n) threshold = (sum - 1) / n;
  }
  return scores.map((z) => Math.max(0, z - threshold));
}

export function entmax15(scores) {
  const top = Math.max(...scores);
  const halves = scores.map((z) => (z - top) / 2);
  const ordered = [...halves].sort((a, b) => b - a);
  let [sum, squares, threshold] = [0, 0, 0];
  for (let n = 1; n <= ordered.length; n++) {
    sum += ordered[n - 1];
    squares += ordered[n - 1] ** 2;
    const mean = sum / n;
    const inside = 1 / n - Math.max(0, squares / n - mean * mean);
    const own = mean - Math.sqrt(Math.max(0, inside));
    if (own <= ordered[n - 1]) threshold = own;
  }
  return halves.map((z) => Math.max(0, z - threshold) ** 2);
}

const FAMILY = {
  softmax: { map: softmax, conjugate: logSumExp },
  entmax15: { map: entmax15, conjugate: (scores) => conjugate(entmax15(scores), scores, (p) => (4 / 3) * (p - p ** 1.5)) },
  sparsemax: { map: sparsemax, conjugate: (scores) => conjugate(sparsemax(scores), scores, (p) => 0.5 * (p - p * p)) },
};

// max_p p'z + H(p) at its p, with H a sum over the entries.
function conjugate(p, scores, entropyOf) {
  return p.reduce((sum, x, n) => (x > 0 ? sum + x * scores[n] + entropyOf(x) : sum), 0);
}

const scoresOf = (patterns, beta, state) => patterns.map((x) => beta * dot(x, state));

export const shares = (patterns, beta, transformation, state) => FAMILY[transformation].map(scoresOf(patterns, beta, state));

// One step of retrieval: attention with keys and values the patterns.
export const step = (patterns, beta, transformation, state) => average(shares(patterns, beta, transformation, state), patterns);

// E(s) with the published constant: ½ |s|² - conjugate / β + log(N) / β + ½ max |x|².
export function energy(patterns, beta, transformation, state) {
  const constant = Math.log(patterns.length) / beta + 0.5 * Math.max(...patterns.map((x) => dot(x, x)));
  return 0.5 * dot(state, state) - FAMILY[transformation].conjugate(scoresOf(patterns, beta, state)) / beta + constant;
}

// The states from a start until they move by less than tol, the start included.
export function path(patterns, beta, transformation, start, steps = 200, tol = 1e-9) {
  const found = [start];
  for (let t = 0; t < steps; t++) {
    const next = step(patterns, beta, transformation, found[t]);
    found.push(next);
    if (Math.sqrt(distance2(next, found[t])) < tol) break;
  }
  return found;
}

// exp of the entropy of the shares: how many patterns a state retrieves.
export const effectivePatterns = (patterns, beta, transformation, state) => Math.exp(entropy(shares(patterns, beta, transformation, state)));

// Resting places of retrieval from every pattern, without repeats: [{ at, patterns: numbers of those that end there }].
export function restingPlaces(patterns, beta, transformation) {
  const found = [];
  patterns.forEach((pattern, n) => {
    const at = path(patterns, beta, transformation, pattern, 2000, 1e-10).at(-1);
    const known = found.find((place) => distance2(place.at, at) < 1e-8);
    if (known) known.patterns.push(n);
    else found.push({ at, patterns: [n] });
  });
  return found;
}

// Energy of a state of the plane, and the number of the resting place that it comes to; -1 for one that no pattern leads to.
// For shading: at most 30 steps, and none near a place.
export function landscape(patterns, beta, transformation, places) {
  const count = patterns.length;
  const scores = new Array(count).fill(0);
  const largest = Math.max(...patterns.map((x) => dot(x, x)));
  const constant = Math.log(count) / beta + 0.5 * largest;
  const soft = transformation === "softmax";

  // the next state and the conjugate of the scores, without a list for softmax
  function move(x, y) {
    let top = -Infinity;
    for (let n = 0; n < count; n++) {
      scores[n] = beta * (patterns[n][0] * x + patterns[n][1] * y);
      if (scores[n] > top) top = scores[n];
    }
    if (!soft) {
      const p = FAMILY[transformation].map(scores);
      const next = average(p, patterns);
      return [next[0], next[1], null];
    }
    let [sum, nx, ny] = [0, 0, 0];
    for (let n = 0; n < count; n++) {
      const w = Math.exp(scores[n] - top);
      sum += w;
      nx += w * patterns[n][0];
      ny += w * patterns[n][1];
    }
    return [nx / sum, ny / sum, top + Math.log(sum)];
  }

  function near(x, y, radius) {
    let [best, least] = [-1, radius];
    for (let k = 0; k < places.length; k++) {
      const apart = (places[k].at[0] - x) ** 2 + (places[k].at[1] - y) ** 2;
      if (apart < least) [best, least] = [k, apart];
    }
    return best;
  }

  return (x0, y0) => {
    let [x, y, conjugated] = move(x0, y0);
    const own = 0.5 * (x0 * x0 + y0 * y0) - (conjugated ?? FAMILY[transformation].conjugate(scores)) / beta + constant;
    for (let t = 0; t < 29; t++) {
      const place = near(x, y, 0.004);
      if (place >= 0) return { energy: own, place };
      [x, y] = move(x, y);
    }
    return { energy: own, place: near(x, y, 0.1) };
  };
}
