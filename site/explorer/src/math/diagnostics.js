// Do chains agree, and is the sampler right: rank plots, R-hat and effective draws as ArviZ computes them, and calibration.
//
// chains: (chain, draw) numbers. Vehtari et al. 2021 for R-hat; Säilynoja et al. 2022 for the band; Talts et al. 2018 for ranks.
// The small posterior is that of two keys in one dimension, a problem of adapt.js.

import { chain, explain, logMarginal } from "./adapt.js";

const mean = (x) => x.reduce((a, b) => a + b, 0) / x.length;

function variance(x) {
  const m = mean(x);
  return x.reduce((sum, y) => sum + (y - m) ** 2, 0) / (x.length - 1);
}

function median(x) {
  const sorted = [...x].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

// ---- do the chains agree ---------------------------------------------------------------------------------------------------

// Ranks from 1, of ties their mean.
export function ranks(values) {
  const order = values.map((_, i) => i).sort((a, b) => values[a] - values[b]);
  const found = new Array(values.length);
  for (let first = 0; first < order.length; ) {
    let last = first;
    while (last + 1 < order.length && values[order[last + 1]] === values[order[first]]) last++;
    for (let k = first; k <= last; k++) found[order[k]] = (first + last) / 2 + 1;
    first = last + 1;
  }
  return found;
}

// The quantile of the standard Normal distribution: Wichura 1988, algorithm AS 241 (PPND16), to 16 digits.
export function normalQuantile(p) {
  const q = p - 0.5;
  const ratio = (r, top, bottom) => {
    let [a, b] = [top[7], bottom[7]];
    for (let k = 6; k >= 0; k--) {
      a = a * r + top[k];
      b = b * r + bottom[k];
    }
    return a / b;
  };
  if (Math.abs(q) <= 0.425) return q * ratio(0.180625 - q * q, AS241[0], AS241[1]);
  let r = Math.sqrt(-Math.log(q < 0 ? p : 1 - p));
  r = r <= 5 ? ratio(r - 1.6, AS241[2], AS241[3]) : ratio(r - 5, AS241[4], AS241[5]);
  return q < 0 ? -r : r;
}

const AS241 = [
  [3.387132872796366608, 133.14166789178437745, 1971.5909503065514427, 13731.693765509461125, 45921.953931549871457, 67265.770927008700853, 33430.575583588128105, 2509.0809287301226727],
  [1.0, 42.313330701600911252, 687.1870074920579083, 5394.1960214247511077, 21213.794301586595867, 39307.89580009271061, 28729.085735721942674, 5226.495278852545925],
  [1.42343711074968357734, 4.6303378461565452959, 5.7694972214606914055, 3.64784832476320460504, 1.27045825245236838258, 0.24178072517745061177, 0.0227238449892691845833, 7.7454501427834140764e-4],
  [1.0, 2.05319162663775882187, 1.6763848301838038494, 0.68976733498510000455, 0.14810397642748007459, 0.0151986665636164571966, 5.475938084995344946e-4, 1.05075007164441684324e-9],
  [6.6579046435011037772, 5.4637849111641143699, 1.7848265399172913358, 0.29656057182850489123, 0.026532189526576123093, 0.0012426609473880784386, 2.71155556874348757815e-5, 2.01033439929228813265e-7],
  [1.0, 0.59983220655588793769, 0.13692988092273580531, 0.0148753612908506148525, 7.868691311456132591e-4, 1.8463183175100546818e-5, 1.4215117583164458887e-7, 2.04426310338993978564e-15],
];

// Normal scores of all draws together, in the shape of the chains.
export function normalScores(chains) {
  const flat = chains.flat();
  const found = ranks(flat).map((rank) => normalQuantile((rank - 0.375) / (flat.length + 0.25)));
  let place = 0;
  return chains.map((row) => row.map(() => found[place++]));
}

export function split(chains) {
  const half = chains[0].length >> 1;
  return [...chains.map((row) => row.slice(0, half)), ...chains.map((row) => row.slice(-half))];
}

// Gelman and Rubin's R-hat of chains as they are.
export function plainRhat(chains) {
  const draws = chains[0].length;
  const between = draws * variance(chains.map(mean));
  const within = mean(chains.map(variance));
  return Math.sqrt((between / within + draws - 1) / draws);
}

// Rank-normalised split R-hat, the larger of bulk and tail: arviz.rhat.
export function rhat(chains) {
  const halves = split(chains);
  const middle = median(halves.flat());
  return Math.max(plainRhat(normalScores(halves)), plainRhat(normalScores(halves.map((row) => row.map((x) => Math.abs(x - middle))))));
}

function autocovariance(row, lag) {
  const m = mean(row);
  let sum = 0;
  for (let t = 0; t + lag < row.length; t++) sum += (row[t] - m) * (row[t + lag] - m);
  return sum / row.length;
}

// Effective draws of chains as they are: Geyer's initial monotone sequence.
function effective(chains) {
  const [count, draws] = [chains.length, chains[0].length];
  const flat = chains.flat();
  if (Math.max(...flat) - Math.min(...flat) < 1e-15) return flat.length;
  const at = (lag) => mean(chains.map((row) => autocovariance(row, lag)));
  const within = (at(0) * draws) / (draws - 1);
  const total = (within * (draws - 1)) / draws + (count > 1 ? variance(chains.map(mean)) : 0);
  const rho = new Array(draws).fill(0);
  let even = 1;
  let odd = 1 - (within - at(1)) / total;
  [rho[0], rho[1]] = [even, odd];
  let t = 1;
  for (; t < draws - 3 && even + odd > 0; t += 2) {
    even = 1 - (within - at(t + 1)) / total;
    odd = 1 - (within - at(t + 2)) / total;
    if (even + odd >= 0) [rho[t + 1], rho[t + 2]] = [even, odd];
  }
  const last = t - 2;
  if (even > 0) rho[last + 1] = even;
  for (t = 1; t <= last - 2; t += 2) {
    if (rho[t + 1] + rho[t + 2] > rho[t - 1] + rho[t]) rho[t + 1] = rho[t + 2] = (rho[t - 1] + rho[t]) / 2;
  }
  const sum = rho.slice(0, last + 1).reduce((a, b) => a + b, 0);
  const time = Math.max(-1 + 2 * sum + rho[last + 1], 1 / Math.log10(count * draws));
  return (count * draws) / time;
}

// arviz.ess(method="bulk"), and method="tail".
export function essBulk(chains) {
  return effective(normalScores(split(chains)));
}

export function essTail(chains) {
  const sorted = chains.flat().sort((a, b) => a - b);
  const of = (prob) => {
    const place = prob * (sorted.length - 1);
    const below = Math.floor(place);
    const cut = (1 - (place - below)) * sorted[below] + (place - below) * sorted[Math.min(below + 1, sorted.length - 1)];
    return effective(split(chains.map((row) => row.map((x) => (x <= cut ? 1 : 0)))));
  };
  return Math.min(of(0.05), of(0.95));
}

// Rank plots: how many of a chain's draws have a rank, among all draws, in each of some equal bins, (chain, bin).
export function rankCounts(chains, bins) {
  const total = chains.length * chains[0].length;
  const found = ranks(chains.flat());
  let place = 0;
  return chains.map((row) => {
    const counts = new Array(bins).fill(0);
    row.forEach(() => counts[Math.min(bins - 1, Math.floor(((found[place++] - 0.5) / total) * bins))]++);
    return counts;
  });
}

// ---- is the sampler right --------------------------------------------------------------------------------------------------

const LOG_FACTORIALS = [0];

function logFactorial(n) {
  for (let k = LOG_FACTORIALS.length; k <= n; k++) LOG_FACTORIALS.push(LOG_FACTORIALS[k - 1] + Math.log(k));
  return LOG_FACTORIALS[n];
}

export function binomial(k, n, p) {
  if (k < 0 || k > n) return 0;
  if (p >= 1) return k === n ? 1 : 0;
  return Math.exp(logFactorial(n) - logFactorial(k) - logFactorial(n - k) + k * Math.log(p) + (n - k) * Math.log1p(-p));
}

// Chances of at most k, and of at least k, for k = 0..n; each a sum of small terms first.
function tailsOf(n, p) {
  const atMost = [];
  const atLeast = new Array(n + 1);
  let sum = 0;
  for (let k = 0; k <= n; k++) atMost.push((sum += binomial(k, n, p)));
  sum = 0;
  for (let k = n; k >= 0; k--) atLeast[k] = sum += binomial(k, n, p);
  return { atMost, atLeast };
}

function roundHalfEven(x) {
  const below = Math.floor(x);
  if (x - below === 0.5) return below % 2 ? below + 1 : below;
  return Math.round(x);
}

// Ranks 1..numDraws at which to look, evenly spread, at most 50.
export function rankEdges(numDraws) {
  const count = Math.min(numDraws, 50);
  if (count === 1) return [1];
  const found = Array.from({ length: count }, (_, k) => roundHalfEven(k === count - 1 ? numDraws : 1 + k * ((numDraws - 1) / (count - 1))));
  return [...new Set(found)];
}

export function countsBelow(found, numDraws) {
  return rankEdges(numDraws).map((edge) => found.filter((rank) => rank < edge).length);
}

// The chance that the counts of uniform ranks lie between two bounds at every edge: a Markov chain with binomial steps.
function stays(numRanks, shares, lower, upper) {
  let reached = [0];
  let chance = [1];
  let before = 0;
  for (let e = 0; e < shares.length; e++) {
    if (lower[e] > upper[e]) return 0;
    const steps = (shares[e] - before) / (1 - before);
    const now = Array.from({ length: upper[e] - lower[e] + 1 }, (_, k) => lower[e] + k);
    const next = now.map((to) => reached.reduce((sum, from, k) => sum + chance[k] * binomial(to - from, numRanks - from, steps), 0));
    [reached, chance, before] = [now, next, shares[e]];
  }
  return chance.reduce((a, b) => a + b, 0);
}

// The narrowest band of pointwise central intervals that holds uniform ranks 0..numDraws with chance `level` at all edges at once.
export function simultaneousBand(numRanks, numDraws, level = 0.99) {
  const shares = rankEdges(numDraws).map((edge) => edge / (numDraws + 1));
  const tails = shares.map((share) => tailsOf(numRanks, share));
  const bounds = (tail) => ({
    lower: tails.map(({ atMost }) => atMost.findIndex((p) => p >= tail)),
    upper: tails.map(({ atLeast }) => {
      const beyond = atLeast.findIndex((p) => p <= tail); // the first k with P(X >= k) <= tail, so that P(X > k - 1) <= tail
      return beyond < 0 ? numRanks : beyond - 1;
    }),
  });
  let low = Math.log((1 - level) / (2 * shares.length) / 4);
  let high = Math.log((1 - level) / 2);
  for (let k = 0; k < 40; k++) {
    const middle = (low + high) / 2;
    const { lower, upper } = bounds(Math.exp(middle));
    if (stays(numRanks, shares, lower, upper) >= level) low = middle;
    else high = middle;
  }
  return { edges: shares, ...bounds(Math.exp(low)) };
}

// The p-value of uniform ranks on 0..numDraws: the smallest pointwise two-sided tail over the edges, with its exact distribution.
export function uniformity(found, numDraws) {
  const shares = rankEdges(numDraws).map((edge) => edge / (numDraws + 1));
  const tails = shares.map((share) => {
    const { atMost, atLeast } = tailsOf(found.length, share);
    return atMost.map((p, k) => Math.min(p, atLeast[k]));
  });
  const smallest = Math.min(...countsBelow(found, numDraws).map((count, e) => tails[e][count]));
  const inside = tails.map((row) => row.map((p) => p > smallest * (1 + 1e-12)));
  const lower = inside.map((row) => (row.includes(true) ? row.indexOf(true) : 1));
  const upper = inside.map((row) => row.lastIndexOf(true)).map((x) => Math.max(x, 0));
  return Math.min(1, Math.max(0, 1 - stays(found.length, shares, lower, upper)));
}

// ---- a small posterior, and samplers of it that are wrong ---------------------------------------------------------------------

// Two keys in one dimension, prior means -+ separation / 2.
export function smallProblem({ queries, separation, precision, keyStrength }) {
  return {
    queries: queries.map((x) => [x]),
    keys: [[-separation / 2], [separation / 2]],
    precision, keyStrength, shiftStrength: 1,
    weights: [Math.log(0.5), Math.log(0.5)],
    adapt: "own",
  };
}

// What a sampler with a bug believes its problem to be; it draws from that posterior without fault.
export const BUGS = {
  none: (problem) => problem,
  twice: (problem) => ({ ...problem, queries: [...problem.queries, ...problem.queries] }),
  ignore: (problem) => ({ ...problem, queries: [] }),
  offset: (problem) => ({ ...problem, keys: problem.keys.map((key) => key.map((x) => x + 1.5)) }),
};

// Where chains start: all at the prior means in order, or every second one with the keys exchanged, each at least 4 apart.
export function starts(problem, kind, numChains) {
  const ordered = [[Math.min(-2, problem.keys[0][0])], [Math.max(2, problem.keys[1][0])]];
  return Array.from({ length: numChains }, (_, c) => ({
    keys: kind === "apart" && c % 2 ? [ordered[1], ordered[0]] : ordered,
    shift: [0],
  }));
}

// Draws of the first key, (chain, draw), to three decimals, so that they can be copied whole.
export function drawChains(problem, { start, bug, numChains, numDraws, warmup, rng }) {
  return starts(problem, start, numChains).map((from) =>
    chain(BUGS[bug](problem), numDraws, rng, warmup, from).map((state) => Math.round(state.keys[0][0] * 1000) / 1000),
  );
}

// The exact posterior of the first key: { weight, mean, precision } of each assignment of the queries, a mixture of Gaussians.
export function exactPosterior(problem) {
  const { queries, keys, keyStrength, precision } = problem;
  const terms = [];
  const assigned = queries.map(() => 0);
  for (let number = 0; number < 2 ** queries.length; number++) {
    let [logWeight, strength, pull] = [0, keyStrength, keyStrength * keys[0][0]];
    for (let i = 0; i < queries.length; i++) {
      assigned[i] = (number >> i) & 1;
      logWeight += problem.weights[assigned[i]];
      if (assigned[i]) continue;
      strength += precision;
      pull += precision * queries[i][0];
    }
    terms.push({ logWeight: logWeight + logMarginal(problem, assigned, queries), mean: pull / strength, precision: strength });
  }
  const top = terms.reduce((a, x) => Math.max(a, x.logWeight), -Infinity);
  const total = terms.reduce((sum, x) => sum + Math.exp(x.logWeight - top), 0);
  return terms.map((x) => ({ weight: Math.exp(x.logWeight - top) / total, mean: x.mean, precision: x.precision }));
}

export function mixtureDensity(terms, x) {
  let sum = 0;
  for (const t of terms) {
    if (t.weight > 1e-18) sum += t.weight * Math.sqrt(t.precision / (2 * Math.PI)) * Math.exp(-0.5 * t.precision * (x - t.mean) ** 2);
  }
  return sum;
}

// Keys from the prior and queries from them.
export function simulate(problem, rng) {
  const keys = problem.keys.map((key) => key.map((m) => m + rng.normal() / Math.sqrt(problem.keyStrength)));
  const queries = problem.queries.map(() => {
    const unit = rng.uniform() < Math.exp(problem.weights[0]) ? 0 : 1;
    return keys[unit].map((x) => x + rng.normal() / Math.sqrt(problem.precision));
  });
  return { truth: { keys, shift: [0] }, problem: { ...problem, queries } };
}

// The rank of the true first key among draws of the sampler, and that of the log likelihood, for one simulation.
export function calibrationRanks(problem, { bug, numDraws, thin, warmup, rng }) {
  const made = simulate(problem, rng);
  const first = simulate(problem, rng).truth; // the chain starts at a draw from the prior
  const all = chain(BUGS[bug](made.problem), numDraws * thin, rng, warmup, first).filter((_, t) => t % thin === 0);
  const likelihood = (state) => made.problem.queries.reduce((sum, q) => sum + explain(made.problem, state, q).logEvidence, 0);
  const truth = likelihood(made.truth);
  return {
    key: all.filter((state) => state.keys[0][0] < made.truth.keys[0][0]).length,
    logLikelihood: all.filter((state) => likelihood(state) < truth).length,
  };
}



// The exact posterior density of the first key at some places.
export function smallDensity(options, places) {
  const terms = exactPosterior(smallProblem(options));
  return places.map((x) => mixtureDensity(terms, x));
}
