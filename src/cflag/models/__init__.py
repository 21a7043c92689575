"""Models: functions from (sample shape, number of outputs, options) to an `nn.Module` that returns logits."""
