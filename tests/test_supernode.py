"""What a SuperNode keeps of a message whose run ends while it is received."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import Status
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.nodestate import NodeState, NodeStateFactory
from flwr.supernode.start_client_internal import _pull_and_store_message

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
