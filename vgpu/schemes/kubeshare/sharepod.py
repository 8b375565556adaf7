"""KubeShare 1: what a SharePod asks for in its annotations, and what it is answered.

The scheduler answers with a node and a GPUID, the name of a virtual GPU that a holder pod keeps on
some GPU (:mod:`vgpu.schemes.kubeshare.node`); the device manager with the GPU's UUID in the
SharePod's status, and then makes the real pod: same name, same annotations, owned by the SharePod.

Names and rules: KubeShare branch release-1.0, ``pkg/scheduler`` and ``pkg/devicemanager``.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec import structs

from vgpu.model.allocation import Allocation, Claim, Device, Request, Share
from vgpu.model.names import Phase, Scheme
from vgpu.model.objects import BOUND_DEVICE, MANAGER_PORT, SHARE_POD, Pod
from vgpu.model.units import WHOLE_DEVICE_MILLI
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.kubeshare.text import (
    LIMIT,
    MEMORY,
    REQUEST,
    decimal,
    is_uuid,
    parse_numbers,
    resolve,
)
from vgpu.schemes.text import object_name_of

PREFIX: Final = "kubeshare/"
GPUID: Final = PREFIX + "GPUID"
AFFINITY: Final = PREFIX + "sched_affinity"
ANTI_AFFINITY: Final = PREFIX + "sched_anti-affinity"
EXCLUSION: Final = PREFIX + "sched_exclusion"

OWNER: Final = "SharePod"
"""The kind that owns the real pods."""

_MADE_UP: Final = re.compile("[a-z]{5}")

_FINISHED: Final[Mapping[str, frozenset[str]]] = {
    "OnFailure": frozenset({"Succeeded"}),
    "Never": frozenset({"Succeeded", "Failed"}),
}
"""restartPolicy -> phases in which a SharePod is over; in others its pod is recreated."""

_GPUID = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def is_made_up(gpuid: str) -> bool:
    """Whether a scheduler has made up the GPUID: five letters. Any other is its user's choice."""
    return _MADE_UP.fullmatch(gpuid) is not None


def is_gpuid(text: str) -> bool:
    """Whether the text can be the name of a virtual GPU."""
    return _GPUID.fullmatch(text) is not None


def is_finished(share_pod: Pod) -> bool:
    """Whether the pod of a SharePod has ended and is not created again."""
    return share_pod.phase in _FINISHED.get(share_pod.restart_policy, ())


class Locality(msgspec.Struct, frozen=True, gc=False):
    """The pods with which a SharePod may share: labels of its user's choice, "" for none.

    Attributes:
        affinity: only with pods of the same label.
        anti_affinity: with no pod of the same label.
        exclusion: with no pod of another label, or of none.
    """

    affinity: str = ""
    anti_affinity: str = ""
    exclusion: str = ""


def locality(pod: Pod) -> Locality:
    """The locality labels of a SharePod."""
    keys = (AFFINITY, ANTI_AFFINITY, EXCLUSION)
    return Locality(*(pod.annotations.get(key, "") for key in keys))


def requests(pod: Pod) -> tuple[Request, ...]:
    """0 ≤ request ≤ limit ≤ 1.0 and memory, all of them set; all zero is nothing.

    Raises ClaimError.
    """
    object_name = object_name_of(pod.ref)
    numbers = parse_numbers(pod.annotations, PREFIX, object_name)
    if not numbers.is_set and not pod.annotations.get(GPUID):
        return ()
    request, limit, memory = numbers.request_milli, numbers.limit_milli, numbers.memory_bytes
    if request is None or limit is None or memory is None:
        missing = next(
            name
            for name, number in ((REQUEST, request), (LIMIT, limit), (MEMORY, memory))
            if number is None
        )
        raise ClaimError(object_name, PREFIX + missing, "", "missing beside the others")
    if request == limit == memory == 0:
        return ()
    if not 0 < limit <= WHOLE_DEVICE_MILLI:
        text = pod.annotations[PREFIX + LIMIT]
        raise ClaimError(object_name, PREFIX + LIMIT, text, "not above 0 and at most 1.0")
    if request > limit:
        text = pod.annotations[PREFIX + REQUEST]
        raise ClaimError(object_name, PREFIX + REQUEST, text, "above the limit")
    return (Request("", 1, memory, cores_milli=request, limit_milli=limit),)


def claim(pod: Pod) -> Claim | None:
    """The virtual GPU that a pod was allocated, by its GPU's UUID if that is known.

    A pod with a container that runs or has run was allocated it, whatever else is missing.

    None without GPUID; without a node too, since KubeShare's scheduler skips a SharePod that has
    a GPUID only. Raises ClaimError.
    """
    gpuid = pod.annotations.get(GPUID, "")
    if not gpuid or not pod.node:
        return None
    object_name = object_name_of(pod.ref)
    if not is_gpuid(gpuid):
        raise ClaimError(object_name, GPUID, gpuid, "not the name of a virtual GPU")
    numbers = parse_numbers(pod.annotations, PREFIX, object_name)
    if numbers.request_milli is None or numbers.memory_bytes is None:
        missing = REQUEST if numbers.request_milli is None else MEMORY
        raise ClaimError(object_name, PREFIX + missing, "", "missing beside the GPUID")
    if numbers.request_milli > WHOLE_DEVICE_MILLI:
        text = pod.annotations[PREFIX + REQUEST]
        raise ClaimError(object_name, PREFIX + REQUEST, text, "above 1.0")
    if not any((numbers.request_milli, numbers.limit_milli, numbers.memory_bytes)):
        return None
    bound = pod.annotations.get(BOUND_DEVICE, "")
    if bound and not is_uuid(bound):
        raise ClaimError(object_name, "status.BoundDeviceID", bound, "not a UUID")
    served = bound or (pod.owner is not None and pod.owner.kind == OWNER) or pod.has_run()
    share = Share(bound or gpuid, numbers.memory_bytes, numbers.request_milli)
    allocation = Allocation("", (share,), Phase.ASSIGNED if served else Phase.ASSUMED)
    return Claim(Scheme.KUBESHARE, pod.ref, pod.node, (allocation,))


def written(
    shares: tuple[Share, ...], devices: Mapping[str, Device], object_name: str
) -> dict[str, str]:
    """The annotations that say one share of a virtual GPU. Raises ClaimError."""
    share = shares[0]
    if len(shares) > 1 or share.memory_bytes is None or share.cores_milli is None:
        raise ClaimError(object_name, GPUID, share.device, "not one share with cores and memory")
    if not 0 <= share.cores_milli <= WHOLE_DEVICE_MILLI:
        text = str(share.cores_milli)
        raise ClaimError(object_name, PREFIX + REQUEST, text, "not thousandths of one GPU")
    if share.cores_milli == share.memory_bytes == 0:
        raise ClaimError(object_name, GPUID, share.device, "a share of nothing")
    handles = resolve(share, devices, object_name, GPUID).handles
    gpuids = (share.device,) if share.device in handles else handles
    if len(gpuids) != 1 or not is_gpuid(gpuids[0]):
        raise ClaimError(object_name, GPUID, ",".join(gpuids), "not the name of one virtual GPU")
    return {
        PREFIX + REQUEST: decimal(share.cores_milli),
        PREFIX + MEMORY: str(share.memory_bytes),
        GPUID: gpuids[0],
    }


def join(pods: Iterable[Pod], share_pods: Iterable[Pod]) -> tuple[Pod, ...]:
    """The pods, with what their SharePods know of them; then the SharePods that have no pod yet.

    A SharePod and its real pod are one pod: the kubelet knows the pod's UID only, the GPU is
    known to the SharePod only. They belong together by the UID in the pod's owner reference.
    """
    waiting = {share_pod.ref.uid: share_pod for share_pod in share_pods}
    joined = []
    for pod in pods:
        owned = pod.owner is not None and pod.owner.kind == OWNER
        share_pod = waiting.pop(pod.owner.uid, None) if pod.owner and owned else None
        if share_pod is not None:
            annotations = {
                key: share_pod.annotations[key]
                for key in (SHARE_POD, BOUND_DEVICE, MANAGER_PORT)
                if key in share_pod.annotations
            }
            pod = structs.replace(pod, annotations={**pod.annotations, **annotations})  # noqa: PLW2901
        joined.append(pod)
    return (*joined, *waiting.values())
