"""From a config to what it describes: the benchmark, the method, the model and its learner."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn

from cflag import registry
from cflag.config import CUSTOM, Config
from cflag.data.benchmark import Benchmark
from cflag.data.load import data_dir_or_default, load_source
from cflag.data.source import Source
from cflag.data.spec import Spec
from cflag.diagnostics import check_figures
from cflag.errors import UserError, out_of_memory
from cflag.learning.learner import Learner, Loss
from cflag.methods.base import Method
from cflag.privacy.rules import check_model
from cflag.rng import torch_seed


def build_benchmark(config: Config, source: Source | None = None) -> Benchmark:
    """Deal the data, the config's or your own, and check that the memory can hold some."""
    _check_custom(config.source, source, "source")
    source = source or load_source(config.source, data_dir_or_default(config.data_dir))
    benchmark = Benchmark(source, config, _extractor(config))
    config.memory.check_limits(benchmark.train(0, 0))
    return benchmark


def _extractor(config: Config) -> Callable[[Source], Source] | None:
    """Return what turns pictures into a backbone's features, where the config names one."""
    if not config.backbone:
        return None
    from cflag.backbones.base import BackboneOptions
    from cflag.backbones.features import Extractor

    folder = data_dir_or_default(config.data_dir)
    family, _, _ = config.backbone.partition(":")
    backbone = registry.get("backbone", family)(
        BackboneOptions(config.backbone, config.image_size, folder / "backbones")
    )
    return Extractor(backbone, folder / "features", config.half_features).source


def build_method(config: Config) -> Method:
    """Build the config's method."""
    method: Method = registry.get("method", config.method)(config.settings, config)
    check_figures(method.figures)
    return method


def build_model(config: Config, spec: Spec) -> nn.Module:
    """Build a built-in model; its initial weights depend on the seed alone."""
    _check_custom(config.model, None, "model")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(config.seed, "model"))
        try:
            model: nn.Module = registry.get("model", config.model)(spec.shape, spec.classes, config)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            raise UserError(
                f"model = '{config.model}', width = {config.width}: too large for the memory there is"
            ) from None
    return model


def build_learner(config: Config, spec: Spec, model: nn.Module | None = None, loss: Loss | None = None) -> Learner:
    """Build the learner around the config's model, or around a copy of your own, and check that it fits the data."""
    learner = Learner(
        copy.deepcopy(model) if model is not None else build_model(config, spec),
        spec.heads,
        spec.normalise,
        config.device,
        loss,
        channels_last=model is None and hasattr(registry.get("model", config.model), "channels_last"),
    )
    learner.check(spec.blank(), spec.classes)
    check_model(config.privacy, learner.buffers.numel(), loss is not None)
    return learner


def _check_custom(name: str, given: object | None, what: str) -> None:
    if name == CUSTOM and given is None:
        raise UserError(f"this run used a {what} of its own; run or resume it from Python with {what}=...")
