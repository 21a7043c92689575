"""cflag: continual federated learning with C-FLAG and the methods it is compared with.

    from cflag import run
    result = run("digits", method="cflag", rounds=5)

The names below are the public ones: what it takes to run experiments, and to write a method, a memory, a source or
another part of your own. They are imported when first used, so that `import cflag` and `cflag --help` do not wait for
torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version as _version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cflag.backbones.base import Backbone, BackboneOptions
    from cflag.backbones.features import features
    from cflag.client import Client
    from cflag.config import Config, load_config
    from cflag.conversation import Answer, Ask, Conversation, Mean
    from cflag.data.partitions.base import Deal
    from cflag.data.samples import Samples
    from cflag.data.scenarios.base import Task, TaskSequence
    from cflag.data.schedules.base import Plan, Schedule
    from cflag.data.source import Source, Split
    from cflag.diagnostics import Figure, Marks, Series
    from cflag.errors import UserError
    from cflag.experiment import Experiment
    from cflag.launch import resume, run
    from cflag.loggers.base import Logger
    from cflag.means.base import RobustMean
    from cflag.memory.base import Memory
    from cflag.methods.base import FedAvg, FedAvgSettings, Method
    from cflag.problems.base import Problem
    from cflag.problems.classes import Classes
    from cflag.problems.multilabel import MultiLabel
    from cflag.problems.regression import Regression
    from cflag.problems.score import Score
    from cflag.problems.sequence import SequenceLabels
    from cflag.registry import register
    from cflag.results.model import TrainedModel
    from cflag.results.result import Result
    from cflag.server import Server
    from cflag.transfer import total_transfer

__version__ = _version("cflag")

_HOMES = {
    "Answer": "cflag.conversation",
    "Ask": "cflag.conversation",
    "Backbone": "cflag.backbones.base",
    "BackboneOptions": "cflag.backbones.base",
    "Classes": "cflag.problems.classes",
    "Client": "cflag.client",
    "Config": "cflag.config",
    "Conversation": "cflag.conversation",
    "Deal": "cflag.data.partitions.base",
    "Experiment": "cflag.experiment",
    "FedAvg": "cflag.methods.base",
    "FedAvgSettings": "cflag.methods.base",
    "Figure": "cflag.diagnostics",
    "Logger": "cflag.loggers.base",
    "Marks": "cflag.diagnostics",
    "Mean": "cflag.conversation",
    "Memory": "cflag.memory.base",
    "Method": "cflag.methods.base",
    "MultiLabel": "cflag.problems.multilabel",
    "Plan": "cflag.data.schedules.base",
    "Problem": "cflag.problems.base",
    "Regression": "cflag.problems.regression",
    "Result": "cflag.results.result",
    "RobustMean": "cflag.means.base",
    "Samples": "cflag.data.samples",
    "Schedule": "cflag.data.schedules.base",
    "Score": "cflag.problems.score",
    "SequenceLabels": "cflag.problems.sequence",
    "Series": "cflag.diagnostics",
    "Server": "cflag.server",
    "Source": "cflag.data.source",
    "Split": "cflag.data.source",
    "Task": "cflag.data.scenarios.base",
    "TaskSequence": "cflag.data.scenarios.base",
    "TrainedModel": "cflag.results.model",
    "UserError": "cflag.errors",
    "features": "cflag.backbones.features",
    "load_config": "cflag.config",
    "register": "cflag.registry",
    "resume": "cflag.launch",
    "run": "cflag.launch",
    "total_transfer": "cflag.transfer",
}
__all__ = [
    "Answer",
    "Ask",
    "Backbone",
    "BackboneOptions",
    "Classes",
    "Client",
    "Config",
    "Conversation",
    "Deal",
    "Experiment",
    "FedAvg",
    "FedAvgSettings",
    "Figure",
    "Logger",
    "Marks",
    "Mean",
    "Memory",
    "Method",
    "MultiLabel",
    "Plan",
    "Problem",
    "Regression",
    "Result",
    "RobustMean",
    "Samples",
    "Schedule",
    "Score",
    "SequenceLabels",
    "Series",
    "Server",
    "Source",
    "Split",
    "Task",
    "TaskSequence",
    "TrainedModel",
    "UserError",
    "features",
    "load_config",
    "register",
    "resume",
    "run",
    "total_transfer",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'cflag' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
