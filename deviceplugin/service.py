"""The plugin on a node whose GPUs are known: all its parts, started and stopped in order.

Before anything is offered to the kubelet it is known who holds what. What changes later comes in
by three ways: the kubelet's checkpoint, the API server's watch, the driver's health. Each wakes up
the binder, which alone changes the allocation state.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from operator import is_not

import msgspec

from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.allocator import Legacy, PodAllocator
from deviceplugin.allocate.binder import Binder
from deviceplugin.allocate.binder_events import BinderEvents, Mend
from deviceplugin.allocate.collectable import Alone, collectable, over
from deviceplugin.allocate.prestart import BinderState, Key
from deviceplugin.apiserver.desired_state import DesiredState
from deviceplugin.apiserver.events import EventReason
from deviceplugin.apiserver.pods import Pods
from deviceplugin.apiserver.status_manager import StatusManager
from deviceplugin.failpoints import Failpoint
from deviceplugin.flags import PluginOptions
from deviceplugin.health.device_health import Health
from deviceplugin.kubelet.advertised import Offers
from deviceplugin.kubelet.container_devices import Stamp, read_assignments, stamp
from deviceplugin.kubelet.device_lists import TooLong
from deviceplugin.kubelet.registrar import Registrar
from deviceplugin.metrics import PluginMetrics
from deviceplugin.model import ContainerDevices
from deviceplugin.ports import Injector, SchemeServices
from deviceplugin.reasons import BindRefusal, BindRefused
from deviceplugin.recovery.checkpoint import CheckpointFile
from deviceplugin.recovery.node_probe import NodeProbe, ProbePaths, live_pods, pods_with_cgroup
from deviceplugin.recovery.startup import Own, Recovery
from deviceplugin.scheme_adapter import SchemeAdapter
from vgpu.kube.client import ApiClient
from vgpu.kube.informer import Informer
from vgpu.kube.objects import ContainerState, Node, Pod


class Outside(msgspec.Struct, frozen=True):
    """What the plugin has to do with.

    Attributes:
        cluster: the API server.
        pods: this node's.
        node: this node's object, alone in a mirror.
        injector: how containers are given their share.
        checkpoint: our own; loaded, and ours alone.
        own: what was in it.
        keeper: the scheme's, if it has one.
        mend: see :data:`deviceplugin.allocate.binder_events.Mend`.
    """

    cluster: ApiClient
    pods: Pods
    node: Informer[Node]
    injector: Injector
    checkpoint: CheckpointFile
    own: Own
    keeper: SchemeServices | None
    mend: Mend


_MadeOf = tuple[BinderState, Mapping[str, Pod], Node | None]


class KubeletTable:
    """The kubelet's checkpoint; a :class:`deviceplugin.allocate.binder.KubeletDevices`."""

    def __init__(self, path: str, resource: str) -> None:
        self._path = path
        self._resource = resource

    def stamp(self) -> Stamp | None:
        """See :func:`deviceplugin.kubelet.container_devices.stamp`."""
        return stamp(self._path)

    def read(self) -> tuple[ContainerDevices, ...]:
        """See :func:`deviceplugin.kubelet.container_devices.read_assignments`."""
        return read_assignments(self._path, self._resource)


class Service:
    """See the module. Its metrics are made of the public parts."""

    def __init__(
        self,
        options: PluginOptions,
        adapter: SchemeAdapter,
        outside: Outside,
        numbers: PluginMetrics,
        *,
        legacy: Legacy | None,
        at: Failpoint,
    ) -> None:
        """``legacy`` answers in place of a refusal; ``at`` is told of every step."""
        self.adapter = adapter
        self._options = options
        self._outside = outside
        self._numbers = numbers
        self._health = Health.at_start()
        self._alone = Alone()
        self._last: tuple[_MadeOf, DesiredState] | None = None
        self.status_manager = StatusManager(outside.cluster, adapter, self._to_tell, at)
        self.binder = Binder(
            KubeletTable(options.kubelet_checkpoint, adapter.resources[0]),
            outside.pods,
            outside.injector,
            outside.checkpoint,
            BinderEvents(
                numbers, self.status_manager, outside.keeper, self._living, mend=outside.mend
            ),
            adapter=adapter,
            node=options.node_name,
            gone=self._gone,
            at=at,
        )
        allocator = PodAllocator(
            self.binder,
            outside.pods,
            numbers,
            adapter=adapter,
            node=options.node_name,
            injector=outside.injector,
            at=at,
            prestart_seconds=options.prestart_timeout,
            legacy=legacy,
        )
        self.registrar = Registrar(
            options.kubelet_dir, options.scheme, adapter.resources, allocator, cdi=options.cdi
        )
        self.offers = Offers(adapter, self.registrar.offer, self._too_long)

    def start(self, health: Health) -> None:
        """Recover with these GPUs, then serve."""
        self._health = health
        self.offers.become(health)
        recovery = Recovery(
            self.adapter,
            partial(NodeProbe, self.adapter.codec, self._options.node_name, _places(self._options)),
            self._outside.pods,
            own=self._outside.own,
            injector=self._outside.injector,
            checkpoint=self._options.kubelet_checkpoint,
        )
        if self._outside.keeper:
            self._outside.keeper.start()  # first: it is told of who is there when they are known
        self.binder.start(
            lambda known: recovery.run(self._health.devices, self.offers.devices(), known)
        )
        self.status_manager.start()
        # The kubelet may ask as soon as it is told; Allocate then waits for the recovery.
        self.registrar.start()

    def changed(self, health: Health) -> None:
        """The GPUs, or their health, are others now."""
        self._health = health
        self.binder.offer(self.offers.become(health))
        self.status_manager.wake()

    def stop(self) -> None:
        """Serve no more; the kubelet takes the resources for unhealthy, and containers run on."""
        self.binder.stop()  # first: no call of the kubelet's waits for it then
        self.registrar.stop()
        if self._outside.keeper:
            self._outside.keeper.stop()
        self.status_manager.stop()

    def ready(self) -> bool:
        """Whether it knows who holds what, and the kubelet takes all that can be offered."""
        registered = {state.resource for state in self.registrar.states() if state.registered}
        servable = self.offers.servable()
        return self.binder.recovered(0) and bool(servable) and servable <= registered

    def state(self) -> BinderState | None:
        """What the binder last found; None before the recovery."""
        try:
            return self.binder.state()
        except BindRefused:
            return None

    def unbound(self) -> Mapping[BindRefusal, int]:
        """Containers of pods that are there, and are not bound, by reason."""
        state = self.state()
        refused = state.refusals.values() if state else ()
        return Counter(error.why for error in refused if error.pod is not None)

    # ------------------------------------------------------------ what parts ask of one another

    def _too_long(self, found: TooLong) -> None:
        node = self._this_node()
        if node:
            self.status_manager.say(node, EventReason.NOT_REGISTERED, str(found))

    def _this_node(self) -> Node | None:
        nodes = self._outside.node.state()
        return nodes.objects.get(self._options.node_name) if nodes.synced else None

    def _living(self) -> frozenset[str] | None:
        known, alive = self._outside.pods.known(), live_pods(self._options.path_cgroupfs)
        if known is None or alive is None:
            return None
        return frozenset(known) | alive

    def _gone(
        self, state: BinderState, pods: Mapping[str, Pod] | None, shown: Collection[str]
    ) -> Iterable[str]:
        known = None if pods is None else pods.values()
        assigned = state.assigned_pods
        alive = pods_with_cgroup(self._options.path_cgroupfs)
        allocation_state, now = state.allocation_state, time.time()
        alone = (
            over(allocation_state, known, now, shown=shown) if alive == frozenset() else frozenset()
        )
        past = self._alone.past(alone, time.monotonic())
        return (
            collectable(allocation_state, known, alive or None, assigned, now, shown=shown) | past
        )

    def _to_tell(self) -> DesiredState | None:
        """What others are to be told of; None while it is not known. The status manager's thread
        asks.

        It asks several times a round, and between two of them there is rarely anything new.
        """
        state, pods, node = self.state(), self._outside.pods.known(), self._this_node()
        if state is None or pods is None:
            return None
        made_of = state, pods, node
        if self._last is None or any(map(is_not, made_of, self._last[0])):
            self._last = made_of, self._look(*made_of)
        return self._last[1]

    def _look(self, state: BinderState, pods: Mapping[str, Pod], node: Node | None) -> DesiredState:
        refused = frozenset(uid for (uid, _), error in state.refusals.items() if error.final)
        allocation_state, resource = state.allocation_state, self.adapter.resources[0]
        answered = _answered(state)
        asked = {uid for uid, _ in answered} | allocation_state.tenants.keys()
        served = frozenset(
            uid
            for uid in asked & pods.keys()
            if _serves(resource, pods[uid], allocation_state, answered)
        )
        return DesiredState(
            devices=allocation_state.devices,
            named=allocation_state.named,
            tenants=allocation_state.tenants,
            pods=pods,
            node=node,
            served=served | refused,
            refused=refused,
        )


def _answered(state: BinderState) -> frozenset[Key]:
    """Containers that the kubelet has an answer for and that are not bound by us.

    They are refused, be it for now, or somebody else has answered. Who is refused while the API
    server does not show it is not looked at yet.
    """
    refused = (key for key, error in state.refusals.items() if error.pod is not None)
    theirs = ((one.pod_uid, one.container) for one in state.all_assignments() if not one.name)
    return frozenset((*refused, *theirs))


def _serves(
    resource: str, pod: Pod, allocation_state: AllocationState, answered: Collection[Key]
) -> bool:
    """Whether the kubelet will not ask for it again: it has an answer for every container."""
    uid = pod.kubelet_uid
    tenant = allocation_state.tenants.get(uid)
    return all(
        (uid, one.name) in answered
        or (tenant is not None and tenant.binding(one.name) is not None)
        or _has_run(pod, one.name)
        for one in pod.containers
        if one.limits.get(resource, 0)
    )


def _has_run(pod: Pod, container: str) -> bool:
    return any(
        one.name == container and one.state is not ContainerState.WAITING for one in pod.statuses
    )


def _places(options: PluginOptions) -> ProbePaths:
    """Where recovery looks."""
    return ProbePaths(
        procfs=options.path_procfs,
        cgroupfs=options.path_cgroupfs,
        log_dir=options.kubelet_log_dir,
        checkpoint=options.kubelet_checkpoint,
        pod_resources=options.kubelet_pod_resources,
        gaia_dir=options.gaia_limits_dir,
    )
