"""ER-ACE-FL: replay with an asymmetric cross entropy (Caccia et al., ICLR 2022) in federated learning.

New classes do not push old ones aside: a mini-batch of the current task is learned against that task's own outputs
alone, one from the client's own memory against all open ones. In the task-incremental scenario it is replay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cflag.data.samples import Samples
from cflag.methods.base import FedAvg
from cflag.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from cflag.client import Client


@register("method", "er-ace")
class ErAce(FedAvg):
    """FedAvg along the mean of two gradients: of current samples over their task's outputs, of memory over all."""

    problems = ("classes",)
    uses_memory = True

    def direction(self, client: Client, batch: Samples, **sent: Any) -> Tensor:
        """The mean over the samples of the mini-batch and as many memory samples."""
        past = client.replay(len(batch))
        if past is None:
            return client.value_and_grad(batch)[1]
        now, then = client.value_and_grad(batch, client.own_loss)[1], client.value_and_grad(past)[1]
        return (len(batch) * now + len(past) * then) / (len(batch) + len(past))
