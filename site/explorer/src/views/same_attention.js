// View 2: the same attention, another model. The origin of the keys and the metric are free; attention does not see them.

import { compared, equivalent, likeliest, metricOf, simulate } from "../math/gauge.js";
import { evidenceField, logEvidence } from "../math/mixture.js";
import { generator } from "../math/random.js";
import { point, points, range, seed, whole } from "../fields.js";
import { listed } from "../own.js";
import { Plane, around, blend, button, cents, color, figure, layout, panel, readout, rounded, short, slider, svg, tensor, unitClass } from "../ui.js";

const defaults = {
  keys: [[2.4, 0.3], [1.2, 1.5], [1.4, -0.9], [2.7, 1.6]],
  queries: [[-0.9, 0.5], [-1.3, -0.2], [0.2, 0.9], [0.6, -0.1], [-0.4, -0.8], [0.1, 0.3], [-0.7, 1.2], [0.4, -0.6]],
  precision: 1, origin: [1.9, 0.6], along: 1, across: 1, degrees: 0, seed: 1,
};

const fields = {
  keys: points(1, 12), queries: points(1, 12), origin: point, seed, degrees: whole(0, 180),
  precision: range(0.1, 5, { log: true, least: 1e-3, most: 100 }), along: range(0.05, 20, { log: true, least: 1e-3, most: 1e3 }), across: range(0.05, 20, { log: true, least: 1e-3, most: 1e3 }),
};

const modelOf = ({ keys, precision, origin, along, across, degrees }) => equivalent(keys, precision, origin, along, across, degrees);

function python(state) {
  return `import json
import math

import torch
from probtx_pyro import models

torch.set_default_dtype(torch.float64)
queries = ${tensor(state.queries)}
keys = ${tensor(state.keys)}
precision = ${state.precision}
as_given = models.GaussianMixture.linked(keys, None, precision)

turn = math.radians(${state.degrees})
axes = torch.tensor([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
metric = axes @ torch.diag(${tensor([state.along, state.across])}) @ axes.T
moved = precision * (keys - ${tensor(state.origin)}) @ torch.linalg.inv(metric)
prior = (0.5 * ((moved @ metric) * moved).sum(-1)).log_softmax(-1)
mixture = models.GaussianMixture(moved, None, 1.0, 0.0, prior[None], metric=metric)
print(json.dumps({
    "attention": mixture.attention(queries).tolist(),
    "attentionAsGiven": as_given.attention(queries).tolist(),
    "evidence": mixture.log_evidence(queries).sum().item(),
    "evidenceAsGiven": as_given.log_evidence(queries).sum().item(),
    "expectedQuery": (prior.exp() @ moved).tolist(),
}))
`;
}

// The cells of a matrix of queries and keys, drawn once and filled with every redraw.
function grid(picture, queries, keys) {
  const [side, wide, left, top] = [24, 62, 70, 26];
  const cells = Array.from({ length: queries }, (_, i) =>
    Array.from({ length: keys }, (_, j) => ({
      ground: svg("rect", { x: left + j * wide, y: top + i * side, width: wide - 2, height: side - 2 }),
      number: svg("text", { x: left + j * wide + 30, y: top + i * side + 16, "text-anchor": "middle" }),
    })),
  );
  picture.setAttribute("viewBox", `0 0 ${left + keys * wide} ${queries * side + top}`);
  picture.style.maxWidth = `${(left + keys * wide) * 1.15}px`;
  picture.replaceChildren(
    ...Array.from({ length: keys }, (_, j) => svg("text", { x: left + j * wide + 30, y: 16, "text-anchor": "middle" }, `key ${j + 1}`)),
    ...cells.flatMap((row, i) => [svg("text", { x: left - 8, y: top + i * side + 16, "text-anchor": "end" }, `query ${i + 1}`), ...row.flatMap(({ ground, number }) => [ground, number])]),
  );
  return cells;
}

function mount(root, first, changed, now, drop) {
  let state = first;
  let cells = [];
  const [x, y] = around([...first.queries, first.origin], [-4, 4], [-3, 3]);
  const plane = new Plane({ x, y, units: first.units, label: "Queries, keys of this model and queries drawn from it" });
  plane.onEmpty(drop);
  const shade = plane.shading(64, 48);
  const [drawn, stars, rings, names, origin] = ["drawn", "queries", "keys", "names", "origin"].map((name) => plane.layer(name));
  const matrix = svg("svg", { role: "img" });
  const read = readout({
    change: "largest change of attention", evidence: "log evidence of the queries, nats", evidenceAsGiven: "the same with origin 0, metric α I", expectedQuery: "mean of queries drawn from it", attention: "attention of query 1",
  });
  const within = (z) => Math.min(1e3, Math.max(1e-3, rounded(z)));
  const controls = panel("Controls", [
    slider({ name: "along", label: "Metric: precision along one direction", ...fields.along, on: (along) => changed({ along }) }),
    slider({ name: "across", label: "Metric: precision across it", ...fields.across, on: (across) => changed({ across }) }),
    slider({ name: "degrees", label: "The direction, in degrees", ...fields.degrees, on: (degrees) => changed({ degrees }) }),
    slider({ name: "precision", label: "Scale of attention, α", ...fields.precision, on: (precision) => changed({ precision }) }),
    button("likeliest", "Likeliest of all these models", () => {
      const best = likeliest(state.keys, state.precision, state.queries, state);
      changed({ origin: plane.clamp(best.origin), along: within(best.along), across: within(best.across), degrees: Math.round(best.degrees) });
    }),
    button("raw", "Origin 0, metric α I", () => changed({ origin: [0, 0], along: state.precision, across: state.precision, degrees: 0 })),
    button("again", "Send other queries", () => changed({ seed: state.seed + 1 })),
  ]);
  layout(root, {
    main: figure(plane.node, "Drag the cross, the place that the keys are measured from. Dots: the queries that attention is asked for. Rings: this model's keys, as large as their prior. Small dots: 200 queries drawn from it; shading, their density."),
    controls, numbers: read, aspect: plane.aspect,
    others: [figure(matrix, "Attention of the queries (rows) to the keys (columns): the same for every origin and metric.")],
  });
  drawn.setAttribute("pointer-events", "none");
  names.setAttribute("pointer-events", "none");
  rings.setAttribute("pointer-events", "none");

  return {
    update(next) {
      state = next;
      const model = modelOf(state);
      const { root: noise } = metricOf(state.along, state.across, state.degrees);
      const prior = model.logPrior.map(Math.exp);
      const both = compared(state);
      const rows = both.attention;
      const usual = both.attentionAsGiven.flat();
      const change = Math.max(...rows.flat().map((x, i) => Math.abs(x - usual[i])));

      const field = evidenceField(model, Math.max(...model.keys.map((key) => logEvidence(model, key))));
      const [low, high] = [color("--low"), color("--high")];
      shade((point) => [...blend(low, high, 0.55 * Math.sqrt(Math.min(1, field(point)))), 255]);
      drawn.replaceChildren(plane.dots(simulate(model, noise, 200, generator(state.seed)), 2.6, { class: "dots faint" }));
      rings.replaceChildren(...model.keys.map((key, j) => plane.dot(key, { r: (11 + 20 * Math.sqrt(prior[j])).toFixed(1), class: `ring ${unitClass(j)}` })));
      names.replaceChildren(...model.keys.map((key, j) => plane.text(key, String(j + 1), { dy: 6 })));
      plane.handles(stars, state.queries, { name: (i) => `Query ${i + 1}`, shape: "dot", on: (queries) => changed({ queries }) });
      plane.handles(origin, [state.origin], { name: () => "The origin of the keys", shape: "cross", on: ([moved]) => changed({ origin: moved }) });

      const [ink, paper] = [color("--high"), color("--low")];
      if (cells.length !== rows.length || cells[0].length !== state.keys.length) cells = grid(matrix, rows.length, state.keys.length);
      rows.forEach((row, i) => row.forEach((share, j) => {
        cells[i][j].ground.setAttribute("fill", `rgb(${blend(paper, ink, 0.45 * share).map(Math.round)})`);
        cells[i][j].number.textContent = share.toFixed(3);
      }));
      matrix.setAttribute("aria-label", `Attention, ${rows.map((row, i) => `query ${i + 1}: ${row.map((x) => x.toFixed(3)).join(", ")}`).join("; ")}`);
      const [more, log] = [both.evidence - both.evidenceAsGiven, short(both.evidence)];
      now(`No weight differs ${change < 1e-15 ? "" : `by more than ${change.toExponential(0)} `}from those of origin 0 and metric α I, and the log evidence of the ${state.queries.length} queries is ${log} nats${Math.abs(more) < 1e-9 ? ", as theirs" : `, ${short(Math.abs(more))} ${more > 0 ? "more" : "less"} than theirs`}.`);
      controls.set(state);
      read.set({
        change, evidence: both.evidence, evidenceAsGiven: both.evidenceAsGiven, expectedQuery: both.expectedQuery, attention: rows[0],
      });
    },
  };
}

export default {
  id: "same-attention", title: "Same attention, another model",
  sentence: "Attention fixes a mixture only up to the origin of its keys and a metric: all these models attend alike and disagree about which queries to expect.",
  suggestion: "drag the cross, stretch the metric: no number of the matrix moves, the evidence does. Then press “Likeliest”.",
  notebook: "01_attention_is_a_posterior",
  own: { name: "queries", most: 12, columns: ["x", "y"], ...listed("queries") },
  defaults, fields, mount, python,
};
