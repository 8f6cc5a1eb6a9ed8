"""Everything around the three core services: environment services, the command line, containers and the monitor."""
