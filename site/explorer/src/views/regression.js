// View 10: a memory is a regression. Pairs of a key and a value are read one after another; four memories answer a query.

import { ellipse, summary } from "../math/regression.js";
import { dot } from "../math/mixture.js";
import { numbersOf, oneOf, orNull, placeIn, point, points, range, whole, yesNo } from "../fields.js";
import { Plane, button, cents, check, choice, figure, layout, literal, nice, node, panel, readout, slider, svg, tensor, unitClass } from "../ui.js";

const MOST = 8;
const BAND = 1.6448536269514722; // of 90 %, in standard deviations
const LAYERS = { exact: "exact posterior", linear: "linear attention", delta: "delta rule", kalman: "Kalman delta network" };
const DRIFTS = { static: "none", discount: "discount by γ", pullback: "pull back by γ" };
const KALMAN = { diagonal: "two variances", isotropic: "one variance" };
const fields = {
  keys: points(0, MOST), values: numbersOf("keys"), truth: orNull(point), query: point, read: whole(0, MOST), pair: placeIn("keys"), unit: yesNo, drift: oneOf(DRIFTS), kalman: oneOf(KALMAN),
  prior: range(0.001, 1000, { log: true }), noise: range(0.01, 10000, { log: true }), forgetting: range(0.3, 1), step: range(0, 1.5),
};

const defaults = {
  keys: [[0.91, 0.41], [0.67, 0.74], [-0.5, 0.87], [0.97, -0.26]], values: [1.236, 1.034, 0.102, 0.734],
  truth: [1, 0.6], query: [0.81, 0.59], prior: 1, noise: 20, drift: "static", forgetting: 0.9, step: 0.7, kalman: "diagonal", read: 2, unit: true, pair: 0,
};

function python(state) {
  const { prior, noise, drift, read } = state;
  const gamma = drift === "static" ? "1.0" : literal(state.forgetting);
  const made = { static: "models.Static()", discount: `models.Discount(${gamma})`, pullback: `models.PullBack(${gamma})` }[drift];
  const pairs = (list, shape) => (read ? tensor(list.slice(0, read)) : `torch.zeros(0, ${shape})`);
  return `import json

import torch
from probtx_pyro import models

torch.set_default_dtype(torch.float64)
keys = ${pairs(state.keys, 2)}
values = ${pairs(state.values.map((v) => [v]), 1)}
query = ${tensor([state.query])}
prior, noise = ${literal(prior)}, ${literal(noise)}
memory = models.RegressionMemory(prior, noise, ${made})
answering = {
    "exact": memory,
    "linear": models.layers.linear(noise / (prior + noise), ${gamma}, noise),
    "delta": models.layers.delta(${literal(state.step)}, ${gamma}, noise),
    "kalman": models.layers.kalman(prior, noise, ${gamma}, diagonal=${state.kalman === "diagonal" ? "True" : "False"}),
}

state = memory.filter(keys, values)
stream = torch.cat([keys, query]), torch.cat([values, torch.zeros(1, 1)])  # the query is the next key; its value is not read
printed = {"memory": state.mean[0].tolist(), "covariance": state.covariance.tolist()}
printed["attention"] = memory.attention(query, keys, causal=False)[0].tolist()
for name, layer in answering.items():
    try:
        said = layer.predictive(*stream)
    except ValueError:  # a step of 1 / |key|² or more has no density
        said = layer.predictive(*stream, density="constant", variance=1.0)
        printed[name] = [said.mean[-1].item()]
        continue
    printed[name] = [said.mean[-1].item(), said.stddev[-1].item()]
    printed[name + "Evidence"] = layer.log_evidence(*stream)[:${read}].sum().item()
print(json.dumps(printed))
`;
}

const rows = (state) => state.keys.map((key, s) => [...key, state.values[s]]);

// One more pair has the value that the true memory gives it; of values from elsewhere the true memory is not known.
function put(state, rows) {
  const keys = rows.map(([x, y]) => [x, y]);
  const values = rows.map(([, , value], s) => value ?? state.values[s] ?? Math.round(1e4 * dot(state.truth ?? [0, 0], keys[s])) / 1e4);
  const known = values.slice(0, state.values.length).every((value, s) => value === state.values[s]);
  return { keys, values, truth: known ? state.truth : null, unit: false, pair: keys.length - 1, read: keys.length };
}

function fromURL(own) {
  const count = (own.keys ?? defaults.keys).length;
  const read = "read" in own ? own.read : Math.min(defaults.read, count);
  if (read > count) throw new Error(`read is ${read} and there are ${count} pairs`);
  return { ...own, read };
}

// Rows of layers: mean and band of each, the truth as an upright line through all.
function bands(picture, rows, truth) {
  const [left, width, high] = [8, 444, 32];
  const bottom = rows.length * high + 4;
  const ends = rows.flatMap(({ mean, sd }) => [mean - BAND * (sd ?? 0), mean + BAND * (sd ?? 0)]).concat(truth ?? []);
  const [least, most] = [Math.min(...ends), Math.max(...ends)];
  const room = 0.04 * (most - least) || 1;
  const [low, range] = [least - room, most - least + 2 * room];
  const at = (x) => (left + (width * (x - low)) / range).toFixed(2);
  picture.setAttribute("viewBox", `0 0 460 ${bottom + 20}`);
  const parts = nice(low, low + range, 6).flatMap((x) => [
    svg("path", { d: `M${at(x)} 2V${bottom}`, class: "grid" }), svg("text", { x: at(x), y: bottom + 15, "text-anchor": "middle", class: "tick" }, Math.abs(x) < 1e5 ? String(x) : fixed(x)),
  ]);
  if (truth !== null) parts.push(svg("path", { d: `M${at(truth)} 0V${bottom}`, class: "mean dashed" }));
  rows.forEach(({ name, mean, sd }, r) => {
    const y = r * high + 24;
    parts.push(svg("text", { x: left, y: y - 8, class: "said" }, `${name}: ${said({ mean, sd })}`));
    if (sd !== null) parts.push(svg("path", { d: `M${at(mean - BAND * sd)} ${y}H${at(mean + BAND * sd)}`, class: `span ${unitClass(r)}` }));
    parts.push(svg("circle", { cx: at(mean), cy: y, r: 5, class: `fill ${unitClass(r)}` }));
  });
  picture.replaceChildren(...parts);
}

const fixed = (x) => (x === 0 ? "0" : Math.abs(x) >= 1000 || Math.abs(x) < 0.01 ? x.toExponential(1) : x.toFixed(Math.abs(x) >= 10 ? 1 : 2)).replace("-", "−");
const said = ({ mean, sd }) => (sd === null ? `${fixed(mean)}, no band` : `${fixed(mean)} ± ${fixed(BAND * sd)}`);

// Signed weights of the values as bars about 0; a dashed line marks linear attention's.
function signed(picture, weights, others) {
  const [width, middle, reach] = [460, 41, 23];
  const most = Math.max(0.1, ...[...weights, ...others].map(Math.abs));
  const wide = width / MOST;
  const y = (x) => middle - (reach * x) / most;
  const parts = [svg("path", { d: `M0 ${middle}h${width}`, class: "axis" })];
  weights.forEach((x, s) => {
    const from = s * wide;
    parts.push(
      svg("rect", { x: from + 9, y: Math.min(y(x), middle).toFixed(2), width: wide - 18, height: Math.abs(y(x) - middle).toFixed(2), class: x < 0 ? "fill unit-5" : "fill unit-0" }),
      svg("path", { d: `M${from + 4} ${y(others[s]).toFixed(2)}h${wide - 8}`, class: "rule dashed" }),
      svg("text", { x: from + wide / 2, y: x < 0 ? middle - 5 : middle + 15, "text-anchor": "middle", class: "said" }, fixed(x)),
      svg("text", { x: from + wide / 2, y: 12, "text-anchor": "middle" }, `pair ${s + 1}`),
    );
  });
  if (!weights.length) parts.push(svg("text", { x: 4, y: middle - 8 }, "nothing has been read"));
  picture.setAttribute("viewBox", `0 0 ${width} ${middle + reach + 4}`);
  picture.replaceChildren(...parts);
  picture.setAttribute("aria-label", `Weights of the values in the exact answer: ${weights.map((x, s) => `pair ${s + 1} ${fixed(x)}`).join(", ") || "none"}`);
}

// Two sentences about the state, true in every state: they say what the numbers are.
function verdict(state, { layers, before }, truth) {
  const outside = Object.keys(LAYERS).filter((name) => layers[name].sd !== null && Math.abs(layers[name].mean - truth) > BAND * layers[name].sd);
  const listed = outside.map((name) => (name === "exact" ? "the exact posterior" : name === "linear" ? LAYERS[name] : `the ${LAYERS[name]}`)).join(", ").replace(/, ([^,]*)$/, " and $1");
  const first = truth === null ? "" : outside.length ? `The truth, ${fixed(truth)}, is outside the band${outside.length > 1 ? "s" : ""} of ${listed}. ` : `The truth, ${fixed(truth)}, is inside every band. `;
  const pairs = state.read === 1 ? "one pair" : `${state.read} pairs`;
  const exact = state.read ? `the exact band was ±${fixed(BAND * before)} before the first pair and is ±${fixed(BAND * layers.exact.sd)} after ${pairs}` : `nothing has been read, and the exact band is the prior's, ±${fixed(BAND * layers.exact.sd)}`;
  const delta = layers.delta.sd === null ? "the delta rule has no density at this step" : `the delta rule's is ±${fixed(BAND * layers.delta.sd)}, whatever it reads`;
  return `${first}${exact[0].toUpperCase()}${exact.slice(1)}; ${delta}.`;
}

function mount(root, first, changed, now, drop) {
  let state = first;
  const far = (list, least) => Math.ceil(Math.max(least, ...list.flat().map((x) => 1.15 * Math.abs(x))) * 10) / 10;
  const [near, wide] = [far([...first.keys, first.query], 1.4), far([first.truth ?? summary(first).memory], 2.4)];
  const ofKeys = new Plane({ x: [-near, near], y: [-near, near], label: "The plane of keys", width: 320, ticks: false });
  const ofMemory = new Plane({ x: [-wide, wide], y: [-wide, wide], label: "The plane of the memory", width: 320, ticks: false });
  ofKeys.onEmpty(drop);
  const [arrows, rings, names, asking] = ["arrows", "keys", "names", "query"].map((name) => ofKeys.layer(name));
  const [told, truths, letters] = ["told", "truth", "letters"].map((name) => ofMemory.layer(name));
  for (const layer of [arrows, names, told, letters]) layer.setAttribute("pointer-events", "none");
  const [answers, row] = [svg("svg", { role: "img" }), svg("svg", { role: "img" })];
  const read = readout({
    exact: "exact posterior: mean, standard deviation", linear: LAYERS.linear, delta: LAYERS.delta, kalman: LAYERS.kalman, truth: "true value",
    memory: "the memory w: posterior mean", covariance: "its covariance", attention: "weights of the values, exact", linearAttention: "the same, linear attention",
    exactEvidence: "log density of the values read, nats: exact", linearEvidence: LAYERS.linear, deltaEvidence: LAYERS.delta, kalmanEvidence: LAYERS.kalman,
  });

  // A pair keeps the error of its value when its key or the truth moves: products of hundredths have four decimals.
  const follow = (keys, truth) => (state.truth === null ? state.values : state.values.map((v, s) => Math.round(1e4 * (v + dot(truth, keys[s]) - dot(state.truth, state.keys[s]))) / 1e4));
  const onCircle = (key) => {
    const length = Math.hypot(...key);
    return length > 0 ? key.map((x) => cents(x / length)) : [1, 0];
  };
  const moved = (keys, pair) => {
    const own = state.unit ? keys.map((key, s) => (s === pair ? onCircle(key) : key)) : keys;
    changed({ keys: own, values: follow(own, state.truth ?? [0, 0]), pair });
  };
  const value = slider({ name: "value", label: "", min: -3, max: 3, step: 0.01, on: (v) => changed({ values: state.values.map((w, s) => (s === state.pair ? v : w)) }) });
  const steps = slider({ name: "read", label: "Pairs read", ...fields.read, on: (count) => changed({ read: Math.min(count, state.keys.length) }) });
  const ranged = (name, label) => slider({ name, label, ...fields[name], on: (x) => changed({ [name]: x }) });
  const controls = panel("Controls", [
    steps, value, ranged("prior", "Prior λ"), ranged("noise", "Noise β"),
    ranged("forgetting", "Forgetting γ"), ranged("step", "Step b of delta"),
    choice("Drift:", DRIFTS, "drift", (drift) => changed({ drift })),
    choice("Kalman:", KALMAN, "kalman", (kalman) => changed({ kalman })),
    check("unit", "Keys of length 1", (unit) => {
      const keys = unit ? state.keys.map(onCircle) : state.keys;
      changed({ unit, keys, values: follow(keys, state.truth ?? [0, 0]) });
    }),
    button("next", "Read the next pair", () => changed({ read: state.read < state.keys.length ? state.read + 1 : 0 })),
    button("add", "Add a pair", () => {
      const count = state.keys.length;
      const key = [cents(Math.cos(1 + 2.4 * count)), cents(Math.sin(1 + 2.4 * count))];
      if (count < MOST) changed({ keys: [...state.keys, key], values: [...state.values, cents(dot(state.truth ?? [0, 0], key) + 0.1 * (-1) ** count)], pair: count, read: count + 1 });
    }),
    button("remove", "Remove the chosen pair", () => {
      const without = (list) => list.filter((_, s) => s !== state.pair);
      if (state.keys.length) changed({ keys: without(state.keys), values: without(state.values), read: state.read - (state.pair < state.read), pair: 0 });
    }),
  ]);
  controls.node.classList.add("three");
  const planes = node("div", { class: "side" }, ofKeys.node, ofMemory.node);
  layout(root, {
    main: [
      figure(planes, "Left: drag keys (rings, faint until read) and the query (dot). Right: the memory w; a line for each pair, where w answers it exactly; ellipses of 1 and 2 standard deviations, dotted the prior's; cross: the true w; E exact, L linear, D delta, K Kalman."),
      figure(row, "Weights of the values in the exact answer, signed. Dashed: linear attention's."),
    ],
    controls, numbers: read, aspect: 1.4,
    others: [figure(answers, "The value at the query, if it is next: mean, 90 % band. Dashed: the truth.")],
  });

  return {
    update(next) {
      state = next;
      const { keys, query } = state;
      const found = summary(state);
      const truth = state.truth === null ? null : dot(state.truth, query);
      const rows = Object.entries(LAYERS).map(([id, name]) => ({ name, ...found.layers[id] }));

      const faint = (s) => (s < state.read ? 1 : 0.35);
      arrows.replaceChildren(
        ofKeys.dot([0, 0], { r: (ofKeys.scale).toFixed(1), class: "axis" }),
        ...keys.map((key, s) => ofKeys.path([[0, 0], key], { class: `link ${unitClass(s)}`, "stroke-width": 4, opacity: faint(s) })),
        ofKeys.path([[0, 0], query], { class: "path" }),
      );
      ofKeys.handles(rings, keys, {
        name: (s) => `Key ${s + 1}`, shape: "ring", unit: (s) => s, radius: () => 14,
        on: moved, chosen: (pair) => pair !== state.pair && changed({ pair }),
      });
      keys.forEach((_, s) => rings.children[s].setAttribute("opacity", faint(s)));
      names.replaceChildren(...keys.map((key, s) => ofKeys.text(key, String(s + 1), { dy: 6 })));
      ofKeys.handles(asking, [query], { name: () => "The query", shape: "dot", on: ([point]) => changed({ query: point }) });

      const long = 4 * wide;
      const lines = keys.slice(0, state.read).flatMap((key, s) => {
        const squares = dot(key, key);
        if (!squares) return [];
        const [foot, along] = [key.map((x) => (x * state.values[s]) / squares), [-key[1], key[0]].map((x) => (long * x) / Math.sqrt(squares))];
        return [ofMemory.path([foot.map((x, d) => x - along[d]), foot.map((x, d) => x + along[d])], { class: `link ${unitClass(s)}`, "stroke-width": 1.5, opacity: 0.8 })];
      });
      const places = [[-22, -8], [20, -8], [-22, 20], [22, 20]];
      told.replaceChildren(
        ofMemory.path([[-long, 0], [long, 0]], { class: "axis" }), ofMemory.path([[0, -long], [0, long]], { class: "axis" }), ...lines,
        ...[1, 2].map((sd) => ofMemory.dot([0, 0], { r: ((sd * ofMemory.scale) / Math.sqrt(state.prior)).toFixed(1), class: "axis", "stroke-dasharray": "2 4" })),
        ...[2, 1].map((sd) => ofMemory.path(ellipse(found.memory, found.covariance, found.determinant, sd), { class: "doubt" })),
        ofMemory.path([[0, 0], found.memory], { class: "link unit-0", "stroke-width": 3 }),
        ...rows.map(({ memory }, r) => ofMemory.dot(memory, { r: 6, class: `fill ${unitClass(r)}` })),
      );
      letters.replaceChildren(...rows.map(({ memory, name }, r) => ofMemory.text(memory, name[0].toUpperCase(), { dx: places[r][0], dy: places[r][1], class: "letter" })));
      ofMemory.handles(truths, state.truth === null ? [] : [state.truth], { name: () => "The true memory", shape: "cross", on: ([w]) => changed({ truth: w, values: follow(keys, w) }) });

      bands(answers, rows, truth);
      answers.setAttribute("aria-label", rows.map(({ name, ...one }) => `${name} ${said(one)}`).join("; "));
      signed(row, found.attention, found.linearAttention);
      now(verdict(state, found, truth));
      controls.set(state, { forgetting: state.drift !== "static" });
      value.label(keys.length ? `Value of ${state.pair + 1}` : "Value");
      value.set(keys.length ? state.values[state.pair] : 0, keys.length > 0);
      const shown = ({ mean, sd }) => (sd === null ? [mean] : [mean, sd]);
      read.set({
        ...Object.fromEntries(Object.keys(LAYERS).flatMap((id) => [[id, shown(found.layers[id])], [`${id}Evidence`, found.evidence[id]]])),
        truth, memory: found.memory, covariance: found.covariance, attention: found.attention, linearAttention: found.linearAttention,
      });
    },
  };
}

export default {
  id: "regression", title: "A memory is a regression",
  sentence: "Of keys that point the same way, linear attention adds up the answers. The exact posterior weighs them as one direction heard again, and knows in which direction it has heard nothing.",
  suggestion: "turn the query across the two keys: the exact band widens. Then read the next pair.",
  notebook: "18_memory_is_regression",
  own: { name: "pairs of a key and a value", most: MOST, columns: ["x", "y", "value"], centred: false, rows, put },
  defaults, fields, fromURL, mount, python,
};
