"""Scenarios: how a source becomes a sequence of tasks."""
