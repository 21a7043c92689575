"""Getting the data sets: download, check, unpack; and telling which of them are there."""

from __future__ import annotations

import gzip
import io
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import urlsplit

from cflag.data.load import find_reader
from cflag.data.sources.base import Remote, SourceReader
from cflag.errors import DataError

TIMEOUT = 30
Member = tuple[str, IO[bytes]]


def fetch(name: str, data_dir: Path, progress: bool = True) -> Path:
    """Get a source's files unless they are there and whole already; return where they are."""
    reader = find_reader(name)
    if _usable(reader, data_dir):
        return data_dir / reader.place
    if not reader.remotes:
        raise DataError(f"{name}: there is nothing to download; {reader.advice()}")
    with _writing(data_dir):
        data_dir.mkdir(parents=True, exist_ok=True)
    for remote in reader.remotes:
        _get(name, remote, data_dir, progress)
    try:
        reader.read(data_dir)
    except DataError as error:
        raise DataError(f"{name} was downloaded but cannot be used: {error}") from None
    return data_dir / reader.place


def status(name: str, data_dir: Path) -> str:
    """Return 'ready', 'missing' or 'damaged: ...', judged by names and sizes only."""
    reader = find_reader(name)
    if not reader.present(data_dir):
        return "missing"
    try:
        reader.check(data_dir)
    except DataError as error:
        return f"damaged: {error}"
    return "ready"


def _usable(reader: SourceReader, data_dir: Path) -> bool:
    if not reader.present(data_dir):
        return False
    try:
        reader.read(data_dir)
    except DataError:
        return False
    return True


def _get(name: str, remote: Remote, data_dir: Path, progress: bool) -> None:
    """Download one file, from the first address that has it, and unpack it if it is an archive."""
    target = data_dir / remote.file
    brought = target.is_file()  # by hand: such an archive is kept, one of our own is not
    _download(name, remote, target, progress)
    if not remote.folder:
        return
    try:
        _unpack(target, remote.folder, data_dir)
    finally:
        if not brought:
            target.unlink(missing_ok=True)


def _download(name: str, remote: Remote, target: Path, progress: bool) -> None:
    import pooch

    # Its log would repeat what the progress bar and the errors say.
    pooch.get_logger().setLevel("WARNING")
    # Without "identity" a server may pack a file once more, and its checksum would differ.
    fetcher = pooch.HTTPDownloader(
        progressbar=progress, chunk_size=1 << 16, timeout=TIMEOUT, headers={"Accept-Encoding": "identity"}
    )
    known = f"md5:{remote.md5}" if remote.md5 else None
    failures = []
    _drop_fake(remote, target)
    for url in remote.urls:
        try:
            pooch.retrieve(url, known_hash=known, fname=target.name, path=target.parent, downloader=fetcher)
        except (OSError, ValueError) as error:
            failures.append(f"{urlsplit(url).netloc}: {_reason(error)}")
            continue
        if not _drop_fake(remote, target):
            return
        failures.append(f"{urlsplit(url).netloc}: sent no archive")
    raise DataError(
        f"{name}: cannot download {target.name} ({'; '.join(failures)}); check the network and try again, or "
        f"get {remote.urls[0]} by hand, save it as {target} and run 'cflag data get {name}'"
    )


def _drop_fake(remote: Remote, target: Path) -> bool:
    """Remove a file without a checksum that is no archive, such as a page that says why there is none."""
    fake = remote.md5 is None and target.is_file() and not zipfile.is_zipfile(target)
    if fake:
        target.unlink()
    return fake


def _reason(error: Exception) -> str:
    """Return in a few words why a download failed; told by class names as requests is pooch's, not ours."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"answered {response.status_code}"
    kinds = [kind.__name__ for kind in type(error).__mro__]
    for kind in kinds:
        if kind in _REASONS:
            return _REASONS[kind]
    return getattr(error, "strerror", None) or kinds[0]


# From the special to the general, as an error's classes are searched in that order.
_REASONS = {
    "SSLError": "no secure connection",
    "Timeout": f"no answer within {TIMEOUT} s",
    "ChunkedEncodingError": "the connection broke off",
    "ConnectionError": "cannot connect",
    "RequestException": "the request failed",
    "ValueError": "wrong checksum",
}


# --- unpacking -------------------------------------------------------------------------------------------


def _unpack(archive: Path, folder: str, data_dir: Path) -> None:
    """Unpack one folder of an archive into the data folder, over what is there of the same name."""
    with _writing(data_dir), tempfile.TemporaryDirectory(dir=data_dir, prefix=".unpack-") as scratch:
        # All is unpacked aside first, so a broken archive leaves nothing half done.
        _extract(archive, folder, Path(scratch))
        for path in sorted(Path(scratch).rglob("*")):
            target = data_dir / path.relative_to(scratch)
            if path.is_dir():
                target.mkdir(exist_ok=True)
            else:
                path.replace(target)


def _extract(archive: Path, folder: str, into: Path) -> None:
    count = 0
    try:
        for name, content in _members(archive, folder):
            path = PurePosixPath(name)
            # Only plain files below the one folder: an archive cannot write anywhere else.
            if path.parts[:1] != (folder,) or ".." in path.parts or "\\" in name:
                continue
            target = into / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                shutil.copyfileobj(content, file)
            count += 1
    except (EOFError, gzip.BadGzipFile, tarfile.TarError, zipfile.BadZipFile, zlib.error, RuntimeError):
        raise DataError(f"{archive}: broken archive; get it anew") from None
    if not count:
        raise DataError(f"{archive}: holds no folder '{folder}'; get it anew")


def _members(archive: Path, folder: str) -> Iterator[Member]:
    """Yield the name and the content of every plain file of an archive."""
    if archive.suffix == ".zip":
        yield from _zip_members(archive, folder)
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isfile() else None
            if content:
                yield member.name, content


def _zip_members(archive: Path | IO[bytes], folder: str) -> Iterator[Member]:
    with zipfile.ZipFile(archive) as packed:
        for info in packed.infolist():
            if info.is_dir():
                continue
            with packed.open(info) as content:
                # UCI packs the archive proper into a second one.
                if info.filename == f"{folder}.zip":
                    yield from _zip_members(io.BytesIO(content.read()), folder)
                else:
                    yield info.filename, content


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """Turn whatever the file system refuses into one line."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be written ({error.strerror or error}); choose another folder with --data-dir"
        ) from None
