// A view on a page of its own: one click on a picture. Clicks are known classes of units; paths, colours and neighbours tell the other units
// theirs, and every pixel asks the units near it.

import { attentionOfUnit, decode, hasBoth, overlap, partsOf, rgb, routeOf, segment, unitsNear } from "../math/segmentation.js";
import { oneOf, range } from "../fields.js";
import { Plane, bars, blend, button, choice, color, figure, layout, panel, readout, slider, svg } from "../ui.js";

const [HEIGHT, WIDTH, MOST, REST, PAGODA] = [61, 91, 40, 1, 2];
const CLASSES = { [REST]: "rest", [PAGODA]: "pagoda" };
const LOOK = { [REST]: "unit-5", [PAGODA]: "unit-1" };
const MARKS = { pagoda: "pagoda", rest: "rest", look: "nothing, it only looks" };
const SHOWN = { mask: "mask", doubt: "uncertainty", units: "colours of units" };
const AGREE = { with: "with its neighbours", alone: "each on its own" };

const defaults = { clicks: [[22, 68, REST], [35, 30, PAGODA]], pixel: [55, 38], mark: "pagoda", show: "mask", units: "with", pathEvidence: 1.8, colourEvidence: 0.45 };

const inside = ([y, x]) => Number.isInteger(y) && Number.isInteger(x) && y >= 0 && y < HEIGHT && x >= 0 && x < WIDTH;
const must = (right, text) => {
  if (!right) throw new Error(text);
};
const fields = {
  clicks: { check: (all) => must(Array.isArray(all) && all.length <= MOST && all.every((one) => Array.isArray(one) && one.length === 3 && inside(one) && one[2] in CLASSES), `clicks must be at most ${MOST} of [row, column, 1 or 2] on a picture of ${HEIGHT} x ${WIDTH} pixels`) },
  pixel: { check: (one) => must(Array.isArray(one) && one.length === 2 && inside(one), `pixel must be a row and a column of a picture of ${HEIGHT} x ${WIDTH} pixels`) },
  mark: oneOf(MARKS), show: oneOf(SHOWN), units: oneOf(AGREE), pathEvidence: range(0, 6, { most: 100 }), colourEvidence: range(0, 2, { most: 100 }),
};

const settingsOf = ({ units, pathEvidence, colourEvidence }) => ({ path_evidence: pathEvidence, colour_evidence: colourEvidence, ...(units === "alone" ? { coupling: 0 } : {}) });
const pythonOf = (settings) => Object.entries(settings).map(([name, x]) => `, ${name}=${x}`).join("");

function python(state) {
  return `import dataclasses
import json

import numpy as np
import torch
from probtx_pyro.apps import InteractiveSegmenter, SegmentationSettings, lab_colours, marks_from_clicks
from probtx_pyro.data import load_pagoda
from probtx_pyro.metrics import intersection_over_union

REST, PAGODA = ${REST}, ${PAGODA}
clicks = ${JSON.stringify(state.clicks)}  # row, column, class
row, column = ${state.pixel.join(", ")}


def averaged(picture):
    """The means of 7 x 7 pixels."""
    return picture[:427, :637].reshape(${HEIGHT}, 7, ${WIDTH}, 7, *picture.shape[2:]).mean((1, 3))


def in_double(group):
    """What the library keeps in single precision, in double."""
    found = {name: x.double() for name, x in group._asdict().items() if torch.is_tensor(x) and x.is_floating_point()}
    return group._replace(**found)


image = averaged(load_pagoda().image).round().astype(np.uint8)
settings = SegmentationSettings(num_units=150${pythonOf(settingsOf(state))})
segmenter = InteractiveSegmenter.from_image(image, lambda image: lab_colours(image).round(), settings)
units = in_double(segmenter.units)
units = units._replace(log_prior=units.log_prior.log_softmax(-1))
segmenter = dataclasses.replace(segmenter, cells=in_double(segmenter.cells), units=units)

marks = marks_from_clicks(segmenter.shape, clicks)
answer, field = segmenter.segment(marks), segmenter.field(marks)
truth = np.where(averaged(load_pagoda().mask) > 0.5, PAGODA, REST)
belief = field.mean_field(20, tol=1e-3).label_marginals  # as segment has it
unit = segmenter.units.home[row, column]
told = field.attention()[unit] @ belief  # by the unit's neighbours, in shares
print(json.dumps({
    "overlap": intersection_over_union(truth, answer.mask)[1],
    "share": (answer.mask == PAGODA).mean(),
    "probability": float(answer.probabilities[row, column, 1]),
    "unitProbability": belief[unit, 1].item(),
    "told": told.tolist(),
    "wrong": int((answer.mask != truth).sum()),
    "expected": float((1 - answer.probabilities.max(-1)).sum()),
}))
`;
}

// What is costly is kept while clicks and settings stay.
const kept = {};
function keep(name, key, make) {
  if (kept[name]?.key !== key) kept[name] = { key, value: make() };
  return kept[name].value;
}

export function modelOf(photograph = globalThis.PHOTOGRAPH) {
  if (!photograph) throw new Error("photograph.js must lie beside this page");
  return keep("model", "", () => {
    const model = decode(photograph);
    const colours = (at) => rgb([0, 1, 2].map(at));
    model.picture = Array.from({ length: model.pixels }, (_, i) => colours((d) => model.lab[3 * i + d]));
    model.mosaic = Array.from({ length: model.pixels }, (_, i) => {
      const near = unitsNear(model, i);
      return colours((d) => model.settings.colour_scale * near.reduce((sum, j, k) => sum + model.attention[9 * i + k] * model.keys[5 * j + d], 0));
    });
    return model;
  });
}

// The answer to a state's clicks, or null while a class has none.
export function summary(state) {
  const model = modelOf();
  return keep("answer", JSON.stringify([state.clicks, settingsOf(state)]), () => {
    if (!hasBoth(state.clicks)) return null;
    const found = segment(model, state.clicks, settingsOf(state));
    const doubt = found.probability.map((p) => Math.min(p, 1 - p));
    const pagoda = found.pixels.map((p) => Number(p > 0.5));
    return {
      ...found, doubt, pagoda, overlap: overlap(model, found.pixels), share: pagoda.reduce((a, b) => a + b) / model.pixels, expected: doubt.reduce((a, b) => a + b),
      wrong: pagoda.reduce((sum, c, i) => sum + Number(c !== model.truth[i]), 0),
    };
  });
}

// What a pixel asks and what its unit is told.
export function look(model, found, [y, x]) {
  const i = y * model.width + x;
  const asked = unitsNear(model, i).map((j, k) => [j, model.attention[9 * i + k]]).sort((a, b) => b[1] - a[1]).slice(0, 3);
  const unit = model.home[i];
  if (!found) return { i, asked, unit };
  const neighbours = attentionOfUnit(model, found, unit);
  const told = [0, 1].map((c) => neighbours.reduce((sum, [k, a]) => sum + a * found.belief[k][c], 0));
  return { i, asked, unit, neighbours, told, ...partsOf(model, found, unit), routes: [0, 1].map((c) => routeOf(model, found, unit, c)), probability: found.probability[i], unitProbability: found.belief[unit][1] };
}

// Bars to the right and to the left of a middle: [name, nats].
function signedBars(picture, rows) {
  const [left, half, high] = [114, 84, 24];
  const most = Math.max(1, ...rows.map(([, x]) => Math.abs(x)));
  picture.setAttribute("viewBox", `0 0 ${left + 2 * half + 12} ${rows.length * high + 24}`);
  picture.replaceChildren(
    ...rows.flatMap(([name, x], r) => {
      const [y, wide] = [r * high + 4, (half * Math.abs(x)) / most];
      const beside = x < 0 ? 6 : -6; // the number stands on the other side of the middle
      return [
        svg("text", { x: left - 10, y: y + 15, "text-anchor": "end" }, name),
        svg("rect", { x: (left + half - (x < 0 ? wide : 0)).toFixed(1), y, width: wide.toFixed(1), height: high - 6, class: `fill ${LOOK[x < 0 ? REST : PAGODA]}` }),
        svg("text", { x: left + half + beside, y: y + 15, "text-anchor": x < 0 ? "start" : "end" }, (Math.abs(x) < 0.05 ? "0.0" : x.toFixed(1)).replace("-", "−")),
      ];
    }),
    svg("path", { d: `M${left + half} 0v${rows.length * high}`, class: "axis" }),
    svg("text", { x: left, y: rows.length * high + 17, class: "tick" }, "rest"),
    svg("text", { x: left + 2 * half, y: rows.length * high + 17, "text-anchor": "end", class: "tick" }, "pagoda"),
  );
  picture.setAttribute("aria-label", rows.map(([name, x]) => `${name} ${x.toFixed(2)} nats`).join("; "));
}

function mount(root, first, changed, now) {
  let [state, over] = [first, null]; // the pixel under the mouse
  const model = modelOf();
  const plane = new Plane({ x: [0, WIDTH], y: [0, HEIGHT], label: "The photograph of a pagoda before hills, to click on", ticks: false });
  const shade = plane.shading(WIDTH, HEIGHT);
  const [seam, ways, dots, here] = ["seam", "ways", "clicks", "pointer"].map((name) => plane.layer(name));
  for (const layer of [seam, ways, dots]) layer.setAttribute("pointer-events", "none");
  const middle = ([y, x]) => [x + 0.5, HEIGHT - y - 0.5];
  const place = (j) => [model.step * model.keys[5 * j + 4] + 0.5, HEIGHT - model.step * model.keys[5 * j + 3] - 0.5];
  const pixelOf = (event) => {
    const [x, y] = plane.pointOf(event);
    return [Math.min(HEIGHT - 1, Math.floor(HEIGHT - y)), Math.min(WIDTH - 1, Math.floor(x))];
  };
  const click = (pixel) => {
    const label = Number(Object.keys(CLASSES).find((c) => CLASSES[c] === state.mark));
    const same = ([y, x]) => y === pixel[0] && x === pixel[1];
    changed(label ? { pixel, clicks: [...state.clicks.filter((one) => !same(one)), [...pixel, label]].slice(-MOST) } : { pixel });
  };
  const undo = () => state.clicks.length && changed({ clicks: state.clicks.slice(0, -1) });

  const pointer = svg("g", { class: "handle", tabindex: 0, role: "button", style: "pointer-events: none" }, svg("circle", { r: 26, class: "touch" }), svg("circle", { r: 9, class: "aim wide" }), svg("circle", { r: 9, class: "aim" }));
  here.append(pointer);
  pointer.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    const far = event.shiftKey ? 6 : 1;
    if (by) changed({ pixel: state.pixel.map((z, d) => Math.min([HEIGHT, WIDTH][d] - 1, Math.max(0, z + far * by[d]))) });
    else if (event.key === "Enter" || event.key === " ") click(state.pixel);
    else if (event.key === "Backspace") undo();
    else return;
    event.preventDefault();
  });
  plane.node.classList.add("crosshair");
  plane.back.addEventListener("click", (event) => {
    click(pixelOf(event));
    pointer.focus({ preventScroll: true });
  });
  plane.node.addEventListener("pointermove", (event) => {
    if (event.pointerType !== "mouse") return;
    const pixel = pixelOf(event);
    if (over?.join() === pixel.join()) return;
    over = pixel;
    inspect();
  });
  plane.node.addEventListener("pointerleave", () => {
    over = null;
    inspect();
  });

  const shares = svg("svg", { role: "img" });
  const parts = svg("svg", { role: "img" });
  const saying = figure(parts, "");
  const read = readout({
    overlap: "intersection over union with the mask drawn by hand", share: "share of the picture taken for pagoda", wrong: "pixels that are wrong", expected: "pixels expected to be wrong", clicks: "clicks", probability: "p(pagoda) of the pixel in the ring",
    drawn: "its class in the mask drawn by hand, 1 the rest, 2 pagoda", unit: "its unit", attention: "attention of the pixel to the three units that it asks most", paths: "log odds of the unit: paths, nats", colours: "colours", neighbours: "neighbours", unitProbability: "probability that the unit is pagoda, in the field", told: "what its neighbours tell it, in shares: rest, pagoda",
    lengths: "length of the path to the rest, to the pagoda",
  });
  const undoing = button("undo", "Take back a click", undo);
  const controls = panel("Controls", [
    choice("A click says:", MARKS, "mark", (mark) => changed({ mark })),
    slider({ name: "pathEvidence", label: "Reach by paths, path_evidence", ...fields.pathEvidence, on: (pathEvidence) => changed({ pathEvidence }) }),
    slider({ name: "colourEvidence", label: "By colours, colour_evidence", ...fields.colourEvidence, on: (colourEvidence) => changed({ colourEvidence }) }),
    choice("Units:", AGREE, "units", (units) => changed({ units })),
    choice("Shown:", SHOWN, "show", (show) => changed({ show })),
    undoing, button("none", "No click", () => changed({ clicks: [] })),
  ]);
  layout(root, {
    main: figure(plane.node, "Click, or move the ring by arrow keys and press Enter. Squares: clicks on the pagoda; discs: on the rest. Pointed at: the unit's attention to its neighbours (white), and its shortest paths to clicks or to the frame."),
    controls, numbers: read, aspect: plane.aspect, across: 2,
    others: [figure(shares, "Attention of the pixel: the three units that it asks most."), saying],
  });

  function draw(found) {
    const [low, high, tint] = [color("--low"), color("--high"), color("--u1")];
    shade((_, i) => {
      const own = state.show === "units" ? model.mosaic[i] : model.picture[i];
      if (!found || state.show === "units") return [...own, 255];
      if (state.show === "doubt") return [...blend(low, high, 2 * found.doubt[i]), 255];
      const grey = 0.3 * own[0] + 0.59 * own[1] + 0.11 * own[2];
      return [...(found.pagoda[i] ? blend(own, tint, 0.3) : blend([grey, grey, grey], [128, 128, 128], 0.35)), 255];
    });
    let d = "";
    const at = (y, x) => plane.at([x, HEIGHT - y]).map((z) => z.toFixed(1)).join(" ");
    for (let i = 0; found && i < model.pixels; i++) {
      const [y, x] = [Math.floor(i / WIDTH), i % WIDTH];
      if (x && found.pagoda[i] !== found.pagoda[i - 1]) d += `M${at(y, x)}L${at(y + 1, x)}`;
      if (y && found.pagoda[i] !== found.pagoda[i - WIDTH]) d += `M${at(y, x)}L${at(y, x + 1)}`;
    }
    seam.replaceChildren(svg("path", { d, class: "aim wide" }), svg("path", { d, class: "aim" }));
    dots.replaceChildren(...state.clicks.flatMap(([y, x, label], n) => {
      const [cx, cy] = plane.at(middle([y, x]));
      const shape = label === PAGODA ? svg("rect", { x: (cx - 14).toFixed(1), y: (cy - 14).toFixed(1), width: 28, height: 28, class: `spot ${LOOK[label]}` }) : svg("circle", { cx: cx.toFixed(1), cy: cy.toFixed(1), r: 15, class: `spot ${LOOK[label]}` });
      return [shape, svg("text", { x: cx.toFixed(1), y: (cy + 7).toFixed(1), "text-anchor": "middle", class: "number" }, String(n + 1))];
    }));
  }

  // The way to a click, or off the frame by its nearest side.
  function wayOf({ units, around }) {
    const points = units.map(place);
    const [x, y] = points.at(-1);
    const sides = [[0, y], [WIDTH, y], [x, 0], [x, HEIGHT]];
    if (around) points.push(sides.sort((a, b) => Math.hypot(a[0] - x, a[1] - y) - Math.hypot(b[0] - x, b[1] - y))[0]);
    return points;
  }

  function inspect() {
    const found = summary(state);
    const pixel = over ?? state.pixel;
    const own = look(model, found, state.pixel); // the numbers, of which a step tells, are those of the ring
    const seen = over ? look(model, found, over) : own;
    const [px, py] = plane.at(middle(state.pixel)).map((z) => z.toFixed(1));
    pointer.setAttribute("transform", `translate(${px} ${py})`);
    pointer.setAttribute("aria-label", `The pointer at row ${state.pixel[0]}, column ${state.pixel[1]}; arrow keys move it, Enter clicks, Backspace takes a click back`);
    const [open, told] = [seen, own].map((one) => found && !one.clicked && !one.torn);
    ways.replaceChildren(
      ...(found ? seen.neighbours.map(([k, a]) => plane.path([place(seen.unit), place(k)], { class: "attends", style: `stroke-width: ${(30 * a).toFixed(1)}` })) : []),
      ...(open ? seen.routes.flatMap((route, c) => [["aim wide", 10 - 4 * c], [`way ${LOOK[c + 1]}`, 7 - 4 * c]].map(([name, wide]) => plane.path(wayOf(route), { class: name, style: `stroke-width: ${wide}` }))) : []),
      ...seen.asked.map(([j, w]) => plane.dot(place(j), { r: (3 + 9 * Math.sqrt(w)).toFixed(1), class: "asked" })),
    );
    bars(shares, seen.asked.map(([j, w]) => [`unit ${j}`, w, null]), { width: 130 });
    parts.toggleAttribute("hidden", !open);
    if (open) {
      const rows = [["paths", seen.paths], ["colours", seen.colours], ["neighbours", seen.fromNeighbours]];
      signedBars(parts, [...rows, ["together", rows.reduce((sum, [, x]) => sum + x, 0)]]);
    }
    saying.lastChild.textContent = !found ? "There is no answer before both classes have a click." : seen.clicked ? `Unit ${seen.unit} is clicked: its class is known.`
      : seen.torn ? `Clicks of both classes meet in unit ${seen.unit}: where it is asked, the nearest of them answers.`
      : `What unit ${seen.unit} is told, nats of log odds.${seen.forbidden ? " But its class held no click in one piece, so that it has the other." : ""}`;
    const where = `Pixel ${pixel.join(", ")}`;
    now(!found ? "Click the pagoda, and the rest." : `Intersection over union ${found.overlap.toFixed(3)} after ${state.clicks.length} clicks. ${where} is pagoda with probability ${seen.probability.toFixed(3)}.`);
    read.set({
      clicks: state.clicks.length, drawn: model.truth[own.i] + 1, unit: own.unit, attention: own.asked.map(([, w]) => w), overlap: found?.overlap ?? null, share: found?.share ?? null, wrong: found?.wrong ?? null, expected: found?.expected ?? null,
      probability: own.probability ?? null, unitProbability: own.unitProbability ?? null, told: own.told ?? null, lengths: found ? found.lengths[own.unit] : null,
      paths: told ? own.paths : null, colours: told ? own.colours : null, neighbours: told ? own.fromNeighbours : null,
    });
  }

  return {
    update(next) {
      state = next;
      const found = summary(state);
      draw(found);
      inspect();
      plane.node.setAttribute("aria-label", found ? `The photograph: ${(100 * found.share).toFixed(0)} % of it taken for pagoda after ${state.clicks.length} clicks` : "The photograph, without an answer");
      controls.set(state);
      undoing.enable(state.clicks.length > 0);
    },
  };
}

export default {
  id: "one-click", title: "One click on a picture",
  sentence: "Clicks on a photograph are classes of units that are known. Paths, colours and neighbours carry them to the other units, and each pixel asks the units near it.",
  suggestion: "click on what is wrong; then take a click back, and let each unit answer on its own.",
  notebook: "12_interactive_segmentation", defaults, fields, mount, python,
};
