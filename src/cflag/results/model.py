"""What was learned, ready to use: raw samples in, scores, probabilities and classes out.

`model.json` says what it takes beside the weights: how raw samples become inputs, which classes there are and what they
are called, and which tasks were seen. What a method needs beside the model, as iCaRL its class means, is in
`predict.safetensors`. The model answers as the run's own tests did: by `Method.predict`, on one thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy.typing as npt
import torch
from torch import Tensor, nn

from cflag.build import build_features, build_learner, build_method
from cflag.config import CUSTOM, Config, load_file, resolve
from cflag.data.resize import Resize, resized
from cflag.data.samples import Samples
from cflag.data.spec import Spec
from cflag.errors import UserError
from cflag.files import WHAT_TO_DO, checksum, load_state, read_json, save_state, write_sealed_json
from cflag.models.lora import split_again
from cflag.models.reference import Maker, code_of, maker_of
from cflag.problems.base import takes
from cflag.process import one_thread
from cflag.results.digests import BESIDE, DESCRIPTION, MODEL, check_model

if TYPE_CHECKING:
    from cflag.learning.learner import Learner
    from cflag.methods.base import Method

GIVE_AGAIN = "give it, the class or an object of it: result.model(MyNetwork)"
SCHEMA = 1
"""The version of model.json."""
Raw = tuple[tuple[int, ...], str]
"""The shape and dtype of a sample as its source has it."""
Given = Tensor | npt.NDArray[Any]


def describe_model(
    folder: Path, config: Config, spec: Spec, seen: Sequence[int], raw: Raw | None, beside: Mapping[str, Any]
) -> None:
    """Write down what it takes to use a run's model beside its weights."""
    known = {name: value for name, value in beside.items() if value is not None}
    others = {key: getattr(config.data, key) or key for key in ("label", "user", "task", "test")}
    about = {
        "schema": SCHEMA,
        "method": config.method,
        "model": config.model,
        "problem": config.problem,
        "spec": spec.to_dict(),
        "seen": list(seen),
        "sample": None if raw is None else {"shape": list(raw[0]), "dtype": raw[1]},
        "image_size": config.image_size,
        "backbone": config.backbone,
        "beside": sorted(known),
        **({"table": others} if spec.columns else {}),
        **code_of(config.model, config.plugins),
    }
    if known:
        save_state(folder / BESIDE, known)
    write_sealed_json(folder / DESCRIPTION, about)


class TrainedModel(nn.Module):
    """A run's model, ready to answer.

    Samples are as the source had them: images as bytes (n, channels, height, width), anything else as floating point.
    What the run did to them before they were learned from (`image_size`, a backbone, mean and standard deviation)
    happens here. Tasks are counted from 0.
    """

    def __init__(self, learner: Learner, method: Method, config: Config, about: Mapping[str, Any]) -> None:
        super().__init__()
        self.spec = Spec.from_dict(about["spec"])
        self.seen: tuple[int, ...] = tuple(about["seen"])
        """The tasks that anyone had begun when the run ended."""
        self.class_names = self.spec.class_names or tuple(str(label) for label in range(self.spec.classes))
        """What the classes are called, in the order of the outputs; their numbers where nobody knew."""
        self.problem = learner.problem
        """What labels are."""
        self.network = learner.model
        """The plain module; it takes what `inputs` makes of raw samples."""
        self.sample: Raw | None = about["sample"] and (tuple(about["sample"]["shape"]), about["sample"]["dtype"])
        self.learner, self._method, self.image_size = learner, method, config.image_size
        self.beside: dict[str, Any] = {}
        """What the method's `predict` gets beside the model."""
        self.features = build_features(config)
        """What turns pictures into a backbone's features, where the run had one."""
        if self.features is not None and getattr(self.features, "origin", "") != self.spec.origin:
            raise UserError(f"backbone '{config.backbone}': its weights here are not those of the run; get the same")
        learner.seen = self.seen
        self.eval()

    @property
    def tasks(self) -> tuple[tuple[int, ...], ...]:
        """The classes of each task."""
        return self.spec.tasks

    @property
    def columns(self) -> tuple[str, ...]:
        """What the numbers of a sample are called, in their order, where it was a row of a table; else nothing."""
        return self.spec.columns

    @property
    def takes_one_size(self) -> bool:
        """Whether samples must have one shape: pictures of any size may be resized."""
        return self.features is None and not self.image_size

    def forward(self, x: Given) -> Tensor:
        """Return a score of each class for each raw sample, (n, classes): for most methods the model's logits.

        Numbers to predict are in the labels' own unit.
        """
        with one_thread():
            return self.scores(self._prepared(x), self.learner)

    def scores(self, x: Tensor, learner: Learner) -> Tensor:
        """Return the scores of samples as the run's clients had them, of no class and no task in particular."""
        nothing = torch.zeros(x.shape[0], dtype=torch.long)
        scores = self._method.predict(learner, Samples(x, nothing, nothing), **self.beside)
        return learner.own_unit(scores).to(scores.dtype)

    def probabilities(self, x: Given, task: int | Literal["any"] | None = None) -> Tensor:
        """Return the softmax of the scores over the classes that may be answered, zero for the others.

        Scores of methods that do not answer with the model's outputs, such as distances to class means, are no logits:
        their softmax ranks classes, and says little about how sure it is. Of several labels, each has its own.
        """
        if takes(self.problem, ["multilabel"]):
            return self._open(self(x), task).sigmoid()
        if not self.problem.one_of_many:
            raise UserError("this run predicts numbers, which have no probabilities; predict(x) returns them")
        return self._open(self(x), task).softmax(-1)

    def predict(self, x: Given, task: int | Literal["any"] | None = None) -> Tensor:
        """Return the class of each raw sample, (n,).

        With a `task` it is one of that task's; "any" is one of all classes seen. Where tests tell a sample's task,
        as in the task-incremental scenario, one of the two must be said; elsewhere all classes seen is what is meant.
        In another problem it is what labels are: numbers (n, k) of a regression, yes or no for each of several labels
        (n, k), a class for each step (n, T).
        """
        scores = self._open(self(x), task)
        if takes(self.problem, ["multilabel"]):
            return scores > 0
        return scores.argmax(-1) if self.problem.one_of_many else scores

    def inputs(self, x: Given) -> Tensor:
        """Return raw samples as `network` takes them: resized, through the backbone, normalised."""
        with one_thread():
            return self.learner.inputs(self._prepared(x))

    def layers_before(self) -> nn.Module:
        """Return what makes of raw samples what the run's clients had, as a module."""
        if self.features is not None:
            return self.features.layers()
        return Resize(self.image_size) if self.image_size else nn.Identity()

    def _open(self, scores: Tensor, task: int | Literal["any"] | None) -> Tensor:
        """Return the scores with those of classes that may not be answered at minus infinity."""
        heads, count = self.spec.heads, len(self.tasks)
        if task is None and heads.by_task:
            raise UserError(
                f"scenario of this run: a sample's task is known; say task=0 to {count - 1}, or task='any' for all "
                "classes seen"
            )
        if task is None or task == "any":
            return scores.masked_fill(~heads.outputs(self.seen).to(scores.device), -torch.inf)
        if not isinstance(task, int) or not 0 <= task < count:
            raise UserError(f"task = {task!r}: this run has tasks 0 to {count - 1}")
        return scores.masked_fill(~heads.own[task].to(scores.device), -torch.inf)

    def _prepared(self, x: Given) -> Tensor:
        """Return raw samples as the run's clients had them."""
        x = self._checked(torch.as_tensor(x))
        if self.features is not None:
            return self.features.once(x)
        return resized(x, self.image_size) if self.image_size else x

    def _checked(self, x: Tensor) -> Tensor:
        """Return samples whose shape and kind the run knows; refuse others."""
        pictures = not self.takes_one_size
        shape = self.sample[0] if self.sample else None if pictures else self.spec.shape
        dtype = self.sample[1] if self.sample else "uint8" if pictures else self.spec.dtype
        wanted = "(n, channels, height, width)" if shape is None else f"(n, {', '.join(map(str, shape))})"
        if pictures and shape is not None:  # of any size: they are resized anyway
            shape = (shape[0], *x.shape[2:]) if x.dim() == 4 else shape
        if not len(x) or (x.dim() != 4 if shape is None else tuple(x.shape[1:]) != shape):
            raise UserError(f"samples have shape {tuple(x.shape)}; this model takes {wanted}")
        if x.dtype == torch.uint8 and dtype != "uint8":
            raise UserError(f"samples are bytes; this model takes {dtype}, as its source had them")
        if x.dtype != torch.uint8:
            x = x.to(getattr(torch, "float32" if dtype == "uint8" else dtype))
            low, high = (float(bound) for bound in x.aminmax())
            if dtype == "uint8" and not 0 <= low <= high <= 1:
                raise UserError(f"samples go from {low:g} to {high:g}; images are bytes (uint8), or from 0 to 1")
        return x


def load_model(folder: Path, own: nn.Module | Maker | None = None, device: str = "cpu") -> TrainedModel:
    """Return the model of a finished run; only its weights are kept, so its code must be where it was, or given."""
    for name, why in ((DESCRIPTION, "it was written by an earlier version of cflag, or is not finished"),
                      (MODEL, "someone deleted it")):  # fmt: skip
        if not (folder / name).is_file():
            raise UserError(f"{folder} has no {name}: {why}; run it again with: cflag run {folder}/config.toml")
    check_model(folder)
    about = read_json(folder / DESCRIPTION)
    if about.get("schema") != SCHEMA:
        raise UserError(f"{folder / DESCRIPTION} was written by another version of cflag; run it again")
    if own is None:
        _check_code(folder, about)
    # Where it was computed, and logged to, need not be here.
    config = resolve({**load_file(folder / "config.toml"), "device": device, "workers": 1, "log": ""})
    if config.model == CUSTOM and own is None:
        raise UserError(f"this run used a model that was handed over in Python: {GIVE_AGAIN}")
    try:
        spec = Spec.from_dict(about["spec"])
        model = _filled(folder, config, spec, own, about)
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{folder / DESCRIPTION} is damaged ({error!r}); {WHAT_TO_DO}") from None
    return model


def _check_code(folder: Path, about: Mapping[str, Any]) -> None:
    """Refuse a network whose file is not what it was: its weights might fit, and mean something else."""
    code = about.get("code")
    if code is None:
        return
    file = Path(code["file"])
    if not file.is_file():
        raise UserError(f"the code of this run's model is not there: {file}; put it back, or {GIVE_AGAIN}")
    if checksum(file.read_bytes()) != code["sha256"]:
        raise UserError(f"the code of this run's model, {file}, was changed since; put it back, or {GIVE_AGAIN}")


def _filled(
    folder: Path, config: Config, spec: Spec, own: nn.Module | Maker | None, about: Mapping[str, Any]
) -> TrainedModel:
    if own is not None and not isinstance(own, nn.Module):
        own = maker_of(own, getattr(own, "__name__", repr(own)))
    learner = build_learner(replace(config, model=CUSTOM) if own is not None else config, spec, own)
    state = {name: value for name, value in load_state(folder / MODEL).items() if isinstance(value, Tensor)}
    try:
        learner.model.load_state_dict(split_again(learner.model, state) if config.lora.merge else state)
    except (RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{folder / MODEL} does not fit the model: {reason}") from None
    made = TrainedModel(learner, build_method(config), config, about)
    if about["beside"]:
        made.beside = {name: value for name, value in load_state(folder / BESIDE).items() if name in about["beside"]}
    return made
