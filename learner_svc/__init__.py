"""Turns unrolls into weights."""
