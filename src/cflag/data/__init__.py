"""Data: sources, scenarios and partitions; together they make a benchmark."""
