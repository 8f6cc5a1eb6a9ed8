"""The policy, which inference and learner share: networks, distributions, weights (torch)."""
