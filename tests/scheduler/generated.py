"""What is drawn of a generated cluster beside sizes, and what a pod finds on a node of it.

The states of nodes have unhealthy and cordoned GPUs and GPUs of another type; pods have wishes in
their annotations; shares are held for pods that preempt others, and other schedulers have reserved
GPUs.
"""

import json

import msgspec
from hypothesis import strategies as st
from msgspec import structs

from scheduler.filter.node_scores import extender_scores
from tests.scheduler.test_other_schedulers import RESERVED
from tests.scheduler.test_promise import NODES, UUIDS
from tests.support.registers import HAMI, VOLCANO, hami_gpu
from vgpu.model.objects import Node, Pod
from vgpu.placement.dialects import HAMI_CORDON, PlacementPolicies, demand_of, scheduler_schemes
from vgpu.placement.node_view import ForeignReservation, Reservation, node_view
from vgpu.placement.result import Placement, PlacementReason

OTHER_TYPE = "NVIDIA-A100"

PREEMPTOR = 5
"""The priority of pods that preempt others; those have 0."""

PRIORITIES = st.sampled_from((0, PREEMPTOR, 9))


def _hami(*changes):
    """A node of HAMi's whose GPUs differ from the plain ones."""
    gpus = [hami_gpu(UUIDS[at], at, **change) for at, change in enumerate(changes)]
    return {HAMI: json.dumps(gpus)}


def _annotated(system, *annotations):
    node = NODES[system]
    return [structs.replace(node, annotations={**node.annotations, **each}) for each in annotations]


def _volcano(old, new):
    """The register with another text for its last GPU."""
    first, last, rest = NODES["volcano"].annotations[VOLCANO].split(":")
    return {VOLCANO: ":".join((first, last.replace(old, new), rest))}


def _nothing_allocatable(system):
    node = NODES[system]
    return structs.replace(node, allocatable=dict.fromkeys(node.capacity, 0))


STATES = {
    "gpushare": [NODES["gpushare"], _nothing_allocatable("gpushare")],
    "gaia": [NODES["gaia"], _nothing_allocatable("gaia")],
    "hami": _annotated(
        "hami",
        {},
        _hami({"health": False}, {}),
        {HAMI_CORDON: UUIDS[1]},
        _hami({}, {"type": OTHER_TYPE}),
        _hami({"mode": "mig"}, {}),
    ),
    "volcano": _annotated(
        "volcano", {}, _volcano("true", "false"), _volcano("NVIDIA-Tesla T4", OTHER_TYPE)
    ),
}
"""The states of a node by system, the plain one first."""

UNHEALTHY = {"gpushare": ("", "0", "1", "0,1", "x")}
"""Texts of the ConfigMap of a node, of systems that have one."""

_TYPES = [
    ("nvidia.com/use-gputype", "a100"),
    ("nvidia.com/use-gputype", "T4,A100"),
    ("nvidia.com/nouse-gputype", "A100"),
    ("nvidia.com/nouse-gputype", "T4"),
]
_WISHES = {
    "hami": [
        *_TYPES,
        ("nvidia.com/use-gpuuuid", UUIDS[0]),
        ("nvidia.com/nouse-gpuuuid", UUIDS[1]),
        ("nvidia.com/vgpu-mode", "hami-core"),
        ("hami.io/gpu-scheduler-policy", "binpack"),
        ("hami.io/gpu-scheduler-policy", "mutex"),
        ("hami.io/node-scheduler-policy", "spread"),
    ],
    "volcano": [
        *_TYPES,
        ("volcano.sh/vgpu-use-gpuuuid", UUIDS[0]),
        ("volcano.sh/vgpu-nouse-gpuuuid", UUIDS[1]),
        ("scheduling.k8s.io/group-name", "job"),
        ("volcano.sh/vgpu-podgroup-policy", "spread"),
    ],
}


def states(system):
    """States of a node: its object, None for a node that is gone, and the text of its ConfigMap.

    Half of the nodes are plain, so that pods are placed.
    """
    plain, *others = STATES[system]
    objects = st.just(plain) | st.sampled_from([*others, None])
    return st.tuples(objects, st.just("") | st.sampled_from(UNHEALTHY.get(system, ("",))))


def wishes(system):
    """Annotations of a pod: mostly one or none, since several exclude everything."""
    known = _WISHES.get(system)
    return st.lists(st.sampled_from(known), max_size=2).map(dict) if known else st.just({})


POLICIES = [
    PlacementPolicies(node, gpu)
    for node in ("binpack", "spread")
    for gpu in ("", "binpack", "spread")
]
SCHEMES_OF = {policies: scheduler_schemes({}, policies) for policies in POLICIES}


class HeldFor(msgspec.Struct, frozen=True):
    """What is held for a pod for which others are preempted."""

    pod: Pod
    reservation: Reservation


class ModelNode(msgspec.Struct):
    """What there is of a node; pods by name, and by UID when they were first seen as bound."""

    node: Node | None = None
    unhealthy: str = ""
    bound: dict[str, Pod] = {}
    promised: dict[str, ForeignReservation] = {}
    held: dict[str, HeldFor] = {}
    seen: dict[str, float] = {}

    def place(self, scheme, demand, now, gone=frozenset()):
        """The placement of a pod, or the reason why the node does not take it.

        ``gone`` are the UIDs of pods whose end is assumed.
        """
        if self.node is None:
            return PlacementReason.UNKNOWN_NODE
        own = demand.pod.name
        view = node_view(
            self.node,
            scheme,
            [pod for name, pod in self.bound.items() if name != own and pod.ref.uid not in gone],
            [promise for name, promise in self.promised.items() if name != own],
            [
                held.reservation
                for name, held in self.held.items()
                if name != own and held.pod.priority >= demand.priority
            ],
            now=now,
            unhealthy=self.unhealthy,
            seen=self.seen,
        )
        if view.reason is not None:
            return view.reason
        result = scheme.dialect.choose(demand, view.candidate)
        if isinstance(result, Placement):
            return result
        return view.blamed(scheme, demand, result).cause

    def answer(self, scheme, demand, now):
        """The reason, "" if the node takes the pod, and its score."""
        result = self.place(scheme, demand, now)
        if isinstance(result, Placement):
            return "", scheme.dialect.rank(demand, result)
        return result, 0


def scaled(answers):
    """The scores of the offered nodes for kube-scheduler, from their answers."""
    scores = extender_scores(suited for reason, suited in answers if not reason)
    return [0 if reason else scores[suited] for reason, suited in answers]


def promised(served, model, system, pod, name, at):
    """Another scheduler has reserved a GPU of a node for a pod, at this time, and not bound it."""
    pod = structs.replace(pod, annotations=RESERVED[system](at, name))
    served.show(pod.ref.name, pod)
    if system != "gpushare":  # its annotations name no node
        model[name].promised[pod.ref.name] = ForeignReservation(pod.ref, name, system, pod)


def preempted(served, model, scheme, pod, name, victims):
    """kube-scheduler preempts pods of a node, and has chosen the node for the pod.

    The victims are all pods of less importance that events have shown. Returns whether the node
    takes the pod without them.
    """
    uids = {model[name].bound[victim].ref.uid for victim in victims}
    demand = demand_of(pod, [scheme])[1]
    placed = model[name].place(scheme, demand, served.time(), uids)
    answer = served.preempt(pod, {name: sorted(uids)})
    assert answer.keys() == ({name} if isinstance(placed, Placement) else set())
    if not answer:
        return False
    assert set(answer[name]) == uids
    pod = served.api.store(structs.replace(pod, nominated_node=name))
    served.show(pod.ref.name, pod)
    reservation = Reservation(placed.allocations, demand.wishes.groups)
    model[name].held[pod.ref.name] = HeldFor(pod, reservation)
    return True
