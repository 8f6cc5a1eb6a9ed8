"""What is no environment: the command line, the monitor and the start of containers."""
