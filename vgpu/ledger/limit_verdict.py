"""Whether a container is limited on a device: one state and one reason, from evidence alone. Pure.

Each reason has its state, and the order of the reasons is their precedence: the verdict is the
first one that the evidence shows, so the worst process and the worst device decide.

    verdict(e) = in_place  =>  every GPU process of e is proven, and nothing in e contradicts
    rank(verdict(e')) <= rank(verdict(e))  for e' with less evidence than e

Less evidence is what a source that is switched on did not bring; it is ``None`` or ``failed`` here.
``rank`` counts in_place and none_by_design highest, then different, then all others. A source that
is off is the operator's choice and part of the profile: with ``standard``, the slot of a process
counts with the kubelet's answer, since nothing else can be read; with ``full``, the mapped file.
No profile reads the environment of another user's process: there, the slot and the answer count
beside the mapped file.

What a tenant can write (its region, its environment) makes no container ``in_place`` alone.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Self

import msgspec

from vgpu.model.reasons import Explained
from vgpu.schemes.limit_ways import LimitKind, LimitWay


class LimitState(Explained):
    """The state of a container's limit: the label ``state``."""

    EXCEEDED = "exceeded", "the driver sees more memory than the limit, whatever the set-up is"
    MISSING = "missing", "the sharing system limits, and this container is not limited"
    UNKNOWN = "unknown", "what was read does not show whether the container is limited"
    DIFFERENT = "different", "there is a limit, and it is not what was reserved"
    NONE_BY_DESIGN = "none_by_design", "the sharing system never limits"
    IN_PLACE = "in_place", "set up as its system sets it up, and nothing that was read contradicts"


UNCAPPED = (LimitState.MISSING, LimitState.EXCEEDED)
"""The states that wake somebody."""

NOT_ENFORCED_STATES = (LimitState.NONE_BY_DESIGN, *UNCAPPED)
"""The states in which nothing keeps a container to what is reserved for it; a whole GPU needs
nothing."""


_WORDS = {state.value: state.value for state in LimitState} | {
    LimitState.IN_PLACE.value: "in place",
    LimitState.NONE_BY_DESIGN.value: "by design",
}


def limit_word(state: str) -> str:
    """The state in a column LIMIT; "" if it is not known here."""
    return _WORDS.get(state, "")


class LimitReason(Explained):
    """Why a container has its state: the label ``limit_reason``, the first that applies."""

    state: LimitState

    def __new__(cls, value: str, state: LimitState, explanation: str) -> Self:
        """Create the member from its label value, its state and its text."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.state, member.explanation = state, explanation
        return member

    OVER_LIMIT = (
        "over_limit",
        LimitState.EXCEEDED,
        "the driver has seen more memory than the limit in two samples or more",
    )
    CONTROL_DISABLED = (
        "control_disabled",
        LimitState.MISSING,
        "CUDA_DISABLE_CONTROL keeps the library out of the container",
    )
    STATIC_BINARY = (
        "static_binary",
        LimitState.MISSING,
        "a GPU process is a static binary, which loads no library",
    )
    LIBRARY_COPY = (
        "library_copy",
        LimitState.MISSING,
        "a GPU process has loaded another file than the node's library",
    )
    LIBRARY_NOT_MAPPED = (
        "library_not_mapped",
        LimitState.MISSING,
        "a GPU process has not loaded the library",
    )
    LIMIT_ZERO = (
        "limit_zero",
        LimitState.MISSING,
        "the limit is 0, which the library reads as no limit",
    )
    NOT_MPS_CLIENT = (
        "not_mps_client",
        LimitState.MISSING,
        "a GPU process is no client of the MPS daemon, so the daemon does not limit it",
    )
    OVER_LIMIT_ONCE = (
        "over_limit_once",
        LimitState.UNKNOWN,
        "the driver sees more memory than the limit; the next sample decides",
    )
    SOURCE_FAILED = (
        "source_failed",
        LimitState.UNKNOWN,
        "a collector that is on did not bring all of its data",
    )
    USE_UNREAD = (
        "use_unread",
        LimitState.UNKNOWN,
        "the driver does not report which memory the container uses",
    )
    MAPS_UNREAD = (
        "maps_unread",
        LimitState.UNKNOWN,
        "/proc/<pid>/maps of a GPU process could not be read",
    )
    LIBRARY_UNREAD = (
        "library_unread",
        LimitState.UNKNOWN,
        "the library is not in its folder on the node, or the folder could not be read",
    )
    LIBRARY_UNCLEAR = (
        "library_unclear",
        LimitState.UNKNOWN,
        (
            "the library's file has another device in /proc/<pid>/maps than on the node, as with"
            " btrfs and some overlays, so it cannot be compared"
        ),
    )
    LIBRARY_REPLACED = (
        "library_replaced",
        LimitState.UNKNOWN,
        "the library's file was removed after a GPU process had loaded it, as by an upgrade",
    )
    SECOND_PRELOAD = (
        "second_preload",
        LimitState.UNKNOWN,
        "LD_PRELOAD loads another library, too, which may replace the calls that are limited",
    )
    ENVIRON_UNREAD = (
        "environ_unread",
        LimitState.UNKNOWN,
        (
            "the environment of a GPU process could not be read, as of another user's, and the"
            " process does not write a region"
        ),
    )
    REGION_ABSENT = (
        "region_absent",
        LimitState.UNKNOWN,
        "the container has GPU processes and no region of the library",
    )
    REGION_NOT_WRITTEN = (
        "region_not_written",
        LimitState.UNKNOWN,
        "no living process writes the region of the container",
    )
    LIMIT_UNREAD = (
        "limit_unread",
        LimitState.UNKNOWN,
        "no source reports the limit that is in force",
    )
    RESERVED_UNKNOWN = (
        "reserved_unknown",
        LimitState.UNKNOWN,
        "the reserved memory is unknown, so the limit cannot be compared",
    )
    OTHER_GPU = (
        "other_gpu",
        LimitState.DIFFERENT,
        "the limits in the region are of other GPUs than the allocated ones",
    )
    LIMIT_DIFFERS = (
        "limit_differs",
        LimitState.DIFFERENT,
        "the limit is not the memory that was reserved",
    )
    NO_PROCESSES_SEEN = (
        "no_processes_seen",
        LimitState.UNKNOWN,
        "this profile does not see the host's processes: standard does (hostPID: true)",
    )
    NO_PROCESS = (
        "no_process",
        LimitState.UNKNOWN,
        "the container has no GPU process yet, so nothing shows that it is limited",
    )
    MAPS_NOT_READ = (
        "maps_not_read",
        LimitState.UNKNOWN,
        (
            "only the profile full (--collector.bare) reads whether a process has loaded the"
            " library, and this process does not write a region"
        ),
    )
    CLIENTS_UNREAD = (
        "clients_unread",
        LimitState.UNKNOWN,
        "the driver lists no client of MPS on the GPU",
    )
    LIMIT_IN_ENVIRONMENT = (
        "limit_in_environment",
        LimitState.UNKNOWN,
        "the limit is a variable of each process alone, which the process can change",
    )
    CGPU_UNREAD = (
        "cgpu_unread",
        LimitState.UNKNOWN,
        "the node has the kernel module of cGPU, whose limits vgpu does not read",
    )
    WAY_UNKNOWN = (
        "way_unknown",
        LimitState.UNKNOWN,
        "nothing that vgpu reads shows how the system limits the container",
    )
    NOT_LIMITED = (
        "not_limited",
        LimitState.NONE_BY_DESIGN,
        "the system shares the GPU and limits nothing",
    )
    WHOLE_DEVICE = (
        "whole_device",
        LimitState.NONE_BY_DESIGN,
        "the container has the whole GPU, so nothing has to be limited",
    )
    LIBRARY_WRITES = (
        "library_writes",
        LimitState.IN_PLACE,
        "each GPU process has a live slot in the region, and the kubelet's answer has the limit",
    )
    LIBRARY_MAPPED = (
        "library_mapped",
        LimitState.IN_PLACE,
        "each GPU process has loaded the node's library",
    )
    MPS_CLIENTS = (
        "mps_clients",
        LimitState.IN_PLACE,
        "each GPU process is a client of the MPS daemon, which has a limit",
    )
    MIG_INSTANCE = (
        "mig_instance",
        LimitState.IN_PLACE,
        "the driver has a MIG instance of its own for the container",
    )


_ORDER = {reason: number for number, reason in enumerate(LimitReason)}


class Linked(StrEnum):
    """What a process has loaded of its system's library, by /proc/<pid>/maps."""

    LIBRARY = "library"  # the node's file: the same device and inode
    COPY = "copy"  # another file of its name on the same device
    UNCLEAR = "unclear"  # a file of its name on another device
    REPLACED = "replaced"  # a file of its name that was removed since
    UNREAD = "unread"  # a file of its name, and the node's own is not known
    NOTHING = "nothing"
    STATIC = "static"  # not even a dynamic loader


_OF_LINKED = {
    Linked.COPY: LimitReason.LIBRARY_COPY,
    Linked.UNCLEAR: LimitReason.LIBRARY_UNCLEAR,
    Linked.REPLACED: LimitReason.LIBRARY_REPLACED,
    Linked.UNREAD: LimitReason.LIBRARY_UNREAD,
    Linked.NOTHING: LimitReason.LIBRARY_NOT_MAPPED,
    Linked.STATIC: LimitReason.STATIC_BINARY,
}


class LimitedProcess(msgspec.Struct, frozen=True):
    """A GPU process of the container.

    Attributes:
        linked: what it has loaded; None if that was not read. With the profile standard only
            STATIC is known.
        disabled: its environment has CUDA_DISABLE_CONTROL; None if that was not read.
        preloads: its environment preloads another library; None if that was not read.
        has_slot: whether a live slot of the container's region is its own; None if that is unclear.
        is_client: whether the driver lists it as a client of MPS; None if it lists none.
    """

    linked: Linked | None = None
    disabled: bool | None = False
    preloads: bool | None = False
    has_slot: bool | None = None
    is_client: bool | None = None


class LimitEvidence(msgspec.Struct, frozen=True):
    """What was read of one container on one device.

    Attributes:
        way: how its system limits.
        reads_maps: whether maps are read: the profile full.
        sees_processes: whether the host's processes are seen: not with the profile minimal.
        processes: the GPU processes; None if they, or the memory that they use, are unknown.
        reserved_bytes: None if unknown.
        limit_bytes: the limit in force; 0 is none, None is unknown.
        differs: sources disagree about the size of the share or its limit.
        other_gpu: the region names GPUs that the container does not have.
        answered: whether the answer of the device plugin has a limit; the tenant cannot write it.
        region: whether a living process writes the container's region; None if there is no region.
        over_samples: number of consecutive samples in which the use was over the limit.
        failed: whether a collector that could contradict failed.
        disabled: the container's spec has CUDA_DISABLE_CONTROL.
        has_instance: whether the driver lists the MIG instance.
        has_module: whether the kernel has the module of cGPU; None if that was not read.
    """

    way: LimitWay
    reads_maps: bool = False
    sees_processes: bool = True
    processes: tuple[LimitedProcess, ...] | None = None
    reserved_bytes: int | None = None
    limit_bytes: int | None = None
    differs: bool = False
    other_gpu: bool = False
    answered: bool = False
    region: bool | None = None
    over_samples: int = 0
    failed: bool = False
    disabled: bool = False
    has_instance: bool = False
    has_module: bool | None = None


def verdict(evidence: LimitEvidence) -> LimitReason:
    """The reason that decides; its state is the container's on this device.

    Use above the limit counts in every way of limiting. Where nobody limits it has no meaning, and
    a MIG instance is the hardware's own: no program can have more than its memory.
    """
    reasons = [*_CHECKS[evidence.way.kind](evidence)]
    is_by_design = worst(reasons).state is LimitState.NONE_BY_DESIGN
    if not is_by_design and evidence.way.kind is not LimitKind.DRIVER:
        reasons.extend(_over(evidence))
    if evidence.failed:
        reasons.append(LimitReason.SOURCE_FAILED)
    return worst(reasons)


def worst(reasons: Iterable[LimitReason]) -> LimitReason:
    """The reason that comes first; there is at least one."""
    return min(reasons, key=_ORDER.__getitem__)


def _unlimited(evidence: LimitEvidence) -> Iterator[LimitReason]:
    yield LimitReason.NOT_LIMITED if evidence.way.word else LimitReason.WHOLE_DEVICE


def _unknown(_: LimitEvidence) -> Iterator[LimitReason]:
    yield LimitReason.WAY_UNKNOWN


def _by_kernel(evidence: LimitEvidence) -> Iterator[LimitReason]:
    if evidence.has_module is None:
        yield LimitReason.WAY_UNKNOWN
    yield LimitReason.CGPU_UNREAD if evidence.has_module else LimitReason.NOT_LIMITED


def _by_driver(evidence: LimitEvidence) -> Iterator[LimitReason]:
    yield LimitReason.MIG_INSTANCE if evidence.has_instance else LimitReason.USE_UNREAD


def _by_daemon(evidence: LimitEvidence) -> Iterator[LimitReason]:
    yield from _common(evidence)
    if evidence.limit_bytes is None:
        yield LimitReason.LIMIT_UNREAD
    for process in evidence.processes or ():
        if process.is_client is None:
            yield LimitReason.CLIENTS_UNREAD
        elif not process.is_client:
            yield LimitReason.NOT_MPS_CLIENT
    if evidence.way.in_environment:
        if evidence.reserved_bytes and (evidence.limit_bytes or 0) > evidence.reserved_bytes:
            yield LimitReason.LIMIT_DIFFERS
        yield LimitReason.LIMIT_IN_ENVIRONMENT
    yield LimitReason.MPS_CLIENTS


def _by_library(evidence: LimitEvidence) -> Iterator[LimitReason]:
    yield from _common(evidence)
    if evidence.disabled and evidence.way.can_be_disabled:
        yield LimitReason.CONTROL_DISABLED
    yield from _limits(evidence)
    processes = evidence.processes or ()
    if evidence.way.has_region and processes and not evidence.region:
        is_absent = evidence.region is None
        yield LimitReason.REGION_ABSENT if is_absent else LimitReason.REGION_NOT_WRITTEN
    for process in processes:
        yield from _of_process(process, evidence)
    yield LimitReason.LIBRARY_MAPPED if evidence.reads_maps else LimitReason.LIBRARY_WRITES


def _over(evidence: LimitEvidence) -> Iterator[LimitReason]:
    if evidence.over_samples > 1:
        yield LimitReason.OVER_LIMIT
    elif evidence.over_samples:
        yield LimitReason.OVER_LIMIT_ONCE


def _common(evidence: LimitEvidence) -> Iterator[LimitReason]:
    if not evidence.sees_processes:
        yield LimitReason.NO_PROCESSES_SEEN
    elif evidence.processes is None:
        yield LimitReason.USE_UNREAD
    elif not evidence.processes:
        yield LimitReason.NO_PROCESS


def _limits(evidence: LimitEvidence) -> Iterator[LimitReason]:
    if evidence.limit_bytes is None:
        yield LimitReason.LIMIT_UNREAD
    elif not evidence.limit_bytes:
        yield LimitReason.LIMIT_ZERO
    elif evidence.reserved_bytes is None:
        if evidence.sees_processes:
            yield LimitReason.RESERVED_UNKNOWN
    elif evidence.differs or evidence.reserved_bytes != evidence.limit_bytes:
        yield LimitReason.LIMIT_DIFFERS
    if evidence.other_gpu:
        yield LimitReason.OTHER_GPU


def _of_process(process: LimitedProcess, evidence: LimitEvidence) -> Iterator[LimitReason]:
    if process.disabled and evidence.way.can_be_disabled:
        yield LimitReason.CONTROL_DISABLED
    is_writing = evidence.way.has_region and process.has_slot and evidence.answered
    if evidence.reads_maps:
        if process.linked is None:
            yield LimitReason.MAPS_UNREAD
        elif process.linked in _OF_LINKED:
            yield _OF_LINKED[process.linked]
        if process.preloads:
            yield LimitReason.SECOND_PRELOAD
        if None in (process.disabled, process.preloads) and not is_writing:
            yield LimitReason.ENVIRON_UNREAD
    elif process.linked is Linked.STATIC:
        yield LimitReason.STATIC_BINARY
    elif not is_writing:
        yield LimitReason.MAPS_NOT_READ


_CHECKS = {
    LimitKind.LIBRARY: _by_library,
    LimitKind.DRIVER: _by_driver,
    LimitKind.DAEMON: _by_daemon,
    LimitKind.NOBODY: _unlimited,
    LimitKind.KERNEL: _by_kernel,
    LimitKind.UNKNOWN: _unknown,
}
