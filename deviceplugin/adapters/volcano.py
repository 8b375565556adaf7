"""Volcano vGPU's and HAMi's plugin: the scheduler chooses by annotation, HAMi-core is the limit.

What is new against the originals: a container gets what its own pod's annotations reserve for it
by name, a failed pod stops being a candidate, and a lock is released only when its owner is served.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from fractions import Fraction
from typing import Final

import msgspec
from msgspec.structs import replace

from deviceplugin.adapters import memory_factor
from deviceplugin.capacity import NodeCapacity
from deviceplugin.model import AdmittedPod
from deviceplugin.reasons import BindRefusal, BindRefused
from deviceplugin.scheme_adapter import AnnotationPatch, Folder, NodePatch, gpu_devices, lagging
from vgpu.model.allocation import Allocation, Device, Request, Share
from vgpu.model.facts import Gpu
from vgpu.model.names import Phase, PodRef, Scheme
from vgpu.model.objects import Node, Pod
from vgpu.model.units import MILLI_PER_PERCENT, WHOLE_DEVICE_PERCENT
from vgpu.schemes.codec import VISIBLE_DEVICES, ClaimError, ContainerEdits, HandshakeState, NodeLock
from vgpu.schemes.text import number
from vgpu.schemes.volcano.claim import ENDED, FAILED, SUCCESS, struck
from vgpu.schemes.volcano.codec import Volcano
from vgpu.schemes.volcano.env import LOCK_FOLDER, cache_folder, is_controlled
from vgpu.schemes.volcano.key_set import SPLIT_COUNT
from vgpu.schemes.volcano.node import handshake_text
from vgpu.schemes.volcano.text import MOST_SECONDS

HANDSHAKE_SECONDS: Final = 30.0
"""Interval between two heartbeats, in seconds; a scheduler gives a node up after 60."""

MOST_SCALING: Final = 100.0
"""Maximum scaling of a GPU's memory or cores; numbers in annotations have 32 bits."""

FOLDER_MODE: Final = 0o777
"""HAMi-core runs as whatever user the container has."""

_NOT_A_WORD: Final = re.compile("[,;:\x00-\x1f\x7f\ud800-\udfff]+")


class HandshakeMode(StrEnum):
    """When the plugin reports that it lives."""

    AUTO = "auto"  # when the scheduler asks: Volcano from 1.16 does not
    ON = "on"  # every half minute, too
    OFF = "off"


class VolcanoAdapter(msgspec.Struct, frozen=True):
    """The :class:`deviceplugin.scheme_adapter.SchemeAdapter` of Volcano and HAMi.

    Attributes:
        codec: with the dialect of the cluster's scheduler, and this node's unit and files.
        split_count: number of shares of a GPU.
        memory_scaling, core_scaling: factors on the memory and cores of a GPU.
        handshake: when to write the heartbeat into the handshake annotation.
    """

    codec: Volcano
    split_count: int = SPLIT_COUNT
    memory_scaling: float = 1.0
    core_scaling: float = 1.0
    handshake: HandshakeMode = HandshakeMode.AUTO

    def __post_init__(self) -> None:
        for scaling in (self.memory_scaling, self.core_scaling):
            if not 0 < scaling <= MOST_SCALING:
                raise ValueError(f"a scaling of {scaling}")
        if not 0 < self.split_count <= SPLIT_COUNT * MOST_SCALING:
            raise ValueError(f"{self.split_count} shares of a GPU")

    @property
    def scheme(self) -> Scheme:
        """Volcano's, also for HAMi."""
        return Scheme.VOLCANO

    @property
    def resources(self) -> tuple[str, ...]:
        """Shares, and for Volcano memory and cores; HAMi's scheduler counts those two itself."""
        return tuple(name for name, _ in self.codec.key_set.advertised)

    # ------------------------------------------------------------ devices

    def devices(self, gpus: Iterable[Gpu]) -> tuple[Device, ...]:
        """The GPUs, scaled; memory in whole units, cores in whole percents."""
        return tuple(map(self._shared, gpu_devices(gpus)))

    def _shared(self, gpu: Device) -> Device:
        unit = self.codec.unit_bytes
        memory = int((gpu.memory_bytes or 0) * Fraction(str(self.memory_scaling)))
        cores = int(WHOLE_DEVICE_PERCENT * Fraction(str(self.core_scaling)))
        return replace(
            gpu,
            memory_bytes=memory // unit * unit,
            cores_milli=cores * MILLI_PER_PERCENT,
            slots=self.split_count,
            model=_NOT_A_WORD.sub(" ", gpu.model),
        )

    # ------------------------------------------------------------ pods

    def claim(
        self,
        pod: Pod,
        node: str,
        devices: tuple[Device, ...],
        capacity: NodeCapacity,  # noqa: ARG002  # the scheduler has chosen
    ) -> tuple[Allocation, ...]:
        """What the annotations reserve; () if they reserve nothing. Raises BindRefused."""
        keys = self.codec.key_set
        if pod.annotations.keys().isdisjoint((keys.devices, keys.to_allocate)):
            detail = f"{keys.devices} is missing: its scheduler has not chosen the devices"
            raise BindRefused(BindRefusal.NO_CLAIM, detail, pod.ref)
        try:
            claim = self.codec.claim(pod)
            asked = {request.container: request for request in self.codec.requests(pod)}
        except ClaimError as error:
            raise BindRefused(BindRefusal.MALFORMED, error.detail, pod.ref) from error
        if claim is None:
            raise BindRefused(BindRefusal.NO_CLAIM, f"{keys.devices} names no device", pod.ref)
        if claim.failed:
            raise BindRefused(BindRefusal.CLAIM_FAILED, f"{keys.bind_phase} is {FAILED}", pod.ref)
        if claim.node not in ("", node):
            raise BindRefused(BindRefusal.OTHER_NODE, f"{keys.node} is {claim.node!r}", pod.ref)
        known = {device.uuid for device in devices}
        for allocation in claim.allocations:
            for share in allocation.shares:
                _expect_served(share, known, pod, allocation.container)
                if allocation.container in asked:
                    self._expect_asked(share, asked[allocation.container], pod)
        return tuple(replace(allocation, phase=Phase.ASSIGNED) for allocation in claim.allocations)

    def _expect_asked(self, share: Share, request: Request, pod: Pod) -> None:
        """Raises BindRefused for a share that is more than its container asks for of each GPU.

        No scheduler writes such a share: a tenant has annotated its own pod. The scheduler chooses
        the amount for a percentage of the memory, and for what is not asked for.
        """
        keys, unit = self.codec.key_set, self.codec.unit_bytes
        amounts = (
            (keys.memory, unit, share.memory_bytes, request.memory_bytes),
            (keys.cores, MILLI_PER_PERCENT, share.cores_milli, request.cores_milli),
        )
        for resource, size, reserved, asked in amounts:
            if reserved and asked and reserved > asked:
                detail = (
                    f"it asks for {asked // size} of {resource}, and its annotations reserve"
                    f" {reserved // size} of {share.device}"
                )
                raise BindRefused(BindRefusal.MALFORMED, detail, pod.ref, request.container)

    def edits(
        self, pod: Pod, allocation: Allocation, name: str, devices: Mapping[str, Device]
    ) -> ContainerEdits:
        """The answer of the originals' Allocate; the region file has the binding's name."""
        spec = next(
            (container for container in pod.containers if container.name == allocation.container),
            None,
        )
        codec = self.codec
        if self.memory_scaling > 1:  # more than the GPUs have must come from the host
            codec = replace(codec, oversubscribe=True)
        try:
            return codec.edits(
                replace(pod.ref, uid=pod.kubelet_uid),
                allocation,
                devices,
                cache_name=name,
                preload=spec is None or is_controlled(spec.env),
            )
        except ClaimError as error:
            raise BindRefused(
                BindRefusal.MALFORMED, error.detail, pod.ref, allocation.container
            ) from error

    def late_env(self, env: Mapping[str, str]) -> Mapping[str, str]:
        """HAMi-core reads its own variables from a file, NVIDIA's runtime does not."""
        return {name: value for name, value in env.items() if name != VISIBLE_DEVICES}

    def folders(self, pod: PodRef, container: str) -> tuple[Folder, ...]:
        """The folder of its region file, and the folder of the lock that all containers share."""
        paths = self.codec.paths or self.codec.key_set.paths
        cache = cache_folder(paths, pod, container)
        return (Folder(cache, FOLDER_MODE), Folder(LOCK_FOLDER, FOLDER_MODE))

    # ------------------------------------------------------------ annotations, labels and locks

    def pod_annotations(
        self,
        pod: Pod,
        admitted_pod: AdmittedPod,
        devices: Mapping[str, Device],  # noqa: ARG002  # the annotations name them already
        now: float,  # noqa: ARG002  # the annotations have no time
    ) -> AnnotationPatch:
        """Removes each bound container from the annotation of devices to allocate; then success."""
        if admitted_pod.foreign or not self.codec.claim_keys(pod):
            return {}
        waiting = {
            allocation.container
            for allocation in admitted_pod.allocations
            if not admitted_pod.binding(allocation.container)
        }
        rest = self._rest(pod, waiting)
        return lagging(pod.annotations, rest if waiting else rest | self._ended(SUCCESS))

    def failure_annotations(self, pod: Pod) -> AnnotationPatch:
        """Failed, and nothing left to be allocated: the originals would try it again for ever."""
        if not self.codec.claim_keys(pod):
            return {}
        return lagging(pod.annotations, self._rest(pod, ()) | self._ended(FAILED))

    def node_annotations(self, node: Node, devices: tuple[Device, ...], now: float) -> NodePatch:
        """The register of GPUs, the heartbeat, and the size of a unit of memory."""
        by_index = tuple(sorted(devices, key=lambda device: device.index or 0))
        wanted = self.codec.register(by_index) | self._heartbeat(node, now)
        if self.codec.key_set.counts_units:
            wanted |= memory_factor.published(self.codec.memory_factor)
        return NodePatch(annotations=lagging(node.annotations, wanted))

    def lock_to_release(
        self, node: Node, pods: Collection[Pod], served: Collection[str]
    ) -> str | None:
        """See :func:`lock_to_release`."""
        return lock_to_release(self.codec, node, pods, served)

    def _rest(self, pod: Pod, waiting: Collection[str]) -> dict[str, str]:
        """The annotation of devices to allocate; unchanged if it cannot be read."""
        key = self.codec.key_set.to_allocate
        text = pod.annotations.get(key)
        if text is None:
            return {}
        try:
            return {key: self.codec.struck(pod, waiting) if waiting else struck(text)}
        except ClaimError:
            return {}

    def _ended(self, bind_phase: str) -> dict[str, str]:
        keys = self.codec.key_set
        time = {keys.time: str(ENDED)} if keys.time_ends else {}
        return {keys.bind_phase: bind_phase} | time

    def _heartbeat(self, node: Node, now: float) -> dict[str, str]:
        """The heartbeat. The plugin writes the first: Volcano before 1.16 never asks for it."""
        if self.handshake is HandshakeMode.OFF:
            return {}
        keys = self.codec.key_set
        try:
            last = self.codec.handshake(node)
        except ClaimError:  # no valid handshake, which schedulers overwrite themselves
            if self.handshake is HandshakeMode.AUTO:
                return {}
            last = None
        if last is not None and last.state is HandshakeState.REPORTED:
            due = last.written_at is None or abs(now - last.written_at) >= HANDSHAKE_SECONDS
            if self.handshake is HandshakeMode.AUTO or not due:
                return {}
        key = last.key if last else keys.handshake[0]
        return {key: handshake_text(HandshakeState.REPORTED, now, keys)}


def _expect_served(share: Share, known: Collection[str], pod: Pod, container: str) -> None:
    """Raises BindRefused for a share that cannot be allocated."""
    if share.device not in known:
        there = ", ".join(sorted(known)) or "none"
        detail = f"device {share.device} is not shared on this node; shared are {there}"
        raise BindRefused(BindRefusal.UNKNOWN_DEVICE, detail, pod.ref, container)
    if not share.memory_bytes:
        detail = f"no memory of {share.device} is reserved, which HAMi-core treats as no limit"
        raise BindRefused(BindRefusal.MALFORMED, detail, pod.ref, container)


# ---------------------------------------------------------------- the scheduler's lock

STAMPED_BEFORE_SECONDS: Final = 60.0
"""Maximum time from a pod's stamp to the lock, in seconds: HAMi's scheduler stamps the pod first
and then tries several times to take the lock."""

EXPIRED_AFTER_SECONDS: Final = 300.0
"""Age in seconds at which Volcano's scheduler takes the lock for the next pod, with a new time."""

_UNKNOWN: Final = float("inf")
"""An unknown bind time: it may be in any lock's time, and follows no lock closely."""


def lock_to_release(
    codec: Volcano, node: Node, pods: Collection[Pod], served: Collection[str]
) -> str | None:
    """The key of the lock; None if there is no lock, or if the lock is still needed.

    A pod is served when the kubelet has an answer for it, even if the pod waits: the kubelet asks
    no more. :class:`deviceplugin.apiserver.object_writers.LockOwners` handles a named owner that is
    over or gone.

    The scheduler takes the lock for one pod and waits with the next pod until the lock is released.
    HAMi's lock names its owner. Volcano's has only a time: the scheduler takes the lock and stamps
    the pod's bind time right after, so the owner is the pod whose bind time follows most closely.
    If the owner is ambiguous or unknown, the lock is left to the reconciler.

    Tenants can annotate their pods, so a bind time alone makes no pod an owner: an owner also
    requests devices and has reservations, written while the lock was in force.
    """
    for lock in codec.locks(node):
        if lock.since is None:
            continue
        owners = _owners(codec, lock, lock.since, pods, served)
        if owners and all(pod.kubelet_uid in served for pod in owners):
            return lock.key
    return None


def _owners(
    codec: Volcano,
    lock: NodeLock,
    since: float,
    pods: Collection[Pod],
    served: Collection[str],
) -> list[Pod]:
    """All pods that may own the lock."""
    if lock.owner is not None:
        named = (pod for pod in pods if (pod.ref.namespace, pod.ref.name) == lock.owner)
        return [pod for pod in named if _stamp(codec, pod) >= since - STAMPED_BEFORE_SECONDS]
    if codec.key_set.for_all:  # HAMi's, without the owner that it always writes
        return []
    stamps = [(_stamp(codec, pod), pod) for pod in pods if _is_reserved(codec, pod)]
    within = since + EXPIRED_AFTER_SECONDS
    later = [
        (bound_at, pod)
        for bound_at, pod in stamps
        if since <= bound_at <= within or bound_at == _UNKNOWN
    ]
    closest = min((bound_at for bound_at, _ in later), default=_UNKNOWN)
    if closest == _UNKNOWN:
        return []
    return [
        pod
        for bound_at, pod in later
        if bound_at == closest or not (pod.terminal or pod.kubelet_uid in served)
    ]


def _is_reserved(codec: Volcano, pod: Pod) -> bool:
    """Whether a scheduler can have locked a node for the pod."""
    keys = codec.key_set
    requests = any(container.limits.get(keys.number) for container in pod.containers)
    return requests and any(pod.annotations.get(key) for key in (keys.devices, keys.to_allocate))


def _stamp(codec: Volcano, pod: Pod) -> float:
    """The pod's bind time in unix seconds."""
    seconds = number(pod.annotations.get(codec.key_set.bind_time, ""), MOST_SECONDS)
    return _UNKNOWN if seconds is None else seconds
