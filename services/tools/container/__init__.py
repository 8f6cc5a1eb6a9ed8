"""One service as a container runs it: planned from a few variables; refused for good, it waits instead of looping."""
