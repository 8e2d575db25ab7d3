"""The steps of every view: each claim holds of the numbers shown, each step is a link, and all of it fits, plays and works by keys."""

import json
import math
import re

import pytest
from explorer.cases import VIEWS
from in_chromium import needs_chromium

pytestmark = [pytest.mark.slow, needs_chromium]

STILL = {"reduced_motion": "reduce"}  # states change at once
near = lambda x, y, by=0.005: abs(x - y) <= by  # noqa: E731
LOG3 = math.log(3)
CHANCE = 0.005  # of a p value below which the page calls a sampler wrong
TURNING = 22.78  # the gap of view 8 without damping, in nats


def distance(a, b):
    return math.dist(a, b)


# What each step claims beyond the numbers that the page fills in: of the numbers where it asks (a) and where it answers (b).
CLAIMS = {
    "posterior": [
        lambda a, b: near(LOG3, 1.099, 5e-4) and a["attention"][1] == max(a["attention"]) and len({round(p, 12) for p in a["prior"]}) == 1,
        lambda a, b: max(b["attention"]) > max(a["attention"]) and b["logEvidence"] < a["logEvidence"] and b["attention"][1] > 0.9,
        lambda a, b: b["attention"][1] > 0.99 > a["attention"][1] and b["entropy"] < a["entropy"] and b["logEvidence"] < a["logEvidence"] - 1,
        lambda a, b: a["attention"][1] > 0.99 and b["attention"][3] > 0.2 and b["attention"][1] < a["attention"][1],
        lambda a, b: max(a["attention"]) == a["attention"][2] and all(near(p, 1 / 3, 1e-9) for p in b["attention"]) and max(b["prior"]) == b["prior"][1] and min(b["prior"]) == b["prior"][2],
    ],
    "same-attention": [
        lambda a, b: b["change"] < 1e-12 and a["attention"] == pytest.approx(b["attention"], abs=1e-12) and b["evidence"] < a["evidence"],
        lambda a, b: b["change"] < 1e-12 and near(a["evidence"], -22.48) and b["evidence"] != a["evidence"],
        lambda a, b: a["evidence"] == pytest.approx(a["evidenceAsGiven"], abs=1e-9) and distance(a["expectedQuery"], [-0.25, 0.15]) > 2,
        lambda a, b: b["change"] < 1e-12 and b["evidence"] > b["evidenceAsGiven"] + 20 and b["evidence"] > -22.4,
    ],
    "evidence-bound": [
        lambda a, b: b["elbo"] > a["elbo"] and b["divergence"] < a["divergence"] and b["logEvidence"] == a["logEvidence"],
        lambda a, b: a["divergence"] > 0.5 and 0 <= b["divergence"] < 1e-5 and b["guide"] == pytest.approx(b["attention"], abs=6e-4),
        lambda a, b: a["guide"] == b["guide"] and a["divergence"] < 1e-5 and b["divergence"] > 0.1 and b["attention"][0] > a["attention"][0],
        lambda a, b: b["divergence"] < a["divergence"] and b["attention"][0] > a["attention"][0] and b["guide"][0] == 0.6 and b["logEvidence"] < a["logEvidence"],
    ],
    "soft-kmeans": [
        lambda a, b: b["entropy"] < 0.01 < a["entropy"] and all(near(n, round(n), 0.1) for n in b["assigned"]),
        lambda a, b: settled(a) and 0.2 < a["critical"] < 1 and b["spread"] == 0 and all(near(x, y, 1e-3) for c in b["next"] for x, y in zip(c, [0.008, 0.133], strict=True)),
        lambda a, b: a["spread"] == b["spread"] == 0 and all(c == pytest.approx(b["next"][0], abs=1e-12) for c in b["next"]),
        lambda a, b: a["spread"] == 0 and settled(b) and b["freeEnergy"] < a["freeEnergy"],
    ],
    "mean-or-mode": [
        lambda a, b: a["count"] == 3 and a["atMean"] < min(a["density"]) - 4 and near(min(a["density"]), max(a["density"]), 1e-9),
        lambda a, b: (a["count"], b["count"]) == (3, 4) and min(distance(m, b["mean"]) for m in b["modes"]) < 1e-6,
        lambda a, b: (a["count"], b["count"]) == (4, 1) and distance(b["modes"][0], b["mean"]) < 1e-6,
        lambda a, b: a["end"] == [0, 0.3] and distance(b["end"], b["mean"]) < 1e-9 and b["atMean"] < min(b["density"]),
        lambda a, b: distance(a["end"], a["mean"]) < 1e-9 and min(distance(b["end"], m) for m in b["modes"]) < 1e-3,
    ],
    "keys-adapt": [
        lambda a, b: top(a["adapted"]) == 0 and top(a["right"]) == top(a["exact"]) == 2,
        lambda a, b: top(a["wrong"]) == 0 and top(a["right"]) == 2 and a["right"][2] > a["wrong"][2],
        lambda a, b: top(b["right"]) == top(b["wrong"]) == 1 and gap(b) < gap(a) / 3,
        lambda a, b: b["keys"][2][1] > 1.4 and b["right"][2] < a["right"][2] / 2 and top(b["right"]) == 0,
        lambda a, b: top(b["right"]) == 0 and b["right"][2] < 0.01 < a["right"][2] and b["keys"] == [[-1.5, -0.6], [1.5, -0.6], [0, 1.5]],
    ],
    "memory": [
        lambda a, b: a["places"] == 3 and near(a["effectivePatterns"], 2, 0.05),
        lambda a, b: (a["places"], b["places"]) == (3, 4) and b["effectivePatterns"] < 1.05 < a["effectivePatterns"],
        lambda a, b: (a["places"], b["places"]) == (3, 1) and distance(b["end"], [0.2, 0.275]) < 0.3,
        lambda a, b: a["effectivePatterns"] > 2 and b["end"] == [1, 1.3] and 0 in b["shares"],
    ],
    "mean-field": [
        lambda a, b: b["elbo"] > a["elbo"] and 0.5 < b["gap"] < a["gap"],
        lambda a, b: a["gap"] > 1 and near(b["gap"], 0, 1e-9),
        lambda a, b: a["labels"][0][0] > a["exactLabels"][0][0] + 0.3,
        lambda a, b: near(a["gap"], TURNING) and b["gap"] < a["gap"] / 4 and b["elbo"] > a["elbo"],
    ],
    "fool-the-diagnostics": [
        lambda a, b: a["rhat"] < 1.01 and a["pKey"] < CHANCE and a["pLogLikelihood"] < CHANCE,
        lambda a, b: a["pKey"] < CHANCE and min(b["pKey"], b["pLogLikelihood"]) > CHANCE and near(b["mean"], b["exactMean"], 0.05),
        lambda a, b: a["rhat"] < 1.01 and b["rhat"] < 1.01 and abs(b["mean"] - b["exactMean"]) > 1 and min(b["pKey"], b["pLogLikelihood"]) > CHANCE,
        lambda a, b: a["rhat"] < 1.01 and abs(a["mean"] - a["exactMean"]) > 1 and b["rhat"] > 1.5 and b["essBulk"] < 20,
        lambda a, b: a["rhat"] < 1.01 and a["pKey"] > CHANCE > a["pLogLikelihood"],
    ],
    "regression": [
        lambda a, b: b["linear"][0] > 1.5 * b["truth"] and near(b["exact"][0], b["truth"], 0.1) and b["delta"][0] < b["truth"],
        lambda a, b: b["exact"][1] > 2 * a["exact"][1] and near(b["delta"][1], a["delta"][1], 5e-3),
        lambda a, b: b["exact"][1] < a["exact"][1] / 2 and abs(b["exact"][0] - b["truth"]) < abs(a["exact"][0] - a["truth"]),
        lambda a, b: 0 < b["exact"][0] < a["exact"][0] and b["exact"][1] > a["exact"][1],
        lambda a, b: b["attention"][0] - a["attention"][0] == min(y - x for x, y in zip(a["attention"], b["attention"], strict=True)) and b["attention"][0] < b["attention"][3] and b["exact"][1] > a["exact"][1],
    ],
    "two-keys": [
        lambda a, b: a["pieces"] == 2 and a["lost"] > 0.3,
        lambda a, b: b["pieces"] == 1 and b["lost"] == 0,
        lambda a, b: near(b["logEvidence"], ONE_KEY, 5e-5) and b["pieces"] == 1 and b["lost"] == 0,
        lambda a, b: near(b["attention"][0], a["attention"][0] / 2, 0.005) and b["hardEvidence"] < b["logEvidence"] and a["responsibilities"][0][0] == pytest.approx(a["responsibilities"][0][1]),
    ],
    "together": [
        lambda a, b: near(a["counts"][1] + a["counts"][4], 0, 0.02) and min(a["moves"]) > 0.6,
        lambda a, b: max(b["moves"]) - min(b["moves"]) < 0.002 and min(b["moves"]) > 0.6,
        lambda a, b: all(b["moves"][j] > 0.5 for j in (0, 2, 3)) and all(b["moves"][j] < 0.06 and near(b["spread"][j], 0.6, 0.03) for j in (1, 4)),
        lambda a, b: b["topEvidence"] > b["logEvidence"] and near(b["top"][1], 0.03 * 100 ** (0.5 / 15), 1e-9) and b["top"][0] > 0.5,
        lambda a, b: near(a["top"][1], 0.035, 1e-3) and b["top"][1] > 0.4 and b["counts"][3] > 0.8,
    ],
    "novelty": [
        lambda a, b: b["share"] > 0.999 and b["queryEvidence"] < b["threshold"] - 1,
        lambda a, b: b["evidenceAuroc"] > 0.95 and b["oddsAuroc"] < 0.2,
        lambda a, b: a["oddsAuroc"] < 0.2 and min(b["oddsAuroc"], b["evidenceAuroc"]) > 0.85,
        lambda a, b: a["evidenceAuroc"] > 0.85 and b["evidenceAuroc"] < 0.05,
        lambda a, b: b["evidenceAuroc"] < 0.6 and b["oddsAuroc"] < 0.5,
    ],
    "funnel": [
        lambda a, b: a["worst"] < 3 and "broke" not in a and near(b["broke"], 9) and b["worst"] > 1000,
        lambda a, b: near(a["limit"], (2 / (0.25 * a["scale"])) ** 2 - 1) and near(b["unstable"], 0.336, 1e-3) and b["unstable"] > 3 * a["unstable"] and b["diverging"] > 10 * a["diverging"],
        lambda a, b: a["diverging"] > 0 == b["diverging"] and b["effective"] < 100 and b["length"] > 2 * a["length"],
        lambda a, b: b["diverging"] == 0 and b["effective"] > 4 * a["effective"] and b["rhat"] < 1.01 < a["rhat"] and near(b["scale"], 1),
        lambda a, b: near(b["effective"], a["effective"], 50) and b["length"] < a["length"] / 2 and 0 < b["diverging"] < 5 and b["end"][1] > 3.5,
    ],
}  # fmt: skip
ONE_KEY = -3.14989  # log evidence of view 11's query with one key a unit: its numbers at weight 0


def top(p):
    return p.index(max(p))


def gap(numbers):
    """How far the two averages are apart."""
    return max(abs(x - y) for x, y in zip(numbers["right"], numbers["wrong"], strict=True))


def settled(numbers):
    """One more step of EM leaves centres of view 4 where they are, to the digits that the step gives."""
    centers = [[-1.5376, 0.6377], [1.2192, 0.8892], [0.4688, -1.3548]]
    return all(distance(x, y) < 2e-4 for x, y in zip(numbers["next"], centers, strict=True))


def steps_of(one):
    """How many steps the view has."""
    return one.page.evaluate('explorer.modules["steps"].STEPS[explorer.view()].length')


def known(one):
    """The numbers of the view, all of them computed."""
    one.until(
        "() => [...document.querySelectorAll('.numbers td')].every((x) => x.parentElement.hidden || x.dataset.json) && (document.querySelector('[data-value=simulations]')?.dataset.json ?? '200') === '200'"
    )
    return one.numbers()


def phases(one):
    """Every press of the view's steps, from the first question to the last answer: the step, and whether it is answered."""
    one.page.locator("#steps-open").click()
    count = steps_of(one)
    for step in range(count):
        yield step, False
        one.page.locator("#step-on").click()
        yield step, True
        if step < count - 1:
            one.page.locator("#step-on").click()


@pytest.mark.parametrize("view", VIEWS)
def test_each_claim_holds_where_it_is_made(visit, view):
    one = visit(f"#{view}", **STILL)
    asked = None
    for step, answered in phases(one):
        numbers = known(one)
        assert one.page.locator("#step-count").inner_text() == f"Step {step + 1} of {steps_of(one)}"
        text = one.page.locator(".words").inner_text()
        assert re.findall(r"[{}…]|NaN|undefined|Infinity", text) == [], text
        assert one.page.locator("#suggestion").inner_text().startswith("Question: ")
        assert (one.page.locator("#answer").inner_text() != "") == answered
        if answered:
            assert CLAIMS[view][step](asked, numbers), f"step {step + 1}"
        asked = numbers
    assert 4 <= steps_of(one) <= 6 and len(CLAIMS[view]) == steps_of(one)


def test_a_number_in_a_sentence_is_that_of_the_table(visit):
    one = visit("#posterior", **STILL)
    filled = lambda text, numbers: one.page.evaluate(  # noqa: E731
        '([text, numbers]) => explorer.modules["play"].filled(text, numbers)', [text, numbers]
    )
    assert filled("{a}, {b.1}, {c.0.1} and {d %}", {"a": -0.5, "b": [1, 2], "c": [[3, 4]], "d": 0.256}) == (
        "−0.500, 2, 4 and 26 %"
    )
    assert filled("{a}, {b.4}", {"b": [1]}) == "…, …"


@pytest.mark.parametrize("view", VIEWS)
def test_a_step_is_a_link(visit, view):
    one = visit(f"#{view}", **STILL)
    for step, answered in phases(one):
        one.until("() => location.hash === explorer.address()")
        place, state = one.page.evaluate("location.hash"), one.state()
        other = visit(place, **STILL)
        assert other.state() == state and other.page.locator("#message").inner_text() == ""
        assert other.page.locator("#step-count").inner_text() == f"Step {step + 1} of {steps_of(one)}"
        still = not one.page.evaluate(
            f'Object.keys(explorer.modules["steps"].STEPS[explorer.view()][{step}].then).length'
        )
        assert (other.page.locator("#answer").inner_text() != "") == (answered and not still)


@pytest.mark.parametrize("view", VIEWS)
def test_states_on_the_way_are_states(visit, view):
    """Between the states of neighbouring presses every state passes the checks of an address, so that it can be drawn."""
    script = """() => {
        const { between } = explorer.modules["play"], { checked } = explorer.modules["fields"], { STEPS } = explorer.modules["steps"];
        const view = explorer.views.find((one) => one.id === explorer.view());
        const states = STEPS[view.id].flatMap(({ state, then }) => [{ ...view.defaults, ...state }, { ...view.defaults, ...state, ...then }]);
        const way = states.slice(1).flatMap((to, k) => [0.1, 0.5, 0.9, 1].map((share) => between(view.fields, states[k], to, share)));
        for (const state of way) checked(view, state);
        return JSON.stringify(way.filter((_, k) => k % 4 === 3)) === JSON.stringify(states.slice(1)); }"""
    assert visit(f"#{view}").page.evaluate(script)


def boxes(one, selector):
    script = "(all) => all.filter((x) => x.checkVisibility()).map((x) => { const b = x.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; })"
    return one.page.locator(selector).evaluate_all(script)


@pytest.mark.parametrize("view", VIEWS)
def test_every_step_fits_the_screen_and_the_stage(visit, view):
    one = visit(f"#{view}", viewport={"width": 1280, "height": 720}, **STILL)
    # the window is the stage: full screen comes and goes at the browser's own time, and its size is not the one asked for
    one.page.evaluate("document.documentElement.requestFullscreen = async () => {}")
    for step, answered in phases(one):
        if view == "mean-field":
            one.page.locator(".tally li").first.wait_for()
        for wide, high in ((1280, 720), (1920, 1080)):
            one.page.set_viewport_size({"width": wide, "height": high})
            for part in boxes(one, "#title, .words, #steps, .main, #view .panel, .others"):
                assert 0 <= part[0] < part[2] <= wide and 0 <= part[1] < part[3] <= high, (step, answered)
            one.page.keyboard.press("p")
            assert one.page.locator("#strip").is_visible()
            [(_, strip, *_)], buttons = boxes(one, "#strip"), boxes(one, "#strip button")
            assert all(x0 >= 0 and x1 <= wide for x0, _, x1, _ in buttons)
            assert all(
                right <= wide and bottom <= strip
                for _, _, right, bottom in boxes(one, "#title, .words, .main, .others")
            ), (step, answered)
            one.page.keyboard.press("p")
            assert not one.page.locator("#strip").is_visible()


@pytest.mark.parametrize("view", VIEWS)
def test_on_a_phone_question_buttons_and_picture_are_on_the_first_screen(visit, view):
    one = visit(f"#{view}", has_touch=True, is_mobile=True, viewport={"width": 390, "height": 844}, **STILL)
    for step, answered in phases(one):
        one.page.evaluate("scrollTo(0, 0)")
        for left, _, right, bottom in boxes(one, "#suggestion, #steps button, .stays"):
            assert left >= 0 and right <= 390 and bottom <= 844, (step, answered)
        assert all(bottom - top >= 44 for _, top, _, bottom in boxes(one, "#steps button"))


def test_steps_go_by_keys_and_on_to_the_next_view(visit):
    one = visit("#posterior", **STILL)
    opener = one.page.locator("#steps-open")
    opener.focus()
    one.page.keyboard.press("Enter")
    assert opener.get_attribute("aria-expanded") == "true"
    count = steps_of(one)
    for _ in range(2 * count - 1):
        one.page.keyboard.press("ArrowRight")
    assert one.page.locator("#answer").inner_text() and one.page.locator("#step-on").inner_text() == "Next view"
    one.page.keyboard.press("ArrowLeft")
    assert one.page.locator("#answer").inner_text() == ""
    one.page.keyboard.press("PageDown")
    one.page.keyboard.press("PageDown")
    one.until("() => explorer.view() === 'same-attention'")
    assert one.page.locator("#step-count").inner_text().startswith("Step 1 of")
    opener.click()
    assert not one.page.locator("#steps").is_visible() and one.page.locator("#now").is_visible()
    assert one.page.locator("#suggestion").inner_text().startswith("Try:")


def test_what_was_said_of_a_state_goes_when_it_is_moved_and_the_question_stays(visit):
    one = visit("#posterior", **STILL)
    one.page.locator("#steps-open").click()
    one.page.locator("#step-on").click()
    question = one.page.locator("#suggestion").inner_text()
    one.page.locator(".layer-query .handle").press("ArrowRight")
    assert one.page.locator("#answer").inner_text() == "" and one.page.locator("#now").is_visible()
    assert one.page.locator("#suggestion").inner_text() == question
    one.page.locator("#step-on").click()  # "Answer" once more: back in the step
    assert one.page.locator("#answer").inner_text() and not one.page.locator("#now").is_visible()
    one.page.locator("#reset").click()
    assert not one.page.locator("#steps").is_visible() and one.page.locator("#suggestion").inner_text() != question


def test_play_goes_through_all_steps_and_can_be_paused(visit):
    one = visit("#posterior", **STILL)
    one.page.clock.install()
    one.page.locator("#steps-open").click()
    play, count = one.page.locator("#step-play"), one.page.locator("#step-count")
    play.click()
    assert play.inner_text() == "Pause"
    one.page.clock.run_for(30_000)
    seen = count.inner_text()
    assert seen != "Step 1 of 5"
    play.click()
    one.page.clock.run_for(60_000)
    assert count.inner_text() == seen and play.inner_text() == "Play"
    play.click()
    one.page.clock.run_for(300_000)
    assert (
        count.inner_text() == "Step 5 of 5" and play.inner_text() == "Play" and one.page.locator("#answer").inner_text()
    )


def test_a_change_is_seen_on_its_way_before_it_is_told(visit):
    one = visit("#posterior")  # motion is not reduced
    one.page.locator("#steps-open").click()
    for _ in range(2):
        one.page.locator("#step-on").click()
    one.until("() => document.getElementById('step-count').textContent.startsWith('Step 2')")
    script = """() => new Promise((done) => {
        const seen = [];
        document.getElementById("step-on").click();
        const look = () => {
            seen.push([explorer.state().precision, document.getElementById("answer").textContent !== ""]);
            if (seen.at(-1)[1]) done(seen); else requestAnimationFrame(look);
        };
        look(); })"""
    seen = one.page.evaluate(script)
    assert any(1 < precision < 6 for precision, _ in seen) and seen[-1] == [6, True]
    assert [told for precision, told in seen if precision != 6] == [False] * (len(seen) - sum(p == 6 for p, _ in seen))


def test_in_a_frame_of_one_view_steps_end_where_they_began(chromium, tmp_path):
    from explorer.cases import PAGE

    outer = tmp_path / "outer.html"
    outer.write_text(f'<iframe src="{PAGE.as_uri()}?view#two-keys" width="900" height="1200"></iframe>')
    page = chromium.new_page(reduced_motion="reduce")
    page.goto(outer.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("#steps-open").click()
    for _ in range(7):
        frame.locator("#step-on").click()
    assert frame.locator("#step-on").inner_text() == "First step"
    frame.locator("#step-on").click()
    assert frame.locator("#step-count").inner_text() == "Step 1 of 4"
    page.close()


def test_a_question_of_ones_own_closes_the_steps(visit):
    one = visit("#memory", **STILL)
    one.page.locator("#steps-open").click()
    one.page.get_by_text("A link for a class").click()
    assert one.page.get_by_label("Question").input_value() == one.page.locator("#suggestion").inner_text()[10:]
    one.page.get_by_label("Question").fill("What moves?")
    assert not one.page.locator("#steps").is_visible()
    assert json.loads(one.page.evaluate("JSON.stringify(explorer.state())"))["beta"] == 2
