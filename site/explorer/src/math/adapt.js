// Keys under a Normal prior, and a shift common to all of them: ECM, Gibbs sampling, averages over draws, and the exact answer.
//
// problem: { queries (Q, D), keys (U, D) the prior means, precision of the queries, weights (U) log prior of the units,
//            keyStrength theta, shiftStrength kappa, adapt: "own" | "shift" | "both" }
// state:   { keys (U, D), shift (D) }
// docs/mathematics.md: (2.11), (2.21), (2.22); results.predict for the averages.

const LOG_2_PI = Math.log(2 * Math.PI);

export function logSumExp(terms) {
  const top = Math.max(...terms);
  if (top === -Infinity) return -Infinity;
  let sum = 0;
  for (const x of terms) sum += Math.exp(x - top);
  return top + Math.log(sum);
}

export function movesKeys(problem) {
  return problem.adapt !== "shift";
}

export function movesShift(problem) {
  return problem.adapt !== "own";
}

export function startState(problem) {
  return { keys: problem.keys.map((key) => [...key]), shift: problem.keys[0].map(() => 0) };
}

function squaredDistance(a, b, shift) {
  let sum = 0;
  for (let d = 0; d < a.length; d++) sum += (a[d] - b[d] - shift[d]) ** 2;
  return sum;
}

// The attention and the log evidence of one query: { attention (U), logEvidence }.
export function explain(problem, state, query) {
  const { precision, weights } = problem;
  const scale = 0.5 * query.length * (Math.log(precision) - LOG_2_PI);
  const joint = state.keys.map((key, j) => weights[j] + scale - 0.5 * precision * squaredDistance(query, key, state.shift));
  const logEvidence = logSumExp(joint);
  return { attention: joint.map((x) => Math.exp(x - logEvidence)), logEvidence };
}

function logNormal(x, mean, strength) {
  return 0.5 * (Math.log(strength) - LOG_2_PI) - 0.5 * strength * (x - mean) ** 2;
}

// log p(parameters) + sum_i log p(q_i | parameters), (2.10).
export function logJoint(problem, state) {
  let total = 0;
  for (const query of problem.queries) total += explain(problem, state, query).logEvidence;
  if (movesKeys(problem)) {
    state.keys.forEach((key, j) =>
      key.forEach((x, d) => (total += logNormal(x, problem.keys[j][d], problem.keyStrength))),
    );
  }
  if (movesShift(problem)) state.shift.forEach((x) => (total += logNormal(x, 0, problem.shiftStrength)));
  return total;
}

// The conditional of every key given assignments w (Q, U) and the shift: { mean (U, D), precision (U) }, (2.21).
export function keyConditional(problem, w, shift) {
  const { queries, keys, precision, keyStrength } = problem;
  const strengths = keys.map((_, j) => keyStrength + precision * w.reduce((sum, row) => sum + row[j], 0));
  const mean = keys.map((prior, j) =>
    prior.map((m, d) => {
      let pull = 0;
      queries.forEach((q, i) => (pull += w[i][j] * (q[d] - shift[d])));
      return (keyStrength * m + precision * pull) / strengths[j];
    }),
  );
  return { mean, precision: strengths };
}

// The conditional of the shift given assignments w (Q, U) and the keys: { mean (D), precision }, (2.22).
export function shiftConditional(problem, w, keys) {
  const { queries, precision, shiftStrength } = problem;
  let count = 0;
  const pull = keys[0].map(() => 0);
  queries.forEach((q, i) =>
    keys.forEach((key, j) => {
      count += w[i][j];
      for (let d = 0; d < q.length; d++) pull[d] += w[i][j] * (q[d] - key[d]);
    }),
  );
  const strength = shiftStrength + precision * count;
  return { mean: pull.map((x) => (precision * x) / strength), precision: strength };
}

// One step of ECM: the E-step, then the keys, then the shift given the new keys.
export function step(problem, state) {
  const w = problem.queries.map((q) => explain(problem, state, q).attention);
  const keys = movesKeys(problem) ? keyConditional(problem, w, state.shift).mean : state.keys;
  const shift = movesShift(problem) ? shiftConditional(problem, w, keys).mean : state.shift;
  return { keys, shift };
}

// States and log joints of so many steps, the start first.
export function adapt(problem, numSteps) {
  const states = [startState(problem)];
  for (let t = 0; t < numSteps; t++) states.push(step(problem, states[t]));
  return { states, objective: states.map((state) => logJoint(problem, state)) };
}

// Room that sweeps use again, since a new array for each costs more than the sweep.
let room = { units: 0, features: 0 };

function roomFor(units, features) {
  if (room.units !== units || room.features !== features) {
    const [one, all] = [() => new Float64Array(units), () => new Float64Array(units * features)];
    room = { units, features, counts: one(), scores: one(), sums: all(), places: all() };
  }
  room.counts.fill(0);
  room.sums.fill(0);
  return room;
}

// One sweep of the Gibbs sampler: units from the attention, then keys, then the shift. rng: { uniform(), normal() }.
// The conditionals are those of `keyConditional` and `shiftConditional` at the units drawn, of which only counts and sums are kept.
export function sweep(problem, state, rng) {
  const { queries, precision, weights, keyStrength, shiftStrength } = problem;
  let { keys, shift } = state;
  const [units, features] = [keys.length, shift.length];
  const { counts, sums, scores, places } = roomFor(units, features);
  for (let j = 0, at = 0; j < units; j++) for (let d = 0; d < features; d++) places[at++] = keys[j][d] + shift[d];
  for (const query of queries) {
    let top = -Infinity;
    for (let j = 0, at = 0; j < units; j++) {
      let square = 0;
      for (let d = 0; d < features; d++, at++) square += (query[d] - places[at]) * (query[d] - places[at]);
      scores[j] = weights[j] - 0.5 * precision * square;
      if (scores[j] > top) top = scores[j];
    }
    let total = 0;
    for (let j = 0; j < units; j++) total += scores[j] = Math.exp(scores[j] - top);
    let left = rng.uniform() * total;
    let unit = 0;
    while (unit < units - 1 && left >= scores[unit]) left -= scores[unit++];
    counts[unit] += 1;
    for (let d = 0; d < features; d++) sums[unit * features + d] += query[d];
  }
  if (movesKeys(problem)) {
    keys = problem.keys.map((prior, j) => {
      const strength = keyStrength + precision * counts[j];
      return prior.map((m, d) => {
        const mean = (keyStrength * m + precision * (sums[j * features + d] - counts[j] * shift[d])) / strength;
        return mean + rng.normal() / Math.sqrt(strength);
      });
    });
  }
  if (movesShift(problem)) {
    const strength = shiftStrength + precision * queries.length;
    shift = shift.map((_, d) => {
      let pull = 0;
      for (let j = 0; j < units; j++) pull += sums[j * features + d] - counts[j] * keys[j][d];
      return (precision * pull) / strength + rng.normal() / Math.sqrt(strength);
    });
  }
  return { keys, shift };
}

// Draws of one chain after so many sweeps that are thrown away.
export function chain(problem, numDraws, rng, warmup = 50, start = null) {
  let state = start ?? startState(problem);
  for (let t = 0; t < warmup; t++) state = sweep(problem, state, rng);
  const draws = [];
  for (let t = 0; t < numDraws; t++) draws.push((state = sweep(problem, state, rng)));
  return draws;
}

// Averages of the attention of a new query over draws of p(parameters | D).
// right: p(unit | q, D) = E[p(q | .) w] / E[p(q | .)]. wrong: E[w], which forgets that the query is one more observation.
// lower, upper: the central band of the attention, each draw counted by p(q | .). effective: draws that the right average is worth.
export function average(problem, draws, query, prob = 0.9) {
  const { precision, weights } = problem;
  const [count, units] = [draws.length, weights.length];
  const scale = 0.5 * query.length * (Math.log(precision) - LOG_2_PI);
  const attention = new Float64Array(count * units); // by unit, then by draw
  const evidence = new Float64Array(count);
  const joint = new Float64Array(units);
  for (let s = 0; s < count; s++) {
    let most = -Infinity;
    for (let j = 0; j < units; j++) {
      joint[j] = weights[j] + scale - 0.5 * precision * squaredDistance(query, draws[s].keys[j], draws[s].shift);
      if (joint[j] > most) most = joint[j];
    }
    let sum = 0;
    for (let j = 0; j < units; j++) sum += joint[j] = Math.exp(joint[j] - most);
    for (let j = 0; j < units; j++) attention[j * count + s] = joint[j] / sum;
    evidence[s] = most + Math.log(sum);
  }
  let top = -Infinity;
  for (const x of evidence) if (x > top) top = x;
  const shares = evidence.map((x) => Math.exp(x - top));
  let [total, squares] = [0, 0];
  for (const x of shares) {
    total += x;
    squares += x * x;
  }
  const found = { right: [], wrong: [], lower: [], upper: [], logEvidence: top + Math.log(total / count), effective: (total * total) / squares };
  for (let j = 0; j < units; j++) {
    const own = attention.subarray(j * count, (j + 1) * count);
    let [right, wrong] = [0, 0];
    for (let s = 0; s < count; s++) {
      right += (shares[s] / total) * own[s];
      wrong += own[s] / count;
    }
    const [lower, upper] = weightedQuantiles(own, shares, [(1 - prob) / 2, (1 + prob) / 2]);
    found.right.push(right);
    found.wrong.push(wrong);
    found.lower.push(lower);
    found.upper.push(upper);
  }
  return found;
}

// The smallest values whose share of the weight, counted from below, reaches each of some probabilities.
export function weightedQuantiles(values, weights, probs) {
  const order = new Uint32Array(values.length);
  for (let i = 0; i < order.length; i++) order[i] = i;
  order.sort((a, b) => values[a] - values[b]);
  let total = 0;
  for (const x of weights) total += x;
  const found = [];
  let reached = 0;
  for (const i of order) {
    reached += weights[i];
    while (found.length < probs.length && reached >= probs[found.length] * total) found.push(values[i]);
  }
  while (found.length < probs.length) found.push(values[order.at(-1)]);
  return found;
}

// p(unit | q, D) and log p(q | D) without draws: a sum over all assignments of the queries, parameters integrated out.
// Costs U^(Q + 1); null where there are more than `most` assignments of the data.
export function exact(problem, query, most = 3000) {
  const { queries, keys, weights } = problem;
  if (keys.length ** queries.length > most) return null;
  const all = [...queries, query];
  const totals = keys.map(() => []);
  const before = [];
  const assigned = [];
  const visit = (logWeight) => {
    if (assigned.length === queries.length) before.push(logWeight + logMarginal(problem, assigned, queries));
    if (assigned.length === all.length) {
      totals[assigned.at(-1)].push(logWeight + logMarginal(problem, assigned, all));
      return;
    }
    for (let j = 0; j < keys.length; j++) {
      assigned.push(j);
      visit(logWeight + weights[j]);
      assigned.pop();
    }
  };
  visit(0);
  const byUnit = totals.map(logSumExp);
  const whole = logSumExp(byUnit);
  return { right: byUnit.map((x) => Math.exp(x - whole)), logEvidence: whole - logSumExp(before), logData: logSumExp(before) };
}

// The same where keys alone are integrated out: units are independent.
function logMarginalOfKeys({ keys, precision, keyStrength }, assigned, queries) {
  const features = keys[0].length;
  const counts = new Float64Array(keys.length);
  const sums = new Float64Array(keys.length * features);
  let total = 0.5 * features * assigned.length * (Math.log(precision) - LOG_2_PI);
  for (let i = 0; i < assigned.length; i++) {
    const j = assigned[i];
    counts[j] += 1;
    for (let d = 0; d < features; d++) {
      const rest = queries[i][d] - keys[j][d];
      sums[j * features + d] += rest;
      total -= 0.5 * precision * rest * rest;
    }
  }
  for (let j = 0; j < keys.length; j++) {
    const strength = keyStrength + precision * counts[j];
    total += 0.5 * features * Math.log(keyStrength / strength);
    for (let d = 0; d < features; d++) total += (0.5 * (precision * sums[j * features + d]) ** 2) / strength;
  }
  return total;
}

// log p(queries | assignments), keys and shift integrated out: in each coordinate a linear model with Normal coefficients.
export function logMarginal(problem, assigned, queries) {
  if (!movesShift(problem)) return logMarginalOfKeys(problem, assigned, queries);
  const { keys, precision, keyStrength, shiftStrength } = problem;
  const own = movesKeys(problem) ? keys.length : 0;
  const size = own + (movesShift(problem) ? 1 : 0);
  const strengths = Array.from({ length: size }, (_, k) => (k < own ? keyStrength : shiftStrength));
  const matrix = strengths.map((s, k) => strengths.map((_, l) => (k === l ? s : 0)));
  for (const j of assigned) {
    if (own) matrix[j][j] += precision;
    if (size > own) {
      matrix[own][own] += precision;
      if (own) {
        matrix[j][own] += precision;
        matrix[own][j] += precision;
      }
    }
  }
  const lower = cholesky(matrix);
  const logRatio = strengths.reduce((sum, s, k) => sum + 0.5 * Math.log(s) - Math.log(lower[k][k]), 0);
  let total = 0;
  for (let d = 0; d < keys[0].length; d++) {
    const pull = strengths.map(() => 0); // of coefficients that are deviations from their prior means
    let squares = 0;
    assigned.forEach((j, i) => {
      const rest = queries[i][d] - keys[j][d];
      squares += precision * rest * rest;
      if (own) pull[j] += precision * rest;
      if (size > own) pull[own] += precision * rest;
    });
    const half = [];
    for (let k = 0; k < size; k++) {
      let x = pull[k];
      for (let l = 0; l < k; l++) x -= lower[k][l] * half[l];
      half.push(x / lower[k][k]);
    }
    const explained = half.reduce((sum, x) => sum + x * x, 0);
    total += logRatio + 0.5 * (explained - squares) + 0.5 * assigned.length * (Math.log(precision) - LOG_2_PI);
  }
  return total;
}

function cholesky(matrix) {
  const lower = matrix.map((row) => row.map(() => 0));
  for (let i = 0; i < matrix.length; i++) {
    for (let j = 0; j <= i; j++) {
      let sum = matrix[i][j];
      for (let k = 0; k < j; k++) sum -= lower[i][k] * lower[j][k];
      lower[i][j] = i === j ? Math.sqrt(sum) : sum / lower[j][j];
    }
  }
  return lower;
}
