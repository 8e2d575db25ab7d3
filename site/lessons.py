"""The site's copy of a notebook: nobody runs it there, so views of the explorer stand where a slider would.

What needs a kernel is left out, the cells of a slider and the sentences about it, and cells whose code is folded share a fold with
their neighbours. Below the title stand links to the notebook itself, to its slides, and to places that run it.
"""

import importlib.util
import json
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
HEADING = re.compile(r"^#+ +(?:[\d.·]+ +)*(.+?) *$", re.M)  # its text without its number
NEEDS_A_KERNEL = re.compile(
    r" ?\(?\b(?:If you run this page|With a kernel)\b(?:[^\n]|\n(?!\n))*?(?:\.\)?(?=\s|$)|:$)"
    r"| ?(?:If you are only reading, t|T)he [\w ]+ (?:below the slider )?show the same(?: to those who read only)?\.",
    re.M,
)
WORDS = re.compile(r"\[([^\]]+)\]\((\{.*?\})\)")  # of a suggestion, that set values


class Placed(NamedTuple):
    """A view in a notebook: the heading of its section, its state where that differs from the start, and what to try.

    In the latter, ``[words]({"name": value})`` are a link that sets the view to its state here but for these values.
    """

    notebook: str
    heading: str
    view: str
    state: dict
    suggestion: str


SHOWS = {  # what each view shows, in any state
    "posterior": "A unit is picked by its prior and a query is drawn near its key. Attention is the posterior of the unit, the evidence is the density of the query, and the answer has a density of its own.",
    "same-attention": "Attention fixes a mixture only up to the origin of its keys and a metric: these models attend alike, and differ in the queries that they expect.",
    "evidence-bound": "Any probabilities over the units, a guide, bound the log evidence from below. The gap is a KL divergence, and attention closes it.",
    "soft-kmeans": "Points choose among centres, sharply or softly. Sharply it is k-means, softly it is attention to the centres, and below a critical sharpness there are no clusters.",
    "mean-or-mode": "The output of attention is the mean of the answer's density. Its modes are elsewhere, and three units can have four of them.",
    "keys-adapt": "Queries are data about the keys, which move under a prior: by EM to the mode, by Gibbs sampling over the posterior.",
    "memory": "Attention whose keys and values are patterns, taken again and again, walks downhill in an energy to a pattern or to an average of near ones (a Hopfield network).",
    "mean-field": "Labels and heads of a sentence by mean field in a dependency CRF, beside exact marginals and parses drawn by Gibbs sampling; the ELBO beside log Z.",
    "fool-the-diagnostics": "Chains of a small posterior with starts, lengths and mistakes of your own choosing: rank plots, R-hat and calibration, and what each of them cannot see.",
    "regression": "A memory that reads keys and values one after another is a Bayesian linear regression; linear attention, the delta rule and a Kalman network are approximations of it.",
    "together": "Keys of a domain share one move and have moves of their own. A sum over all assignments says exactly how far each key has gone, and how likely the queries are under each pair of strengths.",
    "trained-head": "A small transformer, trained on text, reads what is typed into the page. One of its heads is shown with its attention, and with the mixtures that have this attention: from softmax's own, which does not expect the head's queries, to the likeliest of them.",
    "novelty": "A memory of three classes meets points of a fourth. How sure attention is of a class does not tell them from known ones, and may be surer of the unknown; the evidence tells them, as far as the model is right.",
    "one-click": "A photograph that is clicked on, class by class: the mask and its uncertainty at once, what paths, colours and neighbours say of any unit, and which units a pixel asks, as the library's segmenter has them.",
    "funnel": "A posterior that is wide at small precisions and narrow at large ones. Leapfrog paths and draws of NUTS, with a step of your own choosing, in the coordinates of the key or in units of its width: where paths diverge, and what the draws are worth.",
    "two-keys": "A unit with two keys may own both sides of another; with one key each and one precision, every unit owns a convex region.",
}  # fmt: skip

PAGES = {
    "trained-head": "trained_head.html",
    "one-click": "one_click.html",
}  # views with a page of their own; site/explorer/src/pages

PLACED = [
    Placed(
        "00_mixtures_in_twenty_lines", "A responsibility: which source does this point come from?", "posterior", {},
        'Drag the query between the keys, then [lower the precision]({"precision": 0.3}): the borders between the units soften.',
    ),
    Placed(
        "00_mixtures_in_twenty_lines", "The bound rises to the evidence", "evidence-bound", {},
        "Drag the guide onto the star: the bound rises until it is the log evidence.",
    ),
    Placed(
        "01_attention_is_a_posterior", "Every other matrix leaves a gap", "evidence-bound", {},
        "One query and three units: the gap closes only where the guide is attention, the star.",
    ),
    Placed(
        "01_attention_is_a_posterior", "What does the prior say?", "posterior", {"linked": True},
        "Here the prior is the one that softmax implies. Drag a key away from the middle: its prior weight grows.",
    ),
    Placed(
        "01_attention_is_a_posterior", "What does softmax throw away?", "posterior", {"query": [2.6, -2]},
        "This query is far from all keys. Attention is sure of a unit, and the log evidence says how poorly it fits.",
    ),
    Placed(
        "02_from_k_means_to_attention", "How does clustering become attention?", "soft-kmeans", {"gamma": 2},
        '[Raise γ]({"gamma": 10}): each point ends with one centre, as in k-means.',
    ),
    Placed(
        "02_from_k_means_to_attention", "What happens to the centers as it gets warm?", "soft-kmeans", {"gamma": 0.2},
        "Press “Settle”, on either side of the dashed line: below it all centres meet at the mean of the points.",
    ),
    Placed(
        "03_map_transformer", "Where does β enter?", "mean-or-mode", {"sd": 0.3},
        '[Raise the standard deviation]({"sd": 0.9}), 1 / √β: the modes merge, and the mean stays where it is.',
    ),
    Placed(
        "03_map_transformer", "Can there be more modes than units?", "mean-or-mode", {"sd": 0.72},
        'Move the standard deviation from 0.6 to 0.8: [three modes]({"sd": 0.6}), [four]({"sd": 0.72}), [one]({"sd": 0.8}).',
    ),
    Placed(
        "03_map_transformer", "Can EM stand still at a bad place?", "mean-or-mode",
        {"values": [[-1, 0], [1, 0]], "weights": [1, 1], "sd": 0.5, "start": [0, 0.3]},
        "EM starts on the line between the two values and ends at the saddle. Drag the start a little to one side.",
    ),
    Placed(
        "04_keys_that_adapt", "Prior strength against data", "keys-adapt", {},
        "Move the strength of the prior, and drop queries of your own: the keys move to them, or do not.",
    ),
    Placed(
        "08_guides_that_learn", "A mixture of digits, and two networks", "evidence-bound", {},
        "What a network says of one query is such a guide, and the gap is what its training lowers.",
    ),
    Placed(
        "10_mixture_of_gaussian_keys", "Which queries can a unit own?", "two-keys", {"precision": 4},
        "Drag A's second key over to its first: the two pieces of A's region grow together.",
    ),
    Placed(
        "09_log_normalizer_and_hopfield", "The energy of a memory", "memory", {},
        'Raise β until the two near patterns [part into two resting places]({"beta": 8}).',
    ),
    Placed(
        "16_dependency_crf", "How wrong is mean field?", "mean-field", {},
        '[Lower the coupling]({"coupling": 0}) until the gap between the ELBO and log Z closes.',
    ),
    Placed(
        "17_a_posterior_over_parses", "A layer that makes things worse", "mean-field", {"coupling": 2, "schedule": "synchronous"},
        'All words are updated at once, and the ELBO goes up and down. [Raise the damping]({"damping": 0.5}) until it only rises.',
    ),
    Placed(
        "06_diagnosing_the_posterior", "A chain that starts in the wrong place", "fool-the-diagnostics", {"bug": "none", "start": "apart"},
        "Every second chain starts with the keys exchanged. Draw more: R-hat does not become smaller.",
    ),
    Placed(
        "06_diagnosing_the_posterior", "Is the sampler itself right?", "fool-the-diagnostics", {},
        'This sampler counts every query twice. Chains agree on the wrong answer, and calibration sees it; [take the bug out]({"bug": "none"}).',
    ),
    Placed(
        "11_inside_a_trained_transformer", "The same attention twice", "same-attention", {},
        "Drag the cross: no number of the matrix moves, the evidence of the queries does.",
    ),
    Placed(
        "11_inside_a_trained_transformer", "Eight heads, five statistics", "trained-head", {"head": "0.1"},
        "Type a text of your own, choose a head, and take “Own model to best” to 1: no weight moves, and the queries drawn from the model come to where the real ones are.",
    ),
    Placed(
        "12_interactive_segmentation", "What does one click change?", "one-click", {},
        "Here all clicks are taken at once. Click on the trees at the pagoda's foot as rest: what else turns? Then let each unit answer on its own.",
    ),
    Placed(
        "13_learning_the_priors", "Through the steps, or at the fixed point?", "keys-adapt", {"steps": 1},
        "After one step the keys are on their way. Move the number of steps until nothing changes.",
    ),
    Placed(
        "14_what_keys_have_in_common", "Three posteriors, six cameras", "keys-adapt", {"adapt": "shift"},
        "All keys move by one shift. Let each adapt by itself instead: the key that no query has come near stays.",
    ),
    Placed(
        "14_what_keys_have_in_common", "What does it borrow?", "together", {},
        'B and E have no query and move with the others. [Take τ to 0.03]({"tau": 0.03}): they stay. The map says which strengths the queries favour.',
    ),
    Placed(
        "15_what_the_view_buys", "Classes that were never taught", "novelty", {},
        "Drag the cross, the class that was never taught, away from the three others, between them, and onto one: which of the two scores sees it?",
    ),
    Placed(
        "05_how_do_we_draw", "How sure are the keys, and how sure is attention?", "keys-adapt", {},
        "The clouds are draws of a Gibbs sampler. Drop queries beside a ring, and the cloud of its key shrinks.",
    ),
    Placed(
        "07_the_funnel", "What does a funnel do to NUTS?", "funnel", {},
        'Drag the ring, the momentum, and see where paths diverge. Then [take the keys in units of σ]({"coordinates": "units"}): the draws are worth many times as many.',
    ),
    Placed(
        "07_the_funnel", "How long may a step be?", "funnel", {"step": 0.5, "steps": 6},
        "Above the dashed line this step is longer than two standard deviations of the key. Make it shorter: the line moves up by a factor of four in the precision for each half.",
    ),
    Placed(
        "18_memory_is_regression", "One model, many layers", "regression", {},
        "Turn the query across the two keys: the exact band widens. Then read the next pair.",
    ),
    Placed(
        "19_inside_a_language_model", "The first token", "posterior", {"background": 0.3},
        'A broad background, here of prior weight 0.3, stands for the first token. Drag the query [away from the keys]({"query": [-2.6, -2]}): it takes what they do not explain.',
    ),
    Placed(
        "19_inside_a_language_model", "Is the mixture a density of queries?", "same-attention", {},
        "From the mixture as written to the best equivalent, in the plane: drag the cross, and the log evidence of the queries moves by nats. Attention stays as it is.",
    ),
    Placed(
        "20_errata", "A pull that pushes: erratum 23", "soft-kmeans", {},
        '[Raise γ]({"gamma": 6}): points choose more sharply. It is an inverse temperature, which the notes call a temperature.',
    ),
    Placed(
        "21_which_layer_computes_a_posterior", "Small networks beside the exact answer", "regression", {},
        "The exact answer of the second task: read the next pairs, and see what linear attention makes of the same ones.",
    ),
    Placed(
        "21_which_layer_computes_a_posterior", "Where does inference end?", "mean-field", {"sweeps": 1},
        'The sweep of the CRF, on a sentence: [take ten]({"sweeps": 10}), and the ELBO has risen until it rests below log Z.',
    ),
]  # fmt: skip


def script_of(path: Path):
    """A script, as a module."""
    specification = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def script(name: str):
    """A script of the notebooks' folder, as a module."""
    return script_of(NOTEBOOKS / f"{name}.py")


def address(view: str, state: dict) -> str:
    """The fragment that opens a view of the explorer in a state, as the explorer writes it."""
    return f"#{view}" + (f":{quote(json.dumps(state, ensure_ascii=False, separators=(',', ':')))}" if state else "")


def headings(cell: dict) -> list[str]:
    """The headings of a cell, without their numbers."""
    return HEADING.findall("".join(cell["source"])) if cell["cell_type"] == "markdown" else []


def is_slider(cell: dict) -> bool:
    """True for a cell whose output only a kernel makes."""
    return cell["cell_type"] == "code" and "@interact" in "".join(cell["source"])


def place(cells: list[dict], heading: str) -> int:
    """Where the view of a section stands: at its slider, or else at its end."""
    first = next((number for number, cell in enumerate(cells) if heading in headings(cell)), None)
    if first is None:
        raise ValueError(f"site/lessons.py places a view at {heading!r}, which is no heading of its notebook")
    end = next((number for number in range(first + 1, len(cells)) if headings(cells[number])), len(cells))
    return next((number for number in range(first, end) if is_slider(cells[number])), end)


def source(placed: Placed, changes: dict) -> str:
    """Where a page of the course finds the view, in its state but for some values."""
    page = f"../explorer/{PAGES.get(placed.view, 'index.html')}?view"
    return escape(page + address(placed.view, placed.state | changes))


def frame(placed: Placed, title: str, number: int) -> dict:
    """A cell with the view, open, and what to try in it."""
    name = f"view-{number}"

    def link(found: re.Match) -> str:
        return f'<a href="{source(placed, json.loads(found[2]))}" target="{name}">{found[1]}</a>'

    text = (
        f"**Move it.** {WORDS.sub(link, placed.suggestion)}\n\n"
        f'<iframe class="explorer" loading="lazy" name="{name}" src="{source(placed, {})}" title="The explorer: {escape(title)}"></iframe>'
    )
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": [text]}


def without_a_kernel(cells: list[dict]) -> Iterator[dict]:
    """The cells that say something to those who run nothing."""
    for cell in cells:
        if cell["cell_type"] == "markdown":
            text = NEEDS_A_KERNEL.sub("", "".join(cell["source"]))
            if text.strip():
                yield {**cell, "source": [text]}
        elif not is_slider(cell):
            yield cell


def together(cells: Iterator[dict]) -> list[dict]:
    """Neighbours whose code is folded, as one cell."""
    found: list[dict] = []
    for cell in cells:
        folded = "hide-input" in cell["metadata"].get("tags", ())
        if folded and found and "hide-input" in found[-1]["metadata"].get("tags", ()):
            last = found[-1]
            source = ["".join(last["source"]) + "\n\n\n" + "".join(cell["source"])]
            found[-1] = {**last, "source": source, "outputs": [*last["outputs"], *cell["outputs"]]}
        else:
            found.append(cell)
    return found


def places(view: str) -> list[str]:
    """The notebooks in which a view stands."""
    return list(dict.fromkeys(placed.notebook for placed in PLACED if placed.view == view))


def links(name: str, repository: str) -> str:
    """Where the notebook can be had, and run if the repository has an address on GitHub."""
    here = f'<a href="{name}.ipynb" download>Download the notebook</a> · <a href="../slides/{name}.html">Slides</a>'
    own = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?", repository)
    return f"{here} · {script('badges').line(own[1], f'{name}.ipynb')}" if own else here


def lesson(name: str, text: str, views: dict[str, str], repository: str = "") -> str:
    """The site's copy of a notebook, given the titles of the explorer's views."""
    notebook = json.loads(text)
    cells = notebook["cells"]
    chosen = [placed for placed in PLACED if placed.notebook == name and placed.view in views]
    at = sorted(((place(cells, placed.heading), placed) for placed in chosen), key=lambda found: found[0], reverse=True)
    for number, placed in at:
        cells.insert(number, frame(placed, views[placed.view], number))
    notebook["cells"] = together(without_a_kernel(cells))
    title, _, rest = script("badges").LINE.sub("", "".join(notebook["cells"][0]["source"]), count=1).partition("\n")
    notebook["cells"][0]["source"] = [f"{title}\n\n{links(name, repository)}\n{rest}"]
    return json.dumps(notebook)
