// View 12: together, or each on its own. Keys of a domain share a move and have moves of their own; how much of each, the queries say.

import { assignmentsOf, logEvidence, summary } from "../math/together.js";
import { ellipse } from "../math/regression.js";
import { point, points, range } from "../fields.js";
import { listed } from "../own.js";
import { later } from "../parts.js";
import { Plane, around, bars, blend, button, color, figure, layout, panel, readout, rounded, short, slider, svg, tensor, unitClass } from "../ui.js";

const [X, Y] = [[-3.5, 3.5], [-2.9, 2.9]];
const [LEAST, MOST, CELLS, SLICE] = [0.03, 3, 15, 4]; // of the map: both strengths from LEAST to MOST, cells a side, milliseconds at a time
const NAMES = ["A", "B", "C", "D", "E"];
const NINETY = Math.sqrt(-2 * Math.log(0.1)); // standard deviations of an ellipse that holds 90 % of a Gaussian in the plane
const ENDS = [Math.log10(LEAST), Math.log10(MOST)];
const STRENGTHS = Array.from({ length: CELLS }, (_, k) => 10 ** (ENDS[0] + ((k + 0.5) * (ENDS[1] - ENDS[0])) / CELLS));

const defaults = {
  keys: [[-2.2, -1], [-1.2, 1.3], [0.6, -1.6], [1.8, 0.6], [0.3, 0.9]], queries: [[-1.6, -0.55], [1.25, -1.2], [2.35, 1.1]], query: [0.85, 1.35],
  tau: 0.6, sigma: 0.25, precision: 10,
};

const strength = range(LEAST, MOST, { log: true, least: 1e-3, most: 100 });
const fields = { keys: points(5, 5), queries: points(1, 5), query: point, tau: strength, sigma: strength, precision: range(0.5, 50, { log: true, least: 1e-3, most: 1e4 }) };

function python(state) {
  return `import itertools
import json
import math

import torch
from pyro.distributions import MultivariateNormal, Normal
from probtx_pyro import inference, models, results

torch.set_default_dtype(torch.float64)
keys = ${tensor(state.keys)}
queries = ${tensor(state.queries)}
new = ${tensor([state.query])}  # one more query of the domain
tau, sigma, precision = ${state.tau}, ${state.sigma}, ${state.precision}

# exactly: a sum over which query came from which key
moves = sigma**2 * torch.eye(len(keys)) + tau**2  # prior covariance of the keys, in each coordinate
logs, means = [], []
for units in itertools.product(range(len(keys)), repeat=len(queries)):
    own, away = torch.eye(len(keys))[list(units)], queries - keys[list(units)]
    covariance = own @ moves @ own.T + torch.eye(len(queries)) / precision
    logs.append(MultivariateNormal(torch.zeros(len(queries)), covariance).log_prob(away.T).sum())
    means.append(keys + moves @ own.T @ torch.linalg.solve(covariance, away))
logs = torch.stack(logs)

# by the library: a shift of all keys beside their own moves
mixture = models.GaussianMixture(keys, key_precision=precision, shift=torch.zeros(2))
posterior = models.bayesian(mixture, keys=Normal(keys, sigma), shift=Normal(torch.zeros(2), tau))
draws = inference.gibbs(posterior, queries, num_samples=1000, num_chains=8, seed=1, progress=False)
said = results.predict(draws, new, relabel=False)
print(json.dumps({
    "logEvidence": logs.logsumexp(0).item() - len(queries) * math.log(len(keys)),
    "keys": (logs.softmax(0)[:, None, None] * torch.stack(means)).sum(0).tolist(),
    "drawn": said.attention[0].tolist(),  # the attention of the new query
    "drawnError": said.error("attention")[0].tolist(),
}))
`;
}

function mount(root, first, changed, now, drop) {
  let state = first;
  let [mapped, best, job] = ["", null, 0];
  const [x, y] = around([...first.keys, ...first.queries, first.query], X, Y);
  const plane = new Plane({ x, y, units: first.units, label: "The plane of keys and queries" });
  const [moved, rings, dots, asking, names] = ["moved", "keys", "queries", "query", "names"].map((name) => plane.layer(name));
  for (const layer of [moved, names]) layer.setAttribute("pointer-events", "none");
  plane.onEmpty(drop);
  const map = new Plane({ x: ENDS, y: ENDS, label: "The map of τ (to the right) and σ (upwards)", width: 320, ticks: false });
  const shade = map.shading(CELLS, CELLS);
  const [ticks, top, here] = ["ticks", "top", "here"].map((name) => map.layer(name));
  for (const layer of [ticks, top]) layer.setAttribute("pointer-events", "none");
  for (const value of [0.1, 0.3, 1]) {
    ticks.append(map.text([Math.log10(value), ENDS[0]], String(value), { dy: -6, class: "tick" }), map.text([ENDS[0], Math.log10(value)], String(value), { dx: 6, dy: 6, "text-anchor": "start", class: "tick" }));
  }
  ticks.append(map.text([ENDS[1], ENDS[0]], "τ", { dx: -12, dy: -8 }), map.text([ENDS[0], ENDS[1]], "σ", { dx: 14, dy: 20 }));
  const weights = svg("svg", { role: "img" });
  const read = readout({
    logEvidence: "log evidence of the queries, nats", topEvidence: "the most on the map", top: "τ and σ there", moves: "how far the mean of each key is from its prior place",
    counts: "queries that each key has", keys: "posterior means of the keys", spread: "standard deviations of the keys, root mean square of both coordinates", attention: "attention of the new query",
  });
  const climb = button("top", "Top of the map", () => changed({ tau: rounded(best.tau), sigma: rounded(best.sigma) }));
  const controls = panel("Controls", [
    slider({ name: "tau", label: "Common move, τ", ...strength, on: (tau) => changed({ tau }) }),
    slider({ name: "sigma", label: "Own moves, σ", ...strength, on: (sigma) => changed({ sigma }) }),
    slider({ name: "precision", label: "Precision of a query, α", ...fields.precision, on: (precision) => changed({ precision }) }),
    climb,
    button("drop", "Drop a query at the cross", () => drop(state.query)),
    button("lift", "Take the last query away", () => state.queries.length > 1 && changed({ queries: state.queries.slice(0, -1) })),
  ]);
  controls.node.classList.add("three");
  const chart = figure(map.node, "");
  const told = chart.lastChild;
  layout(root, {
    main: figure(plane.node, "Rings: prior places of the keys. Dots: queries, five at most; tap the plane to drop one. Lines, ellipses: posterior means, 90 %. Cross: a new query."),
    controls, numbers: read, aspect: plane.aspect, across: 2,
    others: [
      chart,
      figure(weights, "To which key the cross belongs, the queries seen."),
    ],
  });

  // The map depends on neither strength: it is drawn in the background when queries, keys or their precision have come to rest.
  const survey = later(() => {
    const problem = { precision: state.precision };
    const all = assignmentsOf(state.queries, state.keys);
    const own = keyOf(state);
    const mine = ++job;
    const found = [];
    const some = () => {
      if (mine !== job || !root.isConnected) return;
      const until = performance.now() + SLICE;
      while (found.length < CELLS ** 2 && performance.now() < until) {
        const [column, row] = [found.length % CELLS, CELLS - 1 - Math.floor(found.length / CELLS)];
        found.push(logEvidence(all, { ...problem, tau: STRENGTHS[column], sigma: STRENGTHS[row] }));
      }
      if (found.length < CELLS ** 2) return setTimeout(some, 0);
      const at = found.indexOf(Math.max(...found));
      best = { logEvidence: found[at], tau: STRENGTHS[at % CELLS], sigma: STRENGTHS[CELLS - 1 - Math.floor(at / CELLS)], found };
      mapped = own;
      render();
    };
    some();
  }, 60);
  const keyOf = ({ keys, queries, precision }) => JSON.stringify([keys, queries, precision]);

  function drawMap() {
    const [low, high] = [color("--low"), color("--high")];
    shade((_, i) => [...blend(low, high, 0.75 * Math.max(0, 1 - (best.logEvidence - best.found[i]) / 4)), 255]);
    const [cx, cy] = map.at([Math.log10(best.tau), Math.log10(best.sigma)]);
    const corners = Array.from({ length: 10 }, (_, k) => [k % 2 ? 5 : 11, (Math.PI * k) / 5 - Math.PI / 2]).map(([r, turn]) => `${(cx + r * Math.cos(turn)).toFixed(1)},${(cy + r * Math.sin(turn)).toFixed(1)}`);
    top.replaceChildren(svg("polygon", { points: corners.join(" "), class: "point" }));
  }

  function render() {
    const { keys, queries, query, tau, sigma } = state;
    const found = summary(state);
    const known = mapped === keyOf(state) ? best : null;
    const moves = keys.map((key, j) => Math.hypot(found.keys[j][0] - key[0], found.keys[j][1] - key[1]));
    moved.replaceChildren(...keys.flatMap((key, j) => {
      const [[a, b], [, c]] = found.covariance[j];
      const outline = ellipse(found.keys[j], found.covariance[j], 1 / (a * c - b * b), NINETY);
      return [plane.path(outline, { class: `line ${unitClass(j)}` }), plane.path([key, found.keys[j]], { class: `way ${unitClass(j)}` }), plane.dot(found.keys[j], { r: 8, class: `fill ${unitClass(j)}` })];
    }));
    plane.handles(rings, keys, { name: (j) => `Prior place of key ${NAMES[j]}`, shape: "ring", unit: (j) => j, radius: () => 15, on: (places) => changed({ keys: places }) });
    names.replaceChildren(...keys.map((key, j) => plane.text(key, NAMES[j], { dy: 6 })));
    plane.handles(dots, queries, { name: (i) => `Query ${i + 1}`, shape: "dot", on: (places) => changed({ queries: places }) });
    plane.handles(asking, [query], { name: () => "The new query", shape: "cross", on: ([place]) => changed({ query: place }) });

    const inside = map.clamp([Math.log10(tau), Math.log10(sigma)]);
    map.handles(here, [inside], { name: () => `τ ${short(tau)} and σ ${short(sigma)}`, shape: "dot", on: ([[across, up]]) => changed({ tau: rounded(10 ** across), sigma: rounded(10 ** up) }) });
    climb.enable(known !== null);
    if (known) drawMap();
    bars(weights, found.attention.map((share, j) => [NAMES[j], share, j]));

    const asked = keys.map((_, j) => j).filter((j) => found.counts[j] >= 0.5);
    const others = keys.map((_, j) => j).filter((j) => found.counts[j] < 0.5);
    const mean = (some) => short(some.reduce((sum, j) => sum + moves[j], 0) / some.length);
    const far = [asked.length ? `Keys with a query (${asked.map((j) => NAMES[j]).join(", ")}) have moved by ${mean(asked)} on average` : "", others.length ? `${asked.length ? "those" : "Keys"} without (${others.map((j) => NAMES[j]).join(", ")}) by ${mean(others)}` : ""].filter(Boolean).join(", ");
    now(`${far}. The log evidence is ${short(found.logEvidence)} nats.`);
    told.textContent = `Log evidence by τ and σ, down to 4 nats under its top, the star${known ? ` (${short(known.logEvidence)} nats)` : ""}. Drag the dot.`;
    controls.set(state);
    read.set({
      logEvidence: found.logEvidence, topEvidence: known?.logEvidence, top: known ? [known.tau, known.sigma] : undefined, moves, counts: found.counts, keys: found.keys,
      spread: found.covariance.map(([[a], [, c]]) => Math.sqrt((a + c) / 2)), attention: found.attention,
    });
  }

  return {
    update(next) {
      state = next;
      render();
      if (mapped !== keyOf(state)) survey();
    },
    stop() {
      survey.cancel();
      job++;
    },
  };
}

export default {
  id: "together", title: "Together, or each on its own",
  sentence: "The keys of a domain share one move and have moves of their own. The more is shared, the more a query of one key says about all the others.",
  suggestion: "take σ to 0.03: all keys move as one. Then take τ there instead: only keys with a query move.",
  notebook: "14_what_keys_have_in_common",
  own: { name: "queries", most: 5, columns: ["x", "y"], ...listed("queries") },
  defaults, fields, mount, python,
};
