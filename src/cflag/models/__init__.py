"""Models: functions from (sample shape, number of outputs, options) to an `nn.Module` that returns logits."""

from __future__ import annotations

from cflag.registry import Registry

MODELS = Registry(
    "model",
    {
        "mlp": ("cflag.models.small:mlp", "two hidden layers (width 64)"),
        "cnn": ("cflag.models.small:cnn", "three 3x3 convolutions and a dense layer (width 32)"),
        "cnn1d": ("cflag.models.small:cnn1d", "three 1-D convolutions for series (width 32)"),
        "resnet18": ("cflag.models.resnet:resnet18", "ResNet-18, 3x3 or 7x7 stem (width 64)"),
        "resnet50": ("cflag.models.resnet:resnet50", "ResNet-50, 3x3 or 7x7 stem (width 64)"),
    },
)

CHANNELS_LAST = {"cnn"}
"""Models whose convolutions are faster with channels last, by a third. ResNets on small images are slower; and with it
a strided 1x1 convolution of fewer than 16 channels corrupts memory (uxlfoundation/oneDNN#6035)."""
