"""The server's side of the Flower engine: who is there, what is asked of them, what comes back."""
