"""Every view on a desk, on a wall and on a phone; links that a class is given; what a reader of screens hears."""

import re

import pytest
import torch
from explorer.cases import PAGE, VIEWS
from in_chromium import needs_chromium
from pyro.distributions import Normal

from probtx_pyro import cli, models

pytestmark = [pytest.mark.slow, needs_chromium]

WHOLE = "#title, .words, .main, #view .panel, .others"  # what is seen together; numbers are folded below


def boxes(one, selector):
    script = "(all) => all.filter((x) => x.checkVisibility()).map((x) => { const b = x.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; })"
    return one.page.locator(selector).evaluate_all(script)


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_whole_on_the_screen(visit, view):
    one = visit(f"#{view}")
    if view == "mean-field":  # its last part is a list that is drawn
        one.page.locator(".tally li").first.wait_for()
    for wide, high in ((1280, 720), (1280, 800), (1920, 1080)):
        one.page.set_viewport_size({"width": wide, "height": high})
        found = boxes(one, WHOLE)
        assert len(found) >= 4
        assert all(0 <= left < right <= wide and 0 <= top < bottom <= high for left, top, right, bottom in found)
        [(_, top, edge, bottom)], [(left, first, *_)] = boxes(one, ".main"), boxes(one, "#view .panel")
        assert left >= edge and top <= first < bottom  # the controls stand beside the picture


@pytest.mark.parametrize("view", VIEWS)
def test_on_a_phone_the_picture_comes_first_and_stays(visit, view):
    one = visit(f"#{view}", has_touch=True, is_mobile=True, viewport={"width": 390, "height": 844})
    [picture], [panel], [fold] = boxes(one, ".stays"), boxes(one, "#view .panel"), boxes(one, ".fold")
    others = boxes(one, ".others")
    assert picture[3] <= panel[1] < picture[3] + 12 and panel[1] < 844 - 100  # a control on the first screen
    assert panel[3] <= min([top for _, top, _, _ in others], default=panel[3]) and fold[1] >= max(
        bottom for *_, bottom in [panel, *others]
    )
    assert picture[3] - picture[1] <= 0.4 * 844
    one.page.evaluate("scrollTo(0, 500)")  # further than the picture is from the top
    [now], [after] = boxes(one, ".stays"), boxes(one, "#view .panel")
    assert picture[1] < 500 and now[1] == pytest.approx(0, abs=1) and after[1] < panel[1] - 100


def test_a_swipe_on_the_plane_scrolls(visit):
    one = visit("#posterior", has_touch=True, is_mobile=True, viewport={"width": 390, "height": 844})
    box = one.page.locator(".plane").bounding_box()
    send, x, y = one.context.new_cdp_session(one.page).send, box["x"] + 12, box["y"] + 0.6 * box["height"]
    send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
    for step in range(1, 9):
        send("Input.dispatchTouchEvent", {"type": "touchMove", "touchPoints": [{"x": x, "y": y - 20 * step}]})
    send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
    one.until("scrollY > 60")


# -- what a state may hold -----------------------------------------------------------------------------------------------------

WRONG = "() => (document.querySelector('main').outerHTML.match(/.{30}\\b(?:NaN|Infinity|undefined)\\b.{10}/g) ?? [])"


@pytest.mark.parametrize("view", VIEWS)
def test_a_link_draws_numbers_or_is_refused(visit, view):
    one = visit(f"#{view}")
    script = "explorer.views.find((view) => view.id === explorer.view()).{}"
    defaults = one.page.evaluate(script.format("defaults"))
    fields = one.page.evaluate(f"JSON.parse(JSON.stringify({script.format('fields')}))")
    assert set(fields) == set(defaults)
    ends = {name: (field["least"], field["most"]) for name, field in fields.items() if "least" in field}
    assert len(ends) >= 1

    def arrive(state):
        script = """([view, state]) => new Promise((done) => {
            addEventListener("hashchange", () => done(), { once: true });
            location.hash = `#${view}:${encodeURIComponent(JSON.stringify(state))}`; })"""
        one.page.evaluate(script, [view, state])

    message = one.page.locator("#message")
    for name, (least, most) in ends.items():
        for value in (least, most) if name != "read" else (least, len(defaults["keys"])):  # pairs that there are
            arrive({name: value})
            assert (message.inner_text(), one.state()[name]) == ("", value)
            assert one.page.evaluate(WRONG) == [], (name, value)
        for value in (least - 1, 3 * most + 1, "1", None):
            arrive({name: value})
            assert (
                any(f"{name} {verb}" in message.inner_text() for verb in ("must be", "is")) and one.state() == defaults
            ), (name, value)
    far = [
        name
        for name, value in defaults.items()
        if isinstance(value, list) and value and len([value[0]]) and name not in ("guide", "weights", "values")
    ]
    for name in far:
        place = [1000, -1000]
        value = place if not isinstance(defaults[name][0], list) else [place, *defaults[name][1:]]
        arrive({name: value})
        assert message.inner_text() == "" and one.page.evaluate(WRONG) == [], name


def test_kl_and_elbo_stay_finite_where_probabilities_underflow(visit):
    one = visit('#evidence-bound:{"precision":10000,"query":[900,5]}')
    found = one.numbers()
    assert found["divergence"] > 1e6
    assert found["sum"] == pytest.approx(found["logEvidence"], rel=1e-12)


def far_models():
    """Models whose keys span 100 in x and 2 in y, and the other way round."""
    keys = torch.tensor([[-50.0, -1.0], [50.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    for place in (keys, keys.flip(-1)):
        mixture = models.GaussianMixture(place, torch.ones(3, 1).double(), 1.0, 9.0)
        plain = models.GaussianMixture(place, key_precision=1.0)
        yield "posterior", (mixture, place[:1]), {}
        yield "keys-adapt", (models.bayesian(plain, keys=Normal(place, 1.0)), place + 0.5), {}


@pytest.mark.parametrize("number", range(4))
def test_a_model_of_far_points_has_a_plane(visit, number, tmp_path, capsys):
    view, own, names = list(far_models())[number]
    file = cli.write_explorer_json(tmp_path / "own.json", *own, **names)
    assert cli.main(["explore", str(file), "--out", str(tmp_path / "page.html"), "--no-browser"]) == 0
    one = visit("", page=tmp_path / "page.html")
    assert one.page.evaluate("explorer.view()") == view and one.page.locator("#message").inner_text() == ""
    [(left, top, right, bottom)] = boxes(one, ".plane")
    assert 0.99 <= (right - left) / (bottom - top) <= 3.01
    for x0, y0, x1, y1 in boxes(one, ".plane .ring"):
        assert left <= x0 and top <= y0 and x1 <= right and y1 <= bottom
    ticks = one.page.locator(".plane .tick").all_text_contents()
    assert len(ticks) >= 6 and max(map(float, ticks)) >= 40  # of the long axis; the short one has its own


# -- the stage -----------------------------------------------------------------------------------------------------------------


def test_the_stage_shows_the_picture_large_and_turns_views(visit):
    one = visit("#posterior", viewport={"width": 1280, "height": 800})
    letters = "() => parseFloat(getComputedStyle(document.getElementById('sentence')).fontSize)"
    size, [before] = one.page.evaluate(letters), boxes(one, ".stays")
    one.page.keyboard.press("p")
    one.until("() => document.documentElement.dataset.stage === 'folded'")
    assert one.page.evaluate(letters) == pytest.approx(1.5 * size)
    assert not one.page.locator("#view .panel").is_visible() and not one.page.locator(".fold").is_visible()
    [after] = boxes(one, ".stays")
    assert after[3] - after[1] >= before[3] - before[1] and one.page.locator("#strip").is_visible()
    one.page.keyboard.press("ArrowRight")
    one.until("() => explorer.view() === 'same-attention' && location.hash === '#same-attention'")
    one.page.keyboard.press("PageUp")
    one.until("() => explorer.view() === 'posterior' && location.hash === '#posterior'")
    one.page.keyboard.press("ArrowLeft")
    last = one.page.evaluate("explorer.views.at(-1).id")
    one.until(f"() => explorer.view() === '{last}' && location.hash === '#{last}'")
    one.page.locator("#unfold").click()
    assert one.page.locator("#view .panel").is_visible()
    slider = one.page.locator("#view input[type=range]").first
    name = slider.get_attribute("name")
    before = one.state()[name]
    slider.press("ArrowLeft")  # moves the slider and turns no view
    assert one.page.evaluate("explorer.view()") == last and one.state()[name] < before
    one.page.locator("#leave").click()
    assert one.page.evaluate("document.documentElement.dataset.stage ?? null") is None
    assert one.page.evaluate(letters) == pytest.approx(size)


@pytest.mark.parametrize("view", VIEWS)
def test_the_stage_fits(visit, view):
    one = visit(f"#{view}", viewport={"width": 1280, "height": 720})
    one.page.locator("#project").click()
    if view == "mean-field":
        one.page.locator(".tally li").first.wait_for()
    [(_, strip, *_)] = boxes(one, "#strip")
    assert all(
        right <= 1280 and bottom <= strip for _, _, right, bottom in boxes(one, "#title, .words, .main, .others")
    )


def test_a_letter_p_in_a_sentence_is_a_letter(visit):
    one = visit("#mean-field")
    one.page.locator("#sentence-typed").press("p")
    assert one.page.evaluate("document.documentElement.dataset.stage ?? null") is None


# -- links for a class ---------------------------------------------------------------------------------------------------------


def test_a_link_hides_controls_and_asks(visit):
    place = (
        '#posterior:{"precision":3};hide=precision,background,numbers,add;ask=Where%20is%20it%20sure%3B%20and%20why%3F'
    )
    one = visit(place)
    assert one.state()["precision"] == 3
    hidden = [
        one.page.locator(f'#view [data-control="{name}"]') for name in ("precision", "background", "numbers", "add")
    ]
    assert not any(part.is_visible() for part in hidden)
    assert one.page.locator('#view [data-control="valuePrecision"]').is_visible()
    assert one.page.locator("#suggestion").inner_text() == "Question: Where is it sure; and why?"
    one.page.locator(".layer-query .handle").press("ArrowRight")
    one.until("() => location.hash === explorer.address()")
    again = visit(one.page.evaluate("location.hash"))  # both stay in the address of the state that follows
    assert again.state() == one.state()
    assert not again.page.locator('#view [data-control="add"]').is_visible()
    assert again.page.locator("#suggestion").inner_text() == one.page.locator("#suggestion").inner_text()
    again.page.get_by_role("link", name="Mean or mode").click()
    again.until("() => explorer.view() === 'mean-or-mode'")
    assert again.page.locator("#suggestion").inner_text().startswith("Try:")


def test_what_cannot_be_hidden_is_said(visit):
    one = visit("#memory;hide=beta,colour")
    assert "has no colour that could be hidden" in one.page.locator("#message").inner_text()
    assert not one.page.locator('#view [data-control="beta"]').is_visible()


@pytest.mark.parametrize("view", VIEWS)
def test_a_link_for_a_class_is_made_by_ticks(visit, view):
    one = visit(f"#{view}", permissions=["clipboard-read", "clipboard-write"])
    one.page.get_by_text("A link for a class").click()
    boxes_ = one.page.locator("#shown input")
    names = boxes_.evaluate_all("(all) => all.map((x) => x.name)")
    assert len(names) == len(set(names)) >= 3 and all(one.page.locator("#shown span").all_inner_texts())
    for box in boxes_.all():
        box.uncheck()
    one.page.get_by_label("Question").fill("What moves?")
    one.page.get_by_role("button", name="Copy link").click()
    one.page.get_by_text("Copied.").wait_for()
    link = one.page.evaluate("navigator.clipboard.readText()")
    assert link == one.page.evaluate("location.href") and f";hide={'%2C'.join(names)};ask=What%20moves%3F" in link
    other = visit(link[link.index("#") :])
    assert boxes(other, "#view [data-control]") == []
    assert other.page.locator("#suggestion").inner_text() == "Question: What moves?"


# -- formula, number and mark --------------------------------------------------------------------------------------------------


def glows(one, selector):
    return one.page.locator(selector).first.evaluate("(x) => getComputedStyle(x).filter !== 'none'")


def test_a_ring_its_bar_and_its_term_of_the_formula_light_up_together(visit):
    one = visit('#posterior:{"background":0.2}')
    number = r"([-+.\de]+)"

    def term():
        text = one.page.locator(".formula").inner_text().replace("\n", "")
        return re.search(rf"w(\w+) = .* / evidence = {number} · {number} / {number} = {number}$", text).groups()

    def agrees(name, share):
        found, *parts = term()
        prior, density, evidence, weight = map(float, parts)
        assert found == name and weight == pytest.approx(share, abs=5e-4)
        # three digits each: half a unit of the third, of three factors
        assert prior * density / evidence == pytest.approx(weight, rel=0.015, abs=5e-4)

    attention = one.numbers()["attention"]
    agrees("1", attention[0])  # the chosen key, while nothing is pointed at
    for j in range(3):
        one.page.locator(f'.layer-keys .handle[data-unit="{j}"]').hover()
        assert [glows(one, f'{part}[data-unit="{k}"]') for part in (".handle", ".bar") for k in range(3)] == [
            k == j for k in range(3)
        ] * 2
        agrees(str(j + 1), attention[j])
    one.page.locator('.row[data-unit="3"]').hover()
    assert glows(one, '.bar[data-unit="3"]') and not glows(one, '.bar[data-unit="2"]')
    agrees("b", attention[3])
    one.page.locator('.layer-keys .handle[data-unit="1"]').focus()  # by keys, too; and the light stays when it is moved
    one.page.keyboard.press("ArrowUp")
    assert glows(one, '.bar[data-unit="1"]') and glows(one, '.handle[data-unit="1"]')
    agrees("2", one.numbers()["attention"][1])
    one.page.locator("h1").hover()
    one.page.locator(".others figcaption").first.hover()
    assert not glows(one, '.bar[data-unit="1"]')


# -- spoken and told -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", VIEWS)
def test_a_sentence_of_the_state_is_shown_and_spoken_when_it_moves(visit, view):
    one = visit(f"#{view}")
    now, spoken = one.page.locator("#now"), one.page.locator("#spoken")
    first = now.inner_text()
    assert first and spoken.inner_text() == ""
    assert spoken.get_attribute("role") == "status"
    assert one.page.locator("#view output").count() == 0  # a slider's own number is its value text, not a second voice
    change = {
        "posterior": {"query": [2, 2]}, "same-attention": {"origin": [0, 0]}, "evidence-bound": {"guide": [0, 1, 0]}, "soft-kmeans": {"gamma": 0.1},
        "mean-or-mode": {"sd": 0.6}, "keys-adapt": {"query": [2, 0]}, "memory": {"beta": 9}, "mean-field": {"sentence": "the old man the boats"},
        "fool-the-diagnostics": {"bug": "offset"}, "regression": {"query": [-0.6, 0.8]}, "two-keys": {"weight": 0}, "together": {"tau": 0.1}, "novelty": {"query": [0, 0]}, "funnel": {"step": 0.1},
    }[view]  # fmt: skip
    one.set(change)
    assert now.inner_text() != first
    one.until("() => document.getElementById('spoken').textContent === document.getElementById('now').textContent")


def test_the_frame_tells_its_address_to_the_page_around(chromium, tmp_path):
    """The page around hears of every change, and the frame reads its own address when it starts."""
    outer = tmp_path / "outer.html"
    outer.write_text(
        f"<script>heard = []; addEventListener('message', (e) => e.data.probtx === 'hash' && heard.push(e.data.hash))</script>"
        f'<iframe src="{PAGE.as_uri()}#memory" width="900" height="900"></iframe>'
    )
    page = chromium.new_page()
    page.goto(outer.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("#now:not(:empty)").wait_for()
    page.wait_for_function("heard.at(-1) === '#memory'")
    frame.get_by_role("slider").first.press("End")
    page.wait_for_function("heard.at(-1) === '#memory:' + encodeURIComponent('{\"beta\":20}')")
    frame.get_by_role("link", name="Two keys").click()
    page.wait_for_function("heard.at(-1) === '#two-keys'")
    page.close()
