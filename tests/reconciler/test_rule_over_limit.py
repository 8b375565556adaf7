"""Pods that use more of a device than allocated: reported with figures, evicted only on request."""

import pytest
from hypothesis import given as for_all
from hypothesis import strategies as st

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Coverage, Evict, ObjectKind
from reconciler.plan import make_plan
from reconciler.policy import REPORTED, Ages, Mode, Policy
from reconciler.reasons import Cause, Effect, Rule, SkipReason
from reconciler.reconciler_state import ReconcilerState
from reconciler.rules import RULES
from reconciler.rules.memory_overuse import over_limit
from tests.reconciler.node_samples import on_node, statement
from tests.reconciler.samples import (
    CODECS_IN_USE,
    HOUR,
    MINUTE,
    NOW,
    SHARE,
    gpus,
    owner,
    pod,
    real_pod,
    replace,
    share_pod,
    uuid,
)
from vgpu.ledger import PRECEDENCE
from vgpu.ledger.usage import OVER_LIMIT_PERCENT, Usage
from vgpu.model.allocation import Device, Share
from vgpu.model.names import PodRef, Source
from vgpu.model.objects import MIRROR
from vgpu.model.units import GIB, MIB

HERE, THERE = uuid("gpu-1", 0), uuid("gpu-1", 1)
LIMIT = SHARE * OVER_LIMIT_PERCENT // 100
ACTS = Policy(modes={Rule.OVER_LIMIT: Mode.APPLY})
GIVERS = (
    Source.DRA_STATE,
    Source.POD_RESOURCES,
    Source.CHECKPOINT,
    Source.OWN_CHECKPOINT,
)
"""Sources out of the tenants' reach that have sizes."""


def uses(of, amount=2 * SHARE, *, device=HERE, container="main", pids=(4711,)):
    """A container's processes use so much of a device."""
    return Usage(of.kubelet_uid, container, device, amount, pids)


def look(*usage, pods, statements=None, **fields):
    """From the node, whose driver shows these; the kubelet gave each pod a share of GPU 0."""
    running = [statement(each, source=Source.PROCESS) for each in pods]
    allocations = [statement(each) for each in pods] if statements is None else statements
    return on_node(*pods, statements=[*running, *allocations], usage=usage, **fields)


def find(seen, policy=ACTS):
    return list(over_limit(ClusterIndex(seen, CODECS_IN_USE), policy))


def only(seen, policy=ACTS):
    (finding,) = find(seen, policy)
    return finding


# ---------------------------------------------------------------- what is found


def test_a_container_that_uses_more_than_its_limit_is_reported_with_figures():
    train = pod("train")
    finding = only(look(uses(train, 12 * GIB, pids=(4711, 4712)), pods=[train]), Policy())
    assert (finding.rule, finding.cause) == (Rule.OVER_LIMIT, Cause.MORE_THAN_ALLOCATED)
    assert (finding.object_ref.kind, finding.object_ref.uid) == (ObjectKind.POD, train.ref.uid)
    assert finding.action is None
    text = "\n".join(finding.evidence)
    assert f"node gpu-1 on {HERE}: main uses 12.0 GiB of 8.0 GiB, 150 %" in text
    assert "ml/train/main holds 8.0 GiB" in text
    assert "its size is from kubelet-checkpoint" in text
    assert "pid 4711, 4712" in text


def test_the_limit_has_the_tolerance_of_the_alert_and_not_a_byte_more():
    train = pod("train")
    assert find(look(uses(train, LIMIT), pods=[train])) == []
    assert find(look(uses(train, LIMIT + 1), pods=[train]))


def test_who_keeps_to_the_limit_or_is_not_seen_is_no_finding():
    train, infer = pod("train"), pod("infer")
    assert find(look(uses(train, SHARE), pods=[train, infer])) == []


@pytest.mark.parametrize("style", ["volcano", "hami", "gpushare", "gaia"])
def test_every_scheme_is_held_to_its_shares_whether_or_not_it_enforces_them(style):
    train = pod("train", style)
    seen = look(uses(train), pods=[train], statements=[statement(train, style)])
    assert only(seen).object_ref.uid == train.ref.uid


def test_several_shares_of_one_device_add_up():
    train = pod("train")
    twice = replace(statement(train), shares=(Share(HERE, SHARE), Share(HERE, SHARE)))
    for amount, found in ((2 * SHARE, 0), (3 * SHARE, 1)):
        assert len(find(look(uses(train, amount), pods=[train], statements=[twice]))) == found


def test_what_is_used_of_another_device_does_not_count_here():
    train = pod("train")
    both = replace(statement(train), shares=(Share(HERE, SHARE), Share(THERE, 4 * SHARE)))
    usage = uses(train, SHARE), uses(train, 4 * SHARE, device=THERE)
    assert find(look(*usage, pods=[train], statements=[both])) == []


def test_another_containers_share_does_not_count():
    train = pod("train")
    side = replace(statement(train, memory=4 * SHARE), container="side")
    seen = look(uses(train), pods=[train], statements=[statement(train), side])
    assert only(seen).evidence[0].startswith(f"node gpu-1 on {HERE}: main uses")


def test_a_mig_instance_is_allocated_whole():
    train = pod("train")
    slice_ = Device("MIG-1", None, 20 * GIB, parent=HERE)
    statements = [replace(statement(train), shares=(Share("MIG-1", SHARE),))]
    usage = uses(train, 2 * SHARE, device="MIG-1")
    seen = on_node(train, statements=statements, usage=(usage,), devices=(*gpus("gpu-1"), slice_))
    (holding,) = seen.ledgers["gpu-1"].of_pod(train.ref.uid)
    assert (holding.share.device, holding.share.memory_bytes) == ("MIG-1", SHARE)
    assert find(seen) == []


@pytest.mark.parametrize("memory", [None, 0])
def test_who_has_no_limit_cannot_pass_it(memory):
    train = replace(pod("train"), annotations={})
    assert find(look(uses(train), pods=[train], statements=[statement(train, memory=memory)])) == []


def test_kubeshares_pods_are_sized_by_their_own_annotations_and_not_judged():
    lab = share_pod("lab")
    runs = real_pod(lab)
    seen = look(uses(runs), uses(runs, container=""), pods=[lab, runs], statements=[])
    assert any(holding.share.memory_bytes for holding in seen.ledgers["gpu-1"].holdings)
    assert find(seen) == []


def test_a_static_pod_is_found_under_its_name_at_the_api_server():
    static = pod("train", annotations={MIRROR: "on-the-node"})
    assert only(look(uses(static), pods=[static])).object_ref.uid == static.ref.uid


def test_a_pod_that_the_api_server_does_not_know_is_only_reported():
    stray = pod("stray")
    seen = replace(look(uses(stray), pods=[stray]), pods=())
    finding = only(seen)
    assert (finding.action, finding.object_ref.uid) == (None, stray.ref.uid)


# ---------------------------------------------------------------- tenants can write


@pytest.mark.parametrize("source", GIVERS)
@pytest.mark.parametrize("lie", [Source.SHIM, Source.LIMIT_FILE, Source.ANNOTATIONS])
@pytest.mark.parametrize(("claimed", "used", "found"), [(MIB, SHARE, 0), (9 * SHARE, 2 * SHARE, 1)])
def test_what_a_tenant_writes_neither_raises_nor_lowers_the_limit(
    source, lie, claimed, used, found
):
    train = replace(pod("train"), annotations={})
    statements = [statement(train, source=source), statement(train, source=lie, memory=claimed)]
    assert len(find(look(uses(train, used), pods=[train], statements=statements))) == found


@pytest.mark.parametrize("source", [Source.SHIM, Source.LIMIT_FILE, Source.ANNOTATIONS])
def test_a_size_that_only_a_tenant_reports_is_no_limit(source):
    train = replace(pod("train"), annotations={})
    statements = [statement(train, source=source), statement(train, memory=None)]
    seen = look(uses(train), pods=[train], statements=statements)
    (holding,) = seen.ledgers["gpu-1"].of_pod(train.ref.uid)
    assert holding.share.memory_bytes == SHARE
    assert find(seen) == []


def test_a_region_that_claims_a_gpu_puts_nobody_there():
    train = replace(pod("train"), annotations={})
    claim = replace(statement(train, source=Source.SHIM), shares=(Share(HERE, SHARE),))
    assert find(on_node(train, statements=[claim], usage=(uses(train),))) == []


def test_where_the_kubelet_and_our_plugin_differ_the_pod_is_reported_and_skipped():
    """With a wrong unit every pod would be over the limit."""
    train = pod("train")
    statements = [statement(train, memory=8 * MIB), statement(train, source=Source.OWN_CHECKPOINT)]
    finding = only(look(uses(train, SHARE), pods=[train], statements=statements))
    assert finding.skip_reason is SkipReason.SIZES_DIFFER
    text = "\n".join(finding.evidence)
    assert "kubelet-checkpoint: ml/train/main: 8 MiB" in text
    assert "own-checkpoint: ml/train/main: 8.0 GiB" in text


def test_a_tenants_annotation_makes_no_doubt_of_what_they_agree_on():
    train = pod("train")
    statements = [
        statement(train),
        statement(train, source=Source.OWN_CHECKPOINT),
        statement(train, source=Source.ANNOTATIONS, memory=9 * SHARE),
    ]
    assert only(look(uses(train), pods=[train], statements=statements)).skip_reason is None


@for_all(
    sizes=st.dictionaries(st.sampled_from(PRECEDENCE), st.integers(1, 8), max_size=6),
    used=st.integers(0, 80),
)
def test_nobody_is_judged_but_by_the_word_of_the_most_trusted(sizes, used):
    """The sizes are GiB, what is used quarters of one."""
    train = replace(pod("train"), annotations={})
    statements = [
        statement(train, source=source, memory=size * GIB) for source, size in sizes.items()
    ]
    findings = find(look(uses(train, used * GIB // 4), pods=[train], statements=statements))
    limits = [sizes[source] for source in GIVERS if source in sizes]
    over = bool(limits) and used * GIB // 4 * 100 > limits[0] * GIB * OVER_LIMIT_PERCENT
    assert len(findings) == over
    assert all((one.skip_reason is not None) == (len({*limits}) > 1) for one in findings)


# ---------------------------------------------------------------- what is done about it


def test_it_only_reports_unless_it_is_configured_to_act():
    assert Rule.OVER_LIMIT in REPORTED
    assert Policy().mode(Rule.OVER_LIMIT) is Mode.PLAN
    train = pod("train")
    finding = only(look(uses(train), pods=[train]))
    assert finding.action == Evict(train.ref, train.resource_version)
    assert (finding.effect, finding.grace) == (Effect.RECOVERY, Ages().over_limit)


def plans(*looks, policy=ACTS):
    """The plans of several looks in a row."""
    memory = ReconcilerState()
    for seen in looks:
        plan, memory = make_plan(seen, policy, memory, CODECS_IN_USE)
        yield plan


def later(seen, seconds):
    return replace(seen, now=NOW + seconds)


def test_a_running_pod_goes_once_it_was_over_its_limit_in_every_look_of_the_grace():
    """However much it uses at each of them."""
    train = pod("train")
    looks = [
        later(look(uses(train, (9 + minute) * GIB), pods=[train]), minute * MINUTE)
        for minute in range(7)
    ]
    *young, ripe = plans(*looks)
    assert {entry.skip for plan in young for entry in plan.skipped} == {SkipReason.TOO_YOUNG}
    assert not any(plan.actions for plan in young)
    assert [entry.finding.action for entry in ripe.actions] == [
        Evict(train.ref, train.resource_version)
    ]


def test_a_fall_below_the_limit_in_between_restarts_the_grace():
    train = pod("train")
    over, under = look(uses(train), pods=[train]), look(uses(train, SHARE), pods=[train])
    *_, plan = plans(over, later(under, HOUR), later(over, HOUR + MINUTE))
    assert plan.actions == ()
    assert [entry.skip for entry in plan.skipped] == [SkipReason.TOO_YOUNG]


def test_each_container_has_a_time_of_its_own():
    """One that is over its limit now does not answer for what the other was before."""
    train = pod("train")
    side = replace(statement(train), container="side")
    statements = [
        statement(train),
        side,
        replace(statement(train, source=Source.PROCESS), container="side"),
    ]

    def over(*containers):
        usage = [uses(train, container=container) for container in containers]
        return look(*usage, pods=[train], statements=statements)

    *_, plan = plans(over("main"), later(over("side"), HOUR))
    assert [entry.skip for entry in plan.skipped] == [SkipReason.TOO_YOUNG]
    *_, plan = plans(over("main"), later(over("main", "side"), HOUR))
    (entry,) = plan.actions
    assert entry.finding.evidence[0].startswith(f"node gpu-1 on {HERE}: main uses")
    assert any("side uses" in line for line in entry.finding.evidence)
    assert plan.skipped == ()


@pytest.mark.parametrize(
    ("fields", "skip"),
    [
        ({"annotations": {"vgpu.dev/reconcile": "false"}}, SkipReason.OPTED_OUT),
        ({"namespace": "kube-system"}, SkipReason.PROTECTED_NAMESPACE),
        ({"kind": None}, SkipReason.BARE_POD),
        ({"owner": owner("Job")}, SkipReason.JOB_POD),
        ({"priority": 2_000_000_000}, SkipReason.HIGH_PRIORITY),
        ({"deleted_at": NOW}, SkipReason.TERMINATING),
    ],
)
def test_what_protects_a_pod_protects_it_from_this_rule_too(fields, skip):
    train = pod("train", **fields)
    seen = look(uses(train), pods=[train])
    *_, plan = plans(seen, later(seen, HOUR))
    assert [entry.skip for entry in plan.skipped] == [skip]
    assert plan.actions == ()


@pytest.mark.parametrize("missing", [Coverage.PODS, Coverage.LEDGER, Coverage.USAGE])
def test_what_was_not_seen_in_full_is_skipped(missing):
    train = pod("train")
    seen = look(uses(train), pods=[train], complete=frozenset(Coverage) - {missing})
    *_, plan = plans(seen, later(seen, HOUR))
    assert [entry.skip for entry in plan.skipped] == [SkipReason.INCOMPLETE_VIEW]


def test_only_the_view_of_a_node_has_findings():
    (entry,) = (entry for entry in RULES if entry.rule is Rule.OVER_LIMIT)
    assert {scope.value for scope in entry.scopes} == {"node"}


def test_a_container_outside_kubernetes_is_nobodys():
    train = pod("train")
    stray = Usage("", "0123456789ab", HERE, 80 * GIB, (1,))
    other = Usage("unknown", "main", HERE, 80 * GIB, (2,))
    assert find(look(stray, other, pods=[train])) == []
    assert PodRef("unknown", "", "") not in {pod.ref for pod in look(pods=[train]).pods}


def test_of_many_processes_some_are_named_and_the_rest_counted():
    train = pod("train")
    finding = only(look(uses(train, pids=tuple(range(100, 120))), pods=[train]))
    assert finding.evidence[2].endswith(
        "pid " + ", ".join(map(str, range(100, 116))) + " and 4 more"
    )
