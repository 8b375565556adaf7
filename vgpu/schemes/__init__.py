"""Each sharing system's encodings, read and written exactly. Pure.

Where to look:

- :mod:`~vgpu.schemes.registry`: a row for each system;
  :mod:`~vgpu.schemes.row`: the fields of a row.
- :mod:`~vgpu.schemes.codec`: the Protocol ``SchemeCodec`` of all systems, its errors and values,
  and ``BaseCodec``, which answers for what a system does not have.
  :mod:`~vgpu.schemes.text`: numbers, times and names that they read alike;
  :mod:`~vgpu.schemes.kubeshare.node`: further names of devices;
  :mod:`~vgpu.schemes.row`: amounts while the size of a unit is not set.
- :mod:`~vgpu.schemes.volcano.codec`: Volcano vGPU and HAMi. ``key_set`` has both spellings as a
  table, ``claim`` the pod's annotations, ``node`` register, handshake and locks, ``env`` what a
  container gets, ``legacy`` the older volcano-sh/devices, ``text`` its numbers and times;
  :mod:`~vgpu.schemes.volcano.hami_core`: the shared-memory region of its library.
- :mod:`~vgpu.schemes.gpushare.codec`: Aliyun's. ``annotations``, ``node`` (GPUs, device IDs, the
  unhealthy ConfigMap), ``env``.
- :mod:`~vgpu.schemes.gaia.codec`: Tencent's gpu-manager. ``node`` (GPUs, device IDs), ``grant``
  what a container gets; on disk ``checkpoint``, ``pids``, :mod:`~vgpu.schemes.gaia.vcuda_config`;
  ``cgroup`` where its processes are.
- :mod:`~vgpu.schemes.kubeshare.codec`: ``sharepod`` is release 1, ``labels`` release 2, ``node``
  GPUs and holder pods, ``daemon`` the protocol between manager and node, ``text`` decimals and
  bytes; :mod:`~vgpu.schemes.kubeshare.gemini_config`: who may use one GPU, as Gemini reads it.

To read a pod or node in a scheme, make its value (``Gaia()``) and use it as a ``SchemeCodec``.
Which GPU a pod should get is :mod:`vgpu.placement`'s part.
"""
