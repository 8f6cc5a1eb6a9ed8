"""The work of the update thread: it turns batches into weights, metrics and snapshots."""
