"""A ResourceQuota whose count is not what pods request: which pods explain the difference."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Coverage, ObjectKind
from reconciler.policy import Mode, Policy
from reconciler.reasons import Cause, Rule
from reconciler.rules.quotas import quota_drift
from tests.reconciler.samples import (
    CODECS_IN_USE,
    HOUR,
    NOW,
    pod,
    real_pod,
    refused,
    replace,
    share_pod,
    snapshot,
)
from vgpu.model.names import PodRef
from vgpu.model.objects import MalformedObject, ResourceQuota

RESOURCE = "volcano.sh/vgpu-number"
ENTRY = f"requests.{RESOURCE}"


def quota(used, entry=ENTRY, **fields):
    return ResourceQuota("ml", "q", {entry: "100"}, {entry: str(used)}, **fields)


def found(*objects, complete=frozenset({Coverage.QUOTAS}), **fields):
    sight = snapshot(*objects, **fields)
    index = ClusterIndex(replace(sight, complete=sight.complete | complete), CODECS_IN_USE)
    return list(quota_drift(index, Policy()))


def only(*objects, **fields):
    (finding,) = found(*objects, **fields)
    return finding


def leaving(of):
    """A pod whose deletion has been due for an hour."""
    return replace(of, deleted_at=NOW - HOUR)


def test_what_pods_request_is_no_finding_whether_they_are_placed_or_not():
    pods = [pod("a"), pod("b", gpu=1), pod("waits", node="", claim=None)]
    assert not found(*pods, resource_quotas=(quota(3),))


def test_a_count_that_no_pod_explains():
    for used in (0, 3):
        finding = only(pod("a"), pod("b"), resource_quotas=(quota(used),))
        assert (finding.rule, finding.cause) == (Rule.QUOTA_DRIFT, Cause.COUNT_DIFFERS)
        assert finding.evidence == (f"Kubernetes counts {used}, and its pods request 2",)
        assert finding.action is None


def test_the_object_is_the_entry_of_the_resource_quota():
    object_ref = only(pod("a"), resource_quotas=(quota(5),)).object_ref
    assert (object_ref.kind, object_ref.namespace, object_ref.name, object_ref.part) == (
        ObjectKind.RESOURCE_QUOTA,
        "ml",
        "q",
        ENTRY,
    )


def test_pods_that_have_ended_and_still_count_are_named():
    finding = only(pod("a"), refused(pod("b")), resource_quotas=(quota(2),))
    assert finding.cause is Cause.ENDED_COUNTED
    assert finding.evidence[1] == "pod b requests 1 and has ended (Failed)"
    assert not found(pod("a"), refused(pod("b")), resource_quotas=(quota(1),))


def test_a_pod_that_does_not_end_and_no_longer_counts_is_named():
    pods = [pod("a"), leaving(pod("b"))]
    assert not found(*pods, resource_quotas=(quota(2),))
    finding = only(*pods, resource_quotas=(quota(1),))
    assert finding.cause is Cause.TERMINATING_HOLDS
    assert finding.evidence[1] == "pod b requests 1 and does not end"


def test_a_pod_that_leaves_and_holds_nothing_is_no_finding():
    waits = leaving(pod("b", node="", claim=None))
    assert not found(pod("a"), waits, resource_quotas=(quota(1),))


def test_share_pods_count_for_no_resource_quota():
    wanted = share_pod()
    finding = only(wanted, real_pod(wanted), resource_quotas=(quota(0),))
    assert (finding.cause, finding.object_ref.part) == (Cause.SHARE_PODS_UNCOUNTED, "")
    assert finding.evidence[0] == "1 pod of SharePods with 1 share and 8.0 GiB"


def test_every_cause_in_one_namespace_is_found_beside_the_others():
    memory = "requests.volcano.sh/vgpu-memory"
    wanted = share_pod()
    pods = [pod("a"), leaving(pod("b")), refused(pod("c")), wanted, real_pod(wanted)]
    units = pods[0].containers[0].limits["volcano.sh/vgpu-memory"]
    counts = {ENTRY: "1", memory: str(3 * units)}
    both = ResourceQuota("ml", "q", dict.fromkeys(counts, "100"), counts)
    assert {each.object_ref.part: each.cause for each in found(*pods, resource_quotas=(both,))} == {
        ENTRY: Cause.TERMINATING_HOLDS,
        memory: Cause.ENDED_COUNTED,
        "": Cause.SHARE_PODS_UNCOUNTED,
    }


@pytest.mark.parametrize("amount", ["", "many", "1e99"])
def test_a_count_that_cannot_be_read_is_not_compared(amount):
    assert not found(pod("a"), resource_quotas=(quota(amount),))


def test_what_was_not_seen_in_full_is_not_compared():
    assert not found(pod("a"), resource_quotas=(quota(9),), complete=frozenset())
    assert not found(pod("a"), resource_quotas=(quota(9, scoped=True),))
    opted_out = quota(9, annotations={"vgpu.dev/reconcile": "false"})
    assert not found(pod("a"), resource_quotas=(opted_out,))
    broken = MalformedObject("Pod", PodRef("u", "ml", "broken"), "no JSON")
    assert not found(pod("a"), resource_quotas=(quota(9),), malformed=(broken,))


def test_entries_that_kubernetes_does_not_count_are_not_compared():
    assert not found(pod("a"), resource_quotas=(quota(9, "limits.nvidia.com/gpumem"),))


def test_another_namespaces_pods_do_not_count():
    assert not found(pod("a"), pod("b", namespace="other"), resource_quotas=(quota(1),))


def test_the_quotas_are_read_unless_both_rules_are_off():
    modes = dict.fromkeys((Rule.OVER_QUOTA, Rule.QUOTA_DRIFT), Mode.OFF)
    assert not Policy(modes=modes).reads_quotas
    for rule in modes:
        assert Policy(modes={**modes, rule: Mode.PLAN}).reads_quotas


@given(st.lists(st.sampled_from(["runs", "waits", "failed", "leaving"]), max_size=6), st.data())
def test_the_count_of_kubernetes_is_never_a_finding_and_any_other_always_is(traits, data):
    make = {
        "runs": pod,
        "waits": lambda name: pod(name, node="", claim=None),
        "failed": lambda name: refused(pod(name)),
        "leaving": lambda name: leaving(pod(name)),
    }
    pods = [make[trait](f"p{number}") for number, trait in enumerate(traits)]
    counted = sum(trait in ("runs", "waits") for trait in traits)
    with_leaving = counted + traits.count("leaving")
    assert not found(*pods, resource_quotas=(quota(with_leaving),))
    wrong = data.draw(st.integers(0, 10).filter(lambda used: used != with_leaving))
    assert len(found(*pods, resource_quotas=(quota(wrong),))) == 1
