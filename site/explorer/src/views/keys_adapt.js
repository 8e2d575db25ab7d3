// View 6: keys adapt to queries under a prior; a Gibbs sampler draws them, and a new query's attention is averaged, rightly and wrongly.

import { adapt, average, chain, exact, explain, movesKeys, movesShift } from "../math/adapt.js";
import { generator } from "../math/random.js";
import { cloud, later, numbers, shares } from "../parts.js";
import { Plane, button, choice, columns, figure, panel, slider, svg, unitClass } from "../ui.js";

const UNITS = ["A", "B", "C", "D", "E", "F", "G", "H", "I", "J", "K", "L"];
const EXACT = 3000; // assignments of the queries that are summed at most
const MOST = 60000; // times that a draw weighs a query against a unit, at most, so that a frame stays short

export function problemOf(state) {
  return {
    queries: state.queries, keys: state.keys, precision: state.precision,
    weights: state.keys.map(() => -Math.log(state.keys.length)),
    keyStrength: state.keyStrength, shiftStrength: state.shiftStrength, adapt: state.adapt,
  };
}

const tensor = (rows) => `torch.tensor([${rows.map((row) => `[${row.join(", ")}]`).join(", ")}], dtype=torch.float64)`;

export function python(state) {
  const keys = state.adapt !== "shift";
  const shift = state.adapt !== "own";
  const priors = [
    ...(keys ? [`keys=Normal(keys, ${state.keyStrength} ** -0.5)`] : []),
    ...(shift ? [`shift=Normal(torch.zeros(2), ${state.shiftStrength} ** -0.5)`] : []),
  ];
  return `import json

import torch
from pyro.distributions import Normal
from probtx_pyro import inference, models, results

torch.set_default_dtype(torch.float64)
queries = ${tensor(state.queries)}
keys = ${tensor(state.keys)}
new = ${tensor([state.query])}  # one more query, not among the data
mixture = models.GaussianMixture(keys, key_precision=${state.precision}${shift ? ", shift=torch.zeros(2)" : ""})
posterior = models.bayesian(mixture, ${priors.join(", ")})

fit = inference.adapt(posterior, queries, num_steps=${state.steps}, progress=False)
draws = inference.gibbs(posterior, queries, num_samples=500, num_chains=8, seed=${state.seed}, progress=False)
said = results.predict(draws, new, relabel=False)
each = mixture.with_parameters({name: x.flatten(0, 1) for name, x in draws.samples.items()})
print(json.dumps({
    "logJoint": fit.objective[-1].item(),
    "keys": fit.formulation.keys.tolist(),
    ${shift ? '"shift": fit.formulation.shift.tolist(),\n    ' : ""}"adapted": fit.formulation.attention(new)[0].tolist(),
    "right": said.attention[0].tolist(),  # p(unit | query, data): each draw counts by the density it gives the query
    "rightError": said.error("attention")[0].tolist(),
    "wrong": each.attention(new)[:, 0].mean(0).tolist(),  # forgets that the query is one more observation
}))
`;
}

const defaults = {
  queries: [[-1.2, 0.1], [-0.8, -0.4], [-1.5, -0.2], [-0.9, 0.3], [1.9, 0.2], [2.2, -0.3], [1.6, 0.4]],
  keys: [[-1.5, -0.6], [1.5, -0.6], [0, 1.5]],
  query: [0.2, -0.2],
  precision: 4, keyStrength: 2, shiftStrength: 1, adapt: "own", steps: 8, draws: 600, seed: 1,
};

// A state from an address or a file, if its numbers make a problem.
function fromURL(own) {
  const points = (rows, most) => rows.length > 0 && rows.length <= most && rows.every((row) => Array.isArray(row) && row.length === 2 && row.every(Number.isFinite));
  if (own.queries && !points(own.queries, 60)) throw new Error("queries must be 1 to 60 pairs of numbers");
  if (own.keys && !points(own.keys, 12)) throw new Error("keys must be 1 to 12 pairs of numbers");
  if (own.query && !points([own.query], 1)) throw new Error("query must be a pair of numbers");
  for (const name of ["precision", "keyStrength", "shiftStrength"]) if (name in own && !(own[name] > 0)) throw new Error(`${name} must be positive`);
  for (const [name, least, most] of [["steps", 0, 1000], ["draws", 1, 20000]]) {
    if (name in own && !(Number.isInteger(own[name]) && own[name] >= least && own[name] <= most)) throw new Error(`${name} must be ${least} to ${most}`);
  }
  if ("adapt" in own && !["own", "shift", "both"].includes(own.adapt)) throw new Error("adapt must be own, shift or both");
  return own;
}

// The plane, as wide as points that lie outside of the usual one need it.
function around(points) {
  const [x, y] = [[-3.5, 3.5], [-2.6, 2.9]].map(([low, high], d) => {
    const all = points.map((point) => point[d]);
    const room = 0.15 * (Math.max(...all) - Math.min(...all));
    return [Math.min(low, Math.min(...all) - room), Math.max(high, Math.max(...all) + room)];
  });
  return { x, y, scale: 700 / (x[1] - x[0]) };
}

function mount(root, first, changed) {
  let state = first;
  const plane = new Plane({ ...around([...first.queries, ...first.keys, first.query]), label: "Plane of queries and keys" });
  const layers = Object.fromEntries(["draws", "keys", "queries", "new", "paths"].map((name) => [name, plane.layer(name)]));
  const bars = svg("svg", { viewBox: "0 0 360 10", role: "img" });
  const read = numbers(
    { right: "right average, by unit", exact: "the same, summed exactly", wrong: "wrong average", adapted: "at the adapted keys", logJoint: "log joint at the adapted keys, nats" },
    { lower: "lower end of the band", upper: "upper end of the band", made: "draws made", effective: "draws that the weights are worth", keys: "adapted keys", shift: "adapted shift" },
  );
  let playing = 0;

  const controls = panel("Controls", [
    choice("What adapts", { own: "each key", shift: "one common shift", both: "both" }, "adapt", (adapt) => changed({ adapt })),
    slider({ name: "keyStrength", label: "Strength of the keys' prior θ", min: 0.05, max: 50, log: true, on: (keyStrength) => changed({ keyStrength }) }),
    slider({ name: "shiftStrength", label: "Strength of the shift's prior κ", min: 0.05, max: 50, log: true, on: (shiftStrength) => changed({ shiftStrength }) }),
    slider({ name: "precision", label: "Precision of a query α", min: 0.5, max: 20, log: true, on: (precision) => changed({ precision }) }),
    slider({ name: "steps", label: "EM steps", min: 0, max: 30, step: 1, on: (steps) => changed({ steps }) }),
    slider({ name: "draws", label: "Draws of the Gibbs sampler", min: 20, max: 2000, step: 20, on: (draws) => changed({ draws }) }),
    button("run", "Run the sampler", () => run()),
    button("drop", "Drop a query at the cross", () => changed({ queries: [...state.queries, state.query.map((x) => x)] })),
    button("lift", "Take the last query away", () => state.queries.length > 1 && changed({ queries: state.queries.slice(0, -1) })),
    button("reseed", "Other draws", () => changed({ seed: state.seed + 1 })),
  ]);
  plane.onEmpty((point) => changed({ queries: [...state.queries, point] }));
  root.append(columns(
    [figure(plane.node, "Dots: queries; tap the plane to drop one. Rings: prior means. Lines: EM steps to the adapted keys. Clouds: draws of the keys. Cross: a new query."), controls.node],
    [figure(bars, "To which unit does the new query belong? Right: each draw counts by the density that it gives the query, p(unit | query, data), with a band of 89 %. Wrong: all draws count alike."), read.node],
  ));

  const exactLater = later(() => {
    const said = exact(problemOf(state), state.query, EXACT);
    read.set({ exact: said ? said.right : null });
  });

  function run() {
    cancelAnimationFrame(playing);
    let at = 0;
    const tick = () => {
      at = Math.min(state.draws, at + Math.max(2, Math.round(at / 12)));
      render({ ...state, draws: at });
      if (at < state.draws) playing = requestAnimationFrame(tick);
    };
    tick();
  }

  function render(shown) {
    const problem = problemOf(shown);
    const { states, objective } = adapt(problem, shown.steps);
    const at = states.at(-1);
    const count = Math.min(shown.draws, Math.max(200, Math.floor(MOST / (shown.queries.length * shown.keys.length))));
    const draws = chain(problem, count, generator(shown.seed));
    const said = average(problem, draws, shown.query);
    const adapted = explain(problem, at, shown.query).attention;
    const place = (s, j) => s.keys[j].map((x, d) => x + s.shift[d]);

    const some = draws.filter((_, s) => s % Math.ceil(draws.length / 150) === 0);
    layers.draws.replaceChildren(...shown.keys.map((_, j) => cloud(plane, some.map((s) => place(s, j)), unitClass(j))));
    layers.paths.replaceChildren(...shown.keys.flatMap((_, j) => [
      plane.path(states.map((s) => place(s, j)), { class: `way ${unitClass(j)}` }),
      plane.dot(place(at, j), { r: 7, class: `fill ${unitClass(j)}` }),
      plane.text(place(at, j), UNITS[j], { "pointer-events": "none", dx: 22, dy: 6, class: "letter" }),
    ]));
    plane.handles(layers.keys, shown.keys, { name: (j) => `prior mean of key ${UNITS[j]}`, shape: "ring", unit: (j) => j, on: (keys) => changed({ keys }) });
    plane.handles(layers.queries, shown.queries, { name: (i) => `query ${i + 1}`, shape: "dot", on: (queries) => changed({ queries }) });
    plane.handles(layers.new, [shown.query], { name: () => "new query", shape: "cross", on: ([query]) => changed({ query }) });

    const rows = [
      ["right average", said.right, [said.lower, said.upper]],
      ["wrong average", said.wrong, null],
      ["adapted keys", adapted, null],
    ];
    shares(bars, rows, UNITS.slice(0, shown.keys.length));
    read.set({
      logJoint: objective.at(-1), adapted, wrong: said.wrong, right: said.right, exact: undefined,
      lower: said.lower, upper: said.upper, made: count, effective: said.effective,
      keys: at.keys, shift: movesShift(problem) ? at.shift : null,
    });
    exactLater();
  }

  function update(next) {
    state = next;
    controls.set(state, { keyStrength: movesKeys(problemOf(state)), shiftStrength: movesShift(problemOf(state)) });
    render(state);
  }
  return {
    update,
    stop() {
      cancelAnimationFrame(playing);
      exactLater.cancel();
    },
  };
}

export default {
  id: "keys-adapt",
  number: 6,
  title: "Keys adapt",
  sentence: "Queries are data about the keys. Averaged rightly, the cross most probably belongs to C, which no query has come near yet; at the adapted keys, and by a plain average over draws, to A.",
  suggestion: "drop three queries beside C's ring, and watch the cloud of its key shrink. Then let one common shift adapt instead of each key.",
  notebook: "04_keys_that_adapt",
  defaults, fromURL, mount, python,
};
