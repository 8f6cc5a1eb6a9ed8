"""The step, unroll and weight protocols, independent of sockets."""
