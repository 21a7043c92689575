"""A client's side of the Flower engine: it answers questions with its own data and state."""
