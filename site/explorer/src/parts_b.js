// Parts of the views 6, 8 and 9: a plane with handles, controls by name, rows of shares, numbers that tests read.

const SVG = "http://www.w3.org/2000/svg";

export function node(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  made.append(...children);
  return made;
}

export function svg(tag, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// Runs `act` when nobody has called for a while.
export function later(act, milliseconds = 150) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...given), milliseconds);
  };
}

export const rounded = (x, digits = 3) => Number(x.toPrecision(digits));

export function short(x) {
  if (typeof x !== "number") return String(x);
  const size = Math.abs(x);
  if (Number.isInteger(x)) return String(x);
  if (size !== 0 && size < 1e-3) return x.toExponential(1);
  return size >= 1000 ? x.toFixed(0) : size >= 100 ? x.toFixed(1) : size >= 10 ? x.toFixed(2) : x.toFixed(3);
}

// ---- layout ------------------------------------------------------------------------------------------------------------------

// The look of these views, on the frame's variables where it has them.
export const STYLE = `
.b-view { --u0: #0072b2; --u1: #e69f00; --u2: #009e73; --u3: #cc79a7; --u4: #56b4e9; --u5: #d55e00; --u6: #f0e442; --u7: #777777;
  --b-ink: var(--ink, #222222); --b-soft: var(--muted, #595959); --b-line: var(--line, #cfcfcf); --b-back: var(--panel, #f6f6f4); --b-accent: var(--accent, #0072b2); }
.b-view { display: grid; grid-template-columns: minmax(0, 1.25fr) minmax(0, 1fr); gap: 0 1.5rem; align-items: start; color: var(--b-ink); }
.b-view > div { min-width: 0; }
.b-view figure { margin: 0 0 0.8rem; }
.b-view figcaption { font-size: 0.82rem; color: var(--b-soft); margin-top: 0.2rem; }
.b-view svg { display: block; width: 100%; height: auto; max-width: 46rem; }
.b-view svg text { font: 12px system-ui, sans-serif; fill: var(--b-ink); }
.b-view .b-plane text { font-size: 18px; font-weight: 600; }
.b-view .b-word { font-size: 15px; } .b-view .b-letter { paint-order: stroke; stroke: var(--b-back); stroke-width: 5px; }
.b-plane { touch-action: none; }
.b-back { fill: var(--b-back); stroke: var(--b-line); stroke-width: 2; cursor: crosshair; }
.b-handle { cursor: grab; outline: none; }
.b-touch { fill: transparent; stroke: none; }
.b-handle:focus-visible .b-touch { stroke: var(--b-ink); stroke-width: 3; stroke-dasharray: 5 4; }
.b-dot { fill: var(--b-ink); stroke: var(--b-back); stroke-width: 2; }
.b-ring { fill: none; stroke: var(--u, var(--b-ink)); stroke-width: 3.5; stroke-dasharray: 6 4; }
.b-cross { fill: none; stroke: var(--b-ink); stroke-width: 5; stroke-linecap: round; }
.b-view .fill { fill: var(--u); } .b-view .faint { fill: var(--u); opacity: 0.4; } .b-view .path { fill: none; stroke: var(--u); stroke-width: 3.5; }
${[0, 1, 2, 3, 4, 5, 6, 7].map((u) => `.b-view .unit-${u} { --u: var(--u${u}); }`).join(" ")}
.b-view .b-key { color: var(--u); }
.b-trace { fill: none; stroke: var(--u); stroke-width: 1; } .b-trace.strong { stroke-width: 2.5; }
.b-band { stroke: var(--b-ink); stroke-width: 1.5; fill: none; } .b-grid { stroke: var(--b-line); stroke-width: 1; fill: none; }
.b-view .b-tick { fill: var(--b-soft); font-size: 10px; }
.b-arc, .b-line { fill: none; stroke: var(--b-accent); } .b-line { stroke-width: 2; } .b-arrow, .b-point { fill: var(--b-accent); }
.b-dashed { fill: none; stroke: var(--b-ink); stroke-width: 1.3; stroke-dasharray: 5 4; } .b-histogram { fill: var(--b-soft); opacity: 0.45; } .b-shade { fill: var(--b-soft); opacity: 0.25; }
.b-control { margin: 0 0 0.55rem; } .b-control label { display: flex; justify-content: space-between; gap: 1rem; font-size: 0.88rem; } .b-control output { font-variant-numeric: tabular-nums; }
.b-control input { width: 100%; margin: 0; min-height: 28px; accent-color: var(--b-accent); }
.b-choice { border: 0; padding: 0; margin: 0 0 0.6rem; display: flex; flex-wrap: wrap; gap: 0.1rem 0.9rem; font-size: 0.88rem; } .b-choice legend { padding: 0; margin-bottom: 0.1rem; }
.b-choice label { display: inline-flex; gap: 0.35rem; align-items: center; min-height: 28px; } .b-choice input { accent-color: var(--b-accent); margin: 0; width: 18px; height: 18px; }
.b-buttons { display: flex; flex-wrap: wrap; gap: 0.5rem; margin: 0.3rem 0 0.8rem; }
.b-numbers { border-collapse: collapse; width: 100%; font-size: 0.85rem; margin: 0 0 0.9rem; } .b-numbers th { text-align: left; font-weight: 400; color: var(--b-soft); padding: 0.15rem 0.6rem 0.15rem 0; vertical-align: top; }
.b-numbers td { font-variant-numeric: tabular-nums; padding: 0.15rem 0; overflow-wrap: anywhere; min-width: 7em; } .b-view details { font-size: 0.85rem; margin: 0 0 0.9rem; } .b-view summary { cursor: pointer; min-height: 28px; } .b-numbers tr { border-bottom: 1px solid var(--b-line); }
.b-wide { display: block; font-size: 0.88rem; } #b-sentence { width: 100%; max-width: 34rem; font: inherit; padding: 0.4rem 0.5rem; box-sizing: border-box; color: inherit; background: var(--b-back, transparent); border: 1px solid currentColor; border-radius: 4px; }
.b-view .b-swatch { stroke-width: 4; } .b-legend, .b-verdict { font-size: 0.88rem; margin: 0.4rem 0; } .b-verdict { font-weight: 600; } .b-tally { font-size: 0.88rem; padding-left: 1.4rem; margin: 0 0 0.9rem; }
@media (max-width: 760px) {
  .b-view { grid-template-columns: minmax(0, 1fr); }
  .b-view svg text { font-size: 15px; } .b-view .b-word { font-size: 18px; } .b-view .b-plane text { font-size: 26px; } .b-view .b-tick { font-size: 13px; }
  .b-dot { r: 11px; } .b-ring { r: 16px; }
}
`;

function styled() {
  if (document.getElementById("b-style")) return;
  document.head.append(node("style", { id: "b-style" }, STYLE));
}

export function columns(left, right) {
  styled();
  return node("div", { class: "b-view" }, node("div", {}, ...[left].flat()), node("div", {}, ...[right].flat()));
}

export function figure(picture, caption) {
  return node("figure", { class: "b-figure" }, picture, node("figcaption", {}, caption));
}

// ---- controls: { name, node, set(value, enabled) } -----------------------------------------------------------------------------

let made = 0;

export function slider({ name, label, min, max, step = 0.01, log = false, on }) {
  const id = `b-${name}-${made++}`;
  const input = node("input", { id, type: "range", name, min: log ? 0 : min, max: log ? 200 : max, step: log ? 1 : step });
  const output = node("output", { for: id });
  const value = () => (log ? rounded(min * (max / min) ** (input.value / 200)) : Number(input.value));
  input.addEventListener("input", () => on(value()));
  return {
    name,
    node: node("div", { class: "b-control" }, node("label", { for: id }, label, " ", output), input),
    set(x, enabled = true) {
      const place = log ? Math.round((200 * Math.log(x / min)) / Math.log(max / min)) : x;
      if (Number(input.value) !== place) input.value = place;
      output.textContent = String(rounded(x, 4));
      input.disabled = !enabled;
    },
  };
}

export function choice(label, options, name, on) {
  const group = `b-${name}-${made++}`;
  const inputs = Object.keys(options).map((key) => {
    const input = node("input", { type: "radio", name: group, value: key, id: `${group}-${key}` });
    input.addEventListener("change", () => on(key));
    return input;
  });
  const labels = inputs.map((input) => node("label", { for: input.id }, input, node("span", {}, options[input.value])));
  return {
    name,
    node: node("fieldset", { class: "b-choice", "data-control": name }, node("legend", {}, label), ...labels),
    set(value) {
      for (const input of inputs) input.checked = input.value === value;
    },
  };
}

export function button(name, label, on) {
  const made = node("button", { type: "button", "data-control": name }, label);
  made.addEventListener("click", on);
  return { name: null, node: made, set() {} };
}

export function panel(label, controls) {
  const buttons = controls.filter((control) => control.name === null).map((control) => control.node);
  const others = controls.filter((control) => control.name !== null).map((control) => control.node);
  return {
    node: node("section", { class: "b-panel", "aria-label": label }, ...others, node("div", { class: "b-buttons" }, ...buttons)),
    set(state, enabled = {}) {
      for (const control of controls) if (control.name !== null) control.set(state[control.name], enabled[control.name] ?? true);
    },
  };
}

// ---- numbers -------------------------------------------------------------------------------------------------------------------

// A table of name and number, and more of them to unfold. `set` takes numbers or nested arrays, undefined for one that is being
// computed and null for one that there is not; tests read numbers whole as JSON in data-json.
export function readout(labels, more) {
  const rows = {};
  const tables = [labels, more].map((some) => {
    const body = node("tbody");
    for (const [name, label] of Object.entries(some)) {
      const cell = node("td", { "data-value": name });
      rows[name] = { row: node("tr", {}, node("th", { scope: "row" }, label), cell), cell };
      body.append(rows[name].row);
    }
    return node("table", { class: "b-numbers" }, body);
  });
  const show = (x) => (Array.isArray(x) ? x.map((y) => (Array.isArray(y) ? `(${show(y)})` : short(y))).join(", ") : short(x));
  return {
    node: node("div", {}, tables[0], node("details", {}, node("summary", {}, "More numbers"), tables[1])),
    set(values) {
      for (const [name, value] of Object.entries(values)) {
        const { row, cell } = rows[name];
        row.hidden = value === null;
        if (value === undefined) {
          cell.textContent = "…";
          cell.removeAttribute("data-json");
        } else if (value !== null) {
          cell.textContent = show(value);
          cell.setAttribute("data-json", JSON.stringify(value));
        }
      }
    },
  };
}

// ---- a plane with handles --------------------------------------------------------------------------------------------------------

export class Plane {
  constructor({ x, y, label, scale = 100 }) {
    Object.assign(this, { x, y, scale });
    this.width = (x[1] - x[0]) * scale;
    this.height = (y[1] - y[0]) * scale;
    this.node = svg("svg", { class: "b-plane", viewBox: `0 0 ${this.width} ${this.height}`, role: "group", "aria-label": label });
    this.back = svg("rect", { width: this.width, height: this.height, class: "b-back" });
    this.node.append(this.back);
  }

  layer(name) {
    const made = svg("g", { class: `layer-${name}` });
    this.node.append(made);
    return made;
  }

  at([x, y]) {
    return [(x - this.x[0]) * this.scale, (this.y[1] - y) * this.scale];
  }

  // The point under a pointer, inside the plane, to two decimals.
  pointOf(event) {
    const box = this.node.getBoundingClientRect();
    const across = (event.clientX - box.left) / box.width;
    const down = (event.clientY - box.top) / box.height;
    return this.clamp([this.x[0] + across * (this.x[1] - this.x[0]), this.y[1] - down * (this.y[1] - this.y[0])]);
  }

  clamp([x, y]) {
    const within = (z, [low, high]) => Math.round(100 * Math.min(high, Math.max(low, z))) / 100;
    return [within(x, this.x), within(y, this.y)];
  }

  onEmpty(act) {
    this.back.addEventListener("click", (event) => act(this.pointOf(event)));
  }

  dot(point, { r, class: name }) {
    const [cx, cy] = this.at(point);
    return svg("circle", { cx: cx.toFixed(1), cy: cy.toFixed(1), r, class: name });
  }

  path(points, attributes) {
    return svg("path", { d: points.map((p, i) => `${i ? "L" : "M"}${this.at(p).map((z) => z.toFixed(1)).join(" ")}`).join(""), ...attributes });
  }

  text(point, words, { dx = 0, dy = 0, ...attributes } = {}) {
    const [x, y] = this.at(point);
    return svg("text", { x: x + dx, y: y + dy, "text-anchor": "middle", ...attributes }, words);
  }

  // Points that can be dragged, or moved with the arrow keys (with shift by a tenth of the step). `on` takes all points.
  handles(layer, points, { name, shape, unit = () => null, on }) {
    layer.points = points;
    layer.on = on;
    while (layer.children.length > points.length) layer.lastChild.remove();
    while (layer.children.length < points.length) layer.append(this.handle(layer, layer.children.length, shape, unit));
    points.forEach((point, i) => {
      const [x, y] = this.at(point);
      const own = layer.children[i];
      own.setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
      own.setAttribute("aria-label", `${name(i)} at ${point.join(", ")}; arrow keys move it`);
    });
  }

  handle(layer, i, shape, unit) {
    const color = unit(i) === null ? "" : ` unit-${unit(i) % 8}`;
    const mark = {
      dot: () => svg("circle", { r: 8, class: "b-dot" }),
      ring: () => svg("circle", { r: 12, class: `b-ring${color}` }),
      cross: () => svg("path", { d: "M-13-13L13 13M-13 13L13-13", class: "b-cross" }),
    }[shape]();
    const own = svg("g", { class: "b-handle", tabindex: 0, role: "button" }, svg("circle", { r: 24, class: "b-touch" }), mark);
    const move = (point) => layer.on(layer.points.map((p, k) => (k === i ? this.clamp(point) : p)));
    own.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      own.setPointerCapture(event.pointerId);
      own.focus();
    });
    own.addEventListener("pointermove", (event) => own.hasPointerCapture(event.pointerId) && move(this.pointOf(event)));
    own.addEventListener("keydown", (event) => {
      const step = event.shiftKey ? 0.01 : 0.1;
      const [dx, dy] = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] }[event.key] ?? [0, 0];
      if (!dx && !dy) return;
      event.preventDefault();
      const [x, y] = layer.points[i];
      move([x + dx, y + dy]);
    });
    return own;
  }
}

// ---- rows of shares: for every row [name, probabilities, [lower, upper] or null] a bar per unit ----------------------------------

export function shares(picture, rows, units) {
  const [left, width, bar, gap] = [118, 230, 14, 12];
  const high = units.length * bar + gap;
  picture.setAttribute("viewBox", `0 0 360 ${rows.length * high + 16}`);
  const parts = [];
  rows.forEach(([label, p, ends], r) => {
    const top = r * high + 4;
    parts.push(svg("text", { x: left - 22, y: top + (units.length * bar) / 2 + 4, "text-anchor": "end" }, label));
    p.forEach((share, j) => {
      const y = top + j * bar;
      parts.push(svg("text", { x: left - 6, y: y + bar - 3, "text-anchor": "end", class: `unit-${j % 8}` }, units[j]));
      parts.push(svg("rect", { x: left, y: y + 1, width: (width * share).toFixed(2), height: bar - 2, class: `fill unit-${j % 8}` }));
      if (ends) {
        const [a, b] = [ends[0][j], ends[1][j]].map((z) => (left + width * z).toFixed(2));
        parts.push(svg("path", { d: `M${a} ${y + bar / 2}L${b} ${y + bar / 2}M${a} ${y + 2}v${bar - 4}M${b} ${y + 2}v${bar - 4}`, class: "b-band" }));
      }
    });
  });
  for (const at of [0, 0.5, 1]) {
    parts.push(svg("text", { x: left + width * at, y: rows.length * high + 12, "text-anchor": "middle", class: "b-tick" }, String(at)));
    parts.push(svg("path", { d: `M${left + width * at} 2v${rows.length * high}`, class: "b-grid" }));
  }
  picture.replaceChildren(...parts);
  picture.setAttribute("aria-label", rows.map(([label, p]) => `${label}: ${p.map((x, j) => `${units[j]} ${x.toFixed(2)}`).join(", ")}`).join("; "));
}
