"""Packages whose names load on first use, and what to install where they need more than is there."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import requires
from typing import Any


def lazily(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a package,
    from the names that each of its modules holds.
    """
    home = {name: module for module, listed in names.items() for name in listed}

    def get(name: str) -> Any:
        if name in home:
            return getattr(import_module(f"{package}.{home[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

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


def with_extra(package: str, homes: Mapping[str, str], needs: str, extra: str) -> Callable[[str], Any]:
    """Return ``__getattr__`` of a package with names that need a package which is not always installed.

    Parameters
    ----------
    package
        Name of the package.
    homes
        The module that holds each name.
    needs, extra
        Import name and English name of what they need, as in ``"sklearn scikit-learn"``; the extra that installs it.
    """
    module, called = needs.split()

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(homes[name]), name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != module:
                raise
            raise ModuleNotFoundError(
                f"{name} needs {called}, which is not installed: {install_advice(extra)}"
            ) from None

    return get
