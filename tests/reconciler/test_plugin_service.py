"""Pods that gpushare's original plugin can never serve: their replacements would fail, too."""

import pytest

from reconciler.plan import make_plan
from reconciler.policy import Mode, Policy
from reconciler.reasons import Rule, SkipReason
from reconciler.reconciler_state import ReconcilerState
from tests.reconciler.samples import (
    CODECS_IN_USE,
    HOUR,
    NO_GPU,
    assumed,
    no_gpu_matched,
    node,
    pod,
    refused,
    replace,
    snapshot,
)
from vgpu.ledger import Holding, Ledger
from vgpu.ledger.entries import DeviceEntry
from vgpu.model.allocation import Device, Share
from vgpu.model.names import ContainerKind, Phase, PodRef, Scheme, Source
from vgpu.model.objects import Container

MEMORY = "aliyun.com/gpu-mem"
INIT, SIDECAR = ContainerKind.INIT, ContainerKind.SIDECAR


def two(one, kind=ContainerKind.APP, units=4):
    """The pod with a second container that requests memory."""
    main = Container("main", {MEMORY: 8})
    return replace(one, containers=(main, Container("side", {MEMORY: units}, kind)))


def shared(gpus=2, **fields):
    return replace(
        node("gpu-1", "gpushare", **fields),
        capacity={MEMORY: 80, "aliyun.com/gpu-count": gpus},
        allocatable={MEMORY: 80, "aliyun.com/gpu-count": gpus},
    )


def plan(*objects, **fields):
    policy = Policy(modes={Rule.ASSUMED_EXPIRED: Mode.APPLY})
    seen = snapshot(*objects, **fields)
    return make_plan(seen, policy, ReconcilerState(), CODECS_IN_USE)[0]


SICK = {
    "no_gpu_matched": no_gpu_matched(pod("infer-0", "gpushare"), NO_GPU),
    "assumed_expired": assumed("infer-0", "gpushare", age=2 * HOUR),
    "refused": refused(pod("infer-0", "gpushare", kind="StatefulSet")),
}


@pytest.mark.parametrize("rule", SICK)
@pytest.mark.parametrize("kind", [ContainerKind.APP, INIT, SIDECAR])
def test_a_pod_with_two_gpu_containers_is_not_evicted_to_fail_again(rule, kind):
    (action,) = plan(shared(), SICK[rule]).actions
    assert action.finding.rule == rule
    made = plan(shared(), two(SICK[rule], kind))
    (entry,) = made.skipped
    assert (made.actions, entry.finding.rule) == ((), rule)
    assert entry.skip is SkipReason.PLUGIN_CANNOT_SERVE
    assert entry.detail == (
        f"2 containers (main, side) request {MEMORY}, and the original gpushare plugin serves one"
        " app container of a pod"
    )


def test_a_second_container_without_gpu_memory_changes_nothing():
    (action,) = plan(shared(), two(SICK["no_gpu_matched"], units=0)).actions
    assert not any("plugin" in line for line in action.finding.evidence)


def test_a_single_init_container_is_not_served_either():
    sick = replace(SICK["refused"], containers=(Container("main", {MEMORY: 8}, INIT),))
    (entry,) = plan(shared(), sick).skipped
    assert entry.skip is SkipReason.PLUGIN_CANNOT_SERVE


def test_on_a_node_with_one_gpu_the_original_serves_every_container():
    assert plan(shared(gpus=1), two(SICK["no_gpu_matched"])).actions


def test_a_dead_pod_that_is_already_replaced_is_tidied_all_the_same():
    dead = two(refused(pod("infer-0", "gpushare", age=2 * HOUR)))
    assert plan(shared(), dead, pod("infer-1", "gpushare", age=0.0)).actions


# ---------------------------------------------------------------- the node's plugin is vgpu's


def evidence_of(*objects, **fields):
    (action,) = plan(*objects, **fields).actions
    return action.finding.evidence[-1]


def test_the_label_of_our_plugins_nodes_shows_it():
    ours = replace(shared(), labels={"vgpu.dev/plugin": "gpushare"})
    assert evidence_of(ours, two(SICK["no_gpu_matched"])) == (
        "vgpu's plugin serves such pods: node gpu-1 has the label vgpu.dev/plugin: gpushare"
    )
    other = replace(shared(), labels={"vgpu.dev/plugin": "volcano"})
    assert plan(other, two(SICK["no_gpu_matched"])).actions == ()


def test_a_pod_of_several_containers_that_was_served_shows_it():
    """The original can neither serve nor mark such a pod."""
    served = two(pod("served", "gpushare"))
    assert evidence_of(shared(), two(SICK["no_gpu_matched"]), served) == (
        "vgpu's plugin serves such pods: the plugin of node gpu-1 has served such a pod: ml/served"
    )
    waits = two(assumed("waits", "gpushare"))
    elsewhere = two(pod("elsewhere", "gpushare", node="gpu-2"))
    one = pod("one", "gpushare")
    made = plan(shared(), two(SICK["no_gpu_matched"]), waits, elsewhere, one)
    assert made.actions == ()


def test_the_checkpoint_of_our_plugin_shows_it():
    holding = Holding(
        PodRef("u", "ml", "other"),
        "main",
        Share("GPU-a"),
        Scheme.GPUSHARE,
        Phase.ASSIGNED,
        Source.CHECKPOINT,
        (Source.CHECKPOINT, Source.OWN_CHECKPOINT),
    )
    records = Ledger("gpu-1", (DeviceEntry(Device("GPU-a"), (holding,)),))
    found = evidence_of(shared(), two(SICK["no_gpu_matched"]), ledgers={"gpu-1": records})
    assert found.endswith("the checkpoint of vgpu's device plugin on node gpu-1")
