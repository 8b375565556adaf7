"""The kubelet's side: registration, the gRPC service, the lists that are offered, what the
kubelet has allocated.
"""
