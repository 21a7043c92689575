"""Partitions: how a task's samples are dealt to clients."""
