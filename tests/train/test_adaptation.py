"""Adaptation of a tagger: its mode against a log posterior in loops over scalars, what it may move, what it saves and refuses."""

import json
import math

import oracles_crf
import pytest
import torch

from probtx_pyro import data, train
from probtx_pyro.train import RESULTS, Example, Run, adaptation

L, TAGS, STEPS, DISTANCES = 3, ("A", "B", "C"), 2, (2,)
TOKENS = ("�", "a", "b", "c", "d")


def tagger_run(encoder="crf", tokens=TOKENS, tags=TAGS, **options):
    """A tagger as training would leave it, but with random parameters."""
    kinds = {"crf": {"num_channels": 2, "num_steps": STEPS, "distances": DISTANCES}, "transformer": {"num_heads": 1}}
    settings = train.LabellingSettings(encoder=encoder, options={**kinds[encoder], **options}, width=L, dropout=0.3)
    model = settings.model(len(tokens), (len(tags),)).eval()
    with torch.no_grad():  # scores that differ, so that heads and labels do
        model.words.weight.mul_(4)
        for name in ("ternary", "left", "right"):
            if name in dict(model.encoder.named_parameters()):
                model.encoder.get_parameter(name).mul_(2)
    return Run(model, data.Vocabulary("word", tokens), (tags,), settings, {})


def sentence(words, tags):
    return Example(tuple(words.split()), tuple((tag,) for tag in tags.split()))


ANNOTATED = {"a b new": "A B C", "c a": "C A", "new other d a": "B _ A C", "b": "A"}
SENTENCES = [sentence(words, tags) for words, tags in ANNOTATED.items()]


def log_normal(x, centre, spread):
    return sum(
        -0.5 * ((a - b) / spread) ** 2 - math.log(spread * math.sqrt(2 * math.pi))
        for a, b in zip(x.flatten().tolist(), centre.flatten().tolist(), strict=True)
    )


def log_posterior(run, parameters, tokens, spread, move):
    """Σ log p(tag | words) + Σ log Normal, by the scalar mean field; rows of new words are centred on the unknown word's."""
    trained = {name: x.detach() for name, x in run.model.named_parameters()}
    now = {**trained, **parameters}
    total = 0.0
    for words, tags in SENTENCES:
        unary = [now["words.weight"][tokens.index(word)].tolist() for word in words]
        problem = {"unary": unary, "words": [True] * len(words), "ternary": now["encoder.ternary"].tolist()}
        problem |= {"distances": DISTANCES, "root": None, "memory": None, "split": False}
        state = oracles_crf.mean_field(problem, STEPS, "asynchronous", head_temperature=1 / L)[-1]
        for scores, (tag,) in zip(state["logits"], tags, strict=True):
            logits = [
                sum(w * x for w, x in zip(row, scores, strict=True)) + bias
                for row, bias in zip(now["tags.weight"].tolist(), now["tags.bias"].tolist(), strict=True)
            ]
            if tag != "_":
                total += logits[TAGS.index(tag)] - math.log(sum(map(math.exp, logits)))
    rows, known = now["words.weight"], len(run.vocabulary.tokens)
    for name in move:
        if name == "words.weight":
            total += log_normal(rows[:known], trained[name], spread)
            total += log_normal(rows[known:], rows[:1].expand(len(rows) - known, -1), spread)
        else:
            total += log_normal(now[name], trained[name], spread)
    return total


EVERYTHING = ("ternary", "words", "tags")
NAMES = {"ternary": ("encoder.ternary",), "words": ("words.weight",), "tags": ("tags.weight", "tags.bias")}


@pytest.mark.parametrize("move", [pytest.param(EVERYTHING, marks=pytest.mark.slow), ("ternary",)], ids=",".join)
def test_the_mode_is_where_the_log_posterior_is_level(move, monkeypatch):
    monkeypatch.setattr(adaptation, "TOLERANCE", 1e-6)
    run, spread = tagger_run(), 0.5
    adapted = train.adapt_tagger(run, SENTENCES, move=move, spread=spread)
    assert adapted.results["converged"] and not adapted.model.training
    tokens = adapted.vocabulary.tokens
    found = {name: x.detach() for name, x in adapted.model.named_parameters()}
    if "words" in move:
        assert tokens == (*TOKENS, "new", "other")
    else:
        assert tokens == TOKENS and torch.equal(found["words.weight"], run.model.words.weight)
        tokens = [*TOKENS, "new", "other"]  # the oracle's: both are the unknown word
        found["words.weight"] = found["words.weight"][[0, 1, 2, 3, 4, 0, 0]]
    names = [name for part in move for name in NAMES[part]]

    def of(changes):
        return log_posterior(run, {**found, **changes}, list(tokens), spread, names)

    # every gradient of z is below the tolerance, so that of the parameter is below tolerance / spread; central differences of step
    # h err by h² f'''/6 and eps |f| / h, below 1e-5 where |f| < 1e4 and f''' < 1e5. Another prior or likelihood is off by order 1.
    h = 1e-5
    for name in names:
        direction = torch.randn(found[name].shape, generator=torch.Generator().manual_seed(3))
        up, down = (of({name: found[name] + sign * h * direction}) for sign in (1, -1))
        assert abs(up - down) / (2 * h) < 1e-6 / spread * float(direction.abs().sum()) + 1e-5, name
    start = {name: x.detach() for name, x in run.model.named_parameters()}
    start["words.weight"] = start["words.weight"][[0, 1, 2, 3, 4, 0, 0]]
    assert of({}) > log_posterior(run, start, list(tokens), spread, names)


def test_words_that_do_not_occur_stay_and_new_ones_lean_on_the_unknown_row():
    run = tagger_run(tokens=(*TOKENS, "far"))
    adapted = train.adapt_tagger(run, SENTENCES, move="words", spread=0.3)
    before, after = run.model.words.weight, adapted.model.words.weight
    assert torch.equal(before[5], after[5]) and not torch.equal(before[0], after[0])
    # no sentence has the unknown word itself: its row moves by what the rows of new words pull, s z_0 = Σ (row - row_0)
    pulled = (after[6:] - after[0]).sum(0)
    # z is at the mode to the gradients' tolerance, in spreads
    assert ((after[0] - before[0]) - pulled).abs().max() <= 3 * 0.3 * adaptation.TOLERANCE


def test_a_tagger_with_spellings_adapts_and_keeps_them(tmp_path):
    settings = train.LabellingSettings(options={"num_channels": 2}, width=L, characters=16)
    model = settings.model(len(TOKENS), (len(TAGS),)).eval()
    run = Run(model, data.Vocabulary("word", TOKENS, 16), (TAGS,), settings, {})
    adapted = train.adapt_tagger(run, SENTENCES, tmp_path / "run", move=["words"], spread=0.3)
    assert adapted.results["after"] < adapted.results["before"] and adapted.results["new_words"] == 2
    assert torch.equal(adapted.model.spellings.weight, run.model.spellings.weight)
    loaded = train.load_run(tmp_path / "run")
    for of in (adapted, loaded):
        scores = train.score_tagger(of, SENTENCES)
        assert float(scores.nats.mean()) == pytest.approx(adapted.results["after"], rel=1e-9)
        assert not scores.unknown.any()
    assert train.score_tagger(run, SENTENCES).unknown.sum() == 2  # new twice; other has no tag


@pytest.mark.slow
def test_a_tiny_spread_moves_nothing_and_a_wide_one_fits():
    run = tagger_run()
    still = train.adapt_tagger(run, SENTENCES, move=EVERYTHING, spread=1e-6).results
    wide = train.adapt_tagger(run, SENTENCES, move=EVERYTHING, spread=3.0).results
    # moved by 1e-6 times gradients of order 10 in each of some 200 parameters
    assert abs(still["after"] - still["before"]) < 1e-6 and wide["after"] < 0.1 < wide["before"]


@pytest.mark.slow
def test_cross_validation_holds_out_what_the_rest_has_not_seen():
    """Each choice's figure is the mean over held-out words of taggers that were adapted to the other sentences alone."""
    run = tagger_run()
    done = train.adapt_tagger(run, SENTENCES, folds=2, seed=1)
    again = train.adapt_tagger(run, SENTENCES, folds=2, seed=1)
    assert {**done.results, "seconds": 0} == {**again.results, "seconds": 0}
    assert all(torch.equal(a, b) for a, b in zip(done.model.parameters(), again.model.parameters(), strict=True))
    table = done.results["validation"]
    moves = {tuple(row["move"]) for row in table}
    assert moves == {(), ("ternary",), EVERYTHING} and len(table) == 1 + 2 * len(adaptation.SPREADS)
    best = min(table, key=lambda row: row["nats"])
    assert done.results["move"] == best["move"] and done.results["spread"] == best["spread"]
    order = torch.randperm(4, generator=torch.Generator().manual_seed(1)).tolist()
    for row in (table[0], table[-1]):
        nats = []
        for held in (order[::2], order[1::2]):
            rest = [SENTENCES[i] for i in range(4) if i not in held]
            own = train.adapt_tagger(run, rest, move=row["move"], spread=row["spread"]) if row["move"] else run
            nats.append(train.score_tagger(own, [SENTENCES[i] for i in held]).nats)
        # two ways to a sum of some ten terms of order 1
        assert abs(float(torch.cat(nats).mean()) - row["nats"]) < 1e-10


def test_scores_are_those_of_the_model():
    run = tagger_run()
    scores = train.score_tagger(run, SENTENCES, batch=3)
    (logits,) = run.model(torch.tensor([[1, 2, 0]]))
    expected = -logits[0].log_softmax(-1)[range(3), range(3)]
    torch.testing.assert_close(scores.nats[:3, 0], expected, atol=1e-12, rtol=0)  # padding adds zeros, no more
    assert scores.right[:3, 0].tolist() == (logits[0].argmax(-1) == torch.arange(3)).tolist()
    assert scores.unknown.tolist() == [False, False, True, False, False, True, False, False, False]  # _ is left out


@pytest.mark.parametrize("options", [{}, {"rank": 2}], ids=["full", "low rank"])
def test_what_is_saved_loads(options, tmp_path):
    torch.set_default_dtype(torch.float32)  # as a user's, in which runs load
    run = tagger_run(**options)
    move = ["words", "tags", *(["left", "right"] if options else ["ternary"])]
    done = train.adapt_tagger(run, SENTENCES, tmp_path / "out", move=move, spread=0.1)
    loaded = train.load_run(tmp_path / "out")
    assert loaded.vocabulary == done.vocabulary and loaded.labels == done.labels and loaded.settings == run.settings
    for name, weight in done.model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], weight), name
    assert json.loads((tmp_path / "out" / RESULTS).read_text()) == done.results
    twice = train.adapt_tagger(loaded, SENTENCES, move=move, spread=0.1)  # a run like any other
    assert twice.results["before"] == pytest.approx(done.results["after"], rel=1e-5)  # the same numbers in float32
    with pytest.raises(ValueError, match="is the checkpoint of an earlier run; choose another folder"):
        train.adapt_tagger(run, SENTENCES, tmp_path / "out", move=move, spread=0.1)


def test_a_transformer_moves_words_and_tags_when_told():
    run = tagger_run("transformer")
    done = train.adapt_tagger(run, SENTENCES, move=["words", "tags"], spread=0.3)
    assert done.results["after"] < done.results["before"]
    for name, weight in done.model.encoder.named_parameters():
        assert torch.equal(weight, run.model.encoder.get_parameter(name))


WRONG = {
    "encoder": (
        lambda: train.adapt_tagger(tagger_run("transformer"), SENTENCES),
        "move must be given, some of words, tags: there are no potentials to put priors on",
    ),
    "name": (lambda: adapt(move=["ternery"]), "move must name some of ternary, words, tags, not ternery"),
    "no name": (lambda: adapt(move=[]), "move must name some of ternary, words, tags, not nothing"),
    "spread": (lambda: adapt(spread=0.0), "spread must be positive and finite, not 0.0"),
    "folds": (
        lambda: adapt(),
        r"folds must be from 2 to 4 \(sentences\), not 5; or give both move and spread",
    ),
    "tag": (lambda: adapt([sentence("a b", "A Z")]), "sentence 1 has the tag 'Z'; the tagger has A, B, C"),
    "no tags": (lambda: adapt([sentence("a b", "_ _")]), "the sentences have no tags; annotate some of their words"),
    "lengths": (lambda: adapt([sentence("a b", "A")]), "sentence 1 has not 1 tags for each of its 2 words; mend it"),
    "no words": (lambda: adapt([sentence("a", "A"), Example((), ())]), "sentence 2 of the annotated part has no words"),
    "nothing": (lambda: adapt([]), "the sentences have no tags"),
    "no tagger": (
        lambda: train.adapt_tagger(tagger_run()._replace(model=torch.nn.Linear(2, 2)), SENTENCES),
        "the run is of a Linear; give one of probtx train tagger",
    ),
}


def adapt(sentences=SENTENCES, **options):
    return train.adapt_tagger(tagger_run(), sentences, **options)


@pytest.mark.parametrize("name", WRONG)
def test_bad_input_is_one_line(name):
    call, message = WRONG[name]
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert "\n" not in str(error.value)
