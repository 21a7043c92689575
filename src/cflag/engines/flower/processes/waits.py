"""Flower's waits. It has no setting for them, and they are most of what a small question costs.

A SuperNode looks for messages every 3 s and for its app's reply every 0.5 s; and a message can be seen before its
content has arrived, which costs another second wherever it happens: at the SuperNode, at the app, at the server.
"""

from __future__ import annotations

import time
from types import SimpleNamespace

from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, pull_objects


def shorten(longest: float) -> None:
    """Wait at most so many seconds in this process, wherever Flower would wait longer.

    This replaces two of Flower's internals, which is why its version is pinned; 0 leaves everything as it is.
    """
    if longest <= 0:
        return
    from flwr.supernode import start_client_internal

    # The SuperNode's loop uses its module `time` to sleep and for nothing else.
    vars(start_client_internal)["time"] = SimpleNamespace(sleep=lambda seconds: time.sleep(min(seconds, longest)))
    for pull in (pull_objects, pull_and_inflate_object_from_tree):
        defaults = pull.__kwdefaults__ or {}
        defaults["initial_backoff"] = min(longest, defaults["initial_backoff"])
