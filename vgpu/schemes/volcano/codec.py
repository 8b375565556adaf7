"""Volcano vGPU and HAMi: slices of GPUs by number, memory and cores, in pod annotations.

The scheduler writes the devices of each container on the pod, the plugin reads them there when the
kubelet calls Allocate, and HAMi-core keeps the container to its limits. This is the
codec; its parts are in the other modules of this package.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

from msgspec import structs

from vgpu.model.allocation import (
    NO_DEFAULTS,
    Allocation,
    Claim,
    Device,
    Request,
    RequestDefaults,
    Share,
    mig_slot,
    physical,
)
from vgpu.model.names import PodRef, Scheme
from vgpu.model.objects import Container, Node, Pod
from vgpu.model.units import MIB, MILLI_PER_PERCENT
from vgpu.schemes.codec import (
    BaseCodec,
    ClaimError,
    ContainerEdits,
    Handshake,
    LeftoverClaim,
    NodeLock,
    Slot,
    remark,
)
from vgpu.schemes.text import amount
from vgpu.schemes.volcano import claim as volcano_claim
from vgpu.schemes.volcano import env as volcano_env
from vgpu.schemes.volcano import legacy_format
from vgpu.schemes.volcano import node as volcano_node
from vgpu.schemes.volcano.env import is_shared, memory_limit, visible_uuids
from vgpu.schemes.volcano.key_set import (
    HAMI,
    HAMI_CORE,
    SPLIT_COUNT,
    VOLCANO,
    KeySet,
    ShimPaths,
)
from vgpu.schemes.volcano.text import MOST

__all__ = [
    "HAMI",
    "VOLCANO",
    "KeySet",
    "Volcano",
    "is_shared",
    "memory_limit",
    "mig_slot",
    "physical",
    "visible_uuids",
]

_DEVICE_ID = re.compile(
    r"(?P<device>[A-Za-z0-9_./-]{1,96}?)(?P<kind>-memory|-core)?(?:-|::)(?P<ordinal>[0-9]{1,7})"
)
_LEGACY: Final = (legacy_format.MEMORY, legacy_format.NUMBER)
_WHOLE: Final = 100  # percent of a GPU's memory, where neither memory nor percentage is asked


class Volcano(BaseCodec, frozen=True, dict=True):
    """The codec, with its operator's settings.

    Attributes:
        key_set: Volcano's spellings or HAMi's.
        memory_factor: MiB of one unit of requested memory (``gpu-memory-factor``); with Volcano
            also of annotations, device IDs and the node's register.
        paths: where the library's files are; None is the key set's default.
        oversubscribe: whether memory beyond the GPU may be taken from the host.
        core_policy: HAMi-core's GPU_CORE_UTILIZATION_POLICY: ``disable``, ``force`` or "".
        defaults: what the scheduler assumes of what a container does not request (HAMi).
    """

    key_set: KeySet = VOLCANO
    memory_factor: int = 1
    paths: ShimPaths | None = None
    oversubscribe: bool = False
    core_policy: str = ""
    defaults: RequestDefaults = NO_DEFAULTS

    def __post_init__(self) -> None:
        if not 0 < self.memory_factor <= MOST:
            raise ValueError(f"a unit of {self.memory_factor} MiB")

    @property
    def name(self) -> str:
        """The name of its row: Volcano and HAMi have one each."""
        return self.key_set.name

    @property
    def scheme(self) -> Scheme:
        """Volcano's, for HAMi too."""
        return Scheme.VOLCANO

    @cached_property
    def resources(self) -> tuple[str, ...]:
        """What requests devices. HAMi's number may have the name of NVIDIA's own whole GPUs."""
        legacy = _LEGACY if self._has_legacy else ()
        return (self.key_set.number, *self.key_set.implied_by, *legacy)

    def answered(self, env: Mapping[str, str]) -> tuple[Share, ...]:
        """The shares by HAMi-core's variables, which both plugins set and no other plugin does."""
        return volcano_env.shares(env)

    @cached_property
    def advertised(self) -> tuple[str, ...]:
        """Those of either plugin, and of the older one."""
        return self.key_set.plugin_resources + (_LEGACY if self._has_legacy else ())

    @cached_property
    def only_counted(self) -> tuple[str, ...]:
        """What the scheduler, the webhook and the library read: no node has these resources."""
        keys = self.key_set
        counted = (name for name in keys.quantities if name not in self._kinds)
        return tuple(filter(None, (*counted, keys.resources.priority)))

    @property
    def unit_bytes(self) -> int:
        """Bytes of one unit of memory in annotations."""
        return self._requested_unit if self.key_set.counts_units else MIB

    @property
    def _requested_unit(self) -> int:
        return self.memory_factor * MIB

    @property
    def _has_legacy(self) -> bool:
        return self.key_set.name == VOLCANO.name

    # ------------------------------------------------------------ pods

    def requests(self, pod: Pod) -> tuple[Request, ...]:
        """What each container requests.

        Only app containers are served: Volcano's scheduler ignores the others, and HAMi's
        includes them only in new versions. Raises ClaimError.
        """
        if self.key_set.resources.is_unknown:
            return self._as_allocated(pod)
        requests: list[Request] = []
        for container in pod.containers:
            if container.limits or container.broken:
                request = self._request(pod, container)
                if request is not None and request.count:
                    requests.append(request)
        if self.key_set.resources.is_partial:
            return self._as_reserved(pod, requests)
        return tuple(requests)

    def _as_allocated(self, pod: Pod) -> tuple[Request, ...]:
        """What the scheduler has allocated: the names of what pods request are not known."""
        try:
            claim = volcano_claim.read(pod, self.key_set, self.unit_bytes, ())
        except ClaimError:
            return ()
        kinds = {each.name: each.kind for each in pod.containers}
        return tuple(
            Request(
                each.container,
                len(each.shares),
                memory_bytes=each.shares[0].memory_bytes,
                cores_milli=each.shares[0].cores_milli or 0,
                kind=kinds[each.container],
            )
            for each in (claim.allocations if claim else ())
            if each.shares
        )

    def _as_reserved(self, pod: Pod, requests: Sequence[Request]) -> tuple[Request, ...]:
        """The requests with the amounts that the scheduler has reserved for them.

        The names of amounts are not all known: a container that requests one of another name has
        an amount that cannot be read, and nothing reserved is an unknown amount.
        """
        asking = frozenset(request.container for request in requests)
        claim = volcano_claim.read(pod, self.key_set, self.unit_bytes, asking)
        reserved = {
            each.container: each.shares[0]
            for each in (claim.allocations if claim else ())
            if each.shares
        }
        return tuple(_as_share(request, reserved.get(request.container)) for request in requests)

    def inadmissible(self, pod: Pod) -> str:
        """A percentage of memory that no scheduler may reserve for.

        HAMi's webhook refuses one outside 0 to 100 (2.10, ``pkg/device/nvidia/device.go:391``).
        Volcano reserves 0 bytes for 0, and no GPU has more than 100 (1.15,
        ``pkg/scheduler/api/devices/nvidia/vgpu/utils.go:412``).
        """
        keys = self.key_set
        for container in pod.containers:
            percentage = container.limits.get(keys.percentage, keys.no_percentage)
            is_asking = not container.limits.keys().isdisjoint((keys.number, *keys.implied_by))
            if is_asking and percentage not in keys.percentages:
                least = keys.percentages[0]
                detail = f"container {container.name}: not a percentage of {least} to {_WHOLE}"
                return remark(keys.percentage, detail, str(percentage))
        return ""

    def without_limit(self, pod: Pod, claim: Claim) -> Iterator[tuple[str, str]]:
        """Those that request a percentage of 0, for which a scheduler has reserved 0 bytes.

        Volcano does, and HAMi up to 2.9 (``pkg/device/nvidia/device.go:555`` there); HAMi-core
        reads a limit of 0 as none. A MIG slot needs none.
        """
        key = self.key_set.percentage
        zero = {each.name for each in pod.containers if each.limits.get(key) == 0}
        for allocation in claim.allocations if zero else ():
            for share in allocation.shares if allocation.container in zero else ():
                if share.memory_bytes == 0 and not mig_slot(share.device):
                    yield allocation.container, share.device

    def claim(self, pod: Pod) -> Claim | None:
        """The claim in the annotations of either plugin, of any age. Raises ClaimError."""
        keys = self.key_set
        if pod.annotations.keys().isdisjoint((keys.devices, keys.to_allocate, legacy_format.INDEX)):
            return None
        requests = self.requests(pod)
        asking = frozenset(request.container for request in requests)
        claim = volcano_claim.read(pod, self.key_set, self.unit_bytes, asking)
        if claim is None and self._has_legacy:
            return legacy_format.claim(pod, requests)
        return claim

    def claim_keys(self, pod: Pod) -> tuple[str, ...]:
        """The annotations of either plugin's claim."""
        legacy = legacy_format.CLAIM if self._has_legacy else ()
        return tuple(sorted({*self.key_set.claim, *legacy} & pod.annotations.keys()))

    def annotations(
        self, claim: Claim, devices: Mapping[str, Device], containers: Sequence[str] = ()
    ) -> dict[str, str]:
        """The annotations of exactly this claim, see :func:`volcano_claim.write`."""
        return volcano_claim.write(claim, self.key_set, self.unit_bytes, devices, containers)

    def struck(self, pod: Pod, waiting: Collection[str]) -> str:
        """The text of ``to_allocate`` while these containers of the pod's claim still wait.

        See :func:`volcano_claim.struck_but`. Raises ClaimError.
        """
        key = self.key_set.to_allocate
        claim = self.claim(pod)
        held = claim.allocations if claim else ()
        shares = (allocation.shares for allocation in held if allocation.container in waiting)
        return volcano_claim.struck_but(pod, key, self.unit_bytes, shares)

    def leftover(self, pod: Pod) -> LeftoverClaim | None:
        """The rest of ``devices-to-allocate``.

        The struck annotation keeps its separators, which every reader of it expects.
        """
        keys, text = self.key_set, pod.annotations.get(self.key_set.to_allocate, "")
        rest = volcano_claim.struck(text) if text else text
        if rest == text:
            return None
        success = pod.annotations.get(keys.bind_phase) == volcano_claim.SUCCESS
        is_served = success and keys.devices in pod.annotations
        served = f"{keys.bind_phase}: {volcano_claim.SUCCESS}" if is_served else ""
        return LeftoverClaim(keys.to_allocate, text, rest, served)

    def edits(
        self,
        pod: PodRef,
        allocation: Allocation,
        devices: Mapping[str, Device],
        *,
        cache_name: str = "vgpu",
        preload: bool = True,
    ) -> ContainerEdits:
        """The answer of Allocate, see :func:`volcano_env.edits`. Raises ClaimError.

        The originals make up a ``cache_name`` for each call.
        """
        return volcano_env.edits(
            pod,
            allocation,
            devices,
            self.paths or self.key_set.paths,
            cache_name=cache_name,
            preload=preload,
            oversubscribe=self.oversubscribe,
            core_policy=self.core_policy,
        )

    def _request(self, pod: Pod, container: Container) -> Request | None:
        """Of a request with both memory and percentage, one counts. Raises ClaimError.

        An amount of 0 requests nothing: memory of 0 is all memory, cores of 0 are no cores of its
        own. HAMi reads a percentage of 0 so, too (2.10, ``device.go:563``); before, its scheduler
        reserved 0 bytes, and the container had no limit. A percentage that is no valid one counts
        as all memory, which such a container can use (:meth:`inadmissible`).
        """
        keys = self.key_set
        requested = _amounts(pod, container, keys.quantities)
        if keys.number not in requested and requested.keys().isdisjoint(keys.implied_by):
            return self._legacy_request(pod, container)
        defaults = self.defaults
        memory: int | None = requested.get(keys.memory) or None
        memory_bytes = None if memory is None else memory * self._requested_unit
        percentage: int | None = requested.get(keys.percentage, keys.no_percentage)
        has_percentage = percentage != keys.no_percentage
        if memory is None and not has_percentage and defaults.memory_mib:
            memory_bytes = defaults.memory_mib * MIB
        if memory_bytes is None or (has_percentage and keys.percentage_wins):
            memory_bytes = None
            percentage = percentage if percentage in range(1, _WHOLE) else _WHOLE
        else:
            percentage = None
        cores = requested.get(keys.cores, defaults.cores_percent)
        return Request(
            container.name,
            requested.get(keys.number, defaults.count),
            memory_bytes=memory_bytes,
            memory_percent=percentage,
            cores_milli=min(cores, keys.most_cores or cores) * MILLI_PER_PERCENT,
            kind=container.kind,
        )

    def _legacy_request(self, pod: Pod, container: Container) -> Request | None:
        if not self._has_legacy:
            return None
        names = (legacy_format.MEMORY, legacy_format.NUMBER)
        memory, number = map(_amounts(pod, container, names).get, names)
        return legacy_format.request(container, memory, number, self._requested_unit)

    # ------------------------------------------------------------ nodes

    def devices(self, node: Node) -> tuple[Device, ...]:
        """The registered GPUs; without a register those that the older plugin counts."""
        registered = volcano_node.registrations(node, self.key_set)
        if not registered and self._has_legacy:
            return legacy_format.devices(node, self._requested_unit)
        return volcano_node.devices(registered, self.unit_bytes)

    def register(self, devices: tuple[Device, ...], mode: str = HAMI_CORE) -> dict[str, str]:
        """The node's annotation that registers these devices. Raises ClaimError."""
        gpus = (volcano_node.registered(device, self.unit_bytes, mode) for device in devices)
        return {self.key_set.register: volcano_node.registration(gpus, self.key_set)}

    def locks(self, node: Node) -> tuple[NodeLock, ...]:
        """The node locks in force; a lock that cannot be read is still one."""
        return volcano_node.locks(node, self.key_set)

    def needs_lock(self, node: Node) -> bool:
        """Whether HAMi's own plugin has registered the node's GPUs."""
        return volcano_node.is_of_original_plugin(node, self.key_set)

    def handshake(self, node: Node) -> Handshake | None:
        """The last heartbeat between plugin and scheduler. Raises ClaimError."""
        return volcano_node.handshake(node, self.key_set)

    # ------------------------------------------------------------ the kubelet

    def slot(self, resource: str, device_id: str) -> Slot:
        """What ``<uuid>-<i>``, ``<uuid>-memory-<i>`` or ``<uuid>-core-<i>`` stands for.

        Raises ClaimError.
        """
        kinds = self._kinds
        match = _DEVICE_ID.fullmatch(device_id)
        if resource not in kinds or match is None or (match["kind"] or "") != kinds[resource]:
            raise ClaimError("kubelet", resource, device_id, "not an ID of this resource")
        return Slot(resource, match["device"], int(match["ordinal"]))

    def device_ids(self, resource: str, devices: tuple[Device, ...]) -> Iterator[str]:
        """Shares, units of memory or percents of cores of each device; none of another resource."""
        keys = self.key_set
        kind = dict(keys.advertised).get(resource)
        for device in devices if kind is not None else ():
            amounts = {
                keys.number: SPLIT_COUNT if device.slots is None else device.slots,
                keys.memory: (device.memory_bytes or 0) // self.unit_bytes,
                keys.cores: device.cores_milli // MILLI_PER_PERCENT,
            }
            for ordinal in range(amounts[resource]):
                yield f"{device.uuid}{kind}-{ordinal}"

    @cached_property
    def _kinds(self) -> dict[str, str]:
        legacy = {legacy_format.MEMORY: ""} if self._has_legacy else {}
        return dict(self.key_set.advertised) | legacy


def _as_share(request: Request, share: Share | None) -> Request:
    """The request with the amounts of the share; without one they are unknown."""
    if request.memory_bytes is not None:
        return request
    if share is None:
        return structs.replace(request, memory_percent=None, has_unknown_amounts=True)
    return structs.replace(
        request,
        memory_bytes=share.memory_bytes,
        memory_percent=None,
        cores_milli=share.cores_milli or 0,
    )


def _amounts(pod: Pod, container: Container, resources: Sequence[str]) -> dict[str, int]:
    """The requested amount of each resource. Raises ClaimError."""
    return {
        name: amount(pod, container, name, MOST)
        for name in resources
        if name in container.limits or name in container.broken
    }
