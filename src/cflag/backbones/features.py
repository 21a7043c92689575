"""Frozen features: every picture goes through the backbone once, ever. Later runs read what was kept.

They are kept beside the data, in `features/KEY`, in blocks of a thousand pictures, each a sealed file that is written
in one step. The key is a hash of the pictures, of the backbone's weights and code, and of how pictures are prepared for
it: whatever changes, other features are computed, and none are ever taken for another's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from math import prod
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from cflag.backbones.base import IMAGENET, Backbone, Pictures
from cflag.backbones.code import code_digest
from cflag.data.load import data_dir_or_default
from cflag.data.source import Source, Split
from cflag.errors import DamagedError, UserError
from cflag.files import load_state, save_state, sweep
from cflag.process import cores, one_thread

BLOCK = 1000
BATCH = 16
"""Pictures at a time. Always so many, or a picture's features would depend on how many it comes with."""
FORMAT = 1
ABANDONED = 3600.0
"""Seconds after which a file that is half written is nobody's any more."""
MOST_BYTES = 8 * 10**9
"""What features of a part of a network may take in memory, where every process of a run holds them."""
Advance = Callable[[int], None]


class Kept(nn.Module):
    """Rounds features to the precision in which they are kept."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        """Return what a run reads of features."""
        return x.to(self.kind).float()


class Extractor:
    """Turns a source of pictures into one of features, with what is kept in a folder.

    Of the lower part of a network, whose features may have any shape, `origin` is the digest of the whole. With
    `pictures`, training samples have their picture beside their features.
    """

    def __init__(
        self, backbone: Backbone, folder: Path, half: bool = False, origin: str = "", pictures: bool = False
    ) -> None:
        self.backbone = backbone
        self.folder = folder
        self.kind = torch.float16 if half else torch.float32
        self._digest = backbone.digest()
        self._code = code_digest(backbone.module)  # not of the origin: clients may have another Python
        self._part = bool(origin)
        self.origin = origin or self._digest
        self._pictures = pictures
        self._encoded: dict[bytes, Tensor] = {}
        self._module = backbone.module.eval().requires_grad_(False)
        self._module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs

    def source(self, pictures: Source) -> Source:
        """Return the source with features in the place of pictures."""
        self.backbone.check_pictures(pictures)
        with one_thread():
            train, test = (self._split(half, f"{pictures.name}, {name}")
                           for name, half in (("train", pictures.train), ("test", pictures.test)))  # fmt: skip
        if self._pictures:
            train = replace(train, picture=pictures.train.x)
        return replace(pictures, train=train, test=test, mean=(0.0,), std=(1.0,), origin=self.origin)

    def _check_room(self, x: Tensor) -> None:
        """Refuse what would not fit into memory; upper layers have fewer numbers than lower ones."""
        shape, count = tuple(self.features(x[:1]).shape[1:]), len(x)
        size = 4 * count * prod(shape)
        if size > MOST_BYTES:
            raise UserError(
                f"backbone '{self.backbone.name}': what comes out below the first trained layer, {shape} for each of "
                f"{count:,} pictures, takes {size / 1e9:,.1f} GB, more than {MOST_BYTES / 1e9:,.0f}; train fewer "
                "of its layers, or lower image_size, samples_per_class or test_per_class"
            )

    def _split(self, split: Split, name: str) -> Split:
        key = self._key(split.x)
        folder = self.folder / key
        folder.mkdir(parents=True, exist_ok=True)
        pieces = split.x.split(BLOCK)
        files = [folder / f"{k:05d}-{len(piece)}.{key}.safetensors" for k, piece in enumerate(pieces)]
        kept = [_kept(file) for file in files]
        missing = [k for k, block in enumerate(kept) if block is None]
        if missing and self._part:
            self._check_room(split.x)
        with _progress(f"{name}: features of {self.backbone.name}", sum(len(pieces[k]) for k in missing)) as advance:

            def compute(k: int) -> Tensor:
                found = self.features(pieces[k], advance).to(self.kind)
                save_state(files[k], {"features": found})
                return found

            with ThreadPoolExecutor(
                cores()
            ) as threads:  # each computes on one core; PyTorch lets go of the interpreter
                for k, found in zip(missing, threads.map(compute, missing), strict=True):
                    kept[k] = found
        if missing:
            sweep(folder, age=ABANDONED)  # another run may be writing here, too
        return replace(split, x=torch.cat([block for block in kept if block is not None]).float())

    def _key(self, x: Tensor) -> str:
        about = f"{FORMAT} {self._digest} {self.kind} {x.dtype} {tuple(x.shape)} {BATCH}{self._code}"
        summed = hashlib.sha256(about.encode())
        for piece in x.split(BLOCK):
            summed.update(piece.contiguous().numpy().data)
        return summed.hexdigest()[:32]

    def encode(self, x: Tensor) -> Tensor:
        """Return the features of pictures as `source` has them; each is computed once in a process."""
        keys = [hashlib.sha256(picture.numpy().tobytes()).digest() for picture in x.contiguous()]
        fresh = {key: k for k, key in enumerate(keys) if key not in self._encoded}
        if fresh:
            found = self.features(x[list(fresh.values())]).to(self.kind)
            self._encoded.update(zip(fresh, found, strict=True))
        return torch.stack([self._encoded[key] for key in keys]).float()

    def once(self, x: Tensor) -> Tensor:
        """Return the same of pictures that will not come again: nothing is kept."""
        found: Tensor = Kept(self.kind)(self.features(x))
        return found

    def layers(self) -> nn.Module:
        """Return the same as a module: pictures prepared, the network, and the precision in which features are kept."""
        return nn.Sequential(Pictures(self.backbone), self._module, Kept(self.kind))

    @torch.inference_mode()
    def features(self, x: Tensor, advance: Advance = lambda _: None) -> Tensor:
        """Return the features of pictures, (n, d), or of any shape from a part of a network."""
        found = []
        for piece in x.split(BATCH):
            padded = (
                piece if len(piece) == BATCH else torch.cat([piece, piece[:1].expand(BATCH - len(piece), *x.shape[1:])])
            )
            found.append(self._checked(self.backbone.prepared(padded))[: len(piece)])
            advance(len(piece))
        return torch.cat(found)

    def _checked(self, x: Tensor) -> Tensor:
        """Return the features of prepared pictures; refuse what is none."""
        name = self.backbone.name
        try:
            found = self._module(x.contiguous(memory_format=torch.channels_last))
        except RuntimeError as error:
            first = str(error).partition("\n")[0]
            raise UserError(f"backbone '{name}' does not take pictures of {tuple(x.shape[1:])}: {first}") from None
        if not isinstance(found, Tensor) or (found.dim() != 2 and not self._part) or len(found) != len(x):
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise UserError(f"backbone '{name}' gives {shape} for {len(x)} pictures; features are (n, d)")
        if not bool(found.isfinite().all()):
            raise UserError(f"backbone '{name}' gives features that are not finite: are its weights right?")
        return found.contiguous()


def _kept(file: Path) -> Tensor | None:
    """Return a block that is there; one that was damaged is computed again."""
    if not file.exists():
        return None
    try:
        found: Tensor = load_state(file)["features"]
    except DamagedError:
        return None
    return found


@contextmanager
def _progress(what: str, count: int) -> Iterator[Advance]:
    """Show how far it is, where there is something to do."""
    console = Console(stderr=True)
    if not count:
        yield lambda _: None
        return
    if not console.is_terminal:
        console.print(f"{what}: {count:,} pictures, once", highlight=False)
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=count)
        yield lambda done: bar.advance(task, done)


def features(
    source: Source,
    module: nn.Module,
    size: int,
    mean: tuple[float, ...] = IMAGENET[0],
    std: tuple[float, ...] = IMAGENET[1],
    folder: str | Path | None = None,
    half: bool = False,
) -> Source:
    """Return a source of your own network's features: pictures go through `module` once, at `size` pixels.

    It gets them in [0, 1], less `mean` over `std`. Features are kept in `folder` (default: in the data folder).
    """
    where = Path(folder) if folder is not None else data_dir_or_default(None) / "features"
    return Extractor(Backbone(type(module).__name__, module, size, mean, std), where, half).source(source)
