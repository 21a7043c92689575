"""Which parameters of a network train: words and patterns of names; and what stays as it is."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate

from torch import nn

from cflag.errors import UserError

Parts = Mapping[str, nn.Module]
"""Networks by what the names of their parameters begin with; "" for nothing."""
HEAD = "head"
"""What a model on a backbone is called, and the word for a network's last layer."""
PICTURES = "pictures"
"""What prepares pictures for a backbone all of which is part of the model is called."""
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
BATCH_NORMS = nn.modules.batchnorm._BatchNorm
SHOWN = 8
"""How many of the names that exist are shown to someone who wrote another one."""


class Joined(nn.Sequential):
    """The upper part of a backbone, under its own names, and `head`, the model on it."""


def choose(parts: Parts, patterns: Sequence[str]) -> None:
    """Let those parameters train that a pattern names, and no others; refuse a pattern that names none."""
    named = [(prefix, pair) for prefix, part in parts.items() for pair in part.named_parameters(remove_duplicate=False)]
    known = {_joined(prefix, name): parameter for prefix, (name, parameter) in named}
    chosen: set[str] = set()
    for pattern in patterns:
        found = _named(pattern, parts, list(known))
        if not found:
            raise _unmatched(pattern, list(known))
        chosen |= found
    trained = {known[name] for name in chosen}  # by what it is: a parameter in two places has two names
    for parameter in known.values():
        parameter.requires_grad_(parameter in trained)


def of_head(pattern: str) -> bool:
    """Whether a pattern is for the model on a backbone alone."""
    return pattern == HEAD or pattern.startswith(f"{HEAD}.")


def _named(pattern: str, parts: Parts, known: list[str]) -> set[str]:
    """Return the parameters that a word or a pattern names."""
    if pattern == "all":
        return set(known)
    if pattern == "norm":
        layers = [layer for layer, module in _modules(parts).items() if isinstance(module, NORMS)]
        return {name for name in known if name.rpartition(".")[0] in layers}
    found = {name for name in known if any(fnmatchcase(inside, pattern) for inside in _around(name))}
    if pattern == HEAD and not found and known:  # in a network of one piece: the last layer that has parameters
        last = known[-1].rpartition(".")[0]
        found = {name for name in known if name.rpartition(".")[0] == last}
    return found


def _around(name: str) -> list[str]:
    """Return a parameter's name and those of all modules it is in: a.b.weight, a, a.b."""
    return [name, *accumulate(name.split(".")[:-1], "{}.{}".format)]


def _modules(parts: Parts) -> dict[str, nn.Module]:
    return {_joined(prefix, name): m for prefix, part in parts.items() for name, m in part.named_modules()}


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}.{name}" if prefix and name else prefix or name


def _unmatched(pattern: str, known: list[str]) -> UserError:
    """Return the error of a pattern that names nothing, with names that exist."""
    places = list(dict.fromkeys(place for name in known for place in (*_around(name)[1:], name)))
    return UserError(f"trainable: '{pattern}' names no parameter of the network; {suggestion(pattern, places)}")


def suggestion(pattern: str, names: Sequence[str]) -> str:
    """Return the name that was probably meant, or some of those there are."""
    close = difflib.get_close_matches(pattern.rstrip(".*"), names, n=1)
    if close:
        return f"did you mean '{close[0]}'?"
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"there are {', '.join(names[:SHOWN]) or 'none'}{more}"


def keep_statistics(network: nn.Module) -> None:
    """Let batch norms keep the statistics that they have, also where their weights train."""
    for module in network.modules():
        if isinstance(module, BATCH_NORMS) and module.track_running_stats:
            setattr(module, "keeps_statistics", True)  # noqa: B010 (a module has no such attribute, says mypy)


def set_training(model: nn.Module, mode: bool = True) -> None:
    """Switch a model between learning and answering; what is frozen, and what keeps its statistics, only answers."""
    model.train(mode)
    if mode:
        for module in model.modules():
            if getattr(module, "keeps_statistics", False) or _frozen(module):
                module.eval()


def _frozen(module: nn.Module) -> bool:
    """Whether a module has parameters, none of which train."""
    own = [p.requires_grad for p in module.parameters()]
    return bool(own) and not any(own)
