"""The kubelet's side: registration, the gRPC service, what is advertised, what the kubelet has
allocated.
"""
