"""What a scene answers: how it is with the owner of a lock, who waits, whether a plugin lives."""

import pytest

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Coverage, OwnerState
from reconciler.reasons import SkipReason
from tests.reconciler.samples import (
    CODECS,
    CODECS_IN_USE,
    GPU,
    NOW,
    SHARE,
    assumed,
    ended,
    node,
    pod,
    refused,
    replace,
    snapshot,
    terminating,
    unbound,
    uuid,
)
from vgpu.model.allocation import Allocation, Claim, Device, Share
from vgpu.model.names import Phase
from vgpu.model.objects import Container, ContainerState, Status


def cluster_index(*objects, **fields):
    return ClusterIndex(snapshot(*objects, **fields), CODECS_IN_USE)


def half_served(style="volcano"):
    """Two containers, of which Allocate has served the first."""
    one = assumed("pair", style)
    gpu = uuid("gpu-1", 0)
    phases = {"first": Phase.ASSIGNED, "second": Phase.ASSUMED}
    claim = Claim(
        scheme=CODECS[style].scheme,
        pod=one.ref,
        node="gpu-1",
        allocations=tuple(
            Allocation(name, (Share(gpu, SHARE, 0),), phase) for name, phase in phases.items()
        ),
        assumed_at=NOW - 60,
        unserved=("second",),
    )
    devices = {gpu: Device(gpu, 0, GPU, slots=10)}
    annotations = CODECS[style].annotations(claim, devices, tuple(phases))
    limits = one.containers[0].limits
    made = tuple(Container(name, limits) for name in phases)
    return replace(one, annotations=annotations, containers=made, statuses=())


OWNERS = {
    "none": (None, OwnerState.GONE),
    "a promise": (assumed(), OwnerState.WAITS),
    "a promise, unbound": (unbound(), OwnerState.WAITS),
    "a claim that cannot be read": (
        pod(phase="Pending", annotations={"volcano.sh/vgpu-ids-new": "x"}),
        OwnerState.WAITS,
    ),
    "nothing claimed": (pod(claim=None), OwnerState.WAITS),
    "half served": (half_served(), OwnerState.WAITS),
    "half served by HAMi": (half_served("hami"), OwnerState.WAITS),
    "served, not started": (pod(phase="Pending"), OwnerState.SERVED),
    "runs": (pod(), OwnerState.SERVED),
    "runs unassigned": (assumed(phase="Running"), OwnerState.SERVED),
    "a container runs": (
        assumed(statuses=(Status("main", ContainerState.RUNNING),)),
        OwnerState.SERVED,
    ),
    "succeeded": (ended(pod()), OwnerState.ENDED),
    "refused": (refused(assumed()), OwnerState.ENDED),
    "being deleted": (terminating(pod()), OwnerState.TERMINATING),
    "being deleted, waits": (terminating(assumed()), OwnerState.TERMINATING),
    "being deleted, never bound": (terminating(unbound()), OwnerState.TERMINATING),
}


@pytest.mark.parametrize(("one", "state"), OWNERS.values(), ids=OWNERS)
def test_the_owner_of_a_lock_waits_until_every_container_is_served(one, state):
    assert cluster_index().owner_state(one) is state


@pytest.mark.parametrize("style", ["volcano", "hami", "gpushare", "gaia"])
def test_who_waits_waits_where_it_is_bound_or_promised(style):
    bound, promised = assumed("bound", style), unbound("promised", style, node="gpu-2")
    seen = cluster_index(bound, promised, pod("well", style), refused(pod("refused", style)))
    names = {
        where: [each.ref.name for each in pods] for where, pods in seen.waiting_on_node.items()
    }
    says_where = style in ("volcano", "hami", "gaia")
    assert names == {"gpu-1": ["bound"]} | ({"gpu-2": ["promised"]} if says_where else {})


@pytest.mark.parametrize("style", CODECS)
def test_a_plugin_that_offers_what_it_ever_offers_is_ready(style):
    """HAMi's scheduler alone counts memory and cores: no node offers these."""
    one = assumed(style=style)
    assert cluster_index(one, node("gpu-1", style)).plugin_skip_reason(one) is None


@pytest.mark.parametrize("style", ["volcano", "hami", "gpushare", "gaia"])
def test_a_plugin_that_is_away_is_not_ready_before_and_after_the_kubelet_has_forgotten_it(style):
    one = assumed(style=style)
    away = node("gpu-1", style, plugin=False)
    assert cluster_index(one, away).plugin_skip_reason(one) is SkipReason.PLUGIN_NOT_READY
    forgotten = replace(away, allocatable={}, capacity={})
    assert cluster_index(one, forgotten).plugin_skip_reason(one) is SkipReason.PLUGIN_NOT_READY


def test_one_of_several_resources_that_is_away_is_enough():
    one, here = assumed(), node("gpu-1", "volcano")
    offered = {**here.allocatable, "volcano.sh/vgpu-number": 0}
    assert cluster_index(one, replace(here, allocatable=offered)).plugin_skip_reason(one) is (
        SkipReason.PLUGIN_NOT_READY
    )


def test_a_node_that_is_not_ready_unknown_or_unseen_is_listed_first():
    one = assumed()
    assert (
        cluster_index(one, node(ready=False)).plugin_skip_reason(one) is SkipReason.NODE_NOT_READY
    )
    assert cluster_index(one, node("gpu-2")).plugin_skip_reason(one) is SkipReason.NODE_UNKNOWN
    blind = cluster_index(one, node(), complete=frozenset({Coverage.PODS}))
    assert blind.plugin_skip_reason(one) is SkipReason.INCOMPLETE_VIEW


def test_replicas_are_those_that_may_be_of_use():
    pods = [pod("a"), assumed("b"), refused(pod("c")), terminating(pod("d")), pod("e", kind=None)]
    assert dict(cluster_index(*pods).replicas) == {pod().owner.uid: 2}
