"""Other frameworks as contestants, each in an interpreter of its own: make bench-peers."""
