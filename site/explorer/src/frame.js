// The frame of the explorer: navigation, the state in the address, Python of the state, light and dark.

import { node } from "./ui.js";

// In the order of a lecture, which is also their numbers.
const ORDER = [
  "posterior", "same-attention", "evidence-bound", "soft-kmeans", "mean-or-mode", "keys-adapt", "memory", "mean-field", "fool-the-diagnostics",
  "regression",
];

const byId = (id) => document.getElementById(id);
const kind = (x) => (Array.isArray(x) ? "array" : x === null ? "null" : typeof x);

// ---- the address: #view or #view:{"name": value, ...} with what differs from the defaults -------------------------------------

export function differences(state, defaults) {
  return Object.fromEntries(Object.entries(state).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(defaults[name])));
}

export function addressOf(id, state, defaults) {
  const own = differences(state, defaults);
  return `#${id}${Object.keys(own).length ? `:${encodeURIComponent(JSON.stringify(own))}` : ""}`;
}

// Numbers that are not finite cannot be in JSON, so that kinds are all there is to check here; a view's fromURL checks the rest.
export function readAddress(hash, views) {
  const text = hash.replace(/^#/, "");
  const colon = text.indexOf(":");
  const view = views.find((one) => one.id === (colon < 0 ? text : text.slice(0, colon)));
  if (!view || colon < 0) return { view, own: {} };
  const own = JSON.parse(decodeURIComponent(text.slice(colon + 1)));
  return { view, own: known(view, own) };
}

// The state that was given, if each of its names and kinds is one of the view's.
export function known(view, own) {
  for (const [name, value] of Object.entries(own)) {
    if (!(name in view.defaults)) throw new Error(`this view has no ${name}`);
    const expected = kind(view.defaults[name]);
    if (expected !== "null" && kind(value) !== "null" && kind(value) !== expected) throw new Error(`${name} is ${kind(value)} and not ${expected}`);
  }
  return view.fromURL ? view.fromURL(own) : own;
}

// ---- the page -----------------------------------------------------------------------------------------------------------------

export function start(found, modules) {
  const views = found.map((view) => ({ ...view, number: ORDER.indexOf(view.id) + 1 })).sort((a, b) => a.number - b.number);
  if (views[0].number === 0) throw new Error(`${views[0].id} has no place in the order of the views`);
  const given = byId("own") ? JSON.parse(byId("own").textContent) : null;
  const starts = Object.fromEntries(views.map((view) => [view.id, { ...view.defaults }]));
  const states = {};
  let [view, mounted, state, timer] = [null, null, null, 0];
  const times = [];

  const say = (text) => {
    byId("message").textContent = text;
  };
  const write = () => {
    clearTimeout(timer);
    history.replaceState(null, "", addressOf(view.id, state, view.defaults));
  };

  function changed(partial) {
    state = { ...state, ...partial };
    states[view.id] = state;
    const before = performance.now();
    mounted.update(state);
    times.push(performance.now() - before);
    if (times.length > 600) times.shift();
    byId("copied").textContent = "";
    if (byId("code").open) byId("python").textContent = view.python(state);
    clearTimeout(timer);
    timer = setTimeout(write, 150);
  }

  function mount() {
    byId("view").replaceChildren();
    mounted = view.mount(byId("view"), state, changed);
    mounted.update(state);
  }

  function show(next, own) {
    mounted?.stop?.();
    view = next;
    state = own;
    times.length = 0;
    byId("title").textContent = `${view.number}. ${view.title}`;
    byId("sentence").textContent = view.sentence;
    byId("suggestion").textContent = `Try: ${view.suggestion}`;
    byId("copied").textContent = "";
    byId("code").open = false;
    byId("view").dataset.view = view.id;
    document.title = `${view.title} · probtx_pyro explorer`;
    for (const link of byId("views").querySelectorAll("a")) {
      if (link.dataset.view === view.id) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
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
  }

  function arrive() {
    say("");
    let [next, own] = [undefined, {}];
    try {
      ({ view: next, own } = readAddress(location.hash, views));
    } catch (error) {
      say(`The state in the address cannot be read (${error.message}); this is the one that the view starts with.`);
      next = views.find((one) => location.hash.startsWith(`#${one.id}:`));
    }
    next ??= views.find((one) => one.id === given?.view) ?? views[0];
    const bare = !location.hash.includes(":");
    show(next, bare ? { ...(states[next.id] ?? starts[next.id]) } : { ...starts[next.id], ...own });
  }

  byId("views").append(
    ...views.map((one) => node("li", {}, node("a", { href: `#${one.id}`, "data-view": one.id }, node("span", { class: "number" }, String(one.number)), " ", node("span", { class: "name" }, one.title)))),
  );
  if (given) {
    const target = views.find((one) => one.id === given.view);
    try {
      if (!target) throw new Error(`there is no view ${given.view}`);
      starts[target.id] = { ...target.defaults, ...known(target, given.state) };
    } catch (error) {
      window.addEventListener("load", () => say(`The file cannot be shown (${error.message}).`));
    }
  }

  byId("copy").addEventListener("click", async () => {
    const text = view.python(state);
    byId("python").textContent = text;
    byId("code").open = true;
    try {
      await navigator.clipboard.writeText(text);
      byId("copied").textContent = "Copied.";
    } catch {
      getSelection().selectAllChildren(byId("python"));
      byId("copied").textContent = document.execCommand("copy") ? "Copied." : "Selected below: press Ctrl+C.";
    }
  });
  byId("code").addEventListener("toggle", () => {
    if (byId("code").open) byId("python").textContent = view.python(state);
  });
  byId("reset").addEventListener("click", () => {
    state = { ...starts[view.id] };
    show(view, state);
    write();
  });
  const theme = themes(() => mounted?.update(state));
  if (window.parent !== window) inside(theme);
  window.addEventListener("hashchange", arrive);
  window.explorer = {
    modules, views, times,
    state: () => state,
    view: () => view.id,
    set: changed,
    address: () => addressOf(view.id, state, view.defaults),
    python: () => view.python(state),
  };
  arrive();
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
