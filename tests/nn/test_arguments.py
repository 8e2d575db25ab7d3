"""Constructors name every argument, modules print the options that were chosen, and each layer has a name in one registry."""

import inspect

import pytest
import torch

from probtx_pyro import nn

CLASSES = [x for name in nn.__all__ if isinstance(x := getattr(nn, name), type)]
LAYERS = [x for x in CLASSES if issubclass(x, nn.Attention)]
FREE = {
    nn.TransformerBlock, nn.TransformerEncoder, nn.TransformerLM,
    nn.TransformerDecoderBlock, nn.TransformerDecoder, nn.EncoderDecoder,
}  # fmt: skip
# their options are those of the attention class that they are given


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_no_argument_hides_behind_stars(cls):
    kinds = {parameter.kind for parameter in inspect.signature(cls).parameters.values()}
    assert inspect.Parameter.VAR_POSITIONAL not in kinds
    assert (inspect.Parameter.VAR_KEYWORD in kinds) == (cls in FREE)


@pytest.mark.parametrize("layer", LAYERS, ids=lambda cls: cls.__name__)
def test_the_first_arguments_are_those_of_multihead_attention(layer):
    theirs = inspect.signature(torch.nn.MultiheadAttention).parameters
    ours = list(inspect.signature(layer).parameters.values())
    assert [(p.name, p.default, p.kind) for p in ours[: len(theirs)]] == [
        (p.name, p.default, p.kind) for p in theirs.values()
    ]
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in ours[len(theirs) :])


@pytest.mark.parametrize("cls", [*LAYERS, nn.HopfieldRetrieval, nn.DependencyCRFEncoder], ids=lambda cls: cls.__name__)
def test_every_argument_is_explained(cls):
    """In its own docstring, or in the one of `Attention` where a class adds nothing."""
    text = (nn.Attention if cls is nn.SoftmaxAttention else cls).__doc__
    section = text.split("Parameters\n")[1].split("Shapes:")[0]
    explained = {word.strip() for line in section.splitlines() if line[4:5] != " " for word in line.split(",")}
    assert set(inspect.signature(cls).parameters) - {"device", "dtype"} <= explained


PRINTED = {
    "sizes": (lambda: nn.SoftmaxAttention(8, 2), "(embed_dim=8, num_heads=2, head_dim=4|"),
    "options of torch's": (lambda: nn.SoftmaxAttention(8, 2, 0.1, False, True, kdim=3, batch_first=True), "(embed_dim=8, num_heads=2, head_dim=4, dropout=0.1, bias=False, add_bias_kv=True, kdim=3, batch_first=True|"),
    "gaussian": (lambda: nn.GaussianMixtureAttention(16, 2, map_steps=3, linked=False), "(embed_dim=16, num_heads=2, head_dim=8, linked=False, map_steps=3|"),
    "adaptation": (lambda: nn.GaussianMixtureAttention(16, 2, adapt=nn.Adapt(2, ("keys", "shift")), shift=True), "(embed_dim=16, num_heads=2, head_dim=8, adapt=Adapt(steps=2, parameters=('keys', 'shift'), implicit=False, answers=False), shift=True|"),
    "priors": (lambda: nn.GaussianMixtureAttention(16, 2, priors={"key_precision": torch.distributions.Gamma(2.0, 8.0)}), "(embed_dim=16, num_heads=2, head_dim=8, priors={'key_precision': Gamma(concentration: 2.0, rate: 8.0)}|"),
    "keys": (lambda: nn.GaussianKeysAttention(16, 2, head_dim=3, num_components=3, share="shift", assignment="hard"), "(embed_dim=16, num_heads=2, head_dim=3, num_components=3, share='shift', assignment='hard'|"),
    "linear": (lambda: nn.LinearKeysAttention(16, 2, feature_map=torch.exp), "(embed_dim=16, num_heads=2, head_dim=8, feature_map=exp|"),
    "hopfield": (lambda: nn.HopfieldAttention(16, 2, num_steps=3, beta=2.0, learn_beta=True, transformation="sparsemax"), "(embed_dim=16, num_heads=2, head_dim=8, num_steps=3, beta=2.0, learn_beta=True, transformation='sparsemax'|"),
    "memory": (lambda: nn.RegressionMemoryAttention(16, 2, update="delta", gates=True, chunk_size=32), "(embed_dim=16, num_heads=2, head_dim=8, update='delta', gates=True, chunk_size=32|"),
    "retrieval": (lambda: nn.HopfieldRetrieval(2, patterns=torch.zeros(3, 4), batch_first=True), "(num_heads=2, patterns=(3, 4), batch_first=True|"),
    "encoder": (lambda: nn.DependencyCRFEncoder(8), "(width=8, num_channels=8)|"),
    "encoder with options": (lambda: nn.DependencyCRFEncoder(8, 2, distances=[2, 4], rank=3, nodes={"number": 2}), "(width=8, num_channels=2, distances=(2, 4), rank=3, nodes=GlobalNodes(number=2, channels=None, split=False))|"),
}  # fmt: skip


@pytest.mark.parametrize("name", PRINTED)
def test_prints_its_sizes_and_the_options_that_were_chosen(name):
    make, expected = PRINTED[name]
    module = make()
    text = "|".join(line.strip() for line in repr(module).splitlines()) + "|"
    assert text.replace("(|", "(", 1).startswith(type(module).__name__ + expected)


@pytest.mark.parametrize("name", nn.ATTENTIONS)
def test_every_registered_attention_attends(name):
    layer, x = nn.ATTENTIONS[name](8, 2, batch_first=True), torch.zeros(3, 5, 8)
    assert layer(x, x, x)[0].shape == x.shape


def test_every_attention_is_registered():
    assert set(nn.ATTENTIONS.values()) == set(LAYERS) - {nn.Attention}


@pytest.mark.parametrize("name", nn.ENCODERS)
def test_every_registered_encoder_encodes_and_the_crf_has_every_summary(name):
    kind, x = nn.ENCODERS[name], torch.zeros(3, 5, 8)
    assert kind.build(8, context=5, dropout=0.0, root=False)(x, None).shape == x.shape
    for read, root in nn.SUMMARIES.values():
        if not root or name == "crf":
            assert read(kind.build(8, context=5, dropout=0.0, root=root), x, None).shape == (3, 8)
        else:
            with pytest.raises(ValueError, match="no root; give the summary mean, or the encoder crf"):
                kind.build(8, context=5, dropout=0.0, root=root)


def test_steps_that_are_too_few_are_refused():
    with pytest.raises(ValueError, match="map_steps must be 0 or more, not -1"):
        nn.GaussianMixtureAttention(8, 2, map_steps=-1)
    with pytest.raises(ValueError, match="steps must be 1 or more, not 0"):
        nn.Adapt(steps=0)


@pytest.mark.parametrize("layer", LAYERS, ids=lambda cls: cls.__name__)
def test_a_layer_has_at_most_eight_options_of_its_own(layer):
    theirs = inspect.signature(torch.nn.MultiheadAttention).parameters
    assert len(inspect.signature(layer).parameters) - len(theirs) <= 8


def test_options_are_given_as_such_or_as_a_mapping_of_their_fields():
    made = [nn.DependencyCRFEncoder(8, nodes=nodes) for nodes in (nn.GlobalNodes(2), {"number": 2})]
    assert made[0].nodes == made[1].nodes == nn.GlobalNodes(2)
    with pytest.raises(TypeError, match=r"give Adapt\(\.\.\.\), or a mapping of its fields, not 2"):
        nn.GaussianMixtureAttention(8, 2, adapt=2)
