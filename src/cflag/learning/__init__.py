"""Learning: flat parameters, heads, gradient estimators, local optimisers, adaptive rates."""
