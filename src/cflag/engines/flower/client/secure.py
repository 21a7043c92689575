"""Secure aggregation on a client: open a question that came inside the protocol, seal the answer for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
from flwr.compat.common.recorddict_compat import fitres_to_recorddict, recorddict_to_fitins

from cflag.engines.flower.sealed import RANGE, lay_out
from cflag.errors import CflagError


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
    vector, layout = lay_out(answer)
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
