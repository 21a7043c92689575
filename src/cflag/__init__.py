"""cflag: continual federated learning with C-FLAG and the methods it is compared with.

    from cflag import run
    result = run("digits", method="cflag", rounds=5)

Names are imported when first used, so that `import cflag` and `cflag --help` do not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cflag.client import Client
    from cflag.conversation import Answer, Ask, Conversation, Mean
    from cflag.data.source import Source
    from cflag.experiment import Experiment
    from cflag.launch import resume, run
    from cflag.methods.base import Method
    from cflag.results.result import Result
    from cflag.server import Server

__version__ = _version("cflag")

_HOMES = {
    "Answer": "cflag.conversation",
    "Ask": "cflag.conversation",
    "Client": "cflag.client",
    "Conversation": "cflag.conversation",
    "Experiment": "cflag.experiment",
    "Mean": "cflag.conversation",
    "Method": "cflag.methods.base",
    "Result": "cflag.results.result",
    "Server": "cflag.server",
    "Source": "cflag.data.source",
    "resume": "cflag.launch",
    "run": "cflag.launch",
}
__all__ = [
    "Answer",
    "Ask",
    "Client",
    "Conversation",
    "Experiment",
    "Mean",
    "Method",
    "Result",
    "Server",
    "Source",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'cflag' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
