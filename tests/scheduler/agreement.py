"""Generated clusters of all sharing systems, whose answers have to agree in every command.

A node is of one system or of two; it may be closed, and its lists of GPUs and of unhealthy ones are
read or not. Its pods hold what a placement gave them, request anything beside annotations of any
kind, have ended, end, or are not bound.
"""

from itertools import chain

import msgspec
from hypothesis import strategies as st
from msgspec import structs

from tests.scheduler import observed_systems
from tests.scheduler.generated import STATES
from tests.scheduler.observed_systems import observed
from tests.scheduler.test_differential import QUARTERS, filled, limits
from tests.scheduler.test_other_schedulers import RESERVED
from tests.scheduler.test_promise import KEYS, NODES, NOW, TEXTS
from tests.scheduler.test_who_requests import FORGED
from vgpu.inventory import Objects, Units
from vgpu.ledger.from_resource_claims import ClusterResourceClaims
from vgpu.model.names import ContainerKind, PodRef
from vgpu.model.objects import BOUND_DEVICE, POD_KIND, Container, MalformedObject, Node, Pod
from vgpu.model.taints import Taint, Toleration
from vgpu.model.units import GIB
from vgpu.placement.dialects import SchedulerScheme, scheduler_schemes
from vgpu.placement.node_view import scheme_of
from vgpu.placement.result import PlacementReason

SYSTEMS = sorted(NODES)
UNITS = Units(gpushare_unit=GIB)
SCHEMES = scheduler_schemes(UNITS.by_row)
NAMES = ("n1", "n2")

NO_ROOM = PlacementReason.MEMORY.explanation

_REGISTERS = {
    "hami": {"hami.io/node-nvidia-register": "x"},
    "volcano": {"volcano.sh/node-vgpu-register": "x:"},
}
"""Registers that cannot be read."""


_DEDICATED = Taint("dedicated", "ml", "NoSchedule")

TAINTS = (
    *((),) * 5,
    (Taint("nvidia.com/gpu", "", "NoSchedule"),),
    (Taint("spot", "", "PreferNoSchedule"),),
    (_DEDICATED,),
)
"""The taints of a node, of which most nodes have none."""

TOLERATIONS = ((), (Toleration("nvidia.com/gpu", "Exists"),), (Toleration("", "Exists"),))


class Cluster(msgspec.Struct):
    """The objects, and the time of their read in unix seconds."""

    objects: Objects
    now: float


def _joined(first, second):
    return structs.replace(
        first,
        annotations={**first.annotations, **second.annotations},
        capacity={**first.capacity, **second.capacity},
        allocatable={**first.allocatable, **second.allocatable},
    )


@st.composite
def _nodes(draw, name):
    """A node, the systems of its GPUs that our scheduler places for, and what others add."""
    systems = draw(st.lists(st.sampled_from(SYSTEMS), min_size=1, max_size=2, unique=True))
    if draw(st.integers(0, 7)) < 7:
        systems = systems[:1]  # most nodes are of one system
    also = draw(st.sampled_from((None,) * 4 + observed_systems.SYSTEMS))
    if also is not None and draw(st.integers(0, 3)):
        systems = []
    node = draw(st.sampled_from(STATES[systems[0]])) if systems else Node(name)
    for system in systems[1:]:
        node = _joined(node, NODES[system])
    more = draw(observed(also, name, NOW)) if also else observed_systems.Observed()
    broken = draw(st.integers(0, 7)) == 7
    broken = _REGISTERS.get(systems[0], {}) if systems and broken else {}
    node = more.on(node)
    node = structs.replace(
        node,
        name=name,
        ready=draw(st.integers(0, 5)) < 5,
        unschedulable=draw(st.integers(0, 5)) == 5,
        annotations={**node.annotations, **broken},
        taints=draw(st.sampled_from(TAINTS)),
    )
    return systems, node, more


def _beside(system):
    return st.sampled_from(
        (
            (),
            (Container("also", limits(system, 1, 1)),),
            (Container("first", limits(system, 2, 1), ContainerKind.INIT),),
            (Container("first", limits(system, 1, 1), ContainerKind.SIDECAR),),
        )
    )


@st.composite
def _strays(draw, number, nodes, systems):
    """A pod with any request and any annotations, on a node or on none.

    ``nodes`` are the pods of each node, and ``systems`` the sharing systems of each.
    """
    named = draw(st.sampled_from(sorted(nodes) * 3 + ["n2"]))
    own = draw(st.integers(0, 3)) > 0
    system = draw(st.sampled_from((own and systems.get(named)) or SYSTEMS))
    asked = draw(
        st.sampled_from(
            ({}, {"nvidia.com/gpumem": 4096}, limits(system, 1, 1), limits(system, 3, 2))
        )
    )
    bases = [{}, RESERVED[system](NOW, named), RESERVED[system](NOW - 900, named)]
    bases.append({key: text.replace("GPU-1", "GPU-gone") for key, text in bases[1].items()})
    bases += [forged for name, forged in FORGED if name == system]
    bases += [each.annotations for pods in nodes.values() for each in pods]
    texts = st.dictionaries(st.sampled_from(KEYS[system]), TEXTS, max_size=2)
    edited = draw(texts) if draw(st.integers(0, 3)) == 3 else {}
    name = draw(st.sampled_from((named, "")))
    phases = (*("Running",) * 4, *("Pending",) * 2, "Succeeded", "Failed") if name else ("Pending",)
    phase = draw(st.sampled_from(phases))
    is_deleted = draw(st.integers(0, 7)) == 7
    return Pod(
        PodRef(f"uid-stray-{number}", draw(st.sampled_from(("ns", "other"))), f"stray-{number}"),
        node=name,
        annotations={**draw(st.sampled_from(bases)), **edited},
        containers=(Container("main", asked), *draw(_beside(system))),
        phase=phase,
        created_at=NOW - 1000,
        deleted_at=NOW - 10 if is_deleted else None,
        gated=not name and draw(st.booleans()),
        scheduled_at=draw(st.sampled_from((None, NOW))) if name else None,
    )


@st.composite
def clusters(draw):
    """A cluster of up to two nodes."""
    nodes, pods, systems_of, of_others = [], {}, {}, []
    for name in NAMES[: draw(st.integers(1, len(NAMES)))]:
        systems, node, more = draw(_nodes(name))
        nodes.append(node)
        of_others.append(more)
        pods[name], systems_of[name] = [], systems
        if systems and not any(text.startswith("x") for text in node.annotations.values()):
            (scheme,) = (each for each in SCHEMES if each.row.name == systems[0])
            sizes = draw(st.lists(st.tuples(QUARTERS, st.integers(1, 2)), max_size=3))
            pods[name] = filled(node, scheme, sizes)
    strays = [draw(_strays(number, pods, systems_of)) for number in range(draw(st.integers(1, 4)))]
    waiting = []
    if draw(st.booleans()):
        system = draw(st.sampled_from(SYSTEMS))
        asked = limits(system, draw(QUARTERS), draw(st.integers(1, 2)))
        containers = (Container("main", asked), *draw(_beside(system)))
        if draw(st.integers(0, 9)) == 9:
            (name, *_) = asked
            containers = (Container("main", {**asked, f"{name}x": 1}),)  # misspelt beside others
        elif draw(st.integers(0, 7)) == 7:
            containers = (Container("main", draw(st.sampled_from(observed_systems.WAITING))),)
        waiting.append(
            Pod(
                PodRef("uid-wants", "ns", "wants"),
                containers=containers,
                phase="Pending",
                tolerations=draw(st.sampled_from(TOLERATIONS)),
                unschedulable=f"0/{len(nodes)} nodes are available: {len(nodes)} {NO_ROOM}.",
            )
        )
    unhealthy = {name: draw(st.sampled_from(("", "0", "0,1", "x"))) for name in pods}
    malformed = ()
    if draw(st.integers(0, 7)) == 7:
        name = draw(st.sampled_from((*NAMES, "")))
        malformed = (MalformedObject(POD_KIND, PodRef("", "ns", "odd"), "odd", name or None),)
    theirs = [each for more in of_others for each in more.pods]
    everyone = (*chain.from_iterable(pods.values()), *strays, *theirs, *waiting)
    now = NOW + draw(st.sampled_from((0.0, 299.0, 300.0, 10_000.0)))
    objects = Objects(
        tuple(nodes),
        everyone,
        tuple(each for more in of_others for each in more.share_pods),
        unhealthy={k: v for k, v in unhealthy.items() if v},
        malformed=malformed,
        resource_claims=ClusterResourceClaims(
            tuple(each for more in of_others for each in more.claims),
            tuple(each for more in of_others for each in more.slices),
            tuple(each for more in of_others for each in more.claiming),
        ),
    )
    return Cluster(objects, now)


def nodes_with_unseen_holders(objects):
    """The nodes with GPUs that SharePods or ResourceClaims hold: the scheduler reads neither."""
    named = {pod.node for pod in objects.share_pods if BOUND_DEVICE in pod.annotations}
    return named | {each.node for each in objects.resource_claims.resource_claims if each.results}


def nodes_of_one_system(objects):
    """The nodes on which no pod requests another system than that of the node's GPUs.

    The scheduler does not count what pods hold by the annotations of another system, the ledger
    does.
    """
    names = set()
    for node in objects.nodes:
        here = [pod for pod in objects.pods if node.name in (pod.node, *pod.annotations.values())]
        own = scheme_of(node, SCHEMES)
        asked = {each.row.name for each in SCHEMES for pod in here if each.is_asked(pod)}
        if isinstance(own, SchedulerScheme) and asked <= {own.row.name}:
            names.add(node.name)
    return names
