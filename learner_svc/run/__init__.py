"""A run and its folder: progress, evaluations, checkpoints, metrics.csv and the summary."""
