"""Where data are."""

from __future__ import annotations

import os
from pathlib import Path


def data_dir_or_default(given: str | Path | None) -> Path:
    """Return the data folder: as given, else the environment's CFLAG_DATA, else the user's cache folder."""
    chosen = given or os.environ.get("CFLAG_DATA")
    if chosen:
        return Path(chosen).expanduser()
    import pooch

    return Path(pooch.os_cache("cflag"))
