"""What plugs in around the three core services."""
