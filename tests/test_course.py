"""The course: stubs fail, solutions pass, mistakes get their sentence, and the pages name what exists."""

import importlib
import importlib.util
import math
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import IPython.display
import matplotlib.pyplot as plt
import pytest
import torch

from probtx_pyro.course import show_figure

ROOT = Path(__file__).parent.parent
COURSE = ROOT / "docs" / "course"
PAGES = sorted(COURSE.rglob("*.md"))
SETS = (1, 2, 3, 4)


def case(number, name, *more):
    """A row of a table of tests; what draws chains or trains is slow."""
    marks = [pytest.mark.slow] * bool(re.search("gibbs|guide", name))
    return pytest.param(number, name, *more, id=f"{number}-{name}", marks=marks)


CASES = [
    case(number, name)
    for number in SETS
    for name in re.findall(r"^def (test_\w+)", (COURSE / f"problems/test_set_{number}.py").read_text(), flags=re.M)
]


def load(path):
    specification = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


STUBS = {number: load(COURSE / f"problems/set_{number}.py") for number in SETS}
SOLVED = {number: load(COURSE / f"solutions/set_{number}.py") for number in SETS}


def judge(number, name, answers, monkeypatch):
    """Run one test of a set on these answers, as a student's folder would."""
    monkeypatch.setitem(sys.modules, f"set_{number}", answers)
    getattr(load(COURSE / f"problems/test_set_{number}.py"), name)()


@pytest.mark.parametrize(("number", "name"), CASES)
def test_a_stub_fails_and_says_which_problem_is_open(number, name, monkeypatch):
    with pytest.raises(NotImplementedError, match=rf"problem {number}\.\d: \w+ is still to be written"):
        judge(number, name, STUBS[number], monkeypatch)


@pytest.mark.parametrize(("number", "name"), CASES)
def test_a_solution_passes(number, name, monkeypatch):
    judge(number, name, SOLVED[number], monkeypatch)


def public(module):
    return {
        name: f
        for name, f in vars(module).items()
        if getattr(f, "__module__", None) == module.__name__ and name[0] != "_"
    }


@pytest.mark.parametrize("number", SETS)
def test_stubs_and_solutions_have_the_same_functions(number):
    stubs, solved = public(STUBS[number]), public(SOLVED[number])
    assert list(stubs) == list(solved)
    assert all(stubs[name].__annotations__ == solved[name].__annotations__ for name in stubs)


def quotient(*args):
    densities = SOLVED[1].log_joint(*args).exp()
    return densities / densities.sum(-1, keepdim=True)


def precision_without_dimension(points, *story):
    means, log_weights, precision = SOLVED[1].em_step(points, *story)
    return means, log_weights, precision / points.shape[-1]


def without_zeros(guide, *args):
    return (guide * (SOLVED[1].log_joint(*args) - guide.log())).sum()


def divided(queries, attention, prior_keys, theta, alpha):
    return (theta * prior_keys + alpha * attention.T @ queries) / (theta + alpha * attention.sum(0)[:, None])


def averaged(queries, prior_keys, theta, alpha, num_draws, generator):
    keys, draws = prior_keys, []
    for _ in range(num_draws):
        rows = (-alpha / 2 * (queries[:, None] - keys).square().sum(-1)).softmax(-1)
        noise = torch.randn(keys.shape, generator=generator) / (theta + alpha * rows.sum(0)[:, None]).sqrt()
        keys = SOLVED[2].adapt_keys(queries, rows, prior_keys, theta, alpha) + noise
        draws.append(keys)
    return torch.stack(draws)


def plain_mean(query, key_draws, alpha):
    return (-alpha / 2 * (query - key_draws).square().sum(-1)).softmax(-1).mean(0)


def whole_chains(draws):
    within, between, length = draws.var(-1).mean(), draws.mean(-1).var(), draws.shape[-1]
    return (((length - 1) / length * within + between) / within).sqrt()


def within_units(queries, keys, log_weights, precisions):
    joint = SOLVED[3].joint_responsibilities(queries, keys, log_weights, precisions)
    return joint / joint.sum(-1, keepdim=True)


def no_squares(eta, means, covariances, log_weights):
    return (log_weights + means @ eta).softmax(0) @ (means + covariances @ eta)


def between_only(eta, means, covariances, log_weights):
    return SOLVED[3].tilted_covariance(eta, means, covariances, log_weights) - covariances.mean(0)


def no_entropy(features, log_joint, num_steps):
    coefficients = torch.zeros(features.shape[-1], log_joint.shape[-1], requires_grad=True)
    optimizer = torch.optim.Adam([coefficients], lr=0.1)
    for _ in range(num_steps):
        optimizer.zero_grad()
        (-((features @ coefficients).softmax(-1) * log_joint).sum(-1).mean()).backward()
        optimizer.step()
    return coefficients.detach()


def logarithms_averaged(log_row, log_joint, units):
    return (log_joint - log_row)[units].mean()


def one_logarithm(log_row, log_joint, units):
    return (log_joint - log_row)[units].flatten().logsumexp(0) - math.log(units.numel())


def joint_alone(log_row, log_joint, units):
    return SOLVED[3].importance_bound(torch.zeros_like(log_row), log_joint, units)


def zeroed_afterwards(labels, ternary):
    found = (labels @ ternary @ labels.T).softmax(-1)
    return found - torch.diag(found.diagonal())


def deaf_to_children(labels, heads, unary, ternary):
    return (unary + heads @ labels @ ternary.T).softmax(-1)


def keeps_weights(slopes, log_mask, shift, precision):
    return (slopes + shift) / precision, log_mask.log_softmax(-1)


def log_of_zero(labels, heads, unary, ternary):
    entropy = -(labels * labels.log()).sum() - (heads * heads.log()).sum()
    return (labels * unary).sum() + (heads * (labels @ ternary @ labels.T)).sum() + entropy


def with_diagonal(scores, root_scores):
    weights = scores.exp()
    return torch.linalg.slogdet(
        torch.diag(root_scores.exp() + weights.sum(-1)) - torch.triu(weights, 1) - torch.tril(weights, -1)
    ).logabsdet


MISTAKES = [
    (1, "test_log_joint", "log_joint", lambda *a: SOLVED[1].log_joint(*a) + 0.3, "normaliser"),
    (
        1,
        "test_responsibilities",
        "responsibilities",
        lambda *a: SOLVED[1].log_joint(*a).softmax(0),
        "normalise over clusters",
    ),
    (1, "test_responsibilities_far_away", "responsibilities", quotient, "stay with logarithms"),
    (1, "test_em_step_maximises", "em_step", precision_without_dimension, "PER COORDINATE"),
    (1, "test_elbo_of_a_hard_guide", "elbo", without_zeros, "0 log 0 is 0"),
    (
        1,
        "test_linked_log_weights",
        "linked_log_weights",
        lambda keys, _: keys[:, 0].mul(0).log_softmax(-1),
        "term of the square",
    ),
    (1, "test_em_answer", "em_answer", lambda start, *_: start, "did not move"),
    (2, "test_adapt_keys_at_both_ends", "adapt_keys", divided, "keep its prior key"),
    (2, "test_gibbs_of_two_units", "gibbs_keys", averaged, "DRAWN, not averaged"),
    (2, "test_predictive_attention_is_bayes_rule", "predictive_attention", plain_mean, "evidence about the keys"),
    (2, "test_split_rhat_sees_a_drift", "split_rhat", whole_chains, "cut every chain"),
    (3, "test_joint_responsibilities", "joint_responsibilities", within_units, "erratum 10"),
    (3, "test_tilted_mean_is_the_slope", "tilted_mean", no_squares, "quadratic term"),
    (
        3,
        "test_tilted_covariance_is_the_curvature",
        "tilted_covariance",
        between_only,
        "PLUS the covariance of the means",
    ),
    (3, "test_train_guide", "train_guide", no_entropy, "with its entropy"),
    (3, "test_importance_bound", "importance_bound", logarithms_averaged, "BEFORE the logarithm"),
    (3, "test_importance_bound", "importance_bound", one_logarithm, "a logarithm of its own"),
    (3, "test_importance_bound_of_the_posterior", "importance_bound", joint_alone, "divide the joint by the row"),
    (4, "test_head_update", "head_update", zeroed_afterwards, "BEFORE the softmax"),
    (4, "test_label_update", "label_update", deaf_to_children, "IT as head"),
    (4, "test_elbo", "elbo", log_of_zero, "0 log 0 is 0"),
    (4, "test_tree_log_partition", "tree_log_partition", with_diagonal, "everything that a word may choose"),
    (4, "test_equivalent", "equivalent", keeps_weights, "make up for"),
    (4, "test_likeliest", "likeliest", lambda queries, *_: (queries.mean(0), 1.0), "likelier"),
]


@pytest.mark.parametrize(("number", "name", "function", "wrong", "sentence"), [case(*row) for row in MISTAKES])
def test_a_typical_mistake_gets_the_sentence_meant_for_it(number, name, function, wrong, sentence, monkeypatch):
    answers = SimpleNamespace(**public(SOLVED[number]) | {function: wrong})
    with pytest.raises(AssertionError, match=sentence):
        judge(number, name, answers, monkeypatch)


@pytest.mark.parametrize("number", SETS)
def test_a_problem_set_has_a_hundred_points_and_parts_that_add_up(number):
    text = (COURSE / f"problems/{number}.md").read_text()
    problems = re.findall(
        rf"^## {number}\.\d .*?\((\d+) points.*?\n(.*?)(?=^## |^\[Solutions\]|\Z)", text, flags=re.M | re.S
    )
    assert sum(int(points) for points, _ in problems) == 100
    for points, body in problems:
        parts = [int(part) for part in re.findall(r"^\d\. \((\d+)\)", body, flags=re.M)]
        assert not parts or sum(parts) == int(points), body


def test_the_syllabus_has_every_notebook_and_no_other():
    named = set(re.findall(r"notebooks/(\w+\.ipynb)", (COURSE / "syllabus.md").read_text()))
    assert named == {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}


def test_the_syllabus_has_the_minutes_of_the_notebooks_and_both_call_them_estimates():
    syllabus = (COURSE / "syllabus.md").read_text()
    listed = dict(re.findall(r"^\| \[(\d\d)\] \| .* \| (\d+) \| .* \|$", syllabus, flags=re.M))
    written = {
        path.name[:2]: re.search(r"\| \*\*Time\*\* \| about (\d+) minutes \(an estimate\)", path.read_text())[1]
        for path in (ROOT / "notebooks").glob("*.ipynb")
    }
    assert listed == written and "minutes, estimated" in syllabus


def unresolved(path, text):
    """Numbers in brackets without a target, and targets at the end of a page that are not there."""
    targets = dict(re.findall(r"^\[(\w+)\]: (\S+)$", text, flags=re.M))
    used = set(re.findall(r"\[(\d{2,3})\](?![(:])", text))
    return sorted(used - set(targets)) + [to for to in targets.values() if not (path.parent / to).exists()]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(COURSE)))
def test_references_by_number_resolve(path):
    assert unresolved(path, path.read_text()) == []


def test_a_reference_that_leads_nowhere_is_seen():
    assert unresolved(COURSE / "x.md", "[07] [x](y)\n[08]: none.ipynb\n") == ["07", "none.ipynb"]


def glossary():
    lines = re.findall(r"^\| (.+) \|$", (COURSE / "glossary.md").read_text(), flags=re.M)
    return [line.split(" | ") for line in lines[1:] if not line.startswith("---")]


def test_the_glossary_is_complete_and_in_order():
    rows = glossary()
    assert all(len(row) == 5 and all(cell.strip() for cell in row) for row in rows)
    terms = [row[0].casefold() for row in rows]
    assert terms == sorted(terms) and len(set(terms)) == len(terms) > 50


def test_names_in_the_glossary_exist():
    for *_, name in glossary():
        package, *rest = name.strip("`").split(".")
        found = importlib.import_module(f"probtx_pyro.{package}")
        for part in rest:
            found = getattr(found, part)


def test_the_bibliography_is_numbered():
    entries = re.findall(r"^(\d+)\. \*\*", (COURSE / "bibliography.md").read_text(), flags=re.M)
    assert [int(number) for number in entries] == list(range(1, len(entries) + 1)) and 25 <= len(entries) <= 80


def test_a_figure_is_shown_with_its_description_and_closed(monkeypatch):
    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda figure, metadata: shown.append((figure, metadata)))
    figure = plt.figure()
    show_figure("A line that rises.")
    assert shown == [(figure, {"image/png": {"alt": "A line that rises."}})]
    assert not plt.fignum_exists(figure.number)
