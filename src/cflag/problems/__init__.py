"""Problems: what labels are, what the loss is, and how well answers do."""
