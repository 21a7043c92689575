"""Backbones: pretrained networks that turn pictures into features, once. One file for each family."""
