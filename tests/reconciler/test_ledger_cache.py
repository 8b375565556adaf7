"""The cluster's ledgers: what is cached between two snapshots makes no difference but time."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.ledger_cache import LedgerCache, is_notable
from tests.reconciler.samples import (
    CODECS_IN_USE,
    GPU,
    MIB,
    ended,
    holder,
    node,
    pod,
    real_pod,
    share_pod,
    unbound,
)
from vgpu.ledger import ConflictKind
from vgpu.ledger.cluster import cluster
from vgpu.model.objects import ContainerState, Status
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.kubeshare.sharepod import join
from vgpu.schemes.volcano.codec import VOLCANO

replace = msgspec.structs.replace

NODES = tuple(node(f"gpu-{number}") for number in (1, 2, 3))


def greedy(name, on="gpu-1"):
    """It was allocated the whole memory of the first GPU, beside whoever is there."""
    made = pod(name, node=on)
    gpu = made.annotations["volcano.sh/vgpu-ids-new"].partition(",")[0]
    text = f"{gpu},NVIDIA,{GPU // MIB},10:"
    return replace(made, annotations=made.annotations | {"volcano.sh/vgpu-ids-new": text})


def overcommitted(on="gpu-1"):
    return greedy(f"greedy-{on}", on), pod(f"other-{on}", node=on)


def kinds(ledger):
    return {conflict.kind for conflict in ledger.conflicts}


def ledgers(cache, nodes=NODES, pods=(), codecs=CODECS_IN_USE, unhealthy=None):
    return cache.ledgers(nodes, pods, codecs, unhealthy)


# ---------------------------------------------------------------- which are kept


def test_a_node_where_all_is_well_has_no_ledger():
    assert ledgers(LedgerCache(), pods=[pod(node=each.name) for each in NODES]) == {}


def test_a_node_with_a_conflict_has_its_ledger():
    found = ledgers(LedgerCache(), pods=overcommitted("gpu-2"))
    assert found.keys() == {"gpu-2"}
    assert kinds(found["gpu-2"]) == {ConflictKind.OVERCOMMITTED}


def test_a_node_with_an_unreadable_annotation_has_its_ledger():
    sick = pod(annotations={"volcano.sh/vgpu-ids-new": "nonsense"})
    (ledger,) = ledgers(LedgerCache(), pods=[sick]).values()
    assert ledger.malformed


def test_a_node_where_a_pod_runs_without_a_device_has_its_ledger():
    (ledger,) = ledgers(LedgerCache(), pods=[pod("lost", claim=None, phase="Running")]).values()
    (wanted,) = ledger.waiting
    assert wanted.running


def test_a_node_where_a_bound_pod_waits_without_a_device_has_its_ledger():
    """The pod keeps others off GPUs, and a rule reports it."""
    (ledger,) = ledgers(LedgerCache(), pods=[pod("new", claim=None, phase="Pending")]).values()
    (wanted,) = ledger.waiting
    assert not wanted.running


def test_a_pod_that_is_promised_to_a_node_counts_there():
    given, other = overcommitted("gpu-3")
    promised = unbound("promised", node="gpu-3")
    assert ledgers(LedgerCache(), pods=[given, promised]).keys() == {"gpu-3"}
    assert ledgers(LedgerCache(), pods=[given]) == {}
    assert ledgers(LedgerCache(), pods=[ended(given), other, promised]) == {}


def test_a_node_that_only_pods_name_has_a_ledger_too():
    sick = pod(node="unheard-of", annotations={"volcano.sh/vgpu-ids-new": "nonsense"})
    assert ledgers(LedgerCache(), pods=[sick]).keys() == {"unheard-of"}


def test_an_unhealthy_gpu_of_gpushares_is_marked_by_its_config_map():
    served = pod(style="gpushare")
    cache = LedgerCache()
    only_gpushare = [node("gpu-1", "gpushare")]
    codecs = [each for each in CODECS_IN_USE if isinstance(each, Gpushare)]
    assert ledgers(cache, only_gpushare, [served], codecs) == {}
    found = ledgers(cache, only_gpushare, [served], codecs, {"gpu-1": "0"})
    assert kinds(found["gpu-1"]) == {ConflictKind.DEVICE_UNHEALTHY}
    assert ledgers(cache, only_gpushare, [served], codecs, {}) == {}


def test_a_unit_that_a_nodes_data_contradicts_is_known_though_nothing_else_is_wrong():
    cache, pods = LedgerCache(), [pod(node=each.name) for each in NODES]
    for units, names in (
        ({"volcano": MIB}, []),
        ({"volcano": MIB // 1024}, ["gpu-1", "gpu-2", "gpu-3"]),
        ({"volcano": MIB}, []),
    ):
        for _ in range(2):  # the second time from what is kept
            assert cache.ledgers(NODES, pods, CODECS_IN_USE, None, units) == {}
            assert [doubt.node for doubt in cache.doubts] == names


# ---------------------------------------------------------------- what is remembered


@pytest.fixture
def kept():
    """A cache with two nodes with a conflict each, and the objects that it was made of."""
    cache, pods = LedgerCache(), [*overcommitted("gpu-1"), *overcommitted("gpu-2")]
    return cache, pods, ledgers(cache, pods=pods)


def test_what_did_not_change_is_not_merged_again(kept):
    cache, pods, before = kept
    after = ledgers(cache, pods=pods)
    assert all(after[name] is before[name] for name in ("gpu-1", "gpu-2"))


def test_a_pod_that_changed_costs_its_own_node_only(kept):
    cache, pods, before = kept
    pods[0] = ended(pods[0])
    after = ledgers(cache, pods=pods)
    assert after.keys() == {"gpu-2"}
    assert after["gpu-2"] is before["gpu-2"]


def test_a_list_with_the_same_content_costs_nothing(kept):
    cache, pods, before = kept
    again = [msgspec.convert(msgspec.to_builtins(each), type(each)) for each in pods]
    assert again[0] is not pods[0]
    assert ledgers(cache, pods=again)["gpu-1"] is before["gpu-1"]


def test_a_nodes_heartbeat_and_handshake_cost_nothing(kept):
    cache, pods, before = kept
    signs = {VOLCANO.handshake[0]: "Reported_2026.01.01 00:00:00", VOLCANO.locks[0]: "2026"}
    beating = [
        replace(each, resource_version="8", annotations=each.annotations | signs) for each in NODES
    ]
    assert ledgers(cache, beating, pods)["gpu-1"] is before["gpu-1"]


@pytest.mark.parametrize(
    "changed",
    [
        replace(NODES[0], annotations={}),
        replace(NODES[0], capacity={}),
        replace(NODES[0], labels={"nvidia.com/gpu.product": "H100"}),
    ],
    ids=["annotations", "capacity", "labels"],
)
def test_a_node_whose_gpus_may_have_changed_is_judged_again(kept, changed):
    cache, pods, before = kept
    after = ledgers(cache, [changed, *NODES[1:]], pods)
    assert after.get("gpu-1") is not before["gpu-1"]
    assert after["gpu-2"] is before["gpu-2"]


def test_with_other_codecs_everything_is_read_again(kept):
    cache, pods, before = kept
    assert ledgers(cache, pods=pods, codecs=CODECS_IN_USE[1:]).get("gpu-1") != before["gpu-1"]


def test_a_node_that_is_gone_is_forgotten(kept):
    cache, pods, _ = kept
    assert ledgers(cache, NODES[1:], pods[2:]).keys() == {"gpu-2"}


# ---------------------------------------------------------------- never other than fresh ones

SHARED = share_pod()
PODS = (
    *overcommitted("gpu-1"),
    pod("a", "gaia", node="gpu-1"),
    pod("b", "gpushare", node="gpu-2", gpu=1),
    pod("c", "hami", node="gpu-2"),
    unbound("d", "gaia", node="gpu-3"),
    pod("e", claim=None, phase="Running", node="gpu-3"),
    pod("f", annotations={"volcano.sh/vgpu-ids-new": "nonsense"}, node="gpu-3"),
    real_pod(SHARED),
    holder(),
)
CHANGES = (
    lambda one: one,
    ended,
    lambda one: replace(one, annotations={}),
    lambda one: replace(one, node="gpu-2"),
    lambda one: replace(one, resource_version="99"),
    lambda one: replace(one, statuses=(Status("main", ContainerState.WAITING),), phase="Pending"),
)
some_pods = st.lists(
    st.builds(lambda one, change: change(one), st.sampled_from(PODS), st.sampled_from(CHANGES)),
    unique_by=lambda one: one.ref.uid,
)
some_nodes = st.lists(
    st.builds(
        lambda one, annotations: replace(one, annotations=annotations or one.annotations),
        st.sampled_from(NODES),
        st.sampled_from([{}, {VOLCANO.register: "nonsense"}, {VOLCANO.handshake[0]: "x"}]),
    ),
    unique_by=lambda one: one.name,
)
looks = st.lists(
    st.tuples(
        some_nodes,
        some_pods,
        st.sampled_from([(), (SHARED,)]),
        st.sampled_from([{}, {"gpu-2": "1"}]),
    ),
    min_size=1,
    max_size=5,
)


@given(looks)
def test_whatever_happened_before_the_ledgers_are_those_of_now(history):
    cache = LedgerCache()
    for nodes, pods, share_pods, unhealthy in history:
        joined = join(pods, share_pods)
        found = cache.ledgers(nodes, joined, CODECS_IN_USE, unhealthy)
        fresh = cluster(nodes, joined, CODECS_IN_USE, unhealthy).ledgers
        assert found == {
            name: ledger
            for name, ledger in fresh.items()
            if is_notable(ledger, [pod for pod in joined if pod.node == name])
        }
