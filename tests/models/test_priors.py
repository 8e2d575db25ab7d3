"""Which priors fit which parameter, in which precision, and that what fits is saved, copied and converted."""

import copy
import math
import pickle
from dataclasses import dataclass

import pyro.distributions as dist
import pytest
import torch
from formulations import ROWS
from pyro.distributions import constraints
from strategies import generator
from torch.distributions.transforms import AffineTransform, ExpTransform, SigmoidTransform

from probtx_pyro import inference, models
from probtx_pyro.models.priors import in_dtype

SINGLE, DOUBLE = torch.float32, torch.float64


@dataclass(frozen=True, eq=False)
class Holder(models.Formulation):
    """A formulation of one parameter, x, on whatever set; its table is made by `holder`."""

    x: torch.Tensor

    def log_evidence(self, *data):
        """It is never asked."""


def holder(support, x):
    """A formulation whose x lies in a support."""
    row = models.Parameter("unit feature" if x.dim() == 2 else "unit feature other", support)
    return type("Holder", (Holder,), {"PARAMETERS": {"x": row}, "DATA": {"queries": models.Datum("query")}})(x)


UNIT = torch.full((3, 2), 0.5, dtype=DOUBLE)
PAIR = torch.eye(2, dtype=DOUBLE).expand(3, 2, 2)
SUPPORTS = {
    "real": (constraints.real, UNIT),
    "positive": (constraints.positive, UNIT),
    "unit": (constraints.unit_interval, UNIT),
    "interval": (constraints.interval(-1.0, 2.0), UNIT),
    "interval of tensors": (constraints.interval(torch.tensor([-1.0, 0.0]), torch.tensor([1.0, 2.0])), UNIT),
    "above one": (constraints.greater_than(1.0), 1 + UNIT),
    "below one": (constraints.less_than(1.0), UNIT),
    "simplex": (constraints.simplex, UNIT),
    "matrix": (constraints.positive_definite, PAIR),
    "correlations": (constraints.corr_cholesky, PAIR),
}
MATRIX = torch.eye(2, dtype=SINGLE)


def made():
    """Priors by name, each with the sets of the table that it lies in."""
    two = dist.Categorical(torch.ones(2))
    return {
        "Normal": (dist.Normal(0.0, 1.0), {"real"}),
        "MultivariateNormal": (dist.MultivariateNormal(torch.zeros(2), MATRIX), {"real"}),
        "Gamma": (dist.Gamma(2.0, 2.0), {"real", "positive"}),
        "Gamma of each": (dist.Gamma(2.0, 2.0).expand([3, 2]).to_event(2), {"real", "positive"}),
        "Pareto from 1": (dist.Pareto(1.0, 2.0), {"real", "positive", "above one"}),
        "Pareto from less": (dist.Pareto(torch.tensor([1.0, 0.5]), 2.0), {"real", "positive"}),
        "Beta": (dist.Beta(2.0, 2.0), {"real", "positive", "unit", "interval", "interval of tensors", "below one"}),
        "Uniform to 2": (dist.Uniform(0.0, 2.0), {"real", "positive", "interval"}),
        "Uniform of bounds": (
            dist.Uniform(torch.tensor([-0.5, 0.0]), torch.tensor([0.5, 2.0])),
            {"real", "interval", "interval of tensors"},
        ),
        "Uniform of no bound": (
            dist.Uniform(torch.tensor(math.nan), torch.tensor(1.0), validate_args=False), set()
        ),
        "mixture of Beta": (
            dist.MixtureSameFamily(two, dist.Beta(torch.ones(2), 2.0)), {"real", "positive", "unit", "interval", "interval of tensors", "below one"},
        ),
        "sigmoid": (
            dist.TransformedDistribution(dist.Normal(0.0, 1.0), [SigmoidTransform()]),
            {"real", "positive", "unit", "interval", "interval of tensors", "below one"},
        ),
        "masked LogNormal": (dist.LogNormal(0.0, 1.0).mask(torch.tensor(True)), {"real", "positive"}),
        "Dirichlet": (dist.Dirichlet(torch.ones(2)), {"simplex"}),
        "LogisticNormal": (dist.LogisticNormal(torch.zeros(1), torch.ones(1)), {"simplex"}),
        "Wishart": (dist.Wishart(torch.tensor(4.0), MATRIX), {"matrix"}),
        "LKJCholesky": (dist.LKJCholesky(2, 1.0), {"correlations"}),
        "LKJ": (dist.LKJ(2, 1.0), set()),
        "Poisson": (dist.Poisson(1.0), set()),
        "Bernoulli": (dist.Bernoulli(0.5), set()),
        "Delta": (dist.Delta(torch.tensor(0.5)), set()),
        "mixture of Delta": (dist.MixtureSameFamily(two, dist.Delta(torch.tensor([0.2, 0.5]))), set()),
        "Empirical": (dist.Empirical(UNIT[0], UNIT[0]), set()),
        "ProjectedNormal": (dist.ProjectedNormal(torch.ones(2)), set()),
        "shifted Gamma": (dist.TransformedDistribution(dist.Gamma(2.0, 2.0), [AffineTransform(1.0, 1.0)]), set()),
        "without a support": (dist.GaussianScaleMixture(torch.ones(2), torch.zeros(2), torch.ones(2)), set()),
    }  # fmt: skip


@pytest.mark.parametrize("where", SUPPORTS)
@pytest.mark.parametrize("name", made())
def test_a_prior_is_taken_where_it_lies_whole_in_the_support_and_nowhere_else(name, where):
    prior, inside = made()[name]
    formulation = holder(*SUPPORTS[where])
    if where in inside:
        assert models.bayesian(formulation, x=prior).priors["x"] is prior
    else:
        with pytest.raises(
            ValueError, match=r"x has the wrong support; x needs|no density; to hold x fixed|wider than"
        ):
            models.bayesian(formulation, x=prior)


@pytest.mark.parametrize(
    ("where", "repair"),
    [
        ("real", "real vectors, such as Normal"),
        ("positive", "positive numbers, such as Gamma"),
        ("unit", "numbers between 0 and 1, such as Beta"),
        ("interval", r"numbers between -1 and 2, such as Uniform\(-1, 2\)"),
        ("above one", "numbers from 1"),
        ("simplex", "the simplex, such as Dirichlet"),
        ("matrix", "positive definite matrices, such as Wishart"),
        ("correlations", "Cholesky factors of correlation matrices, such as LKJCholesky"),
    ],
)
def test_the_refusal_names_a_family_that_fits(where, repair):
    with pytest.raises(ValueError, match=f"Poisson on x has the wrong support; x needs a distribution on {repair}"):
        models.bayesian(holder(*SUPPORTS[where]), x=dist.Poisson(1.0))


def test_a_bound_that_was_rounded_to_the_priors_precision_is_the_same_bound():
    formulation = holder(constraints.interval(0.3, 0.7), UNIT.double())
    low, high = torch.tensor([0.3, 0.7], dtype=SINGLE)  # 0.7 rounds down, 0.3 up: turned round both would be outside
    models.bayesian(formulation, x=dist.Uniform(low, high))
    models.bayesian(holder(constraints.interval(low, high), UNIT.double()), x=dist.Uniform(*torch.tensor([0.3, 0.7])))


@pytest.mark.parametrize("where", SUPPORTS)
def test_flat_is_refused_only_where_a_likelihood_is_unbounded(where):
    formulation = holder(*SUPPORTS[where])
    if where in ("positive", "matrix"):
        for flat in (models.FLAT, dist.ImproperUniform(formulation.row("x").support, (), ())):
            with pytest.raises(ValueError, match=r"the likelihood is unbounded in x, so give it (Gamma|Wishart)"):
                models.bayesian(formulation, x=flat)
    else:
        models.bayesian(formulation, x=models.FLAT)


def test_a_mask_that_leaves_a_scale_flat_is_refused():
    with pytest.raises(ValueError, match="the likelihood is unbounded in x"):
        models.bayesian(holder(*SUPPORTS["positive"]), x=dist.Gamma(2.0, 2.0).mask(torch.tensor([True, False])))


# -- precision ------------------------------------------------------------------------------------------------------------------


def wrapped(x):
    """Priors on keys (3, 2) in every wrapper, of numbers that are tensors like ``x``, by name."""
    row, one = torch.zeros(2).to(x), torch.ones(()).to(x)
    entries = torch.zeros(3, 2).to(x)
    two = dist.Categorical(torch.ones(2).to(x))
    whole = dist.MultivariateNormal(entries.flatten(), torch.eye(6).to(x))
    return {
        "entries": dist.Normal(entries, one),
        "event": dist.Normal(entries, one).to_event(2),
        "of torch": torch.distributions.Independent(torch.distributions.Normal(row, one), 1),
        "mixture": dist.MixtureSameFamily(two, dist.Normal(row, one)),
        "transformed": dist.TransformedDistribution(dist.Normal(row, one), [AffineTransform(row + 1, 2.0)]),
        "log of": dist.TransformedDistribution(dist.LogNormal(row, one), [ExpTransform().inv]),
        "masked": dist.Normal(row, one).mask(torch.ones(2, dtype=torch.bool)),
        "masked event": dist.Normal(entries, one).to_event(2).mask(torch.ones((), dtype=torch.bool)),
        "matrix": dist.MultivariateNormal(row, torch.eye(2).to(x)),
        "across units": dist.TransformedDistribution(whole, [torch.distributions.transforms.ReshapeTransform((6,), (3, 2))]),
        "StudentT": dist.StudentT(one * 4, row, one),
        "folded": dist.FoldedDistribution(dist.Normal(row, one)),
    }  # fmt: skip


def mixture(dtype):
    return models.GaussianMixture(torch.full((3, 2), 0.25, dtype=dtype)), torch.zeros(4, 2, dtype=dtype)


def laid(formulation, queries, prior):
    return models.bayesian(formulation, keys=prior).problem(queries).sites["keys"].distribution


@pytest.mark.parametrize("name", wrapped(torch.zeros(())))
def test_a_prior_is_widened_to_its_parameter_in_every_wrapper(name):
    single = wrapped(torch.zeros((), dtype=SINGLE))[name]
    double = wrapped(torch.zeros((), dtype=DOUBLE))[name]
    formulation, queries = mixture(DOUBLE)
    ours, theirs = (laid(formulation, queries, prior) for prior in (single, double))
    assert ours.sample().dtype == DOUBLE
    assert ours.log_prob(formulation.keys).dtype == DOUBLE
    assert torch.equal(ours.log_prob(formulation.keys), theirs.log_prob(formulation.keys))  # all its numbers are exact


@pytest.mark.parametrize("name", wrapped(torch.zeros(())))
def test_a_prior_is_not_narrowed_to_its_parameter_in_any_wrapper(name):
    prior = wrapped(torch.zeros((), dtype=DOUBLE))[name]
    with pytest.raises(
        ValueError, match=r"of the prior on keys is torch.float64 but keys is torch.float32, which would"
    ):
        laid(*mixture(SINGLE), prior)


@pytest.mark.pairs
@pytest.mark.parametrize("default", [SINGLE, DOUBLE])
@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
@pytest.mark.parametrize(
    "make",
    [
        lambda: dist.Normal(0.0, 1.0),
        lambda: dist.Normal(0.0, 1.0).expand([3, 2]).to_event(2),
        lambda: dist.Normal(torch.tensor(0), torch.tensor(1)),
        lambda: dist.Beta(2.0, 2.0).expand([3, 2]),
        lambda: dist.TransformedDistribution(dist.Normal(0.0, 1.0).expand([2]), [AffineTransform(1.0, 2.0)]),
        lambda: torch.distributions.Laplace(0.0, 1.0),
    ],
    ids=["numbers", "expanded", "whole numbers", "Beta", "transformed", "of torch"],
)
def test_single_numbers_take_the_dtype_of_the_parameter(make, dtype, default):
    torch.set_default_dtype(default)
    formulation, queries = mixture(dtype)
    ours = laid(formulation, queries, make())
    assert ours.sample().dtype == dtype and ours.log_prob(formulation.keys).dtype == dtype


# -- every family of Pyro --------------------------------------------------------------------------------------------------------

V, M, ONE = torch.ones(2, dtype=SINGLE), torch.eye(2, dtype=SINGLE), torch.ones((), dtype=SINGLE)
N = {"initial": dist.MultivariateNormal(V, M)}
ARGUMENTS = {  # of float32, of every continuous family that can be made; those not here need more than one parameter has
    "AVFMultivariateNormal": (V, M, torch.zeros(2, 1, 2)), "AffineBeta": (2 * ONE, 2 * ONE, 0.0, 3.0), "AsymmetricLaplace": (0.0, ONE, 1.0),
    "Beta": (2 * ONE, 2.0), "Cauchy": (0.0, ONE), "Chi2": (3 * ONE,), "ContinuousBernoulli": (0.3 * ONE,), "Delta": (ONE,),
    "Dirichlet": (torch.ones(3),), "Empirical": (V, V), "Exponential": (ONE,), "FisherSnedecor": (3 * ONE, 4.0),
    "FoldedDistribution": (dist.Normal(0.0, ONE),), "Gamma": (2 * ONE, 2.0), "GaussianHMM": (N["initial"], M, N["initial"], M, N["initial"], None, 3),
    "GaussianScaleMixture": (V, V, V), "GeneralizedPareto": (0.0, ONE, 0.1), "Gumbel": (0.0, ONE), "HalfCauchy": (ONE,),
    "HalfNormal": (ONE,), "InverseGamma": (3 * ONE, 2.0), "Kumaraswamy": (2 * ONE, 2.0), "LKJ": (2, ONE), "LKJCholesky": (2, ONE),
    "Laplace": (0.0, ONE), "LogNormal": (0.0, ONE), "Logistic": (0.0, ONE), "LogisticNormal": (V, V),
    "LowRankMultivariateNormal": (V, torch.ones(2, 1, dtype=SINGLE), V), "MixtureOfDiagNormals": (torch.zeros(2, 2, dtype=SINGLE), torch.ones(2, 2, dtype=SINGLE), V),
    "MixtureOfDiagNormalsSharedCovariance": (torch.zeros(2, 2, dtype=SINGLE), V, V), "MultivariateNormal": (V, M),
    "MultivariateStudentT": (4 * ONE, V, M), "NanMaskedMultivariateNormal": (V, M), "NanMaskedNormal": (0.0, ONE), "Normal": (0.0, ONE),
    "OMTMultivariateNormal": (V, M), "Pareto": (ONE, 2.0), "ProjectedNormal": (V,), "RelaxedBernoulli": (ONE, 0.3 * ONE),
    "RelaxedBernoulliStraightThrough": (ONE, 0.3 * ONE), "RelaxedOneHotCategorical": (ONE, torch.ones(3)),
    "RelaxedOneHotCategoricalStraightThrough": (ONE, torch.ones(3)), "SkewLogistic": (0.0, ONE, 1.0), "SoftAsymmetricLaplace": (0.0, ONE, 1.0, 1.0),
    "SoftLaplace": (0.0, ONE), "Stable": (1.5 * ONE, 0.0, 1.0, 0.0), "StableWithLogProb": (1.5 * ONE, 0.0, 1.0, 0.0), "StudentT": (3 * ONE, 0.0, 1.0),
    "TruncatedPolyaGamma": (ONE,), "Uniform": (0.1 * ONE, 0.9), "Unit": (ONE,), "VonMises": (0.0, ONE), "VonMises3D": (torch.ones(3),),
    "Weibull": (ONE, 2.0), "Wishart": (4 * ONE, M), "GroupedNormalNormal": (V, V, torch.ones(3), torch.tensor([0, 1, 1])),
}  # fmt: skip
TARGET = models.GaussianMixture(
    torch.full((3, 2), 0.25, dtype=DOUBLE), log_prior=torch.zeros(1, 3, dtype=DOUBLE).log_softmax(-1), metric=torch.eye(2, dtype=DOUBLE)
)  # fmt: skip
REFUSED = {  # by the whole of the parameters above: no density, no support that a parameter has, or none that can be laid out
    "AVFMultivariateNormal", "Delta", "Empirical", "GaussianScaleMixture", "GeneralizedPareto", "GroupedNormalNormal", "LKJ",
    "LKJCholesky", "OMTMultivariateNormal", "ProjectedNormal", "SoftAsymmetricLaplace", "VonMises3D",
}  # fmt: skip


@pytest.mark.parametrize("family", ARGUMENTS)
def test_a_family_is_refused_at_the_door_or_pickled_copied_converted_and_drawn(family):
    torch.set_default_dtype(SINGLE)  # as users have it, with parameters in float64
    prior, taken, queries = getattr(dist, family)(*ARGUMENTS[family]), [], torch.zeros(4, 2, dtype=DOUBLE)
    for name in ("keys", "key_precision", "weights", "metric"):
        try:
            posterior = models.bayesian(TARGET, **{name: prior})
        except ValueError as error:
            assert str(error).startswith("priors: ") and name in str(error)
            continue
        taken.append(name)
        if family == "Unit":  # of numbers of no axis: refused by its shape
            continue
        site = posterior.problem(queries).sites[name].distribution
        value = torch.distributions.biject_to(site.support)(
            torch.zeros(torch.distributions.biject_to(site.support).inverse_shape(site.batch_shape + site.event_shape), dtype=DOUBLE)
        )  # fmt: skip
        assert site.log_prob(value).dtype == DOUBLE and torch.isfinite(site.log_prob(value)).all()
        if family != "TruncatedPolyaGamma":  # draws in the default dtype, whatever it is given
            assert site.sample().dtype == DOUBLE
        converted = models.bayesian(TARGET, **{name: in_dtype(prior, DOUBLE)})
        for kept in (pickle.loads(pickle.dumps(posterior)), copy.deepcopy(posterior), converted):
            other = kept.problem(queries).sites[name].distribution
            assert type(other) is type(site) and torch.equal(other.log_prob(value), site.log_prob(value))
    assert bool(taken) == (family not in REFUSED)


def test_every_continuous_family_of_pyro_is_in_the_table():
    helpers = {"ExponentialFamily", "TorchDistribution", "Rejector"}
    wrappers = {"ExpandedDistribution", "Independent", "MaskedDistribution", "MaskedMixture", "MixtureSameFamily", "TransformedDistribution", "ZeroInflatedDistribution", "ImproperUniform"}  # fmt: skip
    several = {"GammaGaussianHMM", "GaussianMRF", "IndependentHMM", "LinearHMM", "DiscreteHMM", "CoalescentTimes", "CoalescentTimesWithRate", "OneOneMatching", "OneTwoMatching", "SpanningTree", "SineBivariateVonMises", "SineSkewed", "LKJCorrCholesky", "OrderedLogistic"}  # fmt: skip
    counts = {"Bernoulli", "BetaBinomial", "Binomial", "Categorical", "DirichletMultinomial", "ExtendedBetaBinomial", "ExtendedBinomial", "GammaPoisson", "Geometric", "LogNormalNegativeBinomial", "Multinomial", "NegativeBinomial", "OneHotCategorical", "OneHotCategoricalStraightThrough", "Poisson", "ZeroInflatedNegativeBinomial", "ZeroInflatedPoisson"}  # fmt: skip
    families = {
        name
        for name, kind in vars(dist).items()
        if isinstance(kind, type) and issubclass(kind, dist.torch_distribution.TorchDistributionMixin)
    }
    assert families - helpers - wrappers - several - counts == set(ARGUMENTS)


# -- change of precision of a formulation ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
def test_a_formulation_whose_precision_changes_is_valid(name):
    formulation, *_ = ROWS[name].draw(generator(3))
    single = formulation.to(SINGLE)
    for changed, dtype in ((single, SINGLE), (single.to(DOUBLE), DOUBLE)):
        again = changed.replace()  # which validates
        for parameter in formulation.PARAMETERS:
            x = again.parameter(parameter)
            if x is not None and again.row(parameter).support is constraints.simplex:
                # the sum of U rounded numbers, each of them an exponential of a rounded logarithm
                assert ((x.sum(-1) - 1).abs() <= 2 * x.shape[-1] * torch.finfo(dtype).eps).all()
    for field, x in vars(single).items():  # nothing moves where nothing changes
        assert not isinstance(x, torch.Tensor) or torch.equal(x, vars(single.to(SINGLE))[field])


def test_half_precision_keeps_densities_in_float32_and_answers_in_their_own():
    formulation = models.GaussianMixture(torch.zeros(3, 2), torch.ones(3, 1)).to(torch.bfloat16)
    queries = torch.zeros(4, 2, dtype=torch.bfloat16)
    assert formulation.log_evidence(queries).dtype == formulation.attention(queries).dtype == SINGLE
    assert formulation.expected_outputs(queries).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_prior_wider_than_half_precision_is_refused_there_too(dtype):
    formulation, queries = mixture(dtype)
    prior = dist.Normal(torch.zeros(3, 2, dtype=SINGLE), 1.0)
    with pytest.raises(ValueError, match=r"loc of the prior on keys is torch\.float32 but keys is"):
        inference.adapt(models.bayesian(formulation, keys=prior), queries)
