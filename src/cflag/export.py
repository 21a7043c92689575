"""A finished run's model for people who have no cflag: one file, what its outputs mean, and ten lines that use it.

The exported model takes raw samples, as the data set has them (pictures as bytes), and scales them itself. Outputs of
classes that no task brought are at minus infinity, so that the largest output is the run's own answer; numbers to
predict are in the labels' own unit.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from cflag import registry
from cflag.config import CUSTOM, Config
from cflag.data.spec import Spec
from cflag.errors import UserError
from cflag.files import json_lines, write_atomically
from cflag.methods.base import Method
from cflag.problems.base import find, takes
from cflag.results.folder import RunFolder
from cflag.results.model import TrainedModel, load_model
from cflag.results.result import Result

Form = Literal["onnx", "torchscript", "pytorch"]
FORMS: tuple[Form, ...] = get_args(Form)
FILES: dict[Form, str] = {"onnx": "model.onnx", "torchscript": "model.torchscript.pt", "pytorch": "model.pt2"}
LOADING: dict[Form, tuple[str, str]] = {
    "onnx": (
        "import onnxruntime",
        'session = onnxruntime.InferenceSession(here / "model.onnx")\nscores = session.run(None, {"x": x})[0]',
    ),
    "torchscript": (
        "import torch",
        'model = torch.jit.load(here / "model.torchscript.pt")\nscores = model(torch.from_numpy(x)).numpy()',
    ),
    "pytorch": (
        "import torch",
        'model = torch.export.load(here / "model.pt2").module()\nscores = model(torch.from_numpy(x)).numpy()',
    ),
}
USAGE = """\
\"\"\"Answer for samples: python use.py SAMPLES.npy{task}, an array of the shape and kind that about.json names.\"\"\"
import json, sys
from pathlib import Path
import numpy as np
{imports}
here, x = Path(__file__).parent, np.load(sys.argv[1])
about = json.loads((here / "about.json").read_text())
{scores}
{answers}
"""
ALLOWED = 'allowed = about["tasks"][int(sys.argv[2]) - 1] if len(sys.argv) > 2 else range(len(about["classes"]))\n'
ANSWERS = {
    "classes": ALLOWED
    + 'print(*(about["classes"][allowed[k]] for k in scores[:, list(allowed)].argmax(1)), sep="\\n")',
    "multilabel": ALLOWED
    + 'print(*(" ".join(about["classes"][k] for k in allowed if row[k] > 0) for row in scores), sep="\\n")',
    "regression": 'print(*(" ".join(f"{value:.9g}" for value in row) for row in scores), sep="\\n")',
}
"""What is printed of scores, by what labels are: a class, the labels that are yes, or numbers."""


class Exported(nn.Module):
    """A model with the scaling of its samples before it, and what is closed behind it."""

    mean: Tensor
    std: Tensor
    closed: Tensor
    label_mean: Tensor
    label_std: Tensor

    def __init__(self, model: nn.Module, spec: Spec, open_outputs: Tensor) -> None:
        super().__init__()
        shape = (1, -1, *[1] * (len(spec.shape) - 1))
        self.model = model.eval()
        self.bytes = spec.dtype == "uint8"
        self.scaled = spec.mean != (0.0,) or spec.std != (1.0,)
        self.kind = next(model.parameters()).dtype
        self.register_buffer("mean", torch.tensor(spec.mean).view(shape))
        self.register_buffer("std", torch.tensor(spec.std).view(shape))
        self.own_unit = spec.scales_labels
        self.register_buffer("label_mean", torch.tensor(spec.label_mean, dtype=torch.float64))
        self.register_buffer("label_std", torch.tensor(spec.label_std, dtype=torch.float64))
        self.register_buffer("closed", torch.zeros(spec.classes).masked_fill(~open_outputs, -torch.inf))

    def forward(self, x: Tensor) -> Tensor:
        """Return a score for each class, or the numbers that are predicted, (n, outputs)."""
        if self.bytes:
            x = x.float() / 255
        if self.scaled:
            x = (x - self.mean.to(x.dtype)) / self.std.to(x.dtype)
        scores: Tensor = self.model(x.to(self.kind))
        if self.own_unit:
            return (scores.double() * self.label_std + self.label_mean).to(self.kind)
        return scores + self.closed


def export(run: Path, form: Form, out: Path | None = None) -> Path:
    """Write a finished run's model, what its outputs mean, and a snippet that uses it; return their folder."""
    if form == "onnx" and any(find_spec(name) is None for name in ("onnx", "onnxscript")):
        raise UserError("--to onnx needs ONNX; install it with: pip install 'cflag[export]'")
    if not (run / "config.toml").is_file():
        raise UserError(f"{run} holds no run: there is no config.toml in it")
    folder = RunFolder.open(run)
    if not folder.finished:
        raise UserError(f"{run} is not finished; go on with: cflag run --resume {run}")
    out = out or run / f"export-{form}"
    if out.exists():
        raise UserError(f"{out} already exists; choose another --out, or delete it")
    result, config = folder.result(), folder.config()
    _refuse(config)
    trained = load_model(run)
    spec, seen = trained.spec, trained.seen
    whole = Exported(trained.network, spec, spec.heads.outputs(seen)).eval().requires_grad_(False)
    content = _written(whole, spec.blank().x, form)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / FILES[form], content)
    write_atomically(out / "about.json", json_lines(_about(result, trained)))
    write_atomically(out / "use.py", usage(form, _kind(config.problem)).encode())
    return out


def usage(form: Form, kind: str = "classes") -> str:
    """Return ten lines that use the exported model, by what the labels were."""
    imports, scores = LOADING[form]
    task = "" if kind == "regression" else " [TASK]"
    return USAGE.format(imports=imports, scores=scores, answers=ANSWERS[kind], task=task)


def _kind(problem: str) -> str:
    """Return which of the problems that can be exported one is, or derives from; '' for another."""
    return next((kind for kind in ANSWERS if takes(find(problem), [kind])), "")


def _refuse(config: Config) -> None:
    """Refuse runs whose answers are not those of one model on raw samples."""
    method: type[Method] = registry.get("method", config.method)
    if method.predict is not Method.predict:
        raise UserError(
            f"method '{config.method}' does not answer with its model's outputs alone, so the model is not all of it; "
            "there is nothing to export"
        )
    if config.model == CUSTOM:
        raise UserError("this run used a model of its own: result.model(MyNetwork()) gives it back; export that")
    if not _kind(config.problem):
        raise UserError(f"problem = '{config.problem}': models are exported for {', '.join(ANSWERS)} so far")
    if config.backbone:
        raise UserError(f"this run's model is on features of backbone '{config.backbone}': not exported yet")


def _about(result: Result, trained: TrainedModel) -> dict[str, Any]:
    """Return what a user of the model must know."""
    spec = trained.spec
    numbers = takes(trained.problem, ["regression"])
    return {
        "problem": result.config["problem"],
        **({} if numbers else {"classes": list(trained.class_names)}),
        **({"columns": list(spec.columns)} if spec.columns else {}),
        "tasks": [list(spec.tasks[task]) for task in trained.seen],
        "task_known": spec.by_task,
        "input": {"name": "x", "shape": ["n", *spec.shape], "dtype": spec.dtype},
        "output": {"name": "scores", "shape": ["n", spec.classes]},
        "preprocessing": {
            "in_model": True,
            "divide_by": 255 if spec.dtype == "uint8" else 1,
            "mean": list(spec.mean),
            "std": list(spec.std),
        },
        **({"postprocessing": _postprocessing(spec)} if numbers else {}),
        result.score.named("average_accuracy"): result.average_accuracy,
        "method": result.method,
        "source": result.config["source"],
        "versions": result.versions,
    }


def _postprocessing(spec: Spec) -> dict[str, Any]:
    return {"in_model": True, "multiply_by": list(spec.label_std), "add": list(spec.label_mean)}


def _written(model: nn.Module, blank: Tensor, form: Form) -> bytes:
    """Return a model as a file of some form, for any number of samples."""
    file = BytesIO()
    sample = blank.repeat(2, *[1] * (blank.dim() - 1))  # an example of one would fix the number of samples
    many = ({0: torch.export.Dim("n")},)
    with torch.no_grad(), _quiet():
        if form == "torchscript":
            torch.jit.save(torch.jit.trace(model, (sample,)), file)
        elif form == "pytorch":
            torch.export.save(torch.export.export(model, (sample,), dynamic_shapes=many), file)
        else:
            program = torch.onnx.export(model, (sample,), input_names=["x"], output_names=["scores"],
                                        dynamic_shapes=many, dynamo=True)  # fmt: skip
            assert program is not None
            file.write(program.model_proto.SerializeToString())
    return file.getvalue()


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what exporters say of themselves."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
