"""The HTTP server, its probes, and TLS and authentication from a web config file."""
