"""Every view of the explorer as it is seen and reached: narrow and wide, light and dark, by fingers, keys and readers of screens."""

import re

import pytest
from explorer.cases import VIEWS
from in_chromium import needs_chromium

pytestmark = [pytest.mark.slow, needs_chromium]

SCREENS = [(380, "light"), (380, "dark"), (1200, "light"), (1200, "dark")]

CONTRAST = """() => {
  const light = (c) => c.map((v) => v / 255).map((v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const ground = (node) => { for (; node; node = node.parentElement) {
    const c = parse(getComputedStyle(node).backgroundColor); if (c.length < 4 || c[3] > 0) return c.slice(0, 3); } };
  const found = {};
  for (const node of document.querySelectorAll('body *')) {
    if (node.closest('script, noscript, .plane, rect') || !node.checkVisibility() || node.disabled) continue;
    if (node.closest('label')?.querySelector(':disabled') || node.closest('.control')?.querySelector(':disabled')) continue;
    if (![...node.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    const ink = node instanceof SVGElement ? getComputedStyle(node).fill : getComputedStyle(node).color;
    const [a, b] = [parse(ink).slice(0, 3), ground(node)].map(light).sort((p, q) => q - p);
    found[node.textContent.trim().slice(0, 40)] = (a + .05) / (b + .05);
  }
  return found; }"""


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(("width", "scheme"), SCREENS)
def test_it_fits_and_can_be_read(visit, view, width, scheme):
    one = visit(f"#{view}", color_scheme=scheme, viewport={"width": width, "height": 900})
    for summary in one.page.locator("summary:visible").all():
        summary.click()
    assert one.page.evaluate("document.documentElement.scrollWidth") <= width
    ratios = one.page.evaluate(CONTRAST)
    assert len(ratios) > 15
    assert {name: round(ratio, 2) for name, ratio in ratios.items() if ratio < 4.5} == {}
    ground = one.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) > 380) == (scheme == "light")


# What is smaller than a finger: controls, the labels that hold them, and the circles around handles.
SMALL = """(least) => [...document.querySelectorAll("button, nav a, summary, #view input, .touch")].map((x) => x.closest("label") ?? x)
    .filter((x) => x.checkVisibility() && Math.min(x.getBoundingClientRect().height, x.getBoundingClientRect().width) < least)
    .map((x) => `${x.className.baseVal ?? x.id} ${x.textContent} ${x.getBoundingClientRect().height} x ${x.getBoundingClientRect().width}`)"""


@pytest.mark.parametrize("view", VIEWS)
def test_a_finger_hits_every_control(visit, view):
    """44 pixels: the least of Apple's guidelines and of WCAG 2.1, 2.5.5."""
    one = visit(f"#{view}", has_touch=True, is_mobile=True, viewport={"width": 380, "height": 800})
    assert one.page.locator(".touch").count() + one.page.locator("#view input").count() > 3
    assert one.page.evaluate(SMALL, 44) == []


@pytest.mark.parametrize(("wide", "high"), [(380, 800), (1280, 800)])
@pytest.mark.parametrize("view", VIEWS)
def test_text_of_pictures_is_not_small(visit, view, wide, high):
    one = visit(f"#{view}", viewport={"width": wide, "height": high})
    if view == "mean-field":  # one picture is drawn
        one.page.locator(".tally li").first.wait_for()
    script = """() => [...document.querySelectorAll("#view svg text")].filter((x) => x.textContent.trim() && x.checkVisibility())
        .map((x) => [x.textContent, parseFloat(getComputedStyle(x).fontSize) * x.ownerSVGElement.getBoundingClientRect().width / x.ownerSVGElement.viewBox.baseVal.width])"""
    assert {text: round(size, 1) for text, size in one.page.evaluate(script) if size < 10.5} == {}


@pytest.mark.parametrize("view", VIEWS)
def test_every_control_has_a_name(visit, view):
    page = visit(f"#{view}").page
    for role in ("button", "radio", "checkbox", "slider", "textbox", "link"):
        controls = page.get_by_role(role)
        for number in range(controls.count()):
            snapshot = controls.nth(number).aria_snapshot()
            assert re.search(rf"- '?{role} \".+\"", snapshot), snapshot


@pytest.mark.parametrize("view", VIEWS)
def test_pictures_say_what_they_show(visit, view):
    page = visit(f"#{view}").page
    assert [x for x in page.locator('svg[role="img"]').all() if not x.get_attribute("aria-label")] == []


def test_light_and_dark_are_a_choice(visit):
    one = visit("#posterior", color_scheme="light")
    ground = lambda: one.page.evaluate("getComputedStyle(document.body).backgroundColor")  # noqa: E731
    image = lambda: one.page.locator(".shading").get_attribute("href")  # noqa: E731
    light, shaded = ground(), image()
    one.page.get_by_role("button", name="Dark").click()
    assert ground() != light and image() != shaded
    one.page.get_by_role("button", name="Light").click()
    assert ground() == light and image() == shaded


def test_focus_is_seen(visit):
    page = visit("#posterior").page
    seen = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        script = "const e = document.activeElement; const ring = e.querySelector?.('.touch'); [e.name || e.id || e.getAttribute('aria-label') || e.textContent, ring ? getComputedStyle(ring).strokeDasharray !== 'none' : getComputedStyle(e).outlineStyle === 'solid']"
        if page.evaluate("document.activeElement === document.body"):  # past the last
            break
        name, visible = page.evaluate(script)
        assert visible, name
        seen.add(name.split(" at ")[0])
    assert {"theme", "Key 1", "Key 3", "The query", "precision", "linked", "copy", "reset"} <= seen
