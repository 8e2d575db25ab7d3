"""Slides of a notebook: its question, predictions, figures and summary."""

import nbformat
import pytest
from notebook_files import FIRST, load

slides = load("slides")


def test_they_hold_the_question_the_predictions_the_figures_and_the_summary():
    notebook = nbformat.read(FIRST, as_version=4)
    made = slides.slides(notebook).cells
    kinds = [cell.metadata["slideshow"]["slide_type"] for cell in made]
    prose = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    alts = [x.metadata["image/png"]["alt"] for x in outputs if "image/png" in x.get("data", {})]
    assert made[0].source == notebook.cells[0].source.splitlines()[0]
    assert [cell.source for cell, kind in zip(made, kinds, strict=True) if kind == "notes"] == alts
    assert sum(cell.source.startswith("<img alt=") for cell in made) == len(alts) > 0
    assert kinds.count("fragment") == prose.count("**Predict.**") > 0
    assert not any("<summary>Answer" in cell.source for cell in made)
    assert sum(cell.source.startswith("## Summary") for cell in made) == 2  # the table, and the sentence below it


def test_without_a_network_they_ask_for_what_is_missing(tmp_path, capsys):
    with pytest.raises(SystemExit):
        slides.main([FIRST.name, "--out", str(tmp_path), "--modules", str(tmp_path)])
    assert "run npm install reveal.js@4" in capsys.readouterr().err


def test_a_page_is_written(tmp_path, capsys):
    assert slides.main([FIRST.name, "--out", str(tmp_path)]) == 0
    page = (tmp_path / f"{FIRST.stem}.html").read_text()
    assert capsys.readouterr().out.strip() == str(tmp_path / f"{FIRST.stem}.html")
    assert "What are a mixture, a responsibility" in page and page.count('src="data:image/png;base64,') > 3
