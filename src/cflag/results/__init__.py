"""Results: the run folder, metrics, tables and figures."""
