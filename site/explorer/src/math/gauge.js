// All mixtures with one attention: keys with Λ k' = α (k - o) and the linked prior, for any origin o and metric Λ.
// docs/course/notation.md calls Λ the metric; models.GaussianMixture with metric=.

import { attention, average, dot, linkedPrior, logEvidence, logSoftmax } from "./mixture.js";

// The metric with one precision along a direction (an angle in degrees) and another across it, and its parts.
export function metricOf(along, across, degrees) {
  const [c, s] = [Math.cos((degrees * Math.PI) / 180), Math.sin((degrees * Math.PI) / 180)];
  const make = (a, b) => [[a * c * c + b * s * s, (a - b) * c * s], [(a - b) * c * s, a * s * s + b * c * c]];
  return { metric: make(along, across), inverse: make(1 / along, 1 / across), root: make(along ** -0.5, across ** -0.5), logRoot: 0.5 * Math.log(along * across) };
}

// The mixture in the plane whose attention is softmax(precision query · keys), in coordinates of one's choice.
export function equivalent(keys, precision, origin, along, across, degrees) {
  const { metric, inverse, logRoot } = metricOf(along, across, degrees);
  const moved = keys.map((key) => {
    const pulled = key.map((x, d) => precision * (x - origin[d]));
    return inverse.map((row) => dot(row, pulled));
  });
  const links = moved.map((key) => 0.5 * dot(key, metric.map((row) => dot(row, key))));
  return { keys: moved, precision: 1, metric, logRoot, logPrior: logSoftmax(links), values: null, valuePrecision: 0 };
}

// Softmax attention as it is usually written.
export const softmaxAttention = (keys, precision, query) => logSoftmax(keys.map((key) => precision * dot(key, query))).map(Math.exp);

// The linked mixture in the coordinates of the keys themselves: origin 0, metric precision times I.
export const asGiven = (keys, precision) => ({ keys, precision, logPrior: linkedPrior(keys, precision), values: null, valuePrecision: 0 });

export const totalEvidence = (mixture, queries) => queries.reduce((sum, query) => sum + logEvidence(mixture, query), 0);

// The mean of what the mixture says queries are, Σ_j π_j k_j.
export const expectedQuery = (mixture) => average(mixture.logPrior.map(Math.exp), mixture.keys);

// What the model says of queries, beside the linked mixture of the keys as they are.
export function compared({ keys, precision, queries, origin, along, across, degrees }) {
  const model = equivalent(keys, precision, origin, along, across, degrees);
  return {
    attention: queries.map((query) => attention(model, query)),
    attentionAsGiven: queries.map((query) => softmaxAttention(keys, precision, query)),
    evidence: totalEvidence(model, queries),
    evidenceAsGiven: totalEvidence(asGiven(keys, precision), queries),
    expectedQuery: expectedQuery(model),
  };
}

// Queries drawn from the mixture: a unit by its prior, then noise.
export function simulate(mixture, root, count, random) {
  const prior = mixture.logPrior.map(Math.exp);
  return Array.from({ length: count }, () => {
    const key = mixture.keys[random.categorical(prior)];
    const noise = [random.normal(), random.normal()];
    return key.map((x, d) => x + dot(root[d], noise));
  });
}

// A place where the evidence of the queries is higher than at all neighbours: compass search over origin, log precisions and angle.
export function likeliest(keys, precision, queries, start) {
  const worth = ([ox, oy, along, across, degrees]) => totalEvidence(equivalent(keys, precision, [ox, oy], Math.exp(along), Math.exp(across), degrees), queries);
  let at = [...start.origin, Math.log(start.along), Math.log(start.across), start.degrees];
  let best = worth(at);
  const steps = [0.5, 0.5, 0.5, 0.5, 30];
  for (let round = 0; round < 400 && steps[0] > 1e-3; round++) {
    let moved = false;
    for (let d = 0; d < 5; d++) {
      for (const sign of [1, -1]) {
        const next = at.map((x, k) => (k === d ? x + sign * steps[d] : x));
        if (Math.max(Math.abs(next[2]), Math.abs(next[3])) > Math.log(20)) continue;
        const value = worth(next);
        if (value > best) [at, best, moved] = [next, value, true];
      }
    }
    if (!moved) steps.forEach((s, d) => (steps[d] = s / 2));
  }
  const [ox, oy, along, across, degrees] = at;
  return { origin: [ox, oy], along: Math.exp(along), across: Math.exp(across), degrees: ((degrees % 180) + 180) % 180 };
}
