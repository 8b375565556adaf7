"""Objects that nobody can read: each is a finding, and counts only where it could matter."""

import json

import pytest

from reconciler.apply.applier import Applier
from reconciler.cluster_index import ClusterIndex
from reconciler.model import Coverage
from reconciler.observe.kinds import ListedKinds
from reconciler.policy import Policy
from reconciler.reasons import ActionOutcome, Cause, Rule, SkipReason
from reconciler.rules.drift import gpu_drift
from reconciler.session import NoAudit
from tests.reconciler.fake_client import FakeClient
from tests.reconciler.node_samples import on_node, statement
from tests.reconciler.samples import (
    CODECS_IN_USE,
    assumed,
    holder,
    lock,
    node,
    pod,
    refused,
    replace,
    snapshot,
)
from tests.reconciler.test_cli import NODE, SICK, call, dump, planned  # noqa: F401
from tests.reconciler.test_hostile import plan_of, skips
from tests.reconciler.test_observe_kinds import Server
from tests.support.reconcile_plans import unmoved
from tests.test_malformed_objects import TENANTS, listed, nested, share_pod
from vgpu.kube.documents import ObjectPage
from vgpu.model.names import PodRef
from vgpu.model.objects import MalformedObject

REF = PodRef("uid-bad", "ml", "bad")


def unread(kind="SharePod", ref=REF, **fields):
    return MalformedObject(kind, ref, "phase: 7", **{"node": None, "annotations": {}, **fields})


def seen(*objects, malformed):
    return replace(snapshot(*objects), malformed=(malformed,))


# ---------------------------------------------------------------- commands


@pytest.mark.parametrize("what", TENANTS)
def test_a_plan_is_the_same_but_for_a_finding_that_names_it(dump, what):  # noqa: F811
    before = planned(dump(SICK))
    document = planned(dump((*SICK, share_pod("bad", **TENANTS[what]))))
    assert document["actions"] == before["actions"]
    (finding,) = document["findings"]
    assert (finding["rule"], finding["reason"]) == ("malformed_object", "malformed")
    assert (finding["kind"], finding["namespace"], finding["name"]) == ("SharePod", "ml", "bad")


@pytest.mark.parametrize("depth", [300, 2_000, 20_000])
def test_an_object_that_is_nested_without_end_costs_no_other_its_plan(tmp_path, depth):
    file = tmp_path / "dump.json"
    file.write_bytes(listed(*SICK, nested(depth)))
    assert len(planned(str(file))["actions"]) == 2


def test_it_is_counted_in_the_metrics(dump):  # noqa: F811
    result = call("plan", "--from", dump((*SICK, share_pod(spec="x"))), "-o", "prometheus")
    assert result.exit_code == 3
    (line,) = [
        each
        for each in result.stdout.splitlines()
        if each.startswith("vgpu_reconcile_findings{") and 'rule="malformed_object"' in each
    ]
    assert line.endswith((" 1", " 1.0"))


def test_a_list_with_one_is_complete():
    page = ObjectPage((), malformed=(unread(),))
    found = ListedKinds(Server(share_pods=[page])).share_pods()
    assert found.complete
    assert found.malformed == (unread(),)


def test_a_malformed_pod_of_a_dump_leaves_the_others_in_sight(dump):  # noqa: F811
    broken = json.loads(json.dumps(SICK[1]))
    broken["metadata"] |= {"name": "broken", "uid": "uid-broken"}
    broken["status"]["phase"] = 7
    document = planned(dump((*SICK, broken)))
    assert len(document["actions"]) == 2
    assert [each["name"] for each in document["findings"]] == ["broken"]


# ---------------------------------------------------------------- as far as it matters


@pytest.mark.parametrize(
    ("hidden", "skip_reason"),
    [
        (unread("Pod", node="gpu-1"), SkipReason.INCOMPLETE_VIEW),
        (unread("Pod", node=None), SkipReason.INCOMPLETE_VIEW),
        (unread("Pod", node="gpu-2"), None),
        (unread("SharePod", node="gpu-1"), None),  # KubeShare is not in use there
    ],
)
def test_annotations_are_not_repaired_where_somebody_holds_nobody_knows_what(hidden, skip_reason):
    train = pod()
    torn = replace(on_node(train, statements=[statement(train, gpu=1)]), malformed=(hidden,))
    (finding,) = gpu_drift(ClusterIndex(torn, CODECS_IN_USE), Policy())
    assert finding.skip_reason is skip_reason


def test_a_share_pod_that_is_placed_nowhere_holds_nothing():
    for where, hides in ((None, True), ("gpu-1", True), ("gpu-2", False), ("", False)):
        torn = seen(node("gpu-1"), holder(), malformed=unread(node=where))
        assert bool(ClusterIndex(torn, CODECS_IN_USE).hidden_tenants("gpu-1")) == hides


def test_on_a_node_that_cannot_be_read_nobody_is_touched_and_elsewhere_they_are():
    pods = [refused(pod("a", node="gpu-1")), refused(pod("b", node="gpu-2"))]
    torn = replace(
        snapshot(node("gpu-2"), *pods), malformed=(unread("Node", PodRef("", "", "gpu-1")),)
    )
    plan = plan_of(torn, Rule.REFUSED)
    assert [entry.finding.object_ref.name for entry in plan.actions] == ["b"]
    assert skips(plan) == {"a": SkipReason.INCOMPLETE_VIEW}


def test_a_lock_whose_owner_cannot_be_read_stays():
    owner = assumed("owner", "hami")
    locked = node("gpu-1", annotations=lock(owner))
    gone = plan_of(snapshot(locked), Rule.STALE_LOCK)
    assert [entry.finding.cause for entry in gone.actions] == [Cause.OWNER_GONE]
    hidden = plan_of(seen(locked, malformed=unread("Pod", owner.ref)), Rule.STALE_LOCK)
    assert skips(hidden) == {"gpu-1": SkipReason.INCOMPLETE_VIEW}
    other = plan_of(seen(locked, malformed=unread("Pod")), Rule.STALE_LOCK)
    assert len(other.actions) == 1


@pytest.mark.parametrize("where", ["gpu-1", "", None])
def test_a_lock_without_an_owner_stays_while_a_pod_that_cannot_be_read_may_wait(where):
    locked = node("gpu-1", "volcano", annotations=lock(style="volcano"))
    hidden = unread("Pod", node=where)
    plan = plan_of(seen(locked, malformed=hidden), Rule.STALE_LOCK)
    assert skips(plan) == {"gpu-1": SkipReason.INCOMPLETE_VIEW}
    elsewhere = unread("Pod", node="gpu-2")
    planned_ = plan_of(seen(locked, malformed=elsewhere), Rule.STALE_LOCK)
    assert len(planned_.actions) == 1
    client = FakeClient(locked)
    client.malformed = (hidden,)
    (result,) = Applier(client, NoAudit()).apply(planned_, unmoved(CODECS_IN_USE))
    assert result.outcome is ActionOutcome.CHANGED
    assert "ml/bad" in result.detail


@pytest.mark.parametrize(
    "user",
    [
        unread(annotations={"kubeshare/GPUID": "abcde"}),
        unread(annotations={"kubeshare/GPUID": "abcde"}, node="gpu-1"),
        unread(annotations=None),
        unread("Pod", annotations={"kubeshare/GPUID": "abcde"}),
    ],
)
def test_a_holder_stays_while_somebody_who_cannot_be_read_may_use_its_gpu(user):
    assert plan_of(seen(holder(), malformed=user), Rule.KUBESHARE).actions == ()
    planned_ = plan_of(snapshot(holder()), Rule.KUBESHARE)
    assert len(planned_.actions) == 1
    client = FakeClient(holder())
    client.malformed = (user,)
    (result,) = Applier(client, NoAudit()).apply(planned_, unmoved(CODECS_IN_USE))
    assert result.outcome is ActionOutcome.CHANGED


@pytest.mark.parametrize(
    "other",
    [
        unread(),
        unread(annotations={"kubeshare/GPUID": "other"}),
        unread(annotations={"kubeshare/GPUID": "abcde"}, node="gpu-2"),
    ],
)
def test_a_holder_of_another_gpu_goes(other):
    assert len(plan_of(seen(holder(), malformed=other), Rule.KUBESHARE).actions) == 1


def test_it_makes_no_view_incomplete():
    assert Coverage.SHARE_PODS in seen(holder(), malformed=unread()).complete
