"""The sources of facts: the driver, shim regions, the kubelet, processes, limit files."""
