// View 6: keys adapt to queries under a prior; a Gibbs sampler draws them, and a new query's attention is averaged, rightly and wrongly.

import { adapt, average, chain, exact, explain, movesKeys, movesShift } from "../math/adapt.js";
import { generator } from "../math/random.js";
import { oneOf, point, points, range, seed, whole } from "../fields.js";
import { listed } from "../own.js";
import { cloud, later, shares } from "../parts.js";
import { Plane, around, button, choice, figure, layout, panel, readout, slider, svg, unitClass } from "../ui.js";

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

const strength = range(0.05, 50, { log: true, least: 1e-3, most: 1e4 });
const fields = {
  queries: points(1, 60), keys: points(1, 12), query: point, precision: range(0.5, 20, { log: true, least: 1e-3, most: 1e4 }), keyStrength: strength, shiftStrength: strength,
  adapt: oneOf({ own: "each key", shift: "one common shift", both: "both" }), steps: whole(0, 30, { most: 1000 }), draws: whole(20, 2000, { step: 20, least: 1, most: 20000 }), seed,
};

function mount(root, first, changed, now, drop) {
  let state = first;
  const [x, y] = around([...first.queries, ...first.keys, first.query], [-3.5, 3.5], [-2.6, 2.9]);
  const plane = new Plane({ x, y, units: first.units, label: "Plane of queries and keys", width: 700 });
  const layers = Object.fromEntries(["draws", "keys", "queries", "new", "paths"].map((name) => [name, plane.layer(name)]));
  const bars = svg("svg", { viewBox: "0 0 360 10", role: "img" });
  const read = readout({
    right: "right average, by unit", exact: "the same, summed exactly", wrong: "wrong average", adapted: "at the adapted keys", logJoint: "log joint at the adapted keys, nats",
    lower: "lower end of the band", upper: "upper end of the band", made: "draws made", effective: "draws that the weights are worth", keys: "adapted keys", shift: "adapted shift",
  });
  let playing = 0;

  const controls = panel("Controls", [
    choice("What adapts", fields.adapt.options, "adapt", (adapt) => changed({ adapt })),
    slider({ name: "keyStrength", label: "Strength of the keys' prior θ", ...fields.keyStrength, on: (keyStrength) => changed({ keyStrength }) }),
    slider({ name: "shiftStrength", label: "Strength of the shift's prior κ", ...fields.shiftStrength, on: (shiftStrength) => changed({ shiftStrength }) }),
    slider({ name: "precision", label: "Precision of a query α", ...fields.precision, on: (precision) => changed({ precision }) }),
    slider({ name: "steps", label: "EM steps", ...fields.steps, on: (steps) => changed({ steps }) }),
    slider({ name: "draws", label: "Draws of the Gibbs sampler", ...fields.draws, on: (draws) => changed({ draws }) }),
    button("run", "Run the sampler", () => run()),
    button("drop", "Drop a query at the cross", () => drop(state.query)),
    button("lift", "Take the last query away", () => state.queries.length > 1 && changed({ queries: state.queries.slice(0, -1) })),
    button("reseed", "Other draws", () => changed({ seed: state.seed + 1 })),
  ]);
  plane.onEmpty(drop);
  layout(root, {
    main: figure(plane.node, "Dots: queries; tap the plane to drop one. Rings: prior means. Lines: EM steps to the adapted keys. Clouds: draws of the keys. Cross: a new query."),
    controls, numbers: read, aspect: plane.aspect,
    others: [figure(bars, "To which unit does the new query belong? Right: each draw counts by the density that it gives the query, p(unit | query, data), with a band of 90 %. Wrong: all draws count alike.")],
  });

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
    const first = (p) => {
      const j = p.indexOf(Math.max(...p));
      return [UNITS[j], `${UNITS[j]} (${p[j].toFixed(2)})`];
    };
    const [right, wrong, plug] = [said.right, said.wrong, adapted].map(first);
    const differ = wrong[0] !== right[0] || plug[0] !== right[0];
    now(`Averaged rightly, the cross most probably belongs to ${right[1]}; ${differ ? "but" : "so"} at the adapted keys to ${plug[1]}, and by a plain average over draws to ${wrong[1]}.`);
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
  title: "Keys adapt",
  sentence: "Queries are data about the keys. Where a new query belongs is an average over the posterior of the keys in which each draw counts by the density that it gives the query.",
  suggestion: "drop three queries beside C's ring, and watch the cloud of its key shrink. Then let one common shift adapt instead of each key.",
  notebook: "04_keys_that_adapt",
  own: { name: "queries", most: 60, columns: ["x", "y"], ...listed("queries") },
  defaults, fields, mount, python,
};
