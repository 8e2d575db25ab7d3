// View 13: what was never taught. A memory of three classes meets a fourth: attention is sure of a class, the evidence says that none fits.

import { curve, drawnFrom, summary } from "../math/novelty.js";
import { point, range, seed } from "../fields.js";
import { Chart, Plane, around, bars, blend, button, cents, color, figure, layout, node, panel, readout, short, slider, svg, tensor, unitClass } from "../ui.js";

const MIDDLES = [[-1.4, 0.7], [1.5, 0.9], [0.3, -1.3]];
const [X, Y] = [[-4, 4], [-3.2, 3.2]];
const NAMES = ["A", "B", "C"];
const BINS = 18;

const defaults = { hidden: [-2.4, 1.4], query: [-2.7, 1.6], precision: 4, alarms: 0.05, seed: 1 };
const fields = { hidden: point, query: point, precision: range(0.5, 40, { log: true, least: 1e-2, most: 1e4 }), alarms: range(0, 0.5), seed };

export function problemOf({ hidden, query, precision, alarms, seed }) {
  const { steps, ...rest } = drawnFrom(MIDDLES, seed);
  return { ...rest, others: steps.map((step) => step.map((x, d) => cents(hidden[d] + x))), query, precision, alarms };
}

function python(state) {
  const { keys, known, others } = problemOf(state);
  return `import json

import torch
from sklearn.metrics import roc_auc_score, roc_curve
from probtx_pyro import models

torch.set_default_dtype(torch.float64)
keys = ${tensor(keys)}  # eight of each class
known = ${tensor(known)}
others = ${tensor(others)}  # of the class that was never taught
query = ${tensor([state.query])}
memory = models.GaussianMixture(keys, key_precision=${state.precision})


def scores(points):
    """The log odds of the surest class, and the log evidence."""
    classes = memory.log_joint(points).unflatten(-1, (3, 8)).logsumexp(-1).sort(-1, descending=True).values
    return {"odds": classes[:, 0] - classes[:, 1:].logsumexp(-1), "evidence": memory.log_evidence(points)}


points, taught = torch.cat([known, others]), torch.arange(len(known) + len(others)) < len(known)
printed = {}
for name, score in scores(points).items():
    refused, found, _ = roc_curve(taught, score, drop_intermediate=False)
    printed[name + "Auroc"] = roc_auc_score(taught, score)
    printed[name + "Passed95"] = refused[found >= 0.95][0]  # of the others, where 95 % of the known pass
    printed["query" + name.capitalize()] = scores(query)[name].item()
print(json.dumps(printed))
`;
}

// How many of both kinds are in each bin; what lies beyond an end is counted there.
function histogram(chart, { known, others, threshold }) {
  const ordered = [...known].sort((a, b) => a - b);
  const spread = ordered.at(-1) - ordered[0] || 1;
  const all = [...known, ...others];
  const [low, high] = [Math.max(Math.min(...all), ordered[0] - 1.5 * spread), Math.min(Math.max(...all), ordered.at(-1) + 1.5 * spread)];
  const wide = (high - low) / BINS;
  const shares = [known, others].map((scores) => {
    const counts = new Array(BINS).fill(0);
    for (const x of scores) counts[Math.max(0, Math.min(BINS - 1, Math.floor((x - low) / wide)))] += 1 / scores.length;
    return counts;
  });
  chart.range([low, high], [0, 1.05 * Math.max(...shares.flat())]);
  const steps = (counts) => [[low, 0], ...counts.flatMap((share, b) => [[low + b * wide, share], [low + (b + 1) * wide, share]]), [high, 0]];
  chart.draw(
    chart.line(steps(shares[0]), { class: "fill unit-4", "fill-opacity": 0.55 }), chart.line(steps(shares[1]), { class: "line unit-5", "stroke-width": 2.5 }),
    ...(threshold >= low && threshold <= high ? [chart.upright(threshold, { class: "rule dashed" })] : []),
  );
}

function mount(root, first, changed, now) {
  let state = first;
  const [x, y] = around([first.hidden, first.query], X, Y);
  const plane = new Plane({ x, y, label: "The plane of queries and units" });
  const shade = plane.shading(64, Math.round(64 / plane.aspect));
  const [dots, names, unknown, asking] = ["points", "names", "hidden", "query"].map((name) => plane.layer(name));
  for (const layer of [dots, names]) layer.setAttribute("pointer-events", "none");
  const [sure, likely] = ["log odds of the surest class", "log evidence, nats"].map((xlabel) => new Chart({ label: xlabel, xlabel, width: 340, height: 118 }));
  const roc = new Chart({ label: "Found against false alarms", xlabel: "known points refused", ylabel: "others refused", width: 300, height: 250 });
  const shares = svg("svg", { role: "img" });
  const read = readout({
    queryEvidence: "log evidence of the query, nats", queryOdds: "log odds of its surest class", share: "probability of the surest class", oddsAuroc: "AUROC of the odds", evidenceAuroc: "AUROC of the evidence",
    oddsPassed95: "others that pass where 95 % of the known do, by the odds", evidencePassed95: "the same by the evidence", oddsPassed: "others that pass at the share of the slider, by the odds", evidencePassed: "the same by the evidence", threshold: "threshold of the evidence",
  });
  const controls = panel("Controls", [
    slider({ name: "precision", label: "Precision of keys, α", ...fields.precision, on: (precision) => changed({ precision }) }),
    slider({ name: "alarms", label: "Known points refused", ...fields.alarms, on: (alarms) => changed({ alarms }) }),
    button("there", "Ask in the fourth class", () => changed({ query: [...state.hidden] })),
    button("again", "Other points", () => changed({ seed: state.seed + 1 })),
  ]);
  layout(root, {
    main: figure(plane.node, "Drag the query (the dot) and the class that was never taught (the cross). Rings: units; dots: other points. Colour: the surest class, where the evidence passes the threshold."),
    controls, numbers: read, aspect: plane.aspect, across: 2,
    others: [
      node("div", {}, figure(sure.node, ""), figure(likely.node, "Both scores of known points (filled) and of the fourth class (line). Dashed: the threshold. Far ones are counted at the edge.")),
      node("div", {}, figure(shares, "p(class | query)"), figure(roc.node, "Others refused against known points refused: by the evidence (blue), by the odds (orange).")),
    ],
  });

  return {
    update(next) {
      state = next;
      const problem = problemOf(state);
      const found = summary(problem);
      const { odds, evidence, query } = found;
      const colors = NAMES.map((_, c) => color(`--u${c}`));
      const paper = color("--paper");
      const scale = -0.5 * problem.precision;
      // log evidence above the threshold, without the constants of the density
      const least = evidence.threshold + Math.log(problem.keys.length) - Math.log(problem.precision / (2 * Math.PI));
      shade(([px, py]) => {
        const sums = [0, 0, 0];
        for (let j = 0; j < problem.keys.length; j++) sums[problem.classes[j]] += Math.exp(scale * ((px - problem.keys[j][0]) ** 2 + (py - problem.keys[j][1]) ** 2));
        const total = sums[0] + sums[1] + sums[2];
        const top = sums.indexOf(Math.max(...sums));
        return [...(total > 0 && Math.log(total) >= least ? blend(paper, colors[top], 0.45) : paper), 255];
      });
      dots.replaceChildren(
        ...NAMES.map((_, c) => plane.dots(problem.known.slice(20 * c, 20 * c + 20), 3, { class: `link ${unitClass(c)}` })),
        ...problem.keys.map((key, j) => plane.dot(key, { r: 8, class: `ring ${unitClass(problem.classes[j])}`, style: "stroke-width: 3" })),
        plane.dots(problem.others, 4, { class: "link unit-5" }),
      );
      names.replaceChildren(...MIDDLES.map((middle, c) => plane.text(middle, NAMES[c], { dy: 6, class: "letter" })));
      plane.handles(unknown, [state.hidden], { name: () => "The class that was never taught", shape: "cross", on: ([hidden]) => changed({ hidden }) });
      plane.handles(asking, [state.query], { name: () => "The query", shape: "dot", on: ([moved]) => changed({ query: moved }) });

      const share = 1 / (1 + Math.exp(-query.odds));
      bars(shares, [[`class ${NAMES[query.surest]}`, share, query.surest], ["others", 1 - share, null]]);
      histogram(sure, odds);
      histogram(likely, evidence);
      sure.node.setAttribute("aria-label", `Log odds of the surest class, AUROC ${short(odds.auroc)}`);
      likely.node.setAttribute("aria-label", `Log evidence, AUROC ${short(evidence.auroc)}`);
      roc.range([0, 1], [0, 1]);
      roc.draw(roc.line(curve(odds), { class: "line unit-1" }), roc.line(curve(evidence), { class: "line unit-0", "stroke-width": 3 }), roc.upright(state.alarms, { class: "rule dashed" }));
      roc.node.setAttribute("aria-label", `Others refused against known points refused: area ${short(evidence.auroc)} by the evidence, ${short(odds.auroc)} by the odds`);
      now(`Class ${NAMES[query.surest]} has probability ${share.toFixed(3)}; the log evidence, ${short(query.evidence)} nats, is ${query.evidence >= evidence.threshold ? "above" : "below"} the threshold. AUROC: evidence ${evidence.auroc.toFixed(2)}, odds ${odds.auroc.toFixed(2)}.`);
      controls.set(state);
      read.set({
        queryEvidence: query.evidence, queryOdds: query.odds, share, oddsAuroc: odds.auroc, evidenceAuroc: evidence.auroc, oddsPassed95: odds.passed95, evidencePassed95: evidence.passed95,
        oddsPassed: odds.passed, evidencePassed: evidence.passed, threshold: evidence.threshold,
      });
    },
  };
}

export default {
  id: "novelty", title: "What was never taught",
  sentence: "A memory of three classes meets a fourth. Attention says which class fits best, the evidence how well it fits.",
  suggestion: "drag the cross between the three classes, then onto one of them: where does either score see the fourth class?",
  notebook: "15_what_the_view_buys", defaults, fields, mount, python,
};
