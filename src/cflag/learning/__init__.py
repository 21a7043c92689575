"""Learning: flat parameters, heads, gradient estimators, local optimizers, adaptive rates."""
