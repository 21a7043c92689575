"""The checksums of a finished run's files that do not say whose they are: result.json, which is compared between runs,
metrics.jsonl, which grows, and the model. They are in digests.json, with the run's name; runs of earlier versions have
none.
"""

from __future__ import annotations

from pathlib import Path

from cflag.errors import UserError
from cflag.files import WHAT_TO_DO, checksum, read_bytes, read_json, write_sealed_json

NAME = "digests.json"
RESULT, METRICS, MODEL = "result.json", "metrics.jsonl", "model.safetensors"
DESCRIPTION, BESIDE = "model.json", "predict.safetensors"
"""What it takes to use the model: how samples become inputs and what classes are; what a method needs beside it."""


def write_digests(folder: Path, run: str, result: bytes) -> None:
    """Write the checksums of the metrics and the model, and of the result before it is there: it ends the run."""
    there = [name for name in (DESCRIPTION, BESIDE) if (folder / name).exists()]
    sums = {name: _sum_of(folder / name) for name in (METRICS, MODEL, *there)}
    write_sealed_json(folder / NAME, {"run": run, **sums, RESULT: checksum(result)})


def check_ending(folder: Path, run: str) -> None:
    """Refuse a result that is not this run's own, and a model that is not; people may have deleted the model."""
    if not (folder / NAME).is_file():
        raise UserError(f"{folder / RESULT} has no {NAME} beside it: is it another run's? Without it the run goes on")
    known = read_json(folder / NAME)
    if known.get("run", run) != run:
        raise UserError(f"{folder / NAME} is of another run, {known['run']}; {WHAT_TO_DO}")
    check_model(folder)


def check_model(folder: Path) -> None:
    """Refuse a model, and what goes with it, that is not what was written."""
    known = read_json(folder / NAME) if (folder / NAME).is_file() else {}
    for name in (MODEL, DESCRIPTION, BESIDE):
        if (folder / name).exists() and known.get(name, "") not in ("", _sum_of(folder / name)):
            raise UserError(f"{folder / name} is not what {NAME} says was written; {WHAT_TO_DO}")


def check_digests(folder: Path) -> None:
    """Refuse a finished run whose result or metrics are not those that were written."""
    if not (folder / NAME).is_file():
        return
    known = read_json(folder / NAME)
    for name in (RESULT, METRICS):
        if known.get(name) != _sum_of(folder / name):
            raise UserError(f"{folder / name} is damaged: not what {NAME} says was written; {WHAT_TO_DO}")


def _sum_of(path: Path) -> str:
    return checksum(read_bytes(path)) if path.exists() else ""
