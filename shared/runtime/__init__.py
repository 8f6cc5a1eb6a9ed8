"""What makes a process a service: loop, signals, configuration, logs, metrics."""
