// View 8: mean field on a sentence. Arcs and labels after some sweeps, the ELBO under log Z, and parses drawn by Gibbs sampling.

import { annealed, drawHeads, drawStart, enumerate, gibbsSweep, meanField, objective, tablesOf } from "../math/crf.js";
import { CHANNELS, LABELS, MOST_WORDS, crfOf, unknown, wordsOf } from "../math/grammar.js";
import { generator } from "../math/random.js";
import { anything, oneOf, range, seed, text, whole } from "../fields.js";
import { later } from "../parts.js";
import { button, choice, figure, layout, node, panel, readout, short, slider, svg } from "../ui.js";

const EXACT = 20000; // labellings that are summed at most
const BETAS = Array.from({ length: 41 }, (_, t) => t / 40);
const PARSES = 200;

// The words and the CRF of a state: of the small grammar, or of a user's own.
export function sentenceOf(state) {
  if (state.crf) {
    const { words, labels, unary, ternary, distances = [], root_ternary: root = null } = state.crf;
    const names = labels ?? unary[0].map((_, a) => `label ${a + 1}`);
    return { words, labels: names, channels: ternary.map((_, c) => `channel ${c + 1}`), crf: { unary, ternary, distances, root } };
  }
  const words = wordsOf(state.sentence).slice(0, MOST_WORDS);
  return { words, labels: LABELS, channels: CHANNELS.slice(0, state.channels), crf: crfOf(words, state.channels, state.coupling) };
}

const optionsOf = (state) => ({ schedule: state.schedule, labelDamping: state.damping, headDamping: state.damping });

// Labels and heads of so many draws of one chain, five sweeps apart.
export function draws(crf, count, rng) {
  const tables = tablesOf(crf);
  let state = drawStart(crf, rng);
  const sweeps = (number) => {
    for (let t = 0; t < number; t++) state = gibbsSweep(tables, state, rng);
  };
  sweeps(50);
  return Array.from({ length: count }, () => {
    sweeps(5);
    return { labels: state.labels, heads: drawHeads(crf, state, rng) };
  });
}

const literal = (x) => (Array.isArray(x) ? `[${x.map(literal).join(", ")}]` : String(Math.round(x * 1e12) / 1e12));

export function python(state) {
  const { words, crf } = sentenceOf(state);
  const rows = (x) => `torch.tensor(${literal(x)}, dtype=torch.float64)`;
  return `import json

import torch
from probtx_pyro import inference, models

torch.set_default_dtype(torch.float64)
words = ${JSON.stringify(words)}
unary = ${rows(crf.unary)}
ternary = ${rows(crf.ternary)}
${crf.root ? `root = ${rows(crf.root)}\n` : ""}crf = models.DependencyCRF(unary, ternary, distances=${literal(crf.distances).replace("[", "(").replace("]", crf.distances.length === 1 ? ",)" : ")")}${crf.root ? ", root_ternary=root" : ""})

field = crf.mean_field(${state.sweeps}, "${state.schedule}", label_damping=${state.damping}, head_damping=${state.damping}, progress=False)
draws = inference.gibbs(crf, num_samples=500, num_chains=8, seed=${state.seed}, progress=False)
annealed = inference.annealed_log_partition(crf, seed=${state.seed}, progress=False)
print(json.dumps({
    "elbo": field.elbo.item(),
    "labels": field.label_marginals.tolist(),
    "heads": field.head_marginals.tolist(),
${words.length && crf.unary[0].length ** words.length <= EXACT ? '    "logZ": crf.log_partition().item(),\n    "exactLabels": crf.marginals().labels.tolist(),\n' : ""}    "annealed": annealed.log_partition.item(),
    "annealedError": annealed.standard_error.item(),
    "drawn": torch.nn.functional.one_hot(draws.samples["label"], unary.shape[-1]).double().mean((0, 1)).tolist(),
}))
`;
}

const defaults = {
  sentence: "time flies like an arrow", channels: 2, coupling: 1, schedule: "asynchronous", damping: 0, sweeps: 10,
  channel: "0", parse: 0, seed: 1, crf: null,
};

const fields = {
  sentence: text(200), channels: oneOf({ 1: "one", 2: "two" }), coupling: range(0, 2, { step: 0.05, most: 10 }),
  schedule: oneOf({ asynchronous: "heads, then labels", synchronous: "all at once", sequential: "word by word" }), damping: range(0, 0.95, { step: 0.05, most: 0.99 }),
  sweeps: whole(1, 40, { most: 1000 }), channel: oneOf({ 0: CHANNELS[0], 1: CHANNELS[1] }), parse: whole(0, PARSES - 1), seed, crf: anything,
};

function fromURL(own) {
  if (own.crf) {
    const { words, unary, ternary, distances = [], root_ternary: root = null } = own.crf;
    const shaped = (x, ...shape) => (shape.length === 0 ? Number.isFinite(x) : Array.isArray(x) && x.length === shape[0] && x.every((y) => shaped(y, ...shape.slice(1))));
    const count = unary?.[0]?.length;
    if (!(words?.length > 0 && words.length <= 12)) throw new Error("crf needs 1 to 12 words");
    if (!shaped(unary, words.length, count)) throw new Error("crf.unary must have a row for every word");
    if (!shaped(ternary, ternary?.length, 2 * (distances.length + 1), count, count)) throw new Error("crf.ternary must be (channel, group, label, label)");
    const scores = [...ternary.flat(3), ...(root ?? []).flat()];
    if (Math.max(...scores) - Math.min(...scores) > 300) throw new Error("scores of arcs lie more than 300 apart");
    if (root && !shaped(root, ternary.length, count, root[0]?.[0]?.length)) throw new Error("crf.root_ternary must be (channel, label, label of the root)");
  } else if (typeof own.sentence === "string" && wordsOf(own.sentence).length < 2) throw new Error("a sentence needs two words");
  return own;
}

// Arcs over words, whose letters are so wide: { words, below(i, x) parts under a word, arcs [{ from (-1: root), to, weight }] }
function drawArcs(picture, words, arcs, below, depth, strange, letter = 8) {
  const width = 460;
  const step = width / words.length;
  const base = 30 + Math.min(120, 22 * words.length);
  picture.setAttribute("viewBox", `0 0 ${width} ${base + depth}`);
  const x = (i) => step * (i + 0.5);
  const parts = arcs.map(({ from, to, weight }) => {
    const side = from < 0 ? 0 : Math.sign(from - to) * Math.min(9, step / 6);
    const end = `${(x(to) + side).toFixed(1)} ${base - 16}`;
    const rise = from < 0 ? 0 : Math.min(base - 22, 16 + 20 * Math.abs(from - to));
    const d = from < 0 ? `M${x(to)} 4L${end}` : `M${(x(from) - side).toFixed(1)} ${base - 16}C${x(from) - side} ${base - 16 - rise * 1.3} ${x(to) + side} ${base - 16 - rise * 1.3} ${end}`;
    const arrow = svg("path", { d: `M${end}l-4 -7h8z`, class: "arrow", opacity: weight.toFixed(3) });
    return [svg("path", { d, class: "arc", opacity: weight.toFixed(3), "stroke-width": (0.8 + 2.2 * weight).toFixed(2) }), arrow];
  });
  const texts = words.map((word, i) => svg("text", { x: x(i), y: base, "text-anchor": "middle", class: strange.includes(word) ? "word strange" : "word", ...(word.length * letter > step ? { textLength: step - 4, lengthAdjust: "spacingAndGlyphs" } : {}) }, word));
  picture.replaceChildren(...parts.flat(), ...texts, ...words.flatMap((_, i) => below(i, x(i), base, step)));
}

function mount(root, first, changed, now) {
  let state = first;
  let exact = null;
  let key = "";
  const input = node("input", { type: "text", id: "sentence-typed", name: "sentence", maxlength: 200, autocomplete: "off", spellcheck: "false" });
  input.addEventListener("input", () => {
    if (wordsOf(input.value).length > 1) changed({ sentence: input.value, crf: null, parse: 0 });
    else note.textContent = `A sentence needs two words; the picture is still that of “${sentenceOf(state).words.join(" ")}”.`;
  });
  const note = node("p", { class: "note", role: "status" });
  const [field, drawn, climb] = ["Mean field: arcs and labels", "One parse drawn", "ELBO by sweep"].map((label) => svg("svg", { role: "img", "aria-label": label, class: "picture" }));
  const legend = node("p", { class: "legend" });
  const tally = node("ol", { class: "tally" });
  const read = readout({
    elbo: "ELBO, nats", logZ: "log Z, summed exactly", annealed: "log Z, annealed", annealedError: "its standard error", gap: "gap, KL(Q | p)",
    labels: "label marginals by mean field", exactLabels: "exact label marginals", heads: "head marginals of the channel",
  });
  const controls = panel("Controls", [
    slider({ name: "sweeps", label: "Sweeps", ...fields.sweeps, on: (sweeps) => changed({ sweeps }) }),
    slider({ name: "damping", label: "Damping of labels and heads", ...fields.damping, on: (damping) => changed({ damping }) }),
    slider({ name: "coupling", label: "Coupling, times all scores of arcs", ...fields.coupling, on: (coupling) => changed({ coupling }) }),
    choice("Schedule", fields.schedule.options, "schedule", (schedule) => changed({ schedule })),
    choice("Channel shown", fields.channel.options, "channel", (channel) => changed({ channel, channels: Math.max(state.channels, Number(channel) + 1) })),
    choice("Channels", fields.channels.options, "channels", (count) => changed({ channels: Number(count), channel: "0" })),
    button("parse", "Draw another parse", () => changed({ parse: (state.parse + 1) % PARSES })),
    button("reseed", "Other draws", () => changed({ seed: state.seed + 1, parse: 0 })),
  ]);
  layout(root, {
    main: [
      node("label", { class: "wide", for: "sentence-typed" }, "A sentence of two to ten words"), input, note,
      figure(field, "Mean field: each word's heads, the stronger the likelier; from above, the root. Under a word its labels: left by mean field, right exact. A word in italics is not in the lexicon: its ending decides."), legend,
    ],
    controls, numbers: read, aspect: 1.4, across: 2,
    others: [figure(drawn, "One parse drawn by Gibbs sampling, labels and heads together."), figure(climb, "The ELBO after each sweep, under log Z."), tally],
  });

  // what depends on the potentials alone: log Z and draws
  const slow = later((sentence, seed) => {
    const own = JSON.stringify([sentence.crf, seed]);
    if (own === key) return;
    key = own;
    const { crf } = sentence;
    const rng = generator(seed);
    const tasks = [
      () => (exact = { sums: enumerate(crf, EXACT) }),
      () => (exact.draws = draws(crf, PARSES, rng)),
      () => (exact.estimate = annealed(crf, BETAS, 60, rng)),
    ];
    const next = () => {
      if (key !== own || !root.isConnected) return;
      tasks.shift()();
      render();
      if (tasks.length) setTimeout(next, 10);
    };
    next();
  });

  function render() {
    const sentence = sentenceOf(state);
    const { words, labels, crf } = sentence;
    const c = Math.min(Number(state.channel), crf.ternary.length - 1);
    const options = optionsOf(state);
    const states = meanField(crf, state.sweeps, options);
    const at = states.at(-1);
    const bounds = states.map((x) => objective(crf, x, options));
    const elbo = bounds.at(-1);
    const rooted = crf.root ? 1 : 0;
    const strange = state.crf ? [] : unknown(words);
    const typed = state.crf ? words.length : wordsOf(state.sentence).length;
    const typing = document.activeElement === input && wordsOf(input.value).length < 2; // what was said of that stays
    if (!typing) note.textContent = typed > words.length ? `Only the first ${words.length} of ${typed} words are drawn.` : "";
    const known = exact && key === JSON.stringify([crf, state.seed]) ? exact : null;
    const arcs = at.heads[c].flatMap((row, i) => row.map((weight, s) => ({ from: s - rooted, to: i, weight }))).filter((x) => x.weight > 0.04);
    const bar = (i, x, base, step) => {
      const wide = Math.min(16, step / 2 - 4);
      return [[at.labels[i], x - wide - 1], ...(known?.sums ? [[known.sums.labels[i], x + 1]] : [])].flatMap(([p, left]) => {
        let top = base + 8;
        return p.map((share, a) => {
          const rect = svg("rect", { x: left, y: top.toFixed(1), width: wide, height: (70 * share).toFixed(1), class: `fill unit-${a % 8}` });
          top += 70 * share;
          return rect;
        });
      });
    };
    drawArcs(field, words, arcs, bar, 84, strange);
    legend.replaceChildren(...labels.flatMap((label, a) => [node("span", { class: `key unit-${a % 8}` }), ` ${label}  `]));
    const logZ = known?.sums?.logPartition;
    drawClimb(climb, bounds, logZ ?? known?.estimate?.logPartition);
    if (known?.draws) {
      const one = known.draws[state.parse % PARSES];
      drawArcs(drawn, words, one.heads[c].map((s, i) => ({ from: s - rooted, to: i, weight: s < 0 ? 0 : 0.9 })),
        (i, x, base, step) => {
          const label = labels[one.labels[i]];
          const narrow = 10.6 * label.length > step ? { textLength: step - 4, lengthAdjust: "spacingAndGlyphs" } : {};
          return [svg("text", { x, y: base + 20, "text-anchor": "middle", class: `small unit-${one.labels[i] % 8}`, ...narrow }, label)];
        }, 28, strange, 10.6);
      drawn.setAttribute("aria-label", `One parse drawn: ${words.map((word, i) => `${word}/${labels[one.labels[i]]}`).join(" ")}`);
      const counts = new Map();
      for (const { labels: z } of known.draws) counts.set(z.join(), (counts.get(z.join()) ?? 0) + 1);
      const top = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 4);
      tally.replaceChildren(...top.map(([z, count]) => node("li", {}, `${((100 * count) / PARSES).toFixed(0)} % ${z.split(",").map((a, i) => `${words[i]}/${labels[a]}`).join(" ")}`)));
    }
    const best = logZ ?? known?.estimate?.logPartition;
    const reading = (marginals) => words.map((word, i) => `${word}/${labels[marginals[i].indexOf(Math.max(...marginals[i]))]}`).join(" ");
    const sure = (marginals) => (marginals.reduce((sum, p) => sum + Math.max(...p), 0) / words.length).toFixed(2);
    const exactly = known?.sums ? `, of the exact labels ${sure(known.sums.labels)}` : "";
    now(`Mean field reads ${reading(at.labels)}. Mean confidence of its labels: ${sure(at.labels)}${exactly}. ${best === undefined ? "" : `Its ELBO is ${short(Math.max(0, best - elbo))} nats under log Z${known.sums ? "" : " as annealed"}.`}`);
    field.setAttribute("aria-label", `Mean field: ${words.map((word, i) => `${word} ${labels.map((label, a) => `${label} ${at.labels[i][a].toFixed(2)}`).join(", ")}`).join("; ")}`);
    climb.setAttribute("aria-label", `ELBO by sweep: from ${short(bounds[0])} to ${short(elbo)}${best === undefined ? "" : `; log Z ${short(best)}`}`);
    read.set({
      elbo, labels: at.labels, heads: at.heads[c],
      logZ: known ? (logZ ?? null) : undefined,
      annealed: known?.estimate?.logPartition,
      annealedError: known?.estimate?.standardError,
      gap: best === undefined ? undefined : best - elbo,
      exactLabels: known ? (known.sums?.labels ?? null) : undefined,
    });
    slow(sentence, state.seed);
  }

  function update(next) {
    state = next;
    if (document.activeElement !== input) input.value = state.crf ? state.crf.words.join(" ") : state.sentence;
    controls.set({ ...state, channels: String(state.channels) }, { coupling: !state.crf });
    render();
  }
  return { update, stop: slow.cancel };
}

function drawClimb(picture, bounds, logZ) {
  const [width, height] = [320, 150];
  picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const all = logZ === undefined ? bounds : [...bounds, logZ];
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const y = (z) => 20 + (1 - (z - low) / (high - low || 1)) * (height - 56);
  const x = (t) => 50 + (t * (width - 64)) / Math.max(1, bounds.length - 1);
  const parts = [svg("path", { d: bounds.map((z, t) => `${t ? "L" : "M"}${x(t).toFixed(1)} ${y(z).toFixed(1)}`).join(""), class: "line" })];
  parts.push(...bounds.map((z, t) => svg("circle", { cx: x(t).toFixed(1), cy: y(z).toFixed(1), r: 2.5, class: "climb" })));
  if (logZ !== undefined) {
    parts.push(svg("path", { d: `M50 ${y(logZ)}H${width - 14}`, class: "rule dashed" }), svg("text", { x: width - 14, y: y(logZ) - 5, "text-anchor": "end" }, `log Z ${logZ.toFixed(2)}`));
  }
  parts.push(svg("text", { x: 46, y: y(bounds[0]) + 4, "text-anchor": "end" }, bounds[0].toFixed(1)));
  parts.push(svg("text", { x: width - 14, y: y(bounds.at(-1)) + 16, "text-anchor": "end" }, `ELBO ${bounds.at(-1).toFixed(2)}`));
  parts.push(svg("text", { x: width / 2, y: height - 4, "text-anchor": "middle" }, `sweep 0 to ${bounds.length - 1}`));
  picture.replaceChildren(...parts);
}

export default {
  id: "mean-field",
  title: "Mean field on a sentence",
  sentence: "Mean field gives every word a distribution of its own, where the exact posterior ties words together. The gap between the ELBO and log Z is what is lost by that.",
  suggestion: "type “the old man the boats”. Lower the coupling until the gap closes. Then set it to 2 and update all at once: the ELBO goes up and down until there is damping.",
  notebook: "16_dependency_crf",
  defaults, fields, fromURL, mount, python,
};
