// Turns the slides of a page: one section at a time, its answers one press later.
const slides = [...document.querySelectorAll("section")];
const answers = (slide) => [...slide.querySelectorAll(".fragment")];
let at = 0;

function show(number, open = false) {
  at = Math.max(0, Math.min(slides.length - 1, number));
  slides.forEach((slide, index) => {
    slide.hidden = index !== at;
    slide.classList.toggle("shown", index === at);
  });
  for (const answer of answers(slides[at])) answer.hidden = !open;
  document.getElementById("number").textContent = `${at + 1} of ${slides.length}`;
  history.replaceState(null, "", `#${at + 1}`);
  scrollTo(0, 0);
}

function next() {
  const folded = answers(slides[at]).find((answer) => answer.hidden);
  if (folded) folded.hidden = false;
  else if (at < slides.length - 1) show(at + 1);
}

const back = () => show(at - 1, true);
const KEYS = {
  ArrowRight: next, PageDown: next, " ": next, ArrowLeft: back, PageUp: back, Home: () => show(0), End: () => show(slides.length - 1),
  s: () => document.body.classList.toggle("notes-shown"),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || (event.key === " " && event.target.closest("button, a"))) return;
  if (!KEYS[event.key]) return;
  event.preventDefault();
  KEYS[event.key]();
});
document.getElementById("next").addEventListener("click", next);
document.getElementById("back").addEventListener("click", back);
window.addEventListener("hashchange", () => show(Number(location.hash.slice(1)) - 1 || 0));
show(Number(location.hash.slice(1)) - 1 || 0);
