"""Engines carry questions to clients and bring back the weighted mean of the answers."""
