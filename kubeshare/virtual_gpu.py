"""One virtual GPU: its holder pod, its tenants, its pods, and what they leave free. Pure.

users = tenants, and living pods whose SharePod is gone or is placed elsewhere
Σ request ≤ 1000 and Σ memory ≤ the GPU's, over the users
one UUID for all bound users

:class:`IdlePool` has which idle virtual GPUs a node keeps, by their number and by the time since
their last use.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

import msgspec

from kubeshare.model import POD_RUNNING, ClusterPod, GpuRequest, SharePod, VirtualGpuName
from kubeshare.placement import Demand, VirtualGpu, occupied
from vgpu.model.names import PodRef
from vgpu.model.objects import Pod
from vgpu.model.units import WHOLE_DEVICE_MILLI
from vgpu.schemes.kubeshare.codec import GPU_RESOURCE
from vgpu.schemes.kubeshare.gemini_config import MANAGER_PORTS
from vgpu.schemes.kubeshare.sharepod import Locality

HOLDER_SECONDS: Final = 60.0
"""Time without a GPU after which a holder pod counts as refused by kube-scheduler, in seconds."""


class GpuUser(msgspec.Struct, frozen=True):
    """A share in use. ``uid`` is the SharePod's; ``uuid`` its GPU's, "" before it is bound."""

    uid: str
    request: GpuRequest
    locality: Locality
    uuid: str
    port: int


class VirtualGpuState(msgspec.Struct, frozen=True, dict=True):
    """A virtual GPU.

    Attributes:
        name: its node and its GPUID.
        holder: its holder pod; None if there is none.
        tenants: the SharePods that use it.
        pods: the living pods that were created for SharePods on it.
        has_unread: whether an object that cannot be read may use it.
        is_closing: whether its holder is being deleted.
    """

    name: VirtualGpuName
    holder: ClusterPod | None = None
    tenants: tuple[SharePod, ...] = ()
    pods: tuple[ClusterPod, ...] = ()
    has_unread: bool = False
    is_closing: bool = False

    @cached_property
    def users(self) -> tuple[GpuUser, ...]:
        """All users, tenants first."""
        pods = {pod.share_pod_uid: pod for pod in self.pods}
        own = {tenant.ref.uid for tenant in self.tenants}
        unseen = ClusterPod(Pod(PodRef("", "", "")))
        tenants = [
            GpuUser(
                tenant.ref.uid,
                tenant.request,
                tenant.locality,
                tenant.bound or pods.get(tenant.ref.uid, unseen).uuid,
                tenant.port or pods.get(tenant.ref.uid, unseen).port,
            )
            for tenant in self.tenants
            if tenant.request is not None
        ]
        left = [
            GpuUser(pod.share_pod_uid, pod.request, pod.locality, pod.uuid, pod.port)
            for pod in self.pods
            if pod.request is not None and pod.share_pod_uid not in own
        ]
        return (*tenants, *left)

    @property
    def bound_users(self) -> tuple[GpuUser, ...]:
        """The users whose GPU is decided."""
        return tuple(user for user in self.users if user.uuid)

    @property
    def uuid(self) -> str:
        """The UUID of the GPU that the holder holds; "" while it is unknown."""
        holder = self.holder
        runs = holder is not None and holder.pod.phase == POD_RUNNING and not holder.is_deleting
        return holder.uuid if holder is not None and runs else ""

    @property
    def awaits_report(self) -> bool:
        """Whether its holder pod runs and the node component has not reported its GPU yet."""
        holder = self.holder
        runs = holder is not None and holder.pod.phase == POD_RUNNING and not holder.is_deleting
        return holder is not None and runs and not holder.uuid

    @property
    def is_torn(self) -> bool:
        """Whether a user is bound to another GPU than the holder's."""
        return bool(self.uuid) and any(user.uuid != self.uuid for user in self.bound_users)

    @property
    def accepts(self) -> bool:
        """Whether another SharePod may be placed on it."""
        lacks_gpu = self._refused_since is not None
        return not (self.is_torn or self.is_closing or self.has_unread or lacks_gpu)

    def lacks_gpu(self, now: float) -> bool:
        """Whether kube-scheduler has found no free GPU for the holder, for HOLDER_SECONDS."""
        since = self._refused_since
        return since is not None and now - since >= HOLDER_SECONDS

    @property
    def _refused_since(self) -> float | None:
        """When kube-scheduler found no free GPU for the holder, in unix seconds; None if not."""
        holder = self.holder
        if holder is None or GPU_RESOURCE not in holder.pod.unschedulable:
            return None
        return holder.unschedulable_since

    def has_room_for(self, tenant: SharePod, memory_bytes: int | None) -> bool:
        """Whether a tenant fits beside the bound users; unknown memory is not checked."""
        if tenant.request is None:
            return True
        others = [user.request for user in self.bound_users if user.uid != tenant.ref.uid]
        milli = sum(request.request_milli for request in others) + tenant.request.request_milli
        claimed = sum(request.memory_bytes for request in others) + tenant.request.memory_bytes
        return milli <= WHOLE_DEVICE_MILLI and (memory_bytes is None or claimed <= memory_bytes)

    def candidate(self, memory_bytes: int, *, closed: bool = False) -> VirtualGpu:
        """The virtual GPU as a placement sees it."""
        demands = [
            Demand(user.request.request_milli, user.request.memory_bytes, user.locality)
            for user in self.users
        ]
        return occupied(*self.name, memory_bytes, demands, closed=closed)


def memory_of(gpu: VirtualGpuState, gpu_bytes: Mapping[str, int]) -> int | None:
    """The memory of its GPU in bytes; of the node's smallest GPU while its GPU is unknown.

    None if the node reports no GPUs.
    """
    smallest = min(gpu_bytes.values(), default=None)
    return gpu_bytes.get(gpu.uuid, smallest)


def taken_ports(users: Iterable[GpuUser]) -> frozenset[int]:
    """The ports of pod managers that these users have."""
    return frozenset(user.port for user in users if user.port)


def next_port(taken: Collection[int], last: int) -> int | None:
    """The next port after ``last`` that no pod of the node has, round robin; None if none is free.

    A port is not used again soon, so that an old connection reaches nobody else.
    """
    count = len(MANAGER_PORTS)
    begin = last - MANAGER_PORTS.start + 1 if last in MANAGER_PORTS else 0
    ports = (MANAGER_PORTS[(begin + step) % count] for step in range(count))
    return next((port for port in ports if port not in taken), None)


# ---------------------------------------------------------------- idle virtual GPUs


class IdlePool:
    """The idle virtual GPUs of all nodes. For one thread."""

    def __init__(self, number: int, seconds: float) -> None:
        """Each node keeps ``number``, for so many seconds at most; 0 seconds is no limit."""
        self._number = number
        self._seconds = seconds
        self._since: dict[VirtualGpuName, float] = {}

    def seconds_left(
        self, name: VirtualGpuName, idle: Sequence[VirtualGpuName], now: float
    ) -> float:
        """For how long a virtual GPU stays although nobody uses it; 0 if it does not.

        ``idle`` are the idle ones of its node.
        """
        if name not in idle:
            self._since.pop(name, None)
            return 0.0
        since = self._since.setdefault(name, now)
        if name not in idle[: self._number]:
            return 0.0
        return max(0.0, since + self._seconds - now) if self._seconds else math.inf
