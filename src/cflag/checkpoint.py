"""Checkpoints: a session and its history in the run folder, so that everything after a round can be lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from cflag.errors import UserError
from cflag.results.folder import RunFolder
from cflag.results.history import History
from cflag.session import Session
from cflag.states.store import check as check_states

FORMAT = 9
"""The version of a checkpoint's contents; another one's vectors may lie in another order."""
OTHER_VERSION = "{} was begun by another version of cflag; start a new run"


def save_checkpoint(
    folder: RunFolder, numbers: Mapping[str, Any], session: Session, history: History, record: dict[str, Any]
) -> None:
    """Write a finished round down: the clients that changed, its tests, its line of the metrics, then the server.

    `numbers` is what decides them, and what a checkpoint belongs to.
    """
    engine, server = session.engine, session.server
    stamp = f"{folder.name}.{server.task + 1}-{server.round + 1}"
    engine.save(folder.states, stamp)
    history.states = folder.states.named()
    for counts in history.new_tests:
        folder.save_test(history.tests, counts)
        history.tests += 1
    history.new_tests.clear()
    history.count_line(folder.append(record))
    history.model_sent = engine.model_sent(server)
    history.peak_mb = max(history.peak_mb, engine.peak_mb())
    state = {f"state.{name}": value for name, value in server.state.items()}
    state |= {f"tail.{name}": value for name, value in server.tail.items()}
    state |= {f"engine.{name}": value for name, value in engine.kept().items()}
    if engine.schedule.streams:
        state["passed_by"] = sorted(server.passed_by)
    if engine.warden is not None:
        state |= {f"privacy.{name}": value for name, value in engine.warden.kept().items()}
    model = {"params": server.params, "buffers": server.buffers}
    about = {"format": FORMAT, "config": dict(numbers)}
    folder.generations.save(stamp, {**model, **about, **state, **history.to_dict()})
    folder.states.checkpointed()


def restore_checkpoint(
    folder: RunFolder, numbers: Mapping[str, Any], session: Session, tell: Callable[[str], None]
) -> History | None:
    """Bring a session to the last good checkpoint; return the history so far, None where no round was finished."""

    def check(saved: dict[str, Any], stamp: str) -> None:
        _check(folder, numbers, saved, stamp)
        if session.engine.schedule.streams and "passed_by" not in saved:
            raise UserError(OTHER_VERSION.format(folder.path))

    _refuse_other(folder)
    saved, wrong = folder.generations.load(check)
    if saved is None:
        folder.cut_metrics(0)
        return None
    if wrong:
        line = f"{wrong.partition(';')[0]}; going on from the checkpoint before it, after {saved['done']} rounds"
        folder.say(line)
        tell(line)
    folder.cut_metrics(saved["metrics_bytes"])
    engine, server = session.engine, session.server
    server.params.copy_(saved.pop("params"))
    server.buffers.copy_(saved.pop("buffers"))
    for kept, prefix in ((server.state, "state."), (server.tail, "tail.")):
        for name, value in _taken(saved, prefix).items():
            kept[name] = value.to(server.params.device) if isinstance(value, torch.Tensor) else value
    engine.take_back(_taken(saved, "engine."))
    if engine.warden is not None:
        engine.warden.take_back(_taken(saved, "privacy."))
    if engine.schedule.streams:
        server.passed_by = set(saved.pop("passed_by"))
    history = History.from_dict(saved)
    folder.states.restore(history.states, folder.generations.before())
    engine.restore(folder.states)
    engine.note_model_sent(server, history.model_sent)
    return history


def _check(folder: RunFolder, numbers: Mapping[str, Any], saved: dict[str, Any], stamp: str) -> None:
    """Refuse a checkpoint of another version or config, or one with which something damaged was written."""
    if saved.pop("format", None) != FORMAT:
        raise UserError(OTHER_VERSION.format(folder.path))
    refuse_changed(saved.pop("config"), numbers, folder.path)
    check_states(folder.checkpoints, saved["states"], stamp)
    folder.check_test(saved["tests"] - 1)
    folder.check_metrics(saved["metrics_bytes"], saved["metrics_checksum"])


def _taken(saved: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Take what has this prefix out of a checkpoint."""
    return {name.removeprefix(prefix): saved.pop(name) for name in list(saved) if name.startswith(prefix)}


def _refuse_other(folder: RunFolder) -> None:
    """Checkpoints belong to the run whose name their folder has."""
    others = folder.generations.runs() - {folder.name}
    for run in sorted(others):
        raise UserError(
            f"{folder.checkpoints} is of the run {run}, but {folder.name_file} says {folder.name}; "
            f"if nothing was copied here, {folder.name_file.name} is damaged: write {run} into it"
        )


def refuse_changed(before: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    """A checkpoint belongs to the config it was made with; say which key was changed since."""
    for key, value in now.items():
        if isinstance(value, Mapping) and isinstance(before.get(key), Mapping):
            value = {inner: value.get(inner) for inner in before[key]}
        if key in before and before[key] != value:  # a key that did not exist then has its default, which is as it was
            raise UserError(
                f"{path / 'config.toml'}: '{key}' was changed since the checkpoint ({before[key]} to {value}); "
                "change it back, or start a new run"
            )
