"""Whose Failed pods are tidied: what each kind of owner does, and its own policy."""

import json
from collections import Counter

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from reconciler.apply.executor import Executor
from reconciler.model import PolicyGuard
from reconciler.observe.owners import MOST, read_owners
from reconciler.owners.eviction import ROWS, OwnerSeen, owner_id, reaction
from reconciler.plan import make_plan
from reconciler.policy import RECREATED, Limits, Policy
from reconciler.reasons import ActionOutcome, Effect, Rule, SkipReason
from reconciler.reconciler_state import ReconcilerState
from tests.reconciler.fake_client import CONFLICT, NOT_FOUND, UNREACHABLE, FakeClient
from tests.reconciler.samples import (
    CODECS_IN_USE,
    assumed,
    owner,
    pod,
    refused,
    replace,
    snapshot,
)
from tests.support.environment import ROOT
from tests.support.reconcile_plans import unmoved
from vgpu.apiserver.connection import ClusterError

MANIFESTS = ROOT / "deploy" / "manifests"

GROUP = {"leaderworkerset.sigs.k8s.io/name": "llm"}
VERSIONS = {
    "": "v1",
    "apps": "v1",
    "batch": "v1",
    "batch.volcano.sh": "v1alpha1",
    "apps.kruise.io": "v1alpha1",
    "argoproj.io": "v1alpha1",
    "sparkoperator.k8s.io": "v1beta2",
}
STEP = "train-123"


def dead(kind, group, name="sick-0", **fields):
    """A refused pod of such an owner, as that marks it."""
    labels = {}
    if kind == "LeaderWorkerSet":
        kind, group, labels = "StatefulSet", "apps", {**GROUP, f"{_LWS}worker-index": "1"}
    if kind == "JobSet":
        kind, group, labels = "Job", "batch", {"jobset.sigs.k8s.io/jobset-name": "js"}
    version = VERSIONS.get(group, "v1")
    of = owner(kind, "train", f"{group}/{version}".lstrip("/"))
    marks = {"volcano.sh/task-spec": "worker", "workflows.argoproj.io/node-id": STEP}
    made = refused(pod(name, owner=of, annotations=marks, labels=labels))
    return replace(made, **fields)


_LWS = "leaderworkerset.sigs.k8s.io/"


def seen(sick, **fields):
    """The owner's object."""
    about = {"uid": owner_id(sick).uid, "name": owner_id(sick).name}
    return OwnerSeen(json.dumps({"metadata": about, **fields}).encode())


def plan_for(sick, object_=None, policy=None):
    owners = {} if object_ is None else {owner_id(sick): object_}
    plan, _ = make_plan(
        snapshot(sick, owners=owners), policy or Policy(), ReconcilerState(), CODECS_IN_USE
    )
    (entry,) = plan.entries
    return entry


def conditions(type_, status="True"):
    return {
        "status": {
            "conditions": [{"type": "Created", "status": "True"}, {"type": type_, "status": status}]
        }
    }


def volcano(job=(), worker=(), phase="Running"):
    tasks = [{"name": "master", "policies": [EVICTED | {"action": "AbortJob"}]}]
    tasks.append({"name": "worker", "policies": list(worker)})
    return {
        "spec": {"policies": list(job), "tasks": tasks},
        "status": {"state": {"phase": phase}},
    }


EVICTED = {"event": "PodEvicted"}
RESTART = EVICTED | {"action": "RestartJob"}
VOLCANO = ("Job", "batch.volcano.sh")
GROUPS = ("LeaderWorkerSet", "leaderworkerset.x-k8s.io")
TORCH = ("PyTorchJob", "kubeflow.org")
RAY = ("RayCluster", "ray.io")
ARGO = ("Workflow", "argoproj.io")
SPARK = ("SparkApplication", "sparkoperator.k8s.io")
CLONES = ("CloneSet", "apps.kruise.io")
BROADCAST = ("BroadcastJob", "apps.kruise.io")


def group(**template):
    return {"spec": {"leaderWorkerTemplate": template}}


# ---------------------------------------------------------------- the owner's own policy

TOUCHES_NOTHING = [
    (VOLCANO, volcano(), Effect.RECOVERY),
    (VOLCANO, volcano([{"event": "PodFailed", "action": "RestartJob"}]), Effect.RECOVERY),
    (VOLCANO, volcano([RESTART], [EVICTED | {"action": "SyncJob"}]), Effect.RECOVERY),
    (VOLCANO, volcano([RESTART], phase="Completed"), Effect.TIDYING),
    (VOLCANO, {"spec": {"tasks": None, "policies": None}, "status": {}}, Effect.RECOVERY),
    (GROUPS, group(restartPolicy="None", size=4), Effect.RECOVERY),
    (TORCH, conditions("Failed"), Effect.TIDYING),
    (("MPIJob", "kubeflow.org"), conditions("Succeeded"), Effect.TIDYING),
    (RAY, {"spec": {"workerGroupSpecs": [{"numOfHosts": 1}, {}]}}, Effect.RECOVERY),
    (ARGO, {"status": {"phase": "Failed"}}, Effect.TIDYING),
    (ARGO, {"status": {"phase": "Running", "nodes": {STEP: {"phase": "Error"}}}}, Effect.TIDYING),
    (SPARK, {"status": {"applicationState": {"state": "FAILED"}}}, Effect.TIDYING),
    (CLONES, {"spec": {"replicas": 3}}, Effect.TIDYING),
    (BROADCAST, conditions("Complete"), Effect.TIDYING),
]
TOUCHES_MORE = [
    (VOLCANO, volcano([RESTART]), "its policy for PodEvicted is RestartJob"),
    (VOLCANO, volcano([{"event": "*", "action": "AbortJob"}]), "its policy for * is AbortJob"),
    (
        VOLCANO,
        volcano([{"events": ["PodFailed", "PodEvicted"], "action": "TerminateJob"}]),
        "its policy for PodEvicted is TerminateJob",
    ),
    (
        VOLCANO,
        volcano([EVICTED | {"action": "SyncJob"}], [EVICTED | {"action": "RestartTask"}]),
        "its policy for PodEvicted is RestartTask",
    ),
    (VOLCANO, volcano([EVICTED]), "its policy for PodEvicted is not set"),
    (GROUPS, group(size=4), "its restartPolicy is RecreateGroupOnPodRestart"),
    (GROUPS, group(restartPolicy="RecreateGroupOnPodRestart"), "its restartPolicy is Recreate"),
    (GROUPS, group(restartPolicy="SomethingNew"), "its restartPolicy is SomethingNew"),
    (TORCH, conditions("Running"), "it has not ended"),
    (TORCH, conditions("Failed", "False"), "it has not ended"),
    (RAY, {"spec": {"workerGroupSpecs": [{}, {"numOfHosts": 4}]}}, "it has a worker group"),
    (ARGO, {"status": {"phase": "Running"}}, "it has not noted the end"),
    (
        ARGO,
        {"status": {"phase": "Running", "nodes": {STEP: {"phase": "Running"}}}},
        "it has not noted the end",
    ),
    (SPARK, {"status": {"applicationState": {"state": "RUNNING"}}}, "its state is RUNNING"),
    (SPARK, {}, "its state is not set"),
    (CLONES, {"spec": {"volumeClaimTemplates": [{}]}}, "it has volumeClaimTemplates"),
    (BROADCAST, conditions("Running"), "it has not ended"),
]


@pytest.mark.parametrize(("kind", "object_", "effect"), TOUCHES_NOTHING)
def test_where_its_owner_touches_nothing_else_a_dead_pod_goes(kind, object_, effect):
    sick = dead(*kind)
    entry = plan_for(sick, seen(sick, **object_))
    assert (entry.skip, entry.finding.effect) == (None, effect)
    asked = owner_id(sick)
    named = f"{asked.plural}.{kind[1]} ml/{asked.name}"
    assert entry.finding.action.guards == (PolicyGuard(named),)


@pytest.mark.parametrize(("kind", "object_", "why"), TOUCHES_MORE)
def test_where_its_owner_may_touch_more_a_dead_pod_is_only_reported(kind, object_, why):
    sick = dead(*kind)
    entry = plan_for(sick, seen(sick, **object_))
    assert entry.skip is SkipReason.OWNER_POLICY
    assert entry.detail.startswith(why)


@pytest.mark.parametrize(("size", "skip"), [(4, SkipReason.OWNER_POLICY), (1, None)])
def test_with_a_leader_its_workers_are_deleted(size, skip):
    labels = {**GROUP, f"{_LWS}worker-index": "0"}
    sick = replace(dead(*GROUPS), labels=labels)
    assert plan_for(sick, seen(sick, **group(restartPolicy="None", size=size))).skip is skip


@pytest.mark.parametrize(
    "seen_",
    [
        None,
        OwnerSeen(unread="jobs.batch.volcano.sh is forbidden"),
        OwnerSeen(b"{"),
        OwnerSeen(b"[" * 10**6),
        OwnerSeen(b'{"metadata": {"uid": "of another"}}'),
    ],
    ids=["not read", "forbidden", "cut", "deep", "another"],
)
@pytest.mark.parametrize("row", [row for row in ROWS if row.judge], ids=lambda row: row.kind)
def test_what_cannot_be_read_may_touch_everything(row, seen_):
    sick = dead(row.kind, row.group)
    # The pod has no UID of its LeaderWorkerSet; but without the field the group restarts.
    allowed = {SkipReason.OWNER_POLICY} if row.kind == "LeaderWorkerSet" else set()
    assert plan_for(sick, seen_).skip in {SkipReason.OWNER_UNREAD} | allowed


@pytest.mark.parametrize("row", [row for row in ROWS if row.judge], ids=lambda row: row.kind)
def test_an_object_of_another_form_is_no_leave(row):
    sick = dead(row.kind, row.group)
    assert plan_for(sick, seen(sick, spec=7, status=7)).skip is SkipReason.OWNER_UNREAD


@given(
    st.binary()
    | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(
        lambda value: json.dumps({"spec": value, "status": value}).encode()
    )
)
def test_no_object_whatsoever_makes_a_judge_fail(text):
    for row in ROWS:
        if row.judge:
            row.judge(text, "part")


# ---------------------------------------------------------------- kinds without a policy


@pytest.mark.parametrize(
    ("kind", "effect"),
    [
        (("ReplicaSet", "apps"), Effect.TIDYING),
        (("ReplicationController", ""), Effect.TIDYING),
        (("StatefulSet", "apps"), Effect.RECOVERY),
        (("StatefulSet", "apps.kruise.io"), Effect.RECOVERY),
        (("Job", "batch"), Effect.TIDYING),
        (("JobSet", "jobset.x-k8s.io"), Effect.TIDYING),
    ],
)
def test_of_kinds_that_take_no_notice_dead_pods_are_tidied(kind, effect):
    entry = plan_for(dead(*kind))
    assert (entry.skip, entry.finding.effect) == (None, effect)
    assert entry.finding.action.guards == ()


@pytest.mark.parametrize("kind", [("Job", "batch"), ("JobSet", "jobset.x-k8s.io")])
def test_a_pod_that_its_job_has_not_counted_yet_is_left_to_it(kind):
    assert plan_for(dead(*kind, tracked=True)).skip is SkipReason.JOB_POD


@pytest.mark.parametrize(
    "kind",
    [("Pod", ""), ("Workflow", "example.com"), ("Job", "example.com"), ("ReplicaSet", "other.io")],
)
def test_kinds_that_are_not_known_are_only_reported(kind):
    entry = plan_for(dead(*kind))
    assert entry.skip is SkipReason.OWNER_KIND
    assert entry.detail.startswith(kind[0])


def test_daemon_sets_of_anybody_keep_their_pods():
    assert plan_for(dead("DaemonSet", "apps.kruise.io")).skip is SkipReason.DAEMON_SET_POD


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind}.{row.group}")
def test_living_pods_are_evicted_for_the_configured_kinds_only(row):
    sick = dead(row.kind, row.group)
    lives = replace(assumed(owner=sick.owner), labels=sick.labels)
    entry = plan_for(lives)
    expected = row.kind in RECREATED and row.group in ("apps", "")
    assert (entry.skip is None) is expected


# ---------------------------------------------------------------- what the configuration allows


@pytest.mark.parametrize(
    ("allowed", "kind", "done"),
    [
        ("Job", ("Job", "batch"), True),
        ("Job.batch", ("Job", "batch"), True),
        ("Job", VOLCANO, False),
        ("Job.batch.volcano.sh", VOLCANO, True),
        ("Job.batch.volcano.sh", ("Job", "batch"), False),
        ("PyTorchJob", TORCH, True),
        ("PyTorchJob.kubeflow.org", TORCH, True),
        ("PyTorchJob.example.com", TORCH, False),
        ("StatefulSet", GROUPS, False),
        ("LeaderWorkerSet", GROUPS, True),
        ("Job", ("JobSet", "jobset.x-k8s.io"), False),
        ("JobSet", ("JobSet", "jobset.x-k8s.io"), True),
        ("Workflow", ("Workflow", "example.com"), True),
        ("ReplicaSet", ("ReplicaSet", "other.io"), False),
    ],
)
def test_one_key_allows_a_kind_by_its_name_or_with_its_group(allowed, kind, done):
    policy = Policy(owners=(allowed,))
    for tracked in (True, False) if "Job" in kind[0] and not done else (True,):
        sick = dead(*kind, tracked=tracked)
        lives = replace(assumed(owner=sick.owner), labels=sick.labels)
        assert (plan_for(lives, policy=policy).skip is None) is done
    if done:
        entry = plan_for(dead(*kind, tracked=True), policy=policy)
        assert (entry.skip, entry.finding.action.guards) == (None, ())


def test_a_kind_that_the_configuration_leaves_out_is_skipped():
    policy = Policy(owners=("StatefulSet",))
    assert plan_for(dead("ReplicaSet", "apps"), policy=policy).skip is SkipReason.OWNER_KIND


# ---------------------------------------------------------------- reading them


def of(sick, text=b"{}", error=None):
    """A reader that knows one owner, and what was asked of it."""
    asked = []

    def read(*parts):
        asked.append(parts)
        if error is not None:
            raise error
        return text

    return read, asked


def test_only_owners_of_failed_pods_whose_policy_decides_are_read_each_once():
    torch = [dead(*TORCH, name=f"sick-{at}") for at in range(3)]
    others = [
        dead("ReplicaSet", "apps"),
        dead("Pod", ""),
        pod(owner=torch[0].owner),
        pod(kind=None),
    ]
    read, asked = of(torch[0])
    owners = read_owners(read, [*torch, *others, dead(*GROUPS)])
    assert asked == [
        ("kubeflow.org", "v1", "pytorchjobs", "ml", "train"),
        ("leaderworkerset.x-k8s.io", "v1", "leaderworkersets", "ml", "llm"),
    ]
    assert {each.text for each in owners.values()} == {b"{}"}


FORBIDDEN = ClusterError(403, "Forbidden", "pytorchjobs.kubeflow.org is forbidden")


@pytest.mark.parametrize(
    ("error", "unread"),
    [(NOT_FOUND, "it is not there"), (FORBIDDEN, FORBIDDEN.message), (CONFLICT, str(CONFLICT))],
)
def test_an_unreadable_owner_has_its_reason_and_costs_no_other(error, unread):
    sick = dead(*TORCH)
    read, asked = of(sick, error=error)
    owners = read_owners(read, [sick, dead(*RAY)])
    assert owners[owner_id(sick)] == OwnerSeen(unread=unread)
    assert len(asked) == 2


def test_a_silent_server_is_not_asked_again_and_again():
    read, asked = of(None, error=UNREACHABLE)
    owners = read_owners(read, [dead(*TORCH), dead(*RAY)])
    assert len(asked) == 1
    assert all(each.unread for each in owners.values())


def test_one_tenants_owners_keep_nobody_elses_from_being_read():
    many = [dead(*TORCH, name=f"a-{at}") for at in range(3 * MOST)]
    many = [replace(each, owner=replace(each.owner, name=each.ref.name)) for each in many]
    other = replace(dead(*TORCH), ref=replace(many[0].ref, namespace="zz", uid="uid-of-zz"))
    read, asked = of(None)
    owners = read_owners(read, [*many, other])
    assert Counter(namespace for *_, namespace, _ in asked) == {"ml": MOST - 1, "zz": 1}
    assert len(owners) == 3 * MOST + 1
    assert sum(bool(each.unread) for each in owners.values()) == 2 * MOST + 1


def test_of_too_many_owners_others_are_read_at_another_look():
    many = [dead(*TORCH, name=f"a-{at}") for at in range(3 * MOST)]
    many = [replace(each, owner=replace(each.owner, name=each.ref.name)) for each in many]
    read, asked = of(None)
    for look in range(4):
        read_owners(read, many, turn=1_790_000_000 + 131 * look)
    assert len(set(asked)) == 131 * 3 + MOST
    assert read_owners(read, []) == {}


@pytest.mark.parametrize("version", ["kubeflow.org/v1/../x", "kubeflow.org/", "kubeflow.org/V1"])
def test_no_version_that_a_tenant_writes_leads_elsewhere(version):
    sick = dead(*TORCH)
    sick = replace(sick, owner=replace(sick.owner, api_version=version))
    asked = owner_id(sick)
    assert asked is None or asked.version == "v1"


# ---------------------------------------------------------------- just before the eviction


def act(sick, planned_with, now):
    entry = plan_for(sick, planned_with)
    client = FakeClient(sick)
    client.owners[owner_id(sick).name] = now
    return Executor(client, unmoved()).act(entry), client


def test_its_policy_is_asked_once_more_just_before():
    sick = dead(*VOLCANO)
    harmless = seen(sick, **volcano())
    answer, client = act(sick, harmless, harmless.text)
    assert (answer.outcome, client.has("sick-0")) == (ActionOutcome.DONE, False)
    answer, client = act(sick, harmless, seen(sick, **volcano([RESTART])).text)
    assert (answer.outcome, client.has("sick-0")) == (ActionOutcome.CHANGED, True)
    assert "its policy for PodEvicted is RestartJob" in answer.detail


@pytest.mark.parametrize(
    ("now", "outcome"),
    [
        (NOT_FOUND, ActionOutcome.CHANGED),
        (FORBIDDEN, ActionOutcome.CHANGED),
        (UNREACHABLE, ActionOutcome.FAILED),
    ],
)
def test_without_its_owners_word_nothing_is_done(now, outcome):
    sick = dead(*VOLCANO)
    answer, client = act(sick, seen(sick, **volcano()), now)
    assert (answer.outcome, client.count("evict")) == (outcome, 0)


# ---------------------------------------------------------------- the table


def test_each_kind_has_its_consequence_and_the_source_of_it():
    for row in ROWS:
        assert row.consequence.endswith(".")
        assert any(char.isdigit() for char in row.source), row.kind
        assert bool(row.judge) == bool(row.plural)
    assert len({(row.group, row.kind) for row in ROWS}) == len(ROWS)


def test_the_reconcilers_rights_are_those_of_the_table():
    documents = yaml.safe_load_all((MANIFESTS / "reconciler-rbac.yaml").read_text())
    rules = next(each["rules"] for each in documents if each["kind"] == "ClusterRole")
    known = {row.group for row in ROWS}
    given = {
        (group, resource, *rule["verbs"])
        for rule in rules
        for group in known.intersection(rule["apiGroups"]) - {""}
        for resource in rule["resources"]
    }
    assert given == {(row.group, row.plural, "get") for row in ROWS if row.judge}


def test_a_hundred_dead_pods_of_a_job_that_restarts_everything_are_skipped():
    """Tidying one would restart all healthy ones."""
    sick = [dead(*VOLCANO, name=f"sick-{at}") for at in range(100)]
    owners = {owner_id(sick[0]): seen(sick[0], **volcano([RESTART]))}
    policy = Policy(limits=Limits(breaker_floor=1000))
    plan, _ = make_plan(snapshot(*sick, owners=owners), policy, ReconcilerState(), CODECS_IN_USE)
    assert {(entry.finding.rule, entry.skip) for entry in plan.entries} == {
        (Rule.REFUSED, SkipReason.OWNER_POLICY)
    }
    assert reaction(sick[0], owners[owner_id(sick[0])]).touches
