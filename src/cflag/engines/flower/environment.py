"""The environment variables by which cflag's processes on Flower tell each other something."""

from __future__ import annotations

KEYS = "CFLAG_KEYS"
"""The folder with the public keys of the clients that the SuperLink lets in, where we know it."""
SUPERNODE_POLL = "CFLAG_SUPERNODE_POLL"
"""The longest a SuperNode waits before it looks for messages again, in seconds; see waits.py."""
SIMULATION = "CFLAG_SIMULATION_STATE"
"""The folder in which the clients of `cflag run --engine flower-sim` keep their state."""
