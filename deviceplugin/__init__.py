"""Allocates a node's GPUs to pods, as a device plugin that knows which pod it answers for.

The packages, in the order in which a container passes through them:

- ``model``, ``reasons``: assignments, admitted pods and bindings; every refusal.
  ``scheme_adapter``, ``ports``, ``failpoints``: the interfaces between the parts. Pure.
- ``adapters/``: what is different for each scheme. ``gaia/``: what gpu-manager's library needs.
- ``kubelet/``: the kubelet's side: lists of devices, registration, the gRPC server, and its
  checkpoint as assignments.
- ``allocate/``: what Allocate and PreStartContainer answer (``allocator``), who holds what
  (``allocation_state``), what follows from an assignment (``binding``, ``prestart``), and the
  thread that makes the bindings (``binder``).
- ``injection/``: how a container gets its share: CDI specs, or files; the shim's library.
- ``recovery/``: who holds what when the plugin starts, and the evidence for it; our own checkpoint.
- ``health/``: which GPUs are healthy, and the thread that asks the driver.
- ``apiserver/``: the node's pods, and what is written to the API server (``status_manager``).
- ``flags``, ``main``, ``plugin``, ``wiring``, ``service``: the program. ``metrics``,
  ``status_server``.
"""

DISTRIBUTION = "vgpu"
