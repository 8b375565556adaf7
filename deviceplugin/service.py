"""The plugin on a node whose cards are known: all its parts, started and stopped in order.

Before anything is offered to the kubelet it is known who holds what. What changes later comes in
by three ways: the kubelet's checkpoint, the API server's watch, the driver's health. Each wakes up
the binder, which alone changes the desk.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from operator import is_not

import msgspec

from deviceplugin.assignments import Stamp, read_assignments, stamp
from deviceplugin.binder import Binder
from deviceplugin.checkpoint import Checkpoint
from deviceplugin.clerk import DeskClerk, Legacy
from deviceplugin.desk import Desk
from deviceplugin.events import Word
from deviceplugin.flags import Options
from deviceplugin.gate import Key, State
from deviceplugin.health import Health
from deviceplugin.leaving import Alone, gone, over
from deviceplugin.lists import TooLong
from deviceplugin.looking import Looker, Places, live_pods, pods_with_cgroup
from deviceplugin.metrics import Numbers
from deviceplugin.model import Assignment
from deviceplugin.offers import Offers
from deviceplugin.pods import Pods
from deviceplugin.ports import Handout, Keeper
from deviceplugin.reasons import Refused, Why
from deviceplugin.recovering import Own, Recovery
from deviceplugin.registrar import Registrar
from deviceplugin.role import Role
from deviceplugin.steps import At
from deviceplugin.telling import Teller
from deviceplugin.tidings import Mend, Tidings
from deviceplugin.to_tell import Look
from vgpu.cluster import Cluster
from vgpu.kube import ContainerState, Node, Pod
from vgpu.sources.mirror import Mirror


class Outside(msgspec.Struct, frozen=True):
    """What the plugin has to do with.

    Attributes:
        cluster: the API server.
        pods: this node's.
        node: this node's object, alone in a mirror.
        handout: how containers are given their share.
        checkpoint: our own; loaded, and ours alone.
        own: what was in it.
        keeper: the scheme's, if it has one.
        mend: see :data:`deviceplugin.tidings.Mend`.
    """

    cluster: Cluster
    pods: Pods
    node: Mirror[Node]
    handout: Handout
    checkpoint: Checkpoint
    own: Own
    keeper: Keeper | None
    mend: Mend


_MadeOf = tuple[State, Mapping[str, Pod], Node | None]


class KubeletTable:
    """The kubelet's checkpoint; a :class:`deviceplugin.binder.Table`."""

    def __init__(self, path: str, resource: str) -> None:
        self._path = path
        self._resource = resource

    def stamp(self) -> Stamp | None:
        """See :func:`deviceplugin.assignments.stamp`."""
        return stamp(self._path)

    def read(self) -> tuple[Assignment, ...]:
        """See :func:`deviceplugin.assignments.read_assignments`."""
        return read_assignments(self._path, self._resource)


class Service:
    """See the module. Its metrics are made of the public parts."""

    def __init__(
        self,
        options: Options,
        role: Role,
        outside: Outside,
        numbers: Numbers,
        *,
        legacy: Legacy | None,
        at: At,
    ) -> None:
        """``legacy`` answers in place of a refusal; ``at`` is told of every step."""
        self.role = role
        self._options = options
        self._outside = outside
        self._numbers = numbers
        self._health = Health.at_start()
        self._alone = Alone()
        self._last: tuple[_MadeOf, Look] | None = None
        self.teller = Teller(outside.cluster, role, self._to_tell, at)
        self.binder = Binder(
            KubeletTable(options.kubelet_checkpoint, role.resources[0]),
            outside.pods,
            outside.handout,
            outside.checkpoint,
            Tidings(numbers, self.teller, outside.keeper, self._living, mend=outside.mend),
            role=role,
            node=options.node_name,
            gone=self._gone,
            at=at,
        )
        clerk = DeskClerk(
            self.binder,
            outside.pods,
            numbers,
            role=role,
            node=options.node_name,
            handout=outside.handout,
            at=at,
            prestart_seconds=options.prestart_timeout,
            legacy=legacy,
        )
        self.registrar = Registrar(
            options.kubelet_dir, options.scheme, role.resources, clerk, cdi=options.cdi
        )
        self.offers = Offers(role, self.registrar.offer, self._too_long)

    def start(self, health: Health) -> None:
        """Recover with these cards, then serve."""
        self._health = health
        self.offers.become(health)
        recovery = Recovery(
            self.role,
            partial(Looker, self.role.language, self._options.node_name, _places(self._options)),
            self._outside.pods,
            own=self._outside.own,
            handout=self._outside.handout,
            checkpoint=self._options.kubelet_checkpoint,
        )
        if self._outside.keeper:
            self._outside.keeper.start()  # first: it is told of who is there when they are known
        self.binder.start(
            lambda known: recovery.run(self._health.devices, self.offers.devices(), known)
        )
        self.teller.start()
        # The kubelet may ask as soon as it is told; Allocate then waits for the recovery.
        self.registrar.start()

    def changed(self, health: Health) -> None:
        """The cards, or their health, are others now."""
        self._health = health
        self.binder.offer(self.offers.become(health))
        self.teller.wake()

    def stop(self) -> None:
        """Serve no more; the kubelet takes the resources for unhealthy, and containers run on."""
        self.binder.stop()  # first: no call of the kubelet's waits for it then
        self.registrar.stop()
        if self._outside.keeper:
            self._outside.keeper.stop()
        self.teller.stop()

    def ready(self) -> bool:
        """Whether it knows who holds what, and the kubelet takes all that can be offered."""
        registered = {state.resource for state in self.registrar.states() if state.registered}
        servable = self.offers.servable()
        return self.binder.recovered(0) and bool(servable) and servable <= registered

    def state(self) -> State | None:
        """What the binder last found; None before the recovery."""
        try:
            return self.binder.state()
        except Refused:
            return None

    def unbound(self) -> Mapping[Why, int]:
        """Containers of pods that are there, and are not bound, by reason."""
        state = self.state()
        refused = state.refusals.values() if state else ()
        return Counter(error.why for error in refused if error.pod is not None)

    # ------------------------------------------------------------ what parts ask of one another

    def _too_long(self, found: TooLong) -> None:
        node = self._this_node()
        if node:
            self.teller.say(node, Word.NOT_REGISTERED, str(found))

    def _this_node(self) -> Node | None:
        nodes = self._outside.node.state()
        return nodes.objects.get(self._options.node_name) if nodes.synced else None

    def _living(self) -> frozenset[str] | None:
        known, alive = self._outside.pods.known(), live_pods(self._options.path_cgroupfs)
        if known is None or alive is None:
            return None
        return frozenset(known) | alive

    def _gone(
        self, state: State, pods: Mapping[str, Pod] | None, shown: Collection[str]
    ) -> Iterable[str]:
        known = None if pods is None else pods.values()
        assigned = state.assigned_pods
        alive = pods_with_cgroup(self._options.path_cgroupfs)
        desk, now = state.desk, time.time()
        alone = over(desk, known, now, shown=shown) if alive == frozenset() else frozenset()
        past = self._alone.past(alone, time.monotonic())
        return gone(desk, known, alive or None, assigned, now, shown=shown) | past

    def _to_tell(self) -> Look | None:
        """What others are to be told of; None while it is not known. The teller's thread asks.

        It asks several times a round, and between two of them there is rarely anything new.
        """
        state, pods, node = self.state(), self._outside.pods.known(), self._this_node()
        if state is None or pods is None:
            return None
        made_of = state, pods, node
        if self._last is None or any(map(is_not, made_of, self._last[0])):
            self._last = made_of, self._look(*made_of)
        return self._last[1]

    def _look(self, state: State, pods: Mapping[str, Pod], node: Node | None) -> Look:
        refused = frozenset(uid for (uid, _), error in state.refusals.items() if error.final)
        desk, resource = state.desk, self.role.resources[0]
        answered = _answered(state)
        asked = {uid for uid, _ in answered} | desk.tenants.keys()
        served = frozenset(
            uid for uid in asked & pods.keys() if _serves(resource, pods[uid], desk, answered)
        )
        return Look(
            devices=desk.devices,
            named=desk.named,
            tenants=desk.tenants,
            pods=pods,
            node=node,
            served=served | refused,
            refused=refused,
        )


def _answered(state: State) -> frozenset[Key]:
    """Containers that the kubelet has an answer for and that are not bound by us.

    They are refused, be it for now, or somebody else has answered. Who is refused while the API
    server does not show it is not looked at yet.
    """
    refused = (key for key, error in state.refusals.items() if error.pod is not None)
    theirs = ((one.pod_uid, one.container) for one in state.all_assignments() if not one.name)
    return frozenset((*refused, *theirs))


def _serves(resource: str, pod: Pod, desk: Desk, answered: Collection[Key]) -> bool:
    """Whether the kubelet will not ask for it again: it has an answer for every container."""
    uid = pod.kubelet_uid
    tenant = desk.tenants.get(uid)
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


def _places(options: Options) -> Places:
    """Where recovery looks."""
    return Places(
        procfs=options.path_procfs,
        cgroupfs=options.path_cgroupfs,
        log_dir=options.kubelet_log_dir,
        checkpoint=options.kubelet_checkpoint,
        pod_resources=options.kubelet_pod_resources,
        gaia_dir=options.gaia_limits_dir,
    )
