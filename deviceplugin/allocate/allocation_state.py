"""The plugin's allocation records: which pods are admitted, which container is bound to what.

A value: every function returns a new allocation state, and a function that refuses changes nothing.
All decisions about a container are here, and nothing here waits, reads or writes. For a state s
with devices D, admitted pods P, the ``unbooked`` of them U, and every order of allocating, binding,
starting, restarting and leaving:

- No device is allocated beyond what it has. For d ∈ D and each of memory, cores and slots, with
  ``held`` a pod's shares at its peak (:mod:`vgpu.model.allocation`):
  ``Σ held(p, d) over p ∈ P - U ≤ capacity(d)``, and no pod is admitted to d while some u ∈ U
  holds a share of it.
- A container has at most one binding, and a name belongs to one binding:
  ``b.container = b'.container within p ⇒ b = b'``, and ``b.name = b'.name over all of P ⇒ b = b'``.
- A binding has its own pod's claimed shares: ``shares(b) = shares(allocation(p, b.container))``;
  an init container without an allocation has the devices of one app container of its pod, and no
  more of each than that container has.
- A repetition changes nothing: ``s.admitted(p) = s`` for p ∈ P, ``s.bound(a) = s`` where
  a is bound under its name, ``s.without(p) = s`` for p ∉ P.
- The devices and the admitted pods determine the state: ``over(D, P) = s``.

The start order of containers decides what init containers hold and use.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, Self

import msgspec
from msgspec.structs import replace

from deviceplugin.capacity import CapacityError, CapacityRefusal, NodeCapacity
from deviceplugin.model import AdmittedPod, AllocationConflict, Binding, ContainerDevices
from deviceplugin.reasons import BindRefusal, BindRefused
from vgpu.model.allocation import Allocation, Device, Request, Share
from vgpu.model.names import ContainerKind
from vgpu.model.objects import Container, Pod
from vgpu.model.units import count

_NAMED: Final = 4
"""Maximum number of holders that a refusal names."""


class AllocationState(msgspec.Struct, frozen=True):
    """One node's allocation state. Made by :meth:`of` or :meth:`over`.

    Attributes:
        devices: the node's, as they are shared, with their health.
        named: the devices by every name that only one of them has.
        admitted_pods: admitted pods by the UID that the node knows the pod by.
        capacity: the shares that admitted pods hold, by that UID; without shares of a lost GPU.
        unbooked: UIDs of admitted pods that hold more than there is, which the plugin found at its
            start or when a GPU became smaller: it allocates nothing more on their devices.
    """

    devices: tuple[Device, ...]
    named: Mapping[str, Device]
    admitted_pods: Mapping[str, AdmittedPod]
    capacity: NodeCapacity
    unbooked: frozenset[str]

    @classmethod
    def of(cls, devices: Iterable[Device]) -> Self:
        """An allocation state without admitted pods. Raises CapacityError where two devices have
        the same UUID.
        """
        devices = tuple(devices)
        times = Counter(name for device in devices for name in set(device.names))
        named = {name: device for device in devices for name in device.names if times[name] == 1}
        return cls(devices, named, {}, NodeCapacity.of(devices), frozenset())

    @classmethod
    def over(
        cls, devices: Iterable[Device], admitted_pods: Iterable[AdmittedPod]
    ) -> tuple[Self, tuple[AllocationConflict, ...]]:
        """The allocation state of admitted pods that exist already, whatever they hold.

        An impossible allocation is a conflict; if admitted pods hold too much of a device, the
        conflict is of those that were admitted last. Raises CapacityError as :meth:`of`.
        """
        allocation_state = cls.of(devices)
        capacity, unbooked = allocation_state.capacity, set()
        conflicts = []
        admitted_before = {admitted_pod.pod.uid: admitted_pod for admitted_pod in admitted_pods}
        for uid in sorted(admitted_before, key=lambda uid: (admitted_before[uid].since, uid)):
            admitted_pod = admitted_before[uid]
            there = tuple(
                share for share in admitted_pod.held if share.device in allocation_state.named
            )
            if lost := sorted(
                {share.device for share in admitted_pod.shares} - allocation_state.named.keys()
            ):
                conflicts.append(
                    AllocationConflict(admitted_pod.pod, f"not on this node: {', '.join(lost)}")
                )
            try:
                capacity = capacity.hold(uid, there)
            except CapacityError as error:
                unbooked.add(uid)
                conflicts.append(
                    AllocationConflict(admitted_pod.pod, f"it holds more than there is: {error}")
                )
        whole = replace(
            allocation_state,
            admitted_pods=admitted_before,
            capacity=capacity,
            unbooked=frozenset(unbooked),
        )
        return whole, tuple(conflicts)

    @property
    def choosable(self) -> tuple[Device, ...]:
        """The devices for an adapter that chooses; those of unbooked pods are unhealthy, too."""
        spent = {share.device for uid in self.unbooked for share in self.admitted_pods[uid].shares}
        return tuple(
            replace(device, healthy=False) if device.uuid in spent else device
            for device in self.devices
        )

    # ------------------------------------------------------------ admitted pods

    def admitted(self, pod: Pod, allocations: tuple[Allocation, ...], now: float) -> Self:
        """The allocation state with the pod admitted; unchanged if it is.

        ``allocations`` name devices by any of their names. Raises BindRefused UNKNOWN_DEVICE,
        UNHEALTHY_DEVICE, NO_ROOM, MALFORMED.
        """
        ref = replace(pod.ref, uid=pod.kubelet_uid)
        if ref.uid in self.admitted_pods:
            return self
        allocations = tuple(
            replace(
                allocation, shares=tuple(self._by_uuid(share, pod) for share in allocation.shares)
            )
            for allocation in allocations
        )
        admitted_pod = AdmittedPod(ref, in_start_order(allocations, pod), since=now)
        for device in sorted({share.device for share in admitted_pod.shares}):
            self._require_healthy(device, pod)
            holders = self._unbooked_on(device)
            if holders:
                detail = f"{device} is allocated beyond what it has, to {holders}"
                raise BindRefused(BindRefusal.NO_ROOM, detail, pod.ref)
        try:
            capacity = self.capacity.hold(ref.uid, admitted_pod.held)
        except CapacityError as error:
            why = (
                BindRefusal.MALFORMED
                if error.reason is CapacityRefusal.NEGATIVE
                else BindRefusal.NO_ROOM
            )
            held = self._holders_on(error.device)
            detail = f"{error}; held by {held}" if held else str(error)
            raise BindRefused(why, detail, pod.ref) from error
        return replace(
            self, admitted_pods={**self.admitted_pods, ref.uid: admitted_pod}, capacity=capacity
        )

    def without(self, uid: str) -> Self:
        """The allocation state without the pod; unchanged if it is not admitted."""
        if uid not in self.admitted_pods:
            return self
        admitted_pods = {
            other: admitted_pod
            for other, admitted_pod in self.admitted_pods.items()
            if other != uid
        }
        if self.unbooked:  # there may be room now for those who held too much
            return self.over(self.devices, admitted_pods.values())[0]
        return replace(self, admitted_pods=admitted_pods, capacity=self.capacity.release(uid))

    def seen(self, pods: Iterable[Pod], booted_at: float) -> Self:
        """The allocation state without the shares of init containers that have succeeded; unchanged
        if none has.

        ``booted_at`` is when the node started, in unix seconds.
        """
        known = ((self.admitted_pods.get(pod.kubelet_uid), pod) for pod in pods)
        renewed = {
            admitted_pod.pod.uid: after
            for admitted_pod, pod in known
            if admitted_pod is not None
            and (after := seen(admitted_pod, pod, booted_at)) != admitted_pod
        }
        if not renewed:
            return self
        return self.over(self.devices, {**self.admitted_pods, **renewed}.values())[0]

    def with_devices(
        self, devices: Iterable[Device]
    ) -> tuple[Self, tuple[AllocationConflict, ...]]:
        """The allocation state with these devices, which may be new or have another health; the
        admitted pods stay.

        A share that no longer fits is a conflict: a GPU may be lost. Raises CapacityError as
        :meth:`of`.
        """
        return self.over(devices, self.admitted_pods.values())

    # ------------------------------------------------------------ containers

    def bound(
        self, assignment: ContainerDevices, pod: Pod, requests: Iterable[Request], now: float
    ) -> Self:
        """The allocation state with the container bound under the assignment's name; unchanged if
        it is bound so.

        The pod is admitted already, and the answer is one of ours. A container that had another
        name keeps its shares, even on unhealthy devices. Raises BindRefused NOT_ASKED, NO_CLAIM,
        OTHER_COUNT, UNKNOWN_DEVICE, UNHEALTHY_DEVICE, INTERNAL.
        """
        admitted_pod = self.admitted_pods[assignment.pod_uid]
        before = admitted_pod.binding(assignment.container)
        if before and before.name == assignment.name:
            return self
        self._require_unused(assignment, pod)
        shares = before.shares if before else self._shares(admitted_pod, assignment, pod, requests)
        binding = Binding(assignment.container, assignment.name, shares, now)
        others = tuple(
            old for old in admitted_pod.bindings if old.container != assignment.container
        )
        renewed = replace(admitted_pod, bindings=(*others, binding), foreign=False)
        return replace(self, admitted_pods={**self.admitted_pods, admitted_pod.pod.uid: renewed})

    def binding_of(self, assignment: ContainerDevices) -> Binding | None:
        """The binding under the assignment's name."""
        admitted_pod = self.admitted_pods.get(assignment.pod_uid)
        binding = admitted_pod.binding(assignment.container) if admitted_pod else None
        return binding if binding and assignment.name and binding.name == assignment.name else None

    def _shares(
        self,
        admitted_pod: AdmittedPod,
        assignment: ContainerDevices,
        pod: Pod,
        requests: Iterable[Request],
    ) -> tuple[Share, ...]:
        """The shares that the container may use. Raises BindRefused."""
        name = assignment.container
        request = next((asked for asked in requests if asked.container == name), None)
        spec = next((container for container in pod.containers if container.name == name), None)
        allocation = admitted_pod.allocation(name)
        if spec is None or request is None:
            raise BindRefused(
                BindRefusal.NOT_ASKED, BindRefusal.NOT_ASKED.explanation, pod.ref, name
            )
        if allocation is not None and len(allocation.shares) != request.count:
            reserved = len(allocation.shares)
            detail = f"it asks for {count(request.count, 'device')}, and reserved are {reserved}"
            raise BindRefused(BindRefusal.OTHER_COUNT, detail, pod.ref, name)
        shares = (
            allocation.shares
            if allocation is not None
            else inherited(admitted_pod, spec, request, pod)
        )
        for share in shares:
            self._require_healthy(share.device, pod, name)
        return shares

    def _require_healthy(self, device: str, pod: Pod, container: str = "") -> None:
        """Raises BindRefused for a lost or unhealthy device: no container may start there."""
        known = self.named.get(device)
        if known is None:
            raise BindRefused(BindRefusal.UNKNOWN_DEVICE, f"{device} is lost", pod.ref, container)
        if not known.healthy:
            raise BindRefused(
                BindRefusal.UNHEALTHY_DEVICE, f"{device} is unhealthy", pod.ref, container
            )

    def _require_unused(self, assignment: ContainerDevices, pod: Pod) -> None:
        """Raises BindRefused if another container has the name: this one would get its shares.

        The names are random, so this is impossible while the kubelet's checkpoint is right.
        """
        for admitted_pod in self.admitted_pods.values():
            for binding in admitted_pod.bindings:
                if binding.name == assignment.name:
                    holder = admitted_pod.pod
                    whose = f"{holder.namespace}/{holder.name} {binding.container}"
                    detail = f"the kubelet has the answer {binding.name} twice; {whose} has it"
                    raise BindRefused(BindRefusal.INTERNAL, detail, pod.ref, assignment.container)

    # ------------------------------------------------------------ holders of devices

    def _by_uuid(self, share: Share, pod: Pod) -> Share:
        device = self.named.get(share.device)
        if device is None or not device.uuid:
            known = ", ".join(sorted(device.uuid for device in self.devices)) or "none"
            detail = f"there is no device {share.device}; there are {known}"
            raise BindRefused(BindRefusal.UNKNOWN_DEVICE, detail, pod.ref)
        return replace(share, device=device.uuid)

    def _unbooked_on(self, device: str) -> str:
        return _names(self.admitted_pods[uid] for uid in self.unbooked if self._uses(uid, device))

    def _holders_on(self, device: str) -> str:
        return _names(
            self.admitted_pods[uid] for uid in self.admitted_pods if self._uses(uid, device)
        )

    def _uses(self, uid: str, device: str) -> bool:
        return any(share.device == device for share in self.admitted_pods[uid].shares)


def _names(admitted_pods: Iterable[AdmittedPod]) -> str:
    names = sorted(
        f"{admitted_pod.pod.namespace}/{admitted_pod.pod.name}" for admitted_pod in admitted_pods
    )
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + rest


def seen(admitted_pod: AdmittedPod, pod: Pod, booted_at: float) -> AdmittedPod:
    """The admitted pod with the state of init containers from the pod's spec and status.

    After a boot of the node, at ``booted_at`` (unix seconds), init containers run again. A pod of
    another name is not the admitted one: anybody may write a static pod's UID.
    """
    if (pod.ref.namespace, pod.ref.name) != (admitted_pod.pod.namespace, admitted_pod.pod.name):
        return admitted_pod
    return replace(
        admitted_pod,
        allocations=in_start_order(admitted_pod.allocations, pod),
        initialized=admitted_pod.initialized or pod.initialized(booted_at),
    )


def in_start_order(allocations: Iterable[Allocation], pod: Pod) -> tuple[Allocation, ...]:
    """The allocations with container kinds; app containers come last, others as in the spec."""
    kinds = {container.name: container.kind for container in pod.containers}
    place = {name: position for position, name in enumerate(kinds)}
    known = [
        replace(allocation, kind=kinds.get(allocation.container, allocation.kind))
        for allocation in allocations
    ]
    first = [allocation for allocation in known if allocation.kind is not ContainerKind.APP]
    first.sort(key=lambda allocation: place.get(allocation.container, -1))
    return (*first, *(allocation for allocation in known if allocation.kind is ContainerKind.APP))


def inherited(
    admitted_pod: AdmittedPod, container: Container, request: Request, pod: Pod
) -> tuple[Share, ...]:
    """The shares that an init container uses before the app containers. Raises BindRefused.

    The schedulers reserve nothing for it. It gets the devices of the first app container that has
    as many reserved devices, with as much memory and as many cores of each as it asks for. It gets
    no sidecar's devices, which are in use at that time.
    """
    if container.kind is not ContainerKind.INIT:
        detail = f"no devices are reserved for this {container.kind} container"
        raise BindRefused(BindRefusal.NO_CLAIM, detail, pod.ref, container.name)
    for allocation in admitted_pod.allocations:
        if (
            allocation.container in pod.apps
            and len(allocation.shares) == request.count
            and all(_covers(share, request) for share in allocation.shares)
        ):
            return tuple(
                Share(
                    share.device,
                    request.memory_bytes or share.memory_bytes,
                    request.cores_milli or share.cores_milli,
                )
                for share in allocation.shares
            )
    detail = "an init container may ask for no more than one of the containers after it"
    raise BindRefused(BindRefusal.NO_CLAIM, detail, pod.ref, container.name)


def _covers(share: Share, request: Request) -> bool:
    """Whether the share has the requested amounts; a percentage is of the whole device."""
    memory = share.memory_bytes is None or (request.memory_bytes or 0) <= share.memory_bytes
    return memory and request.cores_milli <= (share.cores_milli or 0)
