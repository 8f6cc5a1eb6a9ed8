"""`seedbed env`: makes, checks, measures and shows environments."""
