"""The day of the switch back: what ours has bound, the originals' schedulers count as we do.

Volcano's own scheduler is asked in the cluster tests; the others are stand-ins.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tests.cluster.original_books import BOOKS, UNITS_IN_GIB, GpuSize, hami_2_10
from tests.scheduler.served import Served, as_sent, read
from tests.scheduler.test_promise import NODES, NOW, UUIDS
from vgpu.model.names import ContainerKind, PodRef
from vgpu.model.objects import Container, Pod
from vgpu.model.units import GIB
from vgpu.placement.result import PlacementReason

GPU_GIB = 16
SIZES = st.integers(0, 8)
"""GiB that a container requests; 0 for one that requests nothing."""


NO_ROOM = {PlacementReason.MEMORY, PlacementReason.CORES, PlacementReason.EXCLUSIVE}


def limits(system, gib):
    return {
        "gpushare": {"aliyun.com/gpu-mem": gib},
        "gaia": {"tencent.com/vcuda-core": 5, "tencent.com/vcuda-memory": 4 * gib}
        if gib < 8
        else {"tencent.com/vcuda-core": 100},
        "hami": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024 * gib},
    }[system]


def containers(system, kind, sizes):
    return tuple(
        Container(f"{kind.value}-{place}", limits(system, gib) if gib else {}, kind)
        for place, gib in enumerate(sizes)
    )


def bound_pods(served, system, shapes):
    """What the API server has of the pods that are bound, one after another."""
    pods = []
    for number, (inits, apps) in enumerate(shapes):
        asked = containers(system, ContainerKind.INIT, inits)
        asked += containers(system, ContainerKind.APP, apps)
        ref = PodRef(f"uid-{number}", "ns", f"p{number}")
        sent = as_sent(Pod(ref, containers=asked, phase="Pending"))
        refusal = served.bind(served.api.store(read(sent)).ref, "n1")
        if refusal:
            assert refusal in NO_ROOM
            continue
        bound = served.api.pods[ref.name]
        served.show(ref.name, structs.replace(bound, phase="Running"))
        meta = sent["metadata"] | {"annotations": dict(bound.annotations)}
        pods.append(sent | {"metadata": meta, "spec": sent["spec"] | {"nodeName": "n1"}})
    return pods


def counts(units_used, pods, system):
    """Bytes in use of each GPU, as an original counts."""
    names = UUIDS if system == "hami" else ("0", "1")
    in_gib = UNITS_IN_GIB[system]
    units = units_used(pods, [GpuSize(name, GPU_GIB * in_gib) for name in names])
    assert units.keys() <= set(names)
    return [units[name] * GIB // in_gib for name in names]


def own(served):
    """Bytes in use of each GPU, as ours counts."""
    return [gpu.memory_bytes for gpu in served.cache.view("n1").candidate.gpus]


APPS = st.lists(SIZES, min_size=1, max_size=3).filter(any)


@pytest.mark.parametrize("system", BOOKS)
@settings(deadline=None)
@given(data=st.data())
def test_an_originals_scheduler_counts_what_ours_has_bound(system, data):
    shapes = [((), apps) for apps in data.draw(st.lists(APPS, max_size=6))]
    with Served(clock=lambda: NOW) as served:
        served.cache.set_node("n1", NODES[system])
        pods = bound_pods(served, system, shapes)
        assert counts(BOOKS[system], pods, system) == own(served)
        for pod in pods:
            pod["status"] = {"phase": "Succeeded"}
        assert counts(BOOKS[system], pods, system) == [0, 0]


INITS = st.lists(st.integers(1, 8), max_size=2)


@settings(deadline=None)
@given(shapes=st.lists(st.tuples(INITS, APPS), max_size=5))
def test_hamis_scheduler_counts_init_containers_no_less_than_ours(shapes):
    """2.10 counts the peak; 2.9 all containers together."""
    with Served(clock=lambda: NOW) as served:
        served.cache.set_node("n1", NODES["hami"])
        pods = bound_pods(served, "hami", shapes)
        assert counts(hami_2_10, pods, "hami") == own(served)
        for theirs, ours in zip(counts(BOOKS["hami"], pods, "hami"), own(served), strict=True):
            assert theirs >= ours
