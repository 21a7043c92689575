"""Your own folder of pictures, one folder for each class, becomes a continual federated classifier.

pip install 'cflag[backbones]'
python examples/pretrained/pictures.py FOLDER [TASKS] [CLIENTS]
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from cflag import Source, UserError, run

SIZE = 96
METHODS: dict[str, Any] = {
    "cflag-sgd": {"alpha": 0.5, "beta": 0.5, "smoothness": 0.1},
    "finetune": {"lr": 0.5},
    "ridge": {},
}


def read(file: Path) -> Any:
    """Return a picture, in colour and of one size."""
    try:
        return np.asarray(Image.open(file).convert("RGB").resize((SIZE, SIZE)))
    except OSError as error:
        raise UserError(f"{file} is no picture that can be read ({error}); take it away") from None


def load(folder: Path) -> Source:
    """The first picture of a class, and every fifth after it, is held out."""
    classes = sorted(p for p in folder.glob("[!.]*") if p.is_dir())
    if not classes:
        raise UserError(f"{folder} has no folders in it; make one for each class, with its pictures")
    files = [
        (file, label, k) for label, home in enumerate(classes) for k, file in enumerate(sorted(home.glob("[!.]*")))
    ]
    for label, home in enumerate(classes):
        if sum(of == label for _, of, _ in files) < 2:
            raise UserError(f"{home} needs two pictures at least: one to learn from, one to test with")
    x = torch.from_numpy(np.stack([read(file) for file, _, _ in files])).permute(0, 3, 1, 2).contiguous()
    y, held_out = torch.tensor([label for _, label, _ in files]), torch.tensor([k % 5 == 0 for _, _, k in files])
    return Source.from_tensors((x[~held_out], y[~held_out]), (x[held_out], y[held_out]), folder.name)


def main(folder: str, tasks: str = "5", clients: str = "10") -> None:
    """Train C-FLAG-SGD and, for comparison, plain fine-tuning and least squares, class-incremental."""
    source = load(Path(folder))
    settings: dict[str, Any] = {"backbone": "efficientnet-lite0", "image_size": SIZE, "model": "linear", "rounds": 10,
                                "scenario": "class", "tasks": int(tasks), "clients": int(clients)}  # fmt: skip
    for method, own in METHODS.items():
        result = run(source=source, method=method, **settings, **{method: own})
        print(f"{method}: {100 * result.average_accuracy:.1f} % of {source.classes} classes, in {result.folder}")


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 4:
        sys.exit(__doc__)
    try:
        main(*sys.argv[1:])
    except UserError as error:
        sys.exit(f"pictures.py: {error}")
