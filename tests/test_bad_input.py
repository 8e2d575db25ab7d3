"""Bad input to the library: one ValueError each, that names the argument and says what to do. (Commands: tests/cli.)"""

import math

import pyro
import pytest
import torch
from pyro.distributions import Dirichlet, Gamma, LogNormal, MultivariateNormal, Normal

from probtx_pyro import inference, models
from probtx_pyro.models import printed

K, V, Q = (
    torch.randn(n, d, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    for n, d in ((4, 3), (4, 2), (5, 3))
)
A = torch.zeros(5, 2, dtype=torch.float64)
HALF = torch.full((4, 2), 0.5, dtype=torch.float64)
UNIFORM = torch.full((1, 4), -math.log(4.0), dtype=torch.float64)
NAN = K.clone()
NAN[0, 0] = math.nan


def mixture(**changes):
    return models.GaussianMixture(**{"keys": K, "values": V, "value_precision": 1.0, **changes})


K2 = torch.randn(4, 2, 3, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
PAIR = torch.full((4, 2), 0.5, dtype=torch.float64)


def keys(**changes):
    return models.GaussianKeys(**{"keys": K2, "values": V, **changes})


def adapt_keys(priors, **options):
    return inference.adapt(models.bayesian(keys(), **priors), Q, **options)


def labels():
    return models.GaussianMixture.categorical(K, HALF)


def adapt(priors=None, **options):
    return inference.adapt(
        models.bayesian(mixture(), **(dict(keys=Normal(K, 1.0)) if priors is None else priors)), Q, **options
    )


S = torch.zeros(3, 2, dtype=torch.float64)
T = torch.zeros(2, 2, 2, 2, dtype=torch.float64)


def crf(**changes):
    return models.DependencyCRF(**{"unary": S, "ternary": T, **changes})


def zeros(*shape):
    return torch.zeros(shape, dtype=torch.float64)


CASES = {
    "keys are not a tensor": (lambda: models.GaussianMixture([[1.0]]), r"keys must be a torch.Tensor.*as_tensor"),
    "keys are integers": (lambda: models.GaussianMixture(torch.ones(2, 2, dtype=torch.long)), r"keys must be a floating point.*float"),
    "keys have one axis": (lambda: models.GaussianMixture(torch.ones(3)), r"keys must have shape.*add the missing axis"),
    "NaN in keys": (lambda: mixture(keys=NAN), r"keys contains NaN; remove"),
    "infinity in values": (lambda: mixture(values=V / 0), r"values contains"),
    "fewer values than keys": (lambda: mixture(values=V[:3]), r"keys have 4 units but values have 3"),
    "two kinds of answers": (lambda: models.GaussianMixture(K, V, answer_probs=HALF), r"values and answer_probs are both given; an answer is either"),
    "answer_probs off the simplex": (lambda: models.GaussianMixture.categorical(K, 2 * HALF), r"answer_probs must have.*divide"),
    "negative key precision": (lambda: mixture(key_precision=-1.0), r"key_precision must be > 0"),
    "zero key precision": (lambda: mixture(key_precision=torch.tensor([1.0, 0, 1, 1], dtype=torch.float64)), r"key_precision must be > 0"),
    "negative value precision": (lambda: mixture(value_precision=-1.0), r"value_precision must be >= 0"),
    "value precision partly zero": (lambda: mixture(value_precision=torch.tensor([1.0, 0, 1, 1], dtype=torch.float64)), r"value_precision mixes zero.*use 0 for all"),
    "precision of another length": (lambda: mixture(key_precision=torch.ones(3, dtype=torch.float64)), r"keys have 4 units but key_precision have 3"),
    "dtypes differ": (lambda: mixture(values=V.float()), r"differ in dtype: keys torch.float64, values torch.float32.*\.to\(dtype\)"),
    "batches do not broadcast": (lambda: mixture(keys=K.expand(2, 4, 3), values=V.expand(3, 4, 2)), r"do not broadcast: keys \(2,\), values \(3,\)"),
    "prior not normalised": (lambda: mixture(log_prior=UNIFORM + 1), r"log_prior is off the simplex.*log_softmax"),
    "prior with one axis": (lambda: mixture(log_prior=UNIFORM[0]), r"log_prior must have shape.*unsqueeze"),
    "prior over other units": (lambda: mixture(log_prior=torch.full((1, 3), -math.log(3.0), dtype=torch.float64)), r"log_prior have 3 units but keys have 4"),
    "prior that forbids everything": (lambda: mixture(log_prior=torch.full((1, 4), -math.inf, dtype=torch.float64)), r"log_prior forbids every unit.*allow at least one"),
    "prior with NaN": (lambda: mixture(log_prior=UNIFORM * math.nan), r"log_prior contains NaN.*-inf for a mask"),
    "linked with a mask that forbids everything": (lambda: models.GaussianMixture.linked(K, V, 1.0, log_prior=torch.full((1, 4), -math.inf, dtype=torch.float64)), r"log_prior forbids every unit"),
    "linked with unequal precisions": (lambda: models.GaussianMixture.linked(K, V, torch.arange(1.0, 5.0)), r"key_precision differs between units.*use one"),
    "queries of another width": (lambda: mixture().attention(Q[:, :2]), r"queries have 2 features but keys have 3"),
    "queries with one axis": (lambda: mixture().attention(Q[0]), r"queries must have shape"),
    "queries of another dtype": (lambda: mixture().attention(Q.float()), r"queries torch.float32, keys torch.float64"),
    "infinity in queries": (lambda: mixture().expected_outputs(Q / 0), r"queries contains"),
    "prior rows for other queries": (lambda: mixture(log_prior=UNIFORM.expand(3, 4)).attention(Q), r"log_prior has rows for 3 queries but there are 5"),
    "outputs without a density": (lambda: mixture(value_precision=0.0).log_evidence(Q, A), r"outputs are given, but.*give value_precision > 0"),
    "outputs of another width": (lambda: mixture().log_evidence(Q, A[:, :1]), r"outputs have 1 answer coordinates but values have 2"),
    "outputs of another length": (lambda: mixture().log_evidence(Q, A[:3]), r"outputs have 3 rows but queries have 5"),
    "NaN in observed outputs": (lambda: mixture().attention(Q, A * math.nan), r"outputs contains NaN"),
    "observed is not boolean": (lambda: mixture().attention(Q, A, torch.ones(5)), r"observed must be a boolean tensor"),
    "observed without outputs": (lambda: mixture().attention(Q, None, torch.ones(5, dtype=torch.bool)), r"observed is given without outputs"),
    "labels outside the classes": (lambda: labels().log_evidence(Q, torch.full((5,), 2)), r"label outside 0..1; mark it unobserved"),
    "labels that are not integers": (lambda: labels().log_evidence(Q, torch.zeros(5)), r"integer labels.*\.long\(\)"),
    "no answers": (lambda: mixture(values=None, value_precision=0.0).expected_outputs(Q), r"values is None.*build it with values="),
    "MAP of labels": (lambda: labels().map_outputs(Q), r"map_outputs needs real answers.*argmax"),
    "start of another shape": (lambda: mixture().map_outputs(Q, init=A[:, :1]), r"init has shape \(5, 1\) but the answers end in \(5, 2\)"),
    "negative number of steps": (lambda: mixture().map_outputs(Q, num_steps=-1), r"num_steps must be 0 or more"),
    "modes without a density": (lambda: mixture(value_precision=0.0).output_modes(Q), r"output_modes needs values with value_precision > 0"),
    "covariance without a density": (lambda: mixture(value_precision=0.0).output_covariance(Q), r"output_covariance is infinite.*give value_precision > 0"),
    "distribution without a density": (lambda: mixture(value_precision=0.0).output_distribution(Q), r"output_distribution needs answers with a density"),
    "guide of another shape": (lambda: mixture().guide(Q, attention=torch.ones(5, 3)), r"attention has shape \(5, 3\) but must end in \(5, 4\)"),
    "guide off the simplex": (lambda: mixture().guide(Q, attention=torch.ones(5, 4)), r"attention must have.*sum to 1"),
    "no priors": (lambda: adapt(dict()), r"priors are empty.*models.FLAT"),
    "prior on a missing parameter": (lambda: inference.adapt(models.bayesian(mixture(values=None, value_precision=0.0), values=Normal(0.0, 1.0)), Q), r"prior on values, but the GaussianMixture has no values; give it values"),
    "prior on a zero value precision": (lambda: inference.adapt(models.bayesian(mixture(value_precision=0.0), value_precision=Gamma(2.0, 1.0)), Q), r"nothing informs value_precision.*give value_precision > 0"),
    "prior with the wrong support": (lambda: adapt(dict(key_precision=Normal(1.0, 1.0))), r"Normal on key_precision has the wrong support.*Gamma"),
    "positive prior on weights": (lambda: adapt(dict(weights=LogNormal(0.0, 1.0))), r"LogNormal on weights has the wrong support.*Dirichlet"),
    "prior over too many axes": (lambda: adapt(dict(key_precision=MultivariateNormal(torch.zeros(2), torch.eye(2)))), r"wrong support"),
    "Gamma without a mode": (lambda: adapt(dict(key_precision=Gamma(0.5, 1.0))), r"prior on key_precision has a concentration below 1.*no mode.*inference.nuts"),
    "Dirichlet without a mode": (lambda: adapt(dict(weights=Dirichlet(torch.full((1, 4), 0.5, dtype=torch.float64)))), r"prior on weights has a concentration below 1"),
    "prior of another dtype": (lambda: inference.adapt(models.bayesian(mixture().to(torch.float32), keys=Normal(K, 1.0)), Q.float()), r"loc of the prior on keys is torch\.float64 but keys is torch\.float32, which would lose digits"),
    "prior of another shape": (lambda: adapt(dict(keys=Normal(K[:3], 1.0))), r"do not broadcast: keys \(4, 3\), prior on keys \(3, 3\)"),
    "weights for other queries": (lambda: adapt(dict(weights=Dirichlet(torch.ones(3, 4, dtype=torch.float64)))), r"concentration rows for 3 of 5 queries"),
    "shared weights under masks that differ": (lambda: inference.adapt(models.bayesian(mixture(log_prior=UNIFORM.expand(5, 4)), weights=Dirichlet(torch.ones(1, 4, dtype=torch.float64))), Q), r"weights are shared.*shape \(\.\.\., Q, U\)"),
    "flat precision": (lambda: adapt(dict(key_precision=models.FLAT)), r"likelihood is unbounded in key_precision.*Gamma"),
    "flat on an unknown name": (lambda: adapt(dict(kees=models.FLAT)), r"a GaussianMixture has no parameter 'kees'; did you mean 'keys'"),
    "tolerance of zero": (lambda: adapt(tol=0.0), r"tol positive"),
    "query weights negative": (lambda: adapt(query_weights=-torch.ones(5, dtype=torch.float64)), r"query_weights must be non-negative"),
    "query weights of another length": (lambda: adapt(query_weights=torch.ones(4, dtype=torch.float64)), r"query_weights must be.*\(\.\.\., 5\)"),
    "Gaussian keys of no component": (lambda: models.GaussianKeys(K2[:, :0]), r"keys has no components; give at least one"),
    "Gaussian keys without components": (lambda: models.GaussianKeys(K), r"keys must have shape \(\.\.\., U, R, D\) but has shape \(4, 3\)"),
    "Gaussian keys with fewer values": (lambda: keys(values=V[:3]), r"keys have 4 units but values have 3"),
    "Gaussian keys with NaN": (lambda: keys(keys=K2 * math.nan), r"keys contains NaN; remove"),
    "Gaussian keys of two dtypes": (lambda: keys(component_weights=PAIR.float()), r"differ in dtype: keys torch.float64.*component_weights torch.float32"),
    "precision of units alone": (lambda: keys(key_precision=torch.ones(4, dtype=torch.float64)), r"key_precision has shape \(4,\) but there are \(4, 2\) units and components; give \(\.\.\., U, R\)"),
    "precision of other components": (lambda: keys(key_precision=torch.ones(4, 3, dtype=torch.float64)), r"key_precision has shape \(4, 3\)"),
    "negative precision of a component": (lambda: keys(key_precision=-PAIR), r"key_precision must be > 0"),
    "component weights off the simplex": (lambda: keys(component_weights=2 * PAIR), r"component_weights must have.*sum to 1"),
    "component weights of other components": (lambda: keys(component_weights=torch.full((4, 1), 1.0, dtype=torch.float64)), r"keys have 2 components but component_weights have 1"),
    "component weights of other units": (lambda: keys(component_weights=PAIR[:3]), r"component_weights has shape \(3, 2\).*\(\.\.\., 1, R\)"),
    "prior over components": (lambda: keys(log_prior=torch.full((1, 8), -math.log(8.0), dtype=torch.float64)), r"log_prior have 8 units but keys have 4"),
    "queries of another width to Gaussian keys": (lambda: keys().attention(Q[:, :2]), r"queries have 2 features but keys have 3"),
    "unknown assignment": (lambda: keys().attention(Q, assignment="max"), r"assignment must be one of soft, hard, or a callable.*not 'max'"),
    "Gaussian keys without values": (lambda: keys(values=None).expected_outputs(Q, "hard"), r"values is None.*build it with values="),
    "linked Gaussian keys with unequal precisions": (lambda: models.GaussianKeys.linked(K2, V, torch.rand(4, 2, dtype=torch.float64) + 1), r"key_precision differs between units or components.*use one"),
    "shifts of another width": (lambda: models.GaussianKeys.shifted(K, torch.zeros(2, 2, dtype=torch.float64)), r"keys have 3 features but shifts have 2"),
    "shifts of other units": (lambda: models.GaussianKeys.shifted(K, torch.zeros(3, 2, 3, dtype=torch.float64)), r"shifts have 3 units but keys have 4"),
    "guide of Gaussian keys of another shape": (lambda: keys().guide(Q, attention=torch.ones(5, 8)), r"attention has shape \(5, 8\) but must end in \(5, 4\)"),
    "answers to Gaussian keys": (lambda: adapt_keys(dict(keys=Normal(K2, 1.0)), outputs=A), r"answers of this mixture have no density; give value_precision > 0"),
    "prior on values of Gaussian keys": (lambda: adapt_keys(dict(values=Normal(V, 1.0))), r"nothing informs values.*give value_precision > 0"),
    "printed attention under a metric": (lambda: printed.printed_attention(keys(metric=torch.ones(3, dtype=torch.float64)), Q), r"model has a metric or a shift, .*ask the model itself"),
    "prior on component weights of a mixture": (lambda: adapt(dict(component_weights=Dirichlet(PAIR + 1))), r"a GaussianMixture has no parameter 'component_weights'; choose from keys, "),
    "the same, causal": (lambda: adapt(dict(component_weights=Dirichlet(PAIR + 1)), causal=True), r"a GaussianMixture has no parameter 'component_weights'"),
    "component weights without a mode": (lambda: adapt_keys(dict(component_weights=Dirichlet(PAIR))), r"prior on component_weights has a concentration below 1"),
    "component weights of other components in the prior": (lambda: adapt_keys(dict(component_weights=Dirichlet(torch.ones(3, dtype=torch.float64)))), r"do not broadcast: component_weights \(4, 2\), prior on component_weights \(3,\)"),
    "unary scores that are a list": (lambda: crf(unary=[[0.0]]), r"unary must be a torch.Tensor, not list; wrap it"),
    "unary scores with one axis": (lambda: crf(unary=S[0]), r"unary must have shape \(\.\.\., N, L\) but has shape \(2,\); add the missing axis"),
    "an empty sentence": (lambda: crf(unary=S[:0]), r"unary \(0, 2\) has no sentences, an empty one, or no labels; leave it out"),
    "no sentences": (lambda: crf(unary=S.expand(0, *S.shape)), r"unary \(0, 3, 2\) has no sentences, an empty one, or no labels"),
    "NaN in a word": (lambda: crf(unary=S * math.nan, mask=torch.tensor([True, False, True])), r"unary contains NaN; remove or mask"),
    "integer potentials of arcs": (lambda: crf(ternary=T.long()), r"ternary must be a floating point tensor, not torch.int64"),
    "potentials of arcs for other labels": (lambda: crf(ternary=zeros(2, 2, 3, 3)), r"ternary has shape \(2, 2, 3, 3\) but distances \(\) and unary \(3, 2\) need \(C, 2, 2, 2\)"),
    "potentials of arcs for other distances": (lambda: crf(distances=(2,)), r"ternary has shape \(2, 2, 2, 2\) but distances \(2,\) and unary \(3, 2\) need \(C, 4, 2, 2\): 2 \(len\(distances\) \+ 1\) groups"),
    "potentials of arcs without channels": (lambda: crf(ternary=T[:0]), r"ternary has shape \(0, 2, 2, 2\).*need \(C, 2, 2, 2\)"),
    "potentials of arcs of low rank for other labels": (lambda: crf(ternary=models.LowRank(zeros(2, 2, 3, 1), zeros(2, 2, 3, 1))), r"ternary has shape \(2, 2, 3, 3\) but"),
    "infinite potentials of arcs": (lambda: crf(ternary=T + math.inf), r"ternary contains infinity"),
    "NaN in a factor": (lambda: crf(ternary=models.LowRank(zeros(2, 2, 2, 1), zeros(2, 2, 2, 1) * math.nan)), r"ternary.right contains NaN"),
    "potentials of two dtypes": (lambda: crf(ternary=T.float()), r"differ in dtype: unary torch.float64, ternary torch.float32.*\.to\(dtype\)"),
    "factors that do not fit each other": (lambda: models.LowRank(zeros(2, 2, 2, 1), zeros(2, 2, 2, 3)), r"left \(2, 2, 2, 1\) and right \(2, 2, 2, 3\) must have one shape \(C, G, L, r\)"),
    "factors with an axis too many": (lambda: models.LowRank(zeros(1, 2, 2, 2, 1), zeros(1, 2, 2, 2, 1)), r"must have one shape \(C, G, L, r\)"),
    "shared factors that do not fit each other": (lambda: models.LowRank.shared(zeros(2, 2, 3), zeros(2, 2, 3), zeros(2, 5, 1)), r"left \(2, 2, 3\), right \(2, 2, 3\) and channels \(2, 5, 1\) must have shapes \(G, L, r\), \(G, L, r\) and \(G, C, r\)"),
    "mask of words that is not boolean": (lambda: crf(mask=torch.ones(3)), r"mask must be a boolean tensor \(3,\), True for a word, not torch"),
    "mask of words that is a list": (lambda: crf(mask=[True]), r"mask must be a boolean tensor \(3,\), True for a word, not list"),
    "mask of other words": (lambda: crf(mask=torch.ones(4, dtype=torch.bool)), r"mask must be a boolean tensor \(3,\).* not torch.bool \(4,\)"),
    "mask of more sentences": (lambda: crf(mask=torch.ones(5, 3, dtype=torch.bool)), r"mask \(5, 3\) has more batch axes than unary \(3, 2\); expand unary"),
    "mask of other sentences": (lambda: crf(unary=S.expand(2, 3, 2), mask=torch.ones(5, 3, dtype=torch.bool)), r"do not broadcast: unary \(2, 3\), mask \(5, 3\)"),
    "a sentence of padding": (lambda: crf(mask=torch.zeros(3, dtype=torch.bool)), r"mask leaves a sentence without words; leave empty sentences out"),
    "distances that fall": (lambda: crf(distances=(4, 2)), r"distances must be integers of 2 or more that rise, like \(2, 3, 4\), not \(4, 2\)"),
    "a distance of one": (lambda: crf(distances=(1,)), r"distances must be integers of 2 or more.* not \(1,\)"),
    "a distance that is no integer": (lambda: crf(distances=(2.5,)), r"distances must be integers of 2 or more.* not \(2\.5,\)"),
    "root of other labels": (lambda: crf(root_ternary=zeros(2, 3, 2)), r"root_ternary has shape \(2, 3, 2\) but must be \(2, 2, K\): channels, labels of words"),
    "root without labels": (lambda: crf(root_ternary=zeros(2, 2, 0)), r"root_ternary has shape \(2, 2, 0\) but must be \(2, 2, K\)"),
    "nodes of too many channels": (lambda: crf(memory=zeros(3, 1, 2)), r"memory has shape \(3, 1, 2\) but must be \(C', M, 2\), global nodes of the first C' of 2 channels"),
    "no nodes": (lambda: crf(memory=zeros(2, 0, 2)), r"memory has shape \(2, 0, 2\) but must be"),
    "nodes that are a list": (lambda: crf(memory=[1.0]), r"memory must be a torch.Tensor, not list"),
    "nodes apart without nodes": (lambda: crf(memory_split=True), r"memory_split is given without memory; give global nodes \(C', M, L\), or leave it out"),
    "no sweeps": (lambda: crf().mean_field(0), r"num_steps must be 1 or more and tol positive, not num_steps=0"),
    "tolerance of zero in mean field": (lambda: crf().mean_field(1, tol=0.0), r"tol positive, not num_steps=1, tol=0.0"),
    "an unknown schedule": (lambda: crf().mean_field(1, "random"), r"schedule must be one of asynchronous, synchronous, sequential or a callable, not 'random'"),
    "temperature of zero": (lambda: crf().mean_field(1, label_temperature=0.0), r"label_temperature must be positive, not 0.0"),
    "temperature that is NaN": (lambda: crf().mean_field(1, head_temperature=torch.tensor(math.nan)), r"head_temperature must be positive, not nan"),
    "step of zero": (lambda: crf().mean_field(1, head_step=0.0), r"head_step must be more than 0 and at most 1, not 0.0"),
    "known labels out of range": (lambda: crf().log_partition(torch.tensor([0, 2, 0])), r"labels must be from 0 to 1, but one that is observed is 2; mark unknown ones in observed"),
    "known labels that are not whole": (lambda: crf().log_partition(torch.zeros(3)), r"labels must be a tensor of integers \(3,\), not torch.float64; convert it with \.long\(\)"),
    "known labels of other words": (lambda: crf().mean_field(1, labels=torch.zeros(2, dtype=torch.long)), r"labels has shape \(2,\) but needs \(3,\); give one for each"),
    "observed words of another shape": (lambda: crf().marginals(torch.tensor([0, 1, 0]), observed=torch.ones(4) > 0), r"observed has shape \(4,\) but needs \(3,\)"),
    "observed words that are numbers": (lambda: crf().marginals(torch.tensor([0, 1, 0]), observed=torch.ones(3)), r"observed must be a boolean tensor \(3,\), True where the label is known, not torch.float64"),
    "observed words without labels": (lambda: crf().marginals(observed=torch.ones(3) > 0), r"observed is given without labels.*; give labels, or leave it out"),
    "a known head that is padding": (lambda: crf(mask=torch.tensor([True, True, False])).log_partition(heads=torch.tensor([[2, 0, -1], [1, 0, -1]])), r"heads gives word 0 of sentence 0 slot 2 in channel 0, but it may take the slots 1: no padding, nor the word itself; -1 says"),
    "a known head that is the word itself": (lambda: crf().model(heads=torch.tensor([[-1, -1, 2], [-1, -1, -1]])), r"heads gives word 2 of sentence 0 slot 2 in channel 0, but it may take the slots 0, 1"),
    "a known head of a word without any": (lambda: models.DependencyCRF(S[:1], T).log_partition(heads=torch.tensor([[-1], [0]])), r"heads gives word 0 of sentence 0 slot 0 in channel 1, but it has no head to choose"),
    "a known head below -1": (lambda: crf().log_partition(heads=torch.tensor([[-2, -1, -1], [-1, -1, -1]])), r"heads gives word 0 of sentence 0 slot -2 in channel 0"),
    "a known head that is no slot": (lambda: crf().marginals(heads=torch.tensor([[-1, 3, -1], [-1, -1, -1]])), r"heads gives word 1 of sentence 0 slot 3 in channel 0, but it may take the slots 0, 2"),
    "known heads that are booleans": (lambda: crf().log_partition(heads=torch.ones(2, 3) > 0), r"heads must be a tensor of integers \(2, 3\), not torch.bool; convert it with .long\(\)"),
    "known labels that are a list": (lambda: crf().log_partition([0, 1, 0]), r"labels must be a tensor of integers \(3,\), not list; wrap it by torch.as_tensor\(labels\)"),
    "observed words of more sentences": (lambda: crf().mean_field(1, labels=torch.tensor([0, 1, 0]), observed=torch.ones(5, 3) > 0), r"observed has shape \(5, 3\) but needs \(3,\)"),
    "a label below 0 that is observed": (lambda: crf().enumerated(torch.tensor([0, -1, 0])), r"labels must be from 0 to 1, but one that is observed is -1; mark"),
    "a label of a density out of range": (lambda: crf().log_joint(torch.tensor([0, 2, 0])), r"labels must be from 0 to 1, or -1, but one is 2"),
    "labels of a density of other words": (lambda: crf().log_joint(torch.tensor([0, 1])), r"labels has shape \(2,\) but must have \(3,\)"),
    "labels of a density that are not whole": (lambda: crf().log_joint(torch.zeros(3)), r"labels must be a tensor of integers \(3,\), not torch.float64"),
    "heads of a density without channels": (lambda: crf().log_joint(torch.tensor([0, 1, 0]), torch.tensor([1, 0, 0])), r"heads has shape \(3,\) but must have \(2, 3\); give one a choice"),
    "heads of a density that are no slots": (lambda: crf().log_joint(torch.tensor([0, 1, 0]), torch.full((2, 3), 7)), r"heads must be from 0 to 2, or -1, but one is 7"),
    "heads of a density for other draws": (lambda: crf().log_joint(torch.zeros(4, 3).long(), torch.ones(2, 3).long()), r"heads has shape \(2, 3\) but must have \(4, 2, 3\)"),
    "a root's label of a density out of range": (lambda: crf(root_ternary=zeros(2, 2, 2)).log_joint(torch.tensor([0, 1, 0]), root_label=torch.tensor(2)), r"root_label must be from 0 to 1, or -1, but one is 2"),
    "a guide with the field of other words": (lambda: crf().guide(field=crf(unary=S[:2]).mean_field(1)), r"field has label marginals \(2, 2\) but unary is \(3, 2\); give a mean field of this CRF"),
    "an enumerated guide with the field of other words": (lambda: crf().enumerated_guide(field=crf(unary=S[:2]).mean_field(1)), r"field has label marginals \(2, 2\)"),
    "known heads without channels": (lambda: crf().log_partition(heads=torch.tensor([1, 0, 0])), r"heads has shape \(3,\) but needs \(2, 3\)"),
    "damping of one": (lambda: crf().mean_field(1, label_damping=1.0), r"label_damping must be at least 0 and less than 1, not 1.0"),
    "exact inference of a long sentence": (lambda: crf(unary=zeros(24, 2)).log_partition(), r"exact inference over 1\.68e\+07 labellings \(labels \*\* words\) needs a table of 1\.93e\+10 numbers, more than 67108864; give a shorter sentence, take inference\.annealed_log_partition or inference\.gibbs, or use mean_field"),
    "exact marginals of a long sentence": (lambda: crf(unary=zeros(24, 2)).marginals(), r"exact inference over 1\.68e\+07 labellings"),
    "a background whose weight is a text": (lambda: mixture().with_background(weight="half"), r"weight must be a number or a tensor of numbers, not 'half'"),
    "edges that are a list": (lambda: models.PottsField(S, [(0, 1)], 1.0), r"edges must be a torch.Tensor, not list; wrap it in torch.as_tensor"),
    "query weights with NaN": (lambda: adapt(query_weights=torch.full((5,), math.nan, dtype=torch.float64)), r"query_weights contains NaN"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_clear_error(name):
    call, message = CASES[name]
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_there_are_enough_cases():
    assert len({message for _, message in CASES.values()}) >= 25


def test_unobserved_entries_may_be_anything():
    observed = torch.tensor([True, True, False, False, False])
    outputs = A.clone()
    outputs[2:] = math.nan
    assert torch.isfinite(mixture().log_evidence(Q, outputs, observed)).all()
    assert torch.isfinite(labels().log_evidence(Q, torch.tensor([0, 1, -1, 99, 7]), observed)).all()
    fit = inference.adapt(models.bayesian(mixture(), values=Normal(V, 1.0), keys=Normal(K, 1.0)), Q, outputs, observed)
    assert torch.isfinite(fit.formulation.values).all() and torch.isfinite(fit.objective).all()


def test_validation_can_be_switched_off():
    pyro.enable_validation(False)
    assert mixture(keys=NAN).attention(Q).isnan().any()
    with pytest.raises(ValueError, match="queries have 2 features"):  # shapes are always checked: they cost nothing
        mixture().attention(Q[:, :2])
