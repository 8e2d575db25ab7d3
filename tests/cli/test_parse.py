"""``probtx parse``: from a trained run to CoNLL-U, an attachment score and a picture."""

from dataclasses import asdict

import pytest
import torch

from probtx_pyro import cli, nn, train
from probtx_pyro.data import Text, read_conllu

pytestmark = [
    pytest.mark.slow,  # trains
    pytest.mark.filterwarnings(
        "ignore:.*isinstance.*LeafSpec.*:FutureWarning",  # torch's own, from Lightning's import
        "ignore:.*torch.jit.*:DeprecationWarning",
    ),
]
CRF = {"num_channels": 2, "num_steps": 2, "distances": (2,)}
CONLLU = """# text = I can't sleep.
1	I	I	PRON	_	_	4	nsubj	_	_
2-3	can't	_	_	_	_	_	_	_	_
2	ca	can	AUX	_	_	4	aux	_	_
3	n't	not	PART	_	_	4	advmod	_	_
4	sleep	sleep	VERB	_	_	0	root	_	_
5	.	.	PUNCT	_	_	4	punct	_	_

1	Sleep	sleep	VERB	_	_	_	_	_	_

"""


@pytest.fixture
def run(tmp_path):
    torch.set_default_dtype(torch.float32)
    text = Text("I can sleep . you can n't sleep . " * 20, "you can sleep . I can n't . " * 5)
    settings = train.MaskedSettings(options=CRF, width=8, num_steps=4, batch=4, context=8, validate_every=4)
    train.train_masked_language_model(settings, text, tmp_path / "run", progress=False)
    (tmp_path / "in.conllu").write_text(CONLLU)
    return tmp_path


@pytest.mark.parametrize("decoder", ["tree", "projective", "word"])
def test_parses_scores_and_draws(run, decoder, capsys):
    out, picture = run / "out.conllu", run / "tree.png"
    words = f"parse {run / 'in.conllu'} --model {run / 'run'} --out {out} --decoder {decoder} --draw {picture}"
    assert cli.main(words.split()) == 0
    parsed, given = read_conllu(out, check_tree=decoder != "word"), read_conllu(run / "in.conllu")
    assert [s.words for s in parsed] == [s.words for s in given] and "2-3\tcan't" in out.read_text()
    assert parsed[1].heads == (0,) and all(head is not None for s in parsed for head in s.heads)
    printed = capsys.readouterr().out
    right = sum(a == b for a, b in zip(parsed[0].heads, given[0].heads, strict=True))
    assert f"attention {right / 5:.3f}, left arc " in printed and "random heads" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--model": "nowhere"}, "there is no nowhere/checkpoint.pt; give the folder of a run"),
        ({"--sentence": "3"}, "--sentence 3 is none of 1 to 2"),
        ({"--channel": "2"}, "error: --channel must be from 0 to 1, not 2"),
        ({"--out": "in.conllu"}, "in.conllu is the file to read; choose another name"),
    ],
)
def test_bad_input_is_one_line(run, change, message, capsys, monkeypatch):
    monkeypatch.chdir(run)
    options = {"--model": "run", "--out": "out.conllu", **change}
    assert cli.main(["parse", "in.conllu", *(word for pair in options.items() for word in pair)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_unknown_words_are_counted_and_a_foreign_vocabulary_is_warned_of(run, capsys):
    words = f"parse {run / 'in.conllu'} --model {run / 'run'} --out {run / 'out.conllu'}"
    assert cli.main(words.split()) == 0
    shown = capsys.readouterr()
    assert "unknown words: 33.3%\n" in shown.out  # ca and Sleep, of six
    assert shown.err == (
        f"probtx: warning: 33% of the words of {run / 'in.conllu'} are unknown to the model, which reads them all as the "
        "same one; it was trained on other text, or on too little\n"
    )
    (run / "in.conllu").write_text(CONLLU.replace("\tca\t", "\tcan\t"))
    assert cli.main(words.split()) == 0
    shown = capsys.readouterr()
    assert "unknown words: 16.7%\n" in shown.out and shown.err == ""


def test_a_language_model_loads_and_cannot_parse(run, capsys):
    text = Text("the cat sleeps " * 20, "the cat " * 10)
    settings = train.LanguageModelSettings(num_steps=2, batch=2, context=8, width=8, heads=2, layers=1, level="word")
    done = train.train_language_model(settings, text, run / "lm", progress=False)
    loaded = train.load_run(run / "lm")
    assert loaded.vocabulary == done.vocabulary and loaded.labels == () and loaded.settings == settings
    tokens = done.vocabulary.encode("the cat sleeps")[None]
    torch.testing.assert_close(loaded.model(tokens), done.model.eval()(tokens), rtol=0, atol=0)
    assert cli.main(["parse", str(run / "in.conllu"), "--model", str(run / "lm"), "--out", str(run / "o.conllu")]) == 2
    assert "model is a TransformerLM; only a DependencyCRFEncoder has heads" in capsys.readouterr().err


def test_runs_of_every_kind_load(tmp_path, capsys):
    torch.set_default_dtype(torch.float32)
    rows = [train.Example(("a", "b"), (("X",), ("Y",))), train.Example(("b",), (("Y",),))] * 2
    settings = train.LabellingSettings(options=CRF, width=4, num_steps=2, batch=2, validate_every=1)
    done = train.train_tagger(settings, {"train": rows, "dev": rows}, tmp_path / "tagger", progress=False)
    loaded = train.load_run(tmp_path / "tagger")
    assert loaded.labels == done.labels and loaded.vocabulary == done.vocabulary and loaded.settings.width == 4
    for name, weight in done.model.state_dict().items():
        torch.testing.assert_close(loaded.model.state_dict()[name], weight, rtol=0, atol=0)
    texts = [(("a", "b"), "good"), (("b",), "bad")] * 2
    words, of_texts = torch.tensor([[1, 2]]), {"options": CRF, "width": 4, "num_steps": 2, "batch": 2}
    for summary in nn.SUMMARIES:
        of, out = train.ClassifierSettings(summary=summary, **of_texts), tmp_path / "texts" / summary
        classified = train.train_classifier(of, {"train": texts, "dev": texts}, out, progress=False)
        torch.testing.assert_close(train.load_run(out).model(words), classified.model.eval()(words))
    (out / "checkpoint.pt").write_bytes(b"no")
    with pytest.raises(ValueError, match=r"checkpoint.pt cannot be read \(.*\); remove it and train again"):
        train.load_run(out)


COMPLETE = CONLLU.replace("Sleep\tsleep\tVERB\t_\t_\t_\t_", "Sleep\tsleep\tVERB\t_\t_\t0\troot")
HALF = CONLLU.replace("_\t_\t4\taux", "_\t_\t_\t_").replace("_\t_\t0\troot", "_\t_\t_\t_")


@pytest.fixture
def untrained(tmp_path, monkeypatch):
    """Runs without a step: what `train.load_run` reads of one, of masked words and of tags."""
    torch.set_default_dtype(torch.float32)
    monkeypatch.chdir(tmp_path)
    tokens = ["<unk>", "I", "can", "n't", "sleep", "."]
    for name, settings, labels in (
        ("masked", train.MaskedSettings(options=CRF, width=8), []),
        ("tagger", train.LabellingSettings(options=CRF, width=8), [["PRON", "VERB"]]),
    ):
        model = settings.model(len(tokens), list(map(len, labels)))
        state = {
            "settings": asdict(settings),
            "kept": None,
            "model": model.state_dict(),
            "tokens": tokens,
            "labels": labels,
        }
        (tmp_path / name).mkdir()
        torch.save(state, tmp_path / name / "checkpoint.pt")
        (tmp_path / name / train.RESULTS).write_text(f'{{"steps": {settings.num_steps}}}')
    (tmp_path / "in.conllu").write_text(HALF)
    return tmp_path


def parse(*words):
    return cli.main(["parse", "in.conllu", "--model", "masked", "--out", "out.conllu", *words])


@pytest.mark.parametrize("decoder", ["tree", "projective", "word"])
@pytest.mark.parametrize("channel", [(), ("--channel", "1")])
def test_kept_heads_keep_their_lines_to_the_byte_and_are_not_scored(untrained, decoder, channel, capsys):
    assert parse("--keep", "head", "--decoder", decoder, *channel) == 0
    printed = capsys.readouterr().out
    assert "heads kept: 3 of 6, none is scored\n" in printed and "attachment" not in printed
    before, after = HALF.split("\n"), (untrained / "out.conllu").read_text().split("\n")
    known = [i for i, line in enumerate(before) if line.split("\t")[6:7] not in ([], ["_"])]
    assert len(known) == 3 and all(before[i] == after[i] for i in known)
    parsed = read_conllu(untrained / "out.conllu", check_tree=decoder != "word")
    assert all(head is not None for sentence in parsed for head in sentence.heads)


def test_all_heads_known_are_the_file_itself(untrained):
    (untrained / "in.conllu").write_text(COMPLETE)
    assert parse("--keep", "head") == 0
    assert (untrained / "out.conllu").read_text() == COMPLETE


@pytest.mark.parametrize(
    ("words", "content", "message"),
    [
        (["--keep", "tail"], HALF, "'tail' is no column to keep; give head or upos"),
        (["--keep", "upos"], CONLLU, "--keep upos: this run has no tags; keep head"),
        (
            ["--keep", "head,upos", "--model", "tagger"],
            HALF,
            "--keep upos: this tagger reads tags from scores of labels",
        ),
        (["--keep", "head"], HALF.replace("\t4\t", "\t_\t"), "--keep head: column HEAD of in.conllu is _ throughout"),
        (["--keep", "head"], HALF.replace("_\t4\tnsubj", "_\t1\tnsubj"), "in.conllu, line 2: word 1 is its own head"),
        (
            ["--keep", "head"],
            HALF.replace("_\t4\tnsubj", "_\t9\tnsubj"),
            "in.conllu, line 2: HEAD '9' is no word of the sentence",
        ),
        (
            ["--keep", "head"],
            HALF.replace("_\t4\tnsubj", "_\t3\tnsubj").replace("_\t4\tadvmod", "_\t1\tadvmod"),
            "sentence 1: no tree with a single root has the known heads",
        ),
        ([], HALF, "in.conllu, line 4: no HEAD, but other words have one; give it, or --keep head"),
    ],
)
def test_what_cannot_be_kept_is_one_line(untrained, words, content, message, capsys):
    (untrained / "in.conllu").write_text(content)
    try:
        code = parse(*words)
    except SystemExit as left:  # of argparse
        code = left.code
    error = capsys.readouterr().err
    assert code == 2 and message in error and error.count("\n") == 1
