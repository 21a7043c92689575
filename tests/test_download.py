"""Downloads from a small local server, and the status of what lies in the data folder."""

from __future__ import annotations

import gzip
import hashlib
import io
import socket
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from cflag import registry
from cflag.data import download
from cflag.data.download import fetch, status
from cflag.data.load import find_reader, load_source
from cflag.data.sources.base import Remote
from cflag.errors import DataError, UserError
from tests.support.datasets import (
    RECORDINGS,
    cut,
    make_cifar10,
    make_mnist,
    make_tiny,
    make_windows,
    put_reader,
    write_har_folder,
    write_har_npz,
)

IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


class Server:
    """A local web server: the files it has, and the paths it was asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.lengths: dict[str, int] = {}
        self.asked: list[str] = []
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked.append(self.path)
                content = server.files.get(self.path)
                if content is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(server.lengths.get(self.path, len(content))))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    running = Server()
    yield running
    running.close()


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch) -> str:
    """Return an address at which nobody answers."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{closed.getsockname()[1]}"


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def offer(monkeypatch: pytest.MonkeyPatch, name: str, *remotes: Remote) -> None:
    put_reader(monkeypatch, replace(find_reader(name), remotes=remotes))


def failure(name: str, folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        fetch(name, folder, progress=False)
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return str(caught.value)


def leftovers(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def tar_of(folder: Path) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(folder, folder.name)
    return buffer.getvalue()


def zip_of(folder: Path, prefix: str = "") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for path in sorted(folder.rglob("*")):
            packed.write(path, prefix + path.relative_to(folder.parent).as_posix())
    return buffer.getvalue()


# --- the table -------------------------------------------------------------------------------------------


DOWNLOADED = ["cifar10", "cifar100", "fashion-mnist", "har", "mnist", "tiny-imagenet"]


def test_every_source_but_the_built_in_one_and_your_own_can_be_got(tmp_path: Path) -> None:
    assert [name for name in registry.names("source") if find_reader(name).remotes] == DOWNLOADED
    assert status("folder", tmp_path) == "missing"
    with pytest.raises(DataError, match="folder: there is nothing to download; point --data-dir"):
        fetch("folder", tmp_path)
    for reader in map(find_reader, DOWNLOADED):
        for remote in reader.remotes:
            assert remote.urls
            assert all(url.startswith(("https://", "http://")) for url in remote.urls)
            assert remote.md5 is None or len(bytes.fromhex(remote.md5)) == 16
            assert remote.folder in ("", reader.place)


# --- plain files -----------------------------------------------------------------------------------------


@pytest.fixture
def mnist(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Let the server have a small MNIST."""
    make_mnist(tmp_path / "made", end=".gz")
    remotes = []
    for name in IDX:
        content = (tmp_path / "made" / "mnist" / f"{name}.gz").read_bytes()
        server.files[f"/{name}.gz"] = content
        remotes.append(Remote(f"mnist/{name}.gz", (f"{server.url}/{name}.gz",), md5(content)))
    offer(monkeypatch, "mnist", *remotes)
    return server


def test_fetch_files(mnist: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "data"
    assert status("mnist", folder) == "missing"
    assert fetch("mnist", folder) == folder / "mnist"
    assert status("mnist", folder) == "ready"
    assert load_source("mnist", folder).train.y.tolist() == [3, 1, 4, 1, 9]
    assert leftovers(folder / "mnist") == sorted(f"{name}.gz" for name in IDX)
    shown = capfd.readouterr().err
    assert "100%" in shown
    assert "Downloading" not in shown  # pooch's own log


def test_fetch_asks_for_nothing_that_is_there(mnist: Server, tmp_path: Path) -> None:
    fetch("mnist", tmp_path, progress=False)
    mnist.asked.clear()
    fetch("mnist", tmp_path, progress=False)
    assert mnist.asked == []
    (tmp_path / "mnist" / f"{IDX[1]}.gz").unlink()
    fetch("mnist", tmp_path, progress=False)
    assert mnist.asked == [f"/{IDX[1]}.gz"]


def test_fetch_repairs_damaged_files(mnist: Server, tmp_path: Path) -> None:
    make_mnist(tmp_path)
    cut(tmp_path / "mnist" / IDX[0])
    assert status("mnist", tmp_path).startswith("damaged: ")
    fetch("mnist", tmp_path, progress=False)
    assert status("mnist", tmp_path) == "ready"
    cut(tmp_path / "mnist" / f"{IDX[0]}.gz", 9)
    fetch("mnist", tmp_path, progress=False)
    assert status("mnist", tmp_path) == "ready"
    assert mnist.asked.count(f"/{IDX[0]}.gz") == 2


def test_the_next_address_is_tried(mnist: Server, dead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = find_reader("mnist").remotes
    mnist.files["/wrong"] = b"something else"
    urls = (f"{dead}/x", f"{mnist.url}/absent", f"{mnist.url}/wrong", *first.urls)
    offer(monkeypatch, "mnist", replace(first, urls=urls), *others)
    fetch("mnist", tmp_path, progress=False)
    assert mnist.asked[:3] == ["/absent", "/wrong", f"/{IDX[0]}.gz"]
    assert status("mnist", tmp_path) == "ready"


def test_connection_refused(dead: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{dead}/{IDX[0]}.gz"
    offer(monkeypatch, "mnist", Remote(f"mnist/{IDX[0]}.gz", (url,), md5(b"")))
    line = failure("mnist", tmp_path)
    host = dead.removeprefix("http://")
    assert f"mnist: cannot download {IDX[0]}.gz ({host}: cannot connect)" in line
    assert f"get {url} by hand, save it as {tmp_path / 'mnist' / IDX[0]}.gz" in line
    assert "run 'cflag data get mnist'" in line
    assert status("mnist", tmp_path) == "missing"


def test_wrong_checksum(mnist: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = find_reader("mnist").remotes
    offer(monkeypatch, "mnist", replace(first, md5=md5(b"other")), *others)
    line = failure("mnist", tmp_path)
    assert f"mnist: cannot download {IDX[0]}.gz (127.0.0.1" in line
    assert ": wrong checksum)" in line
    # A file that failed its check must not stay where it would be read.
    assert not list((tmp_path / "mnist").iterdir())


def test_all_failures_are_told(mnist: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = find_reader("mnist").remotes
    mnist.files["/broken"] = b"cut"
    mnist.lengths["/broken"] = 1000
    urls = (f"{mnist.url}/absent", f"{mnist.url}/broken", "no address")
    offer(monkeypatch, "mnist", replace(first, urls=urls), *others)
    line = failure("mnist", tmp_path)
    assert ": answered 404; " in line
    assert ": the connection broke off; " in line
    assert ": the request failed)" in line


def test_no_answer_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/x"
        offer(monkeypatch, "mnist", Remote(f"mnist/{IDX[0]}.gz", (url,), md5(b"")))
        assert ": no answer within " in failure("mnist", tmp_path)


def test_right_checksum_of_unusable_files(mnist: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *others = find_reader("mnist").remotes
    content = gzip.compress(b"\x00\x00\x08\x03cut")
    mnist.files[f"/{IDX[0]}.gz"] = content
    offer(monkeypatch, "mnist", replace(first, md5=md5(content)), *others)
    line = failure("mnist", tmp_path)
    assert line.startswith("mnist was downloaded but cannot be used: ")
    assert "expected a header of 16" in line


def test_folder_that_cannot_be_made(mnist: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    line = failure("mnist", tmp_path / "file" / "data")
    assert f"{tmp_path / 'file' / 'data'}: cannot be written (" in line
    assert "--data-dir" in line
    assert mnist.asked == []


# --- archives --------------------------------------------------------------------------------------------


def cifar(server: Server, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    server.files["/cifar.tar.gz"] = content
    url = f"{server.url}/cifar.tar.gz"
    offer(monkeypatch, "cifar10", Remote("cifar.tar.gz", (url,), md5(content), folder="cifar-10-batches-bin"))


@pytest.mark.usefixtures("small")
def test_fetch_tar(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cifar10(tmp_path / "made")
    cifar(server, monkeypatch, tar_of(tmp_path / "made" / "cifar-10-batches-bin"))
    folder = tmp_path / "data"
    assert fetch("cifar10", folder, progress=False) == folder / "cifar-10-batches-bin"
    assert status("cifar10", folder) == "ready"
    assert load_source("cifar10", folder).test.y.tolist() == [7, 8, 9]
    # Neither the archive nor the place of unpacking stays.
    assert leftovers(folder) == ["cifar-10-batches-bin"]


@pytest.mark.usefixtures("small")
def test_archive_brought_by_hand_is_used_and_kept(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_cifar10(tmp_path / "made")
    content = tar_of(tmp_path / "made" / "cifar-10-batches-bin")
    cifar(server, monkeypatch, content)
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "cifar.tar.gz").write_bytes(content)
    fetch("cifar10", folder, progress=False)
    assert server.asked == []
    assert leftovers(folder) == ["cifar-10-batches-bin", "cifar.tar.gz"]


@pytest.mark.usefixtures("small")
def test_fetch_keeps_other_files_of_the_folder(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cifar10(tmp_path / "made")
    cifar(server, monkeypatch, tar_of(tmp_path / "made" / "cifar-10-batches-bin"))
    folder = tmp_path / "data" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    (folder / "test_batch.bin").write_bytes(b"damaged")
    fetch("cifar10", tmp_path / "data", progress=False)
    assert (folder / "notes.txt").read_text() == "mine"
    assert status("cifar10", tmp_path / "data") == "ready"


@pytest.mark.parametrize("content", [b"", b"no archive at all", b"cut"])
def test_broken_archive(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    if content == b"cut":
        make_cifar10(tmp_path / "made")
        content = tar_of(tmp_path / "made" / "cifar-10-batches-bin")[:-5000]
    cifar(server, monkeypatch, content)
    folder = tmp_path / "data"
    assert f"{folder / 'cifar.tar.gz'}: broken archive" in failure("cifar10", folder)
    assert leftovers(folder) == []


def test_archive_cannot_write_elsewhere(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in ("../out.bin", "/tmp/out.bin", "cifar-10-batches-bin/../../out.bin", "other/out.bin"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
        link = tarfile.TarInfo("cifar-10-batches-bin/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    cifar(server, monkeypatch, buffer.getvalue())
    assert "holds no folder 'cifar-10-batches-bin'" in failure("cifar10", tmp_path / "data")
    assert leftovers(tmp_path / "data") == []
    assert leftovers(tmp_path) == ["data"]


@pytest.mark.usefixtures("small")
def test_fetch_zip(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = zip_of(make_tiny(tmp_path / "made"))
    server.files["/tiny.zip"] = content
    url = f"{server.url}/tiny.zip"
    offer(monkeypatch, "tiny-imagenet", Remote("tiny.zip", (url,), md5(content), folder="tiny-imagenet-200"))
    fetch("tiny-imagenet", tmp_path / "data", progress=False)
    assert status("tiny-imagenet", tmp_path / "data") == "ready"
    assert leftovers(tmp_path / "data") == ["tiny-imagenet-200"]


def har(server: Server, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    server.files["/har.zip"] = content
    remote = Remote("UCI HAR Dataset.zip", (f"{server.url}/har.zip",), None, folder="UCI HAR Dataset")
    offer(monkeypatch, "har", remote)


@pytest.mark.parametrize("nested", [False, True])
def test_fetch_har(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nested: bool) -> None:
    content = zip_of(write_har_folder(tmp_path / "made", make_windows(RECORDINGS)))
    if nested:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as outer:
            outer.writestr("UCI HAR Dataset.names", "about")
            outer.writestr("UCI HAR Dataset.zip", content)
            outer.writestr("__MACOSX/UCI HAR Dataset/x", "rubbish")
        content = buffer.getvalue()
    har(server, monkeypatch, content)
    fetch("har", tmp_path / "data", progress=False)
    assert len(load_source("har", tmp_path / "data").test) == 7
    assert leftovers(tmp_path / "data") == ["UCI HAR Dataset"]


def test_har_without_checksum_is_checked_by_reading(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = write_har_folder(tmp_path / "made", make_windows(RECORDINGS))
    (made / "test" / "y_test.txt").write_text("9\n")
    har(server, monkeypatch, zip_of(made))
    line = failure("har", tmp_path / "data")
    assert line.startswith("har was downloaded but cannot be used: ")
    assert "y_test.txt: label 9 at place 1, expected 1..6" in line


def test_page_instead_of_an_archive(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    har(server, monkeypatch, b"<html>down for maintenance</html>")
    line = failure("har", tmp_path / "data")
    assert ": sent no archive)" in line
    assert leftovers(tmp_path / "data") == []
    # The next address is tried, and a broken file brought by hand does not stand in the way.
    (remote,) = find_reader("har").remotes
    server.files["/good.zip"] = zip_of(write_har_folder(tmp_path / "made", make_windows(RECORDINGS)))
    offer(monkeypatch, "har", replace(remote, urls=(*remote.urls, f"{server.url}/good.zip")))
    (tmp_path / "data" / remote.file).write_bytes(b"PK broken")
    fetch("har", tmp_path / "data", progress=False)
    assert status("har", tmp_path / "data") == "ready"
    assert server.asked == ["/har.zip", "/har.zip", "/good.zip"]


# --- status ----------------------------------------------------------------------------------------------


def test_built_in(tmp_path: Path) -> None:
    assert status("digits", tmp_path) == "ready"
    fetch("digits", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_unknown_names(tmp_path: Path) -> None:
    for ask in (status, fetch):
        with pytest.raises(UserError, match="unknown source 'minst'; did you mean 'mnist'"):
            ask("minst", tmp_path)


def test_status_of_nothing(tmp_path: Path) -> None:
    for name in DOWNLOADED:
        assert status(name, tmp_path) == "missing"
        assert status(name, tmp_path / "absent") == "missing"


@pytest.mark.parametrize("end", ["", ".gz"])
def test_status_mnist(tmp_path: Path, end: str) -> None:
    make_mnist(tmp_path, end=end)
    assert status("mnist", tmp_path) == "ready"
    path = tmp_path / "mnist" / (IDX[0] + end)
    cut(path)
    assert status("mnist", tmp_path).startswith(f"damaged: {path}: holds ")
    path.write_bytes(b"nonsense")
    assert status("mnist", tmp_path).startswith(f"damaged: {path}: ")
    path.unlink()
    assert status("mnist", tmp_path) == (
        f"damaged: {tmp_path}: {IDX[0]} (plain or .gz) not found in mnist or MNIST/raw"
    )


@pytest.mark.usefixtures("small")
def test_status_cifar(tmp_path: Path) -> None:
    make_cifar10(tmp_path)
    assert status("cifar10", tmp_path) == "ready"
    path = tmp_path / "cifar-10-batches-bin" / "data_batch_2.bin"
    cut(path)
    assert status("cifar10", tmp_path).startswith(f"damaged: {path}: holds 12291 bytes, expected 12292")
    path.unlink()
    assert status("cifar10", tmp_path) == f"damaged: {path}: not found"


@pytest.mark.usefixtures("small")
def test_status_tiny_imagenet(tmp_path: Path) -> None:
    folder = make_tiny(tmp_path)
    assert status("tiny-imagenet", tmp_path) == "ready"
    (folder / "wnids.txt").write_text("n01\n")
    assert status("tiny-imagenet", tmp_path).endswith("wnids.txt: lists 1 classes, expected 3")


def test_status_har(tmp_path: Path) -> None:
    windows = make_windows(RECORDINGS)
    path = write_har_npz(tmp_path, windows)
    assert status("har", tmp_path) == "ready"
    np.savez(path, X=windows.x)
    assert status("har", tmp_path) == f"damaged: {path}: has no array y, subject; expected X, y, subject"
    path.write_bytes(b"nonsense")
    assert status("har", tmp_path).startswith(f"damaged: {path}: broken .npz file")
    folder = write_har_folder(tmp_path, windows)
    assert status("har", tmp_path) == "ready"
    signal = folder / "test" / "Inertial Signals" / "total_acc_z_test.txt"
    signal.write_text("")
    assert status("har", tmp_path) == f"damaged: {signal}: is empty"
    signal.unlink()
    assert status("har", tmp_path) == f"damaged: {signal}: not found"
