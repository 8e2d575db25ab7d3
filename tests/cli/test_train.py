import argparse
import json
import re

import pytest
import torch

from probtx_pyro import cli, nn, train
from probtx_pyro.cli import _choices as choices
from probtx_pyro.cli.train import TASKS
from probtx_pyro.train import loop

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*isinstance.*LeafSpec.*:FutureWarning",  # torch's own, from Lightning's import
    "ignore:.*torch.jit.*:DeprecationWarning",
)
SMALL = (
    "--encoder transformer --heads 2 --layers 1 --width 8 --steps 4 --batch 4 --context 20 --validate-every 2".split()
)
TASK_FILES = {"lm": "--text", "mlm": "--text", "tagger": "--data", "classifier": "--data", "translation": "--data"}
USES = {"lm": "generate", "mlm": "fill", "tagger": "tag", "classifier": "classify"}
SENTENCES = "The DET\ncat NOUN\nsleeps VERB\n\nA DET\ndog NOUN\n\n" * 10
TEXTS = "text,category\n" + 'the cat sleeps,animal\n"rain, and wind",weather\n' * 10
ENTITIES = SENTENCES.replace("DET", "O").replace("NOUN", "B-animal").replace("VERB", "O")
PROSE = "the cat sleeps and the dog runs in the rain\n" * 20
TREEBANK = "".join(
    f"{i}\t{word}\t_\t{tag}\t{tag.lower()}\t_\t{head}\tdep\t_\t_\n" + ("\n" if i == 2 else "")
    for n in range(20)
    for i, word, tag, head in ((1, "the", "DET", 2), (2, f"cat{n}", "NOUN", 0))
)


@pytest.fixture(autouse=True)
def _single_precision():
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("task", "choice", "registry"),
    [
        ("lm", "attention", nn.ATTENTIONS),
        *((task, "encoder", nn.ENCODERS) for task in ("mlm", "tagger", "classifier")),
        *((task, "attention", nn.ATTENTIONS) for task in ("mlm", "tagger", "classifier")),
    ],
)
def test_choices_are_the_names_of_the_one_registry(task, choice, registry):
    for name in registry:
        arguments = cli.parser().parse_args(["train", task, "--out", "x", f"--{choice}", name])
        (offered,) = (of for of in arguments.choices if of.name == choice)
        assert getattr(arguments, choice) == name and set(offered.takes) == set(registry)
    with pytest.raises(SystemExit):
        cli.parser().parse_args(["train", task, "--out", "x", f"--{choice}", "warm"])


def test_a_layer_added_to_the_registry_is_a_choice_with_its_options(monkeypatch):
    class Shifted(nn.SoftmaxAttention):
        def __init__(self, *args, num_components=2, **others):
            super().__init__(*args, **others)

    monkeypatch.setattr(nn, "ATTENTIONS", {**nn.ATTENTIONS, "shifted": Shifted})
    of_words = {"attention": "shifted"}
    for words, made in (
        ("lm", {}),
        ("mlm --encoder transformer", of_words),
        ("tagger --encoder transformer", of_words),
    ):
        arguments = cli.parser().parse_args(f"train {words} --out x --attention shifted --components 3".split())
        assert choices.given(arguments) == {**made, "num_components": 3}
        arguments = cli.parser().parse_args(f"train {words} --out x --attention shifted --share shift".split())
        with pytest.raises(ValueError, match="--share means nothing to --attention shifted; leave it out"):
            choices.given(arguments)


def test_every_option_is_taken_by_a_layer_or_encoder_and_sets_its_argument():
    values = {"distances": "2,3", "attention": "hopfield", "share": "shift", "transformation": "sparsemax"}
    values["update"] = "delta"
    assert choices.ATTENTION_OPTIONS["update"].values == tuple(nn.memory_updates)
    values |= dict.fromkeys(("head-temperature", "head-step", "label-step"), "0.5")
    tried = set()
    for task in ("lm", "mlm"):
        for choice, takes, table in cli.parser().parse_args(["train", task, "--out", "x"]).choices:
            for name, option in table.items():
                able = [chosen for chosen, arguments in takes.items() if option.outer in arguments]
                assert able, name
                for chosen in able:
                    value = [values.get(name, "2")] if option.kind else []
                    words = ["train", task, "--out", "x", f"--{choice}", chosen, f"--{name}", *value]
                    if (task, choice) == ("mlm", "attention"):
                        words += ["--encoder", "transformer"]
                    set_to = choices.given(cli.parser().parse_args(words))
                    outer, _, field = option.argument.partition(".")
                    assert field in set_to[outer] if field else outer in set_to
                    tried.add((task, choice, name))
                    if task == "lm":
                        nn.ATTENTIONS[chosen](8, 2, **set_to)
                    else:
                        encoder = "transformer" if choice == "attention" else chosen
                        nn.ENCODERS[encoder].build(8, context=4, dropout=0.0, root=False, **set_to)
    assert {(task, "attention", "components") for task in ("lm", "mlm")} <= tried and (
        "mlm",
        "encoder",
        "rank",
    ) in tried


@pytest.mark.parametrize("task", TASKS)
def test_help_teaches(task, capsys):
    with pytest.raises(SystemExit) as done:
        cli.main(["train", task, "--help"])
    shown = capsys.readouterr().out
    assert done.value.code == 0 and f"probtx train {task} " in shown and "--resume" in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "name", "content", "metric"),
    [
        (["mlm", "--text"], "a.txt", PROSE, "perplexity"),
        (["mlm", "--rows", "sentence", "--mask", "0.3", "--text"], "a.txt", PROSE, "perplexity"),
        (["tagger", "--data"], "a.tsv", SENTENCES, "accuracy"),
        (["tagger", "--data"], "a.txt", ENTITIES, "span_f1"),
        (["tagger", "--column", "xpos", "--data"], "a.conllu", TREEBANK, "accuracy"),
        (["classifier", "--data"], "a.csv", TEXTS, "accuracy"),
    ],
)
def test_each_task_on_a_file(words, name, content, metric, tmp_path, capsys):
    (tmp_path / name).write_text(content)
    command = ["train", *words, str(tmp_path / name), *SMALL, "--out", str(tmp_path / "run"), "--no-progress"]
    assert cli.main(command) == 0, capsys.readouterr().err
    found = json.loads((tmp_path / "run" / "results.json").read_text())
    assert found["steps"] == 4 and len(found["losses"]) == 4 and [step for step, _ in found["validation"]] == [2, 4]
    shown = capsys.readouterr()
    assert f"{found[metric]:.4f}" in shown.out and "unknown words: " in shown.out
    use = next(line for line in shown.out.splitlines() if line.startswith("Next: probtx "))
    assert use.startswith(f"Next: probtx {USES[words[0]]} ") and f"{tmp_path / 'run'}" in use
    assert f"In Python: probtx_pyro.train.load_run('{tmp_path / 'run'}') loads the model\n" in shown.out
    assert all(0 <= share <= 1 for share in found["unknown"].values())
    loaded = train.load_run(tmp_path / "run")
    assert sum(p.numel() for p in loaded.model.parameters()) == found["parameters"]
    assert found["machine"]["device"] == "cpu" and found["settings"]["options"] == {"num_heads": 2, "num_layers": 1}
    assert cli.main(command) == 2 and "resume it, or choose another folder" in capsys.readouterr().err
    assert cli.main([*command, "--resume"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "name", "content", "use"),
    [
        ("mlm", "a.txt", PROSE, ["fill", "new.txt", "--model", "run"]),
        ("tagger", "a.tsv", SENTENCES, ["tag", "new.txt", "--model", "run"]),
        ("classifier", "a.csv", TEXTS, ["classify", "run", "new.txt", "--out", "classes.csv"]),
    ],
)
def test_any_attention_is_trained_and_used(task, name, content, use, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text(content)
    (tmp_path / "new.txt").write_text("the [MASK] sleeps\n")
    words = [*SMALL, "--attention", "gaussian-keys", "--components", "3", "--share", "shift", "--head-dim", "3"]
    assert cli.main(["train", task, TASK_FILES[task], name, *words, "--out", "run", "--no-progress"]) == 0
    assert capsys.readouterr().out.startswith("transformer, gaussian-keys: ")
    layer = train.load_run(tmp_path / "run").model.encoder.layers[0].self_attn
    assert isinstance(layer, nn.GaussianKeysAttention)
    assert (layer.num_heads, layer.num_components, layer.share, layer.head_dim) == (2, 3, "shift", 3)
    assert cli.main(use) == 0, capsys.readouterr().err
    assert cli.main(["parse", "new.txt", "--model", "run", "--out", "trees.conllu"]) == 2
    assert "only a DependencyCRFEncoder has heads" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mlm", "--heads", "2"], "--heads means nothing to --encoder crf; leave it out"),
        (["mlm", "--attention", "softmax"], "--attention means nothing to --encoder crf; leave it out"),
        (["mlm", "--components", "2"], "--components means nothing to --encoder crf; leave it out"),
        (
            ["classifier", "--encoder", "transformer", "--components", "2"],
            "--components means nothing to --attention softmax; leave it out",
        ),
        (
            ["tagger", "--encoder", "transformer", "--attention", "hopfield", "--iterations", "2"],
            "--iterations means nothing to --encoder transformer; leave it out",
        ),
        (["tagger", "--encoder", "transformer", "--rank", "2"], "--rank means nothing to --encoder transformer"),
        (["mlm", "--mask", "0"], "error: --mask must be more than 0 and less than 1"),
        (["mlm", "--head-step", "2"], "error: --head-step must be more than 0 and at most 1"),
        (["lm", "--heads", "3"], "error: --width 128 must be positive and divisible by --heads 3; or give --head-dim"),
        (
            ["tagger", "--encoder", "transformer", "--heads", "3"],
            "error: --width 128 must be positive and divisible by --heads 3; or give --head-dim",
        ),
        (
            ["tagger", "--data", "nowhere.conllu"],
            "there is no file or folder nowhere.conllu; give one, or one of small",
        ),
        (["classifier", "--data", "nowhere.csv"], "there is no file or folder nowhere.csv"),
        (["mlm", "--text", "nowhere.txt"], "there is no file nowhere.txt"),
        (["mlm", "--device", "warp"], "--device warp: this torch cannot use it here"),
    ],
)
def test_bad_words_are_one_line(words, message, tmp_path, capsys):
    assert cli.main(["train", *words, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_transformer_has_no_root_to_read(tmp_path, capsys):
    (tmp_path / "a.csv").write_text(TEXTS)
    words = ["--data", str(tmp_path / "a.csv"), *SMALL, "--summary", "root", "--out", str(tmp_path / "run")]
    assert cli.main(["train", "classifier", *words]) == 2
    message = "probtx: error: a transformer has no root; give the summary mean, or the encoder crf\n"
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    "words",
    [
        ["classifier", "--width", "0"],
        ["lm", "--head-dim", "0"],
        ["lm", "--checkpoint-every", "0"],
        ["lm", "--attention", "hopfield", "--retrieval-steps", "0"],
        ["mlm", "--iterations", "0"],
        ["mlm", "--channels", "0"],
        ["mlm", "--rank", "0"],
        ["tagger", "--nodes", "-1"],
        ["lm", "--attention", "gaussian", "--adapt-steps", "-1"],
    ],
)
def test_numbers_out_of_range_are_one_line_that_names_the_option(words, tmp_path, capsys):
    with pytest.raises(SystemExit) as done:
        cli.main(["train", *words, "--out", str(tmp_path / "run")])
    error = capsys.readouterr().err
    assert done.value.code == 2 and error.count("\n") == 1
    assert f"argument {words[-2]}: '{words[-1]}' is not a whole number from " in error


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_a_learning_rate_that_is_too_high_is_one_line_and_keeps_the_checkpoint(task, tmp_path, capsys):
    pairs = "".join(f"the {name} sleeps\tdie {name} schläft\n" for name in "abcdefghijklmnopqrstuvwxyz" * 2)
    content = {"lm": PROSE, "mlm": PROSE, "tagger": SENTENCES, "classifier": TEXTS, "translation": pairs}[task]
    file = tmp_path / {"tagger": "a.tsv", "classifier": "a.csv", "translation": "a.tsv"}.get(task, "a.txt")
    file.write_text(content)
    words = ["train", task, TASK_FILES[task], str(file), "--out", str(tmp_path / "run"), "--no-progress", "--lr", "1e6"]
    small = "--heads 2 --layers 1 --width 8 --batch 4 --context 20 --steps 60 --checkpoint-every 1".split()
    small += [] if task in ("lm", "translation") else ["--encoder", "transformer"]
    assert cli.main([*words, *small]) == 2
    error = capsys.readouterr().err
    assert error.startswith("probtx: error: the ") and error.count("\n") == 1
    assert re.search(r"the (loss|gradient|validation \w+) is not finite at step \d+; lower --lr\n$", error), error
    loaded = train.load_run(tmp_path / "run")
    assert all(torch.isfinite(weight).all() for weight in loaded.model.state_dict().values())


@pytest.mark.slow
def test_an_interrupted_run_prints_the_command_that_resumes_it(tmp_path, capsys, monkeypatch):
    (tmp_path / "a.txt").write_text(PROSE)
    words = ["train", "mlm", "--text", str(tmp_path / "a.txt"), *SMALL, "--checkpoint-every", "2", "--no-progress"]
    step, calls = loop._step, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == at:
            raise KeyboardInterrupt
        return step(*arguments)

    monkeypatch.setattr(loop, "_step", interrupted)
    for at, expected in (
        (1, "probtx: interrupted\n"),
        (
            3,
            f"probtx: interrupted; probtx train mlm --resume --out {tmp_path / 'run3'} goes on from the last checkpoint\n",
        ),
    ):
        calls.clear()
        assert cli.main([*words, "--out", str(tmp_path / f"run{at}")]) == 130
        assert capsys.readouterr().err == expected
    monkeypatch.setattr(loop, "_step", step)
    assert cli.main([*words, "--out", str(tmp_path / "never")]) == 0
    monkeypatch.chdir(tmp_path / "run3")  # and from another folder
    assert cli.main(["train", "mlm", "--resume", "--out", str(tmp_path / "run3"), "--no-progress"]) == 0
    one, other = (json.loads((tmp_path / run / "results.json").read_text()) for run in ("run3", "never"))
    assert one["losses"] == other["losses"] and one["settings"] == other["settings"]


@pytest.mark.slow
def test_a_run_is_extended_without_its_options(tmp_path, capsys):
    (tmp_path / "a.txt").write_text(PROSE)
    out = ["--out", str(tmp_path / "run"), "--no-progress"]
    crf = "--width 8 --iterations 2 --channels 2 --distances 2,3 --steps 4 --batch 4 --context 20 --validate-every 2".split()
    assert cli.main(["train", "mlm", "--text", str(tmp_path / "a.txt"), *crf, *out]) == 0
    first = json.loads((tmp_path / "run" / "results.json").read_text())
    assert cli.main(["train", "mlm", "--resume", "--steps", "6", *out]) == 0
    longer = json.loads((tmp_path / "run" / "results.json").read_text())
    assert longer["losses"][:4] == first["losses"] and len(longer["losses"]) == 6 == longer["settings"]["num_steps"]
    capsys.readouterr()
    assert cli.main(["train", "mlm", "--resume", "--steps", "5", *out]) == 2
    assert "--steps is 5, and 6 are done; give more" in capsys.readouterr().err
    assert cli.main(["train", "mlm", "--resume", "--width", "16", *out]) == 2  # what is given counts
    assert "another width" in capsys.readouterr().err
    assert cli.main(["train", "mlm", "--resume", *out]) == 0  # the longer run's options are those of the next
    assert json.loads((tmp_path / "run" / "results.json").read_text())["losses"] == longer["losses"]
    (tmp_path / "run" / "checkpoint.pt").write_text("{")
    assert cli.main(["train", "mlm", "--resume", *out]) == 2
    assert "checkpoint.pt cannot be read (UnpicklingError); remove it" in capsys.readouterr().err


@pytest.mark.slow
def test_words_that_training_lacks_are_counted_and_many_are_warned_of(tmp_path, capsys):
    (tmp_path / "a.tsv").write_text("the DET\ncat NOUN\n\n" * 18 + "der DET\ncat NOUN\n\n" * 2)
    words = ["train", "tagger", "--data", str(tmp_path / "a.tsv"), *SMALL, "--no-progress"]
    assert cli.main([*words, "--out", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr()
    assert "unknown words: dev 50.0%\n" in shown.out
    assert shown.err.startswith("probtx: warning: 50% of the words of the dev part are unknown to the model")
    assert shown.err.count("\n") == 1
    assert json.loads((tmp_path / "run" / "results.json").read_text())["unknown"] == {"dev": 0.5}


def test_a_column_without_tags(tmp_path, capsys):
    (tmp_path / "a.conllu").write_text(TREEBANK.replace("det", "_").replace("noun", "_"))
    command = [
        "train",
        "tagger",
        "--column",
        "xpos",
        "--data",
        str(tmp_path / "a.conllu"),
        "--out",
        str(tmp_path / "run"),
    ]
    assert cli.main(command) == 2
    assert "has no tags in its column xpos; choose another column" in capsys.readouterr().err


def test_distances_are_whole_numbers_between_commas():
    assert choices.distances("2,3") == (2, 3)
    with pytest.raises(argparse.ArgumentTypeError, match="'2,x' are no distances; give whole numbers like 2,3,4"):
        choices.distances("2,x")
    arguments = cli.parser().parse_args(["train", "tagger", "--distances", "2,3,4", "--rank", "5", "--out", "x"])
    assert choices.given(arguments) == {"distances": (2, 3, 4), "rank": 5}


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (("lm", "--width", "32"), 1),  # 32 x 128 tokens x 32 x 128: 2^24 multiplications
        (("lm", "--width", "32", "--threads", "2"), 2),
        (("lm", "--width", "128"), 3),  # 32 x 128 tokens x 128 x 512: 2^28
        (("tagger",), 1),
        (("tagger", "--threads", "2"), 2),
        (("tagger", "--width", "1024"), 3),  # some 240 words x 1024 x 4096: U and V of 8 channels, 2 groups, rank 128
        (("tagger", "--width", "512", "--rank", "full"), 1),  # products of 512 x 512 one by one
        (("mlm", "--encoder", "transformer"), 1),
        (("mlm", "--encoder", "transformer", "--width", "512"), 3),
    ],
    ids=str,
)
def test_small_products_take_one_thread_unless_told(words, number, tmp_path, monkeypatch):
    seen, before = [], torch.get_num_threads()

    def stop(*_, **__):
        seen.append(torch.get_num_threads())
        raise ValueError("enough")

    monkeypatch.setattr(loop, "_step", stop)
    torch.set_num_threads(3)
    try:
        assert cli.main(["train", *words, "--out", str(tmp_path)]) == 2
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert seen == [number]
