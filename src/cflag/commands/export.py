"""`cflag export`: a finished run's model for people who have no cflag."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cflag.commands.common import Commands

FORMS = ("onnx", "torchscript", "pytorch")


def add_export(commands: Commands) -> None:
    """Add `cflag export`."""
    parser = commands.add_parser(
        "export",
        help="a finished run's model as ONNX, TorchScript or PyTorch file",
        description="Write the model, about.json (classes, tasks, input) and use.py, ten lines that need no cflag.",
    )
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--to", choices=FORMS, required=True)
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: RUN/export-FORM")
    parser.add_argument(
        "--model", metavar="FILE.py:NAME", help="the network, or what makes it, where it was handed over in Python"
    )
    parser.set_defaults(command=_export)


def _export(args: argparse.Namespace) -> None:
    from cflag.export import export
    from cflag.models.reference import network_or_maker

    print(export(args.run, args.to, args.out, args.model and network_or_maker(args.model)))
