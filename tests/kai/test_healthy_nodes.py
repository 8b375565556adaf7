"""On a healthy node of KAI Scheduler nothing is wrong, and no rule acts on any of its pods."""

import pytest
from hypothesis import given
from msgspec import structs

from reconciler.model import ObjectKind
from reconciler.plan import make_plan
from reconciler.policy import OBSERVED, Ages, Mode, Policy
from reconciler.reasons import Rule
from reconciler.reconciler_state import ReconcilerState
from tests.kai.kai_world import HOUR, KaiNode, Seen, TenantPod, kai_nodes
from tests.support.kai_pods import LABEL_MIB, gpu, replaced
from vgpu.ledger.from_kai import node_groups
from vgpu.ledger.limit_verdict import LimitState
from vgpu.ledger.statements import Statement
from vgpu.model.allocation import Share
from vgpu.model.names import PodRef, Source
from vgpu.model.units import MIB
from vgpu.schemes.kai.keys import KAI
from vgpu.schemes.kai.request import asked
from vgpu.schemes.registry import registry

ALL_IN = Policy(
    modes=dict.fromkeys(Rule, Mode.APPLY),
    ages=Ages(idle=60.0),
    owners=("ReplicaSet", "StatefulSet", "Job"),
    evict_bare=True,
    evict_running=True,
    act_on_schemes=OBSERVED,
    protected_namespaces=(),
    priority_ceiling=2**31 - 1,
)
"""Everything that an operator may allow."""


def plans(seen):
    """The plans of both reconcilers."""
    for snapshot in (seen.node_snapshot(), seen.cluster_snapshot()):
        yield make_plan(snapshot, ALL_IN, ReconcilerState(), registry().codecs({}))[0]


@given(kai_nodes())
def test_no_rule_acts_on_a_pod_or_judges_a_reservation_pod(node):
    seen = Seen(node)
    reserved = {pod.ref.uid for pod in seen.reservations}
    for plan in plans(seen):
        acted = [entry.finding.object_ref for entry in plan.actions]
        assert [each for each in acted if each.kind is not ObjectKind.FOLDER] == []
        assert not reserved & {entry.finding.object_ref.uid for entry in plan.entries}
        judged = {entry.finding.rule for entry in plan.entries}
        assert judged <= {Rule.IDLE_HOLDER, Rule.ORPHAN_SHIM_DIR}


@given(kai_nodes())
def test_each_tenant_holds_what_the_scheduler_counts_and_no_reservation_pod_holds_anything(node):
    seen = Seen(node)
    ledger, _ = seen.ledger_and_usage()
    held = {}
    for holding in ledger.holdings:
        place = holding.pod.uid, holding.share.device
        held[place] = holding.share.memory_bytes, holding.scheme, holding.container
    assert ledger.conflicts == ()
    assert Source.RESERVATION_POD in ledger.read
    for pod in seen.reservations:
        assert pod.ref.uid not in {uid for uid, _ in held}
    if not node.reads_api:
        return
    for number, pod in enumerate(seen.tenants):
        for group in node.tenants[number].groups:
            size = asked(pod).room_mib(LABEL_MIB) * MIB
            assert held[pod.ref.uid, gpu(group)] == (size, KAI, "main")
    assert len(held) == sum(len(each.groups) for each in node.tenants)
    for entry in ledger.devices:
        assert entry.held.memory_bytes <= entry.device.memory_bytes


@given(kai_nodes())
def test_without_the_api_server_only_tenants_that_run_are_known(node):
    seen = Seen(KaiNode(node.gpus, node.tenants, node.has_isolator, True, False, node.whole_gpu))
    ledger, usage = seen.ledger_and_usage()
    users = {
        pod.ref.uid
        for pod, of_pod in zip(seen.tenants, node.tenants, strict=True)
        if of_pod.used_mib is not None or node.has_isolator
    }
    assert {holding.pod.uid for holding in ledger.holdings} == users
    assert {holding.scheme for holding in ledger.holdings} <= {KAI}
    assert {one.scheme for one in usage.containers} <= {KAI}


@given(kai_nodes())
def test_a_limit_is_the_librarys_and_none_without_it(node):
    _, usage = Seen(node).ledger_and_usage()
    for share in usage.shares:
        assert (share.limit_bytes is not None) == node.has_isolator
        assert not share.is_over_limit


@given(kai_nodes())
def test_a_list_of_some_pods_takes_nothing_from_what_the_node_shows(node):
    """The list lacks the reservation pods, as one of a single namespace does."""
    seen = Seen(KaiNode(node.gpus, node.tenants, node.has_isolator, True, False, node.whole_gpu))
    blind, _ = seen.ledger_and_usage()
    listed, _ = seen.ledger_and_usage(pods=seen.tenants)
    for ledger in (blind, listed):
        reserved = {pod.ref.uid for pod in seen.reservations}
        assert reserved.isdisjoint(holding.pod.uid for holding in ledger.holdings)
        assert ledger.conflicts == ()
    users = {holding.pod.uid for holding in blind.holdings}
    assert users <= {holding.pod.uid for holding in listed.holdings}


ONE = TenantPod((0,), 27, True, 1000, 60.0, False)


@pytest.mark.parametrize("reads_api", [True, False])
def test_a_region_of_the_isolator_is_of_kai(reads_api):
    seen = Seen(KaiNode(1, (ONE,), True, True, reads_api, False))
    ledger, usage = seen.ledger_and_usage()
    (holding,) = ledger.holdings
    (share,) = usage.shares
    assert (holding.scheme, share.scheme) == (KAI, KAI)
    assert share.limit_bytes == 4300 * MIB
    assert holding.share.memory_bytes == (LABEL_MIB * 27 // 100 if reads_api else 4300) * MIB
    assert share.used_bytes == 1000 * MIB


@pytest.mark.parametrize("used_mib", [None, 1000])
def test_a_region_of_the_isolator_whose_container_has_ended_is_of_kai(used_mib):
    """With a process that the kernel still shows, and without one."""
    seen = Seen(KaiNode(1, (structs.replace(ONE, used_mib=used_mib),), True, True, True, False))
    ended = replaced(seen.tenants[0], {"phase": "Succeeded"})
    seen.tenants, seen.pods = [ended], (*seen.reservations, ended)
    ledger, usage = seen.ledger_and_usage()
    assert [share.scheme for share in usage.shares] == [KAI]
    assert [holding.scheme for holding in ledger.holdings] == ([KAI] if used_mib else [])


def test_a_region_whose_pod_is_gone_is_of_kai_only_on_gpus_of_reservation_pods():
    seen = Seen(KaiNode(1, (ONE,), True, True, True, False))
    own, others = (
        Statement(Source.SHIM, PodRef(uid, "", ""), "main", tuple(map(Share, devices)))
        for uid, devices in (("uid-gone", [gpu(0)]), ("uid-other", [gpu(0), gpu(1)]))
    )
    groups = node_groups(seen.pods, (), (), seen.object, dict, lists_all=True)
    assert groups.pods_of_regions((own, others)) == {"uid-gone", seen.tenants[0].ref.uid}


def test_without_the_isolator_nothing_is_enforced():
    seen = Seen(KaiNode(1, (ONE,), False, True, True, False))
    _, usage = seen.ledger_and_usage()
    (container,) = usage.containers
    assert container.limit_reason.state is LimitState.NONE_BY_DESIGN
    assert [share.limit_bytes for share in usage.shares] == [None]


def test_an_idle_tenant_is_reported_and_a_reservation_pod_never():
    idle = TenantPod((0,), 50, False, None, 100 * HOUR, False)
    seen = Seen(KaiNode(1, (idle,), False, True, True, False))
    (plan, _) = plans(seen)
    found = [entry.finding for entry in plan.entries if entry.finding.rule is Rule.IDLE_HOLDER]
    assert [finding.object_ref.name for finding in found] == ["tenant-0"]
