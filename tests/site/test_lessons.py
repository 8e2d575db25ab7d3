"""The site's copies of notebooks and how-to pages: views at their sections, nothing promised that is not there, pictures of their own code."""

import importlib
import json
import re
import sys
from collections import Counter
from pathlib import Path
from urllib.parse import unquote

import nbformat
import pytest

pytest.importorskip("sphinx", reason="sphinx is missing: pip install -e '.[site]'")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "site"))
try:
    build, deck, gallery, lessons = map(importlib.import_module, ("build", "deck", "gallery", "lessons"))
finally:
    sys.path.remove(str(ROOT / "site"))

NOTEBOOKS = sorted(lessons.NOTEBOOKS.glob("*.ipynb"))
HOWTO = sorted((ROOT / "docs/howto").glob("*.md"))
PROMISE = re.compile(r"run this page|[Ww]ith a kernel|\bsliders?\b")
NOTHING_TO_SHOW = {
    "adapt_inside_a_layer": "layers with weights drawn at random: shapes are all that such outputs have to show",
    "save_and_load": "the answer is that nothing changes",
    "train_a_language_model": "commands that train for minutes",
}


def markdown(text):
    """The prose of a notebook."""
    return "\n\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")


def cell(source, *tags, outputs=(), kind="code"):
    made = {"cell_type": kind, "metadata": {"tags": list(tags)}, "source": [source]}
    return {**made, "outputs": list(outputs)} if kind == "code" else made


def test_each_view_has_a_heading_a_sentence_and_a_section_of_its_own():
    for placed in lessons.PLACED:
        cells = json.loads((lessons.NOTEBOOKS / f"{placed.notebook}.ipynb").read_text())["cells"]
        lessons.place(cells, placed.heading)  # raises where there is no such heading
    assert {placed.view for placed in lessons.PLACED} <= lessons.SHOWS.keys()
    assert max(Counter((placed.notebook, placed.heading) for placed in lessons.PLACED).values()) == 1
    assert {placed.view for placed in lessons.PLACED if lessons.WORDS.search(placed.suggestion)} >= {
        "posterior",
        "mean-or-mode",
        "mean-field",
    }
    assert build.views().keys() <= lessons.SHOWS.keys()
    assert {placed.notebook for placed in lessons.PLACED} == {path.stem for path in NOTEBOOKS}


def test_views_with_a_page_of_their_own_are_built_with_what_they_read(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "OUT", tmp_path)
    build.copy_explorer()
    written = {path.name for path in (tmp_path / "explorer").iterdir()}
    assert written == {"index.html", "weights.js", "photograph.js", *lessons.PAGES.values()}
    sources = {path.stem for path in (ROOT / "site/explorer/src/pages").glob("*.js")}
    assert {
        Path(name).stem for name in lessons.PAGES.values()
    } == sources and lessons.PAGES.keys() <= build.views().keys()
    for name in lessons.PAGES.values():
        text = (tmp_path / "explorer" / name).read_text()
        beside = re.findall(r'<script src="(\w+\.js)">', text)
        assert len(beside) == 1 and set(beside) <= written and 'data-notebooks="../notebooks/"' in text
    assert "<script src" not in (tmp_path / "explorer/index.html").read_text()


def test_words_of_a_suggestion_set_the_view_below_them():
    placed = lessons.Placed("00_x", "Here", "posterior", {"linked": True}, 'Then [lower it]({"precision": 0.3}).')
    (text,) = lessons.frame(placed, "Attention", 3)["source"]
    link = re.search(r'Then <a href="([^"]*)" target="([^"]*)">lower it</a>\.', text)
    own = re.search(r'<iframe [^>]*name="([^"]*)" src="([^"]*)"', text)
    assert link[2] == own[1] and link[1].partition("#")[0] == own[2].partition("#")[0]
    assert unquote(link[1]).endswith('#posterior:{"linked":true,"precision":0.3}')


def test_a_heading_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="no heading of its notebook"):
        lessons.place([cell("# 1. Here", kind="markdown")], "Elsewhere")


def test_a_view_stands_at_its_slider_or_at_the_end_of_its_section():
    section = [cell("## 1. Here\n\ntext", kind="markdown"), cell("x = 1"), cell("@interact(x=1)"), cell("y = 1")]
    assert lessons.place([*section, cell("## 2. There", kind="markdown")], "Here") == 2
    assert lessons.place([*section[:2], cell("## 2. There", kind="markdown")], "Here") == 2
    assert lessons.place(section[:2], "Here") == 2


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_page_promises_nothing_that_needs_a_kernel(path):
    text = lessons.lesson(path.stem, path.read_text(), build.views())
    assert PROMISE.findall(markdown(text)) == [] and "@interact" not in text
    frames = re.findall(r'<iframe [^>]*src=\\"\.\./explorer/\w+\.html\?view#([\w-]+)', text)
    assert sorted(frames) == sorted(placed.view for placed in lessons.PLACED if placed.notebook == path.stem)


def test_what_needs_no_kernel_is_kept():
    prose = "A sum. If you run this page yourself, move $s$ to 0.5. The two pictures below the slider show the same.\n\nNext (With a kernel, the slider moves it; see above.)"
    prose += "\n\nAll modes? With a kernel, move $s$:"
    cells = [cell(prose, kind="markdown"), cell("a", "hide-input"), cell("b", "hide-input", outputs=[1])]
    cells += [cell("@interact(x=1)", "hide-input"), cell("c", "hide-input", outputs=[2]), cell("seen")]
    first, folded, seen = lessons.together(lessons.without_a_kernel(cells))
    assert first["source"] == ["A sum.\n\nNext\n\nAll modes?"]
    assert (folded["source"], folded["outputs"]) == (["a\n\n\nb\n\n\nc"], [1, 2]) and seen == cells[-1]


def test_a_notebook_can_be_had_and_run_elsewhere_where_the_repository_is():
    plain = lessons.links("00_name", "")
    assert 'href="00_name.ipynb" download' in plain and "../slides/00_name.html" in plain and "Colab" not in plain
    assert "github/us/here/blob/main/notebooks/00_name.ipynb" in lessons.links("00_name", "https://github.com/us/here/")
    assert "Colab" not in lessons.links("00_name", "https://git.example.org/us/here")


def test_slides_need_no_network_and_fold_their_answers(tmp_path):
    notebook = nbformat.read(NOTEBOOKS[0], as_version=4)
    page = deck.deck(NOTEBOOKS[0].stem, notebook, tmp_path)
    assert re.findall(r'(?:src|<link[^>]*href)="(?!data:|\.\./)[^"]*', page) == []
    prose = "\n".join(one.source for one in notebook.cells if one.cell_type == "markdown")
    assert page.count('<div class="fragment">') == prose.count("**Predict.**") > 0
    assert re.findall(r'href="[^"]*\.(?:md|ipynb)["#]', page) == []


def test_pictures_of_a_notebook_are_not_in_its_slides_again(tmp_path):
    notebook = nbformat.read(NOTEBOOKS[0], as_version=4)
    text = deck.deck(NOTEBOOKS[0].stem, notebook, tmp_path)
    for data in re.findall(r"data:image/png;base64,([^\"]+)", text):
        (tmp_path / f"{deck.hashlib.sha256(deck.b64decode(data)).hexdigest()}.png").touch()
    assert "base64" in text and "base64" not in deck.deck(NOTEBOOKS[0].stem, notebook, tmp_path)


def printed(text):
    """Lines that a page's doctest prints and that say more than a shape or that a comparison holds."""
    found = [
        line for example in gallery.doctest.DocTestParser().get_examples(text) for line in example.want.splitlines()
    ]
    return [line for line in found if re.sub(r"torch\.Size\(\[[\d, ]*\]\)|True|False|[\s(),]", "", line)]


@pytest.mark.parametrize("path", HOWTO, ids=lambda path: path.stem)
def test_each_how_to_has_a_picture_or_a_printed_result_where_one_can_be(path):
    text = path.read_text()
    has = gallery.described(text) is not None or bool(printed(text))
    assert has != (path.stem in NOTHING_TO_SHOW), NOTHING_TO_SHOW.get(path.stem, "no picture and no printed result")


def test_a_result_is_more_than_a_shape_or_a_truth():
    assert printed(">>> 1\n(torch.Size([2, 3]), True)\n") == []
    assert printed(">>> 1\n(True, 'shift')\n0.5\n") == ["(True, 'shift')", "0.5"]


def test_a_picture_is_that_of_the_code_above_it(tmp_path):
    text = ">>> from matplotlib import pyplot\n>>> lines = pyplot.plot([1, 2])\n\n<!-- PICTURE A line\nthat rises. -->\n\nMore.\n"
    assert gallery.shown("page", text, tmp_path).endswith("\n![A line that rises.](pictures/page.png)\n\nMore.\n")
    assert (tmp_path / "page.png").stat().st_size > 1000
    with pytest.raises(ValueError, match="leaves 0 figures"):
        gallery.shown("page", text.replace("pyplot.plot([1, 2])", "1"), tmp_path)


def test_figures_of_the_home_page_are_those_of_the_reports_that_it_names():
    text = (ROOT / "site/pages/index.md").read_text()
    results = text.partition("## What it gives")[2].partition("\n## ")[0]
    bullets = re.split(r"^- ", results, flags=re.M)[1:]
    assert len(bullets) == 3
    for bullet in bullets:
        report = (ROOT / re.search(r"\((docs/reports/\w+\.md)\)", bullet)[1]).read_text()
        figures = re.findall(r"(?<!\d)\.\d{3}\b", bullet)
        assert len(figures) >= 4 and [figure for figure in figures if figure not in report] == []


def test_findings_in_the_table_of_reports_have_the_figures_of_their_reports():
    rows = re.findall(
        r"^\| \[.*?\]\(reports/(\w+)\.md\) \| .* \| (.*) \|$", (ROOT / "docs/index.md").read_text(), flags=re.M
    )
    assert len(rows) == len(list((ROOT / "docs/reports").glob("*.md")))
    for name, finding in rows:
        report = (ROOT / f"docs/reports/{name}.md").read_text()
        figures = re.findall(r"(?<![\w.])\d*\.?\d+\b", finding)
        assert [figure for figure in figures if figure not in report] == [], name
