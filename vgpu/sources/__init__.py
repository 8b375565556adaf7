"""Where facts are read: the driver, shim regions, the kubelet, processes, limit files."""
