"""Allocates a node's GPUs to pods, as a device plugin that knows which pod it answers for.

The packages, in the order in which a container passes through them:

- ``model``, ``reasons``: assignments, admitted pods and bindings; every refusal.
  ``scheme_adapter``, ``ports``, ``failpoints``: the interfaces between the parts. Pure.
- ``adapters/``: what is different for each scheme; ``builders/`` makes them from the flags.
  ``gaia/``: what gpu-manager's library needs.
- ``kubelet/``: the kubelet's side: lists of devices, registration, the gRPC server, and its
  checkpoint as assignments.
- ``allocate/``: what Allocate and PreStartContainer answer (``allocator``, ``binder_state``), who
  holds what (``allocation_state``), what follows from an assignment (``binding``), the thread that
  makes the bindings (``binder``), what it writes (``binding_writer``), our own ``checkpoint``.
- ``injection/``: how a container gets its share: CDI specs, or files.
- ``recovery/``: who holds what when the plugin starts, and the evidence for it.
- ``health/``: which GPUs are healthy, and the thread that asks the driver.
- ``apiserver/``: the node's pods, and what is written to the API server (``status_manager``).
- ``flags``, ``main``, ``plugin``, ``service``: the program. ``metrics``, ``status_server``.
"""

DISTRIBUTION = "vgpu"
