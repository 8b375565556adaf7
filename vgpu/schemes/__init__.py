"""Each sharing system's encodings, read and written exactly. Pure.

Where to look:

- :mod:`~vgpu.schemes.registry`: the systems, a row each; :mod:`~vgpu.schemes.row`: what a row says.
- :mod:`~vgpu.schemes.codec`: what all of them can say: the Protocol ``SchemeCodec``, its errors and
  values, and ``BaseCodec``, which answers for what a system does not have.
  :mod:`~vgpu.schemes.text`: numbers, times and names that they read alike;
  :mod:`~vgpu.schemes.mig` and :mod:`~vgpu.schemes.handles`: further names of devices;
  :mod:`~vgpu.schemes.unsized`: amounts while the size of a unit is not set.
- :mod:`~vgpu.schemes.volcano.codec`: Volcano vGPU and HAMi. ``_dialect`` has both spellings as a
  table, ``_claim`` the pod's annotations, ``_node`` register, handshake and locks, ``_env`` what a
  container gets, ``_legacy`` the older volcano-sh/devices, ``_text`` what annotations are made of;
  :mod:`~vgpu.schemes.volcano.hami_core`: the shared-memory region of its library.
- :mod:`~vgpu.schemes.gpushare.codec`: Aliyun's. ``_annotations``, ``_node`` (GPUs, device IDs, the
  unhealthy ConfigMap), ``_env``.
- :mod:`~vgpu.schemes.gaia.codec`: Tencent's gpu-manager. ``_node`` (GPUs, device IDs), ``_grant``
  what a container gets; on disk ``_checkpoint``, ``_pids``, :mod:`~vgpu.schemes.gaia.vcuda_config`;
  ``_cgroup`` where its processes are.
- :mod:`~vgpu.schemes.kubeshare.codec`: ``_sharepod`` is release 1, ``_labels`` release 2, ``_node``
  GPUs and holder pods, ``_daemon`` the protocol between manager and node, ``_text`` decimals and
  bytes; :mod:`~vgpu.schemes.kubeshare.gemini_config`: who may use one GPU, as Gemini reads it.

To read a pod or node in a scheme, make its value (``Gaia()``) and use it as a ``SchemeCodec``.
Which GPU a pod should get is :mod:`vgpu.placement`'s part.
"""
