"""What travels: a head of JSON values and a body of tensors. Nothing that could run code is ever read.

A tensor that the other side already holds is named by its digest instead of being sent again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from cflag.conversation import Moment, RoundContext, Value
from cflag.engines.host import GlobalModel
from cflag.errors import CflagError

SMALL = 2**20
"""Bytes up to which a body travels in one piece with its head; Flower cuts a larger one into chunks."""


class GarbageError(CflagError):
    """What the other side sent cannot be used."""


Parcel = tuple[dict[str, Any], dict[str, Tensor]]
"""What one message carries: a head and a body."""

Position = tuple[int, int]
"""When a question is asked: the rounds finished before it, and the questions asked since then."""


@dataclass(frozen=True)
class Question:
    """A question as it travels: what a method's `Ask` says, the global model, and when it is asked."""

    name: str
    sent: Mapping[str, Value]
    model: GlobalModel
    context: RoundContext
    position: Position

    def head(self) -> dict[str, Any]:
        """Return the part that is JSON."""
        here = self.context
        return {
            "question": self.name,
            "numbers": {k: v for k, v in self.sent.items() if not isinstance(v, Tensor)},
            "context": [here.task, here.round, here.samples, here.clients],
            **({} if here.own is None else {"moment": [list(here.own.seen), list(here.own.left), here.own.mixed]}),
            "position": list(self.position),
        }

    def tensors(self) -> dict[str, Tensor]:
        """Return the part that is tensors."""
        given = {f"sent.{k}": v for k, v in self.sent.items() if isinstance(v, Tensor)}
        return {"params": self.model.params, "buffers": self.model.buffers, **given}

    @classmethod
    def read(cls, head: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Question:
        """Put a question together again."""
        given = {k.removeprefix("sent."): v for k, v in tensors.items() if k.startswith("sent.")}
        model = GlobalModel(tensors["params"], tensors["buffers"])
        task, round_, samples, clients = head["context"]
        done, asked = head["position"]
        sent, own = {**head["numbers"], **given}, None
        if "moment" in head:
            seen, left, mixed = head["moment"]
            own = Moment(tuple(seen), tuple(left), bool(mixed))
        return cls(head["question"], sent, model, RoundContext(task, round_, samples, clients, own), (done, asked))


class Bundle:
    """Tensors on their way, each under its digest, so that what the receiver holds need not be sent again."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.digests = {name: digest(tensor) for name, tensor in tensors.items()}
        self.tensors = {self.digests[name]: tensor for name, tensor in tensors.items()}

    def without(self, held: Collection[str]) -> dict[str, Tensor]:
        """Return what a receiver that holds these still needs."""
        return {key: tensor for key, tensor in self.tensors.items() if key not in held}


class Shelf:
    """The receiver's side: the tensors of the last question, by digest."""

    def __init__(self) -> None:
        self.held: dict[str, Tensor] = {}

    def open(self, digests: Mapping[str, str], sent: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Return the tensors of a bundle under their names, and hold them; None where one is missing."""
        known = {**self.held, **sent}
        if not set(digests.values()) <= set(known):
            return None
        self.held = {key: known[key] for key in digests.values()}
        return {name: known[key] for name, key in digests.items()}


def digest(tensor: Tensor) -> str:
    """Return a tensor's name by content."""
    whole = tensor.detach().cpu().contiguous()
    shape = f"{whole.dtype}{tuple(whole.shape)}".encode()
    return hashlib.blake2b(shape + whole.numpy().tobytes(), digest_size=16).hexdigest()


def encode(head: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> tuple[str, bytes]:
    """Return a head and a body as text and bytes."""
    return json.dumps(head), save({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()})


def pack(head: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> RecordDict:
    """Put a head and a body into what Flower carries."""
    text, body = encode(head, tensors)
    if len(body) <= SMALL:
        return RecordDict({"cflag": ConfigRecord({"head": text, "body": body})})
    large = Array(dtype="uint8", shape=(len(body),), stype="safetensors", data=body)
    return RecordDict({"cflag": ConfigRecord({"head": text}), "body": ArrayRecord({"body": large})})


def let_go(message: Message) -> None:
    """Free a message's large body now: Flower's records refer to themselves, so Python would do it much later."""
    if message.has_content():
        for record in message.content.array_records.values():
            record.clear()


def unpack(content: RecordDict, limit: int = 2**40) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Take a head and a body out again; refuse anything else, and a body larger than `limit`."""
    try:
        record = content.config_records["cflag"]
        body = content.array_records["body"]["body"].data if "body" in content.array_records else record["body"]
        head = json.loads(str(record["head"]))
        if not isinstance(head, dict) or not isinstance(body, bytes):
            raise TypeError("not a message of cflag")
        if len(body) > limit:
            raise ValueError(f"{len(body)} bytes where at most {limit} make sense")
        return head, load(body)
    except (KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:  # also nested too deeply
        raise GarbageError(f"unreadable ({error})") from None
