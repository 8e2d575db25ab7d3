// Frames of the explorer are as high as what they show, and light or dark as the page around them.
const frames = () => [...document.querySelectorAll("iframe.explorer")];
const tell = (frame) => frame.contentWindow.postMessage({ explorerTheme: document.body.dataset.theme }, "*");

window.addEventListener("message", ({ source, data }) => {
  const frame = frames().find((one) => one.contentWindow === source);
  if (!frame || !data?.explorerHeight) return;
  frame.style.height = `${data.explorerHeight + 2}px`; // and its border
  if (!frame.dataset.told) tell(frame);
  frame.dataset.told = "";
});
document.addEventListener("DOMContentLoaded", () => new MutationObserver(() => frames().forEach(tell)).observe(document.body, { attributeFilter: ["data-theme"] }));
