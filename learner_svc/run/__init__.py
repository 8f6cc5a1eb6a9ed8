"""A run and its folder: progress, evaluations, checkpoints, metrics.csv, and how it ended."""
