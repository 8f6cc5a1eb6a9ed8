"""Google Research Football: its scenarios as an actor, with the checkpoint reward."""
