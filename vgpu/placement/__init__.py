"""The placement of requests: each scheduler's arithmetic as pure functions on plain frozen values.

All schedulers of Kubernetes' pods are dialects of one protocol (:mod:`vgpu.placement.dialect`) with
one result (:mod:`vgpu.placement.result`); :mod:`vgpu.placement.dialects` has a row for each.
:mod:`vgpu.placement.node_view` reads a node's GPUs from the API server's objects.
:mod:`vgpu.placement.gaia` is the device plugin's choice for gpu-manager. KubeShare's parts stay for
its controllers that are to come. Their tests compare them with the original schedulers.
"""
