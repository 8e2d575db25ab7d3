"""Classes in a memory of units: against loops over scalars, scikit-learn's own checks, and what adaptation, rejection and reasons promise."""

import math

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import estimator_checks_generator
from tolerances import assert_equal

from benchmarks.timing import Largest
from probtx_pyro import results
from probtx_pyro.apps import MemoryClassifier
from probtx_pyro.models import GaussianMixture

CHECKS = list(estimator_checks_generator(MemoryClassifier(random_state=0), mark="skip"))
QUICK = {
    "check_estimators_unfitted", "check_no_attributes_set_in_init", "check_parameters_default_constructible",
    "check_fit2d_1sample", "check_estimator_cloneable", "check_estimator_repr", "check_complex_data",
}  # fmt: skip


def name_of(check):
    return getattr(check, "func", check).__name__


@pytest.mark.parametrize(
    ("estimator", "check"),
    [
        pytest.param(
            *given, id=f"{name_of(given[1])}-{i}", marks=() if name_of(given[1]) in QUICK else pytest.mark.slow
        )
        for i, given in enumerate(CHECKS)
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning", "ignore:.* held out, too few to tell")
def test_check_estimator(estimator, check):
    check(estimator)


def blobs(number=60, spread=1.0, seed=0, centers=((-3.0, 0.0), (3.0, 0.0), (0.0, 4.0))):
    rng = np.random.default_rng(seed)
    labels = np.arange(number) % len(centers)
    return np.array(centers)[labels] + spread * rng.normal(size=(number, 2)), np.array(["a", "b", "c"])[labels]


@pytest.fixture(scope="module")
def taught():
    """One unit a class, and rows of 60 points."""
    x, y = blobs()
    return MemoryClassifier(1, metric="full", cv=2, random_state=0).fit(x, y), x, y


def class_shares(memory):
    return memory.log_weights().exp()[0] @ memory.unit_answers()


def log_joint(memory, point, temperature=1.0):
    """``log p(x, unit j)``, unit by unit and coordinate by coordinate; the squared distance over a temperature."""
    keys, weights = memory.keys.tolist(), memory.log_weights().exp()[0].tolist()
    size = len(point)
    precision = torch.atleast_1d(memory.key_precision).tolist()[0]
    metric = torch.eye(size, dtype=memory.keys.dtype) if memory.metric is None else memory.metric
    metric = (torch.diag(metric) if metric.dim() == 1 else metric).tolist()
    shift = [0.0] * size if memory.shift is None else memory.shift.tolist()
    log_det = math.log(abs(float(torch.linalg.det(precision * torch.tensor(metric, dtype=torch.float64)))))
    found = []
    for key, weight in zip(keys, weights, strict=True):
        away = [float(point[d]) - key[d] - shift[d] for d in range(size)]
        square = precision * sum(away[a] * metric[a][b] * away[b] for a in range(size) for b in range(size))
        found.append(math.log(weight) + 0.5 * log_det - 0.5 * size * math.log(2 * math.pi) - 0.5 * square / temperature)
    return found


@pytest.mark.parametrize(("units", "metric"), [(1, "full"), (2, "diagonal"), ("all", "scalar")])
def test_answers_and_evidence_are_those_of_the_formula(units, metric):
    x, y = blobs(30)
    classifier = MemoryClassifier(units, metric=metric, temperature=3.0, cv=None, random_state=0).fit(x, y)
    asked = np.array([[0.0, 1.0], [-2.0, 0.5]])
    answers = classifier.memory_.answer_probs.tolist()
    evidence, probabilities = [], []
    for point in asked:
        evidence.append(math.log(sum(math.exp(term) for term in log_joint(classifier.memory_, point))))
        terms = [math.exp(term) for term in log_joint(classifier.memory_, point, classifier.temperature_)]
        shares = [sum(t * row[c] for t, row in zip(terms, answers, strict=True)) for c in range(3)]
        probabilities.append([share / sum(shares) for share in shares])
    assert_equal(torch.tensor(classifier.score_samples(asked)), torch.tensor(evidence, dtype=torch.float64))
    assert_equal(torch.tensor(classifier.predict_proba(asked)), torch.tensor(probabilities, dtype=torch.float64))
    assert classifier.predict(asked).tolist() == [["a", "b", "c"][np.argmax(row)] for row in probabilities]
    assert len(answers) == {1: 3, 2: 6, "all": 30}[units]


def test_one_unit_a_class_is_a_shrunken_discriminant_analysis():
    """Means, shares, and the pooled covariance shrunk to its mean variance t: ``(w t I + R) / (w + N)``, by loops."""
    x, y = blobs(30, seed=1)
    weight = 7.0
    memory = MemoryClassifier(1, metric="full", prior_weight=weight, cv=None).fit(x, y).memory_
    names = ["a", "b", "c"]
    means = [[sum(p[d] for p, c in zip(x, y, strict=True) if c == name) / 10 for d in range(2)] for name in names]
    away = [[p[d] - means[names.index(c)][d] for d in range(2)] for p, c in zip(x, y, strict=True)]
    scatter = [[sum(r[a] * r[b] for r in away) for b in range(2)] for a in range(2)]
    square = (scatter[0][0] + scatter[1][1]) / 60
    expected = [[(weight * square * (a == b) + scatter[a][b]) / (weight + 30) for b in range(2)] for a in range(2)]
    assert_equal(memory.keys, torch.tensor(means, dtype=torch.float64))
    assert_equal(torch.linalg.inv(memory.metric), torch.tensor(expected, dtype=torch.float64), operations=256)
    assert_equal(memory.log_weights().exp(), torch.full((1, 3), 1 / 3, dtype=torch.float64))


def test_soft_labels_are_answers_of_the_units_and_shares_of_the_means():
    x, _ = blobs(12)
    shares = np.tile([[0.25, 0.75], [1.0, 0.0]], (6, 1))
    every = MemoryClassifier("all", metric="scalar", cv=None).fit(x, shares)
    np.testing.assert_array_equal(every.memory_.answer_probs, shares)
    one = MemoryClassifier(1, metric="scalar", cv=None).fit(x, shares)
    expected = (shares[:, :, None] * x[:, None]).sum(0) / shares.sum(0)[:, None]
    assert_equal(one.memory_.keys, torch.tensor(expected))
    assert_equal(one.memory_.log_weights().exp()[0], torch.tensor(shares.mean(0)))


@pytest.mark.slow
def test_hard_labels_are_soft_labels_of_one_class():
    x, y = blobs(30)
    numbers = np.unique(y, return_inverse=True)[1]
    hard, soft = (MemoryClassifier(cv=2, random_state=0).fit(x, labels) for labels in (numbers, np.eye(3)[numbers]))
    np.testing.assert_array_equal(hard.predict_proba(x), soft.predict_proba(x))


def test_the_rate_of_false_alarms_is_that_asked_for():
    classifier = MemoryClassifier(random_state=0).fit(*blobs(200))
    new, _ = blobs(2000, seed=5)
    held = len(classifier.held_out_evidence_)
    # the share below a threshold at a rank of 200 is itself Beta distributed, with a standard deviation of sqrt(.1 .9 / 202)
    spread = 2000 * (0.1 * 0.9 / (held + 2)) ** 0.5
    count = int(classifier.reject(new, 0.1).sum())
    assert abs(count - 200) <= 5 * (spread**2 + 2000 * 0.09) ** 0.5
    assert classifier.reject(new[:5] - np.array([0.0, 30.0])).all()
    assert not classifier.reject(new, 0.0).any()  # no point is unlike at rate 0


def test_prevalence_is_found_with_an_interval_and_adapts():
    classifier = MemoryClassifier(cv=2, random_state=0).fit(*blobs(300, spread=1.5))
    x, y = blobs(900, spread=1.5, seed=3)
    kept = np.flatnonzero((y == "a") | (np.arange(900) % 10 == 0))
    shares = np.array([(y[kept] == name).mean() for name in "abc"])
    found = classifier.prevalence(x[kept], 0.9999, num_samples=50)
    assert found.classes.tolist() == ["a", "b", "c"] and found.estimate.sum() == pytest.approx(1.0)
    assert (found.low <= shares).all() and (shares <= found.high).all()
    moved = classifier.adapt(x[kept], "prevalence", anchor=1.0)
    assert moved is not classifier and (moved.predict(x[kept]) == y[kept]).mean() >= classifier.score(x[kept], y[kept])
    assert_equal(moved.memory_.keys, classifier.memory_.keys)
    by_class = moved.memory_.log_weights().exp()[0] @ moved.memory_.unit_answers()
    np.testing.assert_allclose(by_class, found.estimate, atol=0.02)  # mode and mean: 1/N


def test_prevalence_by_unit_vectors_is_the_sum_over_classes():
    """EM of Saerens et al. 2002 by loops, from the same answers."""
    classifier = MemoryClassifier(2, cv=None, random_state=0).fit(*blobs(30))
    x = blobs(25, seed=2)[0]
    answers, old = classifier.predict_proba(x).tolist(), class_shares(classifier.memory_).tolist()
    shares = list(old)
    anchor = 4.0
    for _ in range(400):
        sums = [0.0] * 3
        for row in answers:
            terms = [row[c] * shares[c] / old[c] for c in range(3)]
            for c in range(3):
                sums[c] += terms[c] / sum(terms)
        shares = [(sums[c] + anchor * old[c]) / (len(answers) + anchor) for c in range(3)]
    moved = classifier.adapt(x, "prevalence", anchor=anchor).memory_
    # EM stops when no share moves by 1e-5 of the largest; its rate here is below 0.5, so that less than twice that is left
    np.testing.assert_allclose(class_shares(moved), shares, atol=2e-5)
    inside = moved.log_weights()[0].exp().reshape(3, 2)
    before = classifier.memory_.log_weights()[0].exp().reshape(3, 2)
    assert_equal(inside / inside.sum(1, keepdim=True), before / before.sum(1, keepdim=True))


def test_prevalence_of_points_of_another_kind_warns(taught):
    classifier, x, _ = taught
    with pytest.warns(UserWarning, match=r"100% of the points are unlike the training points"):
        classifier.adapt(x + 9, "prevalence")


def test_a_prior_counts_as_so_many_points():
    """One unit: the shift under a metric of 2 is the mean residual times ``n / (anchor + n)``, in every direction."""
    memory = GaussianMixture.categorical(
        torch.zeros(1, 2), torch.ones(1, 1), metric=torch.diag(torch.tensor([2.0, 50.0]))
    )
    points = torch.tensor([[1.0, 2.0], [2.0, 1.0], [3.0, 0.0], [0.0, -2.0]])
    classifier = MemoryClassifier(cv=None).fit(points, np.zeros(4))
    classifier.memory_ = memory
    shift, spread, keys = (
        getattr(classifier.adapt(points, name, anchor=12.0).memory_, name) for name in ("shift", "metric", "keys")
    )
    assert_equal(shift, points.mean(0) * 4 / 16)
    scatter = sum(torch.outer(x, x) for x in points)
    assert_equal(torch.linalg.inv(spread), (12 * torch.linalg.inv(memory.metric) + scatter) / 16, operations=256)
    assert_equal(keys[0], points.mean(0) * 4 / 16)


@pytest.mark.parametrize(
    "metric", ["scalar", pytest.param("diagonal", marks=pytest.mark.slow), pytest.param("full", marks=pytest.mark.slow)]
)
def test_parts_that_are_not_named_stay_and_an_anchor_holds(metric):
    x, y = blobs(60)
    classifier = MemoryClassifier(metric=metric, cv=None, random_state=0).fit(x, y)
    new = blobs(60, seed=1)[0] + [0.5, -0.5]
    free = classifier.adapt(new, "shift", anchor=1e-3).memory_
    # nearly free, one displacement is the mean residual of points that attend to their own unit
    np.testing.assert_allclose(free.shift, [0.5, -0.5], atol=5 * (1 / 60 + 1 / 60) ** 0.5)
    assert_equal(free.keys, classifier.memory_.keys)
    for moves in (["metric"], ["keys", "shift"]):
        held = classifier.adapt(new, moves, anchor=1e12).memory_
        for name in ("keys", "metric", "key_precision", "log_prior"):
            ours, theirs = getattr(held, name), getattr(classifier.memory_, name)
            if theirs is not None:  # 60 points against 1e12
                np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-8)
    low = classifier.score_samples(new).mean()
    assert classifier.adapt(new, ["shift", "metric", "keys"], anchor=1.0).score_samples(new).mean() > low


def test_reasons_name_units_with_bands():
    x, y = blobs(60, spread=1.5)
    for units in (1, "all"):
        classifier = MemoryClassifier(units, metric="scalar", cv=None).fit(x, y)
        reason, _ = classifier.explain([[0.0, 2.0], [3.0, 0.0]], top=3)
        assert (np.diff(reason.weights) <= 0).all() and (reason.low <= reason.weights).all()
        assert (reason.weights <= reason.high).all() and set(reason.classes) <= {"a", "b", "c"}
        assert_equal(torch.tensor(reason.keys), classifier.memory_.keys[reason.units])


def test_a_memory_that_has_adapted_has_no_posterior_and_learns_no_labels(taught):
    classifier, x, y = taught
    for deed in (lambda c: c.explain(x[:1]), lambda c: c.partial_fit(x, y)):
        with pytest.raises(NotImplementedError, match="ask the classifier that adapt was called on"):
            deed(classifier.adapt(x, "metric"))


@pytest.mark.slow
def test_inference_data_names_the_units():
    x, y = blobs(30)
    classifier = MemoryClassifier(2, cv=None, random_state=0).fit(x, y)
    found = classifier.to_inference_data(x[:4])["point_estimate"]
    assert found["unit"].values.tolist() == ["a/0", "a/1", "b/0", "b/1", "c/0", "c/1"]
    assert found["attention"].shape == (4, 6)


@pytest.mark.slow
def test_draws_of_the_units_go_to_arviz(taught):
    classifier, _, _ = taught
    draws = results.to_inference_data(classifier.posterior(num_samples=10, num_chains=2), attention=False)
    assert draws["posterior"]["keys"].shape == (2, 10, 3, 2)


def test_blocks_change_nothing(monkeypatch):
    x, y = blobs(30)
    classifier = MemoryClassifier("all", metric="scalar", cv=None).fit(x, y)
    whole = classifier.predict_proba(x), classifier.score_samples(x)
    monkeypatch.setattr("probtx_pyro.apps.memory._held_out._NUMBERS_AT_ONCE", 7 * 32)
    sizes, evidence = [], GaussianMixture.log_evidence
    monkeypatch.setattr(GaussianMixture, "log_evidence", lambda self, x: sizes.append(len(x)) or evidence(self, x))
    classifier.score_samples(x)
    assert sizes == [7, 7, 7, 7, 2]
    for ours, theirs in zip((classifier.predict_proba(x), classifier.score_samples(x)), whole, strict=True):
        assert_equal(torch.tensor(ours), torch.tensor(theirs))


def test_a_hot_memory_is_the_one_with_wider_units():
    classifier = MemoryClassifier(temperature=4.0, cv=None).fit(*blobs(30))
    assert_equal(classifier.reader_.key_precision, classifier.memory_.key_precision / 4)


@pytest.mark.parametrize(
    ("deed", "message"),
    [
        (lambda c, x, y: MemoryClassifier(0).fit(x, y), "'units_per_class' parameter"),
        (lambda c, x, y: MemoryClassifier(metric="round").fit(x, y), "'metric' parameter"),
        (lambda c, x, y: MemoryClassifier().fit(np.ones((4, 2)), y[:4]), "X does not vary"),
        (lambda c, x, y: MemoryClassifier().fit(x, np.full((len(x), 2), 0.4)), "rows on the simplex|sum to 1"),
        (
            lambda c, x, y: c.adapt(x, "colour"),
            "move must name some of prevalence, shift, scale, metric, keys, not 'colour'",
        ),
        (lambda c, x, y: c.adapt(x, []), "move must name some of"),
        (lambda c, x, y: c.adapt(x, anchor=0.0), "anchor must be positive"),
        (lambda c, x, y: c.reject(x, 1.0), "false_alarm_rate must be from 0"),
        (lambda c, x, y: c.prevalence(x, 1.0), "probability must be between 0 and 1"),
        (lambda c, x, y: c.prevalence(x, concentration=0.0), "concentration must be positive"),
        (lambda c, x, y: MemoryClassifier(cv=None).fit(x, y).reject(x), "no training point was held out"),
    ],
)
def test_bad_input_is_refused_in_one_line(deed, message, taught):
    classifier, x, y = taught
    with pytest.raises(ValueError, match=message) as error:
        deed(classifier, x, y)
    assert "\n" not in str(error.value) or "parameter" in message


def test_nothing_is_asked_before_it_is_fitted():
    for deed in ("reject", "adapt", "prevalence", "explain", "score_samples"):
        with pytest.raises(NotFittedError):
            getattr(MemoryClassifier(), deed)([[0.0]])


@pytest.mark.slow
def test_a_hundred_thousand_points_in_bounded_memory():
    """No tensor over all points and units is made; 100,000 points and 60 units would make one of 6e6 numbers."""
    x, y = blobs(60)
    classifier = MemoryClassifier("all", metric="scalar", cv=None).fit(x, y)
    many = np.resize(x, (100_000, 2))
    with Largest() as made:
        probabilities, evidence = classifier.predict_proba(many), classifier.score_samples(many)
        moved = classifier.adapt(many)
    assert probabilities.shape == (100_000, 3) and evidence.shape == (100_000,) and moved.memory_.num_units == 60
    assert made.numbers <= 1 << 22
    # the same points in chunks of other sizes: sums of 60 probabilities, in another order
    np.testing.assert_allclose(
        probabilities[-60:], np.roll(classifier.predict_proba(x), -(100_000 % 60), 0), atol=1e-12
    )
