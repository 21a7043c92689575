"""C-FLAG, a baseline for continual federated learning."""
