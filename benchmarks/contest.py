"""How a contestant is timed: a separate process that does one round for every line it receives.

The driver sends lines to one contestant after the other, so that noise affects all alike. A waiting contestant
blocks on its input and uses no CPU.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def take_turns(round_: Callable[[], None], peak_mb: Callable[[], float], **facts: Any) -> None:
    """Run as a contestant: one untimed round, then one for every line of input."""
    round_()
    say(facts)
    for _ in sys.stdin:
        started = time.perf_counter()
        round_()
        say({"seconds": time.perf_counter() - started, "peak_mb": peak_mb()})


class Turns:
    """`take_turns` for a framework that owns the loop: it asks `another` after every round, the untimed one first."""

    def __init__(self, peak_mb: Callable[[], float], **facts: Any) -> None:
        self.peak_mb, self.facts = peak_mb, facts
        self.started: float | None = None

    def another(self) -> bool:
        """Report the round just done, then wait for the next line; return False at the end of input."""
        if self.started is None:
            say(self.facts)
        else:
            say({"seconds": time.perf_counter() - self.started, "peak_mb": self.peak_mb()})
        if not sys.stdin.readline():
            return False
        self.started = time.perf_counter()
        return True


def say(what: dict[str, Any]) -> None:
    """Send the driver one line."""
    print("contest:" + json.dumps(what), flush=True)


def own_peak_mb() -> float:
    """Return this process's peak memory."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def tree_peak_mb() -> float:
    """Return the summed peak memory of this process and its living descendants."""
    parents, peaks = {}, {}
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:  # gone in the meantime
            continue
        number = int(status.parent.name)
        parents[number] = int(fields["PPid"])
        peaks[number] = int(fields.get("VmHWM", "0 kB").split()[0]) * 1.024e-3
    tree, before = {os.getpid()}, 0
    while len(tree) > before:
        before = len(tree)
        tree |= {number for number, parent in parents.items() if parent in tree}
    return sum(peaks[number] for number in tree)


class Contestant:
    """The driver's handle on a contestant."""

    def __init__(self, python: str, script: Path, *args: str) -> None:
        root = Path(__file__).parents[1]
        environment = {"PYTHONPATH": f"{root / 'src'}:{root}", "PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
        started = time.perf_counter()
        self.process = subprocess.Popen(
            [python, str(script), *args],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        self.facts = self._listen()
        self.start_seconds = time.perf_counter() - started
        self.seconds: list[float] = []
        self.peak_mb = 0.0

    def go(self) -> None:
        """Time one round."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        told = self._listen()
        self.seconds.append(told["seconds"])
        self.peak_mb = told["peak_mb"]

    def _listen(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("contest:"):
                told: dict[str, Any] = json.loads(line.removeprefix("contest:"))
                return told
        assert self.process.stderr is not None
        raise SystemExit(f"{self.process.args!r} ended:\n{self.process.stderr.read()[-3000:]}")

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.process.kill()
