"""Algorithms: losses, value targets, settings, and the limit on policy lag."""
