// The frame of the explorer: navigation, the state in the address, links for a class, steps, the stage, light and dark.

import { checked, orNull, units } from "./fields.js";
import { comment, rowsOf, standardised, textOf } from "./own.js";
import { player } from "./play.js";
import { node } from "./ui.js";

// In the order of a lecture, which is also their numbers.
const ORDER = [
  "posterior", "same-attention", "evidence-bound", "soft-kmeans", "mean-or-mode", "keys-adapt", "memory", "mean-field", "fool-the-diagnostics",
  "regression", "two-keys", "together", "novelty", "funnel",
];

const byId = (id) => document.getElementById(id);

// ---- the address: #view, then :{"name": value, ...} with what differs from the defaults, then ;hide=name,name and ;ask=question -------

export function differences(state, defaults) {
  return Object.fromEntries(Object.entries(state).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(defaults[name])));
}

export function addressOf(id, state, defaults, { hide = [], ask = "" } = {}) {
  const own = differences(state, defaults);
  const ends = [["hide", hide.join(",")], ["ask", ask]].filter(([, value]) => value).map(([name, value]) => `;${name}=${encodeURIComponent(value)}`);
  return `#${id}${Object.keys(own).length ? `:${encodeURIComponent(JSON.stringify(own))}` : ""}${ends.join("")}`;
}

export function readAddress(hash, views) {
  const [, id, given, ends] = hash.match(/^#?([^:;]*)(?::(.*?))?((?:;(?:hide|ask)=[^;]*)*)$/s) ?? [];
  const view = views.find((one) => one.id === id);
  const lesson = { hide: [], ask: "" };
  for (const [, name, text] of (ends ?? "").matchAll(/;(hide|ask)=([^;]*)/g)) {
    const value = decodeURIComponent(text);
    lesson[name] = name === "hide" ? value.split(",").filter(Boolean) : value.slice(0, 300);
  }
  return { view, lesson, own: view && given ? checked(view, JSON.parse(decodeURIComponent(given))) : {} };
}

// ---- the page -----------------------------------------------------------------------------------------------------------------

export function start(found, modules) {
  const single = found.length === 1; // a view with a page of its own has no number
  const scaled = ({ defaults, fields, own }) => (own ? { defaults: { ...defaults, units: null }, fields: { ...fields, units: orNull(units) } } : {});
  const views = found.map((view) => ({ ...view, ...scaled(view), number: single ? 1 : ORDER.indexOf(view.id) + 1 })).sort((a, b) => a.number - b.number);
  if (views[0].number === 0) throw new Error(`${views[0].id} has no place in the order of the views`);
  const given = byId("own") ? JSON.parse(byId("own").textContent) : null;
  const starts = Object.fromEntries(views.map((view) => [view.id, { ...view.defaults }]));
  const states = {};
  let [view, mounted, state, timer, spoken] = [null, null, null, 0, 0];
  let [moved, lesson] = [false, { hide: [], ask: "" }]; // has this view been moved; what a class is asked and does not see
  const times = [];

  const say = (text) => {
    byId("message").textContent = text;
  };
  const write = () => {
    clearTimeout(timer);
    history.replaceState(null, "", addressOf(view.id, state, view.defaults, lesson));
    post();
  };
  const post = () => window.parent !== window && window.parent.postMessage({ probtx: "hash", hash: location.hash }, "*");

  // The sentence of the state; a reader of screens hears it when nothing has moved for a while.
  function now(text) {
    if (steps.open()) queueMicrotask(steps.draw); // when the table has the numbers of this state
    if (byId("now").textContent === text) return;
    byId("now").textContent = text;
    if (!moved || steps.speaks()) return;
    clearTimeout(spoken);
    spoken = setTimeout(() => (byId("spoken").textContent = text), 300);
  }

  // Parts of the view by the name that hides them.
  const part = (name) => byId("view").querySelectorAll(`[data-control="${CSS.escape(name)}"]`);

  function teach() {
    for (const own of byId("view").querySelectorAll("[data-control]")) own.hidden = lesson.hide.includes(own.dataset.control);
    byId("suggestion").textContent = lesson.ask ? `Question: ${lesson.ask}` : `Try: ${view.suggestion}`;
    byId("suggestion").classList.toggle("asked", lesson.ask !== "");
    byId("question").value = lesson.ask;
    const none = lesson.hide.filter((name) => !part(name).length);
    if (none.length) say(`This view has no ${none.join(", ")} that could be hidden.`);
    for (const box of byId("shown").querySelectorAll("input")) box.checked = !lesson.hide.includes(box.name);
  }

  function listParts() {
    const names = [...new Set([...byId("view").querySelectorAll("[data-control]")].map((own) => own.dataset.control))];
    byId("shown").replaceChildren(...names.map((name) => {
      const box = node("input", { type: "checkbox", name, checked: !lesson.hide.includes(name) });
      box.addEventListener("change", () => {
        lesson = { ...lesson, hide: names.filter((one) => (one === name ? !box.checked : lesson.hide.includes(one))) };
        teach();
        write();
      });
      const own = part(name)[0];
      const label = own.querySelector("legend, label > span, summary") ?? own;
      return node("label", { class: "check" }, box, node("span", {}, (own.matches("label") ? own : label).textContent.trim()));
    }));
  }

  const python = () => comment(state.units) + view.python(state);

  function changed(partial) {
    const anew = JSON.stringify(partial.units ?? null) !== JSON.stringify(state.units ?? null) && "units" in partial;
    moved = true;
    state = { ...state, ...partial };
    states[view.id] = state;
    if (anew) mount();
    const before = performance.now();
    mounted.update(state);
    times.push(performance.now() - before);
    if (times.length > 600) times.shift();
    byId("copied").textContent = "";
    if (byId("code").open) byId("python").textContent = python();
    if (steps.open()) steps.draw();
    clearTimeout(timer);
    timer = setTimeout(write, 150);
  }

  function byHand(partial) {
    steps.left();
    changed(partial);
  }

  // ---- points of one's own: a tap on the plane, or lines of text ----

  function drop(place) {
    const rows = view.own.rows(state);
    if (rows.length >= view.own.most) return say(`This view takes ${view.own.most} ${view.own.name}.`);
    byHand(view.own.put(state, [...rows, place]));
    listPoints();
  }

  function listPoints() {
    if (!view.own || !byId("own-points").open) return;
    byId("own-points-text").value = textOf(view.own.rows(state), view.own.columns, state.units);
    byId("own-points-said").textContent = "";
  }

  function readPoints() {
    const { columns, most, name, put } = view.own;
    try {
      const rows = rowsOf(byId("own-points-text").value, columns);
      if (rows.length > most) throw new Error(`there are ${rows.length} points, and this view takes ${most} ${name}`);
      const { rows: places, units } = byId("own-points-scale").checked ? standardised(rows) : { rows, units: null };
      const own = { ...put(state, places), units };
      checked(view, { ...state, ...own });
      byHand(own);
      mount(); // the plane as wide as the points
      byId("own-points-said").textContent = `${rows.length} points are drawn${units ? ", standardised" : ""}.`;
    } catch (error) {
      byId("own-points-said").textContent = `These points cannot be drawn: ${error.message}.`;
    }
  }

  function mount() {
    mounted?.stop?.();
    byId("view").replaceChildren();
    mounted = view.mount(byId("view"), state, byHand, now, drop);
    mounted.update(state);
    teach();
    if (byId("class").open) listParts();
  }

  function show(next, own) {
    mounted?.stop?.();
    mounted = null;
    view = next;
    state = own;
    moved = false;
    times.length = 0;
    byId("title").textContent = single ? view.title : `${view.number}. ${view.title}`;
    byId("now").textContent = "";
    byId("place").textContent = `${view.number} of ${views.length}`;
    byId("copied").textContent = "";
    byId("code").open = false;
    byId("view").dataset.view = view.id;
    byId("own-points").hidden = !view.own;
    if (view.own) {
      byId("own-points-note").textContent = `Up to ${view.own.most} ${view.own.name}, one a line: ${view.own.columns.join(", ")}. A tap on the plane drops one, too. They stay in the address.`;
      byId("own-points-scale").checked = view.own.centred ?? true;
    }
    listPoints();
    document.title = `${view.title} · probtx_pyro explorer`;
    for (const link of byId("views").querySelectorAll("a")) {
      if (link.dataset.view === view.id) {
        link.setAttribute("aria-current", "page");
        byId("views").scrollLeft = link.parentElement.offsetLeft - byId("views").offsetLeft - 60; // where the list is one row
      } else link.removeAttribute("aria-current");
    }
    const { notebooks, suffix } = document.documentElement.dataset;
    const name = `Notebook ${view.notebook.replace("_", ": ").replaceAll("_", " ")}`;
    byId("notebook").replaceChildren(notebooks === undefined ? name : node("a", { target: "_top", href: `${notebooks}${view.notebook}${suffix}` }, name));
    try {
      mount();
    } catch (error) {
      if (JSON.stringify(state) === JSON.stringify(starts[view.id])) throw error;
      say(`The state that was given cannot be drawn (${error.message}); this is the one that the view starts with.`);
      state = { ...starts[view.id] };
      mount();
    }
    states[view.id] = state;
    steps.match(lesson.ask);
  }

  const following = () => views[view.number % views.length];
  const alone = single || (["view", "picture"].includes(location.search.slice(1)) && window.parent !== window);
  const steps = player({
    view: () => view, state: () => state, reach: changed,
    ask(question) {
      lesson = { ...lesson, ask: question };
      teach();
      write();
    },
    numbers: () => Object.fromEntries([...byId("view").querySelectorAll("[data-json]")].map((cell) => [cell.dataset.value, JSON.parse(cell.dataset.json)])),
    onward: alone ? null : () => {
      const first = steps.first(following());
      location.hash = addressOf(following().id, first.state, following().defaults, { ...lesson, hide: [], ask: first.ask });
    },
    parts: {
      steps: byId("steps"), open: byId("steps-open"), sentence: byId("sentence"), answer: byId("answer"), now: byId("now"), count: byId("step-count"),
      back: byId("step-back"), on: byId("step-on"), play: byId("step-play"),
    },
  });

  function arrive() {
    say("");
    let [next, own] = [undefined, {}];
    lesson = { hide: [], ask: "" };
    try {
      ({ view: next, own, lesson } = readAddress(location.hash, views));
    } catch (error) {
      say(`The state in the address cannot be read (${error.message}); this is the one that the view starts with.`);
      next = views.find((one) => location.hash.startsWith(`#${one.id}:`));
    }
    next ??= views.find((one) => one.id === given?.view) ?? views[0];
    const bare = !/^#?[^;]*:/.test(location.hash);
    show(next, bare ? { ...(states[next.id] ?? starts[next.id]) } : { ...starts[next.id], ...own });
    post();
  }

  byId("views").hidden = single;
  byId("views").append(
    ...views.map((one) => node("li", {}, node("a", { href: `#${one.id}`, "data-view": one.id }, node("span", { class: "number" }, String(one.number)), " ", node("span", { class: "name" }, one.title)))),
  );
  if (given) {
    const target = views.find((one) => one.id === given.view);
    try {
      if (!target) throw new Error(`there is no view ${given.view}`);
      starts[target.id] = { ...target.defaults, ...checked(target, given.state) };
    } catch (error) {
      window.addEventListener("load", () => say(`The file cannot be shown (${error.message}).`));
    }
  }

  async function copy(text, selected) {
    try {
      await navigator.clipboard.writeText(text);
      byId("copied").textContent = "Copied.";
    } catch {
      if (selected) getSelection().selectAllChildren(selected);
      byId("copied").textContent = !selected ? "The address bar holds it." : document.execCommand("copy") ? "Copied." : "Selected below: press Ctrl+C.";
    }
  }
  byId("copy").addEventListener("click", () => {
    byId("python").textContent = python();
    byId("code").open = true;
    copy(python(), byId("python"));
  });
  byId("copy-link").addEventListener("click", () => {
    write();
    copy(linkOf(location));
  });
  byId("class").addEventListener("toggle", () => byId("class").open && listParts());
  byId("own-points").addEventListener("toggle", listPoints);
  byId("own-points-read").addEventListener("click", readPoints);
  byId("question").addEventListener("input", () => {
    steps.close();
    lesson = { ...lesson, ask: byId("question").value };
    teach();
    write();
  });
  byId("code").addEventListener("toggle", () => {
    if (byId("code").open) byId("python").textContent = python();
  });
  byId("reset").addEventListener("click", () => {
    state = { ...starts[view.id] };
    if (steps.open()) lesson = { ...lesson, ask: "" };
    show(view, state);
    write();
  });
  stage((by) => (location.hash = `#${views[(view.number - 1 + by + views.length) % views.length].id}`), steps);
  const theme = themes(() => mounted?.update(state));
  if (window.parent !== window) inside(theme);
  window.addEventListener("hashchange", arrive);
  window.explorer = {
    modules, views, times,
    state: () => state,
    view: () => view.id,
    set: byHand,
    address: () => addressOf(view.id, state, view.defaults, lesson),
    python,
  };
  arrive();
}

// The address to share: of the page around a whole explorer where that is known, else of this file.
function linkOf({ href, hash, search }) {
  const around = window.parent !== window && !search ? document.referrer : "";
  return around ? around.split("#")[0] + hash : href.replace(search, "");
}

// The stage: full screen, large letters, controls and numbers folded. Arrows, Page Up and Page Down go through the steps where they are
// open, else they turn to another view.
function stage(turn, steps) {
  const root = document.documentElement;
  const unfold = (open) => {
    root.dataset.stage = open ? "open" : "folded";
    byId("unfold").setAttribute("aria-expanded", open);
  };
  const enter = () => {
    unfold(false);
    byId("strip").prepend(byId("steps"));
    byId("strip").hidden = false;
    root.requestFullscreen?.().catch(() => {}); // a page around may not allow it: then the frame is the stage
  };
  const leave = () => {
    delete root.dataset.stage;
    byId("suggestion").after(byId("steps"));
    byId("strip").hidden = true;
    if (document.fullscreenElement) document.exitFullscreen();
  };
  const on = () => root.dataset.stage !== undefined;
  byId("project").addEventListener("click", enter);
  byId("leave").addEventListener("click", leave);
  byId("stage-steps").addEventListener("click", () => byId("steps-open").click());
  byId("previous").addEventListener("click", () => turn(-1));
  byId("next").addEventListener("click", () => turn(1));
  byId("unfold").addEventListener("click", () => unfold(root.dataset.stage === "folded"));
  document.addEventListener("fullscreenchange", () => document.fullscreenElement || !on() || leave());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest('input[type="text"], textarea')) return;
    if (event.key === "p" || event.key === "P") (on() ? leave : enter)();
    else if (on() && event.key === "Escape") leave();
    else if ((on() || steps.open()) && !event.target.closest("input, .handle, pre")) {
      const by = { ArrowLeft: -1, PageUp: -1, ArrowRight: 1, PageDown: 1 }[event.key];
      if (by) event.preventDefault();
      if (by) (steps.open() ? steps.move : turn)(by);
    }
  });
}

// In a frame of a page (site/static/site.js): asks for the height that is needed, and is light or dark as the page says. Its address
// says how much is shown: nothing, all; ?view, one view; ?picture, a view without its controls.
function inside(theme) {
  document.documentElement.dataset.inside = location.search.slice(1) || "whole";
  new ResizeObserver(() => window.parent.postMessage({ explorerHeight: document.body.offsetHeight }, "*")).observe(document.body);
  window.addEventListener("message", ({ source, data }) => source === window.parent && data?.explorerTheme && theme(data.explorerTheme));
}

// Light or dark as the reader's system says, until the button or the page around says otherwise; `redraw` is called when it changes.
// Returns a function of "light", "dark" or "auto".
function themes(redraw) {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const draw = () => {
    const now = root.dataset.theme ?? (dark.matches ? "dark" : "light");
    root.style.colorScheme = now;
    root.dataset.shown = now;
    byId("theme").textContent = now === "dark" ? "Light" : "Dark";
  };
  const choose = (name) => {
    if (name === "auto") delete root.dataset.theme;
    else root.dataset.theme = name;
    draw();
    redraw();
  };
  byId("theme").addEventListener("click", () => choose(root.dataset.shown === "dark" ? "light" : "dark"));
  dark.addEventListener("change", () => {
    draw();
    redraw();
  });
  matchMedia("print").addEventListener("change", redraw); // paper is light
  draw();
  return choose;
}
