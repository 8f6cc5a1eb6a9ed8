"""The actor service: it steps environments, and knows nothing of neural networks or trajectories."""
