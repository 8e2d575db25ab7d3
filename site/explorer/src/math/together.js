// Keys that move together and each on its own: key j = prior place + c + own move, c ~ N(0, τ² I), own moves ~ N(0, σ² I), queries of one
// domain near their keys with precision α, units equally likely. Exact: a sum over all assignments of the queries, each Gaussian.

import { logSumExp, softmax } from "./mixture.js";

// What of the assignments does not depend on τ, σ and α: for each, how many queries every key has, how far their mean is from its prior
// place, and the squares of queries about these means.
export function assignmentsOf(queries, keys) {
  const [units, count] = [keys.length, keys.length ** queries.length];
  const [numbers, scatter] = [new Uint8Array(count * units), new Float64Array(count)];
  const away = new Float64Array(2 * count * units);
  for (let z = 0; z < count; z++) {
    const [at, of] = [z * units, []];
    for (let i = 0, rest = z; i < queries.length; i++, rest = Math.floor(rest / units)) {
      const j = rest % units;
      of.push(j);
      numbers[at + j] += 1;
      for (const d of [0, 1]) away[2 * (at + j) + d] += queries[i][d] - keys[j][d];
    }
    for (let j = 0; j < units; j++) for (const d of [0, 1]) away[2 * (at + j) + d] /= Math.max(1, numbers[at + j]);
    of.forEach((j, i) => {
      for (const d of [0, 1]) scatter[z] += (queries[i][d] - keys[j][d] - away[2 * (at + j) + d]) ** 2;
    });
  }
  return { units, count, total: queries.length, numbers, away, scatter };
}

// By how many queries a key has, the precision of their mean about its prior place plus c, and what the density has besides.
function tables({ total }, { precision, sigma }) {
  const weights = [0];
  const logs = [0];
  for (let n = 1; n <= total; n++) {
    weights.push(1 / (sigma ** 2 + 1 / (precision * n)));
    logs.push(n * Math.log(precision / (2 * Math.PI)) + Math.log(weights[n] / (precision * n)));
  }
  return { weights, logs };
}

// log p(queries, assignment) of every assignment.
export function logJoints(all, problem) {
  const { units, count, total, numbers, away, scatter } = all;
  const { weights, logs } = tables(all, problem);
  const [variance, found] = [problem.tau ** 2, new Float64Array(count)];
  for (let z = 0; z < count; z++) {
    let [sum, x, y, squares, log] = [0, 0, 0, 0, -total * Math.log(units) - 0.5 * problem.precision * scatter[z]];
    for (let j = 0, at = z * units; j < units; j++, at++) {
      const n = numbers[at];
      if (!n) continue;
      const [w, dx, dy] = [weights[n], away[2 * at], away[2 * at + 1]];
      sum += w;
      x += w * dx;
      y += w * dy;
      squares += w * (dx * dx + dy * dy);
      log += logs[n];
    }
    found[z] = log - Math.log1p(variance * sum) - 0.5 * (squares - (variance * (x * x + y * y)) / (1 + variance * sum));
  }
  return found;
}

export const logEvidence = (all, problem) => logSumExp(logJoints(all, problem));

// The mean and the variance in each coordinate of every key's move, given an assignment.
function movesGiven({ units, numbers, away }, { precision, tau, sigma }, { weights }, z) {
  let [sum, x, y] = [0, 0, 0];
  for (let j = 0, at = z * units; j < units; j++, at++) {
    const w = weights[numbers[at]];
    sum += w;
    x += w * away[2 * at];
    y += w * away[2 * at + 1];
  }
  const variance = tau ** 2 / (1 + tau ** 2 * sum); // of the common move, and its mean:
  const common = [variance * x, variance * y];
  return Array.from({ length: units }, (_, j) => {
    const at = z * units + j;
    const share = sigma ** 2 * weights[numbers[at]]; // of the way from the common move to what the key's own queries show
    return { mean: common.map((c, d) => (1 - share) * c + share * away[2 * at + d]), variance: sigma ** 2 * (1 - share) + (1 - share) ** 2 * variance };
  });
}

// All of the view: log evidence of the queries; mean and covariance of every key; how many queries it has; and to which key one more query
// of this domain belongs.
export function summary({ keys, queries, query, ...problem }, all = assignmentsOf(queries, keys)) {
  const logs = logJoints(all, problem);
  const evidence = logSumExp(logs);
  const known = tables(all, problem);
  const units = keys.map(() => ({ count: 0, mean: [0, 0], squares: [0, 0, 0] }));
  const shares = keys.map(() => []);
  for (let z = 0; z < all.count; z++) {
    const p = Math.exp(logs[z] - evidence);
    if (p < 1e-18) continue;
    movesGiven(all, problem, known, z).forEach(({ mean: [x, y], variance }, j) => {
      const own = units[j];
      own.count += p * all.numbers[z * all.units + j];
      own.mean = [own.mean[0] + p * x, own.mean[1] + p * y];
      own.squares = [own.squares[0] + p * (variance + x * x), own.squares[1] + p * x * y, own.squares[2] + p * (variance + y * y)];
      const wide = variance + 1 / problem.precision;
      shares[j].push(Math.log(p / wide) - (0.5 / wide) * ((query[0] - keys[j][0] - x) ** 2 + (query[1] - keys[j][1] - y) ** 2));
    });
  }
  return {
    logEvidence: evidence, counts: units.map((own) => own.count), attention: softmax(shares.map(logSumExp)),
    keys: units.map((own, j) => keys[j].map((x, d) => x + own.mean[d])),
    covariance: units.map(({ mean: [x, y], squares: [a, b, c] }) => [[a - x * x, b - x * y], [b - x * y, c - y * y]]),
  };
}
