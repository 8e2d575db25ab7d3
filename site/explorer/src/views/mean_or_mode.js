// View 5: mean or mode. The answer given a query is a mixture of Gaussians at the values; three of them can have four modes.

import { average, emPath, logDensity, modes } from "../math/mixture.js";
import { numbersOf, placeIn, point, points, range, whole } from "../fields.js";
import { listed } from "../own.js";
import { Plane, around, blend, button, cents, color, figure, layout, literal, panel, readout, short, slider, svg, tensor } from "../ui.js";

const HIGH = 0.8660254037844386;
const TRIANGLE = [[0, 1], [-HIGH, -0.5], [HIGH, -0.5]];
const RING = Array.from({ length: 12 }, (_, k) => (k * Math.PI) / 6 + 0.1);

const defaults = { values: TRIANGLE, weights: [1, 1, 1], sd: 0.72, unit: 0, start: [0.05, 0.25], steps: 40 };

const fields = {
  values: points(1, 12), weights: numbersOf("values", 1e-12, 1e12), unit: placeIn("values"), start: point,
  sd: range(0.2, 1.2, { least: 0.01, most: 1000 }), steps: whole(0, 200, { most: 1000 }),
};

// The answer of a state: weights (attention), values and their precision.
export function answerIn(state) {
  const sum = state.weights.reduce((a, b) => a + b, 0);
  return { weights: state.weights.map((w) => w / sum), values: state.values, precision: state.sd ** -2 };
}

function python(state) {
  return `import json

import torch
from probtx_pyro import models

torch.set_default_dtype(torch.float64)
values = ${tensor(state.values)}
attention = torch.tensor([${literal(state.weights)}])
attention = attention / attention.sum()
query = torch.zeros(1, 1)  # all keys are equal, so that the prior is attention
mixture = models.GaussianMixture(torch.zeros(len(values), 1), values, 1.0, ${state.sd} ** -2, attention.log())
found = mixture.output_modes(query, num_steps=200000, tol=1e-15)
mean = mixture.expected_outputs(query)
at = lambda answer: (mixture.log_evidence(query, answer) - mixture.log_evidence(query)).item()
print(json.dumps({
    "mean": mean[0].tolist(),
    "atMean": at(mean),
    "modes": sorted(found.locations[found.is_mode].tolist()),
    "density": sorted(found.log_density[found.is_mode].tolist()),
    "end": mixture.map_outputs(query, init=${tensor([state.start])}, num_steps=${state.steps})[0].tolist(),
}))
`;
}

function mount(root, first, changed, now, drop) {
  let state = first;
  const [wide, high] = around([...first.values, first.start], [-1.7, 1.7], [-1.4, 1.6]);
  const plane = new Plane({ x: wide, y: high, units: first.units, label: "The plane of answers" });
  plane.onEmpty(drop);
  const shade = plane.shading(68, 60);
  const [paths, marks, rings, names, starting] = ["paths", "marks", "values", "names", "start"].map((name) => plane.layer(name));
  for (const layer of [paths, marks, names]) layer.setAttribute("pointer-events", "none");
  const read = readout({ count: "number of modes found", modes: "modes", density: "log density there", mean: "mean", atMean: "log density at the mean", end: "end of EM from the dot" });
  const weight = slider({ name: "weight", label: "", min: 0.1, max: 10, log: true, on: (w) => changed({ weights: state.weights.map((v, j) => (j === state.unit ? w : v)) }) });
  const controls = panel("Controls", [
    weight,
    slider({ name: "sd", label: "Standard deviation of answers, 1/√β", ...fields.sd, on: (sd) => changed({ sd }) }),
    slider({ name: "steps", label: "Steps of EM", ...fields.steps, on: (steps) => changed({ steps }) }),
    button("three", "Triangle, sd 0.6", () => changed({ ...defaults, units: null, sd: 0.6 })),
    button("four", "Triangle, sd 0.72", () => changed({ ...defaults, units: null, sd: 0.72 })),
    button("one", "Triangle, sd 0.8", () => changed({ ...defaults, units: null, sd: 0.8 })),
    button("add", "Add a value", () => {
      const turn = 2.2 * state.values.length;
      if (state.values.length < 12) changed({ values: [...state.values, [cents(1.1 * Math.cos(turn)), cents(1.1 * Math.sin(turn))]], weights: [...state.weights, 1], unit: state.values.length });
    }),
    button("remove", "Remove the chosen value", () => {
      const without = (list) => list.filter((_, j) => j !== state.unit);
      if (state.values.length > 1) changed({ values: without(state.values), weights: without(state.weights), unit: 0 });
    }),
  ]);
  const verdict = plane.layer("verdict");
  verdict.setAttribute("pointer-events", "none");
  layout(root, {
    main: figure(plane.node, "Drag the values (rings; a click chooses one) and the start of EM (the dot). Shading: the density of the answer, by rank. Small paths: EM from a ring of starts. Filled dots: modes. Cross of thin lines: the mean, attention's output."),
    controls, numbers: read, aspect: plane.aspect,
  });

  return {
    update(next) {
      state = next;
      const answer = answerIn(state);
      const mean = average(answer.weights, answer.values);
      const found = modes(answer);
      const scale = answer.precision / 2;
      const levels = [];
      const [low, high] = [color("--low"), color("--high")];
      // the density but for a constant; its colour is its rank, so that a flat top shows its bumps
      for (let r = 0; r < 60; r++) {
        const y = plane.y[1] - ((r + 0.5) * (plane.y[1] - plane.y[0])) / 60;
        for (let c = 0; c < 68; c++) {
          const x = plane.x[0] + ((c + 0.5) * (plane.x[1] - plane.x[0])) / 68;
          let sum = 0;
          for (let j = 0; j < answer.values.length; j++) sum += answer.weights[j] * Math.exp(-scale * ((x - answer.values[j][0]) ** 2 + (y - answer.values[j][1]) ** 2));
          levels.push(sum);
        }
      }
      const ordered = Float64Array.from(levels).sort();
      const cuts = Array.from({ length: 25 }, (_, k) => ordered[Math.floor(((ordered.length - 1) * k) / 24)]);
      shade((_, i) => {
        let band = 23;
        while (band > 0 && levels[i] < cuts[band]) band--;
        const within = cuts[band + 1] > cuts[band] ? (levels[i] - cuts[band]) / (cuts[band + 1] - cuts[band]) : 0;
        return [...blend(low, high, (0.8 * (band + within)) / 24), 255];
      });

      const own = emPath(answer, state.start, state.steps);
      const middle = average(answer.weights.map(() => 1 / answer.weights.length), answer.values);
      paths.replaceChildren(
        ...RING.map((turn) => plane.path(emPath(answer, [middle[0] + 0.3 * Math.cos(turn), middle[1] + 0.3 * Math.sin(turn)], Math.min(40, state.steps)), { class: "path" })),
        plane.path(own, { class: "path", "stroke-width": 4 }),
      );
      const [mx, my] = plane.at(mean);
      marks.replaceChildren(
        svg("path", { d: `M${mx - 23} ${my}h46M${mx} ${my - 23}v46`, class: "mean" }),
        ...found.map((mode) => plane.dot(mode.at, { r: 8, class: "point" })),
      );
      plane.handles(rings, state.values, {
        name: (j) => `Value ${j + 1}`, shape: "ring", unit: (j) => j, radius: (j) => 12 + 18 * Math.sqrt(answer.weights[j]),
        on: (moved, unit) => changed({ values: moved, unit }), chosen: (unit) => unit !== state.unit && changed({ unit }),
      });
      names.replaceChildren(...state.values.map((value, j) => plane.text(value, String(j + 1), { dy: 6 })));
      plane.handles(starting, [state.start], { name: () => "The start of EM", shape: "dot", on: ([moved]) => changed({ start: moved }) });
      const counted = found.length === 1 ? "1 mode" : `${found.length} modes`;
      verdict.replaceChildren(plane.text([(plane.x[0] + plane.x[1]) / 2, plane.y[1]], counted, { dy: 28 }));
      plane.node.setAttribute("aria-label", `The plane of answers: mean at ${mean.map(short).join(", ")}; ${counted}, at ${found.map((mode) => mode.at.map(short).join(", ")).join("; ")}`);
      const higher = found[0].logDensity - logDensity(answer, mean);
      now(`Here the answer has ${counted}; ${higher < 1e-6 ? "the mean is the most likely answer" : `the log density of the most likely answer is ${short(higher)} nats above that of the mean`}.`);
      weight.label(`Attention to value ${state.unit + 1}, unnormalised`);
      weight.set(state.weights[state.unit]);
      controls.set(state);
      read.set({
        count: found.length, modes: found.map((mode) => mode.at).sort((a, b) => a[0] - b[0] || a[1] - b[1]), density: found.map((mode) => mode.logDensity).sort((a, b) => a - b),
        mean, atMean: logDensity(answer, mean), end: own.at(-1),
      });
    },
  };
}

export default {
  id: "mean-or-mode", title: "Mean or mode",
  sentence: "Attention's output is the mean of the answer's density, and it need not be a likely answer. Three equal units can even have four most likely answers.",
  suggestion: "move the standard deviation from 0.6 to 0.8: three modes, four, one. The mean never moves.",
  notebook: "03_map_transformer",
  own: { name: "values", most: 12, columns: ["x", "y", "weight"], ...listed("values", { weights: { at: 2, usual: 1 } }, "unit") },
  defaults, fields, mount, python,
};
