// A memory w of two features that answers w'k, as models.RegressionMemory with one output, and three layers of models.layers.
//
// The posterior after some pairs has precision L I + Σ ω k k' with positive L and ω. Its determinant, its moments and its weights are
// sums of products of cross products of keys (Cauchy and Binet), which lose no digits however parallel the keys are.

import { dot } from "./mixture.js";

const cross = ([a, b], [c, d]) => a * d - b * c;

// Moments given keys, values, strengths ω of the pairs and strength L of the prior about 0; `weights(q)` are those of the values in
// the answer to q, `variance(q)` is that of the mean answer.
function regress(keys, values, strengths, prior) {
  let [trace, product] = [0, 0];
  const mean = [0, 0];
  keys.forEach((k, s) => {
    trace += strengths[s] * dot(k, k);
    for (let d = 0; d < 2; d++) mean[d] += prior * strengths[s] * values[s] * k[d];
    for (let t = 0; t < s; t++) {
      const both = strengths[s] * strengths[t] * cross(k, keys[t]);
      product += both * cross(k, keys[t]);
      mean[0] += both * (values[s] * keys[t][1] - values[t] * k[1]);
      mean[1] += both * (k[0] * values[t] - keys[t][0] * values[s]);
    }
  });
  const determinant = prior * (prior + trace) + product;
  const sum = (term) => keys.reduce((total, k, s) => total + strengths[s] * term(k), 0);
  const covariance = [[prior + sum((k) => k[1] * k[1]), -sum((k) => k[0] * k[1])], [-sum((k) => k[0] * k[1]), prior + sum((k) => k[0] * k[0])]];
  return {
    mean: mean.map((x) => x / determinant),
    covariance: covariance.map((row) => row.map((x) => x / determinant)),
    determinant, // of the precision
    variance: (q) => (prior * dot(q, q) + sum((k) => cross(q, k) ** 2)) / determinant,
    weights: (q) => keys.map((k, s) => (strengths[s] * (prior * dot(q, k) + sum((other) => cross(q, other) * cross(k, other)))) / determinant),
  };
}

// The posterior after the first `count` pairs and `steps` further steps of the drift.
function posterior({ keys, values, prior, noise, drift, forgetting }, count, steps = 0) {
  const kept = drift === "static" ? 1 : forgetting;
  const strengths = keys.slice(0, count).map((_, s) => noise * kept ** (count - 1 - s + steps));
  return regress(keys.slice(0, count), values.slice(0, count), strengths, drift === "discount" ? prior * kept ** (count + steps) : prior);
}

// Gains and variances (null: there are none) of a layer, key by key.
const GAINS = {
  linear({ prior, noise }, keys) {
    const scale = noise / (prior + noise); // exact where every key is new, has length 1 and is orthogonal to the others
    return keys.map((k) => ({ gain: k.map((x) => scale * x), variance: (1 + scale * dot(k, k)) / noise }));
  },
  delta({ noise, step }, keys) {
    const dense = keys.every((k) => step * dot(k, k) < 1);
    return keys.map((k) => ({ gain: k.map((x) => step * x), variance: dense ? 1 / (noise * (1 - step * dot(k, k))) : null }));
  },
  kalman({ prior, noise, kalman }, keys, decay) {
    const diagonal = kalman === "diagonal";
    let variances = [1 / prior, 1 / prior];
    return keys.map((k) => {
      variances = variances.map((x) => decay * decay * x + (1 - decay * decay) / prior);
      const squares = k.map((x) => x * x);
      const variance = 1 / noise + dot(variances, squares);
      const gain = k.map((x, d) => (variances[d] * x) / variance);
      const seen = diagonal ? squares : [dot(k, k) / 2, dot(k, k) / 2];
      variances = variances.map((x, d) => 1 / (1 / x + noise * seen[d]));
      return { gain, variance };
    });
  },
};

// A layer along a stream: what it predicts of each value, with its variance, and its memory after each pair.
function run(state, name, keys, values) {
  const decay = state.drift === "static" ? 1 : state.forgetting;
  const corrects = name !== "linear";
  let w = [0, 0];
  return GAINS[name](state, keys, decay).map(({ gain, variance }, t) => {
    w = w.map((x) => decay * x);
    const mean = dot(w, keys[t]);
    const written = corrects ? values[t] - mean : values[t];
    w = w.map((x, d) => x + gain[d] * written);
    return { mean, variance, after: w };
  });
}

const logDensity = (v, mean, variance) => -0.5 * (Math.log(2 * Math.PI * variance) + (v - mean) ** 2 / variance);

// All that the view shows: the memory after the pairs that were read; what each layer says of the query as the next pair; the log density
// of the values that were read, each given those before it; and the weights of the values in the exact answer, and in linear attention's.
export function summary(state) {
  const { keys, values, noise, query, read } = state;
  const now = posterior(state, read);
  const exact = (count, key) => {
    const found = posterior(state, count, 1);
    return { mean: dot(found.mean, key), variance: 1 / noise + found.variance(key) };
  };
  const next = exact(read, query);
  const layers = { exact: { mean: next.mean, sd: Math.sqrt(next.variance), memory: now.mean } };
  const evidence = { exact: values.slice(0, read).reduce((sum, v, t) => sum + logDensity(v, ...Object.values(exact(t, keys[t]))), 0) };
  for (const name of Object.keys(GAINS)) {
    const stream = run(state, name, [...keys.slice(0, read), query], [...values.slice(0, read), 0]);
    const { mean, variance } = stream[read];
    const dense = variance !== null;
    layers[name] = { mean, sd: dense ? Math.sqrt(variance) : null, memory: read ? stream[read - 1].after : [0, 0] };
    evidence[name] = dense ? values.slice(0, read).reduce((sum, v, t) => sum + logDensity(v, stream[t].mean, stream[t].variance), 0) : null;
  }
  const decay = state.drift === "static" ? 1 : state.forgetting;
  const scale = noise / (state.prior + noise);
  return {
    memory: now.mean, covariance: now.covariance, determinant: now.determinant, layers, evidence, before: Math.sqrt(exact(0, query).variance),
    attention: now.weights(query), linearAttention: keys.slice(0, read).map((k, s) => scale * decay ** (read - 1 - s) * dot(query, k)),
  };
}

// Points of the ellipse one standard deviation about a mean, from a covariance and the determinant of its inverse.
export function ellipse(mean, [[a, b], [, c]], determinant, deviations, count = 64) {
  const wide = (a + c) / 2 + Math.hypot((a - c) / 2, b);
  const [long, across] = [Math.sqrt(wide), Math.sqrt(1 / determinant / wide)];
  const turn = 0.5 * Math.atan2(2 * b, a - c);
  const [cos, sin] = [Math.cos(turn), Math.sin(turn)];
  return Array.from({ length: count + 1 }, (_, i) => {
    const [u, v] = [deviations * long * Math.cos((2 * Math.PI * i) / count), deviations * across * Math.sin((2 * Math.PI * i) / count)];
    return [mean[0] + cos * u - sin * v, mean[1] + sin * u + cos * v];
  });
}
