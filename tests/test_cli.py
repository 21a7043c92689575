"""The command line as a person meets it: quick help, clear errors, exit codes, nothing overwritten."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import cflag
from cflag.cli import main
from cflag.commands.inspect import KINDS
from cflag.config import load_raw, parse_setting, resolve
from cflag.errors import UserError
from cflag.paper.campaigns import CAMPAIGNS
from cflag.paper.cells import DATA_SETS
from cflag.paper.scales import SCALES
from cflag.presets import preset_names
from tests.support.quick import QUICK

FLAGS = [f"--set={k}={v}" for k, v in QUICK.items()]


def fails(argv: list[str], capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    """Run a command that must fail; return its one line."""
    assert main(argv) == code
    captured = capsys.readouterr()
    assert len(captured.err.strip().splitlines()) == 1
    assert captured.err.startswith("cflag: ")
    assert "Traceback" not in captured.err
    return captured.err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"cflag {cflag.__version__}\n"


def test_lists_name_everything(capsys: pytest.CaptureFixture[str]) -> None:
    expected = {
        "problems": {"classes", "regression", "multilabel", "sequence"},
        "augmentations": {"crop", "erase", "flip", "jitter", "noise"},
        "methods": {
            "cflag",
            "finetune",
            "ewc",
            "nccl",
            "replay",
            "fedtrack",
            "agem",
            "derpp",
            "er-ace",
            "lwf",
            "joint",
            "icarl",
            "target",
            "ncm",
            "slda",
            "ridge",
        },
        "sources": {"digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "tiny-imagenet", "har", "folder"},
        "scenarios": {"task", "class", "permuted", "rotated"},
        "partitions": {"dirichlet", "iid", "classes", "subject", "own"},
        "schedules": {"together", "staggered", "own-order", "own-classes", "joining", "online", "blurry", "table"},
        "protocols": {f"protocol:{name}" for name in ("glfc", "mfcl", "target", "lander", "powder", "fedweit")},
        "models": {"linear", "cosine", "mlp", "cnn", "cnn1d", "resnet18", "resnet50"},
        "memories": {"ring", "reservoir", "none"},
        "means": {"mean", "clipped", "trimmed", "median", "krum"},
        "loggers": {"mlflow", "tensorboard", "wandb"},
        "backbones": {"efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2", "resnet18", "resnet50", "timm"},
        "presets": {"digits", *(f"{s}-{k}" for s in DATA_SETS for k in SCALES)},
        "campaigns": set(CAMPAIGNS),
    }
    assert set(expected) == set(KINDS)
    for kind, names in expected.items():
        assert main(["list", kind]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert names <= {line.split()[0] for line in lines}
        assert all(len(line.split()) > 2 for line in lines)  # each with a word about it


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("method=cflg", "unknown method 'cflg'; did you mean 'cflag'?"),
        ("source=cifar11", "unknown source 'cifar11'; did you mean 'cifar10"),
        ("model=resnet19", "unknown model 'resnet19'; did you mean 'resnet18'?"),
        ("memory.kind=rign", "unknown memory 'rign'; did you mean 'ring'?"),
        ("rouns=3", "unknown key 'rouns'; did you mean 'rounds'?"),
        ("beta=0.1", "unknown key 'beta'; did you mean 'cflag.beta'?"),
        ("cflag.bta=0.1", "unknown key 'cflag.bta'; did you mean 'cflag.beta'?"),
        ("memory.sampel=1", "unknown key 'memory.sampel'; did you mean 'memory.sample'?"),
        ("cflga.beta=1", "unknown table 'cflga'; did you mean 'cflag'?"),
        ("scenario=clas", "unknown scenario 'clas'; did you mean 'class'?"),
        ("partition=iidd", "unknown partition 'iidd'; did you mean 'iid'?"),
        ("clients=0", "clients = 0 must be at least 1"),
        ("clients=2.5", "clients = 2.5 must be a whole number"),
        ("clients=true", "clients = True must be a whole number"),
        ("clients_per_round=2.5", "clients_per_round = 2.5 must be a number of clients up to 5"),
        ("clients_per_round=6", "clients_per_round = 6 must be a number of clients up to 5"),
        ("clients_per_round=-1", "clients_per_round = -1.0 must be at least 0"),
        ("rounds=0", "rounds = 0 must be at least 1"),
        ("tasks=11", "tasks = 11 is more than the 10 classes of digits"),
        ("zeta=0", "zeta = 0.0 must be positive"),
        ("zeta=-1", "zeta = -1.0 must be positive"),
        ("zeta=nan", "zeta = nan must be a finite number"),
        ("epochs=0", "epochs = 0.0 must be positive"),
        ("seed=-1", "seed = -1 must be at least 0"),
        ("batch=0", "batch = 0 must be at least 1"),
        ("epochs=1e308", "epochs = 1e+308 must be at most 1,000,000,000"),
        ("image_size=1000000000000", "image_size = 1000000000000 must be at most 16,384"),
        ("width=9223372036854775808", "width = 9223372036854775808 must be at most 1,048,576"),
        (
            "width=1000000",
            "model = 'mlp', width = 1000000: its parameters alone take 4,000 GB; more than 16 GB is too large",
        ),
        ("memory.sample=41", "memory.sample = 41 is larger than memory.per_task = 40"),
        ("memory.sample=0", "memory.sample = 0 must be at least 1"),
        ("memory.limit_samples=5", "memory.sample = 20 is larger than memory.limit_samples = 5"),
        ("cflag.beta=0", "cflag.beta = 0.0 must be positive"),
        ("cflag.alpha=-0.1", "cflag.alpha = -0.1 must be positive"),
        ("cflag.alpha=nan", "cflag.alpha = nan must be a finite number"),
        ("cflag.smoothness=0", "cflag.smoothness = 0.0 must be positive"),
        ("cflag.drift=1.5", "cflag.drift = 1.5 must lie between 0 and 1"),
        ("cflag.alpha=0.3", "cflag.alpha = 0.3 is above alpha_cap = 0.2"),
        ("cflag.adapt=yes", "cflag.adapt = 'yes' must be 'off' or 'average' or 'worst'"),
        ("device=tpuu", "device = 'tpuu' is not a device torch knows"),
        ("clients=500", "too few for 500 clients"),
        ("zeta=0.001", "no Dirichlet(zeta = 0.001) draw of 1000"),
        ("rounds", "write key=value"),
        ("memory=3", "unknown key 'memory'"),
        ("method.x=3", "'method.x': 'method' is not a table"),
        ("model=cnn1d", "model 'cnn1d' wants series"),
        ("partition=subject", "wants a source that knows its subjects"),
    ],
)
def test_bad_settings_end_in_one_line(
    setting: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["--set", "method=cflag"] if setting.startswith("method.") else []
    line = fails(["run", "digits", *base, "--set", setting, "--out", str(tmp_path / "run")], capsys)
    assert says in line
    assert not (tmp_path / "run").exists()  # nothing was begun


def test_transference_needs_a_small_alpha(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["show", "digits", "--set", "cflag.alpha=0.2", "--set", "cflag.rules=both"]
    assert "needs cflag.alpha < 1/smoothness = 0.2" in fails(argv, capsys)


def test_unknown_preset_and_missing_or_broken_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "unknown preset 'digit'; did you mean 'digits'?" in fails(["show", "digit"], capsys)
    assert "there is no such file" in fails(["run", str(tmp_path / "no.toml")], capsys)
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    assert "not a readable TOML file" in fails(["run", str(tmp_path / "bad.toml")], capsys)
    assert "must end in .toml" in fails(["run", "mine.tom"], capsys)
    assert "not a whole number" in fails(["run", "--seeds", "1,x"], capsys)


def test_a_file_stands_on_its_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text('base = "digits"\nrounds = 3\n[memory]\nper_task = 40\n[cflag]\nbeta = 0.07\n')
    second.write_text(f'base = "{first}"\n[cflag]\nalpha = 0.03\n')
    digits, config = resolve(load_raw("digits")), resolve(load_raw(str(second)))
    assert (config.rounds, config.memory.per_task, config.settings.beta, config.settings.alpha) == (3, 40, 0.07, 0.03)
    assert (config.tasks, config.memory.sample, config.width) == (digits.tasks, digits.memory.sample, digits.width)
    first.write_text(f'base = "{second}"\n')
    assert "built on itself" in fails(["show", str(first)], capsys)
    first.write_text("base = 3\n")
    assert "must be the name of a preset or of a .toml file" in fails(["show", str(first)], capsys)
    first.write_text('base = "digit"\n')
    assert "did you mean 'digits'" in fails(["show", str(first)], capsys)


def test_missing_data_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = fails(["run", "cifar10-smoke", "--data-dir", str(tmp_path), "--out", str(tmp_path / "out")], capsys)
    assert "cflag data get cifar10" in line
    assert not (tmp_path / "out").exists()


def test_an_existing_folder_is_never_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    for extra in ([], ["--seeds", "1,2"]):
        line = fails(["run", "digits", *FLAGS, *extra, "--out", str(tmp_path)], capsys)
        assert "already exists" in line
    assert [p.name for p in tmp_path.iterdir()] == ["precious.txt"]


def test_a_command_that_there_is_not_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert fails(["rnu", "digits"], capsys).endswith("unknown command 'rnu'; did you mean 'run'?\n")
    assert fails(["list", "method"], capsys).endswith("unknown kind 'method'; did you mean 'methods'?\n")


def test_without_words_cflag_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "run an experiment" in capsys.readouterr().out
    assert main(["list"]) == 0
    kinds = [line.strip() for line in capsys.readouterr().out.splitlines()[1:]]
    for kind in kinds:
        assert main(["list", kind]) == 0
    assert {"methods", "presets", "partitions"} <= set(kinds)


@pytest.mark.usefixtures("no_figures")
def test_a_folder_of_several_runs_is_told_from_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "both"
    assert main(["run", "digits", "--quiet", *FLAGS, "--methods", "finetune", "--seeds", "1,2", "--out", str(out)]) == 0
    capsys.readouterr()
    named = f"{out} is no run itself; name one of those in it: {out}/01-finetune-1, {out}/02-finetune-2\n"
    for words in (["export", str(out), "--to", "pytorch"], ["predict", str(out), "x.npz"], ["transfer", str(out)]):
        assert fails(words, capsys) == f"cflag: {named}"


@pytest.mark.usefixtures("no_figures")
def test_without_out_each_run_gets_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        assert main(["run", "digits", "--quiet", *FLAGS]) == 0
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["digits-cflag-1234", "digits-cflag-1234-2"]


@pytest.mark.usefixtures("no_figures")
def test_seeds_and_methods_make_one_folder_each_and_can_be_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "both"
    argv = ["run", "digits", "--quiet", *FLAGS, "--methods", "cflag,finetune", "--seeds", "1,2", "--out", str(out)]
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert "±" in text
    folders = sorted(p.name for p in out.iterdir() if p.is_dir())
    assert folders == ["01-cflag-1", "02-cflag-2", "03-finetune-1", "04-finetune-2"]
    (out / "04-finetune-2" / "result.json").unlink()
    assert main(["run", "--quiet", "--resume", str(out)]) == 0
    assert json.loads((out / "04-finetune-2" / "result.json").read_text())["seed"] == 2


def test_resume_refuses_what_it_cannot_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "holds no run to resume" in fails(["run", "--resume", str(tmp_path)], capsys)
    assert "--set cannot be changed" in fails(["run", "--resume", str(tmp_path), "--set", "rounds=3"], capsys)


def test_show_is_a_config_that_means_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for preset in preset_names():
        assert main(["show", preset, "--set", "seed=7"]) == 0
        text = capsys.readouterr().out
        config = resolve(tomllib.loads(text))
        assert config.seed == 7
        assert config.to_toml() == text


def test_a_toml_file_of_your_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.toml").write_text('method = "finetune"\nrounds = 3\n[finetune]\nlr = 0.5\n[cflag]\nbeta = 0.1\n')
    assert main(["show", str(tmp_path / "mine.toml")]) == 0
    shown = tomllib.loads(capsys.readouterr().out)
    assert (shown["rounds"], shown["finetune"]) == (3, {"lr": 0.5})
    assert shown["cflag"]["beta"] == 0.1  # a file means the same for every method it names


def test_settings_are_read_as_toml_or_as_a_word() -> None:
    assert parse_setting("zeta=1e5") == ("zeta", 1e5)
    assert parse_setting("source = cifar10") == ("source", "cifar10")
    assert parse_setting('source="har"') == ("source", "har")
    with pytest.raises(UserError):
        parse_setting("=3")


def test_a_run_used_with_python_objects_cannot_be_resumed_blindly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from cflag.results.folder import RunFolder

    RunFolder.create(tmp_path / "run", resolve({**QUICK, "source": "custom"}))
    line = fails(["run", "--resume", str(tmp_path / "run")], capsys)
    assert "resume it from Python with source=" in line


def test_mistakes_in_python_are_one_line_too(tmp_path: Path) -> None:
    import torch

    from cflag import Source, run

    x, y = torch.randn(40, 4), torch.arange(40) % 4
    ours = Source.from_tensors((x, y), (x, y))
    net = torch.nn.Linear(4, 4)
    wrong: list[tuple[Any, Any, str]] = [
        ((x.tolist(), y), None, "two tensors"),
        ((x, y[:, None]), None, "expected one number per sample"),
        ((x / 0, y), None, "not finite"),
        ((x, y[:30]), None, "40 samples and 30 labels"),
        (None, torch.nn.Linear(4, 3), r"returns \(3,\) outputs per sample; there are 4 classes"),
        (None, torch.nn.Linear(5, 4), "cannot take samples of shape"),
        (None, torch.nn.Linear, "model = 'Linear' cannot be made"),
    ]

    def attempt(data: Any, model: Any) -> None:
        source = ours if data is None else Source.from_tensors(data, data)
        run(source=source, model=model or net, tasks=2, clients=2, rounds=1, out=tmp_path / "run")

    for data, model, says in wrong:
        with pytest.raises(UserError, match=says):
            attempt(data, model)
    assert not (tmp_path / "run").exists()
    doubled = Source.from_tensors((x.double(), y), (x.double(), y))  # cast to the model's precision
    run(source=doubled, model=net, tasks=2, clients=2, rounds=1, out=tmp_path / "run")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_goes_nowhere_is_no_traceback(unbuffered: str) -> None:
    """Python writes at once or at its end, as the environment says: then it may find out when nobody catches it."""
    program = f"PYTHONUNBUFFERED={unbuffered} {sys.executable} -m cflag list methods"
    for target in ("| true", "> /dev/full"):
        done = subprocess.run(f"{program} {target}", shell=True, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr
        assert "Exception ignored" not in done.stderr


def test_a_run_outlives_the_reader_of_its_output(tmp_path: Path) -> None:
    command = f"{sys.executable} -m cflag run digits {' '.join(FLAGS)} --out {tmp_path / 'run'} | head -2"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert "task 1/2 done" in done.stdout
    assert (tmp_path / "run" / "result.json").exists()
