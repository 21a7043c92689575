"""Tuning is part of fairness: every method searches its declared space with the same number of trials."""
