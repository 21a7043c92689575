"""Model hashes of many short runs, to show that a change of the code changed no number.

python -m benchmarks.hashes record FILE [--data DIR]     before the change
python -m benchmarks.hashes compare FILE [--data DIR]    after it; says which runs differ

Every method on Split-Digits, and on a tiny CIFAR-10 where --data has it; all settings of C-FLAG; a kill and resume, two
workers, a simulation and a deployment, which must all end with the same model. Hashes are those of one machine and one
version of torch: compare on the machine that recorded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from cflag import run
from cflag.files import load_state

METHODS = ("cflag", "cflag-sgd", "cflag-server", "finetune", "ewc", "nccl", "replay", "fedtrack", "agem", "derpp",
           "lwf", "icarl", "target", "joint")  # fmt: skip
RATES = {"alpha": 0.12, "beta": 0.1}
SHORT: dict[str, Any] = {"tasks": 3, "rounds": 3, "zeta": 0.5, "workers": 1, "target": {"samples": 32, "batch": 16},
                         "cflag": RATES, "cflag-sgd": RATES, "cflag-server": RATES}  # fmt: skip
TINY: dict[str, Any] = {**SHORT, "rounds": 2, "steps": 3, "samples_per_class": 20, "test_per_class": 5}
FLEET = ("--set", "rounds=2", "--set", "tasks=2", "--set", "clients=3", "--set", "zeta=0.5")

CFLAG_SETTINGS: dict[str, dict[str, Any]] = {
    "minibatch": {"estimator": "minibatch"},
    "no drift": {"drift": 0.0},
    "half drift": {"drift": 0.5},
    "minibatch, no drift": {"estimator": "minibatch", "drift": 0.0},
    "rates fixed": {"adapt": "off"},
    "average case": {"adapt": "average"},
    "interference": {"rules": "interference"},
    "transference": {"rules": "transference"},
    "cyclic": {"order": "cyclic"},
    "random": {"order": "random"},
    "diminishing": {"rate": "diminishing"},
    "estimated L": {"smoothness": "auto"},
    "estimated L, mean": {"smoothness": "auto", "smoothness_over": "mean"},
    "caps": {"alpha_cap": 0.15, "beta_cap": "paper"},
    "no caps": {"alpha_cap": "none"},
    "no gamma": {"measure_gamma": False},
}
SGD_SETTINGS: dict[str, dict[str, Any]] = {
    "current weights": {"weights": "current"},
    "own labels": {"labels": "own"},
    "delayed": {"estimator": "iag"},
    "both rules": {"rules": "both", "drift": 1.0},
    "rates fixed": {"adapt": "off"},
}
WHOLE: dict[str, dict[str, Any]] = {
    "adam": {"optimizer": "adam", "cflag": {"alpha": 0.01, "beta": 0.003}, "cflag-sgd": {"alpha": 0.01, "beta": 0.003}},
    "momentum": {"optimizer": "momentum"},
    "cohorts": {"clients": 8, "clients_per_round": 3},
    "class-incremental": {"scenario": "class"},
    "permuted": {"scenario": "permuted"},
    "rotated": {"scenario": "rotated"},
    "iid": {"partition": "iid"},
    "reservoir": {"memory": {"kind": "reservoir", "per_task": 30, "sample": 10}},
    "no memory": {"memory": {"kind": "none"}},
    "limited memory": {"memory": {"per_task": 40, "sample": 10, "limit_samples": 60}},
    "small table": {"table_bytes": 350_000},
}

Case = Callable[[Path], str]


def cases(data: Path | None) -> Iterator[tuple[str, Case]]:
    """Yield every case by name."""
    for method in METHODS:
        yield f"digits {method}", _run("digits", method=method, **SHORT)
        yield f"digits class {method}", _run("digits", method=method, scenario="class", **SHORT)
    for name, table in CFLAG_SETTINGS.items():
        yield f"digits cflag, {name}", _run("digits", method="cflag", **{**SHORT, "cflag": {**RATES, **table}})
    for name, table in SGD_SETTINGS.items():
        yield (
            f"digits cflag-sgd, {name}",
            _run("digits", method="cflag-sgd", scenario="class", **{**SHORT, "cflag-sgd": {**RATES, **table}}),
        )
    for name, settings in WHOLE.items():
        for method in ("cflag", "cflag-sgd", "replay"):
            yield f"digits {method}, {name}", _run("digits", method=method, **{**SHORT, **settings})
    if data is not None:
        for method in METHODS:
            tiny = {**TINY, "data_dir": str(data), "method": method}
            yield f"cifar10-smoke {method}", _run("cifar10-smoke", **tiny)
            yield f"cifar10-class-smoke {method}", _run("cifar10-class-smoke", **tiny)
        for method in ("cflag", "cflag-sgd", "target"):
            deep = {**TINY, "data_dir": str(data), "method": method, "model": "resnet18", "width": 8, "norm": "batch",
                    "tasks": 2}  # fmt: skip
            yield f"resnet18 {method}", _run("cifar10-smoke", **deep)
    for method in ("cflag", "icarl"):
        yield f"workers {method}", _command("run", "digits", method, "--workers", "2")
        yield f"killed {method}", _killed(method)
        yield f"simulation {method}", _command("run", "digits", method, "--engine", "flower-sim", "--workers", "2")
        yield f"deployment {method}", _command("deploy", "digits", method, "--no-database")


def _run(preset: str, **settings: Any) -> Case:
    return lambda folder: _hash(run(preset, out=folder, **settings).folder)


def _command(command: str, preset: str, method: str, *words: str) -> Case:
    def call(folder: Path) -> str:
        _cflag(command, preset, "--set", f"method={method}", *FLEET, *words, "--quiet", "--out", str(folder)).wait()
        return _hash(folder)

    return call


def _killed(method: str) -> Case:
    """Kill a run after its second round, and resume it."""

    def call(folder: Path) -> str:
        process = _cflag(
            "run", "digits", "--set", f"method={method}", *FLEET, "--set", "epochs=40", "--out", str(folder)
        )
        metrics = folder / "metrics.jsonl"
        while process.poll() is None and not (metrics.is_file() and metrics.read_bytes().count(b"\n") >= 2):
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        _cflag("run", "--quiet", "--resume", str(folder)).wait()
        return _hash(folder)

    return call


def _cflag(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "cflag", *words], stdout=subprocess.DEVNULL)


def _hash(folder: Path | None) -> str:
    """Return the hash of a run's model and of its accuracy matrices."""
    assert folder is not None
    matrices = json.loads((folder / "result.json").read_text())["matrices"]
    state = load_state(folder / "model.safetensors")
    tensors = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    values = {name: value for name, value in state.items() if name not in tensors}
    content = save(tensors, metadata={"json": json.dumps(values)}) + json.dumps(matrices).encode()
    return hashlib.sha256(content).hexdigest()[:16]


def main() -> None:
    """Record hashes, or compare with those recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("record", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--data", type=Path, help="a data folder with CIFAR-10")
    parser.add_argument("--only", default="", help="cases whose name has this in it")
    args = parser.parse_args()
    known = json.loads(args.file.read_text()) if args.what == "compare" else {}
    found: dict[str, str] = {}
    differ = []
    with tempfile.TemporaryDirectory() as home:
        for k, (name, case) in enumerate(cases(args.data)):
            if args.only not in name or (known and name not in known):
                continue
            found[name] = case(Path(home) / str(k))
            if known and known[name] != found[name]:
                differ.append(name)
                print(f"differs: {name}", flush=True)
    if args.what == "record":
        args.file.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{len(found)} hashes recorded in {args.file}")
        return
    print(f"{len(found) - len(differ)} of {len(found)} runs have the same model and accuracies")
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
