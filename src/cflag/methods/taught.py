"""Methods with a teacher: the global model with which the previous task ended, sent along with every round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cflag.conversation import Conversation, Value
from cflag.methods.base import FedAvg

if TYPE_CHECKING:
    from cflag.server import Server


class Taught(FedAvg):
    """FedAvg whose clients get a teacher; its parameters travel with each round and are counted."""

    def sent(self, server: Server) -> dict[str, Value | None]:
        """The teacher; none during the first task."""
        return {name: server.state.get(name) for name in ("teacher", "teacher_buffers")}

    def end_task(self, server: Server) -> Conversation:
        """The model as it is now becomes the teacher."""
        server.state.update(teacher=server.params.clone(), teacher_buffers=server.buffers.clone())
        yield from super().end_task(server)
