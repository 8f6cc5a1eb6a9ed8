"""ZeroMQ sockets behind one reactor."""
