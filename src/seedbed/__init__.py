"""Reinforcement learning the SEED RL way: environments, inference and learning as services.

The packages in it are links to the folders of the same name at the top of the repository.
"""
