// What a state may hold, by name: a view's sliders and its addresses and files go by the same table.

const must = (right, name, text) => {
  if (!right) throw new Error(`${name} must be ${text}`);
};
const FAR = 1000; // of places and answers
const isNumber = (x, low, high) => Number.isFinite(x) && x >= low && x <= high;
const isPoint = (x) => Array.isArray(x) && x.length === 2 && x.every((z) => isNumber(z, -FAR, FAR));

// A number: its slider goes from min to max, a state from least to most. What `moves` takes all values between two states on the way.
export const range = (min, max, { least = min, most = max, ...more } = {}) => ({
  min, max, least, most, moves: true, ...more, check: (x, name) => must(isNumber(x, least, most), name, `a number from ${least} to ${most}`),
});

export const whole = (min, max, { step = 1, least = min, most = max } = {}) => ({
  min, max, least, most, step, moves: "whole", check: (x, name) => must(Number.isInteger(x) && isNumber(x, least, most), name, `a whole number from ${least} to ${most}`),
});

export const seed = { ...whole(0, 2 ** 31), moves: false };

export const oneOf = (options) => ({ options, check: (x, name) => must(Object.hasOwn(options, x), name, `one of ${Object.keys(options).join(", ")}`) });

export const yesNo = { check: (x, name) => must(typeof x === "boolean", name, "true or false") };

export const text = (most) => ({ check: (x, name) => must(typeof x === "string" && x.length <= most, name, `a text of at most ${most} characters`) });

export const point = { moves: true, check: (x, name) => must(isPoint(x), name, `a point of the plane, within ${FAR} of its middle`) };

export const points = (fewest, most) => ({
  moves: true, check: (x, name) => must(Array.isArray(x) && x.length >= fewest && x.length <= most && x.every(isPoint), name, `${fewest === most ? most : `${fewest} to ${most}`} points of the plane, within ${FAR} of its middle`),
});

// A number for each entry of the list of that name.
export const numbersOf = (list, low = -FAR, high = FAR) => ({
  moves: true, check: (x, name, state) => must(Array.isArray(x) && x.length === state[list].length && x.every((z) => isNumber(z, low, high)), name, `${state[list].length} numbers from ${low} to ${high}, as many as ${list}`),
});

export const shares = (count) => ({
  moves: true, check: (x, name) => must(Array.isArray(x) && x.length === count && x.every((z) => isNumber(z, 0, 1)) && Math.abs(x.reduce((a, b) => a + b) - 1) < 1e-9, name, `${count} probabilities that sum to 1`),
});

// The place of an entry in the list of that name.
export const placeIn = (list) => ({
  check: (x, name, state) => must(Number.isInteger(x) && isNumber(x, 0, Math.max(0, state[list].length - 1)), name, `the place of one of ${list}, from 0`),
});

// The place of 0 and the length of 1 on both axes, in the units of points of one's own.
export const units = {
  check: (x, name) => must(Array.isArray(x) && x.length === 2 && x.every((pair) => Array.isArray(pair) && pair.length === 2 && pair.every(Number.isFinite)) && x[1].every((z) => z > 0), name, "two places and two lengths"),
};

export const orNull = ({ check }) => ({ check: (x, name, state) => x === null || check(x, name, state) });

// What a view checks by itself.
export const anything = { check() {} };

// The state that was given, completed by the view's defaults in the check, if every entry may be so.
export function checked(view, given) {
  if (given === null || typeof given !== "object" || Array.isArray(given)) throw new Error("a state is names with values");
  for (const name of Object.keys(given)) if (!Object.hasOwn(view.defaults, name)) throw new Error(`this view has no ${name}`);
  const own = view.fromURL ? view.fromURL(given) : given;
  const state = { ...view.defaults, ...own };
  for (const [name, value] of Object.entries(state)) view.fields[name].check(value, name, state);
  return own;
}
