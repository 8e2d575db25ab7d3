// View 14: the funnel. Leapfrog paths and draws of NUTS in a posterior that is wide below and narrow above, in either of two coordinates.

import { DIVERGENCE, above, limitOf, logShown, nuts, scalesOf, sigmaOf, trajectory } from "../math/funnel.js";
import { essBulk, rhat } from "../math/diagnostics.js";
import { generator } from "../math/random.js";
import { oneOf, point, range, seed, whole } from "../fields.js";
import { cloud, later } from "../parts.js";
import { Chart, Plane, around, blend, button, cents, choice, color, figure, layout, panel, readout, short, slider } from "../ui.js";

const [X, Y] = [[-3, 3], [-3.5, 4.5]]; // the first coordinate of the key, or of the key in units of σ; log10 of the precision
const [DRAWS, STARTS] = [250, [-1, 3]]; // of each of two chains; log10 of the precision where they start
const [SLICE, AT_ONCE] = [4, 6]; // milliseconds of a frame for draws, and how many of each chain at most, so that they are seen to come
const [HIGHEST, TIP, TEN] = [6, 1000, Math.LN10]; // log10 of a start's precision at most; the precision of the tip, as in the notebook
const FAR = 99; // what is further out is drawn there

const defaults = { coordinates: "keys", start: [0.5, -0.5], momentum: [-1, 0.6], step: 0.25, steps: 20, seed: 1 };
const start = {
  ...point,
  check(x, name) {
    point.check(x, name);
    if (x[1] > HIGHEST) throw new Error(`${name} must be a point of the plane, at most ${HIGHEST} high`);
  },
};
const fields = {
  coordinates: oneOf({ keys: "keys as they are", units: "keys in units of σ" }), start, momentum: point,
  step: range(0.05, 2, { log: true, least: 0.01 }), steps: whole(1, 60, { most: 500 }), seed,
};

const inUnits = (state) => state.coordinates === "units";
const shown = ([t, x]) => [x, t / TEN];
const finite = (x) => (x.every(Number.isFinite) ? x : null);

// The second coordinate of the key starts at 0 without momentum, and stays there.
const pathOf = ({ start: [x, height], momentum: [across, up], step, steps, ...state }) =>
  trajectory({ units: inUnits(state), place: [height * TEN, x, 0], momentum: [up, across, 0], step, count: steps });

function python(state) {
  const units = inUnits(state);
  const name = units ? "z" : "keys";
  const program = units
    ? `def program(queries):
    alpha = pyro.sample("key_precision", anything.expand([1]).to_event(1))
    pyro.sample("z", Normal(place, 1.0).to_event(2))  # the key over its standard deviation given alpha
    pyro.sample("query", Normal(place, (1 + 1 / alpha).sqrt()).to_event(2), obs=queries)`
    : `mixture = models.GaussianMixture(place, key_precision=torch.ones(1))
program = models.bayesian(mixture, keys=Normal(place, 1.0), key_precision=anything)`;
  return `import json

import arviz
import pyro
import torch
from pyro.distributions import Gamma, Normal
from pyro.infer.mcmc.util import initialize_model
from pyro.ops.integrator import velocity_verlet
from probtx_pyro import inference, models

torch.set_default_dtype(torch.float64)
place, anything = torch.zeros(1, 2), Gamma(0.2, 0.001)  # the prior mean of the key, and the query; the prior of the precision

${program}

potential = initialize_model(program, (place,), max_plate_nesting=2)[1]  # of the log precision and of ${name}
t = torch.linspace(-40, 12, 40_001)  # the key summed out, the log precision is left: a sum over a grid
mass = (anything.log_prob(t.exp()) + t - (1 + (-t).exp()).log()).softmax(0)
scales = {"key_precision": (mass @ (t - mass @ t) ** 2).sqrt(), "${name}": ${units ? "torch.ones(())" : "(mass @ (1 / (1 + t.exp()))).sqrt()"}}
at = {"key_precision": torch.tensor([${state.start[1]}]) * ${TEN}, "${name}": torch.tensor([[${state.start[0]}, 0.0]])}
momentum = {"key_precision": torch.tensor([${state.momentum[1]}]), "${name}": torch.tensor([[${state.momentum[0]}, 0.0]])}
momentum = {site: p / scales[site] for site, p in momentum.items()}


def energy():
    return float(potential(at) + sum((scales[site] * p).square().sum() for site, p in momentum.items()) / 2)


energies = [energy()]
while len(energies) <= ${state.steps} and energies[-1] - energies[0] <= ${DIVERGENCE}:
    at, momentum, *_ = velocity_verlet(
        at, momentum, potential, lambda r: {site: scales[site] ** 2 * p for site, p in r.items()}, ${state.step}
    )
    energies.append(energy())
draws = inference.nuts(program, place, num_samples=100, num_warmup=75, num_chains=8, seed=${state.seed})  # as in the notebook, with a step of its own
print(json.dumps({
    "energy": energies[0],
    "worst": max(abs(x - energies[0]) for x in energies),
    "taken": len(energies) - 1,
    "end": [at["${name}"][0, 0].item(), at["key_precision"].item() / ${TEN}],
    "scale": scales["${name}"].item(),
    "ownRhat": float(arviz.rhat(draws.samples["key_precision"][..., 0].log().numpy())),
    "ownDiverging": int(draws.statistics["diverging"].sum()),
    "ownStep": draws.statistics["step_size"].mean().item(),
}))
`;
}

function mount(root, first, changed, now) {
  let state = first;
  let [chains, drawn, playing, told] = [[], "", 0, ""];
  const random = generator(7); // of the button
  const tipOf = (one) => {
    const [log, wide] = scalesOf(inUnits(one));
    return [one.start[0] + wide * one.momentum[0], one.start[1] + (log / TEN) * one.momentum[1]];
  };
  const [x, y] = around([first.start, tipOf(first)], X, Y);
  const plane = new Plane({ x, y, label: "The plane of the key's first coordinate, to the right, and log10 of the precision, upwards" });
  const shade = plane.shading(64, Math.round(64 / plane.aspect));
  const [border, dots, names, path, push, begin] = ["border", "draws", "names", "path", "momentum", "start"].map((name) => plane.layer(name));
  for (const layer of [border, dots, names, path]) layer.setAttribute("pointer-events", "none");
  const energy = new Chart({ label: "Energy along the path", xlabel: "energy error in nats, by leapfrog step", width: 330, height: 220 });
  const trace = new Chart({ label: "Two chains", xlabel: "log10 precision, by draw", width: 330, height: 220 });
  const read = readout({
    rhat: "R-hat of log precision, two chains", effective: "effective draws of log precision", diverging: `draws, of ${2 * DRAWS}, that met a divergence`, length: "leapfrog steps of a draw, mean",
    share: `share of the draws with a precision above ${TIP}`, exact: "the same of the posterior", limit: "precision above which the step is unstable", unstable: "share of the posterior above it",
    energy: "energy at the start, nats", worst: "largest energy error on the path, nats", taken: "leapfrog steps taken", broke: "the step that diverges", end: "end of the path", scale: "overall standard deviation of the key, as it is shown",
  });
  const controls = panel("Controls", [
    choice("Coordinates", fields.coordinates.options, "coordinates", (coordinates) => {
      const sigma = sigmaOf(state.start[1] * TEN); // the same place in the others
      const [same] = plane.clamp([state.start[0] * (coordinates === "units" ? 1 / sigma : sigma), 0]);
      changed({ coordinates, start: [same, state.start[1]] });
    }),
    slider({ name: "step", label: "Step, in overall standard deviations", ...fields.step, on: (step) => changed({ step }) }),
    slider({ name: "steps", label: "Steps of the path", ...fields.steps, on: (steps) => changed({ steps }) }),
    button("push", "Another momentum", () => changed({ momentum: [cents(random.normal()), cents(random.normal())] })),
    button("again", "Other draws", () => changed({ seed: state.seed + 1 })),
  ]);
  layout(root, {
    main: figure(plane.node, "Drag the start (dot) and its momentum (ring). Line: leapfrog path; large cross: it diverges. Points: draws; small crosses: draws that met a divergence. Shade: log density, down to 8 nats. Dashed: above it the step is unstable."),
    controls, numbers: read, aspect: plane.aspect, across: 2,
    others: [
      figure(energy.node, `Energy less that of the start. At an error of ${DIVERGENCE} nats NUTS calls it a divergence.`),
      figure(trace.node, "Two chains of NUTS in this page: the step is the slider's, the number of steps its own, without warm-up."),
    ],
  });

  // Frames stop where the page is hidden, and the draws with them.
  const run = later(() => {
    const rng = generator(state.seed);
    chains = STARTS.map((height) => ({ next: nuts(inUnits(state), [height * TEN, 0, 0], state.step, rng), all: [] }));
    const most = matchMedia("(prefers-reduced-motion: reduce)").matches ? DRAWS : AT_ONCE;
    const some = () => {
      const until = performance.now() + SLICE;
      for (let k = 0; k < most && chains[0].all.length < DRAWS && performance.now() < until; k++) for (const { next, all } of chains) all.push(next());
      showDraws();
      if (chains[0].all.length < DRAWS) playing = requestAnimationFrame(some);
    };
    some();
  }, 120);

  function crosses(places, size, attributes) {
    const [dx, dy] = [size / plane.scale, size / plane.rise];
    return plane.lines(places.flatMap(([a, b]) => [[[a - dx, b - dy], [a + dx, b + dy]], [[a - dx, b + dy], [a + dx, b - dy]]]), { class: "line unit-5", ...attributes });
  }

  function showDraws() {
    const all = chains.flatMap((chain) => chain.all);
    const heights = chains.map((chain) => chain.all.map(({ place }) => place[0] / TEN));
    const broken = all.filter((one) => one.diverging);
    dots.replaceChildren(
      ...chains.map((chain, c) => cloud(plane, chain.all.filter((one) => !one.diverging).map(({ place }) => shown(place)), `unit-${c}`)),
      crosses(broken.map(({ place }) => shown(place)), 6),
    );
    trace.range([0, 1.04 * DRAWS], Y);
    trace.draw(...heights.map((chain, c) => trace.line(chain.map((height, k) => [k + 1, height]), { class: `trace strong unit-${c}` })));
    const mean = (f) => all.reduce((sum, one) => sum + f(one), 0) / all.length;
    const found = all.length < 2 * DRAWS ? { rhat: undefined, effective: undefined, diverging: undefined, length: undefined, share: undefined } : {
      rhat: rhat(heights), effective: Math.round(essBulk(heights)), diverging: broken.length, length: mean((one) => one.steps), share: mean(({ place }) => Number(place[0] > Math.log(TIP))),
    };
    read.set(found);
    // both as long as each other, so that the picture does not move
    const said = found.rhat === undefined ? `${2 * DRAWS} draws of NUTS are on their way: divergences, their worth and R-hat.` : `Of ${all.length} draws of NUTS ${broken.length} met a divergence; they are worth ${found.effective}, R-hat ${found.rhat.toFixed(2)}.`;
    trace.node.setAttribute("aria-label", `Log precision of two chains. ${said}`);
    now(`${told} ${said}`);
  }

  function showPath() {
    const { places, energies, diverges } = pathOf(state);
    const taken = places.length - 1;
    const lost = energies.map((one) => one - energies[0]);
    const known = lost.filter(Number.isFinite);
    const worst = Math.max(...known.map(Math.abs));
    const way = places.map(shown).filter(finite).map((place) => place.map((z) => Math.max(-FAR, Math.min(FAR, z))));
    const kept = diverges ? way.slice(0, taken) : way;
    const tip = tipOf(state);
    path.replaceChildren(
      plane.path([state.start, tip], { class: "line unit-5", "stroke-width": 3 }), plane.path(way, { class: "path" }), plane.dots(kept, 3.5, { class: "dots" }),
      ...(diverges ? [crosses(kept.slice(-1), 12, { "stroke-width": 6 })] : []),
    );
    plane.handles(push, [tip], {
      name: () => "The momentum of the path", shape: "ring", radius: () => 11,
      on: ([moved]) => {
        const [log, wide] = scalesOf(inUnits(state));
        changed({ momentum: [cents((moved[0] - state.start[0]) / wide), cents(((moved[1] - state.start[1]) * TEN) / log)] });
      },
    });
    plane.handles(begin, [state.start], { name: () => "The start of the path", shape: "dot", on: ([[a, b]]) => changed({ start: [a, Math.min(HIGHEST, b)] }) });

    const least = Math.max(-DIVERGENCE, Math.min(...known));
    const most = Math.max(least + 1e-3, Math.min(1.05 * DIVERGENCE, Math.max(...known, diverges ? Infinity : 0)));
    energy.range([0, taken], [least, most]);
    const line = lost.map((one, k) => [k, Number.isFinite(one) ? Math.max(least, Math.min(most, one)) : most]);
    energy.draw(
      energy.level(0), ...(diverges ? [energy.level(DIVERGENCE, { class: "rule dashed" })] : []), energy.line(line),
      ...line.map((one, k) => energy.dot(one, diverges && k === taken ? { r: 7 } : { r: 3, class: "now" })),
    );
    told = diverges ? `The path diverges at its step ${taken} of ${state.steps}.` : `The energy errs by ${short(worst)} nats at most.`;
    energy.node.setAttribute("aria-label", `Energy along the path. ${told}`);
    read.set({ energy: energies[0], worst, taken, broke: diverges ? taken : null, end: finite(shown(places.at(-1))) });
  }

  function showBorder() {
    const units = inUnits(state);
    const [low, high] = [color("--low"), color("--high")];
    let top = -Infinity;
    for (let height = Y[0]; height <= Y[1]; height += 0.05) top = Math.max(top, logShown(units, height * TEN, 0));
    shade(([a, b]) => [...blend(low, high, 0.6 * Math.max(0, 1 + (logShown(units, b * TEN, a) - top) / 8)), 255]);
    names.replaceChildren(
      plane.text([x[0], y[1]], "log10 precision", { dx: 10, dy: 24, "text-anchor": "start", class: "letter" }),
      plane.text([x[1], y[0]], units ? "key in units of σ" : "key", { dx: -10, dy: -30, "text-anchor": "end", class: "letter" }),
    );
    const limit = limitOf(state.step);
    const [unstable, level] = [limit > 0 ? above(Math.log(limit)) : 1, Math.log10(limit)];
    border.replaceChildren(...(units || level < y[0] || level > y[1] ? [] : [
      plane.path([[x[0], level], [x[1], level]], { class: "rule dashed" }),
      plane.text([x[1], level], `unstable: ${(100 * unstable).toFixed(0)} %`, { dx: -10, dy: -9, "text-anchor": "end", class: "letter" }),
    ]));
    read.set({ exact: above(Math.log(TIP)), limit: units ? null : limit, unstable: units ? null : unstable, scale: scalesOf(units)[1] });
  }

  return {
    update(next) {
      state = next;
      controls.set(state);
      showBorder();
      showPath();
      const wanted = JSON.stringify([state.coordinates, state.step, state.seed]);
      if (drawn !== wanted) {
        cancelAnimationFrame(playing);
        [drawn, chains] = [wanted, []];
        run();
      }
      showDraws();
    },
    stop() {
      run.cancel();
      cancelAnimationFrame(playing);
    },
  };
}

export default {
  id: "funnel", title: "The funnel",
  sentence: "A step that suits the wide part of a posterior is too long for the narrow one, unless other coordinates have one width everywhere.",
  suggestion: "drag the ring, and see where paths diverge. Then take the keys in units of σ.",
  notebook: "07_the_funnel", defaults, fields, mount, python,
};
