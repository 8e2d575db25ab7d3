"""The explorer's page is built from its modules, is up to date, and asks for nothing outside itself."""

import re

import pytest
from explorer.cases import PAGE, SOURCE, load

build = load("build")


def test_the_page_is_up_to_date():
    text = build.page()
    for path in build.WRITTEN:
        assert path.read_text(encoding="utf-8") == text, f"{path}: run python site/explorer/build.py"


def test_the_page_has_no_outside_address():
    addresses = set(re.findall(r"(?:https?|wss?):?//[^\s\"'`]+", PAGE.read_text(encoding="utf-8")))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # the name of SVG, no request


def test_every_module_comes_after_those_it_imports():
    views = sorted((SOURCE / "views").glob("*.js"))
    order = build.in_order([*views, SOURCE / "frame.js"])
    for path in order:
        for _, other in build.imported(path.read_text(), path):
            assert order.index(other) < order.index(path)
    assert {"ui.js", "frame.js", "mixture.js"} <= {path.name for path in order}


def module(folder, name, text):
    (folder / name).write_text(text)
    return folder / name


def test_a_circle_of_imports_is_refused(tmp_path):
    first = module(tmp_path, "a.js", 'import { b } from "./b.js";\nexport const a = 1;\n')
    module(tmp_path, "b.js", 'import { a } from "./a.js";\nexport const b = 1;\n')
    with pytest.raises(ValueError, match=r"in a circle: a\.js -> b\.js -> a\.js"):
        build.in_order([first])


@pytest.mark.parametrize("line", ['import * as x from "./x.js";', "export { x };", 'import "./x.js";'])
def test_what_the_builder_does_not_know_is_refused(tmp_path, monkeypatch, line):
    monkeypatch.setattr(build, "SOURCE", tmp_path)
    with pytest.raises(ValueError, match="the builder does not know"):
        build.enclosed(module(tmp_path, "x.js", f"const x = 1;\n{line}\n"))
