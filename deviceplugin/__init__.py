"""The device plugin's room: the kubelet's services, binding, recovery. Nothing lives here yet."""
