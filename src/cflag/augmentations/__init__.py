"""Augmentations: how samples are varied while they are learned from."""
