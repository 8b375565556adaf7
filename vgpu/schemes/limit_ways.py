"""How each sharing system limits a container: what proves that, what disproves it. One table.

A row names what is read for it, and what cannot be known with less privileges. The verdict itself
is in :mod:`vgpu.ledger.limit_verdict`.
"""

from enum import StrEnum
from typing import Final

import msgspec


class LimitKind(StrEnum):
    """Who enforces the limit."""

    LIBRARY = "library"  # a library that is loaded into each process
    DRIVER = "driver"  # the driver itself: MIG instances
    DAEMON = "daemon"  # the driver, for the clients of a daemon: MPS
    NOBODY = "nobody"  # the system never limits
    KERNEL = "kernel"  # a kernel module that vgpu does not read
    UNKNOWN = "unknown"


class LibraryFile(msgspec.Struct, frozen=True):
    """A library that enforces limits.

    Attributes:
        name: what the name of its file begins with.
        folders: the folders of the host in which its system installs it.
    """

    name: str
    folders: tuple[str, ...]


class LimitWay(msgspec.Struct, frozen=True):
    """One way of limiting.

    Attributes:
        name: for people.
        kind: who enforces the limit.
        proves, disproves, unknown: sentences of the documentation; ``unknown`` is what cannot be
            known, and with which profile.
        library: the library, if the kind is one.
        has_region: whether the library's processes write a region.
        can_be_disabled: whether CUDA_DISABLE_CONTROL keeps the library out of a container.
        whole_is_free: whether all cores of a GPU stand for a whole GPU without a limit.
        in_environment: whether the limit is a variable of the processes alone, which a process can
            change before it uses the GPU.
        word: what quotas and teams show of a reserved amount; "" if it is enforced.
    """

    name: str
    kind: LimitKind
    proves: str
    disproves: str
    unknown: str
    library: LibraryFile | None = None
    has_region: bool = False
    can_be_disabled: bool = False
    whole_is_free: bool = False
    in_environment: bool = False
    word: str = ""


NOT_ENFORCED: Final = "reserved, not enforced"
"""The word for amounts that a system reserves and never limits."""

HAMI_CORE: Final = LimitWay(
    "HAMi-core, preloaded",
    LimitKind.LIBRARY,
    "the library's file is mapped in each GPU process (full), or each has a live slot in the"
    " region, with the kubelet's answer (standard)",
    "a process without the library, a copy of it, a limit of 0, `CUDA_DISABLE_CONTROL`, a region"
    " without a live writer",
    "minimal: which processes there are; standard: what a process without a slot has loaded",
    LibraryFile("libvgpu.so", ("/usr/local/vgpu", "/usr/local/vgpu/vgpu")),
    has_region=True,
    can_be_disabled=True,
)
VCUDA: Final = LimitWay(
    "gpu-manager's vcuda",
    LimitKind.LIBRARY,
    "the library's file is mapped in each GPU process (full)",
    "a process without the library, a copy of it, a limit file without a limit",
    "minimal and standard: whether a process has loaded the library; full: of a process"
    " that is not root's, its environment",
    LibraryFile("libcuda-control.so", ("/etc/gpu-manager/vdriver/nvidia/lib64",)),
    whole_is_free=True,
)
GEMINI: Final = LimitWay(
    "KubeShare's hook, preloaded",
    LimitKind.LIBRARY,
    "the library's file is mapped in each GPU process (full)",
    "a process without the library, a copy of it, a limit of 0",
    "minimal and standard: whether a process has loaded the library; full: of a process"
    " that is not root's, its environment",
    LibraryFile("libgemhook.so", ("/kubeshare/library",)),
)
KAI: Final = LimitWay(
    "KAI Scheduler, with or without its isolator",
    LimitKind.LIBRARY,
    "the library's file is mapped in each GPU process, whose environment has the limit (full,"
    " `--collector.api`)",
    "a process without the library, a copy of it, an environment without a limit; without the"
    " isolator nothing is limited",
    "minimal and standard: whether the node has the isolator",
    HAMI_CORE.library,
    can_be_disabled=True,
)
MIG: Final = LimitWay(
    "MIG instance",
    LimitKind.DRIVER,
    "the driver lists the instance (every profile)",
    "nothing: the hardware keeps its memory apart",
    "an instance that the driver does not list",
)
MPS: Final = LimitWay(
    "MPS daemon",
    LimitKind.DAEMON,
    "the daemon's limit, and the driver lists each GPU process as a client of MPS (standard)",
    "a process that is no client of the daemon, while others are",
    "minimal: which processes there are; drivers that do not list clients",
)
GKE_MPS: Final = LimitWay(
    "MPS as GKE's device plugin sets it up",
    LimitKind.DAEMON,
    "nothing: the daemon has no limit, and each process can change the one in its environment",
    "a process that is no client of the daemon, while others are",
    "every profile: whether a process has kept its limit",
    in_environment=True,
)
CGPU: Final = LimitWay(
    "gpushare, with or without cGPU",
    LimitKind.KERNEL,
    "nothing that vgpu reads",
    "the driver sees more than was reserved while the kernel has cGPU's module; gpushare alone"
    " limits nothing: programs have to keep to their share",
    "with the kernel module of cGPU: what it limits",
    word=NOT_ENFORCED,
)
TIME_SLICING: Final = LimitWay(
    "time-slicing",
    LimitKind.NOBODY,
    "nothing is limited",
    "nothing is limited",
    "",
    word=NOT_ENFORCED,
)
WHOLE_GPU: Final = LimitWay(
    "a whole GPU",
    LimitKind.NOBODY,
    "the container has all of the GPU",
    "nothing has to be limited",
    "",
)
UNREAD: Final = LimitWay(
    "any other way",
    LimitKind.UNKNOWN,
    "nothing that vgpu reads",
    "the driver sees more than was reserved",
    "every profile: whether the system limits",
)

WAYS: Final = (
    HAMI_CORE,
    KAI,
    VCUDA,
    GEMINI,
    MIG,
    MPS,
    GKE_MPS,
    CGPU,
    TIME_SLICING,
    WHOLE_GPU,
    UNREAD,
)
"""Each row once, in the order of the documentation."""

LIBRARIES: Final = tuple(dict.fromkeys(way.library for way in WAYS if way.library is not None))
"""The libraries that are looked for in processes."""
