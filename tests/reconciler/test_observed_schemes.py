"""Pods of NVIDIA's own plugin: reported, tidied once they have ended, evicted only if allowed."""

import pytest

from reconciler.cluster_index import ClusterIndex
from reconciler.judge import Judge
from reconciler.model import Evict, Scope
from reconciler.plan import make_plan
from reconciler.policy import OBSERVED, Ages, Mode, Policy
from reconciler.reasons import Cause, Rule, SkipReason
from reconciler.reconciler_state import ReconcilerState
from reconciler.rules.unused_shares import held_for_nothing, idle_holder, stuck_terminating
from tests.reconciler.node_samples import ledger, statement
from tests.reconciler.samples import (
    CODECS_IN_USE,
    HOUR,
    NOW,
    evicting,
    node,
    planned,
    pod,
    refused,
    replace,
    snapshot,
    uuid,
    waiting,
)
from vgpu.ledger import ConflictKind
from vgpu.model.names import ContainerKind, Sharing, Source
from vgpu.model.objects import Container, ContainerState, Node, Status
from vgpu.schemes.nvidia.grant import NVIDIA

HERE, THERE = uuid("gpu-1", 0), uuid("gpu-1", 1)
GPUS = {"nvidia.com/gpu": 2}
APPLIED = dict.fromkeys(Rule, Mode.APPLY)


def nvidias(name="train", limits=GPUS, **fields):
    fields = {"phase": "Running", "age": 3 * HOUR} | fields
    return pod(name, claim=None, containers=(Container("main", limits),), **fields)


def look(*pods, scope=Scope.CLUSTER, **fields):
    return snapshot(node(), nvidia_pods=pods, scope=scope, **fields)


def found(rule, seen, policy=None):
    return list(rule(ClusterIndex(seen, CODECS_IN_USE), policy or Policy()))


# ---------------------------------------------------------------- reported


def test_one_that_does_not_end_is_reported():
    stuck = nvidias(deleted_at=NOW - 2 * HOUR)
    (finding,) = found(stuck_terminating, look(stuck))
    assert (finding.cause, finding.action) == (Cause.CONTAINERS_REMAIN, None)


def test_one_that_cannot_start_is_reported_with_what_the_kubelet_allocated():
    sick = waiting(nvidias(), "ImagePullBackOff", "no such image")
    (finding,) = found(held_for_nothing, look(sick))
    assert (finding.cause, finding.action) == (Cause.CANNOT_START, None)
    assert "holds 2 of nvidia.com/gpu" in finding.evidence
    assert not found(held_for_nothing, look(replace(sick, node="")))


def test_only_what_the_waiting_container_requests_is_of_no_use():
    sick = waiting(nvidias(), "ImagePullBackOff")
    side = replace(sick, containers=(Container("side", GPUS), Container("main")))
    assert not found(held_for_nothing, look(side))
    init = Status("fetch", ContainerState.WAITING, reason="ErrImagePull", kind=ContainerKind.INIT)
    (finding,) = found(held_for_nothing, look(replace(side, statuses=(init,))))
    assert "holds 2 of nvidia.com/gpu" in finding.evidence


IDLE = Policy(ages=Ages(idle=2 * HOUR))


def idle(of=None, users=frozenset(), policy=IDLE, devices=(HERE,), on=None, sharing=()):
    """The findings on a node where the pods of these UIDs have a process on the device."""
    holder = of or nvidias()
    statements = [statement(holder, memory=None, scheme=NVIDIA, sharing=sharing)]
    seen = snapshot(
        on or node(),
        nvidia_pods=(holder,),
        scope=Scope.NODE,
        ledgers={"gpu-1": ledger([holder], statements)},
        device_pods=dict.fromkeys(devices, frozenset(users)),
    )
    return found(idle_holder, seen, policy)


def test_one_without_a_process_on_its_device_is_idle():
    (finding,) = idle()
    assert (finding.cause, finding.action, finding.since) == (Cause.NO_PROCESS, None, None)
    has_run = "container main has been running for 3h"
    assert finding.evidence[0] == f"{has_run}, and its pod has no process on {HERE} at this moment"
    assert "holds a share of this GPU" in finding.evidence[1]
    assert idle(users={"another"})


def test_one_with_a_process_is_not_nor_where_the_processes_are_not_all_known():
    assert not idle(users={nvidias().kubelet_uid})
    assert not idle(devices=(THERE,))
    assert not idle(policy=Policy())


TURN = Sharing.TIME_SLICING
GKE = {"cloud.google.com/gke-gpu-sharing-strategy": "time-sharing"}
SLICED = {"nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.replicas": "4"}


def units(number, labels=None):
    """A node with so many units of NVIDIA's plugin."""
    offered = {"nvidia.com/gpu": number}
    return Node("gpu-1", labels=labels or {}, capacity=offered, allocatable=offered, ready=True)


@pytest.mark.parametrize(
    ("labels", "sharing", "is_turn"),
    [
        ({}, (TURN,), True),
        ({}, (Sharing.MIG_TIME_SLICING,), True),
        (GKE, (), True),  # pod-resources alone: the labels decide
        (SLICED, (Sharing.UNKNOWN,), True),
        ({}, (), False),
        (GKE, (Sharing.EXCLUSIVE,), False),  # a pod from before the node was shared
        (GKE, (Sharing.MPS,), False),
        ({}, (Sharing.MIG,), False),
    ],
)
def test_an_idle_turn_is_reported_only_where_no_other_turn_is_free(labels, sharing, is_turn):
    """It has no amount, and keeps nobody from the GPU that others work on."""
    assert bool(idle(on=units(4, labels), sharing=sharing)) is not is_turn
    assert idle(on=units(2, labels), sharing=sharing), "the pod has both units: others wait"


def test_of_an_unknown_number_of_turns_none_is_known_to_be_free():
    assert idle(on=Node("gpu-1", ready=True), sharing=(TURN,))


def test_one_that_has_just_started_is_not_idle():
    new = Status("main", ContainerState.RUNNING, started_at=NOW - HOUR)
    assert not idle(nvidias(statuses=(new,)))
    old = Status("main", ContainerState.RUNNING, started_at=NOW - 2 * HOUR)
    assert idle(nvidias(statuses=(old,)))
    assert not idle(nvidias(deleted_at=NOW))


# ---------------------------------------------------------------- acted on only if allowed


def skip(entry):
    return entry.skip


@pytest.mark.parametrize("rule", Rule)
def test_a_living_pod_is_acted_on_by_no_rule_unless_its_system_is_named(rule):
    holder = nvidias()
    finding = evicting(holder, rule, Cause.OTHER)

    def entry(**policy):
        policy = {"modes": APPLIED, "evict_running": True} | policy
        (only,) = planned(look(holder), finding, policy=Policy(**policy)).entries
        return only

    assert (entry().skip, entry().detail) == (
        SkipReason.SCHEME_MODE_PLAN, "act_on_schemes: [nvidia]",
    )  # fmt: skip
    assert entry(act_on_schemes=OBSERVED).skip is None
    assert entry(modes={rule: Mode.PLAN}).skip is SkipReason.RULE_MODE_PLAN


def test_every_protection_holds_for_a_system_that_is_named():
    policy = Policy(modes=APPLIED, act_on_schemes=OBSERVED)
    protected = {
        SkipReason.PROTECTED_NAMESPACE: nvidias(namespace="kube-system"),
        SkipReason.BARE_POD: nvidias(kind=None),
        SkipReason.OPTED_OUT: nvidias(annotations={"vgpu.dev/reconcile": "false"}),
        SkipReason.OWNER_KIND: nvidias(kind="Strange"),
        SkipReason.RUNNING: nvidias(),
    }
    for reason, holder in protected.items():
        (entry,) = planned(look(holder), evicting(holder), policy=policy).entries
        assert entry.skip is reason


def test_one_that_has_ended_is_tidied_as_before():
    plan, _ = make_plan(look(refused(nvidias())), Policy(), ReconcilerState(), CODECS_IN_USE)
    assert [entry.finding.rule for entry in plan.actions] == [Rule.REFUSED]


def stray(holder, kind=ConflictKind.GPU_DIFFERS, container="main"):
    """The view of a node where a process of the pod uses a GPU that is not the pod's."""
    statements = [
        statement(holder, memory=None, scheme=NVIDIA),
        statement(holder, gpu=1, source=Source.PROCESS, container=container),
    ]
    of_node = ledger([holder], statements)
    assert {conflict.kind for conflict in of_node.conflicts} == {kind}
    return look(holder, scope=Scope.NODE, ledgers={"gpu-1": of_node})


@pytest.mark.parametrize(
    ("kind", "container"),
    [
        (ConflictKind.GPU_DIFFERS, "main"),  # on another GPU than its own
        (ConflictKind.PROCESS_WITHOUT_ALLOCATION, "side"),  # of a container without a GPU
    ],
)
def test_a_process_on_a_gpu_that_is_not_its_own_is_reported_and_its_pod_evicted_only_if_allowed(
    kind, container
):
    seen, state = stray(nvidias(), kind, container), ReconcilerState()

    def entry(**policy):
        ages = Ages(drift=0.0, clock_skew=0.0)
        plan, _ = make_plan(seen, Policy(ages=ages, **policy), state, CODECS_IN_USE)
        (only,) = [each for each in plan.entries if each.finding.rule is Rule.UNOWNED_PROCESS]
        return only

    assert (entry().finding.action, entry().skip) == (None, None)
    applied = {"modes": {Rule.UNOWNED_PROCESS: Mode.APPLY}}
    assert entry(**applied).skip is SkipReason.SCHEME_MODE_PLAN
    allowed = entry(act_on_schemes=("nvidia",), **applied)
    assert isinstance(allowed.finding.action, Evict)
    assert allowed.skip is None


def test_a_pod_that_has_changed_since_the_plan_is_judged_again():
    holder = nvidias()
    seen = stray(holder)
    ages = Ages(drift=0.0, clock_skew=0.0)
    modes = {Rule.UNOWNED_PROCESS: Mode.APPLY}
    policy = Policy(modes=modes, ages=ages, act_on_schemes=OBSERVED)
    plan, state = make_plan(seen, policy, ReconcilerState(), CODECS_IN_USE)
    (entry,) = plan.actions
    judge = Judge(seen, policy, state, CODECS_IN_USE)
    assert judge.current_action(entry, replace(holder, resource_version="2"), node()) is not None
    assert judge.current_action(entry, replace(holder, phase="Failed"), node()) is None
