"""What is wrong with GPU groups: conflicts of the ledger, and findings with their reason."""

import pytest

from reconciler.model import Coverage, Scope, Snapshot
from reconciler.observe.dump import uses_share_pods
from reconciler.plan import eligibility, make_plan, making
from reconciler.policy import Mode, Policy
from reconciler.reasons import Cause, Rule, SkipReason
from reconciler.reconciler_state import ReconcilerState
from reconciler.rules import RULES, RuleEntry
from reconciler.rules.findings import evict, of_pod
from reconciler.rules.kai import CAUSES
from tests.kai.kai_world import HOUR, NOW, KaiNode, Seen, TenantPod
from tests.kai.test_healthy_nodes import ALL_IN
from tests.support.kai_pods import gpu, kai_node, reservation, tenant
from vgpu.inventory import Objects, Units, detect_schemes, inventory
from vgpu.ledger.cluster import cluster
from vgpu.ledger.conflict_kinds import OF_GPU_GROUPS, ConflictKind
from vgpu.ledger.from_kai import group_evidence
from vgpu.model.names import PodRef
from vgpu.model.objects import Container
from vgpu.schemes.registry import registry


def snapshot(*pods, node=None, lists_all=True):
    """What the reconciler of the cluster sees of these pods."""
    objects = Objects((node or kai_node(),), registry().resolved(pods))
    schemes = detect_schemes(objects, Units())
    ledgers = cluster(objects.nodes, schemes.pods, schemes.codecs, lists_all=lists_all).ledgers
    return Snapshot(
        NOW,
        Scope.CLUSTER,
        frozenset(Coverage),
        nodes=objects.nodes,
        pods=schemes.pods,
        ledgers=ledgers,
        dated_by_status=True,
    )


def found(*pods, **options):
    """(cause, pod) of each finding of the rule."""
    plan = make_plan(snapshot(*pods, **options), ALL_IN, ReconcilerState(), ())[0]
    assert plan.actions == ()
    assert {entry.skip for entry in plan.entries} <= {None}
    return [
        (entry.finding.cause, entry.finding.object_ref.name)
        for entry in plan.entries
        if entry.finding.rule is Rule.KAI
    ]


DEAD = reservation(phase="Failed", reason="UnexpectedAdmissionError")
CASES = {
    Cause.GROUP_UNRESERVED: ((tenant(),), "train"),
    Cause.GROUP_SPLIT: (
        (reservation(), reservation(uuid=gpu(2), name="gpu-reservation-z"), tenant()),
        "gpu-reservation-g",
    ),
    Cause.GPU_IN_GROUPS: (
        (reservation(), reservation("h"), tenant(), tenant("other", ("h",))),
        "gpu-reservation-g",
    ),
    Cause.RESERVATION_ENDED: ((DEAD, tenant()), "gpu-reservation-g"),
    Cause.RESERVATION_UNUSED: ((reservation(),), "gpu-reservation-g"),
    Cause.PORTION_ZERO: ((reservation(), tenant(fraction="0.004")), "train"),
}


@pytest.mark.parametrize("cause", CASES)
def test_each_problem_of_a_group_is_found_with_its_pod(cause):
    pods, name = CASES[cause]
    assert found(*pods) == [(cause, name)]


def test_each_conflict_of_groups_has_a_cause():
    assert CAUSES.keys() == OF_GPU_GROUPS
    assert {Cause.RESERVATION_MOVED, *CASES} == set(CAUSES.values())


def test_another_gpu_than_the_kubelets_is_found_on_the_node():
    pods = registry().resolved((reservation(), tenant()))
    uid = pods[0].ref.uid
    for has, kinds in ((gpu(1), []), (gpu(2), [ConflictKind.RESERVATION_MOVED])):
        granted = {uid: frozenset({has})}
        evidence = group_evidence(pods, kai_node(), granted=granted, lists_all=True)
        assert [problem.kind for problem in evidence.problems] == kinds


def test_a_list_of_some_namespaces_does_not_prove_that_a_reservation_pod_is_gone():
    assert found(tenant(), lists_all=False) == []
    elsewhere = reservation("h", gpu(2)), tenant("other", ("h",))
    assert found(tenant(), *elsewhere, lists_all=False) == [(Cause.GROUP_UNRESERVED, "train")]


def test_a_whole_gpu_of_another_pod_is_none_of_a_group():
    """The kubelet has allocated the GPU of a group to its reservation pod alone."""
    whole = tenant("whole", (), "", containers=(Container("main", {"nvidia.com/gpu": 1}),))
    objects = Objects((kai_node(),), (reservation(), tenant(), whole))
    (view,) = inventory(objects, Units()).nodes
    (entry,) = view.ledger.devices
    assert view.maybe_held.memory_bytes == view.maybe_held_of(entry).memory_bytes == 0


def test_a_dump_with_reservation_pods_does_not_need_sharepods():
    assert not uses_share_pods(Objects((kai_node(),), (reservation(), tenant())))


def test_pods_that_end_or_are_deleted_need_no_reservation_pod():
    assert found(tenant(phase="Succeeded")) == []
    assert found(tenant(deleted_at=NOW - HOUR)) == []


def test_a_reservation_pod_that_has_not_reported_a_gpu_yet_is_no_problem():
    assert found(reservation(uuid="")) == []


def test_the_rule_is_off_and_on_as_any_other():
    pods = CASES[Cause.RESERVATION_UNUSED][0]
    off = Policy(modes={Rule.KAI: Mode.OFF})
    assert make_plan(snapshot(*pods), off, ReconcilerState(), ())[0].entries == ()


# ---------------------------------------------------------------- the checks are needed


def careless(cluster_index, policy):
    """A rule that would evict every pod that it sees."""
    for pod in cluster_index.all_pods:
        yield making.replace(SOMETHING, object_ref=of_pod(pod), action=evict(pod))


def something(seen):
    (entry,) = make_plan(seen, ALL_IN, ReconcilerState(), ())[0].entries
    return entry.finding


SOMETHING = making.replace(
    something(snapshot(reservation())), rule=Rule.TERMINATED, cause=Cause.OTHER, grace=0.0
)


@pytest.fixture
def careless_rule(monkeypatch):
    rules = tuple(each for each in RULES if each.rule is not Rule.TERMINATED)
    monkeypatch.setattr(making, "RULES", (*rules, RuleEntry(Rule.TERMINATED, careless)))


def evicted(seen, policy):
    plan = make_plan(seen, policy, ReconcilerState(), ())[0]
    return {
        entry.finding.object_ref.name
        for entry in (*plan.actions, *plan.skipped)
        if entry.skip in (None, SkipReason.BREAKER_TRIPPED)
    }


HEALTHY = Seen(
    KaiNode(1, (TenantPod((0,), 50, False, 100, 60.0, False),), False, True, True, False)
)


def test_a_careless_rule_reaches_no_reservation_pod_and_tenants_only_if_kai_is_named(careless_rule):
    seen = HEALTHY.cluster_snapshot()
    assert evicted(seen, ALL_IN) == {"tenant-0"}
    assert evicted(seen, making.replace(ALL_IN, act_on_schemes=())) == set()


def test_without_the_checks_the_property_of_healthy_nodes_finds_it(careless_rule, monkeypatch):
    monkeypatch.setattr(making, "is_frame", lambda *_: False)
    monkeypatch.setattr(eligibility, "other_schedulers", lambda *_: None)
    monkeypatch.setattr(eligibility, "other_scheduler", lambda _: None)
    assert evicted(HEALTHY.cluster_snapshot(), ALL_IN) == {"tenant-0", "gpu-reservation-g0"}


def test_a_tenant_of_an_unknown_group_is_no_pod_of_the_observed_scheme():
    (pod,) = registry().resolved((tenant(ref=PodRef("u", "team-a", "train")),))
    assert pod.group_gpus == ()
