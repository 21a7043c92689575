"""A message whose run ends while it is received: what the SuperNode keeps of it, and what the client does."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import uvicorn
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common.constant import Status, SubStatus
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeState, NodeStateFactory
from flwr.supernode.start_client_internal import _pull_and_store_message

from cflag.engines.flower.client import app as client_app
from cflag.engines.flower.client.executor import execute
from cflag.engines.flower.private import private_socket
from cflag.engines.flower.processes.supernode import receive_whole

RUN = 7


def node_after(receive: Callable[..., Any], ends: str) -> tuple[NodeState, Message]:
    """Let a SuperNode receive a message whose run ends at its content (`pull`), its confirmation, or later."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 1
    message = Message(RecordDict({"a": ConfigRecord({"b": 1})}), 1, "train")
    message.metadata.__dict__["_message_id"] = message.object_id
    contents = {key: nested.deflate() for key, nested in get_all_nested_objects(message).items()}
    factory = NodeStateFactory(ObjectStoreFactory())
    state = factory.state()
    state.store_run(Run.create_empty(RUN))

    def pull(run_id: int, key: str) -> bytes:
        if ends == "pull":
            raise RunNotRunningException
        return contents[key]

    def confirm(run_id: int, message_id: str) -> None:
        if ends == "confirmation":
            raise RunNotRunningException

    receive(
        state=state,
        object_store=state.object_store,
        node_config={},
        receive=lambda: (message, get_object_tree(message)),
        get_run=None,
        get_fab=None,
        pull_object=pull,
        confirm_message_received=confirm,
        trusted_entities=None,
    )
    return state, message


@pytest.mark.parametrize("ends", ["pull", "confirmation"])
def test_nothing_is_left_of_a_message_whose_run_ended(ends: str) -> None:
    """Flower alone leaves a task, for which a client would wait; that is why we are in between."""
    state, _ = node_after(_pull_and_store_message, ends)
    assert len(state.get_tasks(statuses=[Status.PENDING])) == 1
    state, _ = node_after(partial(receive_whole, _pull_and_store_message), ends)
    assert not state.get_tasks(statuses=[Status.PENDING])
    assert not state.get_messages_legacy(run_ids=[RUN], is_reply=False)


def test_a_whole_message_is_kept() -> None:
    state, message = node_after(partial(receive_whole, _pull_and_store_message), "later")
    assert len(state.get_tasks(statuses=[Status.PENDING])) == 1
    (kept,) = state.get_messages_legacy(run_ids=[RUN], is_reply=False)
    assert kept.metadata.message_id == message.metadata.message_id


def test_a_client_drops_a_message_that_is_withdrawn_and_answers_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server was killed before all of it was sent. Flower's answer to that would end the client's process."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN, 1
    factory = NodeStateFactory(ObjectStoreFactory())
    state = factory.state()
    state.set_node_id(1)
    state.store_run(replace(Run.create_empty(RUN), fab_hash=hashlib.sha256(b"app").hexdigest()))
    state.store_fab(Fab(hashlib.sha256(b"app").hexdigest(), b"app", {}))
    state.set_run_series_context(0, Context(RUN, 1, {}, RecordDict(), {}))
    half, whole = (Message(RecordDict({"a": ConfigRecord({"b": b})}), 1, "train") for b in (1, 2))
    asked, ends = [], threading.Event()

    def answer(message: Message, context: Context) -> Message:
        asked.append(message.content["a"]["b"])
        ends.set()
        return Message(RecordDict(), reply_to=message)

    monkeypatch.setattr(client_app, "client", answer)
    monkeypatch.setattr(client_app, "stations", None)
    with private_socket() as path, serving(create_app(factory), path):
        client = threading.Thread(target=execute, args=(path, lambda: not ends.is_set()))
        task = put(state, half, with_content=False)
        client.start()
        while not state.get_tasks(task_ids=[task], statuses=[Status.RUNNING]):
            time.sleep(0.01)
        time.sleep(0.5)  # it waits for the content
        state.delete_messages(message_ids=[half.object_id])
        state.object_store.delete(half.object_id)
        state.finish_task(task, sub_status=SubStatus.FAILED, details="")
        put(state, whole, with_content=True)
        client.join(30)
        assert not client.is_alive()
    assert asked == [2]
    assert [reply.metadata.reply_to_message_id for reply in state.get_messages_legacy(is_reply=True)] == [
        whole.object_id
    ]


def put(state: NodeState, message: Message, with_content: bool) -> int:
    """Put a message into a SuperNode's state as it does itself, and return its task."""
    message.metadata.__dict__["_message_id"] = message.object_id
    state.object_store.preregister(RUN, get_object_tree(message))
    state.store_message(message)
    if with_content:
        for key, nested in get_all_nested_objects(message).items():
            state.object_store.put(key, nested.deflate())
    task = state.create_task(task_type=TaskType.CLIENT_APP, run_id=RUN, fab_hash=hashlib.sha256(b"app").hexdigest())
    assert task is not None
    return task


@contextmanager
def serving(app: Any, path: str) -> Iterator[None]:
    """Serve an app behind a socket, in a thread."""
    server = uvicorn.Server(uvicorn.Config(app, uds=path, ws="none", log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield
    server.should_exit = True
    thread.join()
