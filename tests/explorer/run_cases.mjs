// node run_cases.mjs MODULES CASES: what the explorer's functions return for the arguments of each case, as JSON.
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { resolve } from "node:path";

const [folder, file] = process.argv.slice(2);
const modules = {};
const results = [];
for (const { module, function: name, arguments: given, then } of JSON.parse(readFileSync(file, "utf8"))) {
  modules[module] ??= await import(pathToFileURL(resolve(folder, `${module}.js`)));
  const found = modules[module][name](...given);
  results.push(then ? found(...then) : found);
}
console.log(JSON.stringify(results));
