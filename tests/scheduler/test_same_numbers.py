"""The scheduler, ``vgpu fit`` and ``vgpu inspect`` have the same numbers of the same objects."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Snapshot
from reconciler.rules.quotas import quota_holders, used_by
from tests.scheduler.generated import STATES
from tests.scheduler.test_differential import QUARTERS, filled, limits
from tests.scheduler.test_other_schedulers import RESERVED
from tests.scheduler.test_promise import KEYS, NODES, NOW, SCHEMES, TEXTS
from tests.scheduler.test_who_requests import FORGED
from vgpu.inventory import Objects, Units, inventory
from vgpu.inventory.pod_usage import pod_accounts, usage_by_namespace
from vgpu.model.names import ContainerKind, PodRef
from vgpu.model.objects import Container, Namespace, Pod
from vgpu.quota.resources import CORES, GPUS, MEMORY, plus
from vgpu.quota.usage import NamespaceUsage
from vgpucli.prediction import ReadObjects, filled_cache

SYSTEMS = sorted(NODES)
BESIDE = {
    system: (
        (),
        (Container("also", limits(system, 1, 1)),),
        (Container("first", limits(system, 2, 1), ContainerKind.INIT),),
    )
    for system in SYSTEMS
}
UNITS = Units(gpushare_unit=1 << 30)


def free_of_extender(node, pods, now):
    """What is free of each GPU, by its name: memory and cores."""
    view = filled_cache(SCHEMES, ReadObjects(now, [node], pods)).view(node.name)
    assert view.reason is None
    return {gpu.device.name: (gpu.free_bytes, gpu.free_milli) for gpu in view.candidate.gpus}


def free_of_inspect(node, pods, now):
    views = inventory(Objects((node,), tuple(pods)), UNITS, now).nodes
    (view,) = (each for each in views if each.node is node)
    return {
        entry.device.name: (view.free_memory_bytes(entry), view.free_cores_milli(entry))
        for entry in view.ledger.devices
    }


@pytest.mark.parametrize("system", SYSTEMS)
@given(data=st.data())
def test_what_is_free_is_the_same_for_the_scheduler_and_for_inspect(system, data):
    """Whatever a pod's annotations are, bound or not, gated or not, and at any time after it was
    bound.
    """
    (scheme,) = (each for each in SCHEMES if each.row.name == system)
    node = data.draw(st.sampled_from(STATES[system]))
    pods = filled(node, scheme, data.draw(st.lists(st.tuples(QUARTERS, st.just(1)), max_size=3)))
    asked = data.draw(
        st.sampled_from(
            ({}, {"nvidia.com/gpumem": 4096}, limits(system, 1, 1), limits(system, 3, 2))
        )
    )
    edited = data.draw(st.dictionaries(st.sampled_from(KEYS[system]), TEXTS))
    bases = [{}, RESERVED[system](NOW), *(pod.annotations for pod in pods)]
    bases += [forged for name, forged in FORGED if name == system]
    base = data.draw(st.sampled_from(bases))
    name = data.draw(st.sampled_from(("n1", "")))
    pods.append(
        Pod(
            PodRef("uid-last", "ns", "last"),
            node=name,
            annotations={**base, **edited},
            containers=(Container("main", asked), *data.draw(st.sampled_from(BESIDE[system]))),
            phase="Running" if name else "Pending",
            gated=not name and data.draw(st.booleans()),
            scheduled_at=data.draw(st.sampled_from((None, NOW))) if name else None,
        )
    )
    now = NOW + data.draw(st.sampled_from((0.0, 299.0, 300.0, 10_000.0)))
    assert free_of_inspect(node, pods, now) == free_of_extender(node, pods, now)


def amounts(by_model):
    sums = plus(*by_model.values())
    return tuple(sums.get(name, 0) for name in (GPUS, MEMORY, CORES))


@pytest.mark.parametrize("system", SYSTEMS)
@given(data=st.data())
def test_what_a_quota_counts_is_the_same_for_the_scheduler_the_reconciler_and_inspect(system, data):
    """Of a bound pod, each GPU once, on a GPU that is known or not."""
    (scheme,) = (each for each in SCHEMES if each.row.name == system)
    node = data.draw(st.sampled_from(STATES[system]))
    asked = data.draw(
        st.sampled_from(
            ({}, {"nvidia.com/gpumem": 4096}, limits(system, 1, 1), limits(system, 3, 2))
        )
    )
    edited = data.draw(st.dictionaries(st.sampled_from(KEYS[system]), TEXTS))
    (honest, *_) = filled(node, scheme, [(1, 1)]) or [Pod(PodRef("", "", ""))]
    bases = [{}, RESERVED[system](NOW), honest.annotations]
    bases += [forged for name, forged in FORGED if name == system]
    pod = Pod(
        PodRef("uid-last", "ns", "last"),
        node="n1",
        annotations={**data.draw(st.sampled_from(bases)), **edited},
        containers=(Container("main", asked), *data.draw(st.sampled_from(BESIDE[system]))),
        phase="Running",
        scheduled_at=NOW,
    )
    limit = Namespace("ns", annotations={"vgpu.dev/quota-gpus": "9"})
    cache = filled_cache(SCHEMES, ReadObjects(NOW, [node], [pod], namespaces=[limit]))
    (quota,) = cache.limited()
    objects = Objects((node,), (pod,))
    ledgers = {view.node.name: view.ledger for view in inventory(objects, UNITS, NOW).nodes}
    codecs = [each.codec for each in SCHEMES]
    accounts = pod_accounts([node], ledgers, [pod], codecs)
    held = usage_by_namespace(accounts).get("ns", NamespaceUsage()).by_model
    index = ClusterIndex(Snapshot(NOW, nodes=(node,), pods=(pod,)), codecs)
    counted = used_by(quota_holders(index, {"ns"}).get("ns", ()))
    assert amounts(held) == amounts(counted) == amounts(quota.used)
