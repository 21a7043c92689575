"""The Flower engine under secure aggregation: means are all the server sees, so nothing that singles out a client."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from cflag.account import Counts
from cflag.conversation import Ask, Cost, Mean, Value, nbytes
from cflag.engines.flower.messages import Bundle, Question, encode
from cflag.engines.flower.sealed import LEAST
from cflag.engines.flower.server.engine import FlowerEngine, question_of_test
from cflag.engines.flower.server.post import NO_ANSWER, POLL, failures
from cflag.engines.flower.server.secure_mean import SecureMean
from cflag.errors import CflagError
from cflag.server import Server


class SecureFlowerEngine(FlowerEngine):
    """Every question and every test is asked under SecAgg+.

    The server cannot tell a wrong answer from a right one, and clients' logs, losses and accuracies are not sent.
    """

    hears_logs = False

    def ask(self, ask: Ask, server: Server, cohort: Sequence[int] | None = None) -> Mean:
        """Put a question to a cohort, unless so few belong to it that a mean would tell what one of them answers."""
        if cohort is not None and len(cohort) < LEAST:
            raise CflagError(
                f"secure = true: question '{ask.question}' in round {server.done + 1} is for {len(cohort)} clients "
                f"alone, and a mean of fewer than {LEAST} is not secret; choose a schedule in which more go together"
            )
        return super().ask(ask, server, cohort)

    def collect(self, question: Question, asked: Sequence[int], needed: int, server: Server) -> tuple[Mean, set[int]]:
        """Return the mean answer to a question, and whose answers are in it."""
        largest = max(server.sizes[number] for number in asked)
        head = {**question.head(), "total": question.context.samples, "largest": largest}
        mean, heads = self._secure(head, question.tensors(), asked, max(needed, LEAST), question.context.samples)
        self.account.anonymous = True
        for each in heads:
            self.account.cost += Cost(*map(int, each["cost"]))
            self.account.uses[int(each["number"])] = int(each.get("uses", 0))
        self.heard = sorted(int(each["number"]) for each in heads)
        self.account.bytes_up += len(heads) * nbytes(mean)
        like = server.params
        answer = {name: v.to(like) if isinstance(v, Tensor) else v for name, v in mean.items()}
        return Mean(answer), set(self.heard)

    def evaluate(self, server: Server, tasks: Sequence[int], sent: Mapping[str, Value | None]) -> Counts:
        """Test at the clients; only the sum of their counts comes back, in one row for all of them."""
        self.attendance.welcome()
        question = question_of_test(server, sent, self.clock.now)
        asked = sorted(self.roll.present.intersection(self.testers(server)))
        most = max(sum(self.roll.members[n].test_sizes) for n in asked) or 1
        head = {**question.head(), "tasks": list(tasks), "total": len(asked), "most": most}
        mean, heads = self._secure(head, question.tensors(), asked, LEAST, len(asked))
        sums: Tensor = mean["counts"] * most * len(heads)
        return sums.round().long().reshape(1, len(tasks), 3)

    def _secure(
        self, head: Mapping[str, Any], tensors: Mapping[str, Tensor], asked: Sequence[int], needed: int, total: int
    ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Ask under the protocol until enough clients took part."""
        bundle, end = Bundle(tensors), time.monotonic() + self.config.patience
        text, body = encode(self.exchange.address(head, bundle), bundle.tensors)
        while True:
            self.roll.wait_for(needed, set(asked))
            present = [number for number in asked if number in self.roll.present]
            nodes = [self.roll.members[number].node for number in present]
            try:
                mean, heads = SecureMean(self.post, self.config.deadline).ask(nodes, text, body, total, needed)
                break
            except CflagError:
                if time.monotonic() > end:
                    raise
                time.sleep(POLL)
        heard = {int(each["number"]): each for each in heads}
        self.attendance.note(failures(asked, heard, f"{NO_ANSWER} within {self.config.deadline:g} s"))
        if any(isinstance(v, Tensor) and not bool(torch.isfinite(v).all()) for v in mean.values()):
            raise CflagError("the mean answer is not finite; under secure aggregation nobody can be named")
        return mean, heads
