// The funnel of notebook 07: a precision α ~ Gamma(0.2, 0.001), one key N(0, I) of the plane, one query at its prior mean. A place is
// [t, x, y], with t = log α and the key, or, in `units`, the key over its standard deviation given α. Momenta are in standard deviations.

const [SHAPE, RATE] = [0.2, 0.001];
const LOG_GAMMA = 1.524063822430784; // log Γ(0.2)
export const DIVERGENCE = 1000; // nats, as in inference.nuts
const DEEPEST = 10; // doublings of a trajectory at most

// log(1 + 1 / α)
const logWidened = (t) => (t < 0 ? Math.log1p(Math.exp(t)) - t : Math.log1p(Math.exp(-t)));

// The standard deviation of a coordinate of the key given t, 1 / sqrt(1 + α).
export const sigmaOf = (t) => Math.exp(-0.5 * (logWidened(t) + t));

// Log density of t given the query, without its constant.
const logMarginal = (t) => SHAPE * t - RATE * Math.exp(t) - logWidened(t);

// The integral of f times that density from `low`, by Simpson's rule; beyond the ends there is nothing that counts in double precision.
const [FIRST, LAST, PARTS] = [-40, 12, 4000];
function integral(f, low = FIRST) {
  const wide = (LAST - low) / PARTS;
  let sum = 0;
  for (let k = 0; k <= PARTS; k++) {
    const t = low + k * wide;
    sum += (k === 0 || k === PARTS ? 1 : k % 2 ? 4 : 2) * f(t) * Math.exp(logMarginal(t));
  }
  return (sum * wide) / 3;
}
const WHOLE = integral(() => 1);
const meanOf = (f) => integral(f) / WHOLE;
const MIDDLE = meanOf((t) => t);

// Standard deviations of the posterior: of t, and of a coordinate of the key or of the key in units.
const SD = Math.sqrt(meanOf((t) => (t - MIDDLE) ** 2));
const WIDE = Math.sqrt(meanOf((t) => sigmaOf(t) ** 2));
export const scalesOf = (units) => (units ? [SD, 1, 1] : [SD, WIDE, WIDE]);

// The share of the posterior with a precision above exp(t).
export const above = (t) => (t >= LAST ? 0 : integral(() => 1, Math.max(FIRST, t)) / WHOLE);

// Log density of t and the first coordinate alone, without its constant: what draws lie over.
export function logShown(units, t, x) {
  const sigma = units ? 1 : sigmaOf(t);
  return logMarginal(t) - Math.log(sigma) - 0.5 * (x / sigma) ** 2;
}

// The precision above which a step is longer than two standard deviations of the key, the longest that is stable.
export const limitOf = (step) => Math.max(0, (2 / (step * WIDE)) ** 2 - 1);

// Minus the log density of a place, its constants included, and the slope.
export function potential(units, [t, x, y]) {
  const alpha = Math.exp(t);
  const square = x * x + y * y;
  const prior = SHAPE * Math.log(RATE) - LOG_GAMMA + SHAPE * t - RATE * alpha;
  const [level, slope] = [2 * Math.log(2 * Math.PI) - prior, RATE * alpha - SHAPE];
  if (units) return { level: level + logWidened(t) + square / 2, slope: [slope - 1 / (1 + alpha), x, y] };
  return { level: level - t + (1 + alpha) * (square / 2), slope: [slope - 1 + alpha * (square / 2), (1 + alpha) * x, (1 + alpha) * y] };
}

const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
const pointOf = (place, momentum, { level, slope }) => ({ place, momentum, slope, energy: level + dot(momentum, momentum) / 2 });

// One leapfrog step.
function leap(units, scales, { place, momentum, slope }, step) {
  const half = momentum.map((p, d) => p - (step / 2) * scales[d] * slope[d]);
  const there = place.map((z, d) => z + step * scales[d] * half[d]);
  const found = potential(units, there);
  return pointOf(there, half.map((p, d) => p - (step / 2) * scales[d] * found.slope[d]), found);
}

const begun = (units, place, momentum) => pointOf(place, momentum, potential(units, place));
const isLost = (energy, first) => !(energy - first <= DIVERGENCE);

// A trajectory of `count` steps of this size, or to the step at which it diverges: places and energies, the start's first.
export function trajectory({ units, place, momentum, step, count }) {
  const scales = scalesOf(units);
  const all = [begun(units, place, momentum)];
  while (all.length <= count && !isLost(all.at(-1).energy, all[0].energy)) all.push(leap(units, scales, all.at(-1), step));
  return { places: all.map((one) => one.place), energies: all.map((one) => one.energy), momentum: all.at(-1).momentum, diverges: isLost(all.at(-1).energy, all[0].energy) };
}

// ---- NUTS of a given step: multinomial sampling, generalised criterion (Betancourt 2017, appendix A), its ends counted by half --------

const plus = (a, b) => a.map((x, d) => x + b[d]);
const logAdd = (a, b) => (a === b ? a + Math.LN2 : Math.max(a, b) + Math.log1p(Math.exp(-Math.abs(a - b))));

function turns({ first, last, sum }) {
  const between = sum.map((s, d) => s - (first.momentum[d] + last.momentum[d]) / 2);
  return !(dot(first.momentum, between) > 0 && dot(last.momentum, between) > 0);
}

// One draw after another of a chain: `next()` gives its place, the steps that it took and whether one of them diverged.
export function nuts(units, start, step, random, scales = scalesOf(units)) {
  let [place, initial, steps, diverging] = [start, 0, 0, false];

  // 2^depth points on from `from`, or null where they turn back or diverge
  function grow(from, signed, depth) {
    if (depth === 0) {
      const point = leap(units, scales, from, signed);
      steps++;
      diverging = isLost(point.energy, initial);
      return diverging ? null : { first: point, last: point, sum: point.momentum, weight: initial - point.energy, chosen: point };
    }
    const near = grow(from, signed, depth - 1);
    const far = near && grow(near.last, signed, depth - 1);
    if (!far) return null;
    const weight = logAdd(near.weight, far.weight);
    const both = { first: near.first, last: far.last, sum: plus(near.sum, far.sum), weight, chosen: Math.log(random.uniform()) < far.weight - weight ? far.chosen : near.chosen };
    return turns(both) ? null : both;
  }

  return () => {
    const begin = begun(units, place, [0, 1, 2].map(() => random.normal()));
    [initial, steps, diverging] = [begin.energy, 0, false];
    let whole = { first: begin, last: begin, sum: begin.momentum, weight: 0, chosen: begin };
    for (let depth = 0; depth < DEEPEST; depth++) {
      const forward = random.uniform() < 0.5;
      const more = grow(forward ? whole.last : whole.first, forward ? step : -step, depth);
      if (!more) break;
      whole = {
        ...whole, ...(forward ? { last: more.last } : { first: more.last }), sum: plus(whole.sum, more.sum), weight: logAdd(whole.weight, more.weight),
        chosen: Math.log(random.uniform()) < more.weight - whole.weight ? more.chosen : whole.chosen,
      };
      if (turns(whole)) break;
    }
    place = whole.chosen.place;
    return { place, steps, diverging };
  };
}
