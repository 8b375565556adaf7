"""What the reconciler must not do, on a real API server: whom it spares, and what may come between.

Whatever happens between plan and apply really happens; the API server itself refuses.
"""

import threading
import time
from contextlib import ExitStack, closing

import pytest

from reconciler.apply.applier import Applier, ApplyOptions
from reconciler.apply.audit import Audit
from reconciler.apply.executor import TRIES
from reconciler.cycle import Cycles
from reconciler.model import OPT_OUT, Coverage
from reconciler.observe.cluster import ListingObserver, WatchingObserver
from reconciler.policy import Ages, Limits, Mode, Policy
from reconciler.reasons import ActionOutcome, Cause, Rule
from tests.cluster.reconciling import (
    AT_ONCE,
    CLUSTER_RIGHTS,
    Command,
    forget_state,
    is_evicted,
    make_default_account,
    staged,
    version,
    with_rights,
)
from tests.reconciler import samples
from tests.reconciler.samples import replace
from tests.support.bed import crds
from tests.support.reconcile_plans import unmoved
from tests.support.waiting import WAIT_SECONDS, wait_ended
from tests.test_malformed_objects import TENANTS, share_pod
from vgpu.apiserver.client import ApiClient
from vgpu.inventory import Units
from vgpu.model.objects import MIRROR

NODE = "gpu-1"
LOCK = samples.CODECS["hami"].key_set.locks[0]
HANDSHAKE = samples.CODECS["hami"].key_set.handshake[0]
EAGER = Policy(
    modes={Rule.LOST_DEVICE: Mode.APPLY},
    limits=Limits(100, 100, 100, per_owner=1.0, breaker=1.0),
    ages=Ages(*[0.0] * len(Ages.__struct_fields__)),
)
"""Acts on everything as soon as it is seen."""


@pytest.fixture(scope="module")
def reconciler(api):
    crds.load(api.client, crds.SHARE_POD)
    make_default_account(api.client, "kube-system")
    return with_rights(api, *CLUSTER_RIGHTS)


@pytest.fixture
def command(api, reconciler, tmp_path):
    yield Command(reconciler, tmp_path)
    forget_state(api.client)


@pytest.fixture
def stage(api):
    with staged(api.client) as stage:
        stage.put(samples.node(NODE, "volcano", "hami"))
        yield stage


@pytest.fixture
def cluster(reconciler):
    with ApiClient.connect(str(reconciler.kubeconfig)) as cluster:
        yield cluster


@pytest.fixture
def cycles(cluster, tmp_path):
    """Makes cycles of which plan and apply are two steps."""
    with ExitStack() as stack:

        def make(policy=EAGER, **options):
            audit = stack.enter_context(Audit.open(str(tmp_path / "audit.jsonl")))
            apply = Applier(cluster, audit, ApplyOptions(**options)).apply
            return Cycles(ListingObserver(cluster, Units()), policy, apply=apply)

        yield make


def refused(name, namespace, **fields):
    return samples.refused(samples.pod(name, namespace=namespace, **fields))


def on_a_lost_gpu(name, namespace, **fields):
    """A running pod that its rule, which is configured to act, would evict."""
    pod = samples.pod(name, namespace=namespace, **fields)
    lost = {key: text.replace("GPU-", "GPU-f") for key, text in pod.annotations.items()}
    return replace(pod, annotations=lost)


def patch(client, obj, **metadata):
    return client.patch(obj, {"metadata": metadata})


# ---------------------------------------------------------------- who is spared


def spared(namespace):
    """A pod for each thing that protects one -> the reported reason."""
    job = {"owner": samples.owner("Job", "once")}
    daemon = {"owner": samples.owner("DaemonSet", "everywhere")}
    custom = {"owner": samples.owner("RayCluster", "ray")}
    ill = {
        "opted-out": refused("opted-out", namespace, annotations={OPT_OUT: "false"}),
        "of-the-system": refused("of-the-system", "kube-system"),
        "static": refused("static", namespace, annotations={MIRROR: "uid"}),
        "of-a-job": samples.assumed("of-a-job", namespace=namespace, **job),
        "of-a-daemon-set": refused("of-a-daemon-set", namespace, **daemon),
        "of-a-strange-owner": refused("of-a-strange-owner", namespace, **custom),
        "bare": refused("bare", namespace, kind=None),
        "going": samples.terminating(
            samples.prestart_failed(samples.pod("going", namespace=namespace))
        ),
        "elsewhere": refused("elsewhere", namespace, node="gpu-2"),
    }
    reasons = {
        "opted-out": "opted_out",
        "of-the-system": "protected_namespace",
        "static": "static_pod",
        "of-a-job": "job_pod",
        "of-a-daemon-set": "daemon_set_pod",
        "of-a-strange-owner": "owner_kind",
        "bare": "bare_pod",
        "going": "terminating",
        "elsewhere": "opted_out",
    }
    return ill, reasons


def test_a_protected_pod_is_reported_with_the_reason_and_skipped(
    api, api_namespace, stage, command
):
    stage.put(samples.node("gpu-2", "volcano", annotations={OPT_OUT: "false"}))
    ill, reasons = spared(api_namespace)
    pods = stage.put(*ill.values())
    untouched = [version(api.client, pod) for pod in pods]
    applied = command.apply()
    assert (applied.code, applied.actions, applied.findings) == (0, [], [])
    assert {entry["name"]: entry["skip"] for entry in applied.skipped} == reasons
    assert [version(api.client, pod) for pod in pods] == untouched


@pytest.fixture
def spoilt(api, api_namespace):
    """The names of SharePods of which the API server takes whatever a tenant writes."""
    names = []
    with ExitStack() as stack:
        for what in sorted(TENANTS.keys() - {"spec", "status", "huge"}):  # these are no JSON of it
            made = share_pod(f"bad-{what}", **TENANTS[what])
            made["metadata"]["namespace"] = api_namespace
            del made["metadata"]["uid"]
            stack.callback(api.client.delete, api.client.create(made))
            names.append(made["metadata"]["name"])
        yield names


def test_share_pods_that_nobody_can_read_stop_nothing(
    api, api_namespace, stage, command, cluster, spoilt
):
    """Nor does a time that only Go has, in a field that whoever makes a pod may write."""
    pod = stage.put(refused("sick", api_namespace))
    entry = {"manager": "me", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
    entry |= {"fieldsV1": {"f:status": {}}, "time": "0000-01-01T00:00:00Z"}
    patch(api.client, pod, managedFields=[{**entry, "subresource": "status"}])
    managed = api.client.get(pod)["metadata"]["managedFields"]
    assert "0000-01-01T00:00:00Z" in {each["time"] for each in managed}
    with closing(WatchingObserver(cluster, Units())) as watching:
        seen = watching.view(time.time()).snapshot
        assert Coverage.SHARE_PODS in seen.complete
        assert sorted(each.name for each in seen.malformed) == spoilt
    applied = command.apply()
    assert applied.code == 0
    assert [entry["name"] for entry in applied.actions] == ["sick"]
    assert {entry["rule"] for entry in applied.findings} == {"malformed_object"}
    assert sorted(entry["name"] for entry in applied.findings) == spoilt
    assert is_evicted(api.client, pod)


def test_a_pod_of_high_priority_is_skipped(api, api_namespace, stage, command):
    about = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    stage.put({**about, "metadata": {"name": "precious"}, "value": 1000})
    command.configure({**AT_ONCE, "priority_ceiling": 999})
    sick = refused("sick", api_namespace)
    pod = stage.put(sick, spec={"priorityClassName": "precious"})
    (entry,) = command.apply().skipped
    assert entry["skip"] == "high_priority"
    assert not is_evicted(api.client, pod)


def test_what_runs_is_evicted_only_if_that_is_asked_for(api, api_namespace, stage, command):
    poisoned = samples.no_gpu_matched(samples.pod("sick", namespace=api_namespace))
    pod = stage.put(replace(poisoned, phase="Running"))
    assert [entry["skip"] for entry in command.apply().skipped] == ["running"]
    assert not is_evicted(api.client, pod)
    assert command.apply("--evict-running").code == 0
    assert is_evicted(api.client, pod)


def test_only_the_namespaces_that_are_named_are_touched(api, api_namespace, stage, command):
    stage.put(samples.node("gpu-2", "hami", annotations=samples.handshake()))
    with api.namespace() as other:
        here, there = stage.put(refused("here", api_namespace), refused("there", other))
        applied = command.apply(f"--namespace={api_namespace}")
        assert [entry["name"] for entry in applied.actions] == ["here"]
        skips = {entry["name"]: entry["skip"] for entry in applied.skipped}
        assert skips == {"there": "other_namespace", "gpu-2": "other_namespace"}
        assert is_evicted(api.client, here)
        assert not is_evicted(api.client, there)
        stage.kubelet_ends()


@pytest.mark.parametrize(
    ("owner", "skip"),
    [
        (lambda pod: samples.assumed("owner", "hami", namespace=pod), "owner_waits"),
        (
            lambda pod: samples.terminating(samples.pod("owner", "hami", namespace=pod)),
            "owner_terminates",
        ),
    ],
    ids=["waits", "terminates"],
)
def test_a_lock_is_kept_while_its_owner_may_need_it(api_namespace, stage, command, owner, skip):
    command.configure(AT_ONCE | {"rules": {"assumed_expired": {"mode": "off"}}})
    owner = owner(api_namespace)
    stage.put(owner)
    node = stage.put(samples.node("gpu-2", "hami", annotations=samples.lock(owner)))
    applied = command.apply()
    assert [(each["name"], each["skip"]) for each in applied.skipped] == [("gpu-2", skip)]
    assert LOCK in stage.client.get(node)["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("fields", "skip"),
    [({"plugin": False}, "plugin_not_ready"), ({"ready": False}, "node_not_ready")],
)
def test_a_pod_that_would_fail_again_is_skipped(api_namespace, stage, command, fields, skip):
    stage.put(samples.node("gpu-2", "gaia", **fields))
    sick = samples.prestart_failed(
        samples.pod("sick", "gaia", namespace=api_namespace, node="gpu-2")
    )
    pod = stage.put(sick)
    assert [entry["skip"] for entry in command.apply().skipped] == [skip]
    assert not is_evicted(stage.client, pod)


def test_with_the_default_ages_nothing_is_done_before_its_time(api, api_namespace, stage, command):
    command.configure({})
    pods = stage.put(
        refused("refused", api_namespace),
        samples.prestart_failed(samples.pod("stuck", namespace=api_namespace)),
        samples.unbound("unbound", namespace=api_namespace),
    )
    applied = command.apply()
    assert {entry["skip"] for entry in applied.skipped} <= {"too_young"}
    assert applied.actions == []
    assert not any(is_evicted(api.client, pod) for pod in pods)


def test_when_too_many_are_ill_at_once_nothing_is_done(api, api_namespace, stage, command):
    command.configure(AT_ONCE | {"limits": {"breaker": 0.5, "breaker_floor": 1}})
    stuck = (samples.pod(f"sick-{at}", "gaia", namespace=api_namespace) for at in range(3))
    stage.put(samples.node("gpu-2", "gaia"))
    pods = stage.put(*(samples.prestart_failed(replace(pod, node="gpu-2")) for pod in stuck))
    applied = command.apply()
    assert (applied.code, applied.actions) == (4, [])
    breaker = applied.document["breaker"]
    assert breaker == {"tripped": True, "wanted": 3, "allowed": 1, "pods": 3}
    assert {entry["skip"] for entry in applied.skipped} == {"breaker_tripped"}
    assert not any(is_evicted(api.client, pod) for pod in pods)


# ---------------------------------------------------------------- between plan and apply


def outcomes(cycles, made):
    return [result.outcome for result in cycles.apply(made)]


def test_a_pod_with_another_verdict_by_now_is_skipped(api, api_namespace, stage, cycles):
    pod = stage.put(refused("sick", api_namespace))
    cycle = cycles()
    made = cycle.make()
    patch(api.client, pod, annotations={"vgpu.dev/reconcile": "false"})
    assert outcomes(cycle, made) == [ActionOutcome.CHANGED]
    assert not is_evicted(api.client, pod)


def test_a_pod_that_has_changed_in_what_nobody_judges_is_evicted(api, api_namespace, stage, cycles):
    pod = stage.put(refused("sick", api_namespace))
    cycle = cycles()
    made = cycle.make()
    patch(api.client, pod, labels={"somebody": "looks-at-it"})
    assert outcomes(cycle, made) == [ActionOutcome.DONE]
    assert is_evicted(api.client, pod)


def test_nobody_is_touched_on_a_node_that_has_opted_out_since(api, api_namespace, stage, cycles):
    pod = stage.put(refused("sick", api_namespace))
    cycle = cycles()
    made = cycle.make()
    node = api.client.get({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}})
    patch(api.client, node, annotations={"vgpu.dev/reconcile": "false"})
    assert outcomes(cycle, made) == [ActionOutcome.CHANGED]
    assert not is_evicted(api.client, pod)


def test_a_pod_that_is_being_served_by_now_is_skipped(api, api_namespace, stage, cycles):
    pod = stage.put(samples.assumed("slow", namespace=api_namespace, statuses=()))
    cycle = cycles()
    made = cycle.make()
    assert [entry.finding.rule for entry in made.plan.actions] == [Rule.ASSUMED_EXPIRED]
    api.client.patch(pod, {"status": {"phase": "Running"}}, "status")
    assert outcomes(cycle, made) == [ActionOutcome.CHANGED]
    assert not is_evicted(api.client, pod)


def test_a_pod_that_changes_at_the_very_last_moment_each_time_is_skipped(
    api, api_namespace, stage, cluster, cycles
):
    """After it was read once more, and just before the eviction: the API server refuses."""
    pod = stage.put(refused("sick", api_namespace))
    looked = []

    def leads():
        """Asked before an action begins, and once more before it is sent."""
        looked.append(cluster.requests.get(("get", "200"), 0))
        if looked[-1] > looked[0]:
            patch(api.client, pod, labels={"somebody": f"look-{len(looked)}"})
        return True

    cycle = cycles(leads=leads)
    assert outcomes(cycle, cycle.make()) == [ActionOutcome.CHANGED]
    assert cluster.requests["create", "409"] == TRIES
    assert not is_evicted(api.client, pod)


def test_a_pod_of_the_same_name_is_not_taken_for_the_one_that_is_gone(
    api, api_namespace, stage, cycles
):
    fields = {"owner": samples.owner("StatefulSet", "db")}
    old = stage.put(refused("db-0", api_namespace, **fields))
    cycle = cycles()
    made = cycle.make()
    api.client.delete(old, grace_seconds=0)
    new = stage.put(refused("db-0", api_namespace, **fields))
    assert outcomes(cycle, made) == [ActionOutcome.GONE]
    assert not is_evicted(api.client, new)


def test_a_pod_that_is_gone_since_is_nobodys_trouble(api, api_namespace, stage, cycles):
    pod = stage.put(refused("sick", api_namespace))
    cycle = cycles()
    made = cycle.make()
    api.client.delete(pod, grace_seconds=0)
    assert outcomes(cycle, made) == [ActionOutcome.GONE]


def test_a_claim_whose_pod_is_bound_since_is_kept(api, api_namespace, stage, cycles):
    pod = stage.put(samples.unbound("slow", namespace=api_namespace))
    annotations = pod["metadata"]["annotations"]
    cycle = cycles()
    made = cycle.make()
    assert [entry.finding.rule for entry in made.plan.actions] == [Rule.ASSUMED_UNBOUND]
    target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
    about = {"name": "slow", "namespace": api_namespace}
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": about, "target": target}
    api.client.raw("POST", api.client.path(pod, "binding"), binding)
    assert outcomes(cycle, made) == [ActionOutcome.CHANGED]
    assert api.client.get(pod)["metadata"]["annotations"] == annotations


def test_a_lock_that_somebody_took_since_is_theirs(api, api_namespace, stage, cycles):
    gone = samples.pod("gone", "hami", namespace=api_namespace)
    node = stage.put(samples.node("gpu-2", "hami", annotations=samples.lock(gone)))
    cycle = cycles()
    made = cycle.make()
    other = samples.lock(samples.pod("other", "hami", namespace=api_namespace), age=0.0)
    patch(api.client, node, annotations=other)
    assert outcomes(cycle, made) == [ActionOutcome.CHANGED]
    assert api.client.get(node)["metadata"]["annotations"].items() >= other.items()


@pytest.mark.parametrize("style", ["hami", "volcano"])
def test_a_lock_is_kept_if_a_pod_needs_it_since(api, api_namespace, stage, cycles, style):
    """The owner of the lock's name comes back; of a lock without one, anybody who waits."""
    key = samples.CODECS[style].key_set.locks[0]
    waiting = samples.assumed("owner", style, namespace=api_namespace, node="gpu-2")
    node = stage.put(samples.node("gpu-2", style, annotations=samples.lock(waiting, style=style)))
    cycle = cycles()
    made = cycle.make()
    assert [entry.finding.rule for entry in made.plan.actions] == [Rule.STALE_LOCK]
    stage.put(waiting)
    assert outcomes(cycle, made) == [ActionOutcome.CHANGED]
    assert key in api.client.get(node)["metadata"]["annotations"]


def test_a_holder_whose_gpu_is_used_since_is_kept(api, api_namespace, stage, cycles):
    stage.put(samples.node("gpu-2", "kubeshare"))
    keeper = stage.put(samples.holder(node="gpu-2"))
    cycle = cycles(replace(EAGER, modes={Rule.KUBESHARE: Mode.APPLY}))
    made = cycle.make()
    assert [entry.finding.cause for entry in made.plan.actions] == [Cause.ORPHANED_HOLDER]
    new = samples.share_pod(node="gpu-2", namespace=api_namespace, served=False, bound=False)
    stage.put(new)
    assert outcomes(cycle, made) == [ActionOutcome.CHANGED]
    assert not is_evicted(api.client, keeper)


def test_a_nodes_heartbeat_in_between_does_no_harm(api, stage, cycles):
    node = stage.put(samples.node("gpu-2", "hami", annotations=samples.handshake()))
    cycle = cycles()
    made = cycle.make()
    patch(api.client, node, labels={"heart": "beats"})
    assert outcomes(cycle, made) == [ActionOutcome.DONE]
    found = api.client.get(node)["metadata"]
    assert HANDSHAKE not in found["annotations"]
    assert found["labels"]["heart"] == "beats"


def test_what_was_edited_since_is_not_put_back(api, stage, command):
    node = stage.put(samples.node("gpu-2", "hami", annotations=samples.handshake()))
    assert command.apply().code == 0
    patch(api.client, node, annotations={HANDSHAKE: "Requesting_2026.01.02 03:04:05"})
    restored = command.restore()
    assert (restored.code, restored.document[0]["undo"]) == (4, "changed")
    assert "Requesting" in api.client.get(node)["metadata"]["annotations"][HANDSHAKE]


# ---------------------------------------------------------------- disruption budgets


def budget(stage, namespace, name, allowed):
    """A budget, whose missing controller would write how many more pods may go."""
    about = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    made = stage.put(
        {
            **about,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
        }
    )
    status = {
        "observedGeneration": 1,
        "disruptionsAllowed": allowed,
        "currentHealthy": 1,
        "desiredHealthy": 1,
        "expectedPods": 1,
    }
    return stage.client.patch(made, {"status": status}, "status")


@pytest.fixture
def protected(api, api_namespace, stage, command):
    """A running pod that the reconciler is configured to evict, and that budgets select."""
    command.configure(AT_ONCE | {"rules": {"lost_device": {"mode": "apply"}}, "deadline": "9s"})
    return stage.put(on_a_lost_gpu("sick", api_namespace), labels={"app": "web"})


def test_a_disruption_budget_is_obeyed_and_named(api, api_namespace, stage, command, protected):
    budget(stage, api_namespace, "keep-one", 0)
    applied = command.apply()
    (entry,) = applied.actions
    assert (applied.code, entry["outcome"]) == (4, "blocked_by_pdb")
    assert "keep-one" in entry["outcomeDetail"]
    assert not is_evicted(api.client, protected)
    reasons = [event["reason"] for event in api.client.events(protected)]
    assert reasons == ["VgpuEvictionBlocked"]


def test_a_budget_that_allows_it_later_is_asked_again(api, api_namespace, stage, cycles):
    pod = stage.put(on_a_lost_gpu("sick", api_namespace), labels={"app": "web"})
    held = budget(stage, api_namespace, "keep-one", 0)
    waits = []

    def sleep(seconds):
        """The time that the server asked for passes, and meanwhile another pod has come up."""
        waits.append(seconds)
        api.client.patch(held, {"status": {"disruptionsAllowed": 1}}, "status")

    cycle = cycles(sleep=sleep)
    assert outcomes(cycle, cycle.make()) == [ActionOutcome.DONE]
    assert len(waits) == 1
    assert is_evicted(api.client, pod)


def test_with_several_budgets_an_eviction_is_impossible_and_that_is_reported(
    api, api_namespace, stage, command, protected
):
    budget(stage, api_namespace, "one", 5)
    budget(stage, api_namespace, "two", 5)
    applied = command.apply()
    assert (applied.code, applied.actions[0]["outcome"]) == (4, "several_pdbs")
    assert not is_evicted(api.client, protected)


def test_one_that_a_budget_refuses_does_not_hold_up_the_others(
    api, api_namespace, stage, command, protected
):
    budget(stage, api_namespace, "keep-one", 0)
    others = stage.put(*(refused(f"sick-{at}", api_namespace) for at in range(3)))
    applied = command.apply()
    outcome_pairs = sorted((each["name"], each["outcome"]) for each in applied.actions)
    assert outcome_pairs == [
        ("sick", "blocked_by_pdb"),
        *((f"sick-{at}", "done") for at in range(3)),
    ]
    assert all(is_evicted(api.client, pod) for pod in others)


# ---------------------------------------------------------------- dry runs, and two at once


def test_a_dry_run_of_the_server_changes_nothing(api, api_namespace, stage, command):
    gone = samples.pod("gone", "hami", namespace=api_namespace)
    made = [
        *stage.put(
            refused("failed", api_namespace),
            samples.prestart_failed(samples.pod("waiting", namespace=api_namespace)),
            samples.unbound("unbound", namespace=api_namespace),
        ),
        stage.put(samples.node("gpu-2", "hami", annotations=samples.lock(gone))),
    ]
    untouched = [version(api.client, each) for each in made]
    applied = command.apply("--server-dry-run")
    assert applied.code == 0
    assert [entry["outcome"] for entry in applied.actions] == ["dry_run"] * len(made)
    assert [version(api.client, each) for each in made] == untouched
    assert not command.audit.exists()
    assert not any(api.client.events(each) for each in made)
    assert command.plan().document["plan"] == applied.document["plan"]


def test_two_that_apply_the_same_plan_at_once_evict_each_pod_once(
    api_namespace, stage, cycles, reconciler, tmp_path
):
    pods = stage.put(*(refused(f"sick-{at}", api_namespace) for at in range(20)))
    one = cycles()
    made = one.make()
    started = threading.Barrier(2, timeout=WAIT_SECONDS)
    outcome_lists = []

    def apply(cluster, path):
        with Audit.open(str(path)) as audit:
            applier = Applier(cluster, audit)
            started.wait()
            outcome_lists.append(
                [r.outcome for r in applier.apply(made.plan, unmoved(made.codecs))]
            )

    with ExitStack() as stack:
        threads = []
        for at in range(2):
            cluster = stack.enter_context(ApiClient.connect(str(reconciler.kubeconfig)))
            threads.append(threading.Thread(target=apply, args=(cluster, tmp_path / str(at))))
        for thread in threads:
            thread.start()
        for thread in threads:
            wait_ended(thread, "the plan is applied")
    assert len(made.plan.actions) == len(pods)
    for results in map(set, zip(*outcome_lists, strict=True)):
        (other,) = results - {ActionOutcome.DONE}
        assert other in (ActionOutcome.GONE, ActionOutcome.CHANGED)
    assert all(is_evicted(stage.client, pod) for pod in pods)


def test_two_that_edit_the_same_thing_at_once_edit_it_once(api, stage, cycles):
    stage.put(samples.node("gpu-2", "hami", annotations=samples.handshake()))
    one, other = cycles(), cycles()
    first, second = one.make(), other.make()
    assert first.plan.id == second.plan.id
    assert [*outcomes(one, first), *outcomes(other, second)] == [
        ActionOutcome.DONE,
        ActionOutcome.CHANGED,
    ]
