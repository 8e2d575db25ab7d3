// A mixture of Gaussian units that answer, as models.GaussianMixture; docs/mathematics.md, sections 1 and 2.
//
// mixture: { keys (U, D), precision number or (U), logPrior (U), values (U, M) or null, valuePrecision number or (U),
//            metric (D, D) or null, logRoot: half the log determinant of the metric }

const LOG_2PI = Math.log(2 * Math.PI);

export function logSumExp(x) {
  const top = Math.max(...x);
  if (top === -Infinity) return top;
  let sum = 0;
  for (const z of x) sum += Math.exp(z - top);
  return top + Math.log(sum);
}

export function softmax(logits) {
  const top = Math.max(...logits);
  const raised = logits.map((z) => Math.exp(z - top));
  const sum = raised.reduce((a, b) => a + b, 0);
  return raised.map((z) => z / sum);
}

export function logSoftmax(logits) {
  const total = logSumExp(logits);
  return logits.map((z) => z - total);
}

export const dot = (a, b) => {
  let sum = 0;
  for (let d = 0; d < a.length; d++) sum += a[d] * b[d];
  return sum;
};

export const each = (x, j) => (Array.isArray(x) ? x[j] : x);

// |a - b|², or (a - b)' metric (a - b).
export function distance2(a, b, metric = null) {
  const apart = a.map((x, d) => x - b[d]);
  return metric === null ? dot(apart, apart) : dot(apart, metric.map((row) => dot(row, apart)));
}

export function logNormal(point, center, precision, metric = null, logRoot = 0) {
  const half = 0.5 * point.length * (Math.log(precision) - LOG_2PI);
  return half + logRoot - 0.5 * precision * distance2(point, center, metric);
}

// The prior that makes attention a softmax of dot products: log π_j = ½ α |k_j|² + log weight, normalised.
export function linkedPrior(keys, precision, logWeights = null) {
  return logSoftmax(keys.map((key, j) => 0.5 * precision * dot(key, key) + (logWeights ? logWeights[j] : 0)));
}

// The mixture with one more unit, the last, of that prior weight; GaussianMixture.with_background with key 0 and answer 0.
export function withBackground(mixture, weight, precision) {
  const count = mixture.keys.length;
  const zero = (row) => row.map(() => 0);
  return {
    ...mixture,
    keys: [...mixture.keys, zero(mixture.keys[0])],
    values: mixture.values && [...mixture.values, zero(mixture.values[0])],
    precision: [...mixture.keys.map((_, j) => each(mixture.precision, j)), precision],
    logPrior: [...mixture.logPrior.map((x) => x + Math.log1p(-weight)), Math.log(weight)],
    valuePrecision: Array.isArray(mixture.valuePrecision) ? [...mixture.valuePrecision, mixture.valuePrecision[count - 1]] : mixture.valuePrecision,
  };
}

// log p(query, unit=j), with the answer where one is given.
export function logJoint(mixture, query, answer = null) {
  const { keys, precision, logPrior, metric = null, logRoot = 0, values, valuePrecision } = mixture;
  return keys.map((key, j) => {
    const asked = logPrior[j] + logNormal(query, key, each(precision, j), metric, logRoot);
    return answer === null ? asked : asked + logNormal(answer, values[j], each(valuePrecision, j));
  });
}

export const attention = (mixture, query, answer = null) => softmax(logJoint(mixture, query, answer));

export const logEvidence = (mixture, query, answer = null) => logSumExp(logJoint(mixture, query, answer));

// The evidence of queries of the plane divided by exp(top), as a function of the query: for shading, where it may be 0 far away.
export function evidenceField(mixture, top) {
  const { keys, precision, logPrior, metric = null, logRoot = 0 } = mixture;
  const [[a, b], [, c]] = metric ?? [[1, 0], [0, 1]];
  const units = keys.map(([x, y], j) => [x, y, each(precision, j), Math.exp(logPrior[j] + logNormal([0, 0], [0, 0], each(precision, j), null, logRoot) - top)]);
  return ([x, y]) => {
    let sum = 0;
    for (const [kx, ky, p, scale] of units) {
      const [dx, dy] = [x - kx, y - ky];
      sum += scale * Math.exp(-0.5 * p * (a * dx * dx + 2 * b * dx * dy + c * dy * dy));
    }
    return sum;
  };
}

// Σ_j w_j x_j of rows.
export function average(weights, rows) {
  return rows[0].map((_, m) => rows.reduce((sum, row, j) => sum + weights[j] * row[m], 0));
}

export const expectedOutput = (mixture, query) => average(attention(mixture, query), mixture.values);

// ---- the answer: a mixture of Gaussians at the values, with weights ----------------------------------------------------------

// answer: { weights (U), values (U, M), precision number or (U) }
export const answerOf = (mixture, query) => ({
  weights: attention(mixture, query), values: mixture.values, precision: mixture.valuePrecision,
});

export function logDensity({ weights, values, precision }, at) {
  return logSumExp(values.map((value, j) => Math.log(weights[j]) + logNormal(at, value, each(precision, j))));
}

// p(unit | query, answer): the weights with the answer seen.
export function weightsAt({ weights, values, precision }, at) {
  return softmax(values.map((value, j) => Math.log(weights[j]) + logNormal(at, value, each(precision, j))));
}

// One step of EM on the answer, v <- Σ w β μ / Σ w β.
export function emStep(answer, at) {
  const pulls = weightsAt(answer, at).map((w, j) => w * each(answer.precision, j));
  const total = pulls.reduce((a, b) => a + b, 0);
  return average(pulls.map((x) => x / total), answer.values);
}

export function emPath(answer, start, steps) {
  const path = [start];
  for (let t = 0; t < steps; t++) path.push(emStep(answer, path[t]));
  return path;
}

// Gradient and Hessian of the log density.
export function curvature(answer, at) {
  const own = weightsAt(answer, at);
  const pulls = answer.values.map((value, j) => value.map((x, m) => each(answer.precision, j) * (x - at[m])));
  const gradient = average(own, pulls);
  const precision = own.reduce((sum, w, j) => sum + w * each(answer.precision, j), 0);
  const hessian = gradient.map((_, a) =>
    gradient.map((_, b) => {
      let sum = a === b ? -precision : 0;
      for (let j = 0; j < own.length; j++) sum += own[j] * (pulls[j][a] - gradient[a]) * (pulls[j][b] - gradient[b]);
      return sum;
    }),
  );
  return { gradient, hessian };
}

// Eigenvalues (ascending) and the direction of the largest, of a symmetric matrix of one or two rows.
export function eigen(matrix) {
  if (matrix.length === 1) return { values: [matrix[0][0]], largest: [1] };
  const [[a, b], [, c]] = matrix;
  const [middle, radius] = [(a + c) / 2, Math.hypot((a - c) / 2, b)];
  const direction = b === 0 ? (a >= c ? [1, 0] : [0, 1]) : [middle + radius - c, b];
  const size = Math.hypot(...direction);
  return { values: [middle - radius, middle + radius], largest: direction.map((x) => x / size) };
}

// Climbs to a stationary point: EM, which never falls, and Newton's steps where the density is concave and they rise.
export function climb(answer, start, steps = 200) {
  let at = start;
  for (let t = 0; t < steps; t++) {
    let next = emStep(answer, at);
    const { gradient, hessian } = curvature(answer, at);
    if (eigen(hessian).values.at(-1) < 0) {
      const jump = newton(gradient, hessian, at);
      if (logDensity(answer, jump) >= logDensity(answer, next)) next = jump;
    }
    const moved = Math.sqrt(distance2(at, next));
    at = next;
    if (moved < 1e-14 * (1 + Math.hypot(...at))) break;
  }
  return at;
}

function newton(gradient, hessian, at) {
  if (at.length === 1) return [at[0] - gradient[0] / hessian[0][0]];
  const [[a, b], [, c]] = hessian;
  const determinant = a * c - b * b;
  return [at[0] - (c * gradient[0] - b * gradient[1]) / determinant, at[1] - (a * gradient[1] - b * gradient[0]) / determinant];
}

// The modes found by climbing from every value and from the mean, the most probable first: [{ at, logDensity }].
// Answers of one or two coordinates.
export function modes(answer) {
  const { values, weights } = answer;
  const middle = values[0].map((_, m) => values.reduce((sum, v) => sum + v[m], 0) / values.length);
  const spread = Math.max(...values.map((v) => Math.sqrt(distance2(v, middle)))) || 1;
  const found = [];
  for (const start of [...values, average(weights, values)]) {
    const at = climb(answer, start);
    if (eigen(curvature(answer, at).hessian).values.at(-1) >= 0) continue;
    if (found.every((other) => Math.sqrt(distance2(other.at, at)) > 1e-5 * spread)) found.push({ at, logDensity: logDensity(answer, at) });
  }
  return found.sort((a, b) => b.logDensity - a.logDensity);
}

// Variance of each coordinate of the answer.
export function answerVariance({ weights, values, precision }) {
  const mean = average(weights, values);
  return mean.map((m, d) => weights.reduce((sum, w, j) => sum + w * (1 / each(precision, j) + (values[j][d] - m) ** 2), 0));
}

// Entropy of a row of attention, in nats.
export const entropy = (p) => p.reduce((sum, x) => (x > 0 ? sum - x * Math.log(x) : sum), 0);
