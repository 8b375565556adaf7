"""gpu-manager's files on the node: limits, the sockets of its library, the driver's mirror."""
