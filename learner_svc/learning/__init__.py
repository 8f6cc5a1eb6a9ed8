"""The update thread: batches in; weights, statistics and snapshots out."""
