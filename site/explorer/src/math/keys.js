// Units of several Gaussian keys each, as models.GaussianKeys: attention, which key of a unit, evidence, and what a unit owns.

import { logNormal, logSumExp, softmax } from "./mixture.js";

// problem: { keys (U, R, D), weights (U, R) of the keys within a unit, precision, hard: only the likeliest key of a unit counts }
const logJoints = ({ keys, weights, precision }, query) =>
  keys.map((own, j) => own.map((key, r) => Math.log(weights[j][r]) - Math.log(keys.length) + logNormal(query, key, precision)));

const reduced = (joints, hard) => joints.map((row) => (hard ? Math.max(...row) : logSumExp(row)));

export function explainByKeys(problem, query) {
  const joints = logJoints(problem, query);
  const [soft, hard] = [reduced(joints, false), reduced(joints, true)];
  const each = softmax(joints.flat());
  const count = joints[0].length;
  return {
    attention: softmax(problem.hard ? hard : soft), responsibilities: joints.map((_, j) => each.slice(j * count, (j + 1) * count)),
    logEvidence: logSumExp(soft), hardEvidence: logSumExp(hard),
  };
}

// Attention at places of the plane as a function of the place, for shading: nothing is kept, one list is filled.
export function attentionField({ keys, weights, precision, hard }) {
  const units = keys.map((own, j) => own.map(([x, y], r) => [x, y, Math.log(weights[j][r])]).filter(([, , w]) => w > -Infinity));
  const shares = keys.map(() => 0);
  return ([x, y]) => {
    let nearest = Infinity;
    for (const unit of units) for (const [kx, ky, w] of unit) nearest = Math.min(nearest, 0.5 * precision * ((x - kx) ** 2 + (y - ky) ** 2) - w);
    let total = 0;
    units.forEach((unit, j) => {
      shares[j] = 0;
      for (const [kx, ky, w] of unit) {
        const own = Math.exp(nearest + w - 0.5 * precision * ((x - kx) ** 2 + (y - ky) ** 2));
        shares[j] = hard ? Math.max(shares[j], own) : shares[j] + own;
      }
      total += shares[j];
    });
    for (let j = 0; j < shares.length; j++) shares[j] /= total;
    return shares;
  };
}

// What the first unit owns of a window, on columns x rows places, both odd: its share, its pieces, and of all pairs of its places on every
// second column and row the share whose midpoint it does not own: 0 for a convex region.
export function territory(problem, [x0, x1], [y0, y1], columns, rows) {
  const field = attentionField(problem);
  const mine = [];
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) {
      const shares = field([x0 + ((x1 - x0) * c) / (columns - 1), y0 + ((y1 - y0) * r) / (rows - 1)]);
      mine.push(shares.every((share) => share <= shares[0]));
    }
  }
  const seen = mine.map(() => false);
  let pieces = 0;
  for (let first = 0; first < mine.length; first++) {
    if (!mine[first] || seen[first]) continue;
    pieces += 1;
    const open = [first];
    seen[first] = true;
    while (open.length) {
      const at = open.pop();
      const column = at % columns;
      for (const [next, inside] of [[at - 1, column > 0], [at + 1, column < columns - 1], [at - columns, true], [at + columns, true]]) {
        if (inside && mine[next] && !seen[next]) {
          seen[next] = true;
          open.push(next);
        }
      }
    }
  }
  const own = mine.flatMap((is, at) => (is && (at % columns) % 2 === 0 && Math.floor(at / columns) % 2 === 0 ? [at] : []));
  let lost = 0;
  // two places of the coarse places lie an even number of columns and rows apart, so that their midpoint is a place
  for (let a = 1; a < own.length; a++) for (let b = 0; b < a; b++) if (!mine[(own[a] + own[b]) / 2]) lost += 1;
  const pairs = (own.length * (own.length - 1)) / 2;
  return { share: mine.filter(Boolean).length / mine.length, pieces, lost: pairs ? lost / pairs : 0 };
}
