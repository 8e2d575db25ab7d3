"""Packages whose names load on first use, and what to install where they need more than is there."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import requires
from types import MappingProxyType
from typing import Any


def lazily(
    package: str, names: Mapping[str, Sequence[str]], needs: Mapping[str, tuple[str, str, str]] = MappingProxyType({})
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a package.

    Parameters
    ----------
    package
        Name of the package.
    names
        The names that each of its modules holds; the module's own name stands for the module.
    needs
        Of a module that needs a package which is not always installed: import name and English name of that package, and
        the extra that installs it.
    """
    home = {name: module for module, listed in names.items() for name in listed}

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = home[name]
        try:
            found = import_module(f"{package}.{module}")
        except ModuleNotFoundError as error:
            needed, called, extra = needs.get(module, (None, "", ""))
            if error.name is None or error.name.partition(".")[0] != needed:
                raise
            raise ModuleNotFoundError(
                f"{name} needs {called}, which is not installed: {install_advice(extra)}"
            ) from None
        return found if module == name else getattr(found, name)

    return list(home), get, lambda: sorted(home)


def install_advice(extra: str) -> str:
    """Return how to install an extra: in a clone, by its name; with a wheel, which is on no index,
    by the packages themselves.
    """
    wanted = [line.partition(";") for line in requires("probtx_pyro") or ()]
    packages = [
        f"'{name.strip()}'"
        for name, _, marker in wanted
        if marker.strip() in (f"extra == '{extra}'", f'extra == "{extra}"')
    ]
    return f"pip install -e '.[{extra}]' in the folder of the repository, or pip install {' '.join(packages)}"
