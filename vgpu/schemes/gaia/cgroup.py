"""The cgroups in which gpu-manager looks for a container's pids, by the kubelet's names.

Both cgroup drivers, as the kubelet names them (kubernetes ``pkg/kubelet/cm``, gpu-manager
``pkg/utils/cgroup``). :mod:`vgpu.sources.runtime` reads such paths; this makes them.
"""

from collections.abc import Sequence
from itertools import accumulate

from vgpu.model.reasons import Reason, SourceError

SCOPE_PREFIXES = {"containerd": "cri-containerd", "cri-o": "crio"}
"""Runtime -> what its systemd scopes begin with; others begin with the runtime's own name."""


def cgroup_path(parts: Sequence[str], *, systemd: bool) -> str:
    """The path of the cgroup that is called ``parts``, below the root of the hierarchy.

    A dash is a level to systemd, so one inside a part is written as an underscore, and every level
    repeats the names above it. Raises SourceError MALFORMED for a part that cannot be a name.
    """
    for part in parts:
        if part in ("", ".", "..") or set(part) & set("/\0") or (systemd and "_" in part):
            raise SourceError(Reason.MALFORMED, "cgroup", f"no part of a name: {part[:64]!r}")
    if systemd:
        names = accumulate((part.replace("-", "_") for part in parts), "{}-{}".format)
        parts = [f"{name}.slice" for name in names]
    return "/" + "/".join(parts)


def container_path(pod: Sequence[str], container_id: str, runtime: str, *, systemd: bool) -> str:
    """The path of a container's cgroup in its pod's. Raises SourceError MALFORMED."""
    scope = f"{SCOPE_PREFIXES.get(runtime, runtime)}-{container_id}.scope"
    leaf = cgroup_path([scope if systemd else container_id], systemd=False)
    return cgroup_path(pod, systemd=systemd) + leaf
