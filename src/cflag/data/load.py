"""Sources by name: from the data folder into memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from cflag import registry
from cflag.data.sources.base import FunctionReader, SourceReader
from cflag.errors import DataError

if TYPE_CHECKING:
    from cflag.data.source import Source


def load_source(name: str, data_dir: Path | None = None) -> Source:
    """Load a source from the data folder; whatever is wrong with its files is told in one line."""
    reader = find_reader(name)
    try:
        return reader.read(data_dir_or_default(data_dir))
    except DataError as error:
        raise DataError(f"{error}; {reader.advice()}") from None


def find_reader(name: str) -> SourceReader:
    """Return the reader that is registered under a name; it may be registered as its class or as a plain function."""
    part = registry.get("source", name)
    if isinstance(part, SourceReader):
        return part
    is_reader = isinstance(part, type) and issubclass(part, SourceReader)
    return part(name=name) if is_reader else FunctionReader(name=name, function=part)


def data_dir_or_default(given: str | Path | None) -> Path:
    """Return the data folder: as given, else the environment's CFLAG_DATA, else the user's cache folder."""
    chosen = given or os.environ.get("CFLAG_DATA")
    if chosen:
        return Path(chosen).expanduser()
    import pooch

    return Path(pooch.os_cache("cflag"))
