"""The browser of the tests that need one: Debian's Chromium, driven by Playwright."""

import shutil

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium on the path: apt-get install chromium"
)

# contrast of every text that is seen with the ground behind it, by the text's beginning or its element's identifier
CONTRAST = """() => {
  const light = (c) => c.map((v) => v / 255).map((v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const ground = (node) => { for (; node; node = node.parentElement) {
    const c = parse(getComputedStyle(node).backgroundColor); if (c.length < 4 || c[3] > 0) return c.slice(0, 3); } };
  const found = {};
  for (const node of document.querySelectorAll('body *')) {
    if (!node.checkVisibility() || node.disabled || ![...node.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    const [a, b] = [parse(getComputedStyle(node).color).slice(0, 3), ground(node)].map(light).sort((p, q) => q - p);
    found[node.id || node.textContent.trim().slice(0, 30)] = (a + .05) / (b + .05);
  }
  return found; }"""
