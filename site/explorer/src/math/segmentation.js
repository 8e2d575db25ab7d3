// Interactive segmentation as the library has it (probtx_pyro.apps.InteractiveSegmenter): pixels attend to units, the classes of the units are
// a Potts field, and clicks are what is known of it. Units, and all else that no click touches, come from the library.

const [BLUR, TRUNCATE] = [0.15, 2.5]; // of the colours: standard deviation in steps, and how many of them count
const [ROUNDS, SWEEPS, WEIGHT_STEPS, TOLERANCE, POWER, FAR] = [3, 20, 10, 1e-3, 3, 1e6];
const CLASSES = [0, 1];

// ---- what no click touches -------------------------------------------------------------------------------------------------------------

export function decode(photograph) {
  const { arrays, data, height, width, down, across, step, settings } = photograph;
  const { buffer } = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const found = { height, width, down, across, step, settings, units: down * across, pixels: height * width };
  for (const [name, [type, start, count]] of Object.entries(arrays)) found[name] = new globalThis[type](buffer, start, count);
  found.truth = Uint8Array.from({ length: found.pixels }, (_, i) => (found.truth[i >> 3] >> (7 - (i & 7))) & 1);
  found.queries = queriesOf(found);
  found.near = nearOf(found);
  found.attention = attentionOf(found);
  found.neighbours = Array.from({ length: found.units }, () => []); // of each unit: [unit, edge]
  for (let e = 0; e < found.hops.length; e++) {
    const [j, k] = [found.pairs[2 * e], found.pairs[2 * e + 1]];
    found.neighbours[j].push([k, e]);
    found.neighbours[k].push([j, e]);
  }
  found.toFrame = pathsFrom(found, found.rim);
  found.most = Float64Array.from({ length: found.units }, (_, j) => Math.max(...found.colours.subarray(j * found.shares.length, (j + 1) * found.shares.length)));
  found.densities = Float64Array.from(found.colours, (x, at) => Math.exp(x - found.most[Math.floor(at / found.shares.length)])); // over the largest of their unit
  return found;
}

// Colours, smoothed and over their scale, and place, for every pixel; in single precision, as the library has them.
function queriesOf({ height, width, step, lab, settings }) {
  const sd = BLUR * step;
  const reach = Math.floor(TRUNCATE * sd + 0.5);
  const bell = Array.from({ length: 2 * reach + 1 }, (_, k) => Math.exp((-0.5 / (sd * sd)) * (k - reach) ** 2));
  const total = bell.reduce((a, b) => a + b);
  const mirrored = (k, size) => (k < 0 ? -1 - k : k >= size ? 2 * size - 1 - k : k);
  const smooth = (from, size, stride) => Float32Array.from(from, (x, i) => {
    const at = Math.floor(i / stride) % size; // row or column
    const place = (k) => from[i + stride * (mirrored(at + k, size) - at)];
    let sum = (x * bell[reach]) / total;
    for (let k = 1; k <= reach; k++) sum += ((place(k) + place(-k)) * bell[reach - k]) / total;
    return sum;
  });
  const both = smooth(smooth(lab, height, 3 * width), width, 3);
  return Float32Array.from({ length: 5 * height * width }, (_, at) => {
    const [i, d] = [Math.floor(at / 5), at % 5];
    return d < 3 ? both[3 * i + d] / settings.colour_scale : (d === 3 ? Math.floor(i / width) : i % width) / step;
  });
}

// The units that a pixel of each cell may attend to: those of the 3 x 3 cells about it.
const nearOf = ({ down, across, units }) => Array.from({ length: units }, (_, j) => {
  const [y, x] = [Math.floor(j / across), j % across];
  return [-1, 0, 1].flatMap((dy) => [-1, 0, 1].map((dx) => [y + dy, x + dx])).filter(([a, b]) => a >= 0 && a < down && b >= 0 && b < across).map(([a, b]) => a * across + b);
});

const cellOf = ({ width, across, step }, i) => Math.floor(Math.floor(i / width) / step) * across + Math.floor((i % width) / step);

export const unitsNear = (model, i) => model.near[cellOf(model, i)];

const apart = (a, i, b, j) => {
  let sum = 0;
  for (let d = 0; d < 5; d++) sum += (a[5 * i + d] - b[5 * j + d]) ** 2;
  return sum;
};

// w_ij over the units near each pixel, nine places a pixel.
function attentionOf(model) {
  const { pixels, queries, keys, settings } = model;
  const found = new Float64Array(9 * pixels);
  for (let i = 0; i < pixels; i++) {
    const near = unitsNear(model, i);
    const logs = near.map((j) => -0.5 * settings.key_precision * apart(queries, i, keys, j));
    const most = Math.max(...logs);
    const weights = logs.map((x) => Math.exp(x - most));
    const total = weights.reduce((a, b) => a + b);
    weights.forEach((w, k) => (found[9 * i + k] = w / total));
  }
  return found;
}

// The length of the shortest path from every unit to the nearest of some, and the next unit on it.
export function pathsFrom({ neighbours, hops }, origins) {
  const [lengths, next, open] = [neighbours.map(() => FAR), neighbours.map(() => -1), new Set(origins)];
  for (const j of origins) lengths[j] = 0;
  while (open.size) {
    let nearest = -1;
    for (const j of open) if (nearest < 0 || lengths[j] < lengths[nearest]) nearest = j;
    open.delete(nearest);
    for (const [k, e] of neighbours[nearest]) {
      const length = lengths[nearest] + hops[e];
      if (length < lengths[k]) {
        [lengths[k], next[k]] = [length, nearest];
        open.add(k);
      }
    }
  }
  return { lengths, next };
}

// ---- clicks: [row, column, class], 1 or 2 -----------------------------------------------------------------------------------------------

// The class of each clicked pixel, in reading order; of two clicks on one pixel the later counts.
export function marksOf({ width }, clicks) {
  const marks = new Map(clicks.map(([y, x, label]) => [y * width + x, label - 1]));
  return [...marks].sort(([a], [b]) => a - b);
}

export const hasBoth = (clicks) => CLASSES.every((c) => clicks.some(([, , label]) => label === c + 1));

const atLogOdds = (x) => [1 / (1 + Math.exp(x)), 1 / (1 + Math.exp(-x))];
const softmax = ([a, b]) => atLogOdds(b - a);

// Log density of each unit's colour under each class: a mixture whose weights are the class's own, by EM under a Dirichlet prior.
function colourEvidence({ densities, most, counts, shares, settings }, known, belief) {
  const each = shares.length;
  const sumOf = (weights, at) => {
    let sum = 0;
    for (let k = 0; k < each; k++) sum += densities[at + k] * weights[k];
    return sum;
  };
  const own = CLASSES.map((c) => {
    const mass = known.map((k, j) => counts[j] * (k[c] + settings.unmarked * (k[0] + k[1] > 0 ? 0 : Math.abs(belief[j][0] - belief[j][1])) * belief[j][c]));
    let weights = Float64Array.from(shares);
    for (let step = 0; step < WEIGHT_STEPS; step++) {
      const found = Float64Array.from(shares, (share) => settings.colour_prior * share);
      mass.forEach((m, j) => {
        const share = m / sumOf(weights, j * each);
        for (let k = 0; k < each; k++) found[k] += share * densities[j * each + k] * weights[k];
      });
      const total = found.reduce((a, b) => a + b);
      weights = found.map((x) => x / total);
    }
    return weights;
  });
  return Array.from(most, (x, j) => own.map((weights) => x + Math.log(sumOf(weights, j * each))));
}

function told(neighbours, belief, coupling, c) {
  let sum = 0;
  for (const [k, e] of neighbours) sum += coupling[e] * belief[k][c];
  return sum;
}

// Q, by sweeps over the units in the order of the library's groups, in which no edge joins two: Q_j = softmax(h_j + Σ_k w_jk Q_k); it stops where no number moves by more than a thousandth of the largest.
function meanField({ order, neighbours }, unary, coupling) {
  const belief = unary.map(softmax);
  let scale = Math.max(...belief.flat());
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    let moved = 0;
    for (const j of order) {
      const now = softmax(CLASSES.map((c) => unary[j][c] + told(neighbours[j], belief, coupling, c)));
      moved = Math.max(moved, Math.abs(now[0] - belief[j][0]), Math.abs(now[1] - belief[j][1]));
      scale = Math.max(scale, now[0], now[1]);
      belief[j] = now;
    }
    if (moved <= TOLERANCE * scale) break;
  }
  return belief;
}

// Units whose class is in one piece with no click of it; the frame is a click of the class outside.
function straysOf({ neighbours, rim }, marked, belief, outside) {
  const labels = belief.map(([a, b]) => (b > a ? 1 : 0));
  const beyond = outside[1] > outside[0] ? 1 : 0;
  const open = labels.flatMap((c, j) => (marked[j][c] > 0 ? [j] : [])).concat([...rim].filter((j) => labels[j] === beyond));
  const held = new Set(open);
  for (const j of open) for (const [k] of neighbours[j]) if (labels[k] === labels[j] && !held.has(k)) open.push(k) && held.add(k);
  return labels.map((c, j) => CLASSES.map((own) => own === c && !held.has(j)));
}

// The field of the units given clicks of both classes: its evidence, its couplings, and what it believes.
export function fieldOf(model, clicks, own = {}) {
  const settings = { ...model.settings, ...own };
  const { height, width, units, home, rim, toFrame, counts } = model;
  const marks = marksOf(model, clicks);
  const marked = Array.from({ length: units }, () => [0, 0]); // how many marks of each class are in a unit
  for (const [i, c] of marks) marked[home[i]][c]++;
  const known = marked.map(([a, b]) => [Number(a > 0 && b === 0), Number(b > 0 && a === 0)]);

  // which class goes on outside the frame
  const flat = colourEvidence(model, known, known.map(() => [0.5, 0.5]));
  const outside = softmax(CLASSES.map((c) => {
    const away = marks.filter((mark) => mark[1] === c).map(([i]) => Math.hypot((Math.floor(i / width) + 0.5) / height - 0.5, ((i % width) + 0.5) / width - 0.5));
    return POWER * Math.log(away.reduce((a, b) => a + b) / away.length + 1e-9) + rim.reduce((sum, j) => sum + flat[j][c], 0) / rim.length;
  }));

  const routes = CLASSES.map((c) => pathsFrom(model, marked.flatMap((count, j) => (count[c] > 0 ? [j] : []))));
  const lengths = marked.map((_, j) => CLASSES.map((c) => Math.min(routes[c].lengths[j], toFrame.lengths[j] + settings.frame_cost - Math.log(Math.max(outside[c], 1e-300)))));
  const paths = lengths.map((both, j) => (known[j][0] + known[j][1] > 0 ? known[j].map(Math.log) : both.map((length) => (-settings.path_evidence * length) / Math.max(both[0] + both[1], 1e-9))));
  const coupling = Array.from(model.coupling, (w) => settings.coupling * w);
  let [belief, colours, unary] = [paths.map(softmax), null, paths];
  for (let round = 0; round < ROUNDS; round++) {
    const said = colourEvidence(model, known, belief);
    colours = said.map((both, j) => both.map((x) => settings.colour_evidence * Math.sqrt(counts[j]) * x));
    unary = paths.map((both, j) => both.map((x, c) => x + colours[j][c]));
    belief = meanField(model, unary, coupling);
  }
  const strays = straysOf(model, marked, belief, outside);
  unary = unary.map((both, j) => both.map((x, c) => (strays[j][c] ? -Infinity : x)));
  belief = meanField(model, unary, coupling);
  return { settings, marks, marked, known, outside, routes, lengths, paths, colours, strays, unary, coupling, belief };
}

// The probability of class 2 of each pixel: what the mask is the mode of (`pixels`), and calibrated (`probability`).
export function segment(model, clicks, own = {}) {
  const field = fieldOf(model, clicks, own);
  const torn = field.marked.map(([a, b]) => a > 0 && b > 0); // here marks of both classes meet: their pixels take the class of the nearest
  const meeting = field.marks.filter(([i]) => torn[model.home[i]]);
  const pixels = Float64Array.from({ length: model.pixels }, (_, i) => {
    let [rest, own, asked] = [0, 0, 0];
    unitsNear(model, i).forEach((j, k) => {
      const weight = model.attention[9 * i + k];
      if (torn[j]) asked += weight;
      else [rest, own] = [rest + weight * field.belief[j][0], own + weight * field.belief[j][1]];
    });
    if (asked <= 1e-6) return own / (rest + own);
    return (own + asked * nearest(model, meeting, i)) / (rest + own + asked);
  });
  const error = field.settings.region_error;
  const probability = pixels.map((p) => (1 - error) * p + error / 2);
  for (const [i, c] of field.marks) pixels[i] = probability[i] = c; // a mark is kept
  return { ...field, pixels, probability };
}

function nearest({ queries }, marks, i) {
  const squares = marks.map(([m]) => apart(queries, i, queries, m));
  return marks[squares.indexOf(Math.min(...squares))][1];
}

// What speaks for class 2 in a unit, in nats of log odds: paths, colours and neighbours; where clicks say its class, these alone count.
export function partsOf(model, found, j) {
  const odds = ([a, b]) => b - a;
  const fromNeighbours = odds(CLASSES.map((c) => told(model.neighbours[j], found.belief, found.coupling, c)));
  const clicked = found.known[j][0] + found.known[j][1] > 0;
  return { paths: clicked ? null : odds(found.paths[j]), colours: odds(found.colours[j]), fromNeighbours, clicked, torn: Math.min(...found.marked[j]) > 0, forbidden: found.strays[j].some(Boolean) };
}

// a_jk, the share of each neighbour in what a unit is told: [unit, share].
export function attentionOfUnit({ neighbours }, { coupling }, j) {
  const total = neighbours[j].reduce((sum, [, e]) => sum + coupling[e], 0);
  return neighbours[j].map(([k, e]) => [k, total > 0 ? coupling[e] / total : 0]);
}

// Units on the shortest path from a unit to a click of a class, the unit first; to the frame where that is shorter, and last "frame".
export function routeOf(model, found, j, c) {
  const around = found.lengths[j][c] < found.routes[c].lengths[j];
  const { next } = around ? model.toFrame : found.routes[c];
  const units = [j];
  while (next[units.at(-1)] >= 0) units.push(next[units.at(-1)]);
  return { units, around };
}

// Intersection over union of class 2 with the mask drawn by hand.
export function overlap({ truth }, pixels) {
  let [both, either] = [0, 0];
  pixels.forEach((p, i) => {
    both += p > 0.5 && truth[i];
    either += p > 0.5 || truth[i];
  });
  return both / either;
}

// CIE Lab (D65) to sRGB, 0 to 255.
export function rgb([L, a, b]) {
  const f = [(L + 16) / 116 + a / 500, (L + 16) / 116, (L + 16) / 116 - b / 200];
  const [x, y, z] = f.map((t, d) => [0.95047, 1, 1.08883][d] * (t ** 3 > 0.008856 ? t ** 3 : (t - 16 / 116) / 7.787));
  return [
    3.240479 * x - 1.53715 * y - 0.498535 * z, -0.969256 * x + 1.875992 * y + 0.041556 * z, 0.055648 * x - 0.204043 * y + 1.057311 * z,
  ].map((v) => 255 * Math.min(1, Math.max(0, v > 0.0031308 ? 1.055 * v ** (1 / 2.4) - 0.055 : 12.92 * v)));
}
