"""The ClientApp: what a SuperNode runs for each message of cflag's ServerApp.

The node says which client it is and where it keeps its state and finds its data:
--node-config 'partition-id=0 state-dir="/var/lib/cflag" data-dir="/data" key="/etc/cflag/client.key"'
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from cflag.conversation import Answer
from cflag.engines.flower.client.secure import is_secure, open_question, seal_answer, secure_mod
from cflag.engines.flower.client.station import Station, Stations
from cflag.engines.flower.environment import SIMULATION
from cflag.engines.flower.identity import claim, sign
from cflag.engines.flower.messages import Parcel, pack, unpack
from cflag.errors import CflagError
from cflag.privacy.accounting import BudgetError

client = ClientApp(mods=[secure_mod])
stations = Stations(keeps=False)


@client.query()
def hello(message: Message, context: Context) -> Message:
    """Say who this client is, and sign it where this node knows its key."""
    node, key = message.metadata.dst_node_id, context.node_config.get("key")

    def greet(station: Station, head: Any, sent: Any) -> Parcel:
        answered, tensors = station.hello()
        said = claim(head["experiment"], head["nonce"], node, station.number)
        return {**answered, **(sign(Path(str(key)), said) if key else {})}, tensors

    return _reply(message, context, greet)


@client.train()
def answer(message: Message, context: Context) -> Message:
    """Answer a question of the method, or, where it came under secure aggregation, whatever it asks."""
    if is_secure(message.content):
        return _sealed(message, context)
    return _reply(message, context, Station.answer)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Test the global model on held-out samples."""
    return _reply(message, context, Station.evaluate)


def _reply(message: Message, context: Context, serve: Callable[[Station, Any, Any], Parcel]) -> Message:
    """Let the client's station serve a message; a failure that a person can fix is sent to the server in one line."""
    head, sent = unpack(message.content)
    try:
        station = stations.get(*_place(context), head)
        answered, tensors = serve(station, head, sent)
        if station.config.secure and message.metadata.message_type != "query":
            # A question in plain is one to catch up on, whose answer nobody needs; a test in plain is none of ours.
            answered, tensors = {k: v for k, v in answered.items() if k in ("number", "position", "lacks")}, {}
    except CflagError as error:
        stations.drop()
        answered, tensors = {"spent" if isinstance(error, BudgetError) else "error": str(error)}, {}
        mine = context.node_config.get("partition-id")
        answered |= {} if mine is None else {"number": int(mine)}
    except Exception:
        stations.drop()
        raise
    return Message(pack({"experiment": head["experiment"], **answered}, tensors), reply_to=message)


def _sealed(message: Message, context: Context) -> Message:
    """Answer for the protocol to mask; a client that fails drops out of it."""
    head, sent = unpack(open_question(message.content))
    station = stations.get(*_place(context), head)
    if "tasks" in head:
        answered, _ = station.evaluate(head, sent)
        values: Answer = {"counts": torch.tensor(answered["counts"], dtype=torch.float64) / head["most"]}
        plain, weight = {"number": station.number}, 1
    else:
        answered, tensors = station.answer(head, sent)
        values = station.with_noise(head, sent, {**tensors, **answered["numbers"]})
        plain = {k: v for k, v in answered.items() if k in ("number", "cost", "uses")}
        weight = int(answered["samples"])
    return Message(seal_answer(values, weight, head["total"], plain), reply_to=message)


def _place(context: Context) -> tuple[Path, int, dict[str, Any]]:
    """Return the state folder, the client's number, and what this machine decides of the config."""
    node = context.node_config
    if "partition-id" not in node:
        raise CflagError("this SuperNode does not say which client it is; start it with --node-config 'partition-id=0'")
    number = int(node["partition-id"])
    if "state-dir" in node:
        own = {"data_dir": str(node.get("data-dir", "")), "device": str(node.get("device", "cpu")), "log": "",
               "plugins": []}  # fmt: skip
        own |= {"model": str(node["model"])} if "model" in node else {}
        return Path(str(node["state-dir"])), number, own
    if SIMULATION in os.environ:
        return Path(os.environ[SIMULATION]) / f"client-{number}", number, {}
    if "num-partitions" in node:
        return _simulated(context.run_id) / f"client-{number}", number, {"log": "", "plugins": []}
    raise CflagError("this SuperNode has no place for its state; start it with --node-config 'state-dir=\"/a/folder\"'")


def _simulated(run: int) -> Path:
    """Return the folder for clients' states where `flwr run` simulates them: of this user and this run alone."""
    folder = Path(tempfile.gettempdir()) / f"cflag-{os.getuid()}-{run}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise CflagError(f"{folder} is not ours alone: it is no place for clients' states; remove it")
    return folder
