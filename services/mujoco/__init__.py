"""MuJoCo's continuous tasks as an actor."""
