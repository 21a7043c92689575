"""TensorBoard, MLflow and W&B: a run's rounds also go where people look at many runs."""
