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

from cflag import Source, run

SIZE = 96
METHODS: dict[str, Any] = {
    "cflag-sgd": {"alpha": 0.5, "beta": 0.5, "smoothness": 0.1},
    "finetune": {"lr": 0.5},
    "ridge": {},
}


def load(folder: Path) -> Source:
    """Every fifth picture of a class is held out."""
    files = [(file, label) for label, home in enumerate(sorted(p for p in folder.iterdir() if p.is_dir()))
             for file in sorted(home.glob("*"))]  # fmt: skip
    pictures = [np.asarray(Image.open(file).convert("RGB").resize((SIZE, SIZE))) for file, _ in files]
    x = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()
    y, held_out = torch.tensor([label for _, label in files]), torch.arange(len(files)) % 5 == 0
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
    main(*sys.argv[1:])
