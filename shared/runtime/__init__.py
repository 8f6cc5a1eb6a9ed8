"""The common frame of all services: loop, signals, configuration, logs, metrics."""
