"""Data of one's own: tensors, data sets, pictures, arrays, tables; numbers are counted by hand."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cflag.build import build_benchmark
from cflag.cli import main
from cflag.config import load_config, resolve
from cflag.data.benchmark import Benchmark
from cflag.data.examine import examine
from cflag.data.load import load_source
from cflag.data.notes import about_labels
from cflag.data.options import BenchmarkOptions, DataOptions
from cflag.data.source import Source
from cflag.data.sources.base import Reading
from cflag.data.spec import Spec
from cflag.engines.flower.processes.deploy import FleetOptions, check_data
from cflag.errors import DataError, UserError

X = torch.arange(12.0).reshape(6, 2)
Y = torch.tensor([0, 1, 2, 0, 1, 2])


def reading(partial: bool = False, confined: bool = False, **options: Any) -> Reading:
    return Reading(DataOptions(**options), partial, confined)


def write_table(path: Path, head: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    return path


# Tensors --------------------------------------------------------------------------------------------------------------


def test_labels_that_are_whole_are_taken_and_others_refused() -> None:
    assert Source.from_tensors((X, Y.float()), (X, Y)).train.y.tolist() == Y.tolist()
    with pytest.raises(DataError, match=r"test labels: 1\.5 at place 4 is not a whole number"):
        Source.from_tensors((X, Y), (X, torch.tensor([0, 1, 2, 0, 1.5, 2])))
    with pytest.raises(DataError, match="train labels: nan at place 0"):
        Source.from_tensors((X, torch.full((6,), torch.nan)), (X, Y))


def test_a_class_that_is_skipped_is_refused_unless_it_has_a_name() -> None:
    skipping = torch.where(Y == 1, 3, Y)
    with pytest.raises(DataError, match=r"no sample has label 1, though some have 3.*class_names"):
        Source.from_tensors((X, skipping), (X, skipping))
    named = Source.from_tensors((X, skipping), (X, skipping), class_names=["a", "b", "c", "d"])
    assert (named.classes, named.class_names) == (4, ("a", "b", "c", "d"))
    Source.from_tensors((X, skipping), (X, torch.where(Y == 0, 1, skipping)))  # both halves together have all


def test_subjects_make_the_partition_by_subject_work() -> None:
    people = torch.tensor([7, 7, 7, 9, 9, 9])
    source = Source.from_tensors((X, Y), (X, Y), subjects=(people, people))
    dealt = Benchmark(source, BenchmarkOptions(partition="subject", clients=2, tasks=1))
    assert [dealt.train(c, 0).x.flatten().tolist() for c in range(2)] == [list(range(6)), list(range(6, 12))]
    with pytest.raises(DataError, match="train subjects have shape"):
        Source.from_tensors((X, Y), (X, Y), subjects=(people[:5], people))


# Data sets ------------------------------------------------------------------------------------------------------------


class Pairs(torch.utils.data.Dataset[Any]):
    def __init__(self, form: str = "tuple") -> None:
        self.form, self.reads = form, 0

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        if self.form == "dict":  # as Hugging Face's
            picture = Image.fromarray(np.full((3, 4, 3), 10 * index, np.uint8))
            return {"image": picture, "label": int(Y[index]), "user": index // 3}
        return X[index].numpy().astype(np.float64), int(Y[index])


def test_a_torch_dataset_is_read_once() -> None:
    train, test = Pairs(), Pairs()
    source = Source.from_datasets(train, test)
    assert torch.equal(source.train.x, X)
    assert source.train.x.dtype == torch.float32
    assert source.test.y.tolist() == Y.tolist()
    assert train.reads <= 7  # and the first once more, for its shape


def test_a_dataset_of_dicts_has_its_pictures_names_and_people() -> None:
    train = Pairs("dict")
    label = type("ClassLabel", (), {"names": ["x", "y", "z"]})()
    train.features = {"image": None, "label": label}  # type: ignore[attr-defined]
    source = Source.from_datasets(train, Pairs("dict"))
    assert (source.shape, source.train.x.dtype) == ((3, 3, 4), torch.uint8)
    assert source.train.x[2].unique().tolist() == [20]
    assert source.class_names == ("x", "y", "z")
    assert source.train.subject is not None
    assert source.train.subject.tolist() == [0, 0, 0, 1, 1, 1]


@pytest.mark.parametrize("shape", [(5, 4), (5, 4, 3), (3, 5, 4), (1, 5, 4)])
def test_bytes_are_pictures_wherever_their_channels_are(shape: tuple[int, ...]) -> None:
    """Arrays of one picture as Hugging Face's numpy format has them, or of all of them."""
    x = np.arange(2 * 60, dtype=np.uint8).reshape(2, -1)[:, : int(np.prod(shape))].reshape(2, *shape)
    wanted = {2: x[:, None], 3: x.transpose(0, 3, 1, 2) if shape[-1] == 3 else x}[len(shape)].tolist()
    samples, y = [{"image": one, "label": k} for k, one in enumerate(x)], np.arange(2)
    for source in (Source.from_datasets(samples, samples), Source.from_tensors((x, y), (x, y))):
        assert source.train.x.dtype == torch.uint8
        assert source.train.x.tolist() == wanted


def test_hugging_face_datasets_are_taken_as_they_are() -> None:
    """With the real library: pictures, names of classes, people, formats, splits; and what is no data set."""
    hugging = pytest.importorskip("datasets", exc_type=ImportError)
    pixels = [np.full((6, 6), 10 * k, np.uint8) for k in range(8)]
    columns = {"image": [Image.fromarray(p) for p in pixels], "label": [k % 2 for k in range(8)], "user": [5, 9] * 4}
    kinds = {"image": hugging.Image(), "label": hugging.ClassLabel(names=["cat", "dog"]),
             "user": hugging.Value("int64")}  # fmt: skip
    data = hugging.Dataset.from_dict(columns, features=hugging.Features(kinds))
    for form in (None, "torch", "numpy"):
        source = Source.from_datasets(data.with_format(form), data.select([3, 2]).with_format(form))
        assert source.train.x.tolist() == [p[None].tolist() for p in pixels], form
        assert source.test.x[:, 0, 0, 0].tolist() == [30, 20]
        assert (source.class_names, source.train.y.tolist()) == (("cat", "dog"), [0, 1] * 4)
        assert source.train.subject is not None
        assert source.train.subject.tolist() == [5, 9] * 4
    halves = data.train_test_split(0.25, seed=1)
    assert len(Source.from_datasets(halves["train"], halves["test"]).train) == 6
    with pytest.raises(DataError, match="a dict of train, test; give one of them"):
        Source.from_datasets(halves, halves)
    with pytest.raises(DataError, match="a stream must be read into one"):
        Source.from_datasets(data.to_iterable_dataset(), data)


def test_samples_that_do_not_fit_are_mapped_from_a_file_that_is_written_once(tmp_path: Path) -> None:
    kept = Source.from_datasets(Pairs(), Pairs(), folder=tmp_path, memory_bytes=10)
    assert torch.equal(kept.train.x, X)
    files = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "samples").iterdir()}
    sizes = sorted(file.stat().st_size for file in (tmp_path / "samples").iterdir())
    assert sizes == [6 * 8, 6 * 2 * 4]  # float64 labels; float32 samples; both halves are alike, so one file for both
    again = Source.from_datasets(Pairs(), Pairs(), folder=tmp_path, memory_bytes=10)
    assert torch.equal(again.train.x, X)
    assert again.train.y.tolist() == Y.tolist()
    assert {file.name: file.stat().st_mtime_ns for file in (tmp_path / "samples").iterdir()} == files


def test_what_is_no_dataset_is_refused() -> None:
    with pytest.raises(DataError, match="has no len"):
        Source.from_datasets(iter([(1, 2)]), Pairs())
    with pytest.raises(DataError, match="say what x and y are with read="):
        Source.from_datasets([{"a": 1}], Pairs())
    ragged = [(np.zeros(2), 0), (np.zeros(3), 1)]
    with pytest.raises(DataError, match=r"sample 1 has shape \(3,\), the first has \(2,\)"):
        Source.from_datasets(ragged, ragged)


# Tables ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def sensors(tmp_path: Path) -> Path:
    """20 rows each of two people in two seasons, activities in turn."""
    rows = [
        [who, season, row, 5, ("run", "sit")[row % 2]]
        for who in ("ann", "bob")
        for season in ("spring", "summer")
        for row in range(20)
    ]
    return write_table(tmp_path / "sensors.csv", ["person", "season", "a", "b", "activity"], rows)


NAMED: dict[str, Any] = {"label": "activity", "user": "person", "task": "season"}


def test_a_table_has_its_classes_users_and_tasks_by_name(sensors: Path) -> None:
    source = load_source(f"table:{sensors}", None, reading(**NAMED))
    assert (source.class_names, source.shape) == (("run", "sit"), (2,))
    assert (len(source.train), len(source.test)) == (64, 16)  # a fifth is held out
    assert source.test.subject is not None
    assert source.test.task is not None
    cells = torch.stack([source.test.y, source.test.subject, source.test.task], 1)
    counts = torch.unique(cells, dim=0, return_counts=True)[1].tolist()
    assert counts == [2] * 8  # of each class, person and season
    assert source.mean == pytest.approx(source.train.x.mean(0).tolist(), abs=1e-5)
    assert source.std == pytest.approx([float(source.train.x[:, 0].std(unbiased=False)), 1.0], abs=1e-5)
    again = load_source(f"table:{sensors}", None, reading(**NAMED))
    assert torch.equal(source.test.x, again.test.x)


def test_tasks_of_a_table_are_tasks_in_every_scenario(sensors: Path, tmp_path: Path) -> None:
    source = load_source(f"table:{sensors}", None, reading(**NAMED, tasks=("summer", "spring")))
    dealt = Benchmark(source, BenchmarkOptions(scenario="domain", tasks=2, clients=2, partition="subject"))
    assert dealt.size(0, 0) == 16
    rows = [
        [x, f"{alphabet}{k}", alphabet] for alphabet, n in (("a", 3), ("b", 2)) for k in range(n) for x in range(10)
    ]
    file = write_table(tmp_path / "letters.csv", ["x", "label", "task"], rows)
    uneven = Benchmark(load_source(f"table:{file}"), BenchmarkOptions(scenario="class", tasks=2, clients=2))
    assert [task.classes for task in uneven.tasks] == [(0, 1, 2), (3, 4)]
    with pytest.raises(UserError, match="tasks = 3 is more than the 2 that letters has"):
        Benchmark(load_source(f"table:{file}"), BenchmarkOptions(scenario="task", tasks=3))


def test_a_column_says_what_is_held_out(tmp_path: Path) -> None:
    rows = [[x, x % 2, "test" if x < 4 else "train"] for x in range(10)]
    source = load_source(f"table:{write_table(tmp_path / 't.csv', ['x', 'label', 'test'], rows)}")
    assert source.test.x.flatten().tolist() == [0, 1, 2, 3]
    write_table(tmp_path / "t.csv", ["x", "label", "test"], [[1, 0, "maybe"], [2, 1, "no"]])
    with pytest.raises(DataError, match="'maybe' does not say whether a sample is for tests"):
        load_source(f"table:{tmp_path / 't.csv'}")


@pytest.mark.parametrize(
    ("head", "row", "options", "message"),
    [
        (["x", "kind"], [1, 0], {}, "there is no column 'label'; name yours"),
        (["x", "label"], [1, 0], {"user": "persn"}, "unknown column of t.csv 'persn'"),
        (["x", "city", "label"], [1, "Oslo", 0], {}, "line 2: 'Oslo' in column 'city' is no number"),
        (["x", "label"], [1, 0.5], {}, r"labels: 0\.5 at place 0 is not a whole number"),
        (["x", "label"], [1, 1], {}, "no sample has label 0, though some have 1"),
        (["x", "label"], ["", 0], {}, "samples hold values that are not finite"),
        (["x", "label"], [1, 0, 3], {}, "line 2: 3 cells, expected 2"),
        (["x", "label"], [1, "c"], {"classes": ("a", "b")}, "class 'c' is not in data.classes: a, b"),
        (["label"], [1], {}, "a sample needs features"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_in_one_line(
    head: list[str], row: list[object], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = write_table(tmp_path / "t.csv", head, [row] * 10)
    with pytest.raises(UserError, match=message) as caught:
        load_source(f"table:{file}", None, reading(**options))
    assert "\n" not in str(caught.value)


def test_numbers_that_are_names_can_be_given_as_such(tmp_path: Path) -> None:
    file = write_table(tmp_path / "t.csv", ["x", "label"], [[x, (10, 30)[x % 2]] for x in range(10)])
    source = load_source(f"table:{file}", None, reading(classes=("10", "30")))
    assert source.class_names == ("10", "30")
    assert sorted(set(source.train.y.tolist())) == [0, 1]


def test_parquet_is_read_as_csv_is(sensors: Path) -> None:
    pyarrow_csv = pytest.importorskip("pyarrow.csv")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow_csv.read_csv(sensors), sensors.with_suffix(".parquet"))
    one, two = (
        load_source(f"table:{sensors.with_suffix(end)}", None, reading(**NAMED)) for end in (".csv", ".parquet")
    )
    assert torch.equal(one.train.x, two.train.x)
    assert torch.equal(one.train.y, two.train.y)
    assert one.class_names == two.class_names


# Arrays ---------------------------------------------------------------------------------------------------------------


def test_an_npz_may_have_one_array_or_two_halves(tmp_path: Path) -> None:
    y = np.arange(20) % 4
    np.savez(tmp_path / "one.npz", x=np.zeros((20, 5, 6), np.uint8), y=y, user=y)
    one = load_source(f"npz:{tmp_path / 'one.npz'}")
    assert (one.shape, len(one.train), len(one.test)) == ((1, 5, 6), 16, 4)
    assert one.train.subject is not None
    two_halves = {
        "x_train": np.zeros((8, 5, 6, 3), np.uint8),
        "y_train": y[:8],
        "x_test": np.zeros((4, 5, 6, 3), np.uint8),
    }
    np.savez(tmp_path / "two.npz", **two_halves, y_test=np.array([0, 1, 2, 3]), class_names=np.array(list("abcd")))  # type: ignore[arg-type]
    two = load_source(f"npz:{tmp_path / 'two.npz'}")
    assert (two.shape, len(two.train), len(two.test)) == ((3, 5, 6), 8, 4)
    assert two.class_names == ("a", "b", "c", "d")
    assert two.test.y.tolist() == [0, 1, 2, 3]


def test_an_npz_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), labels=np.zeros(4))
    with pytest.raises(DataError, match="there is no array 'label'; it has labels, x"):
        load_source(f"npz:{tmp_path / 'a.npz'}")
    np.savez(tmp_path / "a.npz", x=np.array([{}, {}]), y=np.zeros(2))
    with pytest.raises(DataError, match="cannot be read as NumPy arrays"):  # a pickle
        load_source(f"npz:{tmp_path / 'a.npz'}")
    np.savez(tmp_path / "a.npz", x=np.zeros((4, 2)), y=np.zeros(3))
    with pytest.raises(DataError, match="'y' has shape"):
        load_source(f"npz:{tmp_path / 'a.npz'}")


# Pictures -------------------------------------------------------------------------------------------------------------


def draw(path: Path, size: tuple[int, int] = (8, 8), colour: Any = 100, mode: str = "L") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)


def test_pictures_by_class_with_users_by_their_names(tmp_path: Path) -> None:
    for k, name in enumerate("ab"):
        for writer in ("eve", "joe"):
            for n in range(5):
                draw(tmp_path / name / f"{writer}_{n}.png", colour=10 * k + n)
    source = load_source(f"pictures:{tmp_path}", None, reading(user="prefix"))
    assert (source.class_names, source.shape) == (("a", "b"), (1, 8, 8))
    assert (len(source.train), len(source.test)) == (16, 4)
    assert source.train.subject is not None
    assert source.train.subject.bincount().tolist() == [8, 8]
    assert source.train.x[source.train.y == 1].min() >= 10
    assert source.mean == pytest.approx([float(source.train.x.float().mean()) / 255], abs=1e-6)


def test_pictures_in_halves_get_one_size_and_colour(tmp_path: Path) -> None:
    draw(tmp_path / "train" / "a" / "wide.png", (20, 10), (255, 0, 0), "RGB")
    draw(tmp_path / "train" / "b" / "tall.png", (5, 50), 7)
    draw(tmp_path / "test" / "a" / "clear.png", (4, 4), (0, 0, 0, 0), "RGBA")
    (tmp_path / "train" / "b" / "notes.txt").write_text("not a picture")
    source = load_source(f"pictures:{tmp_path}", None, reading(size=6))
    assert (source.shape, len(source.train), len(source.test)) == ((3, 6, 6), 2, 1)
    assert source.train.x[0, :, 0, 0].tolist() == [255, 0, 0]
    assert source.test.x.unique().tolist() == [255]  # what is transparent lies on white
    assert load_source(f"pictures:{tmp_path}").shape == (3, 32, 32)
    assert load_source(f"pictures:{tmp_path}", None, reading(colour="grey", size=4)).shape == (1, 4, 4)


def test_a_list_beside_pictures_says_more(tmp_path: Path) -> None:
    for name in "ab":
        for n in range(4):
            draw(tmp_path / name / f"{n}.png", colour=n)
    rows = [
        [f"{name}/{n}.png", f"w{n % 2}", "late" if name == "a" else "early", n // 3] for name in "ba" for n in range(4)
    ]
    write_table(tmp_path / "pictures.csv", ["file", "user", "task", "test"], rows)
    source = load_source(f"pictures:{tmp_path}")
    assert source.train.task is not None
    assert source.train.subject is not None
    assert source.train.task.tolist() == [1] * 3 + [0] * 3
    assert source.train.subject.tolist() == [0, 1, 0] * 2
    assert source.test.x[:, 0, 0, 0].tolist() == [3, 3]
    write_table(tmp_path / "pictures.csv", ["file", "user"], [["a/0.png", "x"]])
    with pytest.raises(DataError, match=r"there is no line for a/1\.png"):
        load_source(f"pictures:{tmp_path}")


def test_pictures_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    draw(tmp_path / "a" / "good.png")
    (tmp_path / "a" / "bad.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"bad\.png: cannot be read as a picture"):
        load_source(f"pictures:{tmp_path}")
    with pytest.raises(DataError, match="expected a folder for each class"):
        load_source(f"pictures:{tmp_path / 'a'}")


def test_many_pictures_are_mapped(tmp_path: Path) -> None:
    for name in "ab":
        for n in range(5):
            draw(tmp_path / "pics" / name / f"{n}.png", colour=n)
    few, many = (load_source("pictures:pics", tmp_path, reading(memory_bytes=n)) for n in (640, 639))
    for one, other in ((few.train, many.train), (few.test, many.test)):
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.y, other.y)
    files = list((tmp_path / "samples").iterdir())
    assert sorted(file.stat().st_size for file in files) == [2 * 64, 8 * 64]  # each half its own
    files[0].write_bytes(bytes(files[0].stat().st_size))
    again = load_source("pictures:pics", tmp_path, reading(memory_bytes=639))
    blank = [half.x for half in (again.train, again.test) if not half.x.any()]
    assert [x.numel() for x in blank] == [files[0].stat().st_size]  # a half is its file, not a copy of something


def test_the_check_goes_on_past_pictures_that_end_too_early(tmp_path: Path) -> None:
    """A picture of noise cut in the middle can be opened, and not read; all others are counted."""
    noise = np.random.default_rng(1).integers(0, 256, (12, 16, 16), np.uint8)
    for n in range(12):
        file = tmp_path / "p" / "ab"[n % 2] / f"{n:02}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise[n]).save(file)
        if n in (0, 3, 6, 9):
            file.write_bytes(file.read_bytes()[:150])
    (tmp_path / "p" / "a" / "none.png").write_bytes(b"no picture")
    whole = np.delete(noise, [0, 3, 6, 9], 0)
    lines = list(examine("p", tmp_path, Reading()))
    assert "samples    8: 6 to train, 2 to test (held out by us)" in lines
    assert f"shape      1x16x16, bytes: pictures, values {whole.min()} to {whole.max()}" in lines
    at = lines.index("odd        5 pictures cannot be read, such as:")
    assert [line.strip() for line in lines[at + 1 : at + 5]] == [
        *(str(tmp_path / "p" / name) for name in ("a/none.png", "a/00.png", "a/06.png")),
        "2 classes have fewer than 10 samples: a, b",
    ]
    assert lines[-1] == "cannot be used: repair or remove pictures that cannot be read"
    with pytest.raises(DataError, match=r"a/none\.png: cannot be read as a picture \(1 of 12 cannot\)"):
        load_source("pictures:p", tmp_path)
    (tmp_path / "p" / "a" / "none.png").unlink()
    with pytest.raises(DataError, match=r"\d\d\.png: cannot be read as a picture \(.*\); 'cflag data check"):
        load_source("pictures:p", tmp_path)


# Where and whose ------------------------------------------------------------------------------------------------------


def test_a_server_cannot_name_a_place_outside_of_the_data_folder(sensors: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in (f"table:{sensors}", "table:../sensors.csv"):
        with pytest.raises(DataError, match="is not in this client's data folder"):
            load_source(name, tmp_path / "data", reading(confined=True, **NAMED))
    assert len(load_source("table:sensors.csv", tmp_path, reading(confined=True, **NAMED)).train)


def test_a_place_is_below_the_data_folder_or_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CFLAG_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    assert resolve({"source": "npz:a.npz"}).source == f"npz:{tmp_path / 'a.npz'}"
    assert resolve({"source": "npz:a.npz", "data_dir": "/data"}).source == "npz:a.npz"
    assert resolve({"source": "npz:a.npz", "engine": "flower"}).source == "npz:a.npz"
    with pytest.raises(UserError, match="'digits' is one data set and takes no place"):
        load_source("digits:8")


@pytest.fixture
def fleet(sensors: Path, tmp_path: Path) -> dict[str, Any]:
    """Each person's rows in a folder of its own."""
    lines = sensors.read_text().splitlines()
    for number, who in enumerate(("ann", "bob")):
        folder = tmp_path / f"client-{number}"
        folder.mkdir()
        mine = [line for line in lines[1:] if line.startswith(who)]
        (folder / "sensors.csv").write_text("\n".join([lines[0], *mine[: 40 - 10 * number]]))
    data = {**NAMED, "classes": ["run", "sit"], "tasks": ["spring", "summer"]}
    return {"source": "table:sensors.csv", "partition": "own", "clients": 2, "scenario": "domain", "tasks": 2,
            "data_dir": str(tmp_path), "data": data}  # fmt: skip


def test_folders_of_clients_are_dealt_as_they_are(fleet: dict[str, Any]) -> None:
    together = build_benchmark(load_config("digits", **fleet))
    assert [together.size(c, t) for c in range(2) for t in range(2)] == [16, 16, 16, 8]
    for client in range(2):
        alone = build_benchmark(
            load_config("digits", **{**fleet, "engine": "flower", "data_dir": f"{fleet['data_dir']}/client-{client}"})
        )
        assert alone.spec == together.spec  # so a server takes it
        for task in range(2):
            assert torch.equal(alone.train(client, task).x, together.train(client, task).x)
            assert torch.equal(alone.test(client, task).y, together.test(client, task).y)


def test_a_subset_of_clients_folders_is_the_one_each_would_take_alone(fleet: dict[str, Any]) -> None:
    few = {**fleet, "samples_per_class": 3}
    together = build_benchmark(load_config("digits", **few))
    own = {**few, "engine": "flower", "data_dir": f"{fleet['data_dir']}/client-1"}
    assert torch.equal(build_benchmark(load_config("digits", **own)).train(1, 1).x, together.train(1, 1).x)


def test_a_fleet_whose_data_are_not_there_is_not_started(
    fleet: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whose folder it is and where it should be, in one line, before there is a run folder."""
    config = load_config("digits", **fleet, engine="flower")
    check_data(config, FleetOptions())
    for damage, why in (
        ((tmp_path / "client-1" / "sensors.csv").unlink, r"client 1: .*client-1/sensors.csv: not found; put each"),
        ((tmp_path / "client-1").rmdir, "client 1: there is no folder .*client-1 with its data; put each"),
    ):
        damage()
        with pytest.raises(UserError, match=why):
            check_data(config, FleetOptions())
    monkeypatch.chdir(tmp_path)
    for words in (["--set", "source=table:none.csv"], ["--set", "source=folder", "--data-dir", "none"]):
        assert main(["deploy", "--quiet", "--out", "run", *words]) == 2
        error = capsys.readouterr().err
        assert "client 0: " in error
        assert "none" in error
        assert error.count("\n") == 1
    assert not Path("run").exists()


def test_one_client_alone_cannot_number_classes_or_tasks(fleet: dict[str, Any]) -> None:
    for key, message in (("classes", "name them in order: data.classes"), ("tasks", "data.tasks")):
        data = {name: value for name, value in fleet["data"].items() if name != key}
        with pytest.raises(UserError, match=message):
            build_benchmark(load_config("digits", **{**fleet, "data": data}))
    with pytest.raises(UserError, match=r"there is no folder .*client-2; put each client's data"):
        build_benchmark(load_config("digits", **{**fleet, "clients": 3}))


# Tasks as lists -------------------------------------------------------------------------------------------------------


def test_tasks_may_be_lists_of_classes_by_number_or_name(tmp_path: Path) -> None:
    config = resolve({"source": "digits", "tasks": [[3, 1, 4], [5]]})
    assert (config.tasks, config.task_classes) == (2, ((3, 1, 4), (5,)))
    assert resolve(config.to_dict()) == config
    assert "task_classes = [" in config.to_toml()
    dealt = build_benchmark(config)
    assert [task.classes for task in dealt.tasks] == [(3, 1, 4), (5,)]
    assert sorted(dealt.class_counts()[0]) == [1, 3, 4]
    assert dealt.notes() == ["task 2 has one class, and tests tell the task: all answers are right, 100 %"]
    x, y = torch.randn(6, 2), Y
    named = Source.from_tensors((x, y), (x, y), class_names=("cat", "dog", "eel"))
    options = BenchmarkOptions(tasks=2, clients=1, task_classes=(("eel",), ("dog", 0)))
    assert [task.classes for task in Benchmark(named, options).tasks] == [(2,), (1, 0)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": [[0, 1], [1, 2]]}, "class 1 is in task 1 and again in task 2"),
        ({"tasks": [[0, 1], []]}, "task 2 has no class"),
        ({"tasks": [[0, 11]]}, r"there is no class 11 in digits, which has 0\.\.9"),
        ({"tasks": [[0, "seven"]]}, "unknown class of digits 'seven'"),
        ({"tasks": [[0, 1.5]]}, "must be a list of lists of class numbers or names"),
        ({"tasks": [[0], [1]], "scenario": "permuted"}, "go with scenario 'task' or 'class'"),
        ({"tasks": 3, "task_classes": [[0], [1]]}, "tasks = 3, but task_classes lists 2"),
    ],
)
def test_lists_that_cannot_be_tasks_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_benchmark(resolve({"source": "digits", **settings}))


def test_clients_without_test_samples_are_told_of_once() -> None:
    dealt = build_benchmark(load_config("digits", clients=100))
    assert dealt.notes() == [
        "task 1 has 71 test samples for 100 clients: 29 are not tested on it",
        "and 4 more tasks like this",
    ]
    assert build_benchmark(load_config("digits", clients=40)).notes() == []


# A look at it ---------------------------------------------------------------------------------------------------------


def test_the_check_says_what_is_there_and_what_is_odd(tmp_path: Path) -> None:
    rows = [[x % 7, 3, "a" if x % 2 else "b", "w"] for x in range(40)] + [["", 3, "c", "w"], [1, 3, "b", "w"]]
    write_table(tmp_path / "t.csv", ["f", "g", "label", "user"], rows)
    lines = list(examine("t.csv", tmp_path, Reading()))
    assert lines[1] == "samples    42: 34 to train, 8 to test (held out by us)"
    assert "shape      2, numbers, values 0 to 6" in lines
    assert "classes    3: a (20), b (21), c (1)" in lines
    assert "users      1: w (42)" in lines
    odd = "\n".join(lines)
    for line in (
        "1 samples hold values that are not finite, the first is 40",
        "1 of 2 features are the same in all samples",
        "1 classes have fewer than 10 samples: c",
        "34 samples are there more than once",  # seven values, and the empty one
        "1 classes have no sample for tests: c",
    ):
        assert line in odd
    assert len(lines) <= 14


def test_the_check_shows_what_cannot_be_used(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", ["f", "label"], [[x, x / 4] for x in range(20)])
    lines = list(examine("t.csv", tmp_path, Reading()))
    assert any("labels are measured, not counted, such as 0.25" in line for line in lines)
    assert lines[-1].startswith("cannot be used: t: labels: 0.25 at place 1 is not a whole number")
    draw(tmp_path / "p" / "a" / "good.png")
    (tmp_path / "p" / "a" / "bad.png").write_bytes(b"no picture")
    lines = list(examine("p", tmp_path, Reading()))
    assert "1 pictures cannot be read" in "\n".join(lines)
    assert lines[-1].startswith("cannot be used")


def test_a_table_or_array_of_numbers_to_predict_is_a_regression(tmp_path: Path) -> None:
    rows = [[k, 2 * k, k / 4, "ab"[k % 2]] for k in range(20)]
    write_table(tmp_path / "t.csv", ["first", "second", "label", "task"], rows)
    settings = {"problem": "regression", "scenario": "domain", "tasks": 2, "clients": 2, "rounds": 1}
    config = load_config("digits", source="table:t.csv", data_dir=str(tmp_path), model="linear", **settings)
    benchmark = build_benchmark(config)
    assert (benchmark.source.problem, benchmark.source.classes, benchmark.source.train.y.dtype) == (
        "regression", 1, torch.float32)  # fmt: skip
    both = torch.cat([benchmark.source.train.y, benchmark.source.test.y])
    assert sorted(both.tolist()) == [k / 4 for k in range(20)]
    np.savez(tmp_path / "a.npz", x=np.zeros((6, 2)), y=np.eye(3)[[0, 1, 2, 0, 1, 2]].astype(np.int64))
    several = load_source("npz:a.npz", tmp_path, Reading(problem="multilabel"))
    assert (several.problem, several.classes, tuple(several.train.y.shape[1:])) == ("multilabel", 3, (3,))
    write_table(tmp_path / "w.csv", ["first", "label"], [[1, "cat"], [2, "dog"]])
    with pytest.raises(DataError, match="labels are words, and problem = 'regression' wants numbers"):
        load_source("table:w.csv", tmp_path, Reading(problem="regression"))


def test_the_check_takes_numbers_to_predict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_table(tmp_path / "t.csv", ["f", "label"], [[x, 60 + x / 2] for x in range(20)])
    assert main(["data", "check", "t.csv", "--data-dir", str(tmp_path)]) == 0
    assert "set problem = 'regression'" in capsys.readouterr().out.splitlines()[-1]
    assert main(["data", "check", "t.csv", "--data-dir", str(tmp_path), "--set", "problem=regression"]) == 0
    said = capsys.readouterr().out
    assert "labels     60 to 69.5, mean 64.8, std 2.88" in said
    assert "; labels: mean 64.9, std 2.94" in said
    assert "large" not in said
    partial = "\n".join(examine("t.csv", tmp_path, Reading(partial=True, problem="regression")))
    assert "labels are as large as 69.5" in partial
    assert "classes" not in said


def test_the_check_knows_folders_of_clients(tmp_path: Path) -> None:
    for client in range(2):
        draw(tmp_path / "fleet" / f"client-{client}" / "cat" / "1.png")
    assert 'partition = "own"' in "\n".join(examine("fleet", tmp_path, Reading()))
    assert "partition" not in "\n".join(examine("fleet/client-0", tmp_path, Reading()))


def test_a_run_names_classes_that_nobody_can_learn(tmp_path: Path) -> None:
    for half, classes in (("train", ["ant", "bee"]), ("test", ["ant", "bee", "cow"])):
        for k, name in enumerate(classes):
            for n in range(4):
                draw(tmp_path / "p" / half / name / f"{n}.png", colour=40 * k + n)
    (tmp_path / "p" / "train" / "dog").mkdir()
    config = load_config("digits", source="pictures:p", tasks=1, clients=2, data_dir=str(tmp_path))
    assert build_benchmark(config).notes() == [
        "no training sample is of 2 classes: 'cow', 'dog'; their 4 test samples will be answered wrongly"
    ]
    listed = load_config("digits", source="pictures:p", tasks=[["ant", "bee"]], clients=2, data_dir=str(tmp_path))
    assert build_benchmark(listed).notes() == []


def test_large_numbers_to_predict_are_told_of() -> None:
    x, y = torch.randn(40, 3), torch.linspace(-70, 60, 40)
    large, small = (Source.from_tensors((x, y / k), (x, y / k), problem="regression") for k in (1, 10))
    assert about_labels(large) == [
        "labels are as large as 70: training may diverge; give their label_mean and label_std"
    ]
    assert about_labels(small) == about_labels(replace(large, label_std=(30.0,))) == []


def test_a_list_on_the_command_line_is_shown_how(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--set", "source=table:t.csv", "--set", "data.features=a,b"]) == 2
    assert "data.features = 'a,b' must be a list of strings, as in ['a', 'b']" in capsys.readouterr().err


# The scale of numbers to predict, and what columns are called ---------------------------------------------------------


def test_numbers_to_predict_are_scaled_by_the_training_labels(tmp_path: Path) -> None:
    """Mean and deviation by NumPy, of the rows that are not held out; a client alone concludes nothing."""
    rows = [[k, 100_000 + 40_000 * k, int(k >= 16)] for k in range(20)]
    write_table(tmp_path / "t.csv", ["f", "label", "test"], rows)
    prices = np.array([row[1] for row in rows[:16]], np.float64)
    source = load_source("table:t.csv", tmp_path, Reading(problem="regression"))
    assert source.label_mean == pytest.approx((prices.mean(),))
    assert source.label_std == pytest.approx((prices.std(),))
    assert source.train.y.tolist() == prices.tolist()  # as they are
    alone = load_source("table:t.csv", tmp_path, Reading(partial=True, problem="regression"))
    assert (alone.label_mean, alone.label_std) == ((0.0,), (1.0,))
    said = Reading(DataOptions(label_mean=(3e5,), label_std=(1e5,)), partial=True, problem="regression")
    given = load_source("table:t.csv", tmp_path, said)
    assert (given.label_mean, given.label_std) == ((3e5,), (1e5,))
    two = np.stack([prices, np.full(16, 7.0)], 1)
    np.savez(tmp_path / "a.npz", x_train=np.eye(16), y_train=two, x_test=np.eye(16), y_test=two)
    several = load_source("npz:a.npz", tmp_path, Reading(problem="regression"))
    assert several.label_mean == pytest.approx((prices.mean(), 7.0))
    assert several.label_std == pytest.approx((prices.std(), 1.0))  # what never changes is not divided


def test_a_scale_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    write_table(tmp_path / "t.csv", ["f", "label"], [[k, k % 2] for k in range(20)])
    with pytest.raises(DataError, match=r"data.label_mean and data.label_std are for numbers to predict"):
        load_source("table:t.csv", tmp_path, Reading(DataOptions(label_mean=(1.0,))))
    with pytest.raises(DataError, match="want one number, or one for each of 1"):
        load_source("table:t.csv", tmp_path, Reading(DataOptions(label_mean=(1.0, 2.0)), problem="regression"))
    with pytest.raises(UserError, match=r"data.label_std must be positive"):
        resolve({"source": "table:t.csv", "data": {"label_std": [0.0]}})
    x, y = torch.zeros(4, 2), torch.arange(4.0)
    with pytest.raises(DataError, match="label_std positive"):
        Source.from_tensors((x, y), (x, y), problem="regression", label_scale=(0.0, -1.0))
    with pytest.raises(DataError, match="for numbers to predict"):
        Source.from_tensors((x, y), (x, y), label_scale=(0.0, 2.0))
    own = Source.from_tensors((x, y), (x, y), problem="regression", label_scale="train")
    assert (own.label_mean, own.label_std) == ((1.5,), (1.25**0.5,))


def test_columns_keep_their_names_and_clients_must_have_the_same(tmp_path: Path) -> None:
    """Tables whose columns lie in another order would be learned as if they were alike."""
    for client, head in enumerate((["a", "b", "label"], ["b", "a", "label"])):
        (tmp_path / f"client-{client}").mkdir()
        write_table(tmp_path / f"client-{client}" / "t.csv", head, [[k, -k, k % 2] for k in range(20)])
    own = {"source": "table:t.csv", "partition": "own", "clients": 2, "tasks": 1, "data_dir": str(tmp_path)}
    with pytest.raises(DataError, match=r"client 1 has columns \('b', 'a'\), client 0 has \('a', 'b'\)"):
        build_benchmark(load_config("digits", **own, data={"classes": 2}))
    listed = build_benchmark(load_config("digits", **own, data={"classes": 2, "features": ["a", "b"]}))
    assert listed.spec.columns == ("a", "b")
    assert Spec.from_dict(listed.spec.to_dict()) == listed.spec


# Arrays ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["float64", "int32", ">f4", "bool"])
def test_arrays_are_taken_as_tensors_are(kind: str) -> None:
    """Samples are floating point; labels, people and tasks are whole."""
    x = (np.arange(24).reshape(4, 6) % 2).astype(kind)
    y, who = np.array([0, 1, 2, 0], np.int16), np.array([5, 5, 9, 9], np.uint8)
    source = Source.from_tensors((x, y), (x[::-1], y[::-1]), tasks=(y, y[::-1]), subjects=(who, who))
    assert source.train.x.dtype == torch.float32
    assert source.train.x.tolist() == x.astype(float).tolist()
    assert source.test.x.tolist() == x[::-1].astype(float).tolist()
    assert (source.classes, source.train.y.tolist(), source.test.task.tolist()) == (3, [0, 1, 2, 0], [0, 2, 1, 0])  # type: ignore[union-attr]
    assert source.train.subject.tolist() == [5, 5, 9, 9]  # type: ignore[union-attr]
    with pytest.raises(DataError, match="an array holds <U1, expected numbers"):
        Source.from_tensors((x, np.array(list("abca"))), (x, y))
