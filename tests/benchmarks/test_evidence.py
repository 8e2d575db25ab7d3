"""Tables of `benchmarks.evidence`: corrections and scores on cases with a known answer, and a quick run of each table."""

import json

import numpy as np
import pytest

from benchmarks.evidence import __main__ as command
from benchmarks.evidence import corrections as by
from benchmarks.evidence import rows, unseen
from benchmarks.evidence.corrections import Calibration
from benchmarks.evidence.label_shift import Corrected, scored
from benchmarks.evidence.shifts import batches, some_of


def informative(rng, labels, sharpness=1.5):
    """``p(c | x)`` under even shares, exactly, of points ``x ~ N(sharpness e_c, I)``, (N, 3)."""
    x = rng.normal(size=(len(labels), 3)) + sharpness * np.eye(3)[labels]
    joint = np.exp(sharpness * x)
    return joint / joint.sum(1, keepdims=True)


@pytest.fixture(scope="module")
def shifted():
    rng = np.random.default_rng(0)
    old, shares = np.repeat([0, 1, 2], 4000), np.array([0.7, 0.3, 0.0])
    new = rng.choice(3, 12000, p=shares)
    return Calibration(informative(rng, old), old), informative(rng, new), new, shares


@pytest.mark.parametrize(
    "weights",
    [
        lambda c, p: by.by_confusions(c, p, hard=True),
        lambda c, p: by.by_confusions(c, p, hard=False),
        lambda c, p: by.by_regularised_confusions(c, p, hard=False, strength=1e-4),
        by.by_em,
    ],
)
def test_every_correction_finds_the_shares_of_many_points(weights, shifted):
    calibration, answers, truth, shares = shifted
    found = weights(calibration, answers) / 3
    # the error of a mean over 4,000 points is at most sqrt(1/4/4000) = .008; the inverse of the confusions stretches it by at most 3
    np.testing.assert_allclose(found, shares, atol=4 * 3 * 0.008)
    corrected = by.reweighted(answers, found * 3)
    assert (corrected.argmax(1) == truth).mean() > (answers.argmax(1) == truth).mean() + 0.05


def test_exact_confusions_give_the_weights_exactly():
    """Two classes, hard answers right for 8 of 10 and 9 of 10: of 30 points of the first class to 10 of the second 25 answers are "first"."""
    said = np.repeat([0, 1, 0, 1], [8, 2, 1, 9])
    calibration = Calibration(np.eye(2)[said], np.repeat([0, 1], 10))
    answers = np.eye(2)[np.repeat([0, 1], [25, 15])]
    np.testing.assert_allclose(by.confusions(calibration, True), [[0.4, 0.05], [0.1, 0.45]])
    np.testing.assert_allclose(by.by_confusions(calibration, answers), [1.5, 0.5], atol=1e-12)
    # where nothing is regularised both minimise the same misfit, which is 0 there; L-BFGS stops at a gradient of 1e-9
    np.testing.assert_allclose(by.by_regularised_confusions(calibration, answers, strength=0.0), [1.5, 0.5], atol=1e-5)
    np.testing.assert_allclose(by.by_regularised_confusions(calibration, answers, strength=1e3), [1, 1], atol=1e-5)


def test_em_of_two_points_is_the_root_of_its_likelihood():
    """``log(.9 q + .1 (1-q)) + log(.4 q + .6 (1-q))`` has its maximum where ``.8/(.1+.8q) = .2/(.6-.2q)``: q = 1.4375, beyond 1; and with
    .2 for .4, ``.8/(.1+.8q) = .6/(.8-.6q)``: q = .58/.96."""
    calibration = Calibration(np.full((2, 2), 0.5), np.array([0, 1]))
    first = by.by_em(calibration, np.array([[0.9, 0.1], [0.4, 0.6]])) / 2
    np.testing.assert_allclose(first, [1, 0], atol=1e-6)
    second = by.by_em(calibration, np.array([[0.9, 0.1], [0.2, 0.8]])) / 2
    np.testing.assert_allclose(second, [0.58 / 0.96, 0.38 / 0.96], atol=1e-6)


def test_bias_corrected_temperature_undoes_what_was_done(shifted):
    calibration = shifted[0]
    logs = np.log(calibration.probabilities)
    spoilt = np.exp(3 * logs + [1.0, 0.0, -1.0])
    repair = by.bias_corrected_temperature(calibration._replace(probabilities=spoilt / spoilt.sum(1, keepdims=True)))
    mended = repair(spoilt / spoilt.sum(1, keepdims=True))
    # the answers were exact, and four parameters were fitted on 12,000 points: sqrt(4/12000) = .02 in a logit
    np.testing.assert_allclose(mended, calibration.probabilities, atol=4 * 0.02)


def test_nothing_is_left_of_a_row_without_weight():
    np.testing.assert_allclose(
        by.reweighted(np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([0.0, 2.0])), [[1, 0], [0, 1]]
    )


def test_scores_of_a_batch_by_hand():
    draws = np.array([[0.2, 0.8], [0.4, 0.6]])
    found = scored(
        Corrected(np.array([[0.8, 0.2], [0.6, 0.4]]), np.array([0.3, 0.7]), draws),
        np.array([0, 1]),
        np.array([0.35, 0.65]),
    )
    expected = [0.5, -(np.log(0.8) + np.log(0.4)) / 2, (0.2 + 0.6) / 2, 0.05, 1.0, 1.0, 0.18]
    np.testing.assert_allclose(found, expected)
    assert np.isnan(scored(Corrected(np.eye(2), np.ones(2) / 2), np.array([0, 1]), np.ones(2) / 2)[-3:]).all()


def test_a_batch_has_the_classes_of_its_shares():
    rng = np.random.default_rng(0)
    pool = np.arange(20.0)[:, None], np.repeat(np.arange(5), 4)
    for x, truth, shares in batches(pool, some_of(2), 50, 3, rng):
        assert sorted(shares) == [0, 0, 0, 0.5, 0.5] and shares[truth].min() == 0.5
        np.testing.assert_array_equal(x[:, 0] // 4, truth)


def test_auroc_and_false_positives_by_hand():
    task = unseen.Task(np.empty((0, 1)), np.empty(0), np.zeros((20, 1)), np.zeros((4, 1)))
    values = np.array([*range(1, 21), 0.0, 1.5, 10.5, 30.0])
    # pairs in the right order: 20 + 19 + 10 + 0 of 80; 95 % of the known lie at 1.95 and above (linear quantile), and so do two unseen
    assert unseen.scores(values, task) == (49 / 80, 0.5)


def test_mahalanobis_distance_under_a_known_covariance():
    """Residuals of covariance diag(1, 4) within classes at 0 and at (10, 0): no shrinkage gives ``x²/1 + y²/4``."""
    corners = np.array([[1.0, 2.0], [1.0, -2.0], [-1.0, 2.0], [-1.0, -2.0]])
    task = unseen.Task(
        np.concatenate([corners, corners + np.array([10, 0])]),
        np.repeat([0, 1], 4),
        np.array([[3.0, 0.0], [10.0, 6.0]]),
        np.empty((0, 2)),
    )
    found = unseen.mahalanobis(task, 0.0)
    np.testing.assert_allclose(found["Mahalanobis distance"], [-9, -9])
    # of all points: covariance diag(26, 4) around (5, 0)
    np.testing.assert_allclose(found["relative Mahalanobis"], [4 / 26 - 9, 25 / 26 + 9 - 9])


def test_evidence_of_one_precision_ranks_as_the_distance_of_one_class():
    """One class and one precision: evidence, attention log odds and the squared distance to the mean have one order."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(30, 2))
    task = unseen.Task(points, np.zeros(30, int), rng.normal(size=(5, 2)), rng.normal(size=(5, 2)))
    found = unseen.evidence("e")(task, "scalar", 1, 0.1)["e"]
    distances = np.square(task.asked - points.mean(0)).sum(1)
    np.testing.assert_array_equal(np.argsort(-found), np.argsort(distances))
    each = unseen.precision_of_each("e")(task, "scalar", 0.01, 1.0)["e"]
    np.testing.assert_array_equal(np.argsort(-each), np.argsort(distances))


def test_one_unit_against_itself_says_nothing():
    rng = np.random.default_rng(0)
    task = unseen.Task(rng.normal(size=(30, 2)), np.zeros(30, int), rng.normal(size=(5, 2)), rng.normal(size=(5, 2)))
    np.testing.assert_allclose(unseen.against_one_unit(task, 1, 0.1)["against one unit"], 0, atol=1e-12)


def test_validation_tasks_never_see_the_test_classes():
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(200, 4)), np.repeat(np.arange(10), 20)
    images[:, 0] = labels  # so that a point tells its class
    test, validation = unseen.picture_tasks(images, labels, 3, num_unseen=2)
    absent = set(test.unseen[:, 0])
    assert len(absent) == 2 and not absent & {*test.known[:, 0], *test.labels}
    for task in validation:
        held = set(task.unseen[:, 0])
        assert len(held) == 2 and not held & {*task.known[:, 0], *task.labels} and not absent & {*held, *task.labels}


def test_differences_are_paired():
    found = rows.against_best(np.array([1.0, 2.0, 3.0]), {"a": np.array([0.5, 1.5, 2.5]), "b": np.zeros(3)})
    assert found == ("a", 0.5, 0.0)
    assert rows.against_best(np.zeros(2), {"a": np.array([1.0, 3.0])}, larger_is_better=False) == ("a", 2.0, 1.0)


def test_rows_that_are_kept_are_not_made_again(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    monkeypatch.setattr(
        rows, "write", lambda name, kept: (tmp_path / f"{name}.json").write_text(json.dumps({"rows": kept}))
    )
    made = []

    def run(seed):
        made.append(seed)
        return [{"x": seed}, {"x": -seed}]

    rows.kept("t", [{"seed": 1}], run)
    found = rows.kept("t", [{"seed": 1}, {"seed": 2}], run)
    assert made == [1, 2] and [row["x"] for row in found] == [1, -1, 2, -2]


def test_a_table_that_is_not_there_is_refused():
    with pytest.raises(SystemExit, match="unseen"):
        command.main(["none"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unseen", "label-shift"])
def test_a_quick_run_prints_its_table_and_writes_nothing(name, capsys, monkeypatch):
    monkeypatch.setattr(rows, "write", None)
    command.main([name, "--quick"])
    assert "| --- |" in capsys.readouterr().out
