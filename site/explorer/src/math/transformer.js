// The small text transformer of the package (probtx_pyro.data.text_transformer), reading: queries, keys and attention of its heads, its loss,
// and for a head all mixtures with its attention: keys (α k + b) / P, precision P, weights ∝ exp(½ P |key|²), for any b and P > 0.

import { logSumExp } from "./mixture.js";

export const WIDTH = 64;
export const HEADS = 4;
export const LAYERS = 2;
export const MOST = 96; // characters that the page reads
export const CHANNELS = WIDTH / HEADS;
export const ALPHA = 1 / Math.sqrt(CHANNELS); // the scale of its attention

// ---- weights: half precision, in base64 ------------------------------------------------------------------------------------------------

export function decode({ alphabet, arrays, data }) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const half = (at) => {
    const bits = bytes[at] | (bytes[at + 1] << 8);
    const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
    return (bits >> 15 ? -1 : 1) * (exponent ? 2 ** (exponent - 25) * (1024 + fraction) : 2 ** -24 * fraction);
  };
  const found = { alphabet };
  for (const [name, [start, count]] of Object.entries(arrays)) found[name] = Float64Array.from({ length: count }, (_, k) => half(start + 2 * k));
  return found;
}

// ---- reading ---------------------------------------------------------------------------------------------------------------------------

// The error function: a series of positive terms near 0, a continued fraction beyond.
export function erf(x) {
  const size = Math.abs(x);
  if (size > 6) return Math.sign(x);
  if (size < 2.5) {
    let [term, sum] = [size, size];
    for (let n = 1; term > 1e-17 * sum; n++) sum += term *= (2 * size * size) / (2 * n + 1);
    return (Math.sign(x) * 2 * Math.exp(-size * size) * sum) / Math.sqrt(Math.PI);
  }
  let below = size;
  for (let n = 60; n > 0; n--) below = size + n / 2 / below;
  return Math.sign(x) * (1 - Math.exp(-size * size) / below / Math.sqrt(Math.PI));
}

const gelu = (x) => 0.5 * x * (1 + erf(x / Math.SQRT2));

function normed(x, scale, shift) {
  const mean = x.reduce((a, b) => a + b) / WIDTH;
  const variance = x.reduce((sum, z) => sum + (z - mean) ** 2, 0) / WIDTH;
  return x.map((z, d) => ((z - mean) / Math.sqrt(variance + 1e-5)) * scale[d] + shift[d]);
}

function linear(x, weight, bias) {
  const found = new Float64Array(bias);
  for (let r = 0; r < bias.length; r++) for (let c = 0, at = r * x.length; c < x.length; c++, at++) found[r] += weight[at] * x[c];
  return found;
}

const inner = (a, b) => a.reduce((sum, x, d) => sum + x * b[d], 0);

// Queries, keys and attention of every head, as found["layer.head"], and the loss of each character but the first, in nats.
export function read(model, text) {
  const characters = [...text].slice(0, MOST);
  const tokens = characters.map((letter) => Math.max(0, model.alphabet.indexOf(letter)));
  const row = (name, k) => model[name].subarray(k * WIDTH, (k + 1) * WIDTH);
  let x = tokens.map((token, i) => row("characters.weight", token).map((z, d) => z + row("positions.weight", i)[d]));
  const heads = {};
  for (let layer = 0; layer < LAYERS; layer++) {
    const own = (name) => model[`blocks.${layer}.${name}`];
    const layered = (name) => [own(`${name}.weight`), own(`${name}.bias`)];
    const projected = x.map((z) => linear(normed(z, ...layered("attention_norm")), ...layered("projection")));
    const attended = x.map(() => new Float64Array(WIDTH));
    for (let head = 0; head < HEADS; head++) {
      const part = (kind) => projected.map((z) => z.subarray(kind * WIDTH + head * CHANNELS, kind * WIDTH + (head + 1) * CHANNELS));
      const [queries, keys, values] = [0, 1, 2].map(part);
      const attention = attentionOf(queries, keys, ALPHA);
      attention.forEach((shares, i) => shares.forEach((share, j) => {
        for (let d = 0; d < CHANNELS; d++) attended[i][head * CHANNELS + d] += share * values[j][d];
      }));
      heads[`${layer}.${head}`] = { queries, keys, attention };
    }
    x = x.map((z, i) => {
      const first = linear(attended[i], ...layered("merge")).map((y, d) => y + z[d]);
      const wide = linear(normed(first, ...layered("feed_norm")), ...layered("widen")).map(gelu);
      return linear(wide, ...layered("narrow")).map((y, d) => y + first[d]);
    });
  }
  const losses = x.slice(0, -1).map((z, i) => {
    const last = normed(z, model["norm.weight"], model["norm.bias"]);
    const logits = Array.from(model.alphabet, (_, k) => inner(last, row("characters.weight", k)));
    return logSumExp(logits) - logits[tokens[i + 1]];
  });
  return { characters, unknown: characters.filter((_, i) => tokens[i] === 0), heads, losses, loss: losses.reduce((a, b) => a + b, 0) / losses.length };
}

// Causal: row i has i + 1 entries.
export function attentionOf(queries, keys, scale) {
  return queries.map((query, i) => {
    const scores = keys.slice(0, i + 1).map((key) => scale * inner(query, key));
    const whole = logSumExp(scores);
    return scores.map((score) => Math.exp(score - whole));
  });
}

// ---- mixtures with one attention ----------------------------------------------------------------------------------------------------------

// The mixture of b and P: its keys, and the log weights of all units but for a constant.
export function mixtureOf({ keys }, scale, b, P) {
  const moved = keys.map((key) => key.map((x, d) => (scale * x + b[d]) / P));
  return { keys: moved, P, logs: moved.map((key) => 0.5 * P * inner(key, key)) };
}

// Attention and log evidence of every query, whose units are those up to its own place.
export function explain({ queries }, { keys, P, logs }) {
  const attention = [];
  const evidence = queries.map((query, i) => {
    const joint = logs.slice(0, i + 1).map((log, j) => log - 0.5 * P * keys[j].reduce((sum, x, d) => sum + (query[d] - x) ** 2, 0));
    const whole = logSumExp(joint);
    attention.push(joint.map((z) => Math.exp(z - whole)));
    return whole - logSumExp(logs.slice(0, i + 1)) + 0.5 * CHANNELS * Math.log(P / (2 * Math.PI));
  });
  return { attention, evidence };
}

// Queries drawn from the mixture, one at each place.
export function simulate({ queries }, { keys, P, logs }, random) {
  return queries.map((_, i) => {
    const most = Math.max(...logs.slice(0, i + 1));
    const key = keys[random.categorical(logs.slice(0, i + 1).map((log) => Math.exp(log - most)))];
    return key.map((x) => x + random.normal() / Math.sqrt(P));
  });
}

// b and P under which the queries are likeliest. The log evidence is concave in them: Newton's steps, halved where they go too far. Its
// gradient and curvature are moments of T = (q, -½ |q|²) under the mixture, place by place.
export function likeliest(head, scale) {
  const { queries } = head;
  const size = CHANNELS + 1;
  // the log evidence but for what attention alone decides
  const worth = (theta) => {
    const P = theta[CHANNELS];
    if (!(P > 0)) return -Infinity;
    const { logs } = mixtureOf(head, scale, theta.slice(0, CHANNELS), P);
    const most = Math.max(...logs);
    let [sum, total] = [0, inner(theta, seen) - queries.length * (0.5 * CHANNELS * Math.log((2 * Math.PI) / P) + most)];
    for (const log of logs) total -= Math.log((sum += Math.exp(log - most)));
    return total;
  };
  const seen = new Float64Array(size);
  for (const query of queries) {
    for (let d = 0; d < CHANNELS; d++) seen[d] += query[d];
    seen[CHANNELS] -= 0.5 * inner(query, query);
  }
  let theta = [...new Array(CHANNELS).fill(0), scale];
  let best = worth(theta);
  for (let step = 0; step < 200; step++) {
    const { gradient, curvature } = derivatives(head, mixtureOf(head, scale, theta.slice(0, CHANNELS), theta[CHANNELS]), seen);
    const way = solve(curvature, gradient);
    const decrement = inner(way, gradient);
    let share = 1;
    let next = theta;
    let value = -Infinity;
    for (; share > 1e-8; share /= 2) {
      next = theta.map((x, k) => x + share * way[k]);
      value = worth(next);
      if (value >= best) break;
    }
    if (value >= best) [theta, best] = [next, value];
    if (decrement < 1e-18 * queries.length || value < best || share <= 1e-8) break;
  }
  return { b: theta.slice(0, CHANNELS), P: theta[CHANNELS] };
}

function derivatives({ queries }, { keys, P, logs }, seen) {
  const size = CHANNELS + 1;
  const most = Math.max(...logs);
  const [gradient, curvature] = [Float64Array.from(seen), Array.from({ length: size }, () => new Float64Array(size))];
  const [first, second] = [new Float64Array(size), Array.from({ length: size }, () => new Float64Array(size))]; // sums over units so far
  let [total, squares] = [0, 0];
  for (let i = 0; i < queries.length; i++) {
    const w = Math.exp(logs[i] - most);
    const own = [...keys[i], -0.5 * inner(keys[i], keys[i])];
    total += w;
    squares += w * inner(keys[i], keys[i]);
    for (let r = 0; r < size; r++) {
      first[r] += w * own[r];
      for (let c = 0; c <= r; c++) second[r][c] += w * own[r] * own[c];
    }
    for (let r = 0; r < size; r++) {
      gradient[r] -= first[r] / total;
      for (let c = 0; c <= r; c++) curvature[r][c] += second[r][c] / total - (first[r] / total) * (first[c] / total);
    }
    gradient[CHANNELS] += (0.5 * CHANNELS) / P;
    for (let d = 0; d < CHANNELS; d++) {
      curvature[d][d] += 1 / P; // of q about its key, and of q with -½ |q|²:
      curvature[CHANNELS][d] -= first[d] / total / P;
    }
    curvature[CHANNELS][CHANNELS] += squares / total / P + (0.5 * CHANNELS) / P ** 2;
  }
  return { gradient, curvature };
}

// x of A x = y, A given by its lower half, positive definite.
function solve(A, y) {
  const L = A.map((row) => Float64Array.from(row));
  const x = Array.from(y);
  for (let r = 0; r < x.length; r++) {
    for (let c = 0; c <= r; c++) {
      for (let k = 0; k < c; k++) L[r][c] -= L[r][k] * L[c][k];
      L[r][c] = r === c ? Math.sqrt(L[r][r]) : L[r][c] / L[c][c];
    }
    for (let k = 0; k < r; k++) x[r] -= L[r][k] * x[k];
    x[r] /= L[r][r];
  }
  for (let r = x.length - 1; r >= 0; r--) {
    for (let k = r + 1; k < x.length; k++) x[r] -= L[k][r] * x[k];
    x[r] /= L[r][r];
  }
  return x;
}

// The two directions in which vectors vary most, and their mean; by Jacobi's rotations.
export function plane(vectors) {
  const mean = vectors[0].map((_, d) => vectors.reduce((sum, x) => sum + x[d], 0) / vectors.length);
  const size = mean.length;
  const A = Array.from({ length: size }, (_, r) => Array.from({ length: size }, (_, c) => vectors.reduce((sum, x) => sum + (x[r] - mean[r]) * (x[c] - mean[c]), 0) / vectors.length));
  const V = Array.from({ length: size }, (_, r) => Array.from({ length: size }, (_, c) => Number(r === c)));
  for (let sweep = 0; sweep < 12; sweep++) {
    for (let p = 0; p < size; p++) {
      for (let q = p + 1; q < size; q++) {
        if (Math.abs(A[p][q]) < 1e-300) continue;
        const turn = 0.5 * Math.atan2(2 * A[p][q], A[q][q] - A[p][p]);
        const [c, s] = [Math.cos(turn), Math.sin(turn)];
        for (const M of [A, V]) for (let k = 0; k < size; k++) [M[k][p], M[k][q]] = [c * M[k][p] - s * M[k][q], s * M[k][p] + c * M[k][q]];
        for (let k = 0; k < size; k++) [A[p][k], A[q][k]] = [c * A[p][k] - s * A[q][k], s * A[p][k] + c * A[q][k]];
      }
    }
  }
  const order = A.map((row, k) => [row[k], k]).sort((a, b) => b[0] - a[0]);
  return { mean: Array.from(mean), axes: [0, 1].map((k) => V.map((row) => row[order[k][1]])), variances: [0, 1].map((k) => order[k][0]) };
}
