"""Clients' states on the disk of a run: logs that grow by what changed, and who keeps them."""
