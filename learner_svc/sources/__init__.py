"""Sources of batches, which collect unrolls into batches and report when an unroll has been used."""
