"""Gymnasium's Box2D tasks as an actor."""
