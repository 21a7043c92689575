"""Speed, side by side with the bare loop and with others: make bench, make bench-peers."""
