// View 9: chains of a small posterior, with starts, draws and a bug of one's own choosing; rank plots, R-hat, and calibration.

import {
  calibrationRanks, countsBelow, drawChains, essBulk, essTail, exactPosterior, mixtureDensity, rankCounts, rhat,
  simultaneousBand, smallProblem, starts, uniformity,
} from "../math/diagnostics.js";
import { generator } from "../math/random.js";
import { oneOf, range, seed, whole } from "../fields.js";
import { button, choice, figure, layout, nice, panel, readout, short, slider, svg } from "../ui.js";

const CHAINS = 4;
const WARMUP = 20;
const BINS = 10;
const [SIMULATIONS, DRAWS, THIN] = [200, 39, 3];
const QUERIES = [-2.3, -1.9, -1.6, -0.4, 1.2, 1.8, 2.1, 2.6];
const NAMES = { none: "none", twice: "counts every query twice", offset: "shifts the prior by 1.5", ignore: "ignores the queries" };
const MOVES = {
  none: "posterior, queries",
  twice: "posterior, torch.cat([queries, queries], -2)",
  offset: 'models.bayesian(posterior.formulation, keys=Normal(means + 1.5, scale)), queries',
  ignore: "posterior, queries, query_weights=torch.zeros(queries.shape[:-1])",
};

const optionsOf = (state) => ({ queries: QUERIES, separation: state.separation, precision: state.precision, keyStrength: state.keyStrength });

export function chainsOf(state) {
  return drawChains(smallProblem(optionsOf(state)), {
    start: state.start, bug: state.bug, numChains: CHAINS, numDraws: state.draws, warmup: WARMUP, rng: generator(state.seed),
  });
}

export function python(state) {
  const chains = chainsOf(state);
  const first = starts(smallProblem(optionsOf(state)), state.start, CHAINS).map((x) => x.keys);
  return `import json

import arviz
import numpy as np
import torch
from pyro.distributions import Normal
from probtx_pyro import inference, models, results

torch.set_default_dtype(torch.float64)
data = torch.tensor([${QUERIES.join(", ")}], dtype=torch.float64)[:, None]
means, scale = torch.tensor([[-${state.separation / 2}], [${state.separation / 2}]], dtype=torch.float64), ${state.keyStrength} ** -0.5
mixture = models.GaussianMixture(means, key_precision=${state.precision})
posterior = models.bayesian(mixture, keys=Normal(means, scale))


def sampler(posterior, queries, *_, **options):  # bug: ${NAMES[state.bug]}
    return inference.gibbs(${MOVES[state.bug]}, progress=False, **options)


start = {"keys": torch.tensor(${JSON.stringify(first)}, dtype=torch.float64)}
draws = sampler(posterior, data, start=start, num_chains=${CHAINS}, num_samples=${state.draws}, num_warmup=${WARMUP}, seed=${state.seed})
own = draws.samples["keys"][..., 0, 0].numpy()
found = results.calibrate(
    posterior, tuple(data.shape), num_simulations=${SIMULATIONS}, num_draws=${DRAWS}, seed=${state.seed}, batch_size=${SIMULATIONS}, progress=False,
    sampler=lambda *given, seed: sampler(*given, seed=seed, start="prior", num_chains=1, num_samples=${DRAWS}, thin=${THIN}, num_warmup=${WARMUP}),
)
p = found.p_values()

# the chains that the page drew, to three decimals
page = np.array(${JSON.stringify(chains)})
print(json.dumps({
    "rhat": float(arviz.rhat(page)),
    "essBulk": float(arviz.ess(page, method="bulk")),
    "essTail": float(arviz.ess(page, method="tail")),
    "mean": page.mean(),
    "ownRhat": float(arviz.rhat(own)),
    "ownMean": own.mean(),
    "ownError": float(arviz.mcse(own)),
    "pKey": float(p["keys"][0, 0]),
    "pLogLikelihood": float(p["log_likelihood"]),
}))
`;
}

const defaults = { separation: 5, precision: 1.5, keyStrength: 1, start: "same", bug: "twice", draws: 300, seed: 1 };

const fields = {
  bug: oneOf(NAMES), start: oneOf({ same: "all in one mode", apart: "every second one with keys exchanged" }), draws: whole(20, 500, { step: 10, least: 8, most: 2000 }),
  separation: range(0, 8, { step: 0.1, most: 20 }), precision: range(0.3, 6, { log: true, least: 0.01, most: 100 }), keyStrength: range(0.05, 10, { log: true, least: 0.01, most: 100 }), seed,
};

function mount(root, first, changed, now) {
  let state = first;
  let token = 0;
  let calibration = null;
  let key = "";
  let found = {};
  const [trace, rankPlot, ecdf] = ["Traces of four chains", "Rank plots of four chains", "Ranks of the truth against their band"].map((label) => svg("svg", { role: "img", "aria-label": label, class: "picture" }));
  const read = readout({
    rhat: "R-hat", pKey: "p of uniform ranks, first key", pLogLikelihood: "p of uniform ranks, log likelihood",
    simulations: "simulations done", essBulk: "effective draws, bulk", essTail: "effective draws, tails", mean: "mean of the first key, drawn", exactMean: "the same, exact",
  });
  const controls = panel("Controls", [
    choice("Bug of the sampler", NAMES, "bug", (bug) => changed({ bug })),
    choice("Starts of the chains", fields.start.options, "start", (start) => changed({ start })),
    slider({ name: "draws", label: "Draws of a chain", ...fields.draws, on: (draws) => changed({ draws }) }),
    slider({ name: "separation", label: "Distance of the keys' prior means", ...fields.separation, on: (separation) => changed({ separation }) }),
    slider({ name: "precision", label: "Precision of a query α", ...fields.precision, on: (precision) => changed({ precision }) }),
    slider({ name: "keyStrength", label: "Strength of the prior θ", ...fields.keyStrength, on: (keyStrength) => changed({ keyStrength }) }),
    button("reseed", "Draw again", () => changed({ seed: state.seed + 1 })),
  ]);
  layout(root, {
    main: [
      figure(trace, "Draws of the first key, four chains; on the right their histogram under the exact posterior (line)."),
      figure(rankPlot, "Rank plots: how a chain's draws rank among all. Those of chains that agree are flat."),
    ],
    controls, numbers: read, aspect: 1.3,
    others: [figure(ecdf, "Calibration: parameters from the prior, queries from them, 200 times. The share of true values below each rank, less the uniform share; a right sampler stays in the band in 99 of 100 runs.")],
  });

  function calibrate() {
    const own = JSON.stringify([optionsOf(state), state.bug, state.seed]);
    if (own === key) return;
    key = own;
    calibration = { key: [], logLikelihood: [] };
    const mine = ++token;
    const problem = smallProblem(optionsOf(state));
    const options = { bug: state.bug, numDraws: DRAWS, thin: THIN, warmup: WARMUP, rng: generator(state.seed + 1000003) };
    const some = () => {
      if (mine !== token || !root.isConnected) return;
      const until = performance.now() + 8;
      while (calibration.key.length < SIMULATIONS && performance.now() < until) {
        const ranks = calibrationRanks(problem, options);
        calibration.key.push(ranks.key);
        calibration.logLikelihood.push(ranks.logLikelihood);
      }
      showCalibration();
      if (calibration.key.length < SIMULATIONS) setTimeout(some, 8);
    };
    setTimeout(some, 120);
  }

  function showCalibration() {
    const done = calibration.key.length;
    if (done === SIMULATIONS) calibration.p ??= [calibration.key, calibration.logLikelihood].map((ranks) => uniformity(ranks, DRAWS));
    const p = calibration.p ?? [undefined, undefined];
    read.set({ simulations: done, pKey: p[0], pLogLikelihood: p[1] });
    drawEcdf(ecdf, calibration, done);
    ecdf.setAttribute("aria-label", p[0] === undefined ? "Ranks of the truth against their band: being drawn" : `Ranks of the truth against their band: p of uniform ranks ${short(p[0])} for the first key, ${short(p[1])} for the log likelihood`);
    say(p);
  }

  // What R-hat, calibration and the exact mean say of the state; the last sees what the others cannot.
  function say(p) {
    const first = found.rhat < 1.01 ? `The chains agree: R-hat is ${found.rhat.toFixed(3)}.` : `The chains disagree: R-hat is ${found.rhat.toFixed(3)}.`;
    const second = p[0] === undefined ? "Calibration is running." : Math.min(...p) > 0.005 ? "Calibration finds nothing." : "Calibration says that the sampler is wrong: ranks leave the band.";
    const apart = Math.abs(found.mean - found.exactMean) / found.error;
    const means = `the drawn mean is ${short(found.mean)} and the exact one ${short(found.exactMean)}, ${apart.toFixed(0)} standard errors apart`;
    const missed = "a part of the posterior is missing. R-hat cannot see what all chains miss, and calibration starts from draws of the prior, so that it does not test these starts";
    const third = apart < 4 ? `The drawn mean, ${short(found.mean)}, is near the exact one, ${short(found.exactMean)}, by its own standard error.` : `But ${means}: ${state.bug === "none" ? missed : "this is not the posterior"}.`;
    now(`${first} ${second} ${third}`);
  }

  function update(next) {
    state = next;
    const chains = chainsOf(state);
    const [all, effective] = [chains.flat(), essBulk(chains)];
    const terms = exactPosterior(smallProblem(optionsOf(state)));
    const mean = all.reduce((a, b) => a + b, 0) / all.length;
    const sd = Math.sqrt(all.reduce((sum, z) => sum + (z - mean) ** 2, 0) / all.length);
    found = { rhat: rhat(chains), mean, exactMean: terms.reduce((sum, t) => sum + t.weight * t.mean, 0), error: sd / Math.sqrt(effective) };
    controls.set(state);
    drawTrace(trace, chains, terms);
    const counts = rankCounts(chains, BINS);
    drawRanks(rankPlot, counts, state.draws);
    rankPlot.setAttribute("aria-label", `Rank plots of four chains, draws by tenth: ${counts.map((row, c) => `chain ${c + 1} ${row.join(" ")}`).join("; ")}`);
    trace.setAttribute("aria-label", `Traces of four chains: means ${chains.map((row) => short(row.reduce((a, b) => a + b, 0) / row.length)).join(", ")}; exact mean ${short(found.exactMean)}`);
    read.set({ rhat: found.rhat, essBulk: effective, essTail: essTail(chains), mean, exactMean: found.exactMean });
    calibrate();
    showCalibration();
  }
  return { update, stop: () => token++ };
}

function drawTrace(picture, chains, terms) {
  const [width, height, split] = [460, 200, 330];
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const ends = terms.filter((t) => t.weight > 0.01).flatMap((t) => [t.mean - 3 / Math.sqrt(t.precision), t.mean + 3 / Math.sqrt(t.precision)]);
  const [low, high] = [Math.min(...chains.flat(), ...ends), Math.max(...chains.flat(), ...ends)];
  const y = (z) => 8 + (1 - (Math.min(high, Math.max(low, z)) - low) / (high - low)) * (height - 30);
  const x = (t) => 26 + (t * (split - 30)) / chains[0].length;
  const parts = chains.map((row, c) => svg("path", { d: row.map((z, t) => `${t ? "L" : "M"}${x(t).toFixed(1)} ${y(z).toFixed(1)}`).join(""), class: `trace unit-${c}` }));
  const bins = 50;
  const counts = new Array(bins).fill(0);
  for (const z of chains.flat()) counts[Math.min(bins - 1, Math.max(0, Math.floor(((z - low) / (high - low)) * bins)))]++;
  const places = Array.from({ length: 161 }, (_, k) => low + ((high - low) * k) / 160);
  const density = places.map((z) => mixtureDensity(terms, z));
  const shown = counts.map((n) => (n / chains.flat().length) * (bins / (high - low)));
  const wide = (width - split - 14) / Math.max(...density, ...shown);
  const cell = (height - 30) / bins;
  parts.push(...shown.map((h, k) => svg("rect", { x: split, y: (height - 22 - (k + 1) * cell).toFixed(1), width: (h * wide).toFixed(1), height: (cell - 0.4).toFixed(1), class: "histogram" })));
  parts.push(svg("path", { d: density.map((h, k) => `${k ? "L" : "M"}${(split + h * wide).toFixed(1)} ${y(places[k]).toFixed(1)}`).join(""), class: "line" }));
  for (const z of nice(low, high, 5)) parts.push(svg("text", { x: 20, y: y(z) + 4, "text-anchor": "end" }, String(z)));
  parts.push(svg("text", { x: split / 2, y: height - 4, "text-anchor": "middle" }, `draw 1 to ${chains[0].length}`));
  picture.replaceChildren(...parts);
}

function drawRanks(picture, counts, draws) {
  const [width, height] = [460, 96];
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const each = (width - 10) / counts.length;
  const flat = draws / counts[0].length;
  const most = Math.max(2 * flat, ...counts.flat());
  const parts = counts.flatMap((row, c) => {
    const left = 5 + c * each;
    const step = (each - 10) / row.length;
    const bars = row.map((n, k) => svg("rect", { x: (left + k * step).toFixed(1), y: (76 - (68 * n) / most).toFixed(1), width: (step - 1).toFixed(1), height: ((68 * n) / most).toFixed(1), class: `fill unit-${c}` }));
    const line = svg("path", { d: `M${left} ${76 - (68 * flat) / most}h${each - 10}`, class: "rule dashed" });
    return [...bars, line, svg("text", { x: left + each / 2 - 5, y: 91, "text-anchor": "middle" }, `chain ${c + 1}`)];
  });
  picture.replaceChildren(...parts);
}

const bands = {};

function drawEcdf(picture, found, done) {
  const [width, height] = [460, 200];
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const band = (bands[SIMULATIONS] ??= simultaneousBand(SIMULATIONS, DRAWS, 0.995)); // 0.99 for the two quantities together
  const x = (share) => 44 + share * (width - 56);
  const y = (z) => height / 2 + 2 - Math.max(-1, Math.min(1, z / 0.4)) * (height / 2 - 24);
  const line = (counts) => [[0, 0], ...band.edges.map((share, e) => [share, counts[e] / done - share]), [1, 0]].map(([s, z], k) => `${k ? "L" : "M"}${x(s).toFixed(1)} ${y(z).toFixed(1)}`).join("");
  const edge = (counts) => band.edges.map((share, e) => [share, counts[e] / SIMULATIONS - share]);
  const outline = [[0, 0], ...edge(band.upper), [1, 0], ...edge(band.lower).reverse()];
  const parts = [svg("path", { d: `${outline.map(([s, z], k) => `${k ? "L" : "M"}${x(s).toFixed(1)} ${y(z).toFixed(1)}`).join("")}Z`, class: "shade" })];
  if (done > 20) {
    parts.push(svg("path", { d: line(countsBelow(found.key, DRAWS)), class: "trace unit-0 strong" }), svg("path", { d: line(countsBelow(found.logLikelihood, DRAWS)), class: "trace unit-5 strong" }));
  }
  for (const z of [-0.3, 0, 0.3]) parts.push(svg("text", { x: 38, y: y(z) + 4, "text-anchor": "end" }, z.toFixed(1)));
  parts.push(svg("text", { x: x(0.5), y: height - 4, "text-anchor": "middle" }, "rank of the truth among the draws, as a share"));
  [["first key", 0, 60], ["log likelihood", 5, 160]].forEach(([name, unit, left]) =>
    parts.push(svg("path", { d: `M${left} 12h18`, class: `trace strong unit-${unit}` }), svg("text", { x: left + 23, y: 16 }, name)));
  picture.replaceChildren(...parts);
}

export default {
  id: "fool-the-diagnostics",
  title: "Fool the diagnostics",
  sentence: "R-hat compares chains with each other, calibration compares a sampler with truths drawn from the prior. Each misses what the other sees, and both can miss the same.",
  suggestion: "take the bug out: the ranks return into the band. Then bring the prior means together with all chains in one mode: R-hat is 1.00 and half of the posterior is missing, until every second chain starts exchanged.",
  notebook: "06_diagnosing_the_posterior",
  defaults, fields, mount, python,
};
