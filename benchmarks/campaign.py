"""A thousand faults: after each the run goes on, and in the end not one number or memory differs.

python -m benchmarks.campaign [--faults N] [--seed S] [--out DIR] [KIND ...]      (or: make campaign)

Faults are injected where that is cheap, many into one run: on the local engine real SIGKILLs and a full disk at file
operations, and flipped bits; on a grid without processes whatever happens to messages, clients and the server (there a
killed process is one that loses its memory and ends in the middle of a file operation). `make faults` breaks real
fleets. All clients are needed, so a run waits for what is broken; what is damaged or wiped at a client is put back once
it was refused. Cases that are done are in DIR/cases.jsonl: the same command goes on after them.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.faults import same_state
from benchmarks.fleet_faults import FLEET_KINDS, run_fleet
from benchmarks.injection import Operations, Strike, disk_full, flip_bit
from cflag import run
from cflag.cli import main as cflag
from cflag.errors import UserError
from cflag.files import load_state
from cflag.results import folder as run_folders
from cflag.results.folder import RunFolder

LOCAL: dict[str, Any] = {
    "clients": 3,
    "tasks": 2,
    "rounds": 3,
    "width": 8,
    "batch": 64,
    "samples_per_class": 40,
    "workers": 1,
}
SHARES = {
    "process killed at a file operation": 300,
    "disk full at a file operation": 150,
    "bit flipped in the run folder": 150,
    "answer is garbage": 100,
    "answer delayed": 50,
    "question or answer lost": 75,
    "client killed at a file operation": 50,
    "client's disk full": 25,
    "bit flipped in a client's state": 25,
    "client's state wiped or an old copy": 25,
    "server killed": 25,
    "server killed, its checkpoint damaged": 25,
}
"""The kinds of faults, and how many of a thousand each has."""
OPERATIONS = 60
"""A process is struck within so many file operations from its start; a run has about 130."""
TRIES = 60
PRELOADED = ["benchmarks.fleet_faults", "cflag.experiment", "cflag.launch", "sklearn.datasets"]
LIMIT = 300.0
"""Seconds after which a process hangs."""
PROCESSES = get_context("forkserver")
"""Processes are forked from one that imported everything and did nothing: torch's threads do not survive a fork."""


@dataclass
class Case:
    """One run, the faults injected into it, and what they did."""

    kind: str
    number: int
    injected: int
    noticed: int
    """Lines that say so: of a process that ended, or in the events of a fleet."""
    wrong_rounds: int
    lost_memories: int
    untidy: int
    """Ended with a traceback instead of a line, or left files behind that nobody needs."""


@dataclass
class Whole:
    """A run that saw no fault."""

    lines: list[dict[str, Any]]
    model: bytes
    memories: dict[int, dict[str, Any]]
    """What each client has kept."""

    @classmethod
    def read(cls, folder: Path, memories: dict[int, dict[str, Any]]) -> Whole:
        """Read a finished run, whose clients' states are these."""
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        skip = ("seconds", "missing", "cohort")
        plain = [{k: v for k, v in line.items() if k not in skip} for line in lines]
        return cls(plain, (folder / "model.safetensors").read_bytes(), memories)

    def wrong_rounds(self, other: Whole) -> int:
        """Return how many rounds of another run differ; a model that differs is wrong, too."""
        pairs = zip(self.lines, other.lines, strict=False)
        wrong = sum(mine != its for mine, its in pairs) + abs(len(self.lines) - len(other.lines))
        return wrong or int(self.model != other.model)

    def lost_memories(self, other: Whole) -> int:
        """Return how many clients of another run have not kept what they should have, or kept what they should not."""
        mine, its = self.memories, other.memories
        return sum(not same_state(mine.get(n, {}), its.get(n, {})) for n in mine.keys() | its.keys())


def loaded(files: Mapping[int, Path]) -> dict[int, dict[str, Any]]:
    """Read the files with the states of a fleet's clients."""
    return {number: load_state(path) for number, path in files.items()}


def read_local(folder: Path) -> Whole:
    """Read a run of the local engine: its clients' states are where its checkpoint says."""
    run = RunFolder(folder)
    run.states.restore(load_state(run.generations.files()[0])["states"], [])
    return Whole.read(folder, {client: place.load() for client, place in run.states.index.items()})


def strays(folder: Path) -> int:
    """Return how many files of a finished run are half-written, or states that no checkpoint names."""
    names = [path.name for path in folder.rglob("*.new") if not path.name.startswith(("config", "experiment"))]
    newest, *older = RunFolder(folder).generations.files()
    named = set(load_state(newest)["states"])
    return len(names) + len(older) + len({path.name for path in newest.parent.glob("clients-*.log")} - named)


def go_on(out: Path, operations: Operations | None, errors: Path) -> int:
    """Begin or resume a run in a process of its own; return how it ended: its exit code, or minus its signal."""
    process = PROCESSES.Process(target=_in_a_process, args=(out, operations, errors))
    process.start()
    process.join(LIMIT)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise RuntimeError(f"{out}: hangs")
    return process.exitcode


def _in_a_process(out: Path, operations: Operations | None, errors: Path) -> None:
    vars(run_folders)["draw"] = lambda *_: None
    words = [f"--set={key}={value}" for key, value in LOCAL.items()]
    begun = (out / "config.toml").exists()
    command = ["run", "--quiet", *(["--resume", str(out)] if begun else ["digits", *words, f"--out={out}"])]
    code = 99
    try:
        with open(errors, "w") as file, redirect_stderr(file), redirect_stdout(io.StringIO()):
            if operations is None:
                code = cflag(command)
            else:
                with operations:
                    code = cflag(command)
    except Exception as error:
        errors.write_text(f"Traceback: {error!r}")
    sys.exit(code)


def die() -> None:
    """Be killed, as by `kill -9`."""
    os.kill(os.getpid(), signal.SIGKILL)


def tidy(code: int, errors: Path) -> bool:
    """Whether a process that could not go on said so in one line."""
    text = errors.read_text()
    return code in (1, 2) and text.startswith("cflag: ") and text.count("\n") == 1


def strike_files(kind: str, strike: Strike, draw: random.Random, faults: int, folder: Path) -> Case:
    """Strike a run at file operations, again and again, and let it come to its end."""
    out, errors, case = folder / "run", folder / "errors", Case(kind, 0, 0, 0, 0, 0, 0)
    for _ in range(faults):
        code = go_on(out, Operations(draw.randint(1, OPERATIONS), strike, goes_on=strike is disk_full), errors)
        if code == 0:
            break
        case.injected += 1
        if strike is disk_full:
            case.noticed += tidy(code, errors)
            case.untidy += not tidy(code, errors)
        elif code != -signal.SIGKILL:
            case.untidy += 1
    if go_on(out, None, errors) != 0:
        case.untidy += 1
    case.untidy += strays(out)
    return case


def flip_bits(kind: str, draw: random.Random, faults: int, folder: Path) -> Case:
    """Stop a run after a few rounds; change one bit of a copy, and see it refused, or without effect."""
    out, errors, case = folder / "run", folder / "errors", Case(kind, 0, 0, 0, 0, 0, 0)
    while not (out / "metrics.jsonl").exists():
        go_on(out, Operations(draw.randint(30, 110), die), errors)
    stopped = shutil.copytree(out, folder / "stopped")
    files = [path for path in sorted(stopped.rglob("*")) if path.is_file() and path.stat().st_size]
    go_on(out, None, errors)
    whole = read_local(out)
    for _ in range(faults):
        shutil.rmtree(out)
        shutil.copytree(stopped, out)
        flip_bit(out / draw.choice(files).relative_to(stopped), draw)
        case.injected += 1
        code = go_on(out, None, errors)
        if code:
            case.noticed += tidy(code, errors)
            case.untidy += not tidy(code, errors)
            continue
        try:
            found = read_local(out)
        except UserError:  # the file was not needed any more; whoever reads it is told
            case.noticed += 1
            continue
        case.wrong_rounds += whole.wrong_rounds(found)
        case.lost_memories += whole.lost_memories(found)
    shutil.rmtree(out)
    shutil.copytree(stopped, out)
    go_on(out, None, errors)
    return case


def run_case(kind: str, number: int, seed: int, faults: int, whole: Mapping[str, Whole], folder: Path) -> Case:
    """Inject some faults of a kind into one run and compare it with one that saw none."""
    draw = random.Random(f"{seed} {kind} {number}")
    if kind in FLEET_KINDS:
        injected, noticed, run_folder, states = run_fleet(kind, draw, faults, folder)
        case, expected, found = (
            Case(kind, 0, injected, noticed, 0, 0, 0),
            whole["fleet"],
            Whole.read(run_folder, loaded(states)),
        )
    else:
        how: dict[str, Callable[..., Case]] = {
            "process": lambda: strike_files(kind, die, draw, faults, folder),
            "disk": lambda: strike_files(kind, disk_full, draw, faults, folder),
            "bit": lambda: flip_bits(kind, draw, faults, folder),
        }
        case, expected = how[kind.split()[0]](), whole["local"]
        found = read_local(folder / "run")
    case.number = number
    case.wrong_rounds += expected.wrong_rounds(found)
    case.lost_memories += expected.lost_memories(found)
    return case


def references(folder: Path) -> dict[str, Whole]:
    """Return runs that see no fault."""
    run("digits", out=folder / "local", **LOCAL)
    _, _, fleet, states = run_fleet("", random.Random(0), 0, folder / "fleet")
    return {"local": read_local(folder / "local"), "fleet": Whole.read(fleet, loaded(states))}


def campaign(shares: Mapping[str, int], seed: int, out: Path, together: int = 10) -> list[Case]:
    """Run cases of each kind until it has its share of faults; go on after those that are written down."""
    PROCESSES.set_forkserver_preload(PRELOADED)
    vars(run_folders)["draw"] = lambda *_: None  # four fifths of the time of a short run
    file = out / "cases.jsonl"
    done = [Case(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
    with tempfile.TemporaryDirectory(dir=out) as home:
        whole = references(Path(home) / "whole")
        for kind, share in shares.items():
            while (so_far := sum(case.injected for case in done if case.kind == kind)) < share:
                number = sum(case.kind == kind for case in done)
                if number > TRIES + share:
                    raise RuntimeError(f"{kind}: faults do not happen")
                folder = Path(home) / "case"
                folder.mkdir()
                case = run_case(kind, number, seed, min(together, share - so_far), whole, folder)
                done.append(case)
                with open(file, "a") as lines:
                    lines.write(json.dumps(asdict(case)) + "\n")
                shutil.rmtree(folder)
                print(f"{kind}: {so_far + case.injected} of {share}", file=sys.stderr, flush=True)
    return done


def show(done: Sequence[Case], out: Path) -> None:
    """Print the table and write it."""
    table = Table(box=box.MARKDOWN)
    for name in ("fault", "injected", "lines that say so", "wrong rounds", "lost memories", "tracebacks"):
        table.add_column(name, justify="left" if name == "fault" else "right")
    for kind in [*dict.fromkeys(case.kind for case in done), "all"]:
        cases = [case for case in done if kind in (case.kind, "all")]
        sums = [sum(getattr(case, name) for case in cases)
                for name in ("injected", "noticed", "wrong_rounds", "lost_memories", "untidy")]  # fmt: skip
        table.add_row(kind, *map(str, sums))
    console = Console(width=120, record=True)
    console.print(table)
    (out / "table.md").write_text(console.export_text())


def main() -> int:
    """Run the campaign and print its table; 1 where something was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"one of {', '.join(map(repr, SHARES))}")
    parser.add_argument("--faults", type=int, default=1000, help="in all kinds together (default: 1000)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="what is done already; go on after it")
    args = parser.parse_args()
    out = args.out or Path(tempfile.mkdtemp(prefix="cflag-campaign-"))
    out.mkdir(parents=True, exist_ok=True)
    total = sum(SHARES.values())
    shares = {kind: max(1, share * args.faults // total) for kind, share in SHARES.items()}
    chosen = {kind: share for kind, share in shares.items() if not args.kinds or kind in args.kinds}
    started = time.monotonic()
    done = campaign(chosen, args.seed, out)
    show(done, out)
    print(f"{time.monotonic() - started:.0f} s; {out}")
    return int(any(case.wrong_rounds or case.lost_memories or case.untidy for case in done))


if __name__ == "__main__":
    sys.exit(main())
