import re
import subprocess
import sys
from base64 import b64decode
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import arviz
import nbformat
import numpy as np
import pytest
from in_chromium import CONTRAST, needs_chromium
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

pytest.importorskip("sklearn")

from probtx_pyro import cli, course, tour

FIRST = next(iter(tour.CHAPTERS))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The whole tour in small sizes, by the command."""
    out = tmp_path_factory.mktemp("tour") / "new" / "folder"
    shown = StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(shown):
        patch.setenv("PROBTX_SMOKE", "1")
        patch.setenv("MPLBACKEND", "agg")  # which would leave a notebook without figures
        assert cli.main(["tour", "--out", str(out), "--no-progress"]) == 0
    return out, shown.getvalue()


@pytest.fixture(scope="module")
def page(written):
    text = (written[0] / "report.html").read_text(encoding="utf-8")
    return re.sub(r"<script>.*?</script>", "<script>", text, flags=re.DOTALL)  # without the two megabytes of MathJax


@pytest.mark.slow
def test_command_prints_where_its_results_are(written):
    out, shown = written
    figures = sorted((out / "figures").iterdir())
    assert shown.splitlines() == [
        f"Report: {out / 'report.html'}",
        f"Data:   {out / 'posterior.nc'}",
        f"Figures: {len(figures)} in {out / 'figures'}",
        "Next:   open the report in a browser; then click in a picture yourself:  probtx segment --example pagoda",
    ]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in figures)


@pytest.mark.slow
def test_report_holds_every_figure_with_a_description_and_asks_nothing_of_the_net(written, page):
    images = re.findall(r'<img alt="([^"]+)" src="data:image/png;base64,([^"]+)"', page)
    files = [file.read_bytes() for file in sorted((written[0] / "figures").iterdir())]
    assert sorted(b64decode(image) for _, image in images) == sorted(files)
    assert all(len(alt) > 80 for alt, _ in images)
    assert not re.search(r'src="(?!data:)|<link|@import|url\(', page)
    assert "these numbers test the plumbing only" in page and "The text says" not in page


@pytest.mark.slow
def test_report_has_a_chapter_for_each_notebook_and_its_headings_step_down_one_by_one(page):
    assert re.findall(r'<section id="(\w+)">', page) == [*tour.CHAPTERS, "onward"]
    assert re.findall(r'<li><a href="#(\w+)">\d\d · ', page) == list(tour.CHAPTERS)
    levels = [int(level) for level in re.findall(r"<h(\d)[ >]", page)]
    assert levels.count(1) == 1 and levels.count(2) == len(tour.CHAPTERS) + 2
    assert max(np.diff(levels)) == 1


@pytest.mark.slow
def test_links_of_the_report_lead_somewhere(written, page):
    views = re.findall(r'\bid: "([\w-]+)"', (written[0] / "explorer.html").read_text(encoding="utf-8"))
    for link in re.findall(r'href="(.*?)"', page):
        path, _, place = link.partition("#")
        assert f'id="{place}"' in page if not path else "://" in link or (written[0] / path).exists(), link
        assert path != "explorer.html" or place in views, link
    assert page.count('href="explorer.html#') >= 6 and page.count("docs/howto/") >= len(tour.CHAPTERS)


@pytest.mark.slow
def test_every_figure_stands_with_the_code_that_drew_it_and_claims_that_held_are_shown(page):
    for part in re.split(r"<h[2-6]", page)[1:]:
        assert part.count("<figure") == 0 or "show_figure" in part
    assert page.count("class='checked'") > len(tour.CHAPTERS)


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_report_fits_its_window_and_can_be_read(width, scheme, written, chromium):
    opened = chromium.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    asked = []
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto((written[0] / "report.html").resolve().as_uri())
    opened.locator("mjx-container").first.wait_for()
    for folded in opened.locator("details").all():
        folded.evaluate("one => { one.open = true }")
    opened.wait_for_timeout(1000)  # what is unfolded is measured then
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    ratios = opened.evaluate(CONTRAST)
    assert len(ratios) > 100
    assert {name: round(ratio, 2) for name, ratio in ratios.items() if ratio < 4.5} == {}
    ground = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) > 380) == (scheme == "light")
    assert [url for url in asked if not url.startswith("data:")] == [opened.url]
    opened.close()


@pytest.mark.slow
def test_inference_data_holds_the_draws(written):
    data = arviz.from_netcdf(str(written[0] / "posterior.nc"))
    assert data.attrs["method"] == "Gibbs"
    assert data["posterior"]["attention"].dims == ("chain", "draw", "query", "unit")
    assert list(data["posterior"]["unit"].values) == [0, 4, 7]
    np.testing.assert_allclose(data["posterior"]["attention"].sum("unit"), 1.0)


@pytest.mark.slow
def test_ctrl_c_ends_the_tour_in_one_line(tmp_path):
    code = (
        "import sys\nfrom probtx_pyro import cli, tour\n"
        "tour.AFRESH = 'import os, signal, time; os.kill(os.getppid(), signal.SIGINT); time.sleep(60)'\n"
        f"sys.exit(cli.main(['tour', '--out', {str(tmp_path)!r}, '--no-progress']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "probtx: interrupted\n")


def opened():
    """Python that the tour runs."""
    for name, chapter in tour.CHAPTERS.items():
        cells = tour.opening(nbformat.read(tour.NOTEBOOKS / f"{name}.ipynb", as_version=4), chapter.until)
        yield "\n".join(cell.source for cell in cells if cell.cell_type == "code")


def test_every_chapter_draws_a_figure_and_together_they_show_every_formulation():
    codes = list(opened())
    assert all("show_figure(" in code for code in codes)
    shown = (
        "GaussianMixture SoftKMeans GaussianKeys LogNormalizer Hopfield DependencyCRF PottsField InteractiveSegmenter"
    )
    for formulation in shown.split():
        assert any(re.search(rf"\b{formulation}\b", code) for code in codes), formulation


def test_a_chapter_ends_before_its_heading_and_drops_kept_outputs():
    kept = new_code_cell("1", outputs=[new_output("stream", text="old")])
    text = new_markdown_cell("### 2. No\n\n## 2. Yes\n\nmore\n\n## 3. Later")
    first, code, last = tour.opening(new_notebook(cells=[new_markdown_cell("# 1"), kept, text]), "2. Yes")
    assert first.source == "# 1" and code.outputs == [] and last.source.strip() == "### 2. No"
    with pytest.raises(ValueError, match="no heading '4'"):
        tour.opening(new_notebook(cells=[text]), "4")


def test_text_steps_down_a_heading_code_is_folded_and_what_it_printed_is_escaped():
    printed = [new_output("stream", name="stdout", text="<i> & 1")]
    code = new_code_cell("# a comment", outputs=printed, metadata={"tags": ["hide-input"]})
    warned = new_code_cell("f()", outputs=[new_output("stream", name="stderr", text="careful")])
    page = tour.page(FIRST, [new_markdown_cell("# Why?\n\n$a < b$"), code, warned], Path())
    assert "<h2>Why?</h2>" in page and "$a &lt; b$" in page
    assert "<pre class='printed' tabindex='0'>&lt;i&gt; &amp; 1</pre>" in page and "careful" not in page
    assert page.count("<details class='code'>") == 1
    assert page.index(">f<") < page.index("printed") < page.index("<details") < page.index("a comment")


def test_claims_that_held_are_shown_once_and_others_are_not(monkeypatch, capsys):
    told = []
    monkeypatch.setenv("PROBTX_CLAIMS", "show")
    monkeypatch.setattr("IPython.display.display", lambda data, raw: told.append(data))
    for conditions, when in (((True,), True), ((True, True), True), ((True,), False), ((False,), True)):
        course.claim("1 < 2", *conditions, when=when)
    assert told == [{course.CLAIM: "1 < 2"}] * 2 and "does not hold" in capsys.readouterr().out
    cell = new_code_cell("f()", outputs=[new_output("display_data", data) for data in told])
    page = tour.page(FIRST, [cell], Path())
    assert page.count("1 &lt; 2") == 1 and "<b>Checked in this run:</b> 1 &lt; 2.</p>" in page


@pytest.mark.parametrize(
    ("target", "link"),
    [
        ("https://arxiv.org/abs/1706.03762", '<a href="https://arxiv.org/abs/1706.03762">x</a>'),
        ("03_map_transformer.ipynb#2", '<a href="#03_map_transformer">x</a>'),
        ("00_mixtures_in_twenty_lines.ipynb", '<a href="../notebooks/00_mixtures_in_twenty_lines.ipynb">x</a>'),
        ("../docs/nowhere.md", "<p>x</p>"),
    ],
)
def test_links_lead_to_chapters_and_to_files_that_are_here(target, link):
    assert link in tour.page(FIRST, [new_markdown_cell(f"[x]({target})")], tour.NOTEBOOKS.with_name("tour_output"))


def test_the_table_of_what_a_student_needs_is_left_out():
    source = "# Why?\n\nText.\n\n| | |\n| --- | --- |\n| **You need** | much |\n\nMore.\n\n| a | b |\n| --- | --- |\n| 1 | 2 |"
    page = tour.page(FIRST, [new_markdown_cell(source)], Path())
    assert "You need" not in page and "from “Summary” on" in page and page.count("<table>") == 1 and "More." in page


def test_a_chapter_ends_with_its_notebook_its_views_and_how_to_pages():
    explorer = 'x = { id: "a-view",\n  number: 1,\n  title: "A view", sentence: "s",\n  notebook: "%s", };'
    page = tour.page(FIRST, [], tour.NOTEBOOKS.with_name("tour_output"), explorer % FIRST)
    assert '<a href="explorer.html#a-view">A view</a>' in page
    assert f'<a href="../notebooks/{FIRST}.ipynb">notebook 01</a>' in page
    assert '<a href="../docs/howto/replace_attention.md">Replace the attention of a transformer</a>' in page
    assert "explorer" not in tour.page(FIRST, [], Path(), explorer % "another")


def test_without_the_repository_how_to_pages_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(tour, "HOWTO", tmp_path)
    assert "On data of your own: docs/howto/replace_attention.md" in tour.page(FIRST, [], tmp_path)
