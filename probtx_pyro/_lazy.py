"""Packages whose names load on first use."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazily(
    package: str, names: Mapping[str, Sequence[str]]
) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__all__``, ``__getattr__`` and ``__dir__`` of a package, from the names that each of its modules holds."""
    home = {name: module for module, listed in names.items() for name in listed}

    def get(name: str) -> Any:
        if name in home:
            return getattr(import_module(f"{package}.{home[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return list(home), get, lambda: sorted(home)


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
                f"{name} needs {called}, which is not installed: pip install 'probtx_pyro[{extra}]'"
            ) from None

    return get
