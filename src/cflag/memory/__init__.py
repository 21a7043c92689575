"""Replay memories: what a client keeps of earlier tasks. Samples in a memory never leave the client."""
