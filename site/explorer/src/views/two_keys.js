// View 11: two keys a unit. Unit A has two keys and may own what no single key can: places on both sides of another unit.

import { attentionField, explainByKeys, territory } from "../math/keys.js";
import { oneOf, point, points, range } from "../fields.js";
import { Plane, around, bars, blend, button, choice, color, figure, layout, panel, readout, short, slider, svg, tensor, unitClass } from "../ui.js";

const [X, Y] = [[-3.5, 3.5], [-2.9, 2.9]];
const [COLUMNS, ROWS] = [57, 47]; // places of the window where owners are compared
const NAMES = ["A1", "A2", "B", "C"];
const OWNER = [0, 0, 1, 2];

const defaults = { keys: [[-2, 0], [2, 0], [0.3, 0.7], [0, -2]], query: [0.2, -0.5], weight: 0.5, precision: 1.5, assignment: "soft" };

const fields = {
  keys: points(4, 4), query: point, weight: range(0, 1), precision: range(0.3, 20, { log: true, least: 1e-3, most: 1e4 }),
  assignment: oneOf({ soft: "sum over both", hard: "only the likelier" }),
};

export function keysOf({ keys: [a, second, b, c], weight, precision, assignment }) {
  return { keys: [[a, second], [b, b], [c, c]], weights: [[1 - weight, weight], [1, 0], [1, 0]], precision, hard: assignment === "hard" };
}

function python(state) {
  const { keys, weights } = keysOf(state);
  return `import json

import torch
from probtx_pyro import models

torch.set_default_dtype(torch.float64)
query = ${tensor([state.query])}
keys = ${tensor(keys)}  # unit, key of the unit, feature
model = models.GaussianKeys(keys, key_precision=${state.precision}, component_weights=${tensor(weights)})

# which places of the window A owns, and of how many pairs of them it does not own the midpoint
places = torch.cartesian_prod(torch.linspace(${Y}, ${ROWS}), torch.linspace(${X}, ${COLUMNS})).flip(-1)
shares = model.attention(places, assignment="${state.assignment}")
mine = (shares[:, 0] == shares.max(-1).values).view(${ROWS}, ${COLUMNS})
own = mine[::2, ::2].nonzero()
first, second = torch.triu_indices(len(own), len(own), 1)
row, column = (own[first] + own[second]).T
print(json.dumps({
    "attention": model.attention(query, assignment="${state.assignment}")[0].tolist(),
    "responsibilities": model.responsibilities(query)[0].tolist(),
    "logEvidence": model.log_evidence(query).item(),
    "hardEvidence": model.log_evidence(query, assignment="hard").item(),
    "owned": mine.double().mean().item(),
    "lost": (~mine[row, column]).double().mean().item() if len(own) > 1 else 0.0,
}))
`;
}

function mount(root, first, changed, now) {
  let state = first;
  const [x, y] = around([...first.keys, first.query], X, Y);
  const plane = new Plane({ x, y, label: "The plane of queries and keys" });
  const shade = plane.shading(120, Math.round(120 / plane.aspect));
  const [links, rings, names, asking] = ["links", "keys", "names", "query"].map((name) => plane.layer(name));
  for (const layer of [links, names]) layer.setAttribute("pointer-events", "none");
  const weights = svg("svg", { role: "img" });
  const gap = svg("svg", { role: "img", viewBox: "0 0 340 62" });
  const read = readout({
    attention: "attention to A, B, C", responsibilities: "p(unit, key | query)", logEvidence: "log evidence of the query, nats", hardEvidence: "the same with the likelier key of A only",
    owned: "share of the window that A owns", pieces: "in so many pieces", lost: "midpoints of pairs of its places that A does not own",
  });
  const controls = panel("Controls", [
    slider({ name: "weight", label: "Weight of A's second key", ...fields.weight, on: (weight) => changed({ weight }) }),
    slider({ name: "precision", label: "Precision of keys, α", ...fields.precision, on: (precision) => changed({ precision }) }),
    choice("Keys of a unit", fields.assignment.options, "assignment", (assignment) => changed({ assignment })),
    button("together", "A's keys in one place", () => changed({ keys: state.keys.map((key, k) => (k === 1 ? state.keys[0] : key)) })),
  ]);
  layout(root, {
    main: figure(plane.node, "Drag the keys (rings; A has two) and the query (the dot). Colour: the unit with the largest attention there, strong where it is sure. Lines: the probability of each key."),
    controls, numbers: read, aspect: plane.aspect,
    others: [
      figure(weights, "Attention to the units, and which key of A."),
      figure(gap, "What the evidence loses, in nats, where only the likelier key of each unit counts: log 2 at most."),
    ],
  });

  return {
    update(next) {
      state = next;
      const problem = keysOf(state);
      const { attention, responsibilities, logEvidence, hardEvidence } = explainByKeys(problem, state.query);
      const { share, pieces, lost } = territory(problem, X, Y, COLUMNS, ROWS);
      const colors = [0, 1, 2].map((j) => color(`--u${j}`));
      const paper = color("--paper");
      const field = attentionField(problem);
      shade((place) => {
        const shares = field(place);
        const top = shares[0] >= shares[1] ? (shares[0] >= shares[2] ? 0 : 2) : shares[1] >= shares[2] ? 1 : 2;
        return [...blend(paper, colors[top], 0.7 * Math.max(0.3, (3 * shares[top] - 1) / 2)), 255];
      });

      const each = [...responsibilities[0], responsibilities[1][0], responsibilities[2][0]];
      links.replaceChildren(...state.keys.map((key, k) => plane.path([state.query, key], { class: `link ${unitClass(OWNER[k])}`, "stroke-width": (14 * each[k]).toFixed(2), "stroke-linecap": "round" })));
      plane.handles(rings, state.keys, {
        name: (k) => `Key ${NAMES[k]}`, shape: "ring", unit: (k) => OWNER[k], radius: (k) => (k > 1 ? 24 : 8 + 22 * Math.sqrt(problem.weights[0][k])), on: (keys) => changed({ keys }),
      });
      names.replaceChildren(...state.keys.map((key, k) => plane.text(key, NAMES[k], { dy: 6 })));
      plane.handles(asking, [state.query], { name: () => "The query", shape: "dot", on: ([query]) => changed({ query }) });

      bars(weights, [["A", attention[0], 0], ["A, key 1", each[0], 0], ["A, key 2", each[1], 0], ["B", attention[1], 1], ["C", attention[2], 2]]);
      const most = Math.log(2);
      const lacking = Math.max(0, logEvidence - hardEvidence);
      gap.replaceChildren(
        svg("rect", { x: 2, y: 22, width: ((336 * lacking) / most).toFixed(2), height: 18, class: "bar unit-5" }), svg("rect", { x: 2, y: 22, width: 336, height: 18, class: "axis" }),
        svg("text", { x: 2, y: 14 }, short(lacking)), svg("text", { x: 338, y: 58, "text-anchor": "end", class: "tick" }, "log 2"),
      );
      gap.setAttribute("aria-label", `Evidence lost by the likelier key alone: ${short(lacking)} nats of at most ${short(most)}`);
      const region = pieces === 0 ? "owns nothing here" : `owns ${(100 * share).toFixed(0)} % of the window in ${pieces === 1 ? "one piece" : `${pieces} pieces`}`;
      now(`Here A ${region}${pieces ? `; ${lost ? `for ${(100 * lost).toFixed(0)} % of the pairs of its places` : "for no pair of its places"} another unit owns the midpoint` : ""}. The query is A's with probability ${attention[0].toFixed(2)}.`);
      controls.set(state);
      read.set({ attention, responsibilities, logEvidence, hardEvidence, owned: share, pieces, lost });
    },
  };
}

export default {
  id: "two-keys", title: "Two keys a unit",
  sentence: "With one key a unit and one precision, every unit owns a convex region. The queries of a unit with two keys come from either, and it may own both sides of another.",
  suggestion: "drag A2 over to A1: its two pieces grow together. Then take the weight of the second key to 0: one key, a convex region.",
  notebook: "10_mixture_of_gaussian_keys", defaults, fields, mount, python,
};
