"""`apps.MemoryClassifier` beside scikit-learn's classifiers, and its estimates of a changed prevalence.

    PROBTX_DATA=... python -m benchmarks.memory_classifier [--part peers|prevalence|all] [--seeds N]

**peers.** Digits (1,797 of 8 x 8, ink in 0..1), wine (178 of 13, standardised on the training part), Banking77 (10,003 training and
3,080 test questions as published, 77 intents; TF-IDF of words, sublinear, and 64 singular vectors, both of the training text). Digits
and wine: a third is the test part, stratified, drawn by the seed. The settings of each classifier are chosen by three-fold
cross validation of the log loss on the training part, ours and the peers' alike: `MemoryClassifier` over units_per_class 1 and "all",
metrics full and scalar; LogisticRegression over C 1, 10, 100; KNeighborsClassifier over 5, 15, 45 neighbours, weighted by distance;
QuadraticDiscriminantAnalysis over reg_param 0.1, 0.5, 0.9; one GaussianMixture a class, diagonal, over 1 and 3 components. On
Banking77 the choice is made on one fold in place of three and there is one seed, and our classifier tries 1, 3, 6 and 12 units with
the full metric (1 and 3 in the first run, when a fit took minutes). QuadraticDiscriminantAnalysis is over shrinkage 0.1, 0.5, 0.9 there, as its
reg_param refuses classes of fewer points than features, which a first run showed. Scores on the test part: accuracy, negative log likelihood (probabilities not below 1e-12), expected
calibration error of the largest probability (15 bins of equal width), seconds of the fit with the settings chosen and of
`predict_proba`. Time is processor time of one thread.

**prevalence.** Digits, 1,000 to learn from with one unit a class and the full metric, all defaults; batches of 200 of the other 797 digits, drawn with replacement with shares of the classes from
Dirichlet(0.1) and Dirichlet(1), 20 of each a seed. Scores: mean absolute error of the shares and how many of them lie in their 90 %
interval (`prevalence` under Dirichlet(1), its default then; and, added after the first look, with the concentration that they were drawn with), and the error of counting the classes predicted, and of the mode (`adapt` of the prevalence alone,
anchor 1); accuracy of the batch before and after that adaptation.
"""

import argparse
import json
import os
import time
import warnings
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.datasets import load_wine
from sklearn.decomposition import TruncatedSVD
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, StratifiedKFold, StratifiedShuffleSplit, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from benchmarks.timing import RESULTS, machine, write
from probtx_pyro.apps import MemoryClassifier
from probtx_pyro.data import load_digits, load_labelled

PEERS = RESULTS / "memory_classifier_peers.json"
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class MixturePerClass(ClassifierMixin, BaseEstimator):
    """scikit-learn's `GaussianMixture`, one a class, and Bayes' rule."""

    def __init__(self, n_components: int = 1) -> None:
        self.n_components = n_components

    def fit(self, X: np.ndarray, y: np.ndarray) -> "MixturePerClass":
        """Fit each class by itself."""
        self.classes_, counts = np.unique(y, return_counts=True)
        self.log_shares_ = np.log(counts / counts.sum())
        self.mixtures_ = [
            GaussianMixture(min(self.n_components, (y == c).sum()), covariance_type="diag", reg_covar=1e-3, random_state=0).fit(X[y == c])
            for c in self.classes_
        ]  # fmt: skip
        return self

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Return (N, C)."""
        joint = np.stack([mixture.score_samples(X) for mixture in self.mixtures_], 1) + self.log_shares_
        joint = np.exp(joint - joint.max(1, keepdims=True))
        return joint / joint.sum(1, keepdims=True)

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return (N,)."""
        return self.classes_[self.predict_proba(X).argmax(1)]


CANDIDATES: dict[str, tuple[BaseEstimator, dict[str, list[Any]]]] = {
    "MemoryClassifier": (
        MemoryClassifier(random_state=0),
        {"units_per_class": [1, "all"], "metric": ["full", "scalar"]},
    ),
    "LogisticRegression": (LogisticRegression(max_iter=1000), {"C": [1.0, 10.0, 100.0]}),
    "KNeighborsClassifier": (KNeighborsClassifier(weights="distance"), {"n_neighbors": [5, 15, 45]}),
    "QuadraticDiscriminantAnalysis": (QuadraticDiscriminantAnalysis(), {"reg_param": [0.1, 0.5, 0.9]}),
    "GaussianMixture a class": (MixturePerClass(), {"n_components": [1, 3]}),
}
OF_MANY = {
    "MemoryClassifier": {"units_per_class": [1, 3, 6, 12], "metric": ["full"]},
    "QuadraticDiscriminantAnalysis": {"solver": ["eigen"], "shrinkage": [0.1, 0.5, 0.9]},
}


def digits(seed: int) -> Split:
    found = load_digits()
    return _split(found.images.reshape(-1, 64), found.labels, seed)


def wine(seed: int) -> Split:
    x, new, y, truth = _split(*load_wine(return_X_y=True), seed)
    scaler = StandardScaler().fit(x)
    return scaler.transform(x), scaler.transform(new), y, truth


def banking(seed: int) -> Split:
    parts = load_labelled("banking77")
    train, test = [*parts.train, *parts.dev], parts.test
    words = TfidfVectorizer(sublinear_tf=True)
    vectors = TruncatedSVD(64, random_state=seed)
    x = vectors.fit_transform(words.fit_transform(item.text for item in train))
    new = vectors.transform(words.transform(item.text for item in test))
    return x, new, *(np.array([item.label for item in part]) for part in (train, test))


def _split(x: np.ndarray, y: np.ndarray, seed: int) -> Split:
    return tuple(train_test_split(x, y, test_size=1 / 3, stratify=y, random_state=seed))  # type: ignore[return-value]


def scores(probabilities: np.ndarray, columns: np.ndarray) -> dict[str, float]:
    """Accuracy, negative log likelihood and calibration error, of labels as numbers of columns."""
    top, right = probabilities.max(1), probabilities.argmax(1) == columns
    bins = np.minimum((top * 15).astype(int), 14)
    error = sum(abs(right[bins == b].mean() - top[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins))
    own = probabilities[np.arange(len(columns)), columns].clip(1e-12)
    return {"accuracy": float(right.mean()), "nll": float(-np.log(own).mean()), "ece": float(error)}


def peers(seeds: int, chosen: list[str]) -> list[dict[str, Any]]:
    kept = json.loads(PEERS.read_text())["rows"] if PEERS.exists() else []
    rows: list[dict[str, Any]] = [row for row in kept if row["data"] not in chosen]
    for name, load in (("wine", wine), ("digits", digits), ("banking77", banking)):
        if name not in chosen:
            continue
        large = name == "banking77"
        for seed in range(1 if large else seeds):
            x, new, y, truth = load(seed)
            folds: Any = StratifiedShuffleSplit(1, test_size=1 / 3, random_state=seed) if large else StratifiedKFold(3, shuffle=True, random_state=seed)  # fmt: skip
            for who, (estimator, grid) in CANDIDATES.items():
                grid = OF_MANY.get(who, grid) if large else grid
                search = GridSearchCV(estimator, grid, scoring="neg_log_loss", cv=folds, refit=False).fit(x, y)
                begun = time.process_time()
                fitted = clone(estimator).set_params(**search.best_params_).fit(x, y)
                between = time.process_time()
                probabilities = fitted.predict_proba(new)
                seconds = {"fit seconds": between - begun, "predict seconds": time.process_time() - between}
                found = scores(probabilities, np.searchsorted(fitted.classes_, truth))
                rows.append(
                    {
                        "data": name,
                        "seed": seed,
                        "classifier": who,
                        **found,
                        **seconds,
                        "chosen": str(search.best_params_),
                    }
                )
                print(rows[-1], flush=True)
        write("memory_classifier_peers", rows)
    return rows


def taught(digits: Any, seed: int) -> tuple[np.random.Generator, np.ndarray, MemoryClassifier]:
    """Random numbers, the digits that were not learned from, and a classifier of a thousand others."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(digits.labels))
    learned, rest = order[:1000], order[1000:]
    x, y = digits.images[learned].reshape(-1, 64), digits.labels[learned]
    return rng, rest, MemoryClassifier(1, metric="full", random_state=seed).fit(x, y)


def prevalence(seeds: int) -> list[dict[str, Any]]:
    found = load_digits()
    rows = []
    for seed in range(seeds):
        rng, rest, classifier = taught(found, seed)
        for concentration in (0.1, 1.0):
            for draw in range(20):
                shares = rng.dirichlet(np.full(10, concentration))
                classes = rng.choice(10, 200, p=shares)
                batch = np.array([rng.choice(rest[found.labels[rest] == c]) for c in classes])
                x, truth = found.images[batch].reshape(-1, 64), found.labels[batch]
                said = classifier.prevalence(x, 0.9, concentration=1.0, random_state=draw)
                own = classifier.prevalence(x, 0.9, concentration=concentration, random_state=draw)
                moved = classifier.adapt(x, "prevalence", anchor=1.0)
                mode = moved.memory_.log_weights().exp()[0].numpy()
                before, after = classifier.predict(x), moved.predict(x)
                errors = {
                    "posterior mean": said.estimate, "mean, prior as drawn": own.estimate, "mode": mode, "counting": np.bincount(before, minlength=10) / 200,
                }  # fmt: skip
                rows.append({
                    "seed": seed, "concentration": concentration,
                    "covered": float(((said.low <= shares) & (shares <= said.high)).mean()),
                    "covered, prior as drawn": float(((own.low <= shares) & (shares <= own.high)).mean()),
                    "width": float((said.high - said.low).mean()),
                    **{name: float(np.abs(x - shares).mean()) for name, x in errors.items()},
                    "accuracy before": float((before == truth).mean()), "accuracy after": float((after == truth).mean()),
                })  # fmt: skip
    for concentration in (0.1, 1.0):
        own = [row for row in rows if row["concentration"] == concentration]
        print(
            concentration, {name: round(float(np.mean([row[name] for row in own])), 4) for name in own[0]}, flush=True
        )
    return rows


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("peers", "prevalence", "all"), default="all")
    parser.add_argument(
        "--data", nargs="+", default=["wine", "digits", "banking77"], help="of the peers; other rows stay"
    )
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore")  # of peers that have not converged
    if args.part in ("prevalence", "all"):
        print(write("memory_classifier_prevalence", prevalence(args.seeds)), machine())
    if args.part in ("peers", "all"):
        if not os.environ.get("PROBTX_DATA"):
            raise SystemExit("set PROBTX_DATA to the folder that holds banking77/")
        peers(args.seeds, args.data)
        print(machine())


if __name__ == "__main__":
    main()
