"""What a question costs on each engine: seconds against the number of clients and the size of the model.

python -m benchmarks.questions [--quick]

Every round is one question (`finetune`, one local step), so its time is what carrying the question costs. The median of
the rounds after the first is printed; clients, SuperLink and server share this machine's cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.faults import CFLAG
from cflag.engines.flower.processes.fleet import Process, free_port, quiet_flower, tool
from cflag.engines.flower.processes.keys import make_client_key, make_server_keys

WIDTHS = {"5 k": 38, "1 M": 960, "11 M": 3280}
"""The width of the two hidden layers that gives an MLP on digits about so many parameters."""
ENGINES = ("local", "flower-sim", "deploy", "deploy, database", "deploy, Flower's waits", "stock SuperNodes")


def measure(engine: str, clients: int, width: int, folder: Path) -> float:
    """Return the seconds that a question takes."""
    rounds = 4 if engine == "stock SuperNodes" else 8
    values = {"clients": clients, "width": width, "rounds": rounds, "tasks": 1, "steps": 1, "eval_every": 99}
    words = [part for k, v in values.items() for part in ("--set", f"{k}={v}")]
    words += ["--set", "method=finetune", "--out", str(folder), "--quiet"]
    if engine in ("local", "flower-sim"):
        _call(["run", "digits", "--engine", engine, "--workers", "2", *words])
    elif engine == "stock SuperNodes":
        _stock(folder.with_name(f"{folder.name}-stock"), clients, words)
    else:
        database = [] if "database" in engine else ["--no-database"]
        poll = ["--poll", "0"] if "waits" in engine else []
        _call(["deploy", "digits", *words, *database, *poll])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return float(median(line["seconds"] for line in lines[1:-1]))  # the last round also tests


def _call(words: list[str]) -> None:
    subprocess.run([*CFLAG, *words], check=True, stdout=subprocess.DEVNULL)


def _stock(home: Path, clients: int, words: list[str]) -> None:
    """Flower's own SuperNodes: a new Python for every message."""
    keys, port = home / "keys", free_port()
    make_server_keys(keys, ["localhost", "127.0.0.1"])
    for number in range(clients):
        make_client_key(keys / "clients", str(number))
    command = [*CFLAG, "server", "digits", "--keys", str(keys), "--port", str(port), "--no-database", *words]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    out = Path(words[words.index("--out") + 1])
    while not (out / "experiment").is_file() and server.poll() is None:
        time.sleep(0.2)  # a SuperNode whose key is not registered yet gives up
    with ExitStack() as stack:
        for number in range(clients):
            secure = ["--root-certificates", str(keys / "ca.crt"), "--auth-supernode-private-key"]
            key = keys / "clients" / f"{number}.key"
            config = f'partition-id={number} state-dir="{home / str(number)}" key="{key}"'
            command = [tool("flower-supernode"), "--superlink", f"localhost:{port}", "--port", str(free_port())]
            command += [*secure, str(key), "--node-config", config]
            node = Process("SuperNode", command, home / f"{number}.log", quiet_flower(home / f"{number}-home"))
            node.start()
            stack.callback(node.stop)
        assert server.wait() == 0


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="five clients and the smallest model only")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="cflag-questions-"))
    cases = [(5, "5 k")] if args.quick else [(1, "5 k"), (5, "5 k"), (10, "5 k"), (5, "1 M"), (5, "11 M")]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("engine")
    for clients, size in cases:
        table.add_column(f"{clients} clients, {size}", justify="right")
    console = Console(width=110)
    for engine in ENGINES:
        cells = []
        for clients, size in cases:
            if engine == "stock SuperNodes" and (clients, size) != (5, "5 k"):
                cells.append("")
                continue
            path = folder / f"{engine.replace(' ', '-').replace(',', '')}-{clients}-{size.replace(' ', '')}"
            seconds = measure(engine, clients, WIDTHS[size], path)
            cells.append(f"{seconds:.3f}" if seconds < 0.1 else f"{seconds:.2f}")
            print(engine, clients, size, cells[-1], file=sys.stderr, flush=True)
        table.add_row(engine, *cells)
    console.print(table)


if __name__ == "__main__":
    main()
