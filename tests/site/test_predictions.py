"""Predictions of the notebooks as buttons of the site's pages: each is one, its choice is kept, its answer unfolded; on paper, lines."""

import json
import re
from pathlib import Path

import pytest
from in_chromium import needs_chromium

ROOT = Path(__file__).parents[2]
STATIC, OUT = ROOT / "site/static", ROOT / "site/_build"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PREDICT = re.compile(
    r"\*\*Predict\.\*\*[^\n]*(?:\n[^\n]+)*\n\n(?:- \([a-z]\)[^\n]*(?:\n[^\n]+)*\n+)+<details><summary>Answer"
)
# What Sphinx makes of a prediction, in the page of notebook 00.
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>x</title><link rel="stylesheet" href="{css}"><script defer src="{js}"></script></head>
<body><article><section><h1>00 · Mixtures</h1>
<p><strong>Predict.</strong> A point lies half way. The responsibility of B is</p>
<ul class="simple"><li><p>(a) 0.5;</p></li><li><p>(b) <span class="math">0.6</span>;</p></li><li><p>(c) neither.</p></li></ul>
<details id="first"><summary>Answer</summary><p><strong>(b).</strong> By the weights.</p></details>
<p><strong>Predict.</strong> And of A?</p>
<ul class="simple"><li><p>(a) 0.4;</p></li><li><p>(b) 0.5.</p></li></ul>
<details id="second"><summary>Answer</summary><p>(a).</p></details>
<p><strong>Predict</strong> whatever you like.</p><ul><li>no choice</li></ul>
</section></article></body></html>"""


def prose(path):
    cells = json.loads(path.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_prediction_has_choices_and_an_answer_at_once_below(path):
    found = PREDICT.findall(prose(path))
    assert len(found) == prose(path).count("**Predict.**")
    assert not any(re.search(r"\]\(", choices) for choices in found)  # a link cannot be inside a button
    assert len({text[:100] for text in found}) == len(found)  # a choice is kept by the words of its question


@pytest.mark.slow
@needs_chromium
def test_a_choice_unfolds_the_answer_is_kept_and_can_be_taken_back(chromium, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(PAGE.format(css=(STATIC / "site.css").as_uri(), js=(STATIC / "predictions.js").as_uri()))
    page, wrong = chromium.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(file.as_uri())
    buttons = page.locator(".predictions button")
    assert buttons.count() == 5 and page.locator("button .math").count() == 1
    opened = lambda: page.evaluate("[...document.querySelectorAll('.predictions + details')].map((x) => x.open)")  # noqa: E731
    pressed = lambda: [x.get_attribute("aria-pressed") == "true" for x in buttons.all()]  # noqa: E731
    assert opened() == [False, False] and not any(pressed())
    buttons.nth(0).focus()
    page.keyboard.press("Enter")
    buttons.nth(4).click()
    page.reload()
    assert opened() == [True, True] and pressed() == [True, False, False, False, True]
    buttons.nth(1).click()  # another choice
    buttons.nth(4).click()  # taken back
    page.reload()
    assert opened() == [True, False] and pressed() == [False, True, False, False, False]
    page.emulate_media(media="print")
    assert not page.locator("#first").is_visible()
    style = "getComputedStyle(document.querySelector('.predictions button'), '::before').content + getComputedStyle(document.querySelector('.predictions button')).borderStyle"
    assert page.evaluate(style) == '"☐ "none'
    assert wrong == []
    page.close()


@pytest.mark.slow
@needs_chromium
def test_a_teacher_counts_the_lines_that_students_send(chromium, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(PAGE.format(css=(STATIC / "site.css").as_uri(), js=(STATIC / "predictions.js").as_uri()))
    page, wrong = chromium.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(file.as_uri())
    line = page.locator(".class code")
    assert line.inner_text() == "00: - -"
    page.locator(".predictions button").nth(1).click()
    page.locator(".predictions button").nth(3).click()
    assert line.inner_text() == "00: b a"
    page.get_by_role("button", name="Copy").click()
    page.get_by_text(re.compile("Copied|Selected")).wait_for()
    page.get_by_text("Count the predictions of a class").click()
    # names, times and signs around a line do not matter; a line of another notebook, or of another number of questions, does not count
    page.get_by_label("Lines of a class").fill(
        "Ann: 00: b a\n10:15 Bo 00: b b\n00: - a thanks\n00: c a\n01: a a\n00: a\n00: a b c"
    )
    assert (
        page.locator(".class p[role=status]").inner_text()
        == "4 lists of this notebook; 3 more are of another, or of an older one."
    )
    rows = page.locator(".class tr").all()
    assert [row.locator("td").all_inner_texts() for row in rows] == [["(a) 0", "(b) 2", "(c) 1"], ["(a) 3", "(b) 1"]]
    page.get_by_label("Lines of a class").fill("")
    assert page.locator(".class p[role=status]").inner_text() == "0 lists of this notebook."
    page.emulate_media(media="print")
    assert not page.locator(".class").is_visible()
    assert wrong == []
    page.close()


@pytest.mark.slow
@needs_chromium
@pytest.mark.skipif(not (OUT / "_static/predictions.js").exists(), reason="there is no site: make site")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_page_of_the_site_has_buttons_for_every_prediction(chromium, path):
    page = chromium.new_page()
    page.goto((OUT / f"notebooks/{path.stem}.html").as_uri())
    assert page.locator(".predictions").count() == prose(path).count("**Predict.**")
    page.close()
