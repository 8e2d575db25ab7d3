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
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

pytest.importorskip("sklearn")

from probtx_pyro import cli, tour

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
        "Next:   open the report in a browser; then, on a picture of your own:  probtx segment --help",
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
    assert re.findall(r'<section id="(\w+)">', page) == list(tour.CHAPTERS)
    assert re.findall(r'<li><a href="#(\w+)">\d\d · ', page) == list(tour.CHAPTERS)
    levels = [int(level) for level in re.findall(r"<h(\d)[ >]", page)]
    assert levels.count(1) == 1 and levels.count(2) == len(tour.CHAPTERS) + 1
    assert max(np.diff(levels)) == 1


@pytest.mark.slow
def test_links_of_the_report_lead_somewhere(written, page):
    for link in re.findall(r'href="(.*?)"', page):
        assert f'id="{link[1:]}"' in page if link[0] == "#" else "://" in link or (written[0] / link).exists(), link


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
    for name, heading in tour.CHAPTERS.items():
        cells = tour.opening(nbformat.read(tour.NOTEBOOKS / f"{name}.ipynb", as_version=4), heading)
        yield "\n".join(cell.source for cell in cells if cell.cell_type == "code")


def test_every_chapter_draws_a_figure_and_together_they_show_every_formulation():
    codes = list(opened())
    assert all("show_figure(" in code for code in codes)
    for formulation in ("GaussianMixture", "SoftKMeans", "GaussianKeys", "LogNormalizer", "Hopfield", "DependencyCRF"):
        assert any(re.search(rf"\b{formulation}\b", code) for code in codes), formulation


def test_a_chapter_ends_before_its_heading_and_drops_kept_outputs():
    kept = new_code_cell("1", outputs=[new_output("stream", text="old")])
    text = new_markdown_cell("### 2. No\n\n## 2. Yes\n\nmore\n\n## 3. Later")
    first, code, last = tour.opening(new_notebook(cells=[new_markdown_cell("# 1"), kept, text]), "2. Yes")
    assert first.source == "# 1" and code.outputs == [] and last.source.strip() == "### 2. No"
    with pytest.raises(ValueError, match="no heading '4'"):
        tour.opening(new_notebook(cells=[text]), "4")


def test_text_steps_down_a_heading_code_is_folded_and_what_it_printed_is_escaped():
    code = new_code_cell("# a comment", outputs=[new_output("stream", name="stdout", text="<i> & 1")])
    warned = new_code_cell("f()", outputs=[new_output("stream", name="stderr", text="careful")])
    page = tour.page(FIRST, [new_markdown_cell("# Why?\n\n$a < b$"), code, warned], Path())
    assert "<h2>Why?</h2>" in page and "$a &lt; b$" in page
    assert "<pre class='printed' tabindex='0'>&lt;i&gt; &amp; 1</pre>" in page and "careful" not in page
    assert page.count("<details class='code'>") == 1 and page.index("printed") < page.index("a comment")


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
    assert "You need" not in page and "goes on: Summary" in page and page.count("<table>") == 1 and "More." in page
