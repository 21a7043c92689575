"""Secure aggregation on the server: Flower's SecAgg+ workflow, made to carry one question and return one mean."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common import FitIns, Parameters, parameters_to_ndarrays
from flwr.compat.common.recorddict_compat import parameters_to_arrayrecord
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key

from cflag.engines.flower.sealed import RANGE, take_apart
from cflag.engines.flower.server.post import POLL, Post
from cflag.errors import CflagError


class SecureMean:
    """Asks a question under SecAgg+ and returns the mean of the answers, weighted by what each client counts."""

    def __init__(self, post: Post, deadline: float) -> None:
        self.post = post
        self.deadline = deadline

    def ask(
        self, nodes: Sequence[int], head: str, body: bytes, total: int, needed: int
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the mean and the heads of those whose answers are in it; raise where fewer than `needed` took part.

        Masks come off with as many clients' shares, so the server cannot have a mean of fewer, even if it wanted to.
        """
        question = FitIns(Parameters([], ""), {"head": head, "body": body})
        caught = _Caught(nodes, question)
        context = Context(0, 0, {}, RecordDict(), {})
        legacy = LegacyContext(context, strategy=cast(Any, caught), client_manager=cast(Any, caught))
        legacy.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: 1})
        legacy.state.array_records[MAIN_PARAMS_RECORD] = parameters_to_arrayrecord(Parameters([], ""), keep_input=True)
        protocol = SecAggPlusWorkflow(
            num_shares=1.0,
            reconstruction_threshold=min(needed / len(nodes), 1.0),
            max_weight=float(total),
            clipping_range=RANGE,
            timeout=self.deadline,
        )
        protocol(cast(Any, _Grid(self.post)), legacy)
        if caught.vector is None or len(caught.heads) < needed:
            raise CflagError("secure aggregation was given up: too few clients answered in time")
        return take_apart(caught.vector, caught.heads[0]["layout"]), caught.heads


class _Caught:
    """In the place of a strategy: says whom to ask what, and catches the result."""

    def __init__(self, nodes: Sequence[int], question: FitIns) -> None:
        self.nodes = nodes
        self.question = question
        self.vector: np.ndarray[Any, Any] | None = None
        self.heads: list[dict[str, Any]] = []

    def num_available(self) -> int:
        """Return how many can be asked."""
        return len(self.nodes)

    def configure_fit(self, *_: Any) -> list[tuple[Any, FitIns]]:
        """Ask everyone the same."""
        return [(SimpleNamespace(node_id=node), self.question) for node in self.nodes]

    def aggregate_fit(self, _: int, results: Any, failures: Any) -> tuple[None, dict[str, Any]]:
        """Keep the mean; the protocol put it into every result."""
        self.heads = [json.loads(str(result.metrics["head"])) for _, result in results]
        if len({json.dumps(head["layout"]) for head in self.heads}) > 1:
            raise CflagError("clients' answers have different shapes; under secure aggregation none can be told wrong")
        self.vector = parameters_to_ndarrays(results[0][1].parameters)[0]
        return None, {}


class _Grid:
    """Flower's grid with our own way of waiting."""

    def __init__(self, post: Post) -> None:
        self.post = post

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages and wait for the replies."""
        pending = {key for key in self.post.grid.push_messages(list(messages)) if key}
        end = time.monotonic() + (timeout or 0.0)
        replies: list[Message] = []
        while pending and time.monotonic() < end:
            for message in self.post.grid.pull_messages(list(pending)):
                pending.discard(message.metadata.reply_to_message_id)
                replies.append(message)
            time.sleep(POLL / 5 if pending else 0)
        return replies
