// View 7: attention as a memory. Retrieval steps downhill in an energy whose valleys are what is stored.

import { effectivePatterns, energy, landscape, path, restingPlaces, shares } from "../math/memory.js";
import { oneOf, placeIn, point, points, range } from "../fields.js";
import { listed } from "../own.js";
import { later } from "../parts.js";
import { Plane, around, bars, blend, button, cents, choice, color, figure, layout, literal, panel, readout, short, slider, svg, tensor } from "../ui.js";

const [COARSE, FINE] = [[36, 30], [120, 100]]; // cells of the shading while something moves, and at rest

const defaults = { patterns: [[1.6, 0.3], [1, 1.3], [-1.3, 1], [-0.5, -1.5]], start: [0.2, 0.5], beta: 2, transformation: "softmax", pattern: 0 };

const fields = {
  patterns: points(1, 12), pattern: placeIn("patterns"), start: point, beta: range(0.2, 20, { log: true, least: 0.01, most: 1000 }),
  transformation: oneOf({ softmax: "softmax", entmax15: "1.5-entmax", sparsemax: "sparsemax" }),
};

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

function mount(root, first, changed, now, drop) {
  let state = first;
  const [wide, high] = around([...first.patterns, first.start], [-2.42, 2.42], [-1.98, 1.98]);
  const plane = new Plane({ x: wide, y: high, units: first.units, label: "Patterns and the state" });
  plane.onEmpty(drop);
  const [shadeCoarse, shadeFine] = [plane.shading(...COARSE), plane.shading(...FINE)];
  const [ways, marks, rings, names, starting] = ["paths", "marks", "patterns", "names", "start"].map((name) => plane.layer(name));
  for (const layer of [ways, marks, names]) layer.setAttribute("pointer-events", "none");
  const weights = svg("svg", { role: "img" });
  const read = readout({
    places: "resting places found", energy: "energy of the start", energyAtEnd: "energy where it rests", end: "the state it comes to", steps: "steps until there", effectivePatterns: "patterns averaged there", shares: "shares at the start",
  });
  const controls = panel("Controls", [
    slider({ name: "beta", label: "β, how sharply patterns are chosen", ...fields.beta, on: (beta) => changed({ beta }) }),
    choice("Map onto the simplex", fields.transformation.options, "transformation", (transformation) => changed({ transformation })),
    button("add", "Add a pattern", () => {
      const turn = 2.1 * state.patterns.length;
      if (state.patterns.length < 12) changed({ patterns: [...state.patterns, [cents(1.6 * Math.cos(turn)), cents(1.4 * Math.sin(turn))]], pattern: state.patterns.length });
    }),
    button("remove", "Remove the chosen pattern", () => state.patterns.length > 1 && changed({ patterns: state.patterns.filter((_, n) => n !== state.pattern), pattern: 0 })),
  ]);
  layout(root, {
    main: figure(plane.node, "Drag the state (the dot) and the patterns (rings). The line is its way: each step is attention. Filled dots are where retrieval rests; colour, the place that a start there comes to; dark, low energy."),
    controls, numbers: read, aspect: plane.aspect, others: [figure(weights, "Shares of the patterns at the start.")],
  });

  // colours of the resting places, darker where the energy is lower
  function landscapeOf({ patterns, beta, transformation }, places, shade, [columns, rows]) {
    const colors = places.map((place) => color(`--u${place.patterns[0] % 8}`));
    const [paper, ink] = [color("--paper"), color("--muted")];
    const cell = landscape(patterns, beta, transformation, places);
    const cells = [];
    let [least, most] = [Infinity, -Infinity];
    for (let r = 0; r < rows; r++) {
      for (let c = 0; c < columns; c++) {
        const found = cell(plane.x[0] + ((c + 0.5) * (plane.x[1] - plane.x[0])) / columns, plane.y[1] - ((r + 0.5) * (plane.y[1] - plane.y[0])) / rows);
        cells.push(found);
        least = Math.min(least, found.energy);
        most = Math.max(most, found.energy);
      }
    }
    shade((_, i) => {
      const { place, energy: own } = cells[i];
      return [...blend(paper, place < 0 ? ink : colors[place], 0.12 + 0.6 * (1 - Math.sqrt((own - least) / (most - least)))), 255];
    });
  }
  const refine = later((places) => {
    landscapeOf(state, places, shadeFine, FINE);
    shadeFine.image.removeAttribute("display");
  }, 250);

  return {
    update(next) {
      state = next;
      const { patterns, beta, transformation, start } = state;
      const way = path(patterns, beta, transformation, start, 20000, 1e-13);
      const end = way.at(-1);
      const places = restingPlaces(patterns, beta, transformation);
      landscapeOf(state, places, shadeCoarse, COARSE);
      shadeFine.image.setAttribute("display", "none");
      refine(places);
      ways.replaceChildren(plane.path(way, { class: "path", "stroke-width": 3 }), plane.dots(way.slice(1, 40), 3.5, { class: "dots" }));
      marks.replaceChildren(...places.map((place) => plane.dot(place.at, { r: 8, class: "point" })));
      plane.handles(rings, patterns, {
        name: (n) => `Pattern ${n + 1}`, shape: "ring", unit: (n) => n, radius: () => 15,
        on: (moved, pattern) => changed({ patterns: moved, pattern }), chosen: (pattern) => pattern !== state.pattern && changed({ pattern }),
      });
      names.replaceChildren(...patterns.map((pattern, n) => plane.text(pattern, String(n + 1), { dy: 6 })));
      plane.handles(starting, [start], { name: () => "The state", shape: "dot", on: ([moved]) => changed({ start: moved }) });
      const own = shares(patterns, beta, transformation, start);
      bars(weights, own.map((share, n) => [`pattern ${n + 1}`, share, n]));
      const averaged = effectivePatterns(patterns, beta, transformation, end);
      plane.node.setAttribute("aria-label", `Patterns and the state: it comes to ${end.map(short).join(", ")}; resting places at ${places.map((place) => place.at.map(short).join(", ")).join("; ")}`);
      now(`Here ${patterns.length} patterns have ${places.length} resting place${places.length === 1 ? "" : "s"}; the state comes, in ${way.length - 1} steps, to ${averaged < 1 + 1e-9 ? "a single pattern" : `an average of ${short(averaged)} patterns`}.`);
      controls.set(state);
      read.set({
        places: places.length, energy: energy(patterns, beta, transformation, start), energyAtEnd: energy(patterns, beta, transformation, end), end,
        steps: way.length - 1, effectivePatterns: averaged, shares: own,
      });
    },
    stop: refine.cancel,
  };
}

export default {
  id: "memory", title: "Attention as a memory",
  sentence: "With the patterns as keys and values, attention taken again and again walks downhill in an energy, until it rests in a pattern or in an average of near ones.",
  suggestion: "raise β until the two near patterns part into two resting places. Then choose sparsemax: patterns are retrieved exactly.",
  notebook: "09_log_normalizer_and_hopfield",
  own: { name: "patterns", most: 12, columns: ["x", "y"], ...listed("patterns", {}, "pattern") },
  defaults, fields, mount, python,
};
