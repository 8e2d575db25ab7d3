// View 4: from k-means to attention. Points ask, centres answer, γ says how sharply; below 1 / (2 λ) the centres are one.

import { anneal, assign, criticalGamma, em, emStep, freeEnergy, meanEntropy, meanOf, reconstruct, spread } from "../math/kmeans.js";
import { generator } from "../math/random.js";
import { orNull, placeIn, points as pointsField, range, seed } from "../fields.js";
import { Chart, Plane, around, blend, button, cents, color, figure, layout, literal, panel, readout, short, slider, tensor } from "../ui.js";

const MIDDLES = [[-1.5, 0.8], [1.4, 1], [0.3, -1.3]];
const GAMMAS = Array.from({ length: 37 }, (_, k) => 0.05 * 200 ** (k / 36));

const defaults = { seed: 1, points: null, centers: [[-1.51, 0.83], [1.37, 1.02], [0.28, -1.31]], gamma: 1, center: 0 };

const fields = { seed, points: orNull(pointsField(1, 100)), centers: pointsField(1, 12), center: placeIn("centers"), gamma: range(0.05, 10, { log: true, least: 1e-3, most: 1e3 }) };

// Forty points in three groups.
export function pointsOf(seed) {
  const random = generator(seed);
  return Array.from({ length: 40 }, (_, i) => MIDDLES[i % 3].map((x) => cents(x + 0.55 * random.normal())));
}

const pointsIn = (state) => state.points ?? pointsOf(state.seed);

function python(state) {
  return `import json

import torch
from probtx_pyro import models

torch.set_default_dtype(torch.float64)
points = ${tensor(pointsIn(state))}
clusters = models.SoftKMeans(${tensor(state.centers)}, ${literal(state.gamma)})
covariance = torch.cov(points.T, correction=0)
print(json.dumps({
    "freeEnergy": clusters.free_energy(points).mean().item(),
    "entropy": torch.special.entr(clusters.assign(points)).sum(-1).mean().item(),
    "critical": 1 / (2 * torch.linalg.eigvalsh(covariance)[-1].item()),
    "spread": (clusters.centers - clusters.centers.mean(0)).square().sum(-1).mean().sqrt().item(),
    "assigned": clusters.assign(points).sum(0).tolist(),
    "next": clusters.em(points, num_steps=1, tol=None).model.centers.tolist(),
}))
`;
}

function mount(root, first, changed, now, drop) {
  let state = first;
  let [settled, settledFor] = [[], ""];
  const [wide, high] = around([...pointsIn(first), ...first.centers], [-3, 3], [-2.6, 2.6]);
  const plane = new Plane({ x: wide, y: high, units: first.units, label: "Points and centres" });
  plane.onEmpty(drop);
  const shade = plane.shading(60, Math.round(60 / plane.aspect));
  const [arrows, dots, handles, names] = ["answers", "points", "centers", "names"].map((name) => plane.layer(name));
  for (const layer of [arrows, dots, names]) layer.setAttribute("pointer-events", "none");
  const chart = new Chart({ label: "Spread of the settled centres against gamma", xlabel: "γ", ylabel: "spread", log: true, width: 460, height: 230 });
  const read = readout({
    critical: "1 / (2 λ), λ the largest variance", spread: "spread of the centres", freeEnergy: "free energy a point", entropy: "entropy of attention, nats a point", assigned: "points that each centre has", next: "centres after one more step of EM",
  });
  const points = () => pointsIn(state);
  const keep = (centers) => centers.map((center) => center.map((x) => Number(x.toFixed(6))));
  const controls = panel("Controls", [
    slider({ name: "gamma", label: "γ, how sharply points choose", ...fields.gamma, on: (gamma) => changed({ gamma }) }),
    button("step", "One step of EM", () => changed({ centers: keep(emStep(state.centers, state.gamma, points())) })),
    button("settle", "Settle", () => changed({ centers: keep(em(state.centers, state.gamma, points(), 500, 1e-9)) })),
    button("add", "Add a centre", () => state.centers.length < 12 && changed({ centers: [...state.centers, points()[(7 * state.centers.length) % points().length]], center: state.centers.length })),
    button("remove", "Remove the chosen centre", () => state.centers.length > 1 && changed({ centers: state.centers.filter((_, j) => j !== state.center), center: 0 })),
    button("again", "Other points", () => changed({ seed: state.seed + 1, points: null, units: null })),
  ]);
  layout(root, {
    main: figure(plane.node, "Drag the centres (rings). Colour: which centre a point at that place would choose. Lines: from each point to attention's answer, the average of the centres."),
    controls, numbers: read, aspect: plane.aspect,
    others: [figure(chart.node, "Where centres settle as γ falls: apart above 1 / (2 λ) (dashed), all in one place below it. Line: γ now; dot: the centres now.")],
  });

  return {
    update(next) {
      state = next;
      const { centers, gamma } = state;
      const x = points();
      const colors = centers.map((_, j) => color(`--u${j % 8}`));
      const paper = color("--paper");
      shade(([px, py]) => {
        let least = Infinity;
        const apart = centers.map(([a, b]) => {
          const d = (px - a) ** 2 + (py - b) ** 2;
          if (d < least) least = d;
          return d;
        });
        let total = 0;
        const mixed = [0, 0, 0];
        for (let j = 0; j < apart.length; j++) {
          const w = Math.exp(-gamma * (apart[j] - least));
          total += w;
          for (let k = 0; k < 3; k++) mixed[k] += w * colors[j][k];
        }
        return [...blend(paper, mixed.map((z) => z / total), 0.5), 255];
      });
      arrows.replaceChildren(plane.lines(x.map((point) => [point, reconstruct(centers, gamma, point)]), { class: "path", "stroke-width": 1 }));
      dots.replaceChildren(plane.dots(x, 4.5, { class: "dots" }));
      plane.handles(handles, centers, {
        name: (j) => `Centre ${j + 1}`, shape: "ring", unit: (j) => j, radius: () => 15,
        on: (moved, center) => changed({ centers: moved, center }), chosen: (center) => center !== state.center && changed({ center }),
      });

      names.replaceChildren(...centers.map((center, j) => plane.text(center, String(j + 1), { dy: 6 })));

      const critical = criticalGamma(x);
      const problem = JSON.stringify([x, centers.length]);
      if (settledFor !== problem) {
        settled = anneal(x, centers.length, GAMMAS);
        settledFor = problem;
      }
      const own = spread(centers);
      chart.range([0.05, 10], [0, 1.1 * Math.max(own, ...settled.map((p) => p[1]))]);
      chart.draw(chart.line(settled), chart.upright(critical, { class: "rule dashed" }), chart.upright(gamma, { class: "mean" }), chart.dot([gamma, own]));
      now(`Here γ = ${short(gamma)} is ${gamma > critical ? "above" : "below"} 1 / (2 λ) = ${short(critical)}, where settled centres are ${gamma > critical ? "apart" : "one"}; the spread of the centres is ${short(own)}.`);
      chart.node.setAttribute("aria-label", `Spread of the settled centres against gamma: none below ${short(critical)}, at most ${short(Math.max(...settled.map((p) => p[1])))}; now gamma ${short(gamma)}, spread ${short(own)}`);
      controls.set(state);
      const shares = x.map((point) => assign(centers, gamma, point));
      read.set({
        critical, spread: own, freeEnergy: meanOf(x.map((point) => [freeEnergy(centers, gamma, point)]))[0], entropy: meanEntropy(centers, gamma, x),
        assigned: centers.map((_, j) => shares.reduce((sum, p) => sum + p[j], 0)), next: emStep(centers, gamma, x),
      });
    },
  };
}

export default {
  id: "soft-kmeans", title: "From k-means to attention",
  sentence: "Let points choose among centres softly, and k-means becomes attention whose keys and values are the centres. How softly decides whether there are clusters at all.",
  suggestion: "move γ below the dashed line and press “Settle”: all centres meet at the mean of the points.",
  notebook: "02_from_k_means_to_attention",
  own: { name: "points", most: 100, columns: ["x", "y"], rows: pointsIn, put: (_, rows) => ({ points: rows }) },
  defaults, fields, mount, python,
};
