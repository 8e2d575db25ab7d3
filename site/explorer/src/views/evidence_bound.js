// View 3: ELBO = log evidence − KL. A guide is a point of the triangle of three probabilities.

import { CORNERS, divergence, elbo, placeOf, sharesAt } from "../math/bound.js";
import { logJoint, logSoftmax, logSumExp, softmax } from "../math/mixture.js";
import { numbersOf, point, points, range, shares } from "../fields.js";
import { Plane, around, bars, blend, button, color, figure, layout, literal, node, panel, readout, short, slider, svg, tensor, unitClass } from "../ui.js";

const [X, Y] = [[-0.12, 1.12], [-0.12, 1]];
const WORST = 2.5; // nats under the top, the end of the shading

const defaults = { keys: [[-1.4, -0.8], [1.4, -0.8], [0, 1.5]], query: [0.5, 0.3], precision: 1, weights: [1, 1, 1], guide: [0.6, 0.2, 0.2] };

const fields = {
  keys: points(3, 3), query: point, guide: shares(3), weights: numbersOf("keys", 1e-12, 1e12), precision: range(0.05, 10, { log: true, least: 1e-3, most: 1e4 }),
};

// log p(query, unit=j) of a state.
export function joint(state) {
  return logJoint({ keys: state.keys, precision: state.precision, logPrior: logSoftmax(state.weights.map(Math.log)) }, state.query);
}

function python(state) {
  return `import json
from functools import partial

import torch
from probtx_pyro import models
from pyro.infer import TraceEnum_ELBO

torch.set_default_dtype(torch.float64)
query = ${tensor([state.query])}
mixture = models.GaussianMixture(${tensor(state.keys)}, None, ${state.precision}, log_prior=torch.tensor([${literal(state.weights)}]).log().log_softmax(-1))
guide = ${tensor([state.guide])}
elbo = -TraceEnum_ELBO(max_plate_nesting=1).loss(mixture.model, partial(mixture.guide, attention=guide), query)
log_attention = mixture.log_joint(query) - mixture.log_evidence(query)
print(json.dumps({
    "elbo": elbo,
    "logEvidence": mixture.log_evidence(query).item(),
    "divergence": (torch.special.xlogy(guide, guide) - guide * log_attention).sum().item(),
    "attention": mixture.attention(query)[0].tolist(),
}))
`;
}

function mount(root, first, changed, now) {
  let state = first;
  const plane = new Plane({ x: X, y: Y, label: "Guides: the triangle of three probabilities", ticks: false });
  const shade = plane.shading(70, 64);
  const corners = CORNERS.map((corner) => plane.at(corner).join(",")).join(" ");
  plane.node.append(svg("clipPath", { id: "triangle" }, svg("polygon", { points: corners })));
  shade.image.setAttribute("clip-path", "url(#triangle)");
  const [edges, best, own] = ["edges", "best", "guide"].map((name) => plane.layer(name));
  for (const layer of [edges, best]) layer.setAttribute("pointer-events", "none");
  const snapped = (place) => {
    const shares = sharesAt(place).map((x) => Math.round(x * 1000));
    shares[shares.indexOf(Math.max(...shares))] += 1000 - shares[0] - shares[1] - shares[2];
    return shares.map((x) => x / 1000);
  };
  plane.onEmpty((point) => changed({ guide: snapped(point) }));
  plane.clamp = ([x, y]) => [Math.min(X[1], Math.max(X[0], x)), Math.min(Y[1], Math.max(Y[0], y))]; // finer than hundredths: shares are
  const [across, up] = around([...first.keys, first.query], [-3, 3], [-2.2, 2.4]);
  const asked = new Plane({ x: across, y: up, label: "The plane of the query and the three keys" });
  const [links, rings, names, asking] = ["links", "keys", "names", "query"].map((name) => asked.layer(name));
  for (const layer of [links, names]) layer.setAttribute("pointer-events", "none");
  const scale = svg("svg", { role: "img", viewBox: "0 0 420 132" });
  const rows = svg("svg", { role: "img" });
  const read = readout({ elbo: "ELBO, nats", divergence: "KL(guide | attention), nats", sum: "their sum", logEvidence: "log evidence, nats", attention: "attention", guide: "guide" });
  const weight = slider({ name: "weight", label: "Prior weight of unit 1", min: 0.05, max: 20, log: true, on: (w) => changed({ weights: [w, ...state.weights.slice(1)] }) });
  const share = slider({
    name: "share", label: "Share of unit 1 in the guide", min: 0, max: 1, step: 0.001,
    on: (x) => {
      const [, b, c] = state.guide;
      const rest = b + c > 0 ? [b / (b + c), c / (b + c)] : [0.5, 0.5];
      changed({ guide: [x, (1 - x) * rest[0], (1 - x) * rest[1]] });
    },
  });
  const precision = slider({ name: "precision", label: "Precision of keys, α", ...fields.precision, on: (x) => changed({ precision: x }) });
  const controls = panel("Controls", [
    share, precision, weight,
    button("exact", "Guide = attention", () => changed({ guide: softmax(joint(state)) })),
    button("equal", "Equal shares", () => changed({ guide: [1 / 3, 1 / 3, 1 / 3] })),
  ]);
  layout(root, {
    main: figure(plane.node, "Drag the dot, the guide. A corner puts all on one unit; the star is attention. Shading: the ELBO, light where it is lower by 2.5 nats or more."),
    controls, numbers: read, aspect: plane.aspect,
    others: [
      figure(asked.node, "Drag the query (the dot) and the keys (rings): attention, the star, follows. Lines: attention."),
      node("div", {}, figure(scale, "The ELBO, and the gap under the log evidence: KL."), figure(rows, "The guide, and attention.")),
    ],
  });
  const star = (at, r) => {
    const [x, y] = plane.at(at);
    const points = Array.from({ length: 10 }, (_, k) => {
      const [turn, size] = [(Math.PI * k) / 5 - Math.PI / 2, k % 2 ? 0.45 * r : r];
      return `${(x + size * Math.cos(turn)).toFixed(1)},${(y + size * Math.sin(turn)).toFixed(1)}`;
    });
    return svg("polygon", { points: points.join(" "), class: "point" });
  };

  return {
    update(next) {
      state = next;
      const terms = joint(state);
      const evidence = logSumExp(terms);
      const posterior = softmax(terms);
      const logs = logSoftmax(terms);
      const bound = elbo(terms, state.guide);
      const gap = divergence(state.guide, logs);
      const [low, high] = [color("--low"), color("--high")];
      const empty = [0, 0, 0, 0];
      shade(([x, y]) => {
        const third = y / (Math.sqrt(3) / 2);
        const inside = [1 - x - 0.5 * third, x - 0.5 * third, third];
        if (inside.some((z) => z < -0.05)) return empty;
        const lost = evidence - elbo(terms, inside.map((z) => Math.max(0, z)));
        return [...blend(low, high, 0.75 * Math.max(0, 1 - lost / WORST)), 255];
      });
      edges.replaceChildren(
        plane.path([...CORNERS, CORNERS[0]], { class: "rule" }),
        ...CORNERS.map((corner, j) => plane.text(corner, `unit ${j + 1}`, { dy: j === 2 ? -12 : 28 })),
      );
      best.replaceChildren(star(placeOf(posterior), 17));
      plane.handles(own, [placeOf(state.guide)], { name: () => `The guide, shares ${state.guide.map((x) => x.toFixed(3)).join(", ")},`, shape: "dot", step: 0.02, on: ([moved]) => changed({ guide: snapped(moved) }) });

      links.replaceChildren(...state.keys.map((key, j) => asked.path([state.query, key], { class: `link ${unitClass(j)}`, "stroke-width": (14 * posterior[j]).toFixed(2), "stroke-linecap": "round" })));
      asked.handles(rings, state.keys, { name: (j) => `Key ${j + 1}`, shape: "ring", unit: (j) => j, radius: () => 20, on: (keys) => changed({ keys }) });
      names.replaceChildren(...state.keys.map((key, j) => asked.text(key, String(j + 1), { dy: 7 })));
      asked.handles(asking, [state.query], { name: () => "The query", shape: "dot", on: ([query]) => changed({ query }) });

      const [left, width] = [14, 392];
      const at = (nats) => left + width * Math.max(0, Math.min(1, 1 - (evidence - nats) / WORST));
      scale.replaceChildren(
        svg("rect", { x: left, y: 38, width: (at(bound) - left).toFixed(2), height: 26, class: "bar unit-0" }),
        svg("rect", { x: at(bound).toFixed(2), y: 38, width: (at(evidence) - at(bound)).toFixed(2), height: 26, class: "bar unit-1" }),
        svg("path", { d: `M${at(evidence)} 26V96`, class: "rule" }),
        svg("text", { x: at(evidence), y: 18, "text-anchor": "end" }, `log evidence ${short(evidence)}`),
        svg("text", { x: left, y: 86 }, `ELBO ${short(bound)}`),
        svg("text", { x: at(evidence) - 8, y: 86, "text-anchor": "end" }, `KL ${short(gap)}`),
        svg("text", { x: left, y: 124, class: "tick" }, "nats; 2.5 from end to end"),
      );
      scale.setAttribute("aria-label", `ELBO ${short(bound)}, KL ${short(gap)}, log evidence ${short(evidence)}`);
      bars(rows, [0, 1, 2].flatMap((j) => [[`guide, ${j + 1}`, state.guide[j], j], [`attention, ${j + 1}`, posterior[j], null]]), { high: 18 });
      weight.set(state.weights[0]);
      share.set(state.guide[0]);
      controls.set(state);
      now(`Here the ELBO is ${short(bound)} nats and the log evidence ${short(evidence)}; ${Math.abs(gap) < 1e-9 ? "the guide is attention, and nothing is lost" : `the gap, ${short(gap)} nats, is KL(guide | attention)`}.`);
      read.set({ elbo: bound, divergence: gap, sum: bound + gap, logEvidence: evidence, attention: posterior, guide: state.guide });
    },
  };
}

export default {
  id: "evidence-bound", title: "ELBO = log evidence − KL",
  sentence: "Any probabilities over the units, a guide, bound the log evidence from below. The gap is their divergence from attention, so attention is the best guide there is.",
  suggestion: "drag the guide onto the star: the gap closes. Then move the query, and it opens again.",
  notebook: "00_mixtures_in_twenty_lines", defaults, fields, mount, python,
};
