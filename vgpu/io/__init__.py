"""Files, sockets and HTTP, with bounds for what others send."""
