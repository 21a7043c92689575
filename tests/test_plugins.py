"""Parts of the user's own, one of every kind in one file, in every command and every process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cflag import registry, run
from cflag.cli import main
from cflag.config import load_config, load_raw, resolve
from cflag.engines.flower.client.station import Stations
from cflag.errors import UserError
from cflag.files import load_state
from cflag.results.folder import RunFolder

PLUGIN = Path(__file__).parents[1] / "examples" / "own_parts.py"
OWN: dict[str, Any] = {
    "method": "pulled",
    "source": "dots",
    "problem": "top2",
    "scenario": "odd-even",
    "partition": "alternating",
    "schedule": "late",
    "model": "line",
    "memory.kind": "first",
    "mean.kind": "midway",
    "log": "lines",
    "augment.own": ["shrink"],
}
SHORT = {"tasks": 2, "rounds": 2, "epochs": 1, "clients": 3}


TUGGED = 'from cflag import FedAvg, register\n\n\n@register("method", "tugged")\nclass Tugged(FedAvg):\n    "Tugged."\n'


def words(settings: dict[str, Any]) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def cflag(*args: str) -> None:
    """Run a command in a process that knows nothing of the plugin but what the command says."""
    subprocess.run([sys.executable, "-m", "cflag", *args], check=True, stdout=subprocess.DEVNULL, timeout=280)


def model_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_every_kind_of_part_is_in_the_example() -> None:
    registry.load_plugins([PLUGIN])
    own = {kind: [n for n in registry.names(kind) if registry.get(kind, n).__module__.startswith("cflag_plugin")]
           for kind in registry.KINDS}  # fmt: skip
    assert all(len(names) == 1 for names in own.values()), own


def test_all_kinds_at_once_in_run_with_two_workers_and_in_a_report(tmp_path: Path) -> None:
    out = tmp_path / "two"
    cflag("run", "digits", "--plugin", str(PLUGIN), *words({**OWN, **SHORT}), "--workers", "2", "--out", str(out))
    assert (out / "figures" / "pull.png").is_file()
    logged = (out / "lines.txt").read_text().splitlines()
    assert [line.split()[0] for line in logged] == ["1", "2", "3", "4", "0"]
    result = json.loads((out / "result.json").read_text())
    assert result["average_accuracy"] > 0.8
    assert result["config"]["plugins"] == [str(PLUGIN)]
    # The points of a task have its three classes in turn, and go to three clients in turn: each gets one class.
    counts = json.loads((out / "benchmark.json").read_text())["class_counts"]
    alone = [[80, 0, 0], [0, 80, 0], [0, 0, 80]]
    assert counts == [dict(zip("024", alone, strict=True)), dict(zip("135", alone, strict=True))]
    plain: dict[str, Any] = {k: v for k, v in {**OWN, **SHORT}.items() if "." not in k}
    tables: dict[str, Any] = {"memory": {"kind": "first"}, "mean": {"kind": "midway"}, "augment": {"own": ["shrink"]}}
    one = run("digits", **plain, **tables, plugins=[str(PLUGIN)], out=tmp_path / "one", workers=1)
    assert one.folder is not None
    assert model_of(one.folder) == model_of(out)
    cflag("report", str(out), "--out", str(tmp_path / "page.html"))
    assert "Distance from the global model" in (tmp_path / "page.html").read_text()


def test_a_backbone_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Digits as the brightness of their eight columns and eight rows, in a run with two workers."""
    monkeypatch.setenv("CFLAG_DATA", str(tmp_path / "data"))
    settings = {**SHORT, "backbone": "profile", "model": "linear", "method": "ridge"}
    out = tmp_path / "run"
    cflag("run", "digits", "--plugin", str(PLUGIN), *words(settings), "--workers", "2", "--out", str(out))
    assert json.loads((out / "result.json").read_text())["average_accuracy"] > 0.85
    shape = load_state(out / "model.safetensors")["1.weight"].shape
    assert shape == (10, 16)


def test_compare_and_tune(tmp_path: Path) -> None:
    own = {**OWN, **SHORT}
    del own["method"]
    both = ["--plugin", str(PLUGIN), *words(own)]
    compare = ["compare", "digits", "--methods", "pulled,finetune", "--seeds", "1", *both]
    assert main([*compare, "--out", str(tmp_path / "c")]) == 0  # its runs are processes
    assert "| pulled |" in (tmp_path / "c" / "table-rounds.md").read_text()
    assert main(["tune", "pulled", "digits", "--trials", "1", *both, "--out", str(tmp_path / "t")]) == 0
    assert "[pulled]" in (tmp_path / "t" / "tuned.toml").read_text()


def test_a_file_names_its_plugins_relative_to_itself(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(TUGGED)
    (tmp_path / "mine.toml").write_text('base = "digits"\nplugins = ["mine.py"]\nmethod = "tugged"\n')
    config = load_config(str(tmp_path / "mine.toml"))
    assert config.plugins == (str(tmp_path / "mine.py"),)
    assert config.method == "tugged"
    assert "plugins" not in config.numbers()


def test_mistakes_are_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "methods", "--plugin", str(tmp_path / "none.py")]) == 2
    assert "none.py: there is no such Python file" in capsys.readouterr().err
    broken = tmp_path / "broken.py"
    broken.write_text("from cflag import register\n\nimport nowhere_to_be_found\n")
    assert main(["list", "methods", "--plugin", str(broken)]) == 2
    assert "broken.py: ModuleNotFoundError: No module named 'nowhere_to_be_found'" in capsys.readouterr().err
    twice = tmp_path / "twice.py"
    twice.write_text("from cflag import register\n\nregister('method', 'finetune')(object)\n")
    assert main(["list", "methods", "--plugin", str(twice)]) == 2
    assert "method 'finetune' is registered twice" in capsys.readouterr().err
    assert registry.get("method", "finetune").__name__ == "Finetune"
    with pytest.raises(UserError, match=r"plugins = 'mine.py' must be a list of strings"):
        resolve({**load_raw("digits"), "plugins": "mine.py"})
    with pytest.raises(UserError, match="unknown kind of part 'methods'; did you mean 'method'"):
        registry.register("methods", "mine")


def test_a_client_never_loads_a_file_that_the_server_names(tmp_path: Path) -> None:
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w').close()\n")
    config = load_config("digits", clients=3).to_toml().replace("plugins = []", f"plugins = [{str(trap)!r}]")
    assert str(trap) in config
    own = {"data_dir": "", "device": "cpu", "plugins": []}
    head = {"experiment": "0123456789abcdef", "config": config}
    station = Stations(keeps=True).get(tmp_path / "state", 0, own, head)
    assert station.config.plugins == ()
    assert not (tmp_path / "sprung").exists()


@pytest.mark.fleet
def test_simulation_and_deployment_have_the_local_numbers(tmp_path: Path) -> None:
    own = [*words({**OWN, **SHORT}), "--plugin", str(PLUGIN), "--quiet"]
    cflag("run", "digits", *own, "--out", str(tmp_path / "local"))
    cflag("run", "digits", *own, "--engine", "flower-sim", "--workers", "2", "--out", str(tmp_path / "simulated"))
    cflag("deploy", "digits", *own, "--no-database", "--out", str(tmp_path / "deployed"))
    assert model_of(tmp_path / "local") == model_of(tmp_path / "simulated") == model_of(tmp_path / "deployed")


def test_plugins_of_a_file_reach_tune_and_add_up_along_bases(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "mine.py").write_text(TUGGED)
    (tmp_path / "sub" / "below.toml").write_text('base = "digits"\nplugins = ["mine.py"]\n')
    (tmp_path / "above.toml").write_text(f'base = "sub/below.toml"\nplugins = ["sub/../sub/mine.py", "{PLUGIN}"]\n')
    config = load_config(str(tmp_path / "above.toml"), method="tugged")
    assert config.plugins == (str(tmp_path / "sub" / "mine.py"), str(PLUGIN))
    # Known before a single config was resolved: the settings are refused, not the method.
    assert main(["tune", "tugged", str(tmp_path / "above.toml"), "--set", "tugged.lr=0", "--out", str(tmp_path)]) == 2
    assert "tugged.lr = 0.0 must be positive" in capsys.readouterr().err
    (tmp_path / "wrong.toml").write_text('base = "digits"\nplugins = "mine.py"\n')
    assert main(["show", str(tmp_path / "wrong.toml")]) == 2
    assert "plugins = 'mine.py' must be a list of strings" in capsys.readouterr().err


def test_plugins_given_here_are_written_down_absolutely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine.py").write_text(TUGGED)
    monkeypatch.chdir(tmp_path)
    assert load_config("digits", plugins=["mine.py"]).plugins == (str(tmp_path / "mine.py"),)


def test_a_client_needs_neither_the_servers_loggers_nor_other_methods_tables(tmp_path: Path) -> None:
    registry.load_plugins([PLUGIN])
    config = load_config("digits", clients=3, log="lines", pulled={"lr": 0.1}).to_toml()
    for part in ("log", "pulled"):
        assert part in config
    for key in [key for key, part in registry._parts.items() if part.module.startswith("cflag_plugin")]:
        del registry._parts[key]
    head = {"experiment": "0123456789abcdef", "config": config}
    own = {"data_dir": "", "device": "cpu", "plugins": [], "log": ""}
    assert Stations(keeps=True).get(tmp_path, 0, own, head).config.method == "cflag"


def test_a_scenario_must_make_as_many_tasks_as_the_config_says(tmp_path: Path) -> None:
    own: dict[str, Any] = {"plugins": [str(PLUGIN)], "source": "dots", "scenario": "odd-even", "tasks": 5}
    with pytest.raises(UserError, match="scenario 'odd-even' makes 2 tasks, not 5; set tasks = 2"):
        run("digits", **own, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("figures", "why"),
    [
        ('(Figure("loss", "Loss", (Series("a", "a"),)),)', "cannot be named 'loss'"),
        ('(Figure("x", "X", (Series("a", "a"),)),) * 2', "cannot be named 'x'"),
        ('(Figure("x", "X", ()),)', "has no series"),
    ],
)
def test_figures_that_would_hide_others_are_refused(figures: str, why: str, tmp_path: Path) -> None:
    text = TUGGED.replace("import FedAvg,", "import FedAvg, Figure, Series,") + f"    figures = {figures}\n"
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(UserError, match=why):
        run("digits", method="tugged", plugins=[str(tmp_path / "mine.py")], out=tmp_path / "run")


def test_a_run_begun_elsewhere_can_be_logged_by_a_plugin(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", load_config("digits"))
    folder.log_to("lines", (str(PLUGIN),))
    assert (folder.config().log, folder.config().plugins) == ("lines", (str(PLUGIN),))
