"""Models of one's own by reference: `net.py:Net` or `mymodule:Net`, called as Net(shape, outputs, options) or Net().

Both execute code, so a machine loads only what it names itself: a client of a fleet refuses what its server names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cflag import registry
from cflag.errors import UserError
from cflag.files import checksum

if TYPE_CHECKING:
    from torch import nn

Maker = Callable[[tuple[int, ...], int, Any], "nn.Module"]


def is_reference(name: str) -> bool:
    """Whether a model is named by where its code is, and not by a registered name."""
    return ":" in name


def absolute_reference(name: str, where: Path) -> str:
    """Return a reference that means the same from everywhere: a file, also as a module beside us, by its whole path."""
    place, _, what = name.rpartition(":")
    path = Path(place).expanduser() if place.endswith(".py") else Path(*place.split(".")).with_suffix(".py")
    file = (where / path).resolve()
    return f"{file}:{what}" if place.endswith(".py") or file.is_file() else name


def code_of(name: str, plugins: Sequence[str]) -> dict[str, Any]:
    """Return where the code of a model is and its checksum, where it is a file of the user's own; else nothing."""
    file: str | None = name.rpartition(":")[0]
    if not is_reference(name):
        own = name in registry.names("model")
        file = inspect.getsourcefile(inspect.unwrap(registry.get("model", name))) if own else None
        file = file if file in plugins else None
    if not file or not file.endswith(".py"):
        return {}
    return {"code": {"file": file, "sha256": checksum(Path(file).read_bytes())}}


def model_maker(name: str) -> Maker:
    """Return what makes the model of a registered name or of a reference."""
    if not is_reference(name):
        maker: Maker = registry.get("model", name)
        return maker
    return maker_of(_load(name), name)


def network_or_maker(name: str) -> nn.Module | Maker:
    """Return the network that a reference names, where its weights come from elsewhere, or what makes it."""
    thing = _load(name) if is_reference(name) else None
    return thing if isinstance(thing, torch.nn.Module) else model_maker(name)


def _load(name: str) -> Any:
    """Return what a reference names."""
    place, _, what = name.rpartition(":")
    try:
        module = registry.import_file(Path(place), "model") if place.endswith(".py") else import_module(place)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"model = '{name}': {type(error).__name__}: {error}") from error
    if not what.isidentifier() or not hasattr(module, what):
        there = [word for word, thing in vars(module).items() if _is_network(thing)]
        raise UserError(f"model = '{name}': there is no '{what}' in {place}; networks there: {', '.join(there) or '–'}")
    return getattr(module, what)


def _is_network(thing: Any) -> bool:
    return isinstance(thing, type) and issubclass(thing, torch.nn.Module) and not thing.__module__.startswith("torch.")


def maker_of(thing: Any, name: str) -> Maker:
    """Return a class or function as the maker of a model, whichever of the two ways it is called in."""
    if not callable(thing) or isinstance(thing, torch.nn.Module):
        what = (
            f"a {type(thing).__name__} that is made already" if isinstance(thing, torch.nn.Module) else f"{thing!r:.60}"
        )
        raise UserError(f"model = '{name}' must be a class or a function that makes an nn.Module, not {what}")
    try:
        signature = inspect.signature(thing)
        takes_all = _binds(signature, None, None, None)
        if not takes_all and not _binds(signature):
            raise UserError(
                f"model = '{name}' takes {signature}; write it for (shape, outputs, options), or for nothing"
            )
    except ValueError:  # written in C: nobody knows what it takes
        takes_all = True

    def make(shape: tuple[int, ...], outputs: int, options: Any) -> nn.Module:
        try:
            made = thing(shape, outputs, options) if takes_all else thing()
        except (MemoryError, UserError):
            raise
        except Exception as error:
            raise UserError(f"model = '{name}' cannot be made: {type(error).__name__}: {error}") from error
        if not isinstance(made, torch.nn.Module):
            raise UserError(f"model = '{name}' makes {made!r:.60}, which is no nn.Module")
        return made

    return make


def _binds(signature: inspect.Signature, *arguments: object) -> bool:
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True
