"""The one-file algorithm and the package are the same algorithm."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector

from cflag import Source, cli, load_config, run
from cflag.config import load_raw, merge, parse_setting, resolve
from cflag.data.benchmark import Benchmark
from cflag.data.load import load_source
from cflag.data.source import Split
from cflag.data.sources.har import Windows
from tests.support.datasets import make_windows, write_har_npz

EXAMPLES = Path(__file__).parent.parent / "examples"
HAR = EXAMPLES / "har"
README = (EXAMPLES.parent / "README.md").read_text()


def minimal() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(EXAMPLES / "cflag_minimal.py"), run_name="minimal"))


def net() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 4)).double()


@pytest.mark.usefixtures("no_figures")
def test_minimal_file_and_package_produce_the_same_parameters(tmp_path: Path) -> None:
    """Three uneven clients, two tasks, adaptive rates: equal to the last few bits after all rounds."""
    torch.manual_seed(3)
    sizes = (7, 12, 9)
    owner = torch.repeat_interleave(torch.arange(3), torch.tensor(sizes)).repeat(2)
    y = torch.cat([torch.randint(0, 2, (28,)), torch.randint(2, 4, (28,))])
    turned = (owner == 2) & (torch.arange(56) >= 28)  # client 2 contradicts its past
    x = torch.randn(56, 2, dtype=torch.float64) + (y % 2 * torch.where(turned, -2, 1))[:, None]
    split = Split(x, y, owner)

    own = {
        "alpha": 0.05,
        "beta": 0.05,
        "estimator": "iag",
        "drift": 1.0,
        "order": "cyclic",
        "adapt": "worst",
        "rules": "both",
        "alpha_cap": "none",
    }
    result = run(
        source=Source("points", split, split, 4), model=net(), out=tmp_path / "run", loss=two_classes,
        method="cflag", scenario="class", class_order="natural", tasks=2, clients=3, partition="subject", rounds=4,
        batch=3, steps=5, workers=1, cflag=own, memory={"per_task": 100, "sample": 100},
    )  # fmt: skip

    file = minimal()
    model = net()
    params = parameters_to_vector(model.parameters()).detach()
    memories: list[Any] = [None] * 3
    for task in range(2):
        mine = [(owner == c) & (torch.arange(56) // 28 == task) for c in range(3)]
        clients = [
            file.Client(list(zip(x[rows].split(3), (y % 2)[rows].split(3), strict=True)), memory)
            for rows, memory in zip(mine, memories, strict=True)
        ]
        for _ in range(4):
            params = file.cflag_round(model, params, clients, file.Rates(steps=5))
        memories = [(x[rows], (y % 2)[rows]) for rows in mine]

    assert result.folder is not None
    ours = load_file(result.folder / "model.safetensors")
    flat = torch.cat([ours[name].reshape(-1) for name, _ in model.named_parameters()])
    torch.testing.assert_close(flat, params, rtol=1e-12, atol=1e-13)
    cases = {case for line in result.metrics for case in line["clients"]["case"]}
    assert cases == {"none", "interference", "transference"}  # every branch was compared


def two_classes(outputs: Tensor, samples: Any) -> Tensor:
    """Both tasks ask the same question, so that clients agree with the past now and then."""
    return F.cross_entropy(outputs, samples.y % 2)


def test_minimal_file_shows_what_memory_is_for(capsys: pytest.CaptureFixture[str]) -> None:
    with_memory, without = minimal().learn(True), minimal().learn(False)
    assert min(with_memory) > 0.9
    assert without[0] < 0.1


@pytest.mark.usefixtures("no_figures")
def test_own_model_and_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "own_model_and_data.py"), run_name="__main__")
    accuracy = float(capsys.readouterr().out.split("accuracy ")[1].split("%")[0])
    assert accuracy > 90


def test_the_python_example_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(1)
    code = README.split("```python\n")[1].split("```")[0]
    assert len(code.strip().splitlines()) <= 15
    exec(code, {})
    accuracy = float(capsys.readouterr().out.split()[0])
    assert accuracy > 0.9


@pytest.mark.slow
def test_the_demo_shows_what_a_memory_is_for(tmp_path: Path) -> None:
    """C-FLAG ends well above fine-tuning and forgets less than half as much; without its memory step it would not."""
    cflag, finetune, forgetful = (
        run("digits", method=method, memory={"kind": kind}, eval_every=10, out=tmp_path / f"{method}-{kind}")
        for method, kind in (("cflag", "ring"), ("finetune", "ring"), ("cflag-sgd", "none"))
    )
    assert cflag.average_accuracy > finetune.average_accuracy + 0.02
    assert cflag.forgetting < finetune.forgetting / 2
    assert forgetful.accuracy_matrix == finetune.accuracy_matrix  # no memory, no drift correction: FedAvg


# --- a worked case: examples/har -------------------------------------------------------------------------


def phones(folder: Path) -> Windows:
    """Thirty people, five windows of each activity; the file is shuffled, as the compact copies are."""
    windows = make_windows([(who, what, 5) for who in range(1, 31) for what in range(6)])
    mixed = np.random.default_rng(5).permutation(len(windows.y))
    windows = Windows(windows.x[mixed], windows.y[mixed], windows.subject[mixed])
    write_har_npz(folder, windows)
    return windows


def har_summary() -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(HAR / "summary.py"), run_name="summary"))


def test_har_gives_every_person_a_client_of_their_own_and_every_task_two_activities(tmp_path: Path) -> None:
    windows = phones(tmp_path)
    config = resolve(load_raw(str(HAR / "har.toml")))
    benchmark = Benchmark(load_source("har", tmp_path), config)
    assert (config.clients, config.scenario, config.model) == (30, "class", "cnn1d")
    assert [task.classes for task in benchmark.tasks] == [(0, 1), (2, 3), (4, 5)]
    whose = {x.tobytes(): (who, what) for x, who, what in zip(windows.x, windows.subject, windows.y, strict=True)}
    assert len(whose) == len(windows.y)  # a window tells by itself whose it is
    for client in range(30):
        for task in range(3):
            train, test = benchmark.train(client, task), benchmark.test(client, task)
            held = [whose[x.tobytes()] for x in torch.cat([train.x, test.x]).numpy()]
            # A fifth is held out, and nothing is lost, lent or given twice.
            assert (len(train), len(test)) == (8, 2)
            assert sorted(held) == sorted((client + 1, what) for what in (2 * task, 2 * task + 1) for _ in range(5))


@pytest.mark.usefixtures("no_figures")
def test_har_runs_from_the_file_to_the_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    phones(tmp_path)
    tiny = ["--set", "rounds=2", "--set", "width=2", "--set", "memory.per_task=4", "--set", "memory.sample=4"]
    where = ["--data-dir", str(tmp_path), "--out", str(tmp_path / "runs"), "--workers", "1", "--quiet"]
    arguments = ["run", str(HAR / "har.toml"), "--methods", "cflag,finetune", "--seeds", "1,2", *tiny, *where]
    assert cli.main(arguments) == 0
    monkeypatch.setattr(sys, "argv", ["summary.py", str(tmp_path / "runs"), "--out", str(tmp_path)])
    runpy.run_path(str(HAR / "summary.py"), run_name="__main__")
    numbers = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert set(numbers) == {"cflag", "finetune"}
    for method in numbers.values():
        assert method["seeds"] == [1, 2]
        assert len(method["people"]) == 30
        # Everyone holds out as many windows as anyone, so the people's mean is the accuracy.
        assert np.mean(method["people"]) == pytest.approx(method["accuracy"][0], abs=0.06)
        assert method["gradients"][0] == 2 * 3 * 30 * 8  # rounds, tasks, people, and all they have is one mini-batch
    assert numbers["cflag"]["gradients"][1] == 2 * 2 * 30 * 4  # the first task has no past
    assert numbers["finetune"]["gradients"][1] == 0
    assert (tmp_path / "har.png").read_bytes().startswith(b"\x89PNG")
    assert "| `cflag` | " in capsys.readouterr().out


def test_the_readme_of_har_prints_what_was_measured_with_commands_that_exist() -> None:
    readme, results = (HAR / "README.md").read_text(), json.loads((HAR / "results.json").read_text())
    for name, numbers in results.items():
        assert har_summary().table(numbers) in readme
        assert all(method["seeds"] == [1234, 1235, 1236] for method in numbers.values())
        assert f"--out runs/{name}" in readme
    commands = re.findall(r"^cflag .*", readme.replace("\\\n", " "), re.MULTILINE)
    assert len(commands) >= 3
    for command in commands:
        given = cli.parser().parse_args(shlex.split(command, comments=True)[1:])
        if "preset" in given:
            config = resolve(merge(load_raw(str(EXAMPLES.parent / given.preset)), map(parse_setting, given.set)))
            assert (config.source, config.partition, config.clients) == ("har", "subject", 30)
    assert (HAR / "har.png").stat().st_size < 150_000


# --- pictures that nothing was chosen on: examples/unseen --------------------------------------------------


def test_unseen_pictures_are_what_they_say() -> None:
    """Fifteen classes of strokes; 110 letters by each of the writers, all different, half of them held out."""
    drawn = SimpleNamespace(**runpy.run_path(str(EXAMPLES / "unseen" / "drawn.py"), run_name="unseen"))
    strokes = drawn.as_source("strokes", drawn.draw_strokes(train=3, test=1))
    assert torch.bincount(strokes.train.y).tolist() == [3] * 15
    assert torch.bincount(strokes.test.y).tolist() == [1] * 15
    glyphs = drawn.as_source("glyphs", drawn.draw_glyphs(writers=2, train=1, test=1))
    assert glyphs.classes == len(set(drawn.LETTERS)) == 110
    assert torch.bincount(glyphs.train.subject).tolist() == [110, 110]
    ink = (glyphs.train.x.flatten(1) > 128).sum(1)
    assert int(ink.min()) > 10  # no letter is missing in a font, nor cut off


@pytest.mark.parametrize("name", ["strokes", "glyphs"])
def test_unseen_files_choose_nothing_for_one_method_alone(name: str) -> None:
    """The same rate for everybody, α as much of it as its cap allows."""
    config = load_config(str(EXAMPLES / "unseen" / f"{name}.toml"))
    rates = {vars(s).get("lr", vars(s).get("beta")) for s in (config.settings, *config.other_settings.values())}
    assert rates == {0.05 if name == "strokes" else 0.2}
