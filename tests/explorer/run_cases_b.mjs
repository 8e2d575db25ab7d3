// Reads cases, runs the explorer's own functions, and prints for each case its largest error, relative where numbers exceed 1.
// node run_cases_b.mjs MODULES CASES
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { resolve } from "node:path";

const [folder, file] = process.argv.slice(2);
const modules = {};

// The largest error of what was expected; Infinity where a number is missing or not a number.
function error(found, expected) {
  if (typeof expected === "number") {
    const apart = Math.abs(found - expected) / Math.max(1, Math.abs(expected));
    return Number.isNaN(apart) ? Infinity : apart;
  }
  if (found === null || typeof found !== "object") return Infinity;
  if (Array.isArray(expected) && found.length !== expected.length) return Infinity;
  return Object.keys(expected).reduce((worst, key) => Math.max(worst, error(found[key], expected[key])), 0);
}

const results = [];
for (const { module, function: name, name: label, arguments: given, expected } of JSON.parse(readFileSync(file, "utf8"))) {
  modules[module] ??= await import(pathToFileURL(resolve(folder, `${module}.js`)));
  results.push({ case: `${module}.${name}: ${label}`, error: error(modules[module][name](...given), expected) });
}
console.log(JSON.stringify(results, (_, x) => (x === Infinity ? "missing" : x)));
