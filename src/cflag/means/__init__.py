"""Means: how the clients' answers to a question become one. One file each; docs/robust.md says which bears what."""
