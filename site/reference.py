"""Pages of the reference: every name in the ``__all__`` of every public package, with its docstring."""

import ast
import importlib
import inspect
import re
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import get_origin

from docstrings import escaped

PACKAGE = "probtx_pyro"
# In the order of the imports; the modules that the README and the course use beside them.
PACKAGES = "models inference results inspection nn ops metrics plots data apps train tour course typing cli".split()
OWN_PAGE = 3  # methods from which on a class has a page of its own


def heading(text: str, line: str = "=") -> str:
    """A title of reStructuredText."""
    return f"{text}\n{line * len(text)}\n\n"


def members(cls: type) -> list[str]:
    """Public methods and properties that this package defines, those of its own base classes included."""
    found = {}
    for owner in reversed(cls.__mro__):
        if owner.__module__.startswith(PACKAGE):
            for name, value in vars(owner).items():
                value = getattr(value, "__func__", getattr(value, "fget", value))
                if not name.startswith("_") and inspect.isfunction(value) and inspect.getdoc(getattr(cls, name)):
                    found[name] = None
    return list(found)


def remark(module: ModuleType, name: str) -> str:
    """The docstring below the line that defines a constant, in the module or in a file of its package; the axes of a type."""
    value = getattr(module, name)
    if getattr(value, "__module__", "").startswith("jaxtyping"):
        return f"``{value.__name__}``"
    file = Path(module.__file__)
    for path in [file, *sorted(file.parent.rglob("*.py"))]:
        body = ast.parse(path.read_text()).body
        for statement, below in pairwise(body):
            if isinstance(statement, ast.Assign | ast.AnnAssign) and name in _names(statement):
                if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                    return str(below.value.value)
    raise ValueError(f"{module.__name__}.{name} is public; write a docstring under the line that defines it")


def _names(statement: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}


def first_sentence(text: str) -> str:
    """The first paragraph of a docstring, to its first full stop."""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return escaped(re.split(r"(?<=[^.]\.)\s(?=[A-Z`(])", paragraph)[0])


def is_alias(value) -> bool:
    """True for a type of jaxtyping and for the name of another type, which have no docstring of their own."""
    return getattr(value, "__module__", "").startswith("jaxtyping") or get_origin(value) is not None


def notation(cls: type) -> str:
    """What the file of a formulation says above its class: the model and the table of its letters."""
    home = inspect.getmodule(cls)
    if home.__name__.rpartition(".")[2].startswith("_") or "=====" not in (home.__doc__ or ""):
        return ""
    return f".. automodule:: {home.__name__}\n   :no-members:\n   :no-index:\n\n"


def entry(module: ModuleType, name: str) -> tuple[str, str, str | None]:
    """The directive of a name, its sentence in the summary, and the page of its own, if it has one."""
    value, full = getattr(module, name), f"{module.__name__}.{name}"
    if inspect.isclass(value) and not is_alias(value):
        doc, listed = inspect.getdoc(value), members(value)
        text = f".. autoclass:: {full}\n" + (f"   :members: {', '.join(listed)}\n" if listed else "")
        own = heading(name) + notation(value) + text if len(listed) >= OWN_PAGE else None
    elif inspect.isroutine(value):
        doc, text, own = inspect.getdoc(value), f".. autofunction:: {full}\n", None
    else:
        doc, own = " ".join(remark(module, name).split()), None
        keys = f"\n\n   Keys: {', '.join(f'``{key!r}``' for key in value)}." if isinstance(value, dict) else ""
        text = f".. py:data:: {name}\n   :module: {module.__name__}\n\n   {doc}{keys}\n"
    if not doc:
        raise ValueError(f"{full} is public and has no docstring")
    return text, first_sentence(doc), own


def module_page(module: ModuleType, pages: dict[str, str]) -> str:
    """The page of a module: what it says of itself, a table of its names, and each that has no page of its own."""
    short = module.__name__.removeprefix(f"{PACKAGE}.")
    rows, below, children = [], [], []
    for name in module.__all__:
        value = getattr(module, name)
        if isinstance(value, ModuleType) and set(value.__all__) <= set(module.__all__):
            continue  # its names stand on this page
        if isinstance(value, ModuleType):
            rows.append((f":doc:`{name} <{short}.{name}>`", first_sentence(inspect.getdoc(value))))
            children.append(f"{short}.{name}")
            module_page(value, pages)
            continue
        text, sentence, own = entry(module, name)
        rows.append((f":py:obj:`{name} <{module.__name__}.{name}>`", sentence))
        if own is None:
            below.append(text)
        else:
            children.append(f"{short}.{name}")
            pages[f"reference/{short}.{name}.rst"] = own
    table = ".. list-table::\n   :widths: 30 70\n   :class: names\n\n"
    table += "".join(f"   * - {left}\n     - {right}\n" for left, right in rows)
    toctree = (
        ".. toctree::\n   :hidden:\n\n" + "".join(f"   {child}\n" for child in children) + "\n" if children else ""
    )
    pages[f"reference/{short}.rst"] = (
        heading(short) + f".. automodule:: {module.__name__}\n   :no-members:\n\n{table}\n{toctree}" + "\n".join(below)
    )
    return short


def pages() -> dict[str, str]:
    """Every page of the reference by its path."""
    made: dict[str, str] = {}
    modules = [importlib.import_module(f"{PACKAGE}.{name}") for name in PACKAGES]
    table = ".. list-table::\n   :widths: 20 80\n   :class: names\n\n"
    for module in modules:
        short = module_page(module, made)
        table += f"   * - :doc:`{short}`\n     - {first_sentence(inspect.getdoc(module))}\n"
    made["reference/index.rst"] = (
        heading("Reference")
        + "Every public name, from its docstring. U units, Q queries, D features and M coordinates of an answer are the axes of\n"
        + "shapes; leading axes are free. Letters: :doc:`notation </docs/course/notation>`.\n\n"
        + table
        + "\n.. toctree::\n   :hidden:\n\n"
        + "".join(f"   {name}\n" for name in PACKAGES)
    )
    return made
