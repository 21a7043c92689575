"""`cflag report`: runs as one HTML page that needs nothing else."""
