"""Algorithms: their losses, targets and settings, and which experience is too old for them."""
