"""Suite-wide settings."""
