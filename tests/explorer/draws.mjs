// Draws of the explorer's samplers beside exact answers: prints { name, found, expected, error } where error is the standard error of
// independent chains. node draws.mjs MODULES
import { pathToFileURL } from "node:url";
import { resolve } from "node:path";

const load = (name) => import(pathToFileURL(resolve(process.argv[2], `${name}.js`)));
const [adapt, crf, diagnostics, random] = await Promise.all(["adapt", "crf", "diagnostics", "random"].map(load));
const rng = random.generator(20261123);
const rows = [];

function compare(name, values, expected) {
  const found = values.reduce((a, b) => a + b, 0) / values.length;
  const spread = values.reduce((sum, x) => sum + (x - found) ** 2, 0) / (values.length - 1);
  rows.push({ name, found, expected, error: Math.sqrt(spread / values.length) });
}

// the last draws of chains that share nothing, for keys, a shift, and both
const base = {
  queries: [[-1.4], [0.3], [0.9], [2.1]], keys: [[-1], [1]], precision: 1.5, weights: [Math.log(0.4), Math.log(0.6)],
  keyStrength: 0.8, shiftStrength: 1.2,
};
const query = [0.2];
for (const kind of ["own", "shift", "both"]) {
  const problem = { ...base, adapt: kind };
  const draws = Array.from({ length: 3000 }, () => adapt.chain(problem, 1, rng, 100)[0]);
  const seen = draws.map((state) => adapt.explain(problem, state, query));
  const { right, logEvidence } = adapt.exact(problem, query);
  const density = seen.map((x) => Math.exp(x.logEvidence));
  compare(`${kind}: p(q | D)`, density, Math.exp(logEvidence));
  // a ratio of means, to first order: the mean of m + r (w - m) / mean(r)
  compare(`${kind}: p(unit | q, D)`, seen.map((x, s) => right[0] + (density[s] * (x.attention[0] - right[0])) / Math.exp(logEvidence)), right[0]);
  if (kind === "own") {
    const terms = diagnostics.exactPosterior(problem);
    compare("own: mean of the first key", draws.map((x) => x.keys[0][0]), terms.reduce((sum, t) => sum + t.weight * t.mean, 0));
    const square = terms.reduce((sum, t) => sum + t.weight * (t.mean ** 2 + 1 / t.precision), 0);
    compare("own: mean square of the first key", draws.map((x) => x.keys[0][0] ** 2), square);
  }
}

// labels and heads of a CRF, and its annealed normaliser
const normal = (...shape) => (shape.length ? Array.from({ length: shape[0] }, () => normal(...shape.slice(1))) : rng.normal());
const own = { unary: normal(4, 3), ternary: normal(2, 4, 3, 3), distances: [2], root: normal(2, 3, 2) };
const exact = crf.enumerate(own);
const tables = crf.tablesOf(own);
const parses = Array.from({ length: 3000 }, () => {
  let state = crf.drawStart(own, rng);
  for (let t = 0; t < 30; t++) state = crf.gibbsSweep(tables, state, rng);
  return { labels: state.labels, heads: crf.drawHeads(own, state, rng) };
});
for (let i = 0; i < 4; i++) compare(`label 0 of word ${i}`, parses.map((x) => Number(x.labels[i] === 0)), exact.labels[i][0]);
for (let s of [0, 1, 3, 4]) compare(`slot ${s} of word 1`, parses.map((x) => Number(x.heads[1][1] === s)), exact.heads[1][1][s]);
const betas = Array.from({ length: 41 }, (_, t) => t / 40);
const annealed = crf.annealed(own, betas, 2000, rng);
compare("annealed Z over Z", annealed.logWeights.map((w) => Math.exp(w + crf.basePartition(own) - exact.logPartition)), 1);

// the ranks of the small posterior, by sampler
const small = diagnostics.smallProblem({ queries: new Array(8).fill(0), separation: 4, precision: 1, keyStrength: 1 });
const p = {};
for (const bug of Object.keys(diagnostics.BUGS)) {
  const ranks = Array.from({ length: 300 }, () => diagnostics.calibrationRanks(small, { bug, numDraws: 39, thin: 3, warmup: 30, rng }));
  p[bug] = ["key", "logLikelihood"].map((of) => diagnostics.uniformity(ranks.map((x) => x[of]), 39));
}
console.log(JSON.stringify({ rows, p }));
