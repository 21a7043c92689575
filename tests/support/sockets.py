"""What processes listen on (Linux)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

LISTENS = "0A"
"""The state of a listening socket in /proc/net/tcp."""
ACCEPTS = 0x10000
"""The flag of a listening socket in /proc/net/unix."""


def ports(pids: Iterable[int]) -> set[int]:
    """Return the ports, of any address, on which these processes listen."""
    inodes, found = _inodes(pids), set()
    for table in ("tcp", "tcp6"):
        for line in _lines(Path("/proc/net") / table):
            words = line.split()
            if words[3] == LISTENS and words[9] in inodes:
                found.add(int(words[1].rpartition(":")[2], 16))
    return found


def paths(pids: Iterable[int]) -> set[Path]:
    """Return the sockets in the file system on which these processes listen; an abstract one begins with @."""
    inodes = _inodes(pids)
    lines = [line.split() for line in _lines(Path("/proc/net/unix"))]
    return {Path(words[7]) for words in lines if len(words) > 7 and int(words[3], 16) & ACCEPTS and words[6] in inodes}


def _lines(table: Path) -> list[str]:
    return table.read_text().splitlines()[1:] if table.is_file() else []


def _inodes(pids: Iterable[int]) -> set[str]:
    found = set()
    for pid in pids:
        with suppress(OSError):  # it has ended
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    target = str(descriptor.readlink())
                    if target.startswith("socket:["):
                        found.add(target[8:-1])
    return found
