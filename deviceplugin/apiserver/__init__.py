"""What the plugin reads from the API server and writes to it."""
