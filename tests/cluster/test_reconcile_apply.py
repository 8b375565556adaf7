"""Applying plans, undoing them, leading and remembering, against a real API server."""

from contextlib import ExitStack, contextmanager

import pytest

from reconciler.apply.applier import Applier, ApplyOptions
from reconciler.apply.audit import Audit, read
from reconciler.apply.restore import Undo, restore
from reconciler.commands.run import LEASE
from reconciler.model import NobodyWaitsGuard, OwnerGuard, OwnerState
from reconciler.reasons import ActionOutcome, Rule
from reconciler.reconciler_state import ReconcilerState
from reconciler.session import NoAudit
from reconciler.state_store import CONFIG_MAP, ConfigMapStateStore
from tests.cluster.accounts import HOME, account
from tests.support import sample_cluster as sample
from tests.support.bed import crds, objects
from tests.support.bed.client import Refused
from tests.support.reconcile_plans import editing, evicting, plan, unmoved
from tests.support.waiting import wait_until
from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.leader_election import LeaderElector
from vgpu.schemes.volcano.codec import HAMI, Volcano
from vgpu.schemes.volcano.node import lock_text

GPUSHARE = {"aliyun.com/gpu-mem": "8"}
CLAIM = "ALIYUN_COM_GPU_MEM_IDX"
LOCK = HAMI.locks[0]
NOW = 1_790_000_000.0


@pytest.fixture
def cluster(api):
    with ApiClient.connect(str(account(api, "reconciler").kubeconfig)) as connected:
        yield connected


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "audit.jsonl")


@pytest.fixture
def pods(api, cluster, api_namespace):
    """Makes pods that no node runs, in a phase of our choice: as we see them, and in full."""

    def make(name="victim", phase="Pending", **fields):
        made = api.client.create(
            objects.pod(
                name,
                api_namespace,
                limits=GPUSHARE,
                labels={"app": "web"},
                nodeSelector={"no": "node"},
                annotations=fields.pop("annotations", {}),
                **fields,
            )
        )
        if phase != "Pending":
            ready = {"type": "Ready", "status": "True" if phase == "Running" else "False"}
            status = {"status": {"phase": phase, "conditions": [ready]}}
            made = api.client.patch(made, status, "status")
        return cluster.pod(api_namespace, name), made

    return make


@pytest.fixture
def nodes(api, cluster):
    """Makes nodes with these annotations; they are deleted at the end."""
    with ExitStack() as stack:

        def make(name, **annotations):
            manifest = sample.node(name)
            manifest["metadata"]["annotations"] = annotations
            made = api.client.create({**manifest, "status": {}})
            stack.callback(api.client.delete, made)
            return cluster.node(name), made

        yield make


def apply(cluster, path, *entries, **options):
    with Audit.open(path) as audit:
        applier = Applier(cluster, audit, ApplyOptions(**{"deadline_seconds": 5.0} | options))
        return list(applier.apply(plan(*entries), unmoved((Volcano(HAMI),))))


def one(cluster, path, entry, **options):
    (result,) = apply(cluster, path, entry, **options)
    return result


def budget(client, namespace, name, **status):
    """A disruption budget that nothing but this has counted."""
    made = client.create(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
        }
    )
    counted = {"currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}
    counted |= {"observedGeneration": 1, "disruptionsAllowed": 0} | status
    client.patch(made, {"status": counted}, "status")


def reasons(client, obj):
    return {event["reason"]: event["count"] for event in client.events(obj)}


# ---------------------------------------------------------------- evictions


@pytest.mark.parametrize("phase", ["Pending", "Running", "Failed"])
def test_a_pod_is_evicted_in_every_phase(api, cluster, pods, path, phase):
    seen, made = pods(phase=phase)
    assert one(cluster, path, evicting(seen)).outcome is ActionOutcome.DONE
    assert api.client.find(made) is None
    assert reasons(api.client, made) == {"VgpuEvicted": 1}
    assert [record.outcome for record in read(path)] == [None, ActionOutcome.DONE]


def test_a_pod_that_runs_by_now_is_skipped(api, cluster, pods, path):
    seen, made = pods()
    api.client.patch(made, {"status": {"phase": "Running"}}, "status")
    assert one(cluster, path, evicting(seen)).outcome is ActionOutcome.CHANGED
    assert api.client.find(made)


def test_a_pod_that_changes_between_the_read_and_the_eviction_is_skipped(api, cluster, pods, path):
    seen, made = pods()
    evict = cluster.evict

    def too_late(*args, **options):
        api.client.patch(made, {"status": {"phase": "Running"}}, "status")
        evict(*args, **options)

    cluster.evict = too_late
    assert one(cluster, path, evicting(seen)).outcome is ActionOutcome.CHANGED
    assert api.client.find(made)


def test_a_pod_of_the_same_name_is_another_pod(api, cluster, pods, path):
    seen, made = pods()
    api.client.delete(made, grace_seconds=0)
    _, again = pods()
    assert one(cluster, path, evicting(seen)).outcome is ActionOutcome.GONE
    assert api.client.find(again)


def test_a_disruption_budget_is_named_and_reported_again_and_again(
    api, cluster, pods, path, api_namespace
):
    seen, made = pods(phase="Running")
    failed, _ = pods("failed", phase="Failed")
    budget(api.client, api_namespace, "web-budget")
    blocked, evicted = apply(cluster, path, evicting(seen), evicting(failed))
    assert (blocked.outcome, evicted.outcome) == (ActionOutcome.BLOCKED_BY_PDB, ActionOutcome.DONE)
    assert "The disruption budget web-budget needs 1 healthy pods" in blocked.detail
    one(cluster, path, evicting(seen))
    assert reasons(api.client, made) == {"VgpuEvictionBlocked": 2}


def test_a_budget_that_gives_in_is_not_waited_for_in_vain(api, cluster, pods, path, api_namespace):
    seen, made = pods(phase="Running")
    budget(api.client, api_namespace, "web-budget")

    def given_in(_):
        held = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "web-budget", "namespace": api_namespace},
        }
        api.client.patch(held, {"status": {"disruptionsAllowed": 1}}, "status")

    waits = {"deadline_seconds": 60.0, "sleep": given_in}
    assert one(cluster, path, evicting(seen), **waits).outcome is ActionOutcome.DONE
    assert api.client.find(made) is None


def test_several_disruption_budgets_are_an_outcome_of_their_own(
    api, cluster, pods, path, api_namespace
):
    seen, made = pods(phase="Running")
    for name in ("one", "two"):
        budget(api.client, api_namespace, name, disruptionsAllowed=1)
    assert one(cluster, path, evicting(seen)).outcome is ActionOutcome.SEVERAL_PDBS
    assert api.client.find(made)


def test_a_missing_right_is_named(api, pods, path):
    seen, made = pods()
    reads = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
    with ApiClient.connect(str(api.client_for(reads).kubeconfig)) as reader:
        result = one(reader, path, evicting(seen))
    assert result.outcome is ActionOutcome.FORBIDDEN
    assert 'cannot create resource "pods/eviction"' in result.detail
    assert api.client.find(made)


# ---------------------------------------------------------------- edits


def test_a_claim_is_cleared_and_restored(api, cluster, pods, path):
    seen, made = pods(annotations={CLAIM: "1"})
    entry = editing(seen, {CLAIM: None})
    assert one(cluster, path, entry).outcome is ActionOutcome.DONE
    assert api.client.get(made)["metadata"].get("annotations", {}) == {}
    (restored,) = restore(read(path), cluster, NoAudit(), clock=lambda: NOW, dry_run=True)
    assert restored.undo is Undo.DRY_RUN
    assert api.client.get(made)["metadata"].get("annotations", {}) == {}
    undone = [
        each.undo
        for _ in "12"
        for each in restore(read(path), cluster, NoAudit(), clock=lambda: NOW)
    ]
    assert undone == [Undo.DONE, Undo.NOTHING]
    assert api.client.get(made)["metadata"]["annotations"] == {CLAIM: "1"}
    api.client.patch(made, {"metadata": {"annotations": {CLAIM: "2"}}})
    (restored,) = restore(read(path), cluster, NoAudit(), clock=lambda: NOW)
    assert restored.undo is Undo.CHANGED


def test_a_claim_that_changes_between_plan_and_apply_is_somebody_elses(api, cluster, pods, path):
    seen, made = pods(annotations={CLAIM: "1"})
    api.client.patch(made, {"metadata": {"annotations": {CLAIM: "0"}}})
    assert one(cluster, path, editing(seen, {CLAIM: None})).outcome is ActionOutcome.CHANGED
    assert api.client.get(made)["metadata"]["annotations"] == {CLAIM: "0"}


def test_a_lock_goes_with_its_owner(api, cluster, pods, nodes, path):
    owner, made_owner = pods("owner")
    locked, made = nodes("locked-1", **{LOCK: lock_text(NOW, owner.ref)})
    guard = OwnerGuard(owner.ref.namespace, "owner", OwnerState.GONE)
    entry = editing(locked, {LOCK: None}, Rule.STALE_LOCK, guards=(guard,))
    kept = one(cluster, path, entry)
    assert (kept.outcome, "is waits, was gone" in kept.detail) == (ActionOutcome.CHANGED, True)
    api.client.delete(made_owner, grace_seconds=0)
    api.client.patch(made, {"metadata": {"labels": {"heartbeat": "1"}}})
    assert one(cluster, path, entry).outcome is ActionOutcome.DONE
    assert LOCK not in api.client.get(made)["metadata"].get("annotations", {})
    assert reasons(api.client, made) == {"VgpuLockCleared": 1}


def test_a_lock_without_an_owner_goes_when_nobody_waits(api, cluster, pods, nodes, path):
    locked, _ = nodes("locked-2", vgpu4pd="x")
    _, waits = pods("waits", nodeName="locked-2")
    guards = (NobodyWaitsGuard("locked-2"),)
    entry = editing(locked, {"vgpu4pd": None}, Rule.STALE_LOCK, guards=guards)
    kept = one(cluster, path, entry)
    assert (kept.outcome, "waits may still be served" in kept.detail) == (
        ActionOutcome.CHANGED,
        True,
    )
    api.client.patch(waits, {"status": {"phase": "Failed"}}, "status")
    assert one(cluster, path, entry).outcome is ActionOutcome.DONE


def test_a_lock_that_is_taken_at_the_last_moment_stays(api, cluster, nodes, path, api_namespace):
    locked, made = nodes("locked-3", **{LOCK: "2026-01-01T00:00:00Z,ml,gone"})
    patch_node = cluster.patch_node

    def too_late(*args, **options):
        api.client.patch(made, {"metadata": {"annotations": {LOCK: "taken"}}})
        patch_node(*args, **options)

    cluster.patch_node = too_late
    guard = OwnerGuard(api_namespace, "gone", OwnerState.GONE)
    entry = editing(locked, {LOCK: None}, Rule.STALE_LOCK, guards=(guard,))
    assert one(cluster, path, entry).outcome is ActionOutcome.CHANGED
    assert api.client.get(made)["metadata"]["annotations"][LOCK] == "taken"


def test_a_share_pod_is_unbound_and_bound_again(api, cluster, path, api_namespace, crd_files):
    crds.load(api.client, crds.SHARE_POD)
    manifest = sample.share_pod("jupyter", "gpu-1", "0.4", 2**30)
    manifest["metadata"]["namespace"] = api_namespace
    manifest["metadata"]["annotations"]["kubeshare/GPUID"] = "abcde"
    del manifest["metadata"]["uid"], manifest["status"]
    made = api.client.create(manifest)
    seen = cluster.sharepod(api_namespace, "jupyter")
    entry = editing(seen, {"kubeshare/GPUID": None}, Rule.KUBESHARE, unbind="gpu-1")
    assert one(cluster, path, entry).outcome is ActionOutcome.DONE
    after = api.client.get(made)
    assert not after["spec"].get("nodeName")
    assert "kubeshare/GPUID" not in after["metadata"]["annotations"]
    (undone,) = restore(read(path), cluster, NoAudit(), clock=lambda: NOW)
    assert undone.undo is Undo.DONE
    before = api.client.get(made)
    assert before["spec"] == made["spec"]
    assert before["metadata"]["annotations"] == made["metadata"]["annotations"]


def test_a_dry_run_changes_nothing(api, cluster, pods, nodes, path):
    victim, made = pods()
    claimed, made_claimed = pods("claimed", annotations={CLAIM: "1"})
    locked, made_locked = nodes("locked-4", **{LOCK: "x"})
    everything = (made, made_claimed, made_locked)
    before = [api.client.get(each) for each in everything]
    results = apply(
        cluster,
        path,
        evicting(victim),
        editing(claimed, {CLAIM: None}),
        editing(locked, {LOCK: None}, Rule.STALE_LOCK),
        dry_run=True,
    )
    assert {result.outcome for result in results} == {ActionOutcome.DRY_RUN}
    assert [api.client.get(each) for each in everything] == before
    assert [reasons(api.client, each) for each in everything] == [{}, {}, {}]


# ---------------------------------------------------------------- leading, remembering


@contextmanager
def candidate(cluster, namespace, name):
    leader = LeaderElector(cluster, namespace, LEASE, name)
    leader.start()
    try:
        yield leader
    finally:
        leader.stop()


@pytest.fixture
def home(api, cluster):
    """The namespace where the account may have its Lease and its ConfigMap; nothing is left."""
    yield HOME
    paths = (
        f"/apis/coordination.k8s.io/v1/namespaces/{HOME}/leases/{LEASE}",
        f"/api/v1/namespaces/{HOME}/configmaps/{CONFIG_MAP}",
    )
    for path in paths:
        if api.client.find(path):
            api.client.delete(path)


def test_one_of_two_leads_and_the_other_follows_it(cluster, home):
    with candidate(cluster, home, "first") as first:
        wait_until(first.leads, "leads")
        with candidate(cluster, home, "second") as second:
            wait_until(lambda: second.holder == first.identity, "sees who leads")
            assert not second.leads()
            first.stop()
            assert not first.leads()
            wait_until(second.leads, "leads")
            kept = cluster.lease(home, LEASE)
            assert (kept.holder, kept.duration_seconds) == (second.identity, 15)
    kept = cluster.lease(home, LEASE)
    assert kept.holder == ""


def test_two_who_remember_in_one_place(cluster, home):
    one, two = (
        ConfigMapStateStore(cluster, home),
        ConfigMapStateStore(cluster, home),
    )
    assert one.load() == two.load() == ReconcilerState()
    one.save(ReconcilerState(seen={"a": 10.0, "b": 20.0}))
    assert two.save(ReconcilerState(seen={"a": 30.0})).seen == {"a": 30.0}
    assert ConfigMapStateStore(cluster, home).load().seen == {"a": 30.0}


def test_who_may_not_remember_goes_on(api, api_namespace, caplog):
    nothing = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}
    with ApiClient.connect(str(api.client_for(nothing).kubeconfig)) as reader:
        store = ConfigMapStateStore(reader, api_namespace)
        assert store.load() == ReconcilerState()
        memory = ReconcilerState(seen={"a": 10.0})
        assert store.save(memory) == store.save(memory) == memory
    reasons = [vars(record).get("reason", "") for record in caplog.records]
    assert any('cannot create resource "configmaps"' in reason for reason in reasons)
    with pytest.raises(Refused):
        api.client.get(f"/api/v1/namespaces/{api_namespace}/configmaps/vgpu-reconcile-state")
