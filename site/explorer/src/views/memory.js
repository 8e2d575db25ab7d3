// View 7: attention as a memory. Retrieval steps downhill in an energy whose valleys are what is stored.

import { effectivePatterns, energy, landscape, path, restingPlaces, shares } from "../math/memory.js";
import { Plane, bars, blend, button, cents, choice, color, columns, figure, literal, node, panel, readout, slider, tensor } from "../ui.js";

const COLUMNS = 36;
const ROWS = 30;

const defaults = { patterns: [[1.6, 0.3], [1, 1.3], [-1.3, 1], [-0.5, -1.5]], start: [0.2, 0.5], beta: 2, transformation: "softmax", pattern: 0 };

function python(state) {
  return `import json

import torch
from probtx_pyro import models

torch.set_default_dtype(torch.float64)
memory = models.Hopfield(${tensor(state.patterns)}, ${literal(state.beta)}, transformation="${state.transformation}")
start = ${tensor([state.start])}
found = memory.settle(start, num_steps=20000, tol=1e-13)
print(json.dumps({
    "shares": memory.attention(start)[0].tolist(),
    "energy": memory.energy(start).item(),
    "end": found.state[0].tolist(),
    "energyAtEnd": memory.energy(found.state).item(),
    "effectivePatterns": memory.effective_patterns(found.state).item(),
}))
`;
}

function fromURL(own) {
  if ("transformation" in own && !["softmax", "entmax15", "sparsemax"].includes(own.transformation)) throw new Error(`no transformation ${own.transformation}`);
  if ("beta" in own && !(own.beta > 0)) throw new Error("beta is not positive");
  if ("patterns" in own && (own.patterns.length < 1 || own.patterns.length > 12 || own.patterns.some((x) => x.length !== 2))) throw new Error("patterns are 1 to 12 points of the plane");
  return own;
}

function mount(root, first, changed) {
  let state = first;
  const far = Math.max(2.2, ...first.patterns.flat().map((x) => Math.abs(x) + 0.3));
  const plane = new Plane({ x: [-far * 1.1, far * 1.1], y: [-far * 0.9, far * 0.9], label: "Patterns and the state", scale: 600 / (2.2 * far) });
  const shade = plane.shading(COLUMNS, ROWS);
  const [ways, marks, rings, starting] = ["paths", "marks", "patterns", "start"].map((name) => plane.layer(name));
  for (const layer of [ways, marks]) layer.setAttribute("pointer-events", "none");
  const rows = node("div");
  const weights = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  weights.setAttribute("role", "img");
  rows.append(weights);
  const read = readout({
    places: "resting places found", energy: "energy of the start", energyAtEnd: "energy where it rests", end: "the state it comes to", steps: "steps until there", effectivePatterns: "patterns averaged there", shares: "shares at the start",
  });
  const controls = panel("Controls", [
    slider({ name: "beta", label: "β, how sharply patterns are chosen", min: 0.2, max: 20, log: true, on: (beta) => changed({ beta }) }),
    choice("Map onto the simplex", { softmax: "softmax", entmax15: "1.5-entmax", sparsemax: "sparsemax" }, "transformation", (transformation) => changed({ transformation })),
    button("add", "Add a pattern", () => {
      const turn = 2.1 * state.patterns.length;
      if (state.patterns.length < 12) changed({ patterns: [...state.patterns, [cents(1.6 * Math.cos(turn)), cents(1.4 * Math.sin(turn))]], pattern: state.patterns.length });
    }),
    button("remove", "Remove the chosen pattern", () => state.patterns.length > 1 && changed({ patterns: state.patterns.filter((_, n) => n !== state.pattern), pattern: 0 })),
  ]);
  root.append(
    columns(
      [figure(plane.node, "Drag the state (the dot) and the patterns (rings). The line is its way: each step is attention. Filled dots are where retrieval rests; colour, the place that a start there comes to; dark, low energy.")],
      [figure(rows, "Shares of the patterns at the start."), controls.node, read.node],
    ),
  );

  return {
    update(next) {
      state = next;
      const { patterns, beta, transformation, start } = state;
      const way = path(patterns, beta, transformation, start, 20000, 1e-13);
      const end = way.at(-1);
      const places = restingPlaces(patterns, beta, transformation);
      const colors = places.map((place) => color(`--u${place.patterns[0] % 8}`));
      const [paper, ink] = [color("--paper"), color("--muted")];
      const cells = [];
      const cell = landscape(patterns, beta, transformation, places);
      let [least, most] = [Infinity, -Infinity];
      const [wide, high] = [(plane.x[1] - plane.x[0]) / COLUMNS, (plane.y[1] - plane.y[0]) / ROWS];
      for (let r = 0; r < ROWS; r++) {
        for (let c = 0; c < COLUMNS; c++) {
          const found = cell(plane.x[0] + (c + 0.5) * wide, plane.y[1] - (r + 0.5) * high);
          const value = found.energy;
          cells.push(found);
          if (value < least) least = value;
          if (value > most) most = value;
        }
      }
      shade((_, i) => {
        const { place, energy: own } = cells[i];
        return [...blend(paper, place < 0 ? ink : colors[place], 0.12 + 0.6 * (1 - Math.sqrt((own - least) / (most - least)))), 255];
      });
      ways.replaceChildren(plane.path(way, { class: "path", "stroke-width": 3 }), plane.dots(way.slice(1, 40), 3.5, { class: "dots" }));
      marks.replaceChildren(...places.map((place) => plane.dot(place.at, { r: 8, class: "point" })));
      plane.handles(rings, patterns, {
        name: (n) => `Pattern ${n + 1}`, shape: "ring", unit: (n) => n, radius: () => 15,
        on: (moved, pattern) => changed({ patterns: moved, pattern }), chosen: (pattern) => pattern !== state.pattern && changed({ pattern }),
      });
      plane.handles(starting, [start], { name: () => "The state", shape: "dot", on: ([moved]) => changed({ start: moved }) });
      const own = shares(patterns, beta, transformation, start);
      bars(weights, own.map((share, n) => [`pattern ${n + 1}`, share, n]));
      controls.set(state);
      read.set({
        places: places.length, energy: energy(patterns, beta, transformation, start), energyAtEnd: energy(patterns, beta, transformation, end), end,
        steps: way.length - 1, effectivePatterns: effectivePatterns(patterns, beta, transformation, end), shares: own,
      });
    },
  };
}

export default {
  id: "memory", title: "Attention as a memory",
  sentence: "With the patterns as keys and values, attention taken again and again walks downhill in an energy, until it rests in a pattern or in an average of near ones.",
  suggestion: "raise β until the two near patterns part into two resting places. Then choose sparsemax: patterns are retrieved exactly.",
  notebook: "08_log_normalizer_and_hopfield", defaults, fromURL, mount, python,
};
