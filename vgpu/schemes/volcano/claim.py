"""The annotations of Volcano's and HAMi's schedulers on a pod, read and written.

One annotation has the devices by container: a segment is ``<UUID>,<type>,<memory>,<cores>:`` for
each device, HAMi ends a segment with ``;`` and Volcano joins them with it. Which containers have a
segment differs from version to version, see :func:`_containers`. A second one has a copy of it,
from which the plugin strikes each container as it serves it, in order. A third one has the
phase of the pod. Only the first decides who has which device; what cannot be read in the others
is a remark of the claim.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from vgpu.model.allocation import Allocation, Claim, Device, Share, is_device_name, mig_slot
from vgpu.model.names import ContainerKind, Phase, Scheme
from vgpu.model.objects import Container, Pod
from vgpu.model.units import MILLI_PER_PERCENT, count
from vgpu.schemes.codec import ClaimError, remark
from vgpu.schemes.text import number, object_name_of
from vgpu.schemes.volcano.key_set import KeySet
from vgpu.schemes.volcano.text import MOST, MOST_SECONDS

VENDOR: Final = "NVIDIA"
"""The type of NVIDIA's devices. Other vendors' devices in the annotation are ignored."""

ENDED: Final = 2**64 - 1
"""Volcano's ``vgpu-time`` once Allocate is done with the pod, well or not."""

PLACEHOLDER: Final = ",,0,0"
"""What HAMi 2.4 and 2.5 write for a container without a request, after one with a request."""

ALLOCATING: Final = "allocating"
SUCCESS: Final = "success"
FAILED: Final = "failed"

_FIELDS: Final = 4

_NAMED: Final = 4
"""Containers that an error names."""

_Shares = tuple[Share, ...]


# ---------------------------------------------------------------- reading


def read(pod: Pod, key_set: KeySet, unit: int, asking: Collection[str]) -> Claim | None:
    """The claim in the annotations; None if they name no device.

    ``unit`` is the bytes of one unit of memory in them, ``asking`` has the containers that request
    devices. Raises ClaimError if the devices, or their containers, are unknown.
    """
    key = key_set.devices if key_set.devices in pod.annotations else key_set.to_allocate
    segments = _segments(pod, key, unit)
    shares_in_order = [shares for shares in segments if shares]
    if not shares_in_order:
        return None
    asking_containers = [container for container in pod.containers if container.name in asking]
    names = (
        _containers(pod, key, len(shares_in_order), asking_containers)
        if asking_containers
        else _containers_by_position(pod, key, segments, for_all=key_set.for_all)
    )
    held = list(zip(names, shares_in_order, strict=True))
    remarks: list[str] = []
    unserved = _unserved(pod, key_set.to_allocate, unit, held, remarks)
    bind_phase = _bind_phase(pod, key_set.bind_phase, remarks)
    ended, reserved_at = _time(pod, key_set.time, remarks)
    _, bound_at = _time(pod, key_set.bind_time, remarks)
    done = bind_phase == SUCCESS or (ended and not bind_phase)
    waiting = frozenset(name for name, _ in held) if unserved is None else frozenset(unserved)
    return Claim(
        scheme=Scheme.VOLCANO,
        pod=pod.ref,
        node=pod.annotations.get(key_set.node, ""),
        allocations=tuple(
            Allocation(
                name, shares, Phase.ASSIGNED if done or name not in waiting else Phase.ASSUMED
            )
            for name, shares in held
        ),
        assumed_at=bound_at if reserved_at is None else reserved_at,
        unserved=tuple(unserved or ()),
        failed=bind_phase == FAILED,
        remarks=tuple(remarks),
    )


def _segments(pod: Pod, key: str, unit: int) -> list[_Shares]:
    """The shares of each segment; a ``;`` at the end does not begin one. Raises ClaimError."""
    text = pod.annotations.get(key, "").removesuffix(";")
    return [_shares(pod, key, segment, unit) for segment in text.split(";")]


def _shares(pod: Pod, key: str, segment: str, unit: int) -> _Shares:
    """Raises ClaimError."""
    entries = filter(None, segment.split(":"))
    return tuple(share for entry in entries if (share := _share(pod, key, entry, unit)))


def _share(pod: Pod, key: str, entry: str, unit: int) -> Share | None:
    """One device; None for another vendor's. Fields beyond the fourth are ignored."""
    fields = entry.split(",")
    if len(fields) < _FIELDS:
        raise ClaimError(object_name_of(pod), key, entry, "not <UUID>,<type>,<memory>,<cores>")
    if VENDOR not in fields[1]:
        return None
    if not is_device_name(fields[0]):
        raise ClaimError(object_name_of(pod), key, entry, "not a device")
    memory, cores = number(fields[2], MOST), number(fields[3], MOST)
    if memory is None or cores is None:
        raise ClaimError(object_name_of(pod), key, entry, "not numbers of memory and cores")
    return Share(fields[0], memory * unit, cores * MILLI_PER_PERCENT)


def _containers(pod: Pod, key: str, count: int, asking: Sequence[Container]) -> list[str]:
    """The containers of ``count`` segments with devices, in order. Raises ClaimError.

    The order is right in every version of every writer; the position is not, as each has other
    rules for containers that request nothing and for other vendors' devices. So the requesting
    containers are counted: HAMi from 2.9 writes a segment for init containers (sidecars among them)
    and then for app containers; HAMi before that and Volcano write for app containers only. With
    init containers that request devices, the two readings differ in number.
    """
    before = [container.name for container in asking if container.kind is not ContainerKind.APP]
    apps = [container.name for container in asking if container.kind is ContainerKind.APP]
    if count == len(before) + len(apps):
        return before + apps
    if count == len(apps):
        return apps
    detail = (
        f"{count} segments with devices, where {len(apps)} app containers ask"
        f" and {len(before)} init containers or sidecars"
    )
    raise ClaimError(object_name_of(pod), key, pod.annotations.get(key, ""), detail)


def _containers_by_position(
    pod: Pod, key: str, segments: Sequence[_Shares], *, for_all: bool
) -> list[str]:
    """The containers of the segments with devices, of a pod without a known request.

    The operator has renamed a resource then. The position is reliable only where each container has
    a segment: each of all (HAMi from 2.9), or each app container (HAMi 2.7 and 2.8). HAMi 2.10
    leaves out those that ask for nothing: as many segments as app containers, none of them empty,
    may be of either, if there are init containers. And where a container asks for another vendor's
    device, its segment is in front (HAMi 2.7 to 2.9). Raises ClaimError with both readings.
    """
    apps = list(pod.apps)
    every = [
        container.name for container in pod.containers if container.kind is not ContainerKind.APP
    ] + apps
    text = pod.annotations.get(key, "")
    if PLACEHOLDER not in text and not _of_several_vendors(pod):
        if for_all and len(segments) == len(every):
            return [name for name, shares in zip(every, segments, strict=True) if shares]
        if len(segments) == len(apps) and not (for_all and all(segments)):
            return [name for name, shares in zip(apps, segments, strict=True) if shares]
    count = sum(1 for shares in segments if shares)
    detail = (
        f"{count} segments with devices: of app containers among {_some(apps)} (HAMi up to 2.8,"
        f" Volcano), or of any among {_some(every)} (HAMi from 2.9);"
        " no container requests a resource that would decide it"
    )
    raise ClaimError(object_name_of(pod), key, text, detail)


def _of_several_vendors(pod: Pod) -> bool:
    """Whether it may be: no resource is requested by all containers that request any."""
    resources = [set(container.limits) for container in pod.containers if container.limits]
    return bool(resources) and not set.intersection(*resources)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _unserved(
    pod: Pod, key: str, unit: int, held: list[tuple[str, _Shares]], remarks: list[str]
) -> list[str] | None:
    """The containers that are still to be served, the last ones; None if that is unknown."""
    if key not in pod.annotations:
        return None
    try:
        pending = [shares for shares in _segments(pod, key, unit) if shares]
    except ClaimError as error:
        remarks.append(error.detail)
        return None
    last = held[max(0, len(held) - len(pending)) :]
    if pending != [shares for _, shares in last]:
        remarks.append(remark(key, "not the last of the pod's devices", pod.annotations[key]))
        return None
    return [name for name, _ in last]


def _bind_phase(pod: Pod, key: str, remarks: list[str]) -> str:
    text = pod.annotations.get(key, "")
    if text not in ("", ALLOCATING, SUCCESS, FAILED):
        remarks.append(remark(key, "not a phase", text))
        return ""
    return text


def _time(pod: Pod, key: str, remarks: list[str]) -> tuple[bool, int | None]:
    """Whether Allocate is done with the pod, else the time in unix seconds."""
    text = pod.annotations.get(key)
    if text is None or text == str(ENDED):
        return text is not None, None
    seconds = number(text, MOST_SECONDS)
    if seconds is None:
        remarks.append(remark(key, "not a time in unix seconds", text))
    return False, seconds


# ---------------------------------------------------------------- writing


def write(
    claim: Claim,
    key_set: KeySet,
    unit: int,
    devices: Mapping[str, Device],
    containers: Sequence[str] = (),
) -> dict[str, str]:
    """The annotations of exactly this claim, from which :func:`read` makes it again.

    Times are written in whole seconds; the time of assigning and remarks are not written. HAMi's
    have a segment for every container, so they need ``containers``: the names of the pod's app
    containers in the spec's order, behind those of its init containers if one of them asks. Raises
    ClaimError for what these annotations cannot express.
    """
    object_name = object_name_of(claim.pod)
    shares = {allocation.container: allocation.shares for allocation in claim.allocations}
    names = tuple(containers) if key_set.for_all else tuple(shares)
    if len(set(names)) != len(names) or [name for name in names if name in shares] != [*shares]:
        raise ClaimError(
            object_name, key_set.devices, ", ".join(shares), "not the pod's containers"
        )
    if len(shares) != len(claim.allocations) or not all(shares.values()):
        detail = "a container twice or without devices"
        raise ClaimError(object_name, key_set.devices, ", ".join(shares), detail)
    served = len(shares) - len(claim.unserved)
    if claim.unserved != tuple(shares)[max(served, 0) :]:
        detail = "not the last containers"
        raise ClaimError(object_name, key_set.to_allocate, ", ".join(claim.unserved), detail)
    bind_phase = _bind_phase_of(claim, key_set.bind_phase, object_name)

    def segments(named: Collection[str]) -> str:
        texts = (
            "".join(
                _entry(share, unit, devices, object_name, key_set.devices)
                for share in shares.get(name, ())
                if name in named
            )
            for name in names
        )
        return "".join(f"{text};" for text in texts) if key_set.for_all else ";".join(texts)

    written = {
        key_set.devices: segments(shares),
        key_set.to_allocate: segments(frozenset(claim.unserved)),
        key_set.bind_phase: bind_phase,
    }
    if claim.node:
        written[key_set.node] = claim.node
    if claim.assumed_at is not None:
        if not 0 <= claim.assumed_at <= MOST_SECONDS:
            raise ClaimError(
                object_name, key_set.time, str(claim.assumed_at), "not a time to write"
            )
        written[key_set.time] = written[key_set.bind_time] = str(int(claim.assumed_at))
    if key_set.time_ends and bind_phase != ALLOCATING:
        written[key_set.time] = str(ENDED)
    return written


def struck(text: str) -> str:
    """``to_allocate`` as the plugin leaves it when it has allocated all that is its own.

    It strikes the entries and keeps the separators of containers. The same text if nothing of it
    is left to be allocated.
    """
    if VENDOR not in text:
        return text
    return ";".join(
        ":".join(entry for entry in segment.split(":") if not _is_ours(entry))
        for segment in text.split(";")
    )


def struck_but(pod: Pod, key: str, unit: int, waiting: Iterable[_Shares]) -> str:
    """``to_allocate`` (``key``) as the plugin leaves it while containers with these shares wait.

    Entries are struck only, never added. Of containers with equal shares the last ones wait: they
    are served in their order, and so it is read. Raises ClaimError for malformed entries.
    """
    left = Counter(waiting)
    kept: list[str] = []
    for segment in reversed(pod.annotations.get(key, "").split(";")):
        shares = _shares(pod, key, segment, unit)
        kept.append(segment if left[shares] else struck(segment))
        left[shares] -= bool(left[shares])
    return ";".join(reversed(kept))


def _is_ours(entry: str) -> bool:
    fields = entry.split(",", 2)
    return len(fields) > 1 and VENDOR in fields[1]


def _bind_phase_of(claim: Claim, key: str, object_name: str) -> str:
    """The phase, if it is that of every container. Raises ClaimError."""
    phases = [allocation.phase for allocation in claim.allocations]
    if claim.scheme is not Scheme.VOLCANO or not phases:
        raise ClaimError(object_name, key, claim.scheme, count(len(phases), "container"))
    if not claim.failed and set(phases) == {Phase.ASSIGNED}:
        return SUCCESS
    unserved = frozenset(claim.unserved)
    waiting = [
        Phase.ASSUMED if allocation.container in unserved else Phase.ASSIGNED
        for allocation in claim.allocations
    ]
    if phases != waiting:
        detail = "exactly the shares that Allocate has not served yet must be assumed"
        raise ClaimError(object_name, key, ", ".join(phases), detail)
    return FAILED if claim.failed else ALLOCATING


def _entry(
    share: Share, unit: int, devices: Mapping[str, Device], object_name: str, key: str
) -> str:
    """One device, under its UUID. Raises ClaimError."""
    device = devices.get(share.device)
    name = device.uuid if device and device.uuid and not mig_slot(share.device) else share.device
    if not is_device_name(name):
        raise ClaimError(object_name, key, name, "not a device")
    amounts = []
    for amount, size in ((share.memory_bytes, unit), (share.cores_milli, MILLI_PER_PERCENT)):
        units, rest = divmod(-1 if amount is None else amount, size)
        if rest or not 0 <= units <= MOST:
            raise ClaimError(object_name, key, f"{name}: {amount}", f"not a whole number of {size}")
        amounts.append(units)
    return f"{name},{VENDOR},{amounts[0]},{amounts[1]}:"
