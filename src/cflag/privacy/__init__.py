"""Differential privacy: what a run may reveal of one sample or of one client, with a number."""
