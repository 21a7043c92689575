"""What was handed over in Python instead of named: a source, a model, a loss, a method. Other processes cannot load it.

A process that is forked from this one has it anyway; so that is how comparisons and searches run with such parts.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from cflag import registry
from cflag.config import CUSTOM, Config, flatten, load_raw, merge
from cflag.data.source import Source
from cflag.errors import UserError
from cflag.experiment import Experiment
from cflag.learning.learner import OwnLoss
from cflag.methods.base import Method
from cflag.models.reference import Maker, maker_of


@dataclass(frozen=True)
class Own:
    """Objects of the user's own that runs use in the place of registered names."""

    source: Source | None = None
    model: nn.Module | Maker | None = None
    loss: OwnLoss | None = None

    def experiment(self, config: Config) -> Experiment:
        """Return the experiment of a config with them."""
        return Experiment(config, self.source, self.model, self.loss)

    def here_only(self, config: Config) -> bool:
        """Whether a run uses anything that a process which was not forked from this one lacks."""
        return any(part is not None for part in vars(self).values()) or any(_known_here_only(config))

    def digest(self, config: Config) -> str:
        """Return what tells these objects from others, so that runs of others are not taken for theirs."""
        whole = hashlib.sha256()
        for piece in _pieces(vars(self).values()):
            whole.update(piece)
        for kind, name in _named(config):
            if registry.only_here(kind, name):
                whole.update(_code(registry.get(kind, name)))
        return whole.hexdigest()[:16]


def taken(
    preset: str | None,
    source: Source | str | None,
    model: nn.Module | Maker | str | None,
    loss: OwnLoss | None,
    settings: Mapping[str, Any],
) -> tuple[dict[str, Any], Own]:
    """Return the raw values that a call in Python describes, and the objects in it.

    Without a preset they are Split-Digits' values, or plain defaults where the source is one's own.
    """
    raw = load_raw(preset or "digits") if preset or not isinstance(source, Source) else {}
    given = dict(settings)
    if "method" in given:
        given["method"] = method_name(given["method"])
    if isinstance(source, str):
        given["source"], source = source, None
    elif source is not None:
        if not isinstance(source, Source):
            what = type(source).__name__
            raise UserError(f"source is a {what}; give a name, or make one: cflag.Source.from_tensors((x, y), (x, y))")
        given["source"] = CUSTOM
        if "problem" not in raw:
            given.setdefault("problem", source.problem)
    if isinstance(model, str):
        given["model"], model = model, None
    elif model is not None:
        model = model if isinstance(model, nn.Module) else maker_of(model, getattr(model, "__name__", repr(model)))
        given["model"] = CUSTOM
    return merge(raw, flatten(given)), Own(source, model, loss)


def method_name(method: str | type[Method]) -> str:
    """Return a method's name; a class of one's own is registered under its own."""
    if isinstance(method, type) and issubclass(method, Method):
        return registry.name_of("method", method)
    if not isinstance(method, str):
        raise UserError(f"method must be a name or a class derived from Method, not {method!r:.80}")
    return method


def _named(config: Config) -> list[tuple[str, str]]:
    """Return the parts that a config names, with their kinds."""
    names = {"method": config.method, "source": config.source, "model": config.model, "scenario": config.scenario,
             "partition": config.partition, "schedule": config.schedule.kind, "memory": config.memory.kind,
             "mean": config.mean.kind, "backbone": config.backbone.partition(":")[0]}  # fmt: skip
    return list(names.items())


def _known_here_only(config: Config) -> Iterator[bool]:
    return (registry.only_here(kind, name) for kind, name in _named(config))


def _pieces(objects: Any) -> Iterator[bytes]:
    """Yield the bytes of all tensors in sources and modules, and the code of what is a class or a function."""
    for thing in objects:
        if isinstance(thing, Tensor):
            yield thing.detach().cpu().contiguous().flatten().view(dtype=_bytes()).numpy().tobytes()
        elif isinstance(thing, Source):
            yield from _pieces(x for half in (thing.train, thing.test) for x in vars(half).values())
        elif isinstance(thing, nn.Module):
            yield repr(thing).encode()
            yield from _pieces(thing.state_dict().values())
        elif thing is not None:
            yield _code(thing)


def _bytes() -> Any:
    import torch

    return torch.uint8


def _code(thing: Any) -> bytes:
    """Return the source code of a class or function; where there is none to read, its name."""
    try:
        return inspect.getsource(inspect.unwrap(thing) if callable(thing) else type(thing)).encode()
    except (OSError, TypeError):
        return getattr(thing, "__qualname__", type(thing).__qualname__).encode()
