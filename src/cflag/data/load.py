"""Sources by name: from the data folder into memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from cflag import registry
from cflag.data.place import data_dir_or_default as data_dir_or_default
from cflag.data.sources.base import FunctionReader, Reading, SourceReader
from cflag.errors import DataError, UserError

if TYPE_CHECKING:
    from cflag.data.source import Source


def load_source(name: str, data_dir: Path | None = None, reading: Reading | None = None) -> Source:
    """Load a source from the data folder; whatever is wrong with its files is told in one line."""
    reader = find_reader(name, reading)
    try:
        return reader.read(data_dir_or_default(data_dir))
    except DataError as error:
        raise DataError(f"{error}; {reader.advice()}") from None


def load_own(name: str, data_dir: Path, clients: int, reading: Reading) -> Source:
    """Load what each client has in its own folder, DATA/client-N, as one source that knows whose samples are whose."""
    from cflag.data.source import joined

    folders = [data_dir / f"client-{number}" for number in range(clients)]
    for folder in folders:
        if not folder.is_dir():
            raise UserError(
                f"partition 'own': there is no folder {folder}; put each client's data into DATA/client-0, "
                "DATA/client-1, ... and give --data-dir DATA"
            )
    return joined([load_source(name, folder, reading) for folder in folders])


def find_reader(name: str, reading: Reading | None = None) -> SourceReader:
    """Return the reader that is registered under a name; it may be registered as its class or as a plain function."""
    from cflag.data.sources.own import OwnReader

    part = registry.get("source", family(name))
    if isinstance(part, SourceReader):
        return part
    if isinstance(part, type) and issubclass(part, OwnReader):
        return part(name=name, place=name.partition(":")[2], reading=reading or Reading())
    if ":" in name:
        raise UserError(f"source '{name}': '{family(name)}' is one data set and takes no place; leave the rest out")
    is_reader = isinstance(part, type) and issubclass(part, SourceReader)
    return part(name=name) if is_reader else FunctionReader(name=name, function=part)


def family(name: str) -> str:
    """Return the registered name of a source: `pictures` of `pictures:DIR`."""
    return name.partition(":")[0]


def placed(name: str, data_dir: str) -> str:
    """Return a source's name with its place below the current folder made absolute, where no data folder is given."""
    kind, colon, place = name.partition(":")
    if not place or data_dir or os.environ.get("CFLAG_DATA"):
        return name
    return f"{kind}{colon}{Path(place).expanduser().absolute()}"


def home_of(name: str) -> str:
    """Return the folder below which a source's place lies, where no data folder is given; '' of one without place."""
    place = name.partition(":")[2]
    return str(Path(place).expanduser().absolute().parent if Path(place).is_absolute() else Path.cwd()) if place else ""
