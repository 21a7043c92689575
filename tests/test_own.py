"""Parts of one's own, handed over in Python or named by file, in comparisons, searches and every process."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cflag
from cflag import FedAvg, Rate, Result, Source, UserError, registry
from cflag.cli import main, parser
from cflag.config import load_config
from cflag.engines.flower.client.station import Stations
from cflag.errors import CflagError
from cflag.jobs import held
from cflag.results.folder import RunFolder
from cflag.results.follow import watch
from cflag.results.table import as_pandas
from tests.support.pages import blocks
from tests.support.processes import COMMAND, wait_for
from tests.support.quick import QUICK

pytestmark = pytest.mark.usefixtures("no_figures")

SMALL: dict[str, Any] = {"tasks": 2, "rounds": 2, "clients": 2, "steps": 2, "batch": 8}


class Slow(FedAvg):
    """FedAvg at half its rate."""

    search_space = {"lr": Rate()}  # noqa: RUF012  (as a user writes it)

    def direction(self, client: Any, batch: Any, **sent: Any) -> Tensor:
        gradient: Tensor = super().direction(client, batch, **sent)
        return gradient / 2


class Net(nn.Module):
    """A network of one's own."""

    def __init__(self, shape: tuple[int, ...] = (6,), outputs: int = 4, options: Any = None) -> None:
        super().__init__()
        self.layer = nn.Linear(shape[0], outputs)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.layer.weight, self.layer.bias)


def points(seed: int = 0) -> Source:
    """Four classes around four corners."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(4).repeat(20)
    x = torch.randn(80, 6, generator=draw) + 3 * nn.functional.one_hot(y, 6)
    return Source.from_tensors((x, y), (x + 0.1, y))


FILE = """
from torch import nn

class Net(nn.Module):
    def __init__(self, {arguments}):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        return self.layer(x.flatten(1))

def nothing():
    return 3
"""


@pytest.fixture
def net_file(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(FILE.format(arguments="shape, outputs, options"))
    return tmp_path / "net.py"


# In Python ------------------------------------------------------------------------------------------------------------


def test_compare_takes_ones_own_source_model_and_method(tmp_path: Path) -> None:
    table = cflag.compare(["finetune", Slow], source=points(), model=Net, seeds=[1, 2], out=tmp_path / "c", **SMALL)
    assert [(r.method, r.seed) for r in table.results] == [("finetune", 1), ("finetune", 2), ("Slow", 1), ("Slow", 2)]
    alone = cflag.run(source=points(), model=Net, method=Slow, seed=2, out=tmp_path / "alone", **SMALL)
    assert table.of(Slow)[1].accuracy_matrix == alone.accuracy_matrix  # in a process of its own as in this one
    half = cflag.run(source=points(), model=Net, method="finetune", finetune={"lr": 0.025}, seed=2,
                     out=tmp_path / "half", **SMALL)  # fmt: skip
    assert half.metrics[-1]["loss"] == pytest.approx(alone.metrics[-1]["loss"], rel=1e-5)  # half of 0.05
    lines = str(table).splitlines()
    assert lines[0] == "custom: equal rounds, mean ± standard deviation over 2 seeds"
    assert max(map(len, lines)) <= 80
    assert any(line.split()[:1] == ["Slow"] for line in lines)
    assert len(table.plot().axes[0].lines) == 2
    assert [record["seed"] for record in table.records()] == [1, 2, 1, 2]
    assert table.records()[3]["Acc %"] == pytest.approx(100 * alone.average_accuracy)

    stamps = {p: p.stat().st_mtime_ns for p in (tmp_path / "c").glob("*/result.json")}
    cflag.compare(["finetune", Slow], source=points(), model=Net, seeds=[1, 2], out=tmp_path / "c", **SMALL)
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps, "nothing is run again"
    with pytest.raises(UserError, match="another source, model or method of your own"):
        cflag.compare(["finetune"], source=points(9), model=Net, seeds=[1], out=tmp_path / "c", **SMALL)


def test_pandas_where_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = cflag.compare("finetune", source=points(), model=Net(), seeds=[1], out=tmp_path / "c", **SMALL)

    class Pandas:
        DataFrame = staticmethod(lambda rows: ("frame", rows))

    monkeypatch.setitem(sys.modules, "pandas", Pandas)
    assert table.to_pandas() == ("frame", table.records())
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match="pip install pandas"):
        table.to_pandas()


def test_records_are_rows_of_real_pandas() -> None:
    """A column for each key, a missing value where a row has none."""
    pandas = pytest.importorskip("pandas")
    frame = as_pandas([{"method": "cflag", "seed": 1, "accuracy": 0.5}, {"method": "ewc", "seed": 2, "accuracy": None}])
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["method", "seed", "accuracy"]
    assert frame["method"].tolist() == ["cflag", "ewc"]
    assert frame["accuracy"].isna().tolist() == [False, True]


def test_where_forks_could_not_learn_runs_start_anew_or_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some builds of torch: a process of its own does for what configs name, and nothing else has what is one's own."""
    forked = cflag.compare(["finetune"], preset="digits", seeds=[1], out=tmp_path / "a", **QUICK)
    monkeypatch.setattr("cflag.jobs.forks_can_learn", lambda: False)
    monkeypatch.setattr("cflag.jobs._Fork", None)
    anew = cflag.compare(["finetune"], preset="digits", seeds=[1], out=tmp_path / "b", **QUICK)
    assert anew.results[0].accuracy_matrix == forked.results[0].accuracy_matrix
    with pytest.raises(UserError, match="this process computed gradients, and this torch lets no fork"):
        cflag.compare(["finetune"], source=points(), model=Net, seeds=[1], out=tmp_path / "c", **SMALL)


def test_tune_takes_them_and_compare_takes_what_it_found(tmp_path: Path) -> None:
    tuned = cflag.tune([Slow], source=points(), model=Net, trials=3, out=tmp_path / "t", **SMALL)
    assert [trial.number for trial in tuned.trials["Slow"]] == [1, 2, 3]
    assert tuned.trials["Slow"][0].settings == {"lr": 0.05}
    assert tuned.records()[2] == {"method": "Slow", "trial": 3, "state": "finished",
                                  "accuracy": tuned.trials["Slow"][2].value,
                                  "lr": tuned.trials["Slow"][2].settings["lr"]}  # fmt: skip
    assert len(tuned.plot().axes) == 2
    table = cflag.compare([Slow], source=points(), model=Net, seeds=[1], tuned=tuned.best, out=tmp_path / "c", **SMALL)
    assert table.results[0].config["Slow"] == tuned.best["Slow"]
    by_hand = cflag.compare([Slow], source=points(), model=Net, seeds=[1], tuned=tuned.best, Slow={"lr": 0.01},
                            out=tmp_path / "d", **SMALL)  # fmt: skip
    assert by_hand.results[0].config["Slow"] == {"lr": 0.01}


def test_a_comparison_of_ones_own_that_was_stopped_goes_on(tmp_path: Path) -> None:
    """Ctrl-C reaches the process and those forked from it; the rounds so far are kept, and the end is the same."""
    script = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from tests.test_own import *
class Wait(Slow):
    def direction(self, client, batch, **sent):
        time.sleep({{pause}})
        return super().direction(client, batch, **sent)
if __name__ == "__main__":
    cflag.compare([Wait], source=points(), model=Net, seeds=[1, 2], out={str(tmp_path / "c")!r}, **{{small}})
"""
    small = {**SMALL, "rounds": 30}
    (tmp_path / "slow.py").write_text(script.format(pause=0.02, small=small))
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "slow.py")], stderr=subprocess.PIPE, start_new_session=True
    )
    folders = [RunFolder(tmp_path / "c" / f"Wait-30-{seed}") for seed in (1, 2)]
    wait_for(lambda: any(folder.rounds_done() > 2 for folder in folders), "a few rounds")
    os.killpg(process.pid, signal.SIGINT)
    assert b"stopped; all finished rounds are saved" in process.communicate(timeout=60)[1]
    assert not any(folder.finished for folder in folders)
    done = [folder.rounds_done() for folder in folders]
    assert any(done)

    class Wait(Slow):
        """FedAvg at half its rate, once more."""

    (tmp_path / "c" / "own.json").unlink()  # its code is another: it no longer waits
    table = cflag.compare([Wait], source=points(), model=Net, seeds=[1, 2], out=tmp_path / "c", **small)
    whole = cflag.compare([Wait], source=points(), model=Net, seeds=[1, 2], out=tmp_path / "d", **small)
    assert [r.accuracy_matrix for r in table.results] == [r.accuracy_matrix for r in whole.results]
    assert [r.metrics[-1]["loss"] for r in table.results] == [r.metrics[-1]["loss"] for r in whole.results]


def test_resume_with_a_method_of_ones_own(tmp_path: Path) -> None:
    result = cflag.run(source=points(), model=Net, method=Slow, out=tmp_path / "r", **SMALL)
    del registry._parts["method", "Slow"]
    (tmp_path / "r" / "result.json").unlink()
    with pytest.raises(UserError, match="unknown method 'Slow'"):
        cflag.resume(tmp_path / "r", source=points(), model=Net)
    again = cflag.resume(tmp_path / "r", source=points(), model=Net, method=Slow)
    assert again.accuracy_matrix == result.accuracy_matrix


def test_what_cannot_be_a_part_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "x"
    unmade: Any = lambda a, b: None  # noqa: E731
    no_net: Any = lambda: 3  # noqa: E731
    with pytest.raises(UserError, match="method must be a name or a class derived from Method"):
        cflag.run(method=Net, out=out)
    with pytest.raises(UserError, match=r"^source is a \w+; give a name, or make one: cflag.Source.from_tensors"):
        cflag.run(source=3, out=out)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"takes \(a, b\)"):
        cflag.run(model=unmade, out=out)
    with pytest.raises(UserError, match=r"which is no nn\.Module"):
        cflag.run(model=no_net, out=out)
    with pytest.raises(UserError, match="each once"):
        cflag.compare(["finetune", "finetune"], out=out)
    with pytest.raises(UserError, match="each once"):
        cflag.compare(["finetune"], seeds=[1, 1], out=out)
    with pytest.raises(UserError, match="lack a part which only this one has registered"):
        cflag.run(method=Slow, engine="flower-sim", out=out)
    finetune = type("finetune", (FedAvg,), {})
    with pytest.raises(UserError, match="'finetune' is there already"):
        cflag.run(method=finetune, out=out)
    assert not out.exists()


# By file --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", ["shape, outputs, options", "width=3"])
def test_a_model_by_its_file_in_run_compare_and_workers(arguments: str, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(FILE.format(arguments=arguments))
    flags = [f"--set={key}={value}" for key, value in SMALL.items()]
    argv = ["run", "digits", *flags, "--set", "method=finetune", "--set", f"model={tmp_path}/net.py:Net", "--quiet"]
    assert main([*argv, "--workers", "1", "--out", str(tmp_path / "one")]) == 0
    assert main([*argv, "--workers", "2", "--out", str(tmp_path / "two")]) == 0
    results = [Result.load(tmp_path / name) for name in ("one", "two")]
    assert results[0].config["model"] == f"{tmp_path / 'net.py'}:Net"
    assert results[0].accuracy_matrix == results[1].accuracy_matrix
    (tmp_path / "mine.toml").write_text('base = "digits"\nmodel = "net.py:Net"\n')
    assert load_config(str(tmp_path / "mine.toml")).model == f"{tmp_path / 'net.py'}:Net"


def test_a_module_beside_us_or_on_the_path(net_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(net_file.parent)
    assert load_config("digits", model="net:Net").model == f"{net_file}:Net"
    monkeypatch.chdir("/")
    (net_file.parent / "elsewhere_net.py").write_text(net_file.read_text())
    monkeypatch.syspath_prepend(str(net_file.parent))
    assert load_config("digits", model="elsewhere_net:Net").model == "elsewhere_net:Net"


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("{folder}/nowhere.py:Net", "there is no such Python file"),
        ("no_such_module:Net", "No module named 'no_such_module'"),
        ("{folder}/net.py:Nett", "there is no 'Nett'"),
        ("{folder}/net.py:", "networks there: Net"),
        ("{folder}/net.py:nothing", "makes 3, which is no nn.Module"),
    ],
)
def test_what_cannot_be_a_model_is_told_in_one_line(
    model: str, said: str, net_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = net_file.parent / "out"
    assert main(["run", "digits", "--set", f"model={model.format(folder=net_file.parent)}", "--out", str(out)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1
    assert not out.exists()


def test_a_client_never_loads_a_model_that_the_server_names(net_file: Path) -> None:
    folder = net_file.parent
    config = load_config("digits", clients=3, model=f"{net_file}:Net").to_toml()
    net_file.write_text(f"open({str(folder / 'sprung')!r}, 'w').close()\n")
    head = {"experiment": "0123456789abcdef", "config": config}
    own = {"data_dir": "", "device": "cpu", "plugins": []}
    registry_modules = [name for name in sys.modules if name.startswith(registry.OWN_FILE)]
    for name in registry_modules:
        del sys.modules[name]
    with pytest.raises(CflagError, match="start this client with --model"):
        Stations(keeps=True).get(folder / "state", 0, own, head)
    assert not (folder / "sprung").exists()
    (folder / "mine.py").write_text(FILE.format(arguments="shape, outputs, options"))
    station = Stations(keeps=True).get(folder / "state", 0, {**own, "model": f"{folder}/mine.py:Net"}, head)
    assert station.host.learner.params.numel() == 64 * 10 + 10


@pytest.mark.fleet
def test_simulation_and_deployment_have_the_local_numbers(net_file: Path) -> None:
    own = [f"--set={k}={v}" for k, v in SMALL.items()] + ["--set", f"model={net_file}:Net", "--quiet"]
    for command, name in (
        ("run", "local"),
        ("run --engine flower-sim --workers 2", "simulated"),
        ("deploy", "deployed"),
    ):
        first, *rest = command.split()
        out = str(net_file.parent / name)
        subprocess.run([*COMMAND, first, "digits", *rest, *own, "--out", out], check=True, stdout=subprocess.DEVNULL)
    models = {
        (net_file.parent / name / "model.safetensors").read_bytes() for name in ("local", "simulated", "deployed")
    }
    assert len(models) == 1


# Commands -------------------------------------------------------------------------------------------------------------


def _leaves(parser: argparse.ArgumentParser, name: str = "cflag") -> dict[str, argparse.ArgumentParser]:
    inner = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    found = {k: v for a in inner for key, sub in a.choices.items() for k, v in _leaves(sub, f"{name} {key}").items()}
    return found or {name: parser}


def test_every_command_takes_plugins() -> None:
    leaves = _leaves(parser())
    assert len(leaves) > 20
    assert not [name for name, parser in leaves.items() if "--plugin" not in parser.format_help()]


def test_a_plugin_can_be_named_when_a_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Begun in Python with a class, it goes on from the command line once the class is in a file."""
    result = cflag.run("digits", method=Slow, out=tmp_path / "r", workers=1, **SMALL)
    (tmp_path / "r" / "result.json").unlink()
    del registry._parts["method", "Slow"]
    (tmp_path / "mine.py").write_text(
        "from cflag import FedAvg, register\n\n@register('method', 'Slow')\nclass Slow(FedAvg):\n"
        "    def direction(self, client, batch, **sent):\n"
        "        return super().direction(client, batch, **sent) / 2\n"
    )
    assert main(["run", "--resume", str(tmp_path / "r")]) == 2
    error = capsys.readouterr().err
    assert "unknown method 'Slow'" in error
    assert "name its file: --plugin FILE.py" in error
    assert main(["run", "--quiet", "--resume", str(tmp_path / "r"), "--plugin", str(tmp_path / "mine.py")]) == 0
    again = Result.load(tmp_path / "r")
    assert again.accuracy_matrix == result.accuracy_matrix
    assert again.config["plugins"] == [str(tmp_path / "mine.py")]


def test_resuming_several_runs_says_which(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = load_config("digits", method="finetune", seed=1, workers=1, **SMALL)
    begun = load_config("digits", method="replay", seed=2, workers=1, **SMALL)
    cflag.Experiment(done).run(tmp_path / "all" / "a")
    RunFolder.create(tmp_path / "all" / "bb", begun)
    assert main(["run", "--resume", str(tmp_path / "all")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "a   finetune, seed 1: finished" in lines
    assert "bb  replay, seed 2: goes on after round 0 of 4" in lines
    custom = load_config("digits", source="custom", workers=1, **SMALL)
    RunFolder.create(tmp_path / "all" / "c", custom)
    assert main(["run", "--resume", str(tmp_path / "all")]) == 2
    assert f"{tmp_path / 'all' / 'c'}: this run used a source of its own" in capsys.readouterr().err


def test_finished_runs_with_parts_of_ones_own_are_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A method, a model and a source that only Python had: nothing of them is needed to show what came out."""
    result = cflag.run(source=points(), model=Net, method=Slow, out=tmp_path / "all" / "a", **SMALL)
    RunFolder.create(tmp_path / "all" / "b", load_config("digits", method="replay", seed=2, workers=1, **SMALL))
    del registry._parts["method", "Slow"]
    assert main(["run", "--resume", str(tmp_path / "all")]) == 0
    said = capsys.readouterr().out
    assert "a  Slow, seed 1234: finished" in said.splitlines()
    assert f"{100 * result.average_accuracy:.1f}" in said
    assert Result.load(tmp_path / "all" / "b").method == "replay"
    assert main(["run", "--resume", str(tmp_path / "all" / "a")]) == 0


def test_watch_waits_for_what_was_only_just_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = [f"--set={key}={value}" for key, value in SMALL.items()]
    out = tmp_path / "c"
    command = [*COMMAND, "compare", "digits", *flags, "--methods", "finetune,replay", "--seeds", "1", "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL):
        assert main(["watch", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "no run yet; waiting for one" in shown
    assert "finetune" in shown
    assert "replay" in shown


def test_watch_goes_on_while_someone_is_at_work(tmp_path: Path) -> None:
    """Between two groups of trials all runs have ended, and one was given up: more may come."""
    config = load_config("digits", method="finetune", workers=1, **SMALL)
    cflag.Experiment(config).run(tmp_path / "all" / "a")
    RunFolder.create(tmp_path / "all" / "b", config).pruned_file.write_text("{}")
    script = (
        "import sys, time; from pathlib import Path; from cflag.jobs import held\n"
        f"with held(Path({str(tmp_path / 'all')!r})):\n    print('held', flush=True)\n    time.sleep(1.5)\n"
    )
    from cflag.results.display import PatientConsole

    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="is in use by another process"), held(tmp_path / "all"):
            pass
        watch(tmp_path / "all", PatientConsole(), pause=0.05)
        assert not RunFolder(tmp_path / "all").in_use(), "it must not end before they do"


# The page -------------------------------------------------------------------------------------------------------------


def test_the_page_about_it_works_as_it_stands_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = blocks("docs/tune.md", "python")
    assert len(code) == 2
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    for block in code:
        exec(block.text, names)
    shown = capsys.readouterr().out
    assert "Gentle: the best of 4 trials" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert set(names["tuned"].best) == {"cflag", "Gentle"}
    assert (tmp_path / "mine.png").stat().st_size > 1000
    assert len(names["table"].results) == 6
