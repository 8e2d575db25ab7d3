// Two scores that should tell points of known classes from others: how sure the surest class is, and the log evidence.

import { logEvidence, logJoint, logSumExp } from "./mixture.js";
import { generator } from "./random.js";

const mixtureOf = ({ keys, precision }) => ({ keys, precision, logPrior: keys.map(() => -Math.log(keys.length)) });

// log p(class, point), for every class.
export function logClasses(memory, classes, point) {
  const joint = logJoint(memory, point);
  return Array.from({ length: Math.max(...classes) + 1 }, (_, c) => logSumExp(joint.filter((_, j) => classes[j] === c)));
}

// The surest class, its log odds against all others, and the log evidence of a point.
export function scoresOf(problem, point) {
  const memory = mixtureOf(problem);
  const logs = logClasses(memory, problem.classes, point);
  const surest = logs.indexOf(Math.max(...logs));
  return { surest, odds: logs[surest] - logSumExp(logs.filter((_, c) => c !== surest)), evidence: logEvidence(memory, point) };
}

// The probability that a known point scores higher than another one, ties half.
export function auroc(known, others) {
  let won = 0;
  for (const a of known) for (const b of others) won += a > b ? 1 : a === b ? 0.5 : 0;
  return won / (known.length * others.length);
}

// The score below which a share of the known points, at most, is refused.
export const thresholdOf = (known, share) => [...known].sort((a, b) => a - b)[Math.min(known.length - 1, Math.floor(share * known.length + 1e-9))];

// Both scores of all points, and what each is worth: the AUROC, the others that pass where 95 % of the known do, and at a share of false alarms.
export function summary(problem) {
  const [known, others] = [problem.known, problem.others].map((points) => points.map((point) => scoresOf(problem, point)));
  const judged = Object.fromEntries(["odds", "evidence"].map((name) => {
    const [a, b] = [known, others].map((all) => all.map((one) => one[name]));
    const passed = (threshold) => b.filter((x) => x >= threshold).length / b.length;
    const threshold = thresholdOf(a, problem.alarms);
    return [name, { known: a, others: b, threshold, auroc: auroc(a, b), passed95: passed(thresholdOf(a, 0.05)), passed: passed(threshold) }];
  }));
  return { ...judged, query: scoresOf(problem, problem.query) };
}

// The points of (false alarms, found others) over all thresholds.
export function curve({ known, others }) {
  const marks = [...new Set([...known, ...others])].sort((a, b) => a - b);
  const below = (all, x) => all.filter((z) => z < x).length / all.length;
  return [...marks.map((x) => [below(known, x), below(others, x)]), [1, 1]];
}

// Eight units of each class, twenty known points of each, and steps of forty others from their middle.
export function drawnFrom(middles, seed) {
  const random = generator(seed);
  const some = (count, [x, y], sd) => Array.from({ length: count }, () => [x, y].map((z) => Math.round(100 * (z + sd * random.normal())) / 100));
  return {
    keys: middles.flatMap((middle) => some(8, middle, 0.45)), classes: middles.flatMap((_, c) => new Array(8).fill(c)),
    known: middles.flatMap((middle) => some(20, middle, 0.45)), steps: some(40, [0, 0], 0.35),
  };
}
