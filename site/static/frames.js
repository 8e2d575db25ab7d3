// Runs in the head of a page, before a frame can say anything: frames of the explorer are as high as what they show, and light or dark as the page around them; the one that shows all of it
// shares its address with the page.
const frames = () => [...document.querySelectorAll("iframe.explorer")];
const whole = () => document.querySelector("iframe.explorer.whole");
const tell = (frame) => frame.contentWindow.postMessage({ explorerTheme: document.body.dataset.theme }, "*");

window.addEventListener("message", ({ source, data }) => {
  const frame = frames().find((one) => one.contentWindow === source);
  if (!frame || !data) return;
  if (data.probtx === "hash" && frame === whole() && String(data.hash).startsWith("#")) history.replaceState(null, "", data.hash);
  if (!data.explorerHeight) return;
  frame.style.height = `${data.explorerHeight + 2}px`; // and its border
  if (!frame.dataset.told) tell(frame);
  frame.dataset.told = "";
});

// The view that the address names, or the section about it, opens in the frame.
function arrive() {
  if (!whole() || !location.hash) return;
  const section = document.getElementById(location.hash.slice(1));
  const about = section?.querySelector("[data-view]");
  if (section && !about) return; // a view with a page of its own
  whole().src = whole().getAttribute("src").split("#")[0] + (about?.hash ?? location.hash);
  whole().scrollIntoView();
}
window.addEventListener("hashchange", arrive);
document.addEventListener("DOMContentLoaded", () => {
  new MutationObserver(() => frames().forEach(tell)).observe(document.body, { attributeFilter: ["data-theme"] });
  arrive();
});
