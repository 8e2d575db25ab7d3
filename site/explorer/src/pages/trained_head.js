// A view on a page of its own: a trained head, opened. A small transformer reads what is typed; one head of it, its attention, and the
// mixtures that have this attention, from softmax's own to the likeliest of the queries.

import { ALPHA, CHANNELS, MOST, attentionOf, decode, explain, likeliest, mixtureOf, plane, read, simulate } from "../math/transformer.js";
import { entropy } from "../math/mixture.js";
import { generator } from "../math/random.js";
import { oneOf, range, seed, text, whole } from "../fields.js";
import { later } from "../parts.js";
import { Chart, blend, button, choice, color, figure, layout, nice, node, panel, readout, short, slider, svg } from "../ui.js";

const FEWEST = 24; // characters: b and P are 17 numbers
const ROW = 24; // characters of a line
const NAMES = Object.fromEntries([0, 1].flatMap((layer) => [0, 1, 2, 3].map((head) => [`${layer}.${head}`, `${layer}.${head}`])));

const defaults = { text: "The for statement is used to iterate over the elements of a sequence (such as a string, tuple or", head: "1.0", query: 60, place: 0, scale: 1, seed: 1 };

const fields = { text: text(MOST), head: oneOf(NAMES), query: whole(0, MOST - 1), place: range(0, 1), scale: range(0.25, 4, { log: true }), seed };

function fromURL(own) {
  if (typeof own.text === "string" && [...own.text].length < FEWEST) throw new Error(`text needs ${FEWEST} characters`);
  return own;
}

function python(state) {
  const [layer, head] = state.head.split(".");
  return `import json

import torch
from probtx_pyro import inspection, models
from probtx_pyro.data import text_transformer

torch.set_default_dtype(torch.float64)
text = ${JSON.stringify(state.text)}
transformer = text_transformer.load().double()
heads, tokens = transformer.heads(text), transformer.encode(text)
queries, keys = heads.queries[${layer}, ${head}], heads.keys[${layer}, ${head}]
mask = torch.zeros(len(text), len(text)).masked_fill(torch.ones(len(text), len(text), dtype=torch.bool).triu(1), -torch.inf)

alpha = ${state.scale} / keys.shape[-1] ** 0.5
own = inspection.captured(queries, keys, None, mask, alpha)
best = inspection.best_equivalent(own)
b, P = ${state.place} * best.tilt, alpha ** ${literalOf(1 - state.place)} * float(best.precision) ** ${state.place}
mixture = models.GaussianMixture.linked((alpha * keys + b) / P, None, P, 0.0, log_prior=mask)
said = mixture.log_evidence(queries)
print(json.dumps({
    "loss": torch.nn.functional.cross_entropy(transformer(tokens)[:-1], tokens[1:]).item(),
    "attention": mixture.attention(queries)[${Math.min(state.query, [...state.text].length - 1)}].tolist(),
    "logEvidence": said.mean().item(),
    "ownEvidence": own.raw.log_evidence().mean().item(),
    "bestEvidence": best.log_evidence().mean().item(),
}))
`;
}
const literalOf = (x) => String(Math.round(1e12 * x) / 1e12);

// All that a state shows; what is costly is kept while text, head and scale stay.
const kept = {};
function keep(name, key, make) {
  if (kept[name]?.key !== key) kept[name] = { key, value: make() };
  return kept[name].value;
}

export function summary(state, weights = globalThis.WEIGHTS) {
  if (!weights) throw new Error("weights.js must lie beside this page");
  const model = keep("model", "", () => decode(weights));
  const seen = keep("text", state.text, () => read(model, state.text));
  const head = seen.heads[state.head];
  const scale = ALPHA * state.scale;
  const key = JSON.stringify([state.text, state.head, state.scale]);
  const fixed = keep("head", key, () => {
    const best = likeliest(head, scale);
    const ends = [[new Array(CHANNELS).fill(0), scale], [best.b, best.P]].map(([b, P]) => mixtureOf(head, scale, b, P));
    return { best, ends, said: ends.map((mixture) => explain(head, mixture).evidence), softmax: attentionOf(head.queries, head.keys, scale), plane: plane(head.queries.map((x) => Array.from(x))) };
  });
  const b = fixed.best.b.map((x) => state.place * x);
  const P = scale ** (1 - state.place) * fixed.best.P ** state.place;
  const mixture = mixtureOf(head, scale, b, P);
  return { ...seen, ...fixed, head, mixture, ...explain(head, mixture), P };
}

// The log evidence of a head's own queries, nats each, in softmax's own model and in the best equivalent.
export function endsOf(head, scale) {
  const best = likeliest(head, scale);
  return [[new Array(CHANNELS).fill(0), scale], [best.b, best.P]].map(([b, P]) => mean(explain(head, mixtureOf(head, scale, b, P)).evidence));
}

const mean = (x) => x.reduce((a, c) => a + c, 0) / x.length;

function mount(root, first, changed, now) {
  let state = first;
  const input = node("input", { type: "text", id: "sentence-typed", name: "text", maxlength: MOST, autocomplete: "off", spellcheck: "false" });
  const note = node("p", { class: "note", role: "status" });
  input.addEventListener("input", () => {
    const long = [...input.value].length;
    if (long >= FEWEST) changed({ text: input.value });
    else note.textContent = `A head needs ${FEWEST} characters, there are ${long}; the picture is still that of the text before.`;
  });
  const letters = svg("svg", { role: "img", class: "picture" });
  letters.addEventListener("click", (event) => event.target.dataset.place && changed({ query: Number(event.target.dataset.place) }));
  const matrix = svg("svg", { role: "img", viewBox: "0 0 320 320", style: "max-width: calc(var(--room) * 0.72)" });
  const canvas = node("canvas");
  const image = svg("image", { width: 320, height: 320, preserveAspectRatio: "none", class: "shading", style: "image-rendering: pixelated" });
  const marked = svg("rect", { x: 0, width: 320, fill: "none", class: "rule" });
  matrix.append(image, marked);
  matrix.addEventListener("pointermove", (event) => pick(event, event.pointerType === "mouse"));
  matrix.addEventListener("click", (event) => pick(event, true));
  const cloud = new Chart({ label: "Queries", xlabel: "two directions in which real queries vary most", width: 480, height: 126 });
  const heads = svg("svg", { role: "img", viewBox: "0 0 340 214" });
  heads.addEventListener("click", (event) => event.target.dataset.head && changed({ head: event.target.dataset.head }));
  const read_ = readout({
    loss: "loss, nats a character", entropy: "entropy of attention of the chosen character, nats", logEvidence: "log evidence, nats a query", ownEvidence: "the same in softmax's own model",
    bestEvidence: "in the best equivalent", change: "largest change of attention", precision: "precision P", apart: "means of real and drawn queries, how far apart in the picture", queryEvidence: "log evidence of the chosen character", attention: "attention of the chosen character", heads: "every head: log evidence in softmax's own model, in the best equivalent",
  });
  const controls = panel("Controls", [
    choice("Head:", NAMES, "head", (head) => changed({ head })),
    slider({ name: "place", label: "Own model to best", ...fields.place, on: (place) => changed({ place }) }),
    slider({ name: "query", label: "Character that asks", ...fields.query, on: (query) => changed({ query }) }),
    slider({ name: "scale", label: "Scale, times α = 1/4", ...fields.scale, on: (scale) => changed({ scale }) }),
    button("again", "Send other queries", () => changed({ seed: state.seed + 1 })),
  ]);
  controls.node.classList.add("three");
  layout(root, {
    main: [
      node("label", { class: "wide", for: "sentence-typed" }, `A text of ${FEWEST} to ${MOST} characters`), input, note,
      figure(letters, "Framed: the character that asks; colour: its attention. Bars: log evidence of every character's query, from −60 nats."),
      figure(cloud.node, "Dots: the real queries. Crosses: as many drawn from the model."),
    ],
    controls, numbers: read_, aspect: 1.4,
    across: 2,
    others: [
      figure(matrix, "Attention: characters that ask, downwards, to characters before them. Point at a row."),
      figure(heads, "All heads: log evidence, nats a query, in softmax's own model (cross) and in the best equivalent of these queries (dot). A click chooses a head."),
    ],
  });

  function pick(event, wanted) {
    const box = matrix.getBoundingClientRect();
    const count = [...state.text].length;
    const query = Math.min(count - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * count)));
    if (wanted && query !== state.query) changed({ query });
  }

  // The best equivalents of the other heads are found in the background, one at a time; only the text and the scale change them.
  let [surveyed, ends, job] = ["", null, 0];
  const problem = () => JSON.stringify([state.text, state.scale]);
  const survey = later(() => {
    const [own, mine, found] = [problem(), ++job, {}];
    const { heads: all } = summary(state);
    const some = (left) => {
      if (mine !== job || !root.isConnected) return;
      if (left.length) {
        found[left[0]] = endsOf(all[left[0]], ALPHA * state.scale);
        return setTimeout(some, 0, left.slice(1));
      }
      [surveyed, ends] = [own, found];
      drawHeads();
    };
    some(Object.keys(NAMES));
  }, 60);

  function drawHeads() {
    const known = surveyed === problem() ? ends : null;
    read_.set({ heads: known ? Object.values(known) : undefined });
    heads.setAttribute("aria-label", known ? `Log evidence in softmax's own model and in the best equivalent: ${Object.entries(known).map(([name, [a, b]]) => `head ${name} ${short(a)} and ${short(b)}`).join("; ")}` : "Log evidence of every head, being computed");
    heads.replaceChildren();
    if (!known) return;
    const all = Object.values(known).flat();
    const [low, high] = [Math.min(...all), Math.max(...all)];
    const at = (x) => (52 + (276 * (x - low)) / (high - low)).toFixed(1);
    heads.append(...nice(low, high, 4).flatMap((x) => [svg("path", { d: `M${at(x)} 2V192`, class: "grid" }), svg("text", { x: at(x), y: 209, "text-anchor": "middle", class: "tick" }, String(x))]));
    Object.entries(known).forEach(([name, [own, best]], r) => {
      const y = 24 * r + 14;
      heads.append(
        svg("text", { x: 6, y: y + 5, "font-weight": name === state.head ? 700 : 400 }, name), svg("path", { d: `M${at(own)} ${y}H${at(best)}`, class: "line unit-0" }),
        svg("path", { d: `M${at(own)} ${y}m-4-4l8 8m-8 0l8-8`, class: "rule" }), svg("circle", { cx: at(best), cy: y, r: 5, class: "fill unit-0" }),
        svg("rect", { x: 0, y: y - 12, width: 340, height: 24, class: name === state.head ? "axis" : "row", style: "pointer-events: all; cursor: pointer", "data-head": name }),
      );
    });
  }

  function drawText(found, query) {
    const [wide, high] = [20, 36];
    const [paper, ink] = [color("--low"), color("--high")];
    const lines = Math.ceil(found.characters.length / ROW);
    letters.setAttribute("viewBox", `0 0 ${ROW * wide} ${lines * high}`);
    letters.replaceChildren(...found.characters.flatMap((letter, i) => {
      const [x, y] = [(i % ROW) * wide, Math.floor(i / ROW) * high];
      const share = i <= query ? found.attention[query][i] : 0;
      const tall = 11 * Math.max(0, Math.min(1, 1 + found.evidence[i] / 60));
      return [
        svg("rect", { x: x + 1, y: y + 2, width: wide - 2, height: 20, fill: `rgb(${blend(paper, ink, 0.55 * Math.sqrt(share)).map(Math.round)})`, class: i === query ? "rule" : null, "data-place": i, style: i === query ? "fill-opacity: 1" : null }),
        svg("text", { x: x + wide / 2, y: y + 17, "text-anchor": "middle", "pointer-events": "none", class: found.unknown.includes(letter) ? "strange" : null }, letter === " " ? "␣" : letter),
        svg("rect", { x: x + 3, y: (y + 34 - tall).toFixed(1), width: wide - 6, height: tall.toFixed(1), class: "fill unit-1" }),
      ];
    }));
  }

  function drawMatrix(found, query) {
    const count = found.characters.length;
    canvas.width = canvas.height = count;
    const pen = canvas.getContext("2d");
    const pixels = pen.createImageData(count, count);
    const [paper, ink] = [color("--low"), color("--high")];
    found.attention.forEach((row, i) => row.forEach((share, j) => {
      blend(paper, ink, Math.sqrt(share)).forEach((z, k) => (pixels.data[4 * (i * count + j) + k] = z));
      pixels.data[4 * (i * count + j) + 3] = 255;
    }));
    pen.putImageData(pixels, 0, 0);
    image.setAttribute("href", canvas.toDataURL());
    marked.setAttribute("y", ((320 * query) / count).toFixed(1));
    marked.setAttribute("height", (320 / count).toFixed(1));
  }

  return {
    update(next) {
      state = next;
      if (document.activeElement !== input) input.value = state.text;
      const found = summary(state);
      const count = found.characters.length;
      const query = Math.min(state.query, count - 1);
      note.textContent = found.unknown.length ? `Characters that it does not know: ${[...new Set(found.unknown)].join(" ")}` : "";
      drawText(found, query);
      drawHeads();
      if (surveyed !== problem()) survey();
      drawMatrix(found, query);

      const { mean: middle, axes } = found.plane;
      const onto = (x) => axes.map((axis) => axis.reduce((sum, a, d) => sum + a * (x[d] - middle[d]), 0));
      const draw = (mixture) => simulate(found.head, mixture, generator(state.seed)).map(onto);
      const [real, drawn] = [found.head.queries.map(onto), draw(found.mixture)];
      const all = [...real, ...drawn, ...found.ends.flatMap(draw)];
      const reach = [0, 1].map((d) => [Math.min(...all.map((p) => p[d])), Math.max(...all.map((p) => p[d]))]);
      cloud.range(...reach);
      cloud.draw(
        real.map((p) => cloud.dot(p, { r: 3, class: "fill unit-0" })),
        drawn.map((p) => {
          const [x, y] = cloud.at(p).map((z) => z.toFixed(1));
          return svg("path", { d: `M${x} ${y}m-3.5-3.5l7 7m-7 0l7-7`, class: "rule" });
        }),
      );
      const apart = Math.hypot(...[0, 1].map((d) => mean(drawn.map((p) => p[d])) - mean(real.map((p) => p[d]))));
      cloud.node.setAttribute("aria-label", `Real queries and as many drawn from the model, their means ${short(apart)} apart`);

      const own = found.attention[query];
      const top = own.indexOf(Math.max(...own));
      const said = [found.evidence, ...found.said].map(mean);
      letters.setAttribute("aria-label", `Character ${query + 1}, “${found.characters[query]}”, attends most to character ${top + 1}, “${found.characters[top]}”, with ${own[top].toFixed(2)}`);
      matrix.setAttribute("aria-label", `Attention of head ${state.head}: rows of ${count} characters; row ${query + 1} is largest at ${top + 1}`);
      now(`Character ${query + 1}, “${found.characters[query]}”, attends most to “${found.characters[top]}” at ${top + 1}, with ${own[top].toFixed(2)}. Here the queries have a log evidence of ${short(said[0])} nats each; in softmax's own model ${short(said[1])}, in the best equivalent ${short(said[2])}.`);
      controls.set({ ...state, query });
      read_.set({
        loss: found.loss, entropy: entropy(own), logEvidence: said[0], ownEvidence: said[1], bestEvidence: said[2], precision: found.P, apart, queryEvidence: found.evidence[query], attention: own,
        change: Math.max(...found.attention.flatMap((row, i) => row.map((x, j) => Math.abs(x - found.softmax[i][j])))),
      });
    },
    stop() {
      survey.cancel();
      job++;
    },
  };
}

export default {
  id: "trained-head", title: "A trained head, opened",
  sentence: "This transformer was trained to predict the next character. Attention leaves open which mixture a head is: softmax's own does not expect the head's queries.",
  suggestion: "take “Own model to best” to 1: no weight of attention moves, the queries drawn from the model come to where the real ones are.",
  notebook: "11_inside_a_trained_transformer", defaults, fields, fromURL, mount, python,
};
