"""Where batches come from: what turns unrolls into batches, and says when an unroll is done with."""
