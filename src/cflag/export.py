"""A finished run's model for people who have no cflag: one file, what its outputs mean, and ten lines that use it.

The exported model takes raw samples, as the data set has them (pictures as bytes), and scales them itself. Outputs of
classes that no task brought are at minus infinity, so that the largest output is the run's own answer; numbers to
predict are in the labels' own unit.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from cflag.backbones.cut import AsTheyAre
from cflag.backbones.features import Extractor
from cflag.config import CUSTOM, Config
from cflag.data.samples import Samples
from cflag.data.spec import Spec
from cflag.errors import UserError
from cflag.files import json_lines, write_atomically
from cflag.learning.learner import Learner
from cflag.models.reference import Maker
from cflag.problems.base import find, takes
from cflag.results.folder import RunFolder
from cflag.results.model import Raw, TrainedModel, load_model
from cflag.results.result import Result, no_run

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
    "sequence": ALLOWED
    + "steps = scores[:, :, list(allowed)].argmax(2)\n"
    + 'print(*(" ".join(about["classes"][allowed[k]] for k in row) for row in steps), sep="\\n")',
    "regression": 'print(*(" ".join(f"{value:.9g}" for value in row) for row in scores), sep="\\n")',
}
"""What is printed of scores, by what labels are: a class, the labels that are yes, or numbers."""


class Traced(Learner):
    """A learner that answers in one go: exporters follow no loop over batches."""

    def __init__(self, learner: Learner) -> None:
        vars(self).update(vars(learner))

    def outputs(self, samples: Samples, batch: int = 500) -> Tensor:
        """Return the model's outputs."""
        found: Tensor = self.model(self.inputs(samples.x))
        return found


class Exported(nn.Module):
    """A run's model with what samples go through before it, the method's own way to answer, and what is closed."""

    closed: Tensor

    def __init__(self, trained: TrainedModel) -> None:
        super().__init__()
        self.before = trained.layers_before()
        self.network = trained.network
        self.scores, self.learner = trained.scores, Traced(trained.learner)
        for name, value in trained.beside.items():
            if isinstance(value, Tensor):
                self.register_buffer(f"beside_{name}", value)
        shut = ~trained.spec.heads.outputs(trained.seen)
        kind = trained.learner.params.dtype
        self.register_buffer("closed", torch.zeros(trained.spec.classes, dtype=kind).masked_fill(shut, -torch.inf))

    def forward(self, x: Tensor) -> Tensor:
        """Return a score for each class, for each step of a sequence, or the numbers that are predicted."""
        return self.scores(self.before(x), self.learner) + self.closed


def export(run: Path, form: Form, out: Path | None = None, own: nn.Module | Maker | None = None) -> Path:
    """Write a finished run's model, what its outputs mean, and a snippet that uses it; return their folder.

    `own` is the network of a run to which it was handed over in Python, or makes it.
    """
    if form == "onnx" and any(find_spec(name) is None for name in ("onnx", "onnxscript")):
        raise UserError("--to onnx needs ONNX; install it with: pip install 'cflag[export]'")
    if not (run / "config.toml").is_file():
        raise no_run(run, "holds no run: there is no config.toml in it")
    folder = RunFolder.open(run)
    if not folder.finished:
        raise UserError(f"{run} is not finished; go on with: cflag run --resume {run}")
    out = out or run / f"export-{form}"
    if out.exists():
        raise UserError(f"{out} already exists; choose another --out, or delete it")
    result, config = folder.result(), folder.config()
    _refuse(config, own)
    trained = load_model(run, own)
    whole = Exported(trained).eval().requires_grad_(False)
    shape, kind = _taken(trained)
    content = _written(whole, torch.zeros((2, *shape), dtype=getattr(torch, kind)), form)
    _check(content, form, trained)
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


def _refuse(config: Config, own: Maker | None) -> None:
    """Refuse runs whose network is not here, or of whose answers nobody could say what they mean."""
    if config.model == CUSTOM and own is None:
        raise UserError(
            "this run's network was handed over in Python: name it, or its class, with --model FILE.py:NAME"
        )
    if config.model != CUSTOM and own is not None:
        raise UserError(
            f"--model is for networks that were handed over in Python; this run has model = '{config.model}'"
        )
    if not _kind(config.problem):
        raise UserError(
            f"problem = '{config.problem}': models are exported for {', '.join(ANSWERS)}, and what derives from them"
        )


def _taken(trained: TrainedModel) -> Raw:
    """Return the shape and dtype of a sample that the exported model takes: as the source had it.

    The server of a fleet has seen none: there pictures for a backbone are bytes of the size that it works on.
    """
    if trained.sample is not None:
        return trained.sample
    if isinstance(trained.features, Extractor):
        size = trained.features.backbone.size
        return (3, size, size), "uint8"
    return trained.spec.shape, trained.spec.dtype


def _about(result: Result, trained: TrainedModel) -> dict[str, Any]:
    """Return what a user of the model must know."""
    spec, (shape, kind) = trained.spec, _taken(trained)
    numbers = takes(trained.problem, ["regression"])
    return {
        "problem": result.config["problem"],
        **({} if numbers else {"classes": list(trained.class_names)}),
        **({"columns": list(spec.columns)} if spec.columns else {}),
        "tasks": [list(spec.tasks[task]) for task in trained.seen],
        "task_known": spec.by_task,
        "input": {"name": "x", "shape": ["n", *shape], "dtype": kind},
        "output": {"name": "scores", "shape": ["n", *trained.problem.answers(spec.classes, spec.label)]},
        "preprocessing": {"in_model": True, "divide_by": 255 if kind == "uint8" else 1, **_preprocessing(trained)},
        **({"postprocessing": _postprocessing(spec)} if numbers else {}),
        result.score.named("average_accuracy"): result.average_accuracy,
        "method": result.method,
        "source": result.config["source"],
        "versions": result.versions,
    }


def _preprocessing(trained: TrainedModel) -> dict[str, Any]:
    """Return what happens to samples between their division and the network, or the backbone."""
    if isinstance(trained.features, Extractor | AsTheyAre):
        backbone = trained.features.backbone
        about = {"size": backbone.size, "mean": list(backbone.mean), "std": list(backbone.std)}
        return {**about, "backbone": backbone.name}
    size = {"size": trained.image_size} if trained.image_size else {}
    return {**size, "mean": list(trained.spec.mean), "std": list(trained.spec.std)}


def _postprocessing(spec: Spec) -> dict[str, Any]:
    return {"in_model": True, "multiply_by": list(spec.label_std), "add": list(spec.label_mean)}


def _written(model: nn.Module, sample: Tensor, form: Form) -> bytes:
    """Return a model as a file of some form, for any number of samples; one as an example would fix it."""
    try:
        with torch.no_grad(), _quiet():
            return WRITERS[form](model, sample)
    except Exception as error:  # of a network, backbone or method of anybody's own: exporters raise what they like
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        hint = "; len(x) fixes the number of samples, x.shape[0] does not" if "Constraints violated" in lines[0] else ""
        raise UserError(f"--to {form}: this model cannot be written in that form ({lines[0]}{hint})") from None


def _torchscript(model: nn.Module, sample: Tensor) -> bytes:
    file = BytesIO()
    torch.jit.save(torch.jit.trace(model, (sample,)), file)
    return file.getvalue()


def _program(model: nn.Module, sample: Tensor) -> torch.export.ExportedProgram:
    return torch.export.export(model, (sample,), dynamic_shapes=({0: torch.export.Dim("n")},))


def _pytorch(model: nn.Module, sample: Tensor) -> bytes:
    file = BytesIO()
    torch.export.save(_program(model, sample), file)
    return file.getvalue()


def _onnx(model: nn.Module, sample: Tensor) -> bytes:
    program = _program(model, sample).run_decompositions(DISTANCES)
    made = torch.onnx.export(program, (sample,), input_names=["x"], output_names=["scores"], dynamo=True)
    assert made is not None
    content: bytes = made.model_proto.SerializeToString()
    return content


def _distances(a: Tensor, b: Tensor, p: float = 2.0, mode: int | None = None) -> Tensor:
    return (a.unsqueeze(-2) - b.unsqueeze(-3)).abs().pow(p).sum(-1).pow(1 / p)


DISTANCES = {torch.ops.aten._cdist_forward.default: _distances, torch.ops.aten.cdist.default: _distances}
"""What ONNX has no word for, in words that it has: distances to class means."""
WRITERS: dict[Form, Callable[[nn.Module, Tensor], bytes]] = {
    "onnx": _onnx,
    "torchscript": _torchscript,
    "pytorch": _pytorch,
}


def _check(content: bytes, form: Form, trained: TrainedModel) -> None:
    """Refuse a file that does not answer as the run's model does: what is decided in Python is not in a trace."""
    shape, kind = _taken(trained)
    few = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256 if kind == "uint8" else 2, (3, *shape), generator=few).to(getattr(torch, kind))
    known = trained(x)
    try:
        with _quiet():
            found = READERS[form](content, x)
        same = torch.allclose(
            found, known.where(found.isfinite(), found), ROUNDING, ROUNDING * float(known.abs().max())
        )
    except ImportError:  # ONNX files can be written where nothing reads them
        return
    except Exception:  # a graph may fail with another number of samples
        same = False
    if not same:
        raise UserError(f"--to {form}: what is written does not answer as the run's model does, so it is not kept")


def _run_onnx(content: bytes, x: Tensor) -> Tensor:
    import onnxruntime

    return torch.from_numpy(onnxruntime.InferenceSession(content).run(None, {"x": x.numpy()})[0])


ROUNDING = 0.01
"""How far scores may be off: features in half precision may round the other way."""
READERS: dict[Form, Callable[[bytes, Tensor], Tensor]] = {
    "onnx": _run_onnx,
    "torchscript": lambda content, x: torch.jit.load(BytesIO(content))(x),
    "pytorch": lambda content, x: torch.export.load(BytesIO(content)).module()(x),
}


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
