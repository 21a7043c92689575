"""The processes of a fleet: who starts what, with which keys, and who stops it."""
