"""Schedules: which task each client is in, round by round."""
