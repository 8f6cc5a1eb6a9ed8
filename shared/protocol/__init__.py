"""The step, unroll and weight protocols, without a socket."""
