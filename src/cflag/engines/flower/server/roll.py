"""The roll: which client is behind which node, what is known of its data, and who is away.

Node ids are Flower's and random; a client's number is its own, and decides the order of sums.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Message
from flwr.common.constant import ErrorCode

import cflag
from cflag.config import Config
from cflag.data.schedules.base import Schedule
from cflag.data.spec import Spec
from cflag.engines.flower.identity import claim, signer
from cflag.engines.flower.messages import GarbageError, pack, unpack
from cflag.engines.flower.server.post import POLL, Letter, Post
from cflag.engines.flower.server.register import Register
from cflag.engines.flower.trail import Link, read_trail
from cflag.errors import CflagError, one_line
from cflag.files import strict_json
from cflag.means.shares import absurd

OTHER = "client {}'s data are of another benchmark: other classes, shape or scaling"
GONE = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE)
"""A node that went away before it could say hello; it is greeted again when it is back."""
HELLO = 60.0
"""Seconds a node has to say who it is; the first time it also loads torch and the data."""


@dataclass(frozen=True)
class Member:
    """A client that said who it is."""

    node: int
    spec: str
    """Its benchmark's spec as JSON, to compare."""
    sizes: list[int]
    test_sizes: list[int]
    key: str
    """The fingerprint of the key it signed with; "" where it has none."""
    trail: list[Link]


class Roll:
    """Keeps track of who is there. `present` holds the clients that can be asked."""

    def __init__(
        self,
        post: Post,
        experiment: str,
        config: Config,
        say: Callable[[str], None],
        register: Register,
        schedule: Schedule,
    ) -> None:
        self.schedule = schedule
        self.post = post
        self.register = register
        self.config = config
        self.say = say
        self.members: dict[int, Member] = {}
        self.present: set[int] = set()
        self.sizes: dict[int, list[int]] = {}
        """How many samples of each task everybody has who ever was here, also before the server was started again."""
        self._nonce = secrets.token_hex(16)
        self.hello = pack({"experiment": experiment, "config": config.to_toml(), "nonce": self._nonce}, {})
        self._experiment = experiment
        self._asked: dict[int, float] = {}
        self._pending: dict[str, int] = {}
        self._refused: dict[int, str] = {}
        self._missed: set[int] = set()
        self._doubts: dict[int, str] = {}
        self._agreed = ""

    def gather(self, done: int) -> Spec:
        """Wait for everyone who has begun by then, or, when patience is over, for as many as are needed.

        Return what their data agree on. Who comes later by the schedule, or is gone, is not waited for.
        """
        wanted, config = self._wanted(done), self.config
        end = time.monotonic() + config.patience
        tell = time.monotonic() + 5.0
        while not wanted <= self.present:
            now = time.monotonic()
            if now > end:
                self._enough_or_give_up(wanted)
                break
            if now > tell:
                here, needed = len(self.present & wanted), min(config.min_clients, len(wanted))
                self.say(
                    f"waiting for clients: {here} of {len(wanted)} are here; "
                    f"in {end - now:.0f} s the run goes on if at least {needed} are"
                )
                tell = now + 20.0
            self.look()
            time.sleep(POLL)
        return self._agree()

    def _wanted(self, done: int) -> set[int]:
        """Return who has begun by then and is not gone; where that is nobody, by the next round that has someone."""
        last = self.schedule.plan.total - 1  # of a finished run the last round's clients have the spec
        members = (set(self.schedule.members(then)) for then in (*range(done, last), last))
        return next(some for some in members if some)

    def wait_for(self, needed: int, among: set[int]) -> None:
        """Wait until so many of these clients are here."""
        end = time.monotonic() + self.config.patience
        if len(self.present & among) >= needed:
            return
        self.say(
            f"waiting for clients: {len(self.present & among)} of the {needed} needed are here; "
            f"giving up in {self.config.patience:.0f} s"
        )
        while len(self.present & among) < needed:
            if time.monotonic() > end:
                raise CflagError(
                    f"only {len(self.present & among)} clients are here and min_clients = {needed}; gave up after "
                    f"{self.config.patience:.0f} s"
                )
            self.look()
            time.sleep(POLL)
        self.say(f"{len(self.present & among)} clients are here; going on")

    def look(self) -> set[int]:
        """Greet nodes that are new or were away, without waiting; return the clients that came in."""
        for accepted in self.register.newly_accepted():
            self.say(f"client {accepted} is taken as it is: the operator accepted it")
            self.lose(accepted)
            self._refused.clear()
        connected = self.post.nodes()
        known = {self.members[number].node for number in self.present}
        now = time.monotonic()
        for node in sorted(connected - known):
            # A hello may get lost: the node is greeted again before patience with it is over.
            again = now - self._asked.get(node, now) >= min(HELLO, self.config.patience / 3)
            if again or node not in self._pending.values():
                self._asked[node] = now
                self._pending.update(self.post.send({node: Letter(node, "query", self.hello)}, HELLO))
        came = set()
        for node, message in self.post.collect(self._pending):
            if node in known:  # a late reply to a hello that was said twice: where the client was, not where it is
                continue
            number = self._enter(node, message)
            if number is not None:
                came.add(number)
        return came

    def lose(self, number: int) -> None:
        """A client did not answer: it is away until it says hello again."""
        self.present.discard(number)

    def distrust(self, number: int, why: str) -> None:
        """A client is not what it was: it is left out until it is again, or the operator accepts it."""
        self._doubts[number] = why
        self.lose(number)

    def why_away(self, number: int) -> str:
        """Return why a client cannot be asked; of one that should be here and never was the log says so, once."""
        if number not in self.sizes and number not in self._missed:
            self._missed.add(number)
            self.say(f"client {number} should take part from now on and has not come yet; it may join later")
        return f"refused: {self._doubts[number]}" if number in self._doubts else "away"

    def kept(self) -> dict[str, Any]:
        """Return what a restarted server must know of the clients, for the checkpoint."""
        return {**self.register.kept(), "sizes": {str(number): its for number, its in sorted(self.sizes.items())}}

    def take_back(self, kept: Mapping[str, Any]) -> None:
        """Take back what a checkpoint says of the clients, and look again at those that were let in without it."""
        self.register.take_back(kept)
        self.sizes = {int(number): its for number, its in kept.get("sizes", {}).items()} | self.sizes
        for number, member in list(self.members.items()):
            if why := self.register.doubt(number, member.key, member.trail):
                del self.members[number]
                self._refuse(member.node, f"client {number}: {why}")
                self.distrust(number, why)

    def size(self, number: int, task: int) -> int:
        """Return how many samples a client says it has of a task."""
        return self.members[number].sizes[task] if number in self.members else 0

    def _enter(self, node: int, message: Message) -> int | None:
        """Believe a node who it says it is, unless something speaks against it."""
        if message.has_error() and message.error.code in GONE:
            return None
        try:
            number, member = self._read(node, message)
        except (GarbageError, KeyError, TypeError, ValueError, OverflowError, RuntimeError) as error:
            self._refuse(node, str(error))
            return None
        if why := self._objection(number, member):
            self._refuse(node, why)
            return None
        self.members[number] = member
        self.sizes[number] = member.sizes
        self.present.add(number)
        self._doubts.pop(number, None)
        self.register.bind(number, member.key)
        if self._agreed:
            self._expel()  # who comes may show that the claims of someone else are absurd
        return number

    def _objection(self, number: int, member: Member) -> str:
        """Return why a node cannot be this client; "" if it can."""
        other = self.members.get(number)
        if other is not None and other.node != member.node and number in self.present:
            return f"it says it is client {number}, which another node already is"
        if doubt := self.register.doubt(number, member.key, member.trail):
            self.distrust(number, doubt)
            return f"client {number}: {doubt}"
        if other is not None and (other.sizes, other.test_sizes) != (member.sizes, member.test_sizes):
            return f"client {number} now counts other samples than when it first said hello"
        return self._wrong({**self.members, number: member}).get(number, "") if self._agreed else ""

    def _read(self, node: int, message: Message) -> tuple[int, Member]:
        if message.has_error():
            raise GarbageError(str(message.error.reason))
        head, _ = unpack(message.content)
        if "error" in head:
            number = head.get("number")
            raise GarbageError(f"client {number}: {head['error']}" if type(number) is int else str(head["error"]))
        if head["experiment"] != self._experiment:
            raise GarbageError("it answers for another experiment")
        if _release(head["version"]) != _release(cflag.__version__):
            raise GarbageError(f"it runs cflag {head['version']}, this server {cflag.__version__}")
        number, spec = head["number"], head["spec"]
        if type(number) is not int or not 0 <= number < self.config.clients:
            raise GarbageError(f"it says it is client {number}; there are clients 0 to {self.config.clients - 1}")
        if len(spec["tasks"]) != self.config.tasks or spec["clients"] != self.config.clients:
            raise GarbageError("its benchmark has another number of tasks or clients")
        if len(json.dumps(spec)) > 2**20 or any(
            not 0 < int(n) < 2**20 for n in [*spec["shape"], *spec.get("label", ()), spec["classes"]]
        ):
            raise GarbageError("its samples have no possible shape")
        Spec.from_dict(spec).blank()
        sizes, tests = (_counts(head[name], self.config.tasks) for name in ("sizes", "test_sizes"))
        key = signer(head, claim(self._experiment, self._nonce, node, number))
        return number, Member(node, strict_json(spec), sizes, tests, key, read_trail(head["trail"]))

    def _refuse(self, node: int, why: str) -> None:
        why = one_line(why)
        known = [number for number, member in self.members.items() if member.node == node]
        if known and not why.startswith(("client ", "it says")):
            why = f"client {known[0]}: {why}"
        if self._refused.get(node) != why:  # once is enough: it will be greeted again
            self._refused[node] = why
            self.say(f"refused node {node}: {why}")

    def _agree(self) -> Spec:
        """Take the spec that most clients have; the others do not belong, nor do those who claim absurdly much."""
        self._agreed = Counter(member.spec for member in self.members.values()).most_common(1)[0][0]
        self._expel()
        return Spec.from_dict(json.loads(self._agreed))

    def _expel(self) -> None:
        """Refuse members that turn out not to belong."""
        for number, why in self._wrong(self.members).items():
            self._refuse(self.members.pop(number).node, why)
            self.present.discard(number)

    def _wrong(self, members: Mapping[int, Member]) -> dict[int, str]:
        """Return whose data are of another benchmark, and who claims absurdly many samples beside the others.

        Weights, the number of local steps and accuracies are made of claims.
        """
        wrong = {n: OTHER.format(n) for n, member in members.items() if member.spec != self._agreed}
        for claims in ("test_sizes", "sizes"):
            claimed = {n: getattr(member, claims) for n, member in members.items() if n not in wrong}
            wrong |= absurd(claimed, self.config.mean.max_claim)
        return wrong

    def _enough_or_give_up(self, wanted: set[int]) -> None:
        here = len(self.present & wanted)
        if here < min(self.config.min_clients, len(wanted)):
            raise CflagError(
                f"only {here} of {len(wanted)} clients came in {self.config.patience:.0f} s and "
                f"min_clients = {self.config.min_clients}; are the others running, and their keys registered?"
            )
        absent = sorted(wanted - self.present)
        self._missed.update(absent)
        self.say(f"going on without clients {', '.join(map(str, absent))}; they may join later")


def _counts(values: Any, tasks: int) -> list[int]:
    """Return a list of counts, one per task, or refuse it."""
    if not isinstance(values, list) or len(values) != tasks:
        raise GarbageError(f"its sizes are {str(values)[:80]}")
    if any(type(v) is not int or not 0 <= v < 2**40 for v in values):
        raise GarbageError(f"its sizes are {str(values)[:80]}")
    return values


def _release(version: object) -> str:
    """Return which release a version is or becomes: all builds between two count as the next."""
    return str(version).partition(".dev")[0]
