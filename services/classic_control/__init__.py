"""Gymnasium's classic control tasks as an actor."""
