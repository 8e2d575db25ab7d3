"""The explorer, in your browser: fourteen views of attention as a posterior, to drag and slide.

With a FILE that cli.write_explorer_json wrote, the view for it opens with your own mixture, memory or CRF:

  from probtx_pyro import cli, models
  mixture = models.GaussianMixture(keys, values, 1.0, 9.0)
  cli.write_explorer_json("mixture.json", mixture, query)

  probtx explore mixture.json

The page is one file that asks nothing of the network. It is written to --out (- is standard output), or to a temporary
file that stays, since the browser reads it after the command has ended. A browser that may not read the folder of
temporary files (a snap) needs --out in your own.
"""

import argparse
import json
import sys
import tempfile
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probtx_pyro.cli import _options as options

if TYPE_CHECKING:
    from torch import Tensor

    from probtx_pyro.models import Bayesian, DependencyCRF, GaussianMixture, RegressionMemory

SUMMARY = "an interactive page: attention as a posterior, in fourteen views"
PAGE = Path(__file__).with_name("_explorer.html")
VIEWS = ("posterior", "keys-adapt", "mean-field", "regression")  # that take a model
# where notebooks lie in the repository, and not beside this page
BESIDE = ' data-notebooks="../../notebooks/" data-suffix=".ipynb"'
BEFORE = "<noscript>"
MOST_UNITS, MOST_QUERIES, MOST_WORDS, MOST_PAIRS = 12, 60, 12, 8  # that the views draw
FAR = 1000  # how far from 0 places and answers may be, as in site/explorer/src/fields.js
RANGES = {"prior_precision": (0.001, 1000), "noise_precision": (0.01, 10000), "forgetting": (0.3, 1)}  # of view 10
State = dict[str, object]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``probtx explore``."""
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="JSON that cli.write_explorer_json wrote")
    parser.add_argument("--out", type=Path, metavar="PAGE", help="where to write the page (default: a temporary file)")
    parser.add_argument("--no-browser", action="store_true", help="write the page and print its name, open no browser")


def page(own: dict | None = None) -> str:
    """Return the text of the explorer's page.

    Parameters
    ----------
    own
        A view and its state, as `read` returns them; None for the page as it is.

    Returns
    -------
    str
    """
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(BESIDE) == text.count(BEFORE) == 1
    text = text.replace(BESIDE, "")
    if own is None:
        return text
    safe = json.dumps(own).replace("<", "\\u003c")  # no name in it can end the element
    return text.replace(BEFORE, f'<script type="application/json" id="own">{safe}</script>\n{BEFORE}')


def read(path: Path) -> dict:
    """Return the view and the state of a file that `cli.write_explorer_json` wrote.

    Raises
    ------
    ValueError
        Another file.
    """
    try:
        own = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # of JSON and of UTF-8
        raise ValueError(f"{path} is not JSON ({error}); write it with cli.write_explorer_json") from None
    if not isinstance(own, dict) or own.get("view") not in VIEWS or not isinstance(own.get("state"), dict):
        raise ValueError(f"{path} holds no model for the explorer; write it with cli.write_explorer_json")
    return own


def run(arguments: argparse.Namespace) -> None:
    """Write the page, say where, and open it."""
    out = options.out_file(arguments.out, *filter(None, [arguments.file]))
    text = page(None if arguments.file is None else read(arguments.file))
    if arguments.out is None:
        with tempfile.NamedTemporaryFile(
            "w", prefix="probtx_explore_", suffix=".html", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
        written = Path(file.name)
    elif out is None:
        sys.stdout.write(text)
        return
    else:
        from probtx_pyro.data.files import write_bytes

        write_bytes(out, text.encode())
        written = out
    print(written.resolve(), flush=True)
    if arguments.no_browser:
        return
    if not webbrowser.open(written.resolve().as_uri()):
        options.warn(f"no browser was found; open {written.resolve()} in one")


def write_explorer_json(
    path: str | Path,
    model: "GaussianMixture | Bayesian | DependencyCRF | RegressionMemory",
    queries: "Tensor | None" = None,
    *,
    words: Sequence[str] | None = None,
    labels: Sequence[str] | None = None,
    pairs: "tuple[Tensor, Tensor] | None" = None,
) -> Path:
    """Write a model as the JSON that ``probtx explore FILE`` opens in the browser.

    A mixture goes to view 1 (attention is a posterior), a mixture with priors on its keys or shift to view 6 (keys
    adapt), a dependency CRF to view 8 (mean field on a sentence), a memory with its pairs to view 10 (a memory is a
    regression). The views draw one small problem in the plane; what they cannot draw is refused, never changed.

    Parameters
    ----------
    path
        File to write.
    model
        A `GaussianMixture` with 2 features, real answers of one coordinate with ``value_precision > 0``, one precision
        for all units, one row of ``log_prior``, no metric and no shift; masked units are left out. Or `bayesian` of a
        mixture with 2 features, one precision, equal weights and Normal priors on ``keys`` (around the present ones),
        ``shift`` (around 0) or both, each with one scale. Or a `DependencyCRF` of one sentence, without mask and global
        nodes. Or a `RegressionMemory` with mean 0, one prior precision and one noise precision, without drift or under
        `Discount` or `PullBack` with one factor.
    queries
        For a mixture or a memory the query (2,) or (1, 2), the middle of the keys if None; for `bayesian` all of the
        data, (Q, 2).
    words, labels
        Names for a CRF; numbers if None.
    pairs
        Keys (T, 2) and values (T, 1) that a memory reads, 1 to 8 of them.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    ValueError
        A model that the view cannot draw, or arguments that belong to another.

    Examples
    --------
    >>> import tempfile, torch
    >>> from probtx_pyro import models
    >>> mixture = models.GaussianMixture(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([[-1.0], [1.0]]), 2.0, 9.0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = write_explorer_json(f"{folder}/mixture.json", mixture, torch.tensor([0.5, 0.2]))
    ...     json.loads(file.read_text())["view"]
    'posterior'
    """
    from probtx_pyro import models

    names = {"words": words, "labels": labels}
    given = pairs is not None and not isinstance(model, models.RegressionMemory)
    _refuse((given, "pairs are what a RegressionMemory reads; leave them out"))
    if isinstance(model, models.DependencyCRF):
        _refuse((queries is not None, "a DependencyCRF has words and no queries; leave queries out"))
        view, state = "mean-field", _crf(model, names)
    else:
        named = words is not None or labels is not None
        _refuse((named, "words and labels are names for a DependencyCRF; leave them out"))
        if isinstance(model, models.RegressionMemory):
            view, state = "regression", _memory(model, queries, pairs)
        elif isinstance(model, models.Bayesian):
            view, state = "keys-adapt", _posterior(model, queries)
        else:
            view, state = "posterior", _mixture(model, queries)
    drawn = [
        max(map(abs, _numbers(state[name])), default=0.0)
        for name in ("keys", "queries", "query", "values")
        if name in state
    ]
    _refuse((max(drawn, default=0.0) > FAR, f"the explorer draws places and answers within {FAR} of 0; scale them"))
    path = Path(path)
    path.write_text(json.dumps({"view": view, "state": state}), encoding="utf-8")
    return path


def _refuse(*rows: tuple[object, str]) -> None:
    """Raise the sentence of the first row that is true."""
    for wrong, sentence in rows:
        if wrong:
            raise ValueError(sentence)


def _numbers(x: Any) -> list[float]:
    """Return the numbers of nested lists in one list."""
    return [n for y in x for n in _numbers(y)] if isinstance(x, list) else [x]


def _mixture(mixture: "GaussianMixture", query: "Tensor | None") -> State:
    precision = _plane(mixture)
    values, log_prior = mixture.values, mixture.log_weights()
    if values is None or values.shape[-1] != 1:
        raise ValueError("view 1 draws answers on a line; give values of shape (U, 1)")
    answers = _one("value_precision", mixture.value_precision)
    held = log_prior[0].isneginf().logical_not()
    query = mixture.keys[held].mean(0) if query is None else query.reshape(-1)
    _refuse(
        (answers <= 0, "value_precision is 0, so answers have no density to draw; take replace(value_precision=...)"),
        (mixture.shift is not None, "view 1 draws no shift; add it to the keys"),
        (len(log_prior) > 1, "view 1 draws one prior for all queries; give log_prior one row"),
        (query.shape != (2,), f"view 1 has one query of 2 features, not {tuple(query.shape)}"),
    )
    return {
        "query": query.tolist(),
        "keys": mixture.keys[held].tolist(),
        "values": values[held, 0].tolist(),
        "precision": precision,
        "valuePrecision": answers,
        "weights": log_prior[0, held].exp().tolist(),
    }


def _posterior(posterior: "Bayesian", queries: "Tensor | None") -> State:
    from pyro.distributions import Normal

    from probtx_pyro.models.priors import bare

    mixture, names = posterior.formulation, sorted(posterior.priors)
    precision = _plane(mixture)
    if queries is None or queries.dim() != 2 or not 1 <= len(queries) <= MOST_QUERIES:
        raise ValueError(f"view 6 needs the data: queries (Q, 2), 1 to {MOST_QUERIES} of them")
    posterior.require_plain("view of the explorer")
    weights, kinds = mixture.log_weights().exp(), {"keys": "own", "shift": "shift", "keys shift": "both"}
    given = mixture.shift is not None and "shift" not in names
    _refuse(
        (" ".join(names) not in kinds, f"view 6 has priors on keys, shift or both, not on {', '.join(names)}"),
        (
            not weights.allclose(1 / weights.new_tensor(mixture.num_units)),
            "view 6 draws equal weights; leave log_prior out",
        ),
        (given, "view 6 draws a shift that has a prior; add this one to the keys"),
    )
    sites, strengths = posterior.problem(queries).sites, {}
    for name in names:
        prior = bare(sites[name].distribution)
        middle = mixture.keys if name == "keys" else mixture.keys.new_zeros(2)
        if not isinstance(prior, Normal) or not prior.loc.expand(middle.shape).equal(middle):
            where = "the present keys" if name == "keys" else "0"
            raise ValueError(f"view 6 draws a Normal prior of {name} around {where}")
        strengths[f"{name.removesuffix('s')}Strength"] = _one(f"scale of {name}", prior.scale) ** -2
    return {
        "queries": queries.tolist(),
        "keys": mixture.keys.tolist(),
        "query": queries.mean(0).tolist(),
        "precision": precision,
        "adapt": kinds[" ".join(names)],
        **strengths,
    }


def _crf(crf: "DependencyCRF", names: Mapping[str, Sequence[str] | None]) -> State:
    shape, ternary = tuple(crf.unary.shape), crf.held("ternary")
    if len(shape) != 2 or not 2 <= shape[0] <= MOST_WORDS:
        raise ValueError(f"view 8 draws one sentence of 2 to {MOST_WORDS} words, unary (N, L), not {shape}")
    hidden = crf.mask is not None or crf.memory is not None
    _refuse((hidden, "view 8 draws neither padding nor global nodes; leave mask and memory out"))
    assert ternary is not None
    named: State = {}
    for (name, given), size in zip(names.items(), shape, strict=True):
        own = [str(i + 1) for i in range(size)] if given is None else list(given)
        _refuse((len(own) != size, f"{name} has {len(own)} names but the CRF has {size}"))
        named[name] = own
    root = None if crf.root_ternary is None else crf.root_ternary.tolist()
    potentials = {"unary": crf.unary.tolist(), "ternary": ternary.tolist(), "root_ternary": root}
    return {"crf": {**named, **potentials, "distances": list(crf.distances)}}


def _memory(memory: "RegressionMemory", query: "Tensor | None", pairs: "tuple[Tensor, Tensor] | None") -> State:
    from probtx_pyro import models

    drifts = {models.Static: "static", models.Discount: "discount", models.PullBack: "pullback"}
    keys, values = (None, None) if pairs is None else pairs
    if keys is None or values is None or not 1 <= len(keys) <= MOST_PAIRS:
        raise ValueError(f"view 10 needs pairs=(keys, values), 1 to {MOST_PAIRS} of them")
    query = keys.mean(0) if query is None else query.reshape(-1)
    plain = memory.mean is None and memory.feature_map is None and memory.noise_shape is None and not memory.relative
    _refuse(
        (keys.shape != (len(keys), 2), f"view 10 draws keys of 2 features, (T, 2), not {tuple(keys.shape)}"),
        (values.shape != (len(keys), 1), f"view 10 draws values (T, 1), one for each key, not {tuple(values.shape)}"),
        (query.shape != (2,), f"view 10 has one query of 2 features, not {tuple(query.shape)}"),
        (not plain, "view 10 draws a memory of mean 0 and known noise; leave mean, feature_map and relative out"),
        (memory.prior_precision is None, "view 10 draws one prior_precision and no prior_matrix"),
        (type(memory.drift) not in drifts, f"view 10 draws no drift, Discount or PullBack, not {memory.drift!r}"),
    )
    numbers: dict[str, float] = {}
    for name, (low, high) in RANGES.items():
        held = memory.held(name)
        numbers[name] = 1.0 if held is None else _one(name, held)
        _refuse(
            (not low <= numbers[name] <= high, f"view 10 draws a {name} of {low} to {high}, not {numbers[name]:.4g}")
        )
    return {
        "keys": keys.tolist(),
        "values": values[:, 0].tolist(),
        "query": query.tolist(),
        "truth": None,
        "unit": False,
        "prior": numbers["prior_precision"],
        "noise": numbers["noise_precision"],
        "drift": drifts[type(memory.drift)],
        "forgetting": numbers["forgetting"],
        "read": len(keys),
    }


def _plane(mixture: object) -> float:
    """The precision of a mixture that the plane can show."""
    from probtx_pyro import models

    if not isinstance(mixture, models.GaussianMixture):
        raise ValueError(f"the explorer has no view for a {type(mixture).__name__}; give a GaussianMixture")
    small = mixture.batch_shape == () and mixture.keys.shape[-1] == 2 and mixture.num_units <= MOST_UNITS
    plain = mixture.metric is None and mixture.answer_probs is None
    _refuse(
        (not small, f"the explorer draws one mixture of up to {MOST_UNITS} units with 2 features"),
        (not plain, "the explorer draws neither a metric nor labels; leave metric and answer_probs out"),
    )
    return _one("key_precision", mixture.key_precision)


def _one(name: str, number: "Tensor") -> float:
    """The number that all entries share."""
    first = number.reshape(-1)[0]
    _refuse(
        ((number != first).any(), f"{name} differs between its entries; the explorer has one number for all of them")
    )
    return float(first)
