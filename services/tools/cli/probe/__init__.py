"""What is looked at before a run starts, in short processes that an environment or network may crash or hang."""
