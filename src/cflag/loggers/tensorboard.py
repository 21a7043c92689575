"""TensorBoard: event files in RUN/tensorboard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cflag.data.schedules.base import total_rounds
from cflag.loggers.base import TIME, Logger, Status, settings, summary
from cflag.registry import register


@register("logger", "tensorboard", "event files in RUN/tensorboard")
class TensorBoardLogger(Logger):
    """Event files in RUN/tensorboard."""

    title = "TensorBoard"
    package = "cflag[tensorboard]"

    @classmethod
    def modules(cls) -> Iterable[str]:
        """Return what PyTorch's writer needs."""
        return ["tensorboard"]

    def open(self, done: int) -> set[int]:
        """Go on after the rounds that are there; rounds beyond the finished ones no longer count."""
        from torch.utils.tensorboard import SummaryWriter

        path = self.folder.path / "tensorboard"
        there = _events(path)
        self.summed_up = any(tag.startswith("result/") for tag, _ in there)
        self.writer = SummaryWriter(str(path), purge_step=done + 1 if there and not self.summed_up else None)
        if not there:
            self.writer.add_text("config", f"```toml\n{self.config.to_toml()}```", 0)
        return {step for tag, step in there if tag == TIME and step <= done}

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write a round immediately, so that it can be seen."""
        self._write([_scalar(name, value) for name, value in values.items()], step)

    def _write(self, parts: Iterable[Any], step: int) -> None:
        """Write one event: it is in the file as a whole or not at all."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        whole = Summary(value=[value for part in parts for value in part.value])
        self.writer._get_file_writer().add_summary(whole, step)
        self.writer.flush()

    def sum_up(self, result: Mapping[str, Any]) -> None:
        """Add what the run came to, its settings beside it, and the figures."""
        from torch.utils.tensorboard.summary import hparams

        found = summary(result)
        parts = [_scalar(name, value) for name, value in found.items()]
        parts += [_image(path) for path in sorted((self.folder.path / "figures").glob("*.png"))]
        parts += hparams(settings(self.config), dict(found))  # SummaryWriter.add_hparams would make a run of its own
        if not self.summed_up:
            self._write(parts, total_rounds(self.config))

    def close(self, status: Status) -> None:
        """Close the file."""
        self.writer.close()


def _scalar(name: str, value: float) -> Any:
    from torch.utils.tensorboard.summary import scalar

    return scalar(name, value)  # in single precision: the reader behind TensorBoard's page leaves out what has more


def _image(path: Path) -> Any:
    import numpy as np
    from PIL import Image
    from torch.utils.tensorboard.summary import image

    with Image.open(path) as figure:
        return image(f"figures/{path.stem}", np.asarray(figure.convert("RGB")), dataformats="HWC")


def _events(path: Path) -> set[tuple[str, int]]:
    """Return the tags and steps in a folder of event files; a file that was cut short counts as far as it goes."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    files = sorted(path.glob("events.out.tfevents.*"))
    events = (event for file in files for event in EventFileLoader(str(file)).Load())
    return {(value.tag, event.step) for event in events for value in event.summary.value}
