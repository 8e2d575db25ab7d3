// View 1: attention is a posterior. One query in the plane, keys around it, answers on a line.

import {
  answerOf, answerVariance, attention, entropy, evidenceField, expectedOutput, linkedPrior, logDensity, logEvidence, logJoint, logSoftmax, modes, withBackground,
} from "../math/mixture.js";
import { numbersOf, placeIn, point, points, range, yesNo } from "../fields.js";
import { listed } from "../own.js";
import { Chart, Plane, around, bars, blend, button, cents, check, color, figure, layout, literal, node, panel, readout, short, slider, svg, tensor, unitClass } from "../ui.js";

const [X, Y] = [[-3, 3], [-2.4, 2.4]];
const MOST = 12;

const defaults = {
  query: [0.5, 0.4], keys: [[-1.6, 0.7], [1.5, 1.1], [0.5, -1.4]], values: [-1, 1, 0.4], precision: 1, valuePrecision: 14,
  weights: [1, 1, 1], background: 0, backgroundPrecision: 0.1, linked: false, unit: 0,
};

const fields = {
  query: point, keys: points(1, MOST), values: numbersOf("keys"), weights: numbersOf("keys", 1e-12, 1e12), unit: placeIn("keys"), linked: yesNo,
  precision: range(0.1, 20, { log: true, least: 1e-3, most: 1e4 }), valuePrecision: range(0.5, 200, { log: true, least: 1e-3, most: 1e6 }),
  background: range(0, 0.95), backgroundPrecision: range(0.01, 2, { log: true, least: 1e-6, most: 100 }),
};

// The mixture of a state, as GaussianMixture.
export function mixtureOf(state) {
  const { keys, values, precision, valuePrecision } = state;
  const logWeights = state.weights.map(Math.log);
  const logPrior = state.linked ? linkedPrior(keys, precision, logWeights) : logSoftmax(logWeights);
  const plain = { keys, values: values.map((v) => [v]), precision, valuePrecision, logPrior };
  return state.background > 0 ? withBackground(plain, state.background, state.backgroundPrecision) : plain;
}

function python(state) {
  const linked = `models.GaussianMixture.linked(keys, values, ${state.precision}, log_prior=log_weights).replace(value_precision=torch.tensor(${literal(state.valuePrecision)}))`;
  const plain = `models.GaussianMixture(keys, values, ${state.precision}, ${state.valuePrecision}, log_weights.log_softmax(-1))`;
  const background = state.background > 0 ? `mixture = mixture.with_background(${state.background}, key_precision=${state.backgroundPrecision})\n` : "";
  return `import json

import torch
from probtx_pyro import models

torch.set_default_dtype(torch.float64)
query = ${tensor([state.query])}
keys = ${tensor(state.keys)}
values = ${tensor(state.values.map((v) => [v]))}
log_weights = torch.tensor([${literal(state.weights)}]).log()
mixture = ${state.linked ? linked : plain}
${background}
found = mixture.output_modes(query, num_steps=20000, tol=1e-14)
print(json.dumps({
    "attention": mixture.attention(query)[0].tolist(),
    "prior": mixture.log_weights()[0].exp().tolist(),
    "logEvidence": mixture.log_evidence(query).item(),
    "mean": mixture.expected_outputs(query).item(),
    "sd": mixture.output_covariance(query).sqrt().item(),
    "modes": sorted(found.locations[found.is_mode][:, 0].tolist()),
}))
`;
}

function mount(root, first, changed, now, drop) {
  let state = first;
  const [x, y] = around([...first.keys, first.query], X, Y);
  const plane = new Plane({ x, y, units: first.units, label: "The plane of queries and keys" });
  plane.onEmpty(drop);
  const shade = plane.shading(60, Math.round(60 / plane.aspect));
  const [links, rings, names, asking] = ["links", "keys", "names", "query"].map((name) => plane.layer(name));
  names.setAttribute("pointer-events", "none");
  const weights = svg("svg", { role: "img" });
  const density = new Chart({ label: "Density of the answer", xlabel: "answer", height: 190 });
  const read = readout({
    logEvidence: "log evidence of the query, nats", entropy: "entropy of attention, nats", attention: "attention", prior: "prior",
    mean: "mean of the answer", sd: "its standard deviation", modes: "its modes",
  });
  const weight = slider({ name: "weight", label: "", min: 0.05, max: 20, log: true, on: (w) => changed({ weights: state.weights.map((v, j) => (j === state.unit ? w : v)) }) });
  const value = slider({ name: "value", label: "", min: -3, max: 3, step: 0.01, on: (v) => changed({ values: state.values.map((w, j) => (j === state.unit ? v : w)) }) });
  const controls = panel("Controls", [
    slider({ name: "precision", label: "Precision of keys, α", ...fields.precision, on: (precision) => changed({ precision }) }),
    slider({ name: "valuePrecision", label: "Precision of answers, β", ...fields.valuePrecision, on: (valuePrecision) => changed({ valuePrecision }) }),
    weight, value,
    slider({ name: "background", label: "Prior weight of a background", ...fields.background, on: (background) => changed({ background }) }),
    slider({ name: "backgroundPrecision", label: "Precision of the background", ...fields.backgroundPrecision, on: (backgroundPrecision) => changed({ backgroundPrecision }) }),
    check("linked", "Linked prior, ∝ exp(½ α |key|²): attention is a softmax of dot products", (linked) => changed({ linked })),
    button("add", "Add a key", () => {
      const turn = 2.4 * state.keys.length;
      changed({ keys: [...state.keys, [cents(1.9 * Math.cos(turn)), cents(1.7 * Math.sin(turn))]], values: [...state.values, cents(1.5 * Math.sin(1.7 * turn))], weights: [...state.weights, 1], unit: state.keys.length });
    }),
    button("remove", "Remove the chosen key", () => {
      if (state.keys.length === 1) return;
      const without = (list) => list.filter((_, j) => j !== state.unit);
      changed({ keys: without(state.keys), values: without(state.values), weights: without(state.weights), unit: 0 });
    }),
  ]);
  // The term of one unit with its numbers: the one that is pointed at, or else the chosen one.
  const formula = node("p", { class: "formula" });
  let pointed = null;
  function term() {
    const mixture = mixtureOf(state);
    const unit = pointed !== null && pointed < mixture.keys.length ? pointed : state.unit;
    const log = logJoint(mixture, state.query)[unit] - mixture.logPrior[unit];
    const numbers = [mixture.logPrior[unit], log, logEvidence(mixture, state.query)].map((x) => Math.exp(x).toPrecision(3));
    const name = unit < state.keys.length ? String(unit + 1) : "b";
    const index = () => node("sub", {}, name);
    formula.dataset.unit = unit;
    formula.replaceChildren("w", index(), " = π", index(), " N(q; ξ", index(), `) / evidence = ${numbers[0]} · ${numbers[1]} / ${numbers[2]} = ${attention(mixture, state.query)[unit].toFixed(3)}`);
  }
  layout(root, {
    lit(unit) {
      pointed = unit;
      term();
    },
    main: figure(plane.node, "Drag the query (the dot) and the keys (rings, as large as their prior); a click on a ring chooses the key of the sliders. Lines: attention. Shading: the evidence, how likely a query is at each place."),
    controls, numbers: read, aspect: plane.aspect,
    others: [node("div", {}, figure(weights, "Attention, p(unit | query). Point at a ring or a bar: its term."), formula), figure(density.node, "Density of the answer. Line: its mean, attention's output. Dots: its modes.")],
  });

  return {
    update(next) {
      state = next;
      const mixture = mixtureOf(state);
      const { query, keys } = state;
      const count = keys.length;
      const own = attention(mixture, query);
      const prior = mixture.logPrior.map(Math.exp);
      const name = (j) => (j < count ? `key ${j + 1}` : "background");

      const [low, high] = [color("--low"), color("--high")];
      const field = evidenceField(mixture, Math.max(...mixture.keys.map((key) => logEvidence(mixture, key))));
      shade((point) => [...blend(low, high, 0.55 * Math.sqrt(Math.min(1, field(point)))), 255]);

      links.replaceChildren(...keys.map((key, j) => plane.path([query, key], { class: `link ${unitClass(j)}`, "stroke-width": (14 * own[j]).toFixed(2), "stroke-linecap": "round" })));
      plane.handles(rings, keys, {
        name: (j) => `Key ${j + 1}`, shape: "ring", unit: (j) => j, radius: (j) => 13 + 22 * Math.sqrt(prior[j]),
        on: (moved, unit) => changed({ keys: moved, unit }), chosen: (unit) => unit !== state.unit && changed({ unit }),
      });
      names.replaceChildren(...keys.map((key, j) => plane.text(key, String(j + 1), { dy: 6 })));
      plane.handles(asking, [query], { name: () => "The query", shape: "dot", on: ([moved]) => changed({ query: moved }) });

      bars(weights, own.map((share, j) => [name(j), share, j < count ? j : null, j]));
      term();
      weight.label(`Prior weight of key ${state.unit + 1}`);
      weight.set(state.weights[state.unit]);
      value.label(`Answer of key ${state.unit + 1}`);
      value.set(state.values[state.unit]);

      const answer = answerOf(mixture, query);
      const [mean] = expectedOutput(mixture, query);
      const sd = Math.sqrt(answerVariance(answer)[0]);
      const found = modes(answer);
      const reach = 3.2 / Math.sqrt(state.valuePrecision);
      const ends = [Math.min(...mixture.values.flat()) - reach, Math.max(...mixture.values.flat()) + reach];
      const points = Array.from({ length: 161 }, (_, i) => ends[0] + ((ends[1] - ends[0]) * i) / 160).map((v) => [v, Math.exp(logDensity(answer, [v]))]);
      density.range(ends, [0, 1.08 * Math.max(...points.map((p) => p[1]))]);
      density.draw(
        density.line([[ends[0], 0], ...points, [ends[1], 0]], { class: "area" }), density.line(points),
        mixture.values.map(([v], j) => density.line([[v, 0], [v, 0.05 * density.y[1]]], { class: `line ${unitClass(j)}` })),
        density.upright(mean, { class: "mean" }),
        found.map((mode) => density.dot([mode.at[0], Math.exp(mode.logDensity)])),
      );
      density.node.setAttribute("aria-label", `Density of the answer: mean ${short(mean)}, modes at ${found.map((mode) => short(mode.at[0])).join(", ")}`);
      const top = own.indexOf(Math.max(...own));
      now(`Here it came from ${top < count ? name(top) : "the background"} with probability ${own[top].toFixed(2)}; the log evidence is ${short(logEvidence(mixture, query))} nats, and the mean answer ${short(mean)}.`);
      controls.set(state, { backgroundPrecision: state.background > 0 });
      read.set({
        logEvidence: logEvidence(mixture, query), entropy: entropy(own), attention: own, prior, mean, sd,
        modes: found.map((mode) => mode.at[0]).sort((a, b) => a - b),
      });
    },
  };
}

export default {
  id: "posterior", title: "Attention is a posterior",
  sentence: "A unit is picked by its prior and a query is drawn near its key. Attention is the probability, once the query is seen, that it came from this unit.",
  suggestion: "drag the query far away from all keys. Attention grows certain, while the evidence falls: attention alone cannot say that no key fits.",
  notebook: "01_attention_is_a_posterior",
  own: { name: "keys", most: MOST, columns: ["x", "y", "answer"], ...listed("keys", { values: { at: 2, usual: 0 }, weights: { usual: 1 } }, "unit") },
  defaults, fields, mount, python,
};
