"""Points of a class: a tap drops one, lines of text bring many in their own units; what is wrong with them is said in one sentence."""

import re
import statistics

import pytest
from explorer.cases import SOURCE
from in_chromium import needs_chromium

pytestmark = [pytest.mark.slow, needs_chromium]

# The list of each view's state that its own points are, the plane that is tapped, and how many there may be.
OWN = {
    "posterior": ("keys", 12), "same-attention": ("queries", 12), "soft-kmeans": ("points", 100), "mean-or-mode": ("values", 12),
    "keys-adapt": ("queries", 60), "memory": ("patterns", 12), "regression": ("keys", 8), "together": ("queries", 5),
}  # fmt: skip
HEIGHTS = [(172, 61.5), (181, 80), (165, 58.5), (190, 95), (176, 70)]  # centimetres, kilograms


def unfold(one):
    """Opens the fold; its text is filled when it has opened, and would overwrite what is written before."""
    one.page.get_by_text("Points of your own").click()
    one.until("() => document.getElementById('own-points-text').value !== ''")


def paste(one, text):
    if not one.page.locator("#own-points[open]").count():
        unfold(one)
    one.page.locator("#own-points-text").fill(text)
    one.page.get_by_role("button", name="Draw these points").click()
    return one.page.locator("#own-points-said").inner_text()


def test_every_view_with_a_list_of_points_takes_ones_own():
    texts = [path.read_text() for path in (SOURCE / "views").glob("*.js")]
    free = [
        text for text in texts if re.search(r"\bpoints(?:Field)?\((\d+), (?!\1\))", text)
    ]  # not so many and no other
    assert sorted(re.search(r'^  id: "(.*?)"', text, re.M)[1] for text in free) == sorted(OWN)


@pytest.mark.parametrize("view", OWN)
def test_a_tap_drops_a_point(visit, view):
    name, _ = OWN[view]
    one = visit(f"#{view}")
    before = one.state()[name] or []
    plane = one.page.locator(".plane").first
    box = plane.bounding_box()
    place = {"x": 0.93 * box["width"], "y": 0.93 * box["height"]}
    plane.locator(".back").click(position=place)
    after, rows = one.state()[name], len(before) or 40  # view 4 begins with points that a seed makes
    assert len(after) == rows + 1 and after[: len(before)] == before
    x, y = after[-1]
    assert x > 0.5 * max(x for x, _ in after) and y < 0  # on the right, below
    one.until("() => location.hash === explorer.address()")
    again = visit(one.page.evaluate("location.hash"))
    assert again.state() == one.state()


@pytest.mark.parametrize("view", [view for view in OWN if view != "regression"])
def test_points_in_their_units_are_standardised_and_the_axes_keep_the_units(visit, view):
    name, _ = OWN[view]
    one = visit(f"#{view}")
    said = paste(one, "height;weight\n" + "\n".join(f"{x};{str(y).replace('.', ',')}" for x, y in HEIGHTS))
    assert said == "5 points are drawn, standardised."
    state = one.state()
    for d in range(2):
        own = [row[d] for row in HEIGHTS]
        mean, sd = statistics.fmean(own), statistics.pstdev(own)
        assert [state["units"][k][d] for k in range(2)] == pytest.approx([mean, sd], rel=1e-5)
        # to half a thousandth, as they are kept
        assert [point[d] for point in state[name]] == pytest.approx([(x - mean) / sd for x in own], abs=6e-4)
    ticks = [float(text) for text in one.page.locator(".plane").first.locator(".tick").all_text_contents()]
    assert {170, 180} <= set(ticks) or {160, 180} <= set(ticks)
    label = one.page.locator(".plane .handle").first.get_attribute("aria-label")
    assert re.search(r" at \d{2,3}(\.\d+)?, ", label)
    text = one.page.evaluate("explorer.python()")
    assert text.startswith("# Own points, standardised: in their units the first coordinate is 176.8 + ")
    one.until("() => location.hash === explorer.address()")
    again = visit(one.page.evaluate("location.hash"))
    assert again.state() == state
    assert one.page.locator(".plane").first.locator(".tick").all_text_contents() == again.page.locator(".plane").first.locator(".tick").all_text_contents()  # fmt: skip
    one.page.locator("#reset").click()
    assert one.state()["units"] is None
    unfold(again)
    shown = [list(map(float, line.split(", ")[:2])) for line in again.page.locator("#own-points-text").input_value().splitlines()[1:]]  # fmt: skip
    assert [x for row in shown for x in row] == pytest.approx(
        [x for row in HEIGHTS for x in row], abs=0.02
    )  # half a thousandth of a standard deviation of 12.5 kg, and four digits of what is shown: .0063 + .005


def test_points_as_they_are_and_a_third_column(visit):
    one = visit("#posterior")
    unfold(one)
    one.page.locator("#own-points-scale").uncheck()
    assert paste(one, "0.5 1 2\n-1 0.25 -1.5") == "2 points are drawn."
    found = one.state()
    assert [found[name] for name in ("keys", "values", "units")] == [[[0.5, 1], [-1, 0.25]], [2, -1.5], None]
    one = visit("#regression")
    assert paste(one, "1, 0, 2\n0, 1, -1\n1, 1, 1") == "3 points are drawn."
    found = one.state()
    assert [found[name] for name in ("keys", "values", "truth", "read")] == [[[1, 0], [0, 1], [1, 1]], [2, -1, 1], None, 3]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no point; write one a line, as x, y, answer"),
        ("x, y", "there is no point"),
        ("1, 2\n3, four", "line 2 has “four” where a number should be"),
        ("1, 2\n\n3", "line 3 has 1 number; a point is x, y, answer"),
        ("1, 2, 3, 4", "line 1 has 4 numbers"),
        ("1, 2\n3,", "line 2 has “” where a number should be"),
        ("1, 2\n" * 13, "there are 13 points, and this view takes 12 keys"),
        ("1, 2, 5000", "values must be 1 numbers from -1000 to 1000"),
        ("1, 2\n3, 1e400", "line 2 has “1e400” where a number should be"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_moves(visit, text, said):
    one = visit("#posterior")
    before = one.state()
    found = paste(one, text)
    assert found.startswith(f"These points cannot be drawn: {said}") and found.endswith(".") and found.count(".") <= 2
    assert one.state() == before


@pytest.mark.parametrize("view", ["keys-adapt", "together", "regression"])
def test_a_full_view_says_so(visit, view):
    name, most = OWN[view]
    one = visit(f"#{view}")
    paste(one, "\n".join(f"{k % 3}, {k / most}" for k in range(most)))
    plane = one.page.locator(".plane").first
    box = plane.bounding_box()
    plane.locator(".back").click(position={"x": 0.93 * box["width"], "y": 0.93 * box["height"]})
    assert len(one.state()[name]) == most and f"takes {most} " in one.page.locator("#message").inner_text()
