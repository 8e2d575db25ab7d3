// Points of one's own: lines of text to rows of numbers and back, and rows to the scale of a view.

import { rounded } from "./ui.js";

// Rows of a text, one a line: `least` numbers, or as many as `names`. A first line of words is a heading; commas, semicolons, tabs or spaces
// part the numbers, and where a line has semicolons or tabs a comma may be the decimal sign.
export function rowsOf(text, names, least = 2) {
  const lines = text.split(/\r?\n/).map((line, at) => ({ line: line.trim(), at: at + 1 })).filter(({ line }) => line);
  const cells = ({ line }) => (/[;\t]/.test(line) ? line.replace(/(\d),(\d)/g, "$1.$2").split(/\s*[;\t]\s*/) : line.split(/\s*,\s*|\s+/));
  const isNumber = (cell) => cell !== "" && Number.isFinite(Number(cell));
  if (lines.length && !cells(lines[0]).some(isNumber)) lines.shift();
  if (!lines.length) throw new Error(`there is no point; write one a line, as ${names.join(", ")}`);
  return lines.map((one) => {
    const found = cells(one);
    const wrong = found.find((cell) => !isNumber(cell));
    if (wrong !== undefined) throw new Error(`line ${one.at} has “${wrong}” where a number should be`);
    if (found.length < least || found.length > names.length) throw new Error(`line ${one.at} has ${found.length} number${found.length === 1 ? "" : "s"}; a point is ${names.join(", ")}`);
    return found.map(Number);
  });
}

// Rows with both coordinates centred and divided by their standard deviations, and the units that lead back; what else a row has stays.
export function standardised(rows) {
  const moments = [0, 1].map((d) => {
    const all = rows.map((row) => row[d]);
    const mean = all.reduce((sum, x) => sum + x, 0) / all.length;
    return [mean, Math.sqrt(all.reduce((sum, x) => sum + (x - mean) ** 2, 0) / all.length) || 1];
  });
  const units = [0, 1].map((k) => moments.map((both) => rounded(both[k], 6)));
  return { rows: rows.map(([x, y, ...more]) => [...[x, y].map((z, d) => Number(((z - units[0][d]) / units[1][d]).toFixed(3))), ...more]), units };
}

// A point in the units that it came in.
export const inUnits = (point, units) => (units ? point.map((z, d) => rounded(units[0][d] + units[1][d] * z, 4)) : point);

export const textOf = (rows, names, units) => [names.join(", "), ...rows.map(([x, y, ...more]) => [...inUnits([x, y], units), ...more].join(", "))].join("\n");

// What the copied Python says of the scale.
export const comment = (units) => (units ? `# Own points, standardised: in their units the first coordinate is ${units[0][0]} + ${units[1][0]} * x, the second ${units[0][1]} + ${units[1][1]} * y.\n` : "");

// How a view keeps its points: a list of the state, lists beside it with an entry for each point (in which column of a row, and what it usually
// is), and the point that is chosen.
export const listed = (name, beside = {}, chosen = null) => ({
  rows: (state) => state[name].map((point, j) => [...point, ...Object.entries(beside).filter(([, { at }]) => at).map(([other]) => state[other][j])]),
  put: (state, rows) => ({
    [name]: rows.map(([x, y]) => [x, y]),
    ...Object.fromEntries(Object.entries(beside).map(([other, { at, usual }]) => [other, rows.map((row, j) => row[at] ?? state[other][j] ?? usual)])),
    ...(chosen ? { [chosen]: rows.length - 1 } : {}),
  }),
});
