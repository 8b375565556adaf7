"""The plugin on a node whose GPUs are known: all its parts, started and stopped in order.

The recovery finds out who holds what before anything is offered to the kubelet. Later changes come
from three sources: the kubelet's checkpoint, the API server's watch, the driver's health. Each
wakes up the binder, which alone changes the allocation state.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from operator import is_not

import msgspec

from deviceplugin.allocate.allocator import Legacy, PodAllocator
from deviceplugin.allocate.binder import Binder
from deviceplugin.allocate.binder_events import BinderEvents, Repair
from deviceplugin.allocate.binder_state import BinderState, desired_state_of
from deviceplugin.allocate.binding_writer import AllocateContext
from deviceplugin.allocate.checkpoint import CheckpointFile
from deviceplugin.allocate.ended_pods import EndedPods
from deviceplugin.apiserver.desired_state import DesiredState
from deviceplugin.apiserver.pods import Pods
from deviceplugin.apiserver.status_manager import StatusManager
from deviceplugin.apiserver.writes import EventReason
from deviceplugin.builders.registry import builder_of
from deviceplugin.failpoints import Failpoint
from deviceplugin.flags import PluginOptions
from deviceplugin.health.device_health import Health
from deviceplugin.kubelet.container_devices import KubeletTable
from deviceplugin.kubelet.device_lists import TooLong
from deviceplugin.kubelet.offers import Offers
from deviceplugin.kubelet.registrar import Registrar
from deviceplugin.metrics import PluginMetrics
from deviceplugin.ports import Injector, SchemeServices
from deviceplugin.reasons import BindRefusal, BindRefused
from deviceplugin.recovery.node_probe import NodeProbe, live_pods, pods_with_cgroup
from deviceplugin.recovery.startup import CheckpointContent, Recovery
from deviceplugin.scheme_adapter import SchemeAdapter
from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.informer import Informer
from vgpu.model.objects import Node, Pod
from vgpu.sources.node_sources import NodePaths


class PluginConnections(msgspec.Struct, frozen=True):
    """What the plugin uses beyond its own process.

    Attributes:
        cluster: the API server.
        pods: this node's pods.
        node: an informer of this node's object alone.
        injector: how containers get their share.
        checkpoint: our own; loaded, and locked for us.
        content: of the checkpoint.
        services: the scheme's services, if it has any.
        repair: see :data:`deviceplugin.allocate.binder_events.Repair`.
    """

    cluster: ApiClient
    pods: Pods
    node: Informer[Node]
    injector: Injector
    checkpoint: CheckpointFile
    content: CheckpointContent
    services: SchemeServices | None
    repair: Repair


_StateInputs = tuple[BinderState, Mapping[str, Pod], Node | None]


class Service:
    """The service, see the module. The metrics read its public parts."""

    def __init__(
        self,
        options: PluginOptions,
        adapter: SchemeAdapter,
        connections: PluginConnections,
        numbers: PluginMetrics,
        *,
        legacy: Legacy | None,
        failpoint: Failpoint,
    ) -> None:
        """``legacy`` answers in place of a refusal; ``failpoint`` is called at every step."""
        self.adapter = adapter
        self._options = options
        self._connections = connections
        self._numbers = numbers
        self._health = Health.at_start()
        self._ended = EndedPods(
            partial(pods_with_cgroup, options.path_cgroupfs),
            clock=time.time,
            monotonic=time.monotonic,
        )
        self._last: tuple[_StateInputs, DesiredState] | None = None
        self.status_manager = StatusManager(
            connections.cluster, adapter, self._desired_state, failpoint
        )
        context = AllocateContext(
            adapter, options.node_name, connections.pods, connections.injector, failpoint
        )
        self.binder = Binder(
            context,
            KubeletTable(options.kubelet_checkpoint, adapter.resources[0]),
            connections.checkpoint,
            BinderEvents(
                numbers,
                self.status_manager,
                connections.services,
                self._live_pods,
                repair=connections.repair,
            ),
            self._gone,
        )
        allocator = PodAllocator(
            context,
            self.binder,
            numbers,
            prestart_seconds=options.prestart_timeout,
            legacy=legacy,
        )
        self.registrar = Registrar(
            options.kubelet_dir, options.scheme, adapter.resources, allocator, cdi=options.cdi
        )
        unit_of = partial(builder_of(adapter.scheme).unit_of, adapter)
        self.offers = Offers(adapter, unit_of, self.registrar.offer, self._too_long)

    def start(self, health: Health) -> None:
        """Recover with these GPUs, then serve."""
        self._health = health
        self.offers.update(health)
        recovery = Recovery(
            self.adapter,
            partial(NodeProbe, self.adapter.codec, self._options.node_name, _places(self._options)),
            self._connections.pods,
            content=self._connections.content,
            injector=self._connections.injector,
            checkpoint=self._options.kubelet_checkpoint,
        )
        if self._connections.services:
            # First: the recovery then hands it the admitted pods.
            self._connections.services.start()
        self.binder.start(
            lambda known: recovery.run(self._health.devices, self.offers.devices(), known)
        )
        self.status_manager.start()
        # The kubelet may call as soon as we register; Allocate then waits for the recovery.
        self.registrar.start()

    def changed(self, health: Health) -> None:
        """The GPUs or their health have changed."""
        self._health = health
        self.binder.offer(self.offers.update(health))
        self.status_manager.wake()

    def stop(self) -> None:
        """Stop serving; the kubelet then counts the resources as unhealthy. Containers run on."""
        self.binder.stop()  # first: then no call of the kubelet's waits for it
        self.registrar.stop()
        if self._connections.services:
            self._connections.services.stop()
        self.status_manager.stop()

    def ready(self) -> bool:
        """Whether the recovery is done and the kubelet takes all resources that can be offered."""
        registered = {state.resource for state in self.registrar.states() if state.registered}
        servable = self.offers.servable()
        return self.binder.recovered(0) and bool(servable) and servable <= registered

    def state(self) -> BinderState | None:
        """The state of the binder's last look; None before the recovery."""
        try:
            return self.binder.state()
        except BindRefused:
            return None

    def unbound(self) -> Mapping[BindRefusal, int]:
        """Number of unbound containers of known pods, by reason."""
        state = self.state()
        refused = state.refusals.values() if state else ()
        return Counter(error.why for error in refused if error.pod is not None)

    # ------------------------------------------------------------ callbacks of the parts

    def _too_long(self, found: TooLong) -> None:
        node = self._this_node()
        if node:
            self.status_manager.record_event(node, EventReason.NOT_REGISTERED, str(found))

    def _this_node(self) -> Node | None:
        nodes = self._connections.node.state()
        return nodes.objects.get(self._options.node_name) if nodes.synced else None

    def _live_pods(self) -> frozenset[str] | None:
        known, alive = self._connections.pods.known(), live_pods(self._options.path_cgroupfs)
        if known is None or alive is None:
            return None
        return frozenset(known) | alive

    def _gone(
        self, state: BinderState, pods: Mapping[str, Pod] | None, shown: Collection[str]
    ) -> Iterable[str]:
        known = None if pods is None else pods.values()
        return self._ended.gone(state.allocation_state, known, state.assigned_pods, shown)

    def _desired_state(self) -> DesiredState | None:
        """The desired state of the API server's objects; None while it is not known.

        The status manager's thread asks for it several times a round, and it rarely changes in
        between.
        """
        state, pods, node = self.state(), self._connections.pods.known(), self._this_node()
        if state is None or pods is None:
            return None
        inputs = state, pods, node
        if self._last is None or any(map(is_not, inputs, self._last[0])):
            self._last = inputs, desired_state_of(self.adapter.resources[0], *inputs)
        return self._last[1]


def _places(options: PluginOptions) -> NodePaths:
    """The paths that the recovery reads."""
    return NodePaths(
        procfs=options.path_procfs,
        cgroupfs=options.path_cgroupfs,
        log_dir=options.kubelet_log_dir,
        checkpoint=options.kubelet_checkpoint,
        pod_resources=options.kubelet_pod_resources,
        limit_dirs=options.limit_dirs,
    )
