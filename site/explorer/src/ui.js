// Parts of every view: elements, controls by name, numbers that tests read, a plane with handles, bars, curves, shading.

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

export const rounded = (x, digits = 3) => Number(x.toPrecision(digits));

export function short(x) {
  if (typeof x !== "number") return String(x);
  const size = Math.abs(x);
  if (Number.isInteger(x) && size < 1e6) return String(x);
  if (size !== 0 && size < 1e-3) return x.toExponential(1);
  return size >= 1000 ? x.toFixed(0) : size >= 100 ? x.toFixed(1) : size >= 10 ? x.toFixed(2) : x.toFixed(3);
}

export const unitClass = (j) => `unit-${j % 8}`;

// Draws of a slider's way: every number of a state has at most two decimals, so that addresses stay short.
export const cents = (x) => Math.round(100 * x) / 100;

// A literal of Python for nested arrays of numbers; the shortest text that reads back as the same float.
export const literal = (x) => (Array.isArray(x) ? `[${x.map(literal).join(", ")}]` : Number.isInteger(x) && Math.abs(x) < 1e21 ? `${x}.0` : String(x));
export const tensor = (x) => `torch.tensor(${literal(x)})`;

// ---- layout ------------------------------------------------------------------------------------------------------------------

// The picture that is moved, the controls beside it, the other pictures, and numbers to unfold. `aspect` is the main picture's width over
// its height, `across` how many of the other pictures stand side by side. Marks of one unit light up together; `lit` hears of which, or null.
export function layout(root, { main, controls, others = [], numbers, aspect, across = others.length || 1, lit = () => {} }) {
  const left = node("div", { class: "main" }, ...[main].flat());
  const right = node("div", { class: "others" }, ...others);
  const folded = node("details", { class: "fold", "data-control": "numbers" }, node("summary", {}, "Numbers"), numbers.node);
  left.querySelector("figure").firstChild.classList.add("stays");
  const all = node("div", { class: "parts" }, left, controls.node, ...(others.length ? [right] : []), folded);
  all.style.setProperty("--aspect", aspect ?? 1.25);
  right.style.setProperty("--across", across);
  root.append(all);
  const light = node("style");
  all.append(light);
  let shown = null;
  const point = (event) => {
    const unit = event.target.closest?.("[data-unit]")?.dataset.unit ?? null;
    if (unit === shown) return;
    shown = unit;
    light.textContent = unit === null ? "" : `#view [data-unit="${unit}"] { filter: drop-shadow(0 0 2px var(--ink)); }`; // survives a redraw
    lit(unit === null ? null : Number(unit));
  };
  for (const kind of ["pointermove", "focusin"]) all.addEventListener(kind, point);
}

export function figure(picture, caption) {
  return node("figure", {}, picture, node("figcaption", {}, caption));
}

// ---- controls: { name, node, set(value, enabled) } -----------------------------------------------------------------------------

let made = 0;

export function slider({ name, label, min, max, step = 0.01, log = false, on }) {
  const id = `slider-${name}-${made++}`;
  const input = node("input", { id, type: "range", name, min: log ? 0 : min, max: log ? 200 : max, step: log ? 1 : step });
  const output = node("span", { class: "value", "aria-hidden": "true" });
  const caption = node("span", {}, label);
  const value = () => (log ? rounded(min * (max / min) ** (input.value / 200)) : Number(input.value));
  input.addEventListener("input", () => on(value()));
  return {
    name,
    node: node("div", { class: "control", "data-control": name }, node("label", { for: id }, caption, " ", output), input),
    label(text) {
      caption.textContent = text;
    },
    set(x, enabled = true) {
      const place = log ? Math.round((200 * Math.log(x / min)) / Math.log(max / min)) : x;
      if (Number(input.value) !== place) input.value = place;
      output.textContent = String(rounded(x, 4));
      input.setAttribute("aria-valuetext", output.textContent);
      input.disabled = !enabled;
    },
  };
}

export function choice(label, options, name, on) {
  const group = `choice-${name}-${made++}`;
  const inputs = Object.keys(options).map((key) => {
    const input = node("input", { type: "radio", name: group, value: key, id: `${group}-${key}` });
    input.addEventListener("change", () => on(key));
    return input;
  });
  const labels = inputs.map((input) => node("label", { for: input.id }, input, node("span", {}, options[input.value])));
  return {
    name,
    node: node("fieldset", { class: "choice", "data-control": name }, node("legend", {}, label), ...labels),
    set(value) {
      for (const input of inputs) input.checked = input.value === String(value);
    },
  };
}

export function check(name, label, on) {
  const input = node("input", { type: "checkbox", name });
  input.addEventListener("change", () => on(input.checked));
  return {
    name,
    node: node("label", { class: "check", "data-control": name }, input, node("span", {}, label)),
    set(value, enabled = true) {
      input.checked = Boolean(value);
      input.disabled = !enabled;
    },
  };
}

export function button(name, label, on) {
  const own = node("button", { type: "button", "data-control": name }, label);
  own.addEventListener("click", on);
  return { name: null, node: own, set() {}, enable: (enabled) => (own.disabled = !enabled) };
}

// Controls together; `set` gives each the part of the state that has its name, if there is one.
export function panel(label, controls) {
  const buttons = controls.filter((control) => control.name === null).map((control) => control.node);
  const others = controls.filter((control) => control.name !== null).map((control) => control.node);
  return {
    node: node("section", { class: "panel", "aria-label": label }, ...others, node("div", { class: "buttons" }, ...buttons)),
    set(state, enabled = {}) {
      for (const control of controls) if (control.name in state) control.set(state[control.name], enabled[control.name] ?? true);
    },
  };
}

// ---- numbers -------------------------------------------------------------------------------------------------------------------

// A table of name and number. `set` takes numbers or nested arrays; tests read them whole as JSON in data-json. null hides a row,
// undefined is a number that is still being computed.
export function readout(labels) {
  const body = node("tbody");
  const rows = {};
  const show = (x) => (Array.isArray(x) ? x.map((y) => (Array.isArray(y) ? `(${show(y)})` : short(y))).join(", ") : short(x));
  for (const [name, label] of Object.entries(labels)) {
    const cell = node("td", { "data-value": name });
    const row = node("tr", {}, node("th", { scope: "row" }, label), cell);
    rows[name] = { row, cell };
    body.append(row);
  }
  return {
    node: node("table", { class: "numbers" }, body),
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

// The usual ranges of a plane, wider where points lie outside; with a margin, so that no ring is cut.
export function around(points, ...usual) {
  return usual.map(([low, high], d) => {
    const all = points.map((point) => point[d]);
    const [least, most] = [Math.min(low, ...all), Math.max(high, ...all)];
    const room = 0.08 * (most - least);
    return [Math.min(low, Math.min(...all) - room), Math.max(high, Math.max(...all) + room)];
  });
}

const [WIDTH, FLATTEST, STEEPEST] = [600, 3, 1]; // of planes, and width over height at most and at least

export class Plane {
  // `units` are the place of 0 and the length of 1 on both axes, in the units of points of one's own.
  constructor({ x, y, label, width = WIDTH, ticks = true, units = null }) {
    const aspect = Math.min(FLATTEST, Math.max(STEEPEST, (x[1] - x[0]) / (y[1] - y[0])));
    Object.assign(this, { x, y, width, height: width / aspect, aspect, units });
    [this.scale, this.rise] = [width / (x[1] - x[0]), this.height / (y[1] - y[0])];
    this.node = svg("svg", { class: "plane", viewBox: `0 0 ${this.width} ${this.height}`, role: "group", "aria-label": label });
    this.back = svg("rect", { width: this.width, height: this.height, class: "back" });
    this.node.append(this.back);
    this.ticks = ticks;
  }

  // Numbers along the lower and the left edge: each axis has its own scale.
  drawTicks() {
    const own = this.layer("ticks");
    own.setAttribute("pointer-events", "none");
    const inside = (z, [low, high]) => z > low + 0.04 * (high - low) && z < high - 0.04 * (high - low);
    const [left, low] = [this.x[0], this.y[0]];
    const places = (ends, d, count) => {
      const [zero, one] = [this.units?.[0][d] ?? 0, this.units?.[1][d] ?? 1];
      return nice(...ends.map((z) => zero + one * z), count).map((said) => [(said - zero) / one, String(said)]).filter(([z]) => inside(z, ends));
    };
    for (const [z, said] of places(this.x, 0, 6)) own.append(this.text([z, low], said, { dy: -8, class: "tick" }));
    for (const [z, said] of places(this.y, 1, 4)) own.append(this.text([left, z], said, { dx: 8, dy: 6, "text-anchor": "start", class: "tick" }));
    this.ticks = false;
  }

  layer(name) {
    const own = svg("g", { class: `layer-${name}` });
    if (this.ticks && name !== "ticks") this.drawTicks();
    this.node.append(own);
    return own;
  }

  at([x, y]) {
    return [(x - this.x[0]) * this.scale, (this.y[1] - y) * this.rise];
  }

  // The point under a pointer, inside the plane, to two decimals.
  pointOf(event) {
    const box = this.node.getBoundingClientRect();
    const [across, down] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
    return this.clamp([this.x[0] + across * (this.x[1] - this.x[0]), this.y[1] - down * (this.y[1] - this.y[0])]);
  }

  clamp([x, y]) {
    const within = (z, [low, high]) => cents(Math.min(high, Math.max(low, z)));
    return [within(x, this.x), within(y, this.y)];
  }

  onEmpty(act) {
    this.node.classList.add("crosshair");
    this.back.addEventListener("click", (event) => act(this.pointOf(event)));
  }

  dot(point, { r, ...attributes }) {
    const [cx, cy] = this.at(point);
    return svg("circle", { cx: cx.toFixed(1), cy: cy.toFixed(1), r, ...attributes });
  }

  path(points, attributes) {
    return svg("path", { d: points.map((p, i) => `${i ? "L" : "M"}${this.at(p).map((z) => z.toFixed(1)).join(" ")}`).join(""), ...attributes });
  }

  // Many small dots as one element.
  dots(points, size, attributes) {
    const d = points.map((p) => `M${this.at(p).map((z) => z.toFixed(1)).join(" ")}h0`).join("");
    return svg("path", { d, "stroke-width": 2 * size, "stroke-linecap": "round", ...attributes });
  }

  // Many short lines, each of two points, as one element.
  lines(pairs, attributes) {
    const d = pairs.map(([a, b]) => `M${this.at(a).map((z) => z.toFixed(1)).join(" ")}L${this.at(b).map((z) => z.toFixed(1)).join(" ")}`).join("");
    return svg("path", { d, ...attributes });
  }

  text(point, words, { dx = 0, dy = 0, ...attributes } = {}) {
    const [x, y] = this.at(point);
    return svg("text", { x: x + dx, y: y + dy, "text-anchor": "middle", ...attributes }, words);
  }

  // A picture under the layers that were made after it; `shade(points) -> [r, g, b, a]` in 0..255 for each of columns x rows cells.
  shading(columns_, rows) {
    const canvas = node("canvas", { width: columns_, height: rows });
    const image = svg("image", { width: this.width, height: this.height, preserveAspectRatio: "none", class: "shading", "aria-hidden": "true" });
    this.node.append(image);
    const pen = canvas.getContext("2d");
    const pixels = pen.createImageData(columns_, rows);
    const [wide, high] = [(this.x[1] - this.x[0]) / columns_, (this.y[1] - this.y[0]) / rows];
    const draw = (shade) => {
      for (let r = 0, at = 0; r < rows; r++) {
        for (let c = 0; c < columns_; c++, at += 4) {
          const color = shade([this.x[0] + (c + 0.5) * wide, this.y[1] - (r + 0.5) * high], r * columns_ + c);
          for (let k = 0; k < 4; k++) pixels.data[at + k] = color[k];
        }
      }
      pen.putImageData(pixels, 0, 0);
      image.setAttribute("href", canvas.toDataURL());
    };
    draw.image = image;
    return draw;
  }

  // Points that can be dragged, or moved with the arrow keys (with shift by a tenth of the step). `on` takes all points, and which moved.
  handles(layer, points, { name, shape, unit = () => null, radius = () => 12, step = 0.1, on, chosen = () => {} }) {
    Object.assign(layer, { points, on, chosen });
    const said = (point) => (this.units ? point.map((z, d) => rounded(this.units[0][d] + this.units[1][d] * z, 4)) : point);
    while (layer.children.length > points.length) layer.lastChild.remove();
    while (layer.children.length < points.length) layer.append(this.handle(layer, layer.children.length, shape, unit, step));
    points.forEach((point, i) => {
      const [x, y] = this.at(point);
      const own = layer.children[i];
      own.setAttribute("transform", `translate(${x.toFixed(1)} ${y.toFixed(1)})`);
      own.setAttribute("aria-label", `${name(i)} at ${said(point).join(", ")}; arrow keys move it`);
      if (shape === "ring") own.lastChild.setAttribute("r", radius(i).toFixed(1));
    });
  }

  handle(layer, i, shape, unit, size) {
    const color = unit(i) === null ? "" : ` ${unitClass(unit(i))}`;
    const mark = {
      dot: () => svg("circle", { r: 9, class: "dot" }),
      ring: () => svg("circle", { r: 12, class: `ring${color}` }),
      spot: () => svg("circle", { r: 10, class: `spot${color}` }),
      cross: () => svg("path", { d: "M-13-13L13 13M-13 13L13-13", class: "cross" }),
    }[shape]();
    const own = svg("g", { class: "handle", tabindex: 0, role: "button", "data-unit": unit(i) }, svg("circle", { r: 26, class: "touch" }), mark);
    const far = (d) => Math.max(1, Math.round((this[d][1] - this[d][0]) / 10));
    const [wide, high] = [far("x"), far("y")];
    const move = (point) => layer.on(layer.points.map((p, k) => (k === i ? this.clamp(point) : p)), i);
    own.addEventListener("focus", () => layer.chosen(i));
    own.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      own.setPointerCapture(event.pointerId);
      own.focus({ preventScroll: true });
    });
    own.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false }); // the plane scrolls, a handle does not
    own.addEventListener("pointermove", (event) => own.hasPointerCapture(event.pointerId) && move(this.pointOf(event)));
    own.addEventListener("keydown", (event) => {
      const by = event.shiftKey ? size / 10 : size;
      const [dx, dy] = { ArrowLeft: [-by, 0], ArrowRight: [by, 0], ArrowUp: [0, by], ArrowDown: [0, -by] }[event.key] ?? [0, 0];
      if (!dx && !dy) return;
      event.preventDefault();
      const [x, y] = layer.points[i];
      move([x + wide * dx, y + high * dy]);
    });
    return own;
  }
}

// ---- colours for shading ---------------------------------------------------------------------------------------------------------

// The colour of a CSS variable, as [r, g, b].
export function color(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
}

export const blend = (a, b, share) => a.map((x, k) => x + share * (b[k] - x));

// ---- bars: rows of [label, share, unit or null, the unit to light up with], shares in [0, 1] ------------------------------------------

export function bars(picture, rows, { high = 22, width = 200 } = {}) {
  const left = 14 + 9 * Math.max(...rows.map(([label]) => label.length)); // of letters of 18 pixels, as on the stage
  picture.setAttribute("viewBox", `0 0 ${left + width + 62} ${rows.length * high + 4}`);
  const parts = rows.flatMap(([label, share, unit, mark = unit], r) => {
    const y = r * high + 2;
    return [
      svg("rect", { x: 0, y, width: left + width + 62, height: high, class: "row", "data-unit": mark }), // to point at a row
      svg("text", { x: left - 8, y: y + high / 2 + 4, "text-anchor": "end", "data-unit": mark }, label),
      svg("rect", { x: left, y: y + 2, width: Math.max(0, width * share).toFixed(2), height: high - 5, "data-unit": mark, class: unit === null ? "bar" : `bar ${unitClass(unit)}` }),
      svg("text", { x: left + width * Math.max(0, share) + 6, y: y + high / 2 + 4, "data-unit": mark }, share.toFixed(3)),
    ];
  });
  picture.replaceChildren(...parts);
  picture.setAttribute("aria-label", rows.map(([label, share]) => `${label} ${share.toFixed(3)}`).join("; "));
}

// ---- curves: a small chart with axes ------------------------------------------------------------------------------------------------

export const nice = (low, high, count) => {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= rough);
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k++) ticks.push(Number((k * step).toPrecision(12)));
  return ticks;
};

export class Chart {
  constructor({ label, width = 340, height = 200, xlabel = "", ylabel = "", log = false }) {
    Object.assign(this, { width, height, log, box: { left: 46, right: 10, top: 10, bottom: 36 }, xlabel, ylabel, label });
    this.node = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, class: "chart" });
  }

  range(x, y) {
    this.x = x;
    this.y = y[1] > y[0] ? y : [y[0], y[0] + 1];
  }

  at([x, y]) {
    const { left, right, top, bottom } = this.box;
    const f = this.log ? Math.log : (z) => z;
    const across = (f(x) - f(this.x[0])) / (f(this.x[1]) - f(this.x[0]));
    const up = (y - this.y[0]) / (this.y[1] - this.y[0]);
    return [left + across * (this.width - left - right), this.height - bottom - up * (this.height - top - bottom)];
  }

  // The x under a pointer.
  xOf(event) {
    const shown = this.node.getBoundingClientRect();
    const { left, right } = this.box;
    const share = (((event.clientX - shown.left) / shown.width) * this.width - left) / (this.width - left - right);
    const within = Math.min(1, Math.max(0, share));
    return this.log ? this.x[0] * (this.x[1] / this.x[0]) ** within : this.x[0] + within * (this.x[1] - this.x[0]);
  }

  line(points, attributes = {}) {
    const d = points.map((p, i) => `${i ? "L" : "M"}${this.at(p).map((z) => z.toFixed(1)).join(" ")}`).join("");
    return svg("path", { d, class: "line", ...attributes });
  }

  upright(x, attributes = {}) {
    return this.line([[x, this.y[0]], [x, this.y[1]]], { class: "rule", ...attributes });
  }

  level(y, attributes = {}) {
    return this.line([[this.x[0], y], [this.x[1], y]], { class: "rule", ...attributes });
  }

  dot(point, attributes = {}) {
    const [cx, cy] = this.at(point);
    return svg("circle", { cx: cx.toFixed(1), cy: cy.toFixed(1), r: 5, class: "point", ...attributes });
  }

  draw(...parts) {
    const { left, right, top, bottom } = this.box;
    const [low, high] = [this.height - bottom, top];
    const axes = [svg("path", { d: `M${left} ${high}V${low}H${this.width - right}`, class: "axis" })];
    const decades = () => {
      const found = [];
      for (let p = Math.floor(Math.log10(this.x[0])); p <= Math.log10(this.x[1]); p++) for (const m of [1, 2, 5]) found.push(Number((m * 10 ** p).toPrecision(6)));
      return found.filter((x) => x >= this.x[0] && x <= this.x[1]);
    };
    for (const x of this.log ? decades() : nice(...this.x, 6)) axes.push(svg("text", { x: this.at([x, this.y[0]])[0].toFixed(1), y: low + 14, "text-anchor": "middle", class: "tick" }, String(x)));
    for (const y of nice(...this.y, 4)) axes.push(svg("text", { x: left - 5, y: (this.at([this.x[0], y])[1] + 4).toFixed(1), "text-anchor": "end", class: "tick" }, String(y)));
    axes.push(svg("text", { x: (left + this.width - right) / 2, y: this.height - 5, "text-anchor": "middle", class: "tick" }, this.xlabel));
    if (this.ylabel) axes.push(svg("text", { transform: `translate(12 ${(low + high) / 2}) rotate(-90)`, "text-anchor": "middle", class: "tick" }, this.ylabel));
    this.node.replaceChildren(...axes, ...parts.flat());
  }
}
