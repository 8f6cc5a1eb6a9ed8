"""The seedbed command and the local launcher."""
