"""Secure aggregation: Flower's SecAgg+ carries our weighted means, so that the server learns sums and nothing else.

Flower has the protocol as a workflow for its older strategies. A question travels in the place of a strategy's fit
instructions; the answer, laid out as one vector, in the place of the fitted parameters, with n_i as the weight. Numbers
are rounded at random to multiples of 2 RANGE / 2^22, so means differ from plain ones by about 1e-5.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import (
    Code,
    FitIns,
    FitRes,
    Parameters,
    Status,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
from flwr.compat.common.recorddict_compat import fitres_to_recorddict, parameters_to_arrayrecord, recorddict_to_fitins
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key

from cflag.engines.flower.server.post import POLL, Post
from cflag.errors import CflagError

RANGE = 8.0
"""The largest number that can be carried, times p_i; larger ones are refused rather than clipped."""
LEAST = 3
"""With two clients each knows the other's answer from the sum."""

Layout = dict[str, list[int]]
"""The names and shapes of an answer's parts; all clients' are the same."""


# On a client ----------------------------------------------------------------------------------------------------------


def secure_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Follow the protocol where a message belongs to it, and let others pass."""
    if RECORD_KEY_CONFIGS in message.content.config_records:
        return secaggplus_mod(message, context, call_next)
    return call_next(message, context)


def is_secure(content: RecordDict) -> bool:
    """Whether a question came inside the protocol."""
    return "fitins.config" in content.config_records


def open_question(content: RecordDict) -> RecordDict:
    """Return the question as it would have come without the protocol."""
    config = recorddict_to_fitins(content, keep_input=True).config
    return RecordDict({"cflag": ConfigRecord({"head": str(config["head"]), "body": cast(bytes, config["body"])})})


def seal_answer(answer: Mapping[str, Any], weight: int, total: int, head: Mapping[str, Any]) -> RecordDict:
    """Lay an answer out for the protocol, which masks the vector and leaves the head as it is."""
    layout = {name: list(getattr(answer[name], "shape", ())) for name in sorted(answer)}
    parts = [torch.as_tensor(answer[name], dtype=torch.float64).reshape(-1) for name in sorted(answer)]
    vector = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)
    largest = float(vector.abs().max()) * weight / total if len(vector) else 0.0
    if not largest <= RANGE:
        raise CflagError(f"secure aggregation carries numbers up to {RANGE:g}; this answer has {largest:.3g}")
    sealed = FitRes(
        Status(Code.OK, ""),
        ndarrays_to_parameters([vector.numpy()]),
        weight,
        {"head": json.dumps({**head, "layout": layout})},
    )
    return fitres_to_recorddict(sealed, keep_input=False)


# On the server --------------------------------------------------------------------------------------------------------


class SecureMean:
    """Asks a question under SecAgg+ and returns the mean of the answers, weighted by what each client counts."""

    def __init__(self, post: Post, deadline: float) -> None:
        self.post = post
        self.deadline = deadline

    def ask(
        self, nodes: Sequence[int], head: str, body: bytes, total: int
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return the mean and the heads of those whose answers are in it; raise where too few took part."""
        question = FitIns(Parameters([], ""), {"head": head, "body": body})
        caught = _Caught(nodes, question)
        context = Context(0, 0, {}, RecordDict(), {})
        legacy = LegacyContext(context, strategy=cast(Any, caught), client_manager=cast(Any, caught))
        legacy.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: 1})
        legacy.state.array_records[MAIN_PARAMS_RECORD] = parameters_to_arrayrecord(Parameters([], ""), keep_input=True)
        protocol = SecAggPlusWorkflow(
            num_shares=1.0,
            reconstruction_threshold=0.5,
            max_weight=float(total),
            clipping_range=RANGE,
            timeout=self.deadline,
        )
        protocol(cast(Any, _Grid(self.post)), legacy)
        if caught.vector is None:
            raise CflagError("secure aggregation was given up: too few clients answered in time")
        return _unfold(caught.vector, caught.heads[0]["layout"]), caught.heads


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


def _unfold(vector: np.ndarray[Any, Any], layout: Layout) -> dict[str, Any]:
    """Take a vector apart again into tensors and numbers."""
    flat, answer = torch.from_numpy(vector), {}
    for name, shape in layout.items():
        size = int(np.prod(shape)) if shape else 1
        part, flat = flat[:size], flat[size:]
        answer[name] = part.reshape(shape) if shape else float(part)
    return answer
