"""Any of timm's networks, as timm:NAME, with a file of its weights; nothing is downloaded."""

from __future__ import annotations

from importlib import import_module

from cflag.backbones.base import Backbone, BackboneOptions, load_weights, missing, own_file
from cflag.errors import UserError
from cflag.registry import register


@register("backbone", "timm", "timm:NAME, any of timm's; weights: your own file")
def timm(options: BackboneOptions) -> Backbone:
    """One of timm's networks without its classifier, with the size and scaling that timm says it was trained with."""
    name = options.name.partition(":")[2]
    if not name:
        raise UserError("backbone = 'timm': say which one, as in 'timm:resnet18'")
    try:
        library = import_module("timm")
    except ImportError as error:
        raise UserError(f"backbone '{options.name}' needs timm ({error}); pip install timm") from None
    if name not in library.list_models():
        raise UserError(f"backbone '{options.name}': timm has no such network; timm.list_models() names them all")
    path = own_file(options)
    if path is None:
        raise missing(options)
    module = library.create_model(name, pretrained=False, num_classes=0)
    load_weights(module, path)
    trained = module.default_cfg
    return Backbone(options.name, module, options.size or trained["input_size"][-1], trained["mean"], trained["std"])
