"""From a config to what it describes: the benchmark, the method, the model and its learner."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from cflag import registry
from cflag.augmentations.base import Augment
from cflag.config import CUSTOM, Config
from cflag.data.benchmark import Benchmark, Features
from cflag.data.load import data_dir_or_default, load_own, load_source
from cflag.data.partitions.base import has_own_data
from cflag.data.resize import MOST_BYTES
from cflag.data.source import Source
from cflag.data.sources.base import Reading
from cflag.data.spec import Spec
from cflag.diagnostics import check_figures
from cflag.errors import UserError, out_of_memory
from cflag.learning.learner import Learner, OwnLoss
from cflag.methods.base import Method
from cflag.models.lora import add_adapters
from cflag.models.reference import Maker, model_maker
from cflag.models.trainable import HEAD, PICTURES, Joined, choose
from cflag.privacy.rules import check_model
from cflag.problems.base import find
from cflag.rng import torch_seed

if TYPE_CHECKING:
    from cflag.backbones.base import Backbone
    from cflag.backbones.features import Extractor


USUAL_WIDTH = 1024
"""Up to here nobody looks how large a model will be before it is made."""


def build_benchmark(config: Config, source: Source | None = None) -> Benchmark:
    """Deal the data, the config's or your own, and check that the memory can hold some."""
    _check_custom(config.source, source, "source")
    source = source or _load(config)
    benchmark = Benchmark(source, config, build_features(config))
    config.memory.check_limits(benchmark.train(0, 0))
    return benchmark


def _load(config: Config) -> Source:
    """Read the config's source; where clients have data of their own, all of it, or on a client's machine its own."""
    own, fleet = has_own_data(registry.get("partition", config.partition)), config.engine == "flower"
    folder, reading = data_dir_or_default(config.data_dir), Reading(config.data, own, fleet, config.problem)
    if own and not fleet:
        return load_own(config.source, folder, config.clients, reading)
    return load_source(config.source, folder, reading)


def build_features(config: Config) -> Features | None:
    """Return what turns pictures into what a backbone's frozen layers make of them, where the config names one."""
    if not config.backbone:
        if config.whiten:
            raise UserError(f"whiten = '{config.whiten}' is for a backbone's features: name a backbone, too")
        return None
    from cflag.backbones.cut import AsTheyAre, divide, only_head
    from cflag.backbones.features import Extractor

    folder = data_dir_or_default(config.data_dir) / "features"
    backbone, trainable = _backbone(config), _trainable(config)
    half, pictures = config.half_features, config.memory.of == "images"
    if only_head(trainable, config.lora):
        plain = Extractor(backbone, folder, half, pictures=pictures)
        return _whitened(config, plain) if config.whiten else plain
    if config.whiten:
        raise UserError("whiten is for a backbone's features: leave trainable = 'head', without [lora]")
    origin = backbone.digest()
    below, _ = divide(backbone, trainable, config.lora)
    if below is None:
        return AsTheyAre(backbone, origin)
    return Extractor(replace(backbone, module=below), folder, half, origin, pictures)


def _whitened(config: Config, plain: Extractor) -> Extractor:
    """Return the extractor of whitened features."""
    from cflag.backbones.features import Extractor
    from cflag.backbones.whitening import origin_of, whitened

    public = load_source(config.whiten, data_dir_or_default(config.data_dir))
    pictures = config.memory.of == "images"
    backbone, origin = whitened(plain, public), origin_of(plain, public)
    return Extractor(backbone, plain.folder, config.half_features, origin, pictures)


def _backbone(config: Config) -> Backbone:
    """Build the config's backbone, with its weights: a copy, as adapters go into it and a plugin may keep it."""
    from cflag.backbones.base import BackboneOptions

    family, _, _ = config.backbone.partition(":")
    folder = data_dir_or_default(config.data_dir) / "backbones"
    made: Backbone = registry.get("backbone", family)(BackboneOptions(config.backbone, config.image_size, folder))
    return replace(made, module=copy.deepcopy(made.module))


def _trainable(config: Config) -> tuple[str, ...]:
    """Return what trains: by default what is on a backbone or beside adapters; nothing said is the model as it is."""
    given = (config.trainable,) if isinstance(config.trainable, str) else config.trainable
    if given == ("",):
        return (HEAD,) if config.backbone or config.lora.rank else ()
    return given


def build_method(config: Config) -> Method:
    """Build the config's method."""
    method: Method = registry.get("method", config.method)(config.settings, config)
    check_figures(method.figures)
    return method


def build_model(config: Config, spec: Spec, own: nn.Module | Maker | None = None) -> nn.Module:
    """Build a built-in model, or take a copy of your own, with what trains of it and of the backbone below.

    Its initial weights depend on the seed alone.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(config.seed, "model"))
        trainable = _trainable(config)
        if config.backbone:
            return _on_backbone(config, spec, trainable, own)
        model = _model(config, spec.shape, spec.classes, own)
        if trainable:
            choose({"": model}, trainable)
        if config.lora.rank:
            add_adapters(model, config.lora)
        return model


def _on_backbone(config: Config, spec: Spec, trainable: tuple[str, ...], own: nn.Module | Maker | None) -> nn.Module:
    """Return the model on a backbone, with that part of it that trains."""
    from cflag.backbones.cut import divide, join, only_head, width

    if only_head(trainable, config.lora):
        head = _model(config, spec.shape, spec.classes, own)
        if trainable != (HEAD,):
            choose({HEAD: head}, trainable)
        return head
    backbone = _backbone(config)
    if backbone.digest() != spec.origin:
        raise UserError(
            f"backbone '{config.backbone}': its weights here are not those that the clients have; get the same"
        )
    head = _model(config, (width(backbone),), spec.classes, own)
    below, above = divide(backbone, trainable, config.lora, head)
    return join(backbone, below, above, head)


def _model(config: Config, shape: tuple[int, ...], classes: int, own: nn.Module | Maker | None) -> nn.Module:
    _check_custom(config.model, own, "model")
    if isinstance(own, nn.Module):
        return copy.deepcopy(own)
    _refuse_huge(config, shape, classes)
    try:
        model = (model_maker(config.model) if own is None else own)(shape, classes, config)
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        raise UserError(
            f"model = '{config.model}', width = {config.width}: too large for the memory there is"
        ) from None
    return model


def _refuse_huge(config: Config, shape: tuple[int, ...], classes: int) -> None:
    """Refuse a width whose parameters would fill the memory; a system may kill a process for that without a word.

    On the meta device a network has shapes and no numbers.
    """
    if config.width <= USUAL_WIDTH:
        return
    with torch.device("meta"):
        made: nn.Module = model_maker(config.model)(shape, classes, config)
    size = sum(p.numel() * p.element_size() for p in made.parameters())
    if size > MOST_BYTES:
        raise UserError(
            f"model = '{config.model}', width = {config.width}: its parameters alone take {size / 1e9:,.0f} GB; "
            f"more than {MOST_BYTES / 1e9:,.0f} GB is too large"
        )


def build_learner(
    config: Config, spec: Spec, model: nn.Module | Maker | None = None, loss: OwnLoss | None = None
) -> Learner:
    """Build the learner around the config's model, or around a copy of your own, and check that it fits the data."""
    built = build_model(config, spec, model)
    fast = model is None and hasattr(model_maker(config.model), "channels_last")
    channels_last = fast and not isinstance(built, Joined)
    problem = find(config.problem)
    learner = Learner(built, spec.heads, spec.normalise, config.device, loss, channels_last, problem)
    learner.check(spec.blank(), spec.classes)
    learner.augment = _augment(config, spec, built)
    if spec.scales_labels:
        learner.own_unit = spec.own_unit
    check_model(config.privacy, learner.buffers.numel(), loss is not None)
    return learner


def _augment(config: Config, spec: Spec, model: nn.Module) -> Augment | None:
    """Return what varies samples, where the config asks for it; refuse samples that cannot be varied."""
    if not config.augment.on:
        return None
    if config.backbone and not hasattr(model, PICTURES):
        raise UserError(
            f"[augment] cannot vary pictures that went through backbone '{config.backbone}' already: leave it out, or "
            "train all of the backbone (trainable = 'all')"
        )
    augment = Augment(config.augment.for_source(config.source))
    augment.try_on(spec.blank().x)
    return augment


def _check_custom(name: str, given: object | None, what: str) -> None:
    if name == CUSTOM and given is None:
        raise UserError(f"this run used a {what} of its own; run or resume it from Python with {what}=...")
