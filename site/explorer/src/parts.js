// Parts of the views 6, 8 and 9 that no other has: shares of units with bands, clouds of points, work put off.

import { svg, unitClass } from "./ui.js";

// Runs `act` when nobody has called for a while; `cancel` forgets the call.
export function later(act, milliseconds = 150) {
  let timer = 0;
  const call = (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...given), milliseconds);
  };
  call.cancel = () => clearTimeout(timer);
  return call;
}

// Many points as one path of round dots.
export function cloud(plane, points, unit) {
  let d = "";
  for (const point of points) {
    const [x, y] = plane.at(point);
    d += `M${x.toFixed(1)} ${y.toFixed(1)}h0`;
  }
  return svg("path", { d, class: `cloud ${unit}` });
}

// ---- rows of shares: for every row [name, probabilities, [lower, upper] or null] a bar per unit ----------------------------------

export function shares(picture, rows, units) {
  const [width, bar, gap] = [230, 14, 12];
  const left = 34 + 9 * Math.max(...rows.map(([label]) => label.length)); // of letters of 18 pixels, as on the stage
  const high = units.length * bar + gap;
  picture.setAttribute("viewBox", `0 0 ${left + width + 12} ${rows.length * high + 16}`);
  const parts = [];
  rows.forEach(([label, p, ends], r) => {
    const top = r * high + 4;
    parts.push(svg("text", { x: left - 22, y: top + (units.length * bar) / 2 + 4, "text-anchor": "end" }, label));
    p.forEach((share, j) => {
      const y = top + j * bar;
      parts.push(svg("text", { x: left - 6, y: y + bar - 3, "text-anchor": "end" }, units[j]));
      parts.push(svg("rect", { x: left, y: y + 1, width: (width * share).toFixed(2), height: bar - 2, class: `fill ${unitClass(j)}` }));
      if (ends) {
        const [a, b] = [ends[0][j], ends[1][j]].map((z) => (left + width * z).toFixed(2));
        parts.push(svg("path", { d: `M${a} ${y + bar / 2}L${b} ${y + bar / 2}M${a} ${y + 2}v${bar - 4}M${b} ${y + 2}v${bar - 4}`, class: "band" }));
      }
    });
  });
  for (const at of [0, 0.5, 1]) {
    parts.push(svg("text", { x: left + width * at, y: rows.length * high + 12, "text-anchor": "middle", class: "tick" }, String(at)));
    parts.push(svg("path", { d: `M${left + width * at} 2v${rows.length * high}`, class: "grid" }));
  }
  picture.replaceChildren(...parts);
  picture.setAttribute("aria-label", rows.map(([label, p]) => `${label}: ${p.map((x, j) => `${units[j]} ${x.toFixed(2)}`).join(", ")}`).join("; "));
}
