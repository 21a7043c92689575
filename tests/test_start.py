"""What waits for what: quick commands load nothing large, a run draws only after it has shown its result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cflag import registry, run
from cflag.cli import main
from cflag.errors import CflagError
from cflag.loggers.base import Logger, Status
from cflag.process import import_later
from cflag.results import drawing
from tests.support.quick import QUICK

LARGE = {"torch": "torch._C", "numpy": "numpy", "matplotlib": "matplotlib", "sklearn": "sklearn", "scipy": "scipy",
         "flwr": "flwr", "rich": "rich"}  # fmt: skip
"""What takes long to load, and the module that is there once its code has run."""
PRELUDE = f"""
import io, json, sys
from contextlib import redirect_stdout
from cflag.cli import main

def loaded():
    return [name for name, module in {LARGE!r}.items() if module in sys.modules]

def quick(*words):
    with redirect_stdout(io.StringIO()):
        try:
            code = main(words)
        except SystemExit as stop:
            code = stop.code
    assert not code, (words, code)
    print(json.dumps([words, loaded()]))
"""
SHORT = ["--workers", "1", *(f"--set={key}={value}" for key, value in QUICK.items())]


def said(program: str) -> list[Any]:
    """Run a program in an interpreter of its own; return the lines of JSON that it prints."""
    done = subprocess.run([sys.executable, "-c", PRELUDE + program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


def test_quick_commands_load_nothing_large() -> None:
    program = """
from cflag import registry
for words in (["--help"], ["run", "--help"], ["export", "--help"], ["--version"]):
    quick(*words)
for kind in (*map(registry.plural, registry.KINDS), "presets", "protocols"):
    quick("list", kind)
"""
    lines = said(program)
    assert len(lines) == 4 + len(registry.KINDS) + 2
    assert [words for words, large in lines if large] == []


def test_reading_configs_loads_no_torch() -> None:
    """Every preset, every method, and every other part that a config names."""
    program = """
from cflag import registry
from cflag.presets import preset_names, protocol_names
quick("data", "list")
quick("list", "campaigns")
for name in (*preset_names(), *protocol_names()):
    quick("show", name)
for key in ("method", "memory.kind", "mean.kind", "problem", "partition", "scenario", "model"):
    for name in registry.names(key.partition(".")[0]):
        if name not in ("folders", "own", "table"):  # these need data of one's own
            quick("show", "digits", "--set", f"{key}={name}", "--set", "clients=9")
quick("show", "digits", "--picture")
"""
    lines = said(program)
    assert len(lines) > 80
    assert [words for words, large in lines if set(large) - {"numpy"}] == []


def test_a_run_speaks_before_it_loads_torch_and_leaves_drawing_to_another_process(tmp_path: Path) -> None:
    program = f"""
from cflag.results import display
first, update = display.loading, display.Bar.update

def loading(console):
    print(json.dumps(["first line", loaded()]), flush=True)
    return first(console)

def updated(self, record):
    print(json.dumps(["round", loaded()]), flush=True)

display.loading, display.Bar.update = loading, updated
assert main({["run", "digits", *SHORT, "--out", str(tmp_path / "run")]!r}) == 0
print(json.dumps(["end", loaded()]))
"""
    lines = said(program)
    usual = ["torch", "numpy", "rich"]
    assert lines == [["first line", ["rich"]], *[["round", usual]] * 4, ["end", usual]]
    drawn = {path.name for path in (tmp_path / "run" / "figures").iterdir()}
    assert {"accuracy_matrix.png", "accuracy_matrix.svg", "rates.png"} <= drawn


def test_a_package_is_imported_when_something_of_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("slow", "other"):
        (tmp_path / f"{name}_to_load").mkdir()
        (tmp_path / f"{name}_to_load" / "__init__.py").write_text("import sys\nran = True\nsys.modules['RAN'] = sys\n")
        (tmp_path / f"{name}_to_load" / "inner.py").write_text(f"from {name}_to_load import ran")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("slow_to_load", "other_to_load", "other_to_load.inner", "RAN"):
        monkeypatch.setitem(sys.modules, name, None)  # so that all of it is gone afterwards
        del sys.modules[name]
    import_later("slow_to_load")
    import slow_to_load  # type: ignore[import-not-found]

    assert "RAN" not in sys.modules
    assert slow_to_load.ran
    assert type(slow_to_load) is type(sys)
    del sys.modules["RAN"]
    import_later("slow_to_load")  # it is there: nothing is left to do
    assert sys.modules["slow_to_load"] is slow_to_load
    import_later("other_to_load")
    from other_to_load import inner  # type: ignore[import-not-found]

    assert inner.ran
    assert "RAN" in sys.modules
    with pytest.raises(AttributeError):
        _ = slow_to_load.nothing


def test_a_package_that_is_not_there_is_missed_when_it_is_imported() -> None:
    import_later("a_package_that_is_not_there")
    assert "a_package_that_is_not_there" not in sys.modules


# Drawing beside -------------------------------------------------------------------------------------------------------


def note_process(file: Path) -> None:
    file.write_text(str(os.getpid()))


def fail() -> None:
    raise OSError(28, "No space left on device", "figures")


def fail_here() -> None:
    drawing.draw(fail)
    raise KeyError


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_one_other_process_draws_all_and_is_waited_for(tmp_path: Path) -> None:
    drawing.draw(note_process, tmp_path / "before")
    with drawing.beside():
        for name in ("one", "two"):
            drawing.draw(note_process, tmp_path / name)
        drawing.wait()
        found = {(tmp_path / name).read_text() for name in ("one", "two")}
        drawing.draw(note_process, tmp_path / "three")
    found.add((tmp_path / "three").read_text())
    drawing.draw(note_process, tmp_path / "after")
    assert len(found) == 1
    assert (tmp_path / "before").read_text() == (tmp_path / "after").read_text() == str(os.getpid())
    assert str(os.getpid()) not in found


def test_what_goes_wrong_beside_is_heard_of() -> None:
    with pytest.raises(OSError, match="No space left"), drawing.beside():
        drawing.draw(fail)
    with pytest.raises(CflagError, match="was killed"), drawing.beside():
        drawing.draw(die)
    with pytest.raises(KeyError), drawing.beside():  # what ended it matters more
        fail_here()
    drawing.wait()  # nothing is left of it


def test_the_result_is_shown_before_figures_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever draws waits here for the table: if the table waited for the drawing, nobody would go on."""

    def patient(result: object, folder: Path) -> list[Path]:
        end = time.monotonic() + 60
        while not (tmp_path / "shown").exists():
            assert time.monotonic() < end
            time.sleep(0.01)
        folder.mkdir()
        return []

    monkeypatch.setattr("cflag.results.figures.write_figures", patient)
    monkeypatch.setattr("cflag.results.display.show_tables", lambda *_: (tmp_path / "shown").touch())
    assert main(["run", "digits", *SHORT, "--out", str(tmp_path / "run"), "--quiet"]) == 0
    assert (tmp_path / "run" / "figures").is_dir()


def test_figures_that_a_kill_prevented_are_drawn_when_the_run_is_resumed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run("digits", out=folder, **QUICK)
    drawn = {path.name: path.read_bytes() for path in (folder / "figures").iterdir()}
    (folder / "figures").rename(folder / "figures.new")  # as far as it came
    (folder / "figures.new" / "rates.svg").write_text("half")
    assert main(["run", "--resume", str(folder), "--quiet"]) == 0
    assert {path.name: path.read_bytes() for path in (folder / "figures").iterdir()} == drawn
    assert not (folder / "figures.new").exists()


def test_loggers_take_figures_along_that_are_drawn_beside(tmp_path: Path) -> None:
    class Looks(Logger):
        def open(self, done: int) -> set[int]:
            return set()

        def log(self, step: int, values: Mapping[str, float]) -> None:
            pass

        def sum_up(self, result: Mapping[str, Any]) -> None:
            seen.there = (self.folder.path / "figures" / "accuracy_matrix.png").is_file()

        def close(self, status: Status) -> None:
            pass

    seen = SimpleNamespace(there=None)
    registry.register("logger", "looks")(Looks)
    with drawing.beside():
        run("digits", out=tmp_path / "run", log="looks", **QUICK)
    assert seen.there
