"""A small task that cannot be solved without memory."""
