// The steps of a view, taken one press at a time or played: a state and a question, then the state that answers it and the answer.

import { STEPS } from "./steps.js";
import { short } from "./ui.js";

const [TRAVEL, PAUSE, LETTER] = [900, 2500, 55]; // milliseconds: from state to state, before a sentence, and to read a letter

// A sentence with its numbers: {name}, {name.2} for an entry, {name %} in hundredths; … for what is being computed.
export const filled = (text, numbers) => text.replace(/\{(\w+)([.\d]*)( %)?\}/g, (_, name, path, percent) => {
  const x = path.split(".").slice(1).reduce((whole, place) => whole?.[place], numbers[name]);
  if (x === undefined) return "…";
  return percent ? `${(100 * x).toFixed(0)} %` : short(Math.abs(x) < 1e-12 ? 0 : x).replace("-", "−");
});

// Numbers and places on their way from one state to another; what is no number, or as many, is there at once.
export function between(fields, from, to, share) {
  const mix = (a, b, log) => {
    if (Array.isArray(a) && Array.isArray(b) && a.length === b.length) return a.map((x, k) => mix(x, b[k], log));
    if (typeof a !== "number" || typeof b !== "number") return b;
    return log ? a * (b / a) ** share : a + share * (b - a);
  };
  return Object.fromEntries(Object.entries(to).map(([name, end]) => {
    const { moves, log } = fields[name];
    if (share === 1 || !moves || JSON.stringify(from[name]) === JSON.stringify(end)) return [name, end];
    const found = mix(from[name], end, log);
    return [name, moves === "whole" ? Math.round(found) : found];
  }));
}

// `view()` and `state()` are what is shown, `reach(state)` shows another, `ask(question)` puts a question into the page and the address,
// `numbers()` are those of the table, `onward()` goes to the next view's first step, where there is one.
export function player({ view, state, reach, ask, numbers, onward, parts }) {
  let [at, answered, astray, playing, travelling, said] = [-1, false, false, 0, 0, ""];
  const steps = () => STEPS[view().id];
  const open = () => at >= 0;
  const target = (step, answer) => ({ ...view().defaults, ...step.state, ...(answer ? step.then : {}) });
  const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

  function draw() {
    const shown = open() && !astray;
    parts.steps.hidden = !open();
    parts.open.setAttribute("aria-expanded", open());
    parts.now.hidden = shown;
    if (shown && !answered) said = filled(steps()[at].says, numbers());
    const told = shown && answered && !travelling;
    parts.sentence.textContent = !shown ? view().sentence : told && Object.keys(steps()[at].then).length ? "" : said;
    parts.answer.textContent = told ? filled(steps()[at].answers, numbers()) : "";
    if (!open()) return;
    const last = at === steps().length - 1;
    parts.count.textContent = `Step ${at + 1} of ${steps().length}`;
    parts.back.disabled = at === 0 && !answered;
    parts.on.textContent = !answered || astray ? "Answer" : !last ? "Next step" : onward ? "Next view" : "First step";
    parts.play.textContent = playing ? "Pause" : "Play";
  }

  function halt() {
    cancelAnimationFrame(travelling);
    travelling = 0;
  }

  // On the way nothing is said of the answer: first look, then read.
  function travel(to) {
    halt();
    const from = state();
    if (same(from, to) || matchMedia("(prefers-reduced-motion: reduce)").matches) return reach(to);
    const began = performance.now();
    const frame = () => {
      const share = Math.min(1, (performance.now() - began) / TRAVEL);
      travelling = share < 1 ? requestAnimationFrame(frame) : 0;
      reach(between(view().fields, from, to, share * share * (3 - 2 * share)));
    };
    frame();
  }

  function go(step, answer) {
    [at, answered, astray] = [step, answer, false];
    ask(steps()[at].asks);
    travel(target(steps()[at], answer));
    draw();
  }

  function move(by) {
    if (by < 0) return answered || astray ? go(at, false) : at > 0 && go(at - 1, true);
    if (!answered || astray) return go(at, true);
    if (at < steps().length - 1) return go(at + 1, false);
    return onward ? onward() : go(0, false);
  }

  function pause() {
    clearTimeout(playing);
    playing = 0;
  }

  function wait() {
    const { says, asks, answers } = steps()[at];
    const letters = answered ? answers.length : says.length + asks.length;
    playing = setTimeout(() => {
      if (answered && at === steps().length - 1) pause();
      else {
        move(1);
        wait();
      }
      draw();
    }, PAUSE + LETTER * letters);
  }

  function close() {
    pause();
    halt();
    at = -1;
    draw();
  }

  const byHand = (act) => () => {
    pause();
    act();
    draw();
  };
  parts.open.addEventListener("click", byHand(() => {
    if (!open()) return go(0, false);
    ask("");
    close();
  }));
  parts.back.addEventListener("click", byHand(() => move(-1)));
  parts.on.addEventListener("click", byHand(() => move(1)));
  parts.play.addEventListener("click", () => {
    if (playing) pause();
    else {
      if (answered && at === steps().length - 1) go(0, false);
      wait();
    }
    draw();
  });

  return {
    draw, close, open,
    speaks: () => open() && !astray,
    move: (by) => byHand(() => move(by))(),
    // Somebody moved the view: the question stays, what was said of the state goes.
    left() {
      halt();
      if (!open() || astray) return;
      pause();
      astray = true;
      draw();
    },
    // The step that a link holds: its question in its state, or in the one that answers it.
    match(question) {
      pause();
      halt();
      at = steps().findIndex((step) => step.asks === question && [false, true].some((answer) => same(state(), target(step, answer))));
      answered = open() && !same(state(), target(steps()[at], false));
      astray = false;
      if (answered) said = "";
      draw();
    },
    // The state and the question of a view's first step.
    first: (one) => ({ state: { ...one.defaults, ...STEPS[one.id][0].state }, ask: STEPS[one.id][0].asks }),
  };
}
