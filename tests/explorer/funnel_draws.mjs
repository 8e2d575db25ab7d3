// The page's NUTS in the funnel, with the steps and scales of the library's runs: means by chain. node funnel_draws.mjs MODULES RUNS
import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
import { resolve } from "node:path";

const load = (name) => import(pathToFileURL(resolve(process.argv[2], `${name}.js`)));
const [{ nuts }, { generator }] = await Promise.all(["funnel", "random"].map(load));
const kept = JSON.parse(readFileSync(process.argv[3], "utf8"));
const random = generator(20261128);
const found = kept.runs.map(({ units, step, scales }) => {
  const chains = Array.from({ length: kept.num_chains }, () => {
    const next = nuts(units, [5, 0, 0], step, random, scales);
    for (let t = 0; t < kept.num_warmup; t++) next();
    return Array.from({ length: kept.num_samples }, next);
  });
  const means = (f) => chains.map((draws) => draws.reduce((sum, draw) => sum + f(draw), 0) / draws.length);
  return { diverging: means((draw) => Number(draw.diverging)), n_steps: means((draw) => draw.steps), tip: means((draw) => Number(draw.place[0] > Math.log(1000))) };
});
console.log(JSON.stringify(found));
