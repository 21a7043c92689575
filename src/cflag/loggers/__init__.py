"""TensorBoard and MLflow: a run's rounds also go where people look at many runs."""
