"""``probtx explore``: the page that it writes, the model in it, and what it refuses in one line."""

import json
import re
import webbrowser
from pathlib import Path

import pytest
import torch

from probtx_pyro import cli, models
from probtx_pyro.cli import explore


@pytest.fixture
def opened(monkeypatch):
    found = []
    monkeypatch.setattr(webbrowser, "open", lambda address: found.append(address) or True)
    return found


@pytest.fixture
def own(tmp_path):
    mixture = models.GaussianMixture(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[-1.0], [1.0]]), 2.0, 9.0)
    return cli.write_explorer_json(tmp_path / "own.json", mixture, torch.tensor([0.5, 0.25]))


def held(text):
    (found,) = re.findall(r'<script type="application/json" id="own">(.*?)</script>', text)
    return json.loads(found)


def test_the_page_opens_from_a_temporary_file(opened, capsys):
    assert cli.main(["explore"]) == 0
    written = Path(capsys.readouterr().out.strip())
    assert opened == [written.as_uri()]
    text = written.read_text(encoding="utf-8")
    written.unlink()
    assert 'id="own"' not in text.split("<script>")[0] and "data-notebooks=" not in text.split("<body>")[0]
    assert text.startswith("<!doctype html>")


def test_a_model_is_in_the_page(opened, own, tmp_path, capsys):
    assert cli.main(["explore", str(own), "--out", str(tmp_path / "page.html")]) == 0
    assert held((tmp_path / "page.html").read_text(encoding="utf-8")) == json.loads(own.read_text())
    assert opened == [(tmp_path / "page.html").resolve().as_uri()]


def test_no_browser_is_opened_where_none_is_wanted(opened, own, tmp_path, capsys):
    assert cli.main(["explore", str(own), "--out", str(tmp_path / "page.html"), "--no-browser"]) == 0
    assert opened == [] and capsys.readouterr().out.strip() == str((tmp_path / "page.html").resolve())


def test_a_missing_browser_is_warned_of(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    assert cli.main(["explore", "--out", str(tmp_path / "page.html")]) == 0
    assert "no browser was found" in capsys.readouterr().err


def test_no_name_in_the_file_ends_its_element():
    own = {"view": "mean-field", "state": {"crf": {"words": ["</script><script>alert(1)", "<!--"]}}}
    text = explore.page(own)
    assert held(text) == own and text.count("</script>") == explore.page().count("</script>") + 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "no model for the explorer"),
        ('{"view": "other", "state": {}}', "no model for the explorer"),
        ('{"view": "posterior"}', "no model for the explorer"),
    ],
)
def test_another_file_is_refused_in_one_line(opened, tmp_path, text, said, capsys):
    (tmp_path / "own.json").write_text(text)
    assert cli.main(["explore", str(tmp_path / "own.json")]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and opened == []


def test_a_missing_file_is_refused(opened, tmp_path, capsys):
    assert cli.main(["explore", str(tmp_path / "none.json")]) == 2
    assert "none.json" in capsys.readouterr().err and opened == []
