"""What inference and learner must agree on: networks, distributions, weights (torch)."""
