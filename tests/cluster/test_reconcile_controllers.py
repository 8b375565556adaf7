"""The reconciler among the others: controllers that recreate pods, a kubelet that refuses them.

And what a long-running one has to live through: API servers that restart, forget or have no time.
"""

import secrets
import signal
import threading
from contextlib import closing, contextmanager
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from reconciler.apply.applier import Applier
from reconciler.apply.audit import Audit
from reconciler.cycle import Cycles, Ending
from reconciler.model import OPT_OUT
from reconciler.observe.cluster import ListingObserver
from reconciler.policy import Ages, Limits, Policy
from reconciler.reasons import ActionOutcome, Rule
from tests.cluster.reconciling import (
    AT_ONCE,
    CLUSTER_RIGHTS,
    Command,
    forget_state,
    is_evicted,
    staged,
    with_rights,
)
from tests.reconciler import samples
from tests.reconciler.samples import replace
from tests.support.bed import objects
from tests.support.bed.client import Refused
from tests.support.bed.cluster import start_cluster
from tests.support.bed.deviceplugin import DevicePlugin, in_the_environment
from tests.support.bed.processes import Daemon
from tests.support.waiting import WAIT_SECONDS, wait_until
from vgpu.apiserver.client import ApiClient
from vgpu.inventory import Units
from vgpu.model.names import Phase, PodRef

VGPU = "volcano.sh/vgpu-number"
EAGER = Policy(ages=Ages(*[0.0] * len(Ages.__struct_fields__)))


# ---------------------------------------------------------------- controllers and a kubelet


@pytest.fixture(scope="module")
def reconciler(control_plane):
    return with_rights(control_plane, *CLUSTER_RIGHTS)


@pytest.fixture
def command(control_plane, reconciler, namespace, tmp_path):
    """It touches nothing but this test's namespace."""
    config = AT_ONCE | {"namespaces": [namespace], "limits": {"breaker": 1.0}}
    yield Command(reconciler, tmp_path, config)
    forget_state(control_plane.client)


class Plugin:
    """A device plugin of Volcano's resource, of which the next few Allocates fail."""

    def __init__(self) -> None:
        self.failures = 0

    def answer(self, ids):
        if self.failures:
            self.failures -= 1
            raise RuntimeError("device number not matched")
        return in_the_environment(ids)


@pytest.fixture
def plugin(node):
    plugin = Plugin()
    with DevicePlugin(node, VGPU, [f"card-{at}" for at in range(8)], plugin.answer) as served:
        served.wait_counted(8)
        yield plugin


def pods_of(client, namespace):
    return client.list(f"/api/v1/namespaces/{namespace}/pods")


def uids(pods):
    return {pod["metadata"]["uid"] for pod in pods}


def test_what_the_kubelet_refused_is_tidied_up_and_its_replacement_runs_on(
    control_plane, namespace, plugin, command
):
    client = control_plane.client
    plugin.failures = 2
    web = client.create(objects.deployment("web", namespace, limits={VGPU: 1}))
    client.wait_for(web, lambda web: web["status"].get("readyReplicas") == 1, "one ready")
    pods = pods_of(client, namespace)
    (well,) = (pod for pod in pods if objects.ready(pod))
    sick = [pod for pod in pods if pod["status"]["phase"] == "Failed"]
    assert {pod["status"]["reason"] for pod in sick} == {"UnexpectedAdmissionError"}

    applied = command.apply()
    assert {entry["uid"] for entry in applied.actions} == uids(sick)
    assert {(entry["rule"], entry["effect"]) for entry in applied.actions} == {
        ("refused", "tidying")
    }
    assert {entry["outcome"] for entry in applied.actions} == {"done"}
    assert uids(pods_of(client, namespace)) == uids([well])
    assert client.get(well)["status"]["containerStatuses"][0]["restartCount"] == 0
    assert command.plan().actions == []
    (owner,) = client.list(f"/apis/apps/v1/namespaces/{namespace}/replicasets")
    counts = {event["reason"]: event["count"] for event in client.events(owner)}
    assert counts["VgpuEvicted"] == len(sick)


def never_served(name, namespace, node):
    """The template of a pod that was promised a GPU, and that waits for what never comes."""
    ref = PodRef("", namespace, name)
    promise = samples.claimed("volcano", ref, node.name, phase=Phase.ASSUMED)
    return objects.pod(
        name,
        namespace,
        image="localhost/no-such-image:1",
        limits={VGPU: 1},
        labels={"app": name},
        annotations=promise,
        nodeSelector={"kubernetes.io/hostname": node.name},
    )


def controlled(kind, name, namespace, node, **spec):
    """A controller of such pods."""
    template = never_served(name, namespace, node)
    template = {
        "metadata": {key: template["metadata"][key] for key in ("labels", "annotations")},
        "spec": template["spec"],
    }
    selector = {"matchLabels": {"app": name}}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": 1, "selector": selector, "template": template, **spec},
    }


def waits(client, namespace, app, but=()):
    """The pod of a controller that its kubelet has taken in, and that does not start."""

    def found():
        pods = client.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"app={app}")
        fresh = [pod for pod in pods if pod["metadata"]["uid"] not in but]
        # Its status stays as it is from then on.
        return [pod for pod in fresh if "ErrImageNeverPull" in str(pod["status"])]

    (pod,) = wait_until(found, f"a pod of {app} waits")
    return pod


def test_a_stuck_pod_of_a_deployment_is_recreated_and_then_skipped_for_a_while(
    control_plane, node, namespace, plugin, command
):
    client = control_plane.client
    client.create(controlled("Deployment", "web", namespace, node))
    first = waits(client, namespace, "web")
    applied = command.apply()
    (entry,) = applied.actions
    assert (entry["rule"], entry["uid"]) == ("assumed_expired", first["metadata"]["uid"])
    assert (entry["effect"], entry["outcome"]) == ("recovery", "done")
    client.wait_gone(first)
    second = waits(client, namespace, "web", uids([first]))
    # It is as stuck as the first: no loop comes of it, not even where another process looks.
    again = command.apply()
    assert again.actions == []
    assert {(entry["uid"], entry["skip"]) for entry in again.skipped} == {
        (second["metadata"]["uid"], "backing_off")
    }


@pytest.mark.usefixtures("plugin")
def test_a_stuck_pod_of_a_stateful_set_is_recreated_and_an_old_plan_skips_the_new_one(
    control_plane, node, namespace, reconciler, tmp_path
):
    client = control_plane.client
    client.create(controlled("StatefulSet", "db", namespace, node, serviceName="db"))
    first = waits(client, namespace, "db")
    with (
        ApiClient.connect(str(reconciler.kubeconfig)) as cluster,
        Audit.open(str(tmp_path / "audit.jsonl")) as audit,
    ):
        policy = replace(EAGER, namespaces=(namespace,))
        cycles = Cycles(
            ListingObserver(cluster, Units()), policy, apply=Applier(cluster, audit).apply
        )
        old = cycles.make()
        assert [entry.finding.object_ref.name for entry in old.plan.actions] == ["db-0"]
        assert [result.outcome for result in cycles.apply(old)] == [ActionOutcome.DONE]
        client.wait_gone(first)
        second = waits(client, namespace, "db", uids([first]))
        assert second["metadata"]["name"] == "db-0"
        assert [result.outcome for result in cycles.apply(old)] == [ActionOutcome.GONE]
    assert not is_evicted(client, second)


TRACKING = "batch.kubernetes.io/job-tracking"
ON_EVICTION = [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget"}]}]
JOBS = {
    "once": {"backoffLimit": 0},
    "policy": {"backoffLimit": 6, "completions": 2, "podFailurePolicy": {"rules": ON_EVICTION}},
    "indexed": {"backoffLimit": 0, "completionMode": "Indexed", "completions": 1},
    "per-index": {"backoffLimitPerIndex": 1, "completionMode": "Indexed", "completions": 2},
}
"""The first pod of each is refused; those that may go on do so with another."""


def job(name, namespace, **spec):
    template = objects.pod(name, namespace, limits={VGPU: 1})["spec"]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"template": {"spec": {**template, "restartPolicy": "Never"}}, **spec},
    }


@contextmanager
def created(client, jobs):
    """They go before their namespace: of some, dead pods stay until another one can be made."""
    made = [client.create(each) for each in jobs]
    try:
        yield made
    finally:
        for each in made:
            client.delete(each, propagation="Background")


def goes_on(job):
    return job["metadata"]["name"] in ("policy", "per-index")


def counted_out(job):
    return objects.condition(job, "Failed") == "True"


def counts(job):
    status = job["status"]
    return status.get("failed"), status.get("failedIndexes"), counted_out(job)


def test_jobs_keep_their_count_when_a_dead_pod_that_they_have_counted_is_tidied_up(
    control_plane, namespace, plugin, command
):
    client = control_plane.client
    plugin.failures = len(JOBS)
    wanted = [job(name, namespace, **spec) for name, spec in JOBS.items()]
    with created(client, wanted) as jobs:
        check_that_counts_stay(client, namespace, command, jobs)


def check_that_counts_stay(client, namespace, command, jobs):
    for each in jobs:
        done = (lambda job: job["status"].get("ready")) if goes_on(each) else counted_out
        client.wait_for(each, done, "its first pod is refused, and counted")
    pods = pods_of(client, namespace)
    dead = [pod for pod in pods if pod["status"]["phase"] == "Failed"]
    assert {pod["status"]["reason"] for pod in dead} == {"UnexpectedAdmissionError"}
    assert len(dead) == len(JOBS)
    for pod in dead:
        client.wait_for(pod, lambda pod: TRACKING not in str(pod["metadata"]), "not tracked")
    before = [counts(client.get(each)) for each in jobs]
    assert [failed for failed, *_ in before] == [1] * len(JOBS)

    applied = command.apply()
    assert {(entry["uid"], entry["outcome"]) for entry in applied.actions} == {
        (uid, "done") for uid in uids(dead)
    }
    assert {entry["effect"] for entry in applied.actions} == {"tidying"}
    for pod in dead:
        client.wait_gone(pod)
    for each in filter(goes_on, jobs):  # what it does next it does after it has heard of that
        client.patch(each, {"spec": {"parallelism": 2}})
        client.wait_for(each, lambda job: job["status"].get("ready") == 2, "another pod")
    assert [counts(client.get(each)) for each in jobs] == before
    alive = {uid for uid in uids(pods) if uid not in uids(dead)}
    assert alive < uids(pods_of(client, namespace))


def test_a_pod_that_its_job_has_not_counted_yet_is_left_to_it(
    control_plane, namespace, plugin, command
):
    """By its own finalizer nobody but this test takes it for counted."""
    client = control_plane.client
    plugin.failures = 1
    held = job("held", namespace, backoffLimit=0)
    held["spec"]["template"]["metadata"] = {"finalizers": ["example.com/held"]}
    made = client.create(held)
    client.wait_for(made, counted_out, "Failed")
    (pod,) = pods_of(client, namespace)
    pod = client.patch(pod, {"metadata": {"finalizers": ["example.com/held", TRACKING]}})
    try:
        skipped = command.apply().skipped
        assert [(entry["uid"], entry["skip"]) for entry in skipped] == [
            (pod["metadata"]["uid"], "job_pod")
        ]
        assert not is_evicted(client, pod)
    finally:
        client.patch(client.get(pod), {"metadata": {"finalizers": None}})


# ---------------------------------------------------------------- an API server with troubles


@pytest.fixture(scope="module")
def troubled(workplace, tools):
    """A cluster of this module's own, whose API server may be killed."""
    with start_cluster(workplace, tools, name="troubled", controllers=False) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def account(troubled):
    return with_rights(troubled, *CLUSTER_RIGHTS)


@pytest.fixture
def stage(troubled):
    with staged(troubled.client) as stage:
        stage.put(samples.node("gpu-1", "volcano"))
        yield stage
        forget_state(troubled.client)


@pytest.fixture
def space(troubled):
    with troubled.namespace() as name:
        yield name


class Loop(Daemon):
    """`vgpu reconcile run` in another process, every second."""

    def __init__(self, command, cluster, folder):
        self.url = f"http://{cluster.workplace.address}:{cluster.workplace.port()}"
        line = command.line(
            "run",
            "--mode=apply",
            "--every=1s",
            f"--audit={command.audit}",
            f"--web.listen-address={self.url.removeprefix('http://')}",
            *command.flags(),
        )
        super().__init__("reconcile", line, folder / "run.log", env=command.environment)

    @property
    def done(self):
        """How many actions were done."""
        return self.count("vgpu_reconcile_actions_total", outcome="done")

    def count(self, name, **labels):
        """One of its metrics, added up over all other labels."""
        with closing(urlopen(f"{self.url}/metrics", timeout=WAIT_SECONDS)) as page:
            families = text_string_to_metric_families(page.read().decode())
            return sum(
                sample.value
                for family in families
                for sample in family.samples
                if sample.name == name and labels.items() <= sample.labels.items()
            )


@pytest.fixture
def loop(troubled, account, tmp_path):
    command = Command(account, tmp_path, AT_ONCE)
    with Loop(command, troubled, tmp_path) as loop:
        yield loop
        if loop.running:
            assert loop.stop() == 0


def falls_ill(stage, space, name):
    """A pod that was refused just now."""
    return stage.put(samples.refused(samples.pod(name, namespace=space)))


def news(client, pod):
    """Something happens to a pod, that the watch reports at once; else it does in a minute.

    Until then nobody can know that a watch which was broken has missed nothing.
    """
    return client.patch(pod, {"metadata": {"labels": {"news": secrets.token_hex(4)}}})


def test_it_goes_on_after_the_api_server_was_restarted(troubled, stage, space, loop):
    client = troubled.client
    first = falls_ill(stage, space, "first")
    loop.wait_until(lambda: is_evicted(client, first), "the first is evicted")
    troubled.restart_api()
    well, second = (
        stage.put(samples.pod("well", namespace=space)),
        falls_ill(stage, space, "second"),
    )
    loop.wait_until(
        lambda: news(client, well) and is_evicted(client, second), "the second is evicted"
    )
    loop.wait_until(lambda: loop.done == 2, "both were handled")


def test_a_watch_that_missed_events_lists_again(troubled, stage, space, loop):
    """Its version is one that the API server does not know any more: that is a 410."""
    client = troubled.client
    first = falls_ill(stage, space, "first")
    loop.wait_until(lambda: is_evicted(client, first), "the first is evicted")
    listed = loop.count("vgpu_reconcile_api_requests_total", verb="list")
    loop.signal(signal.SIGSTOP)
    troubled.restart_api()  # from now on it gets no events
    second = falls_ill(stage, space, "second")
    client.delete(falls_ill(stage, space, "gone"), grace_seconds=0)
    troubled.restart_api()  # what happened until now, this one has not seen
    loop.signal(signal.SIGCONT)
    loop.wait_until(lambda: is_evicted(client, second), "the second is evicted")
    loop.wait_until(lambda: loop.done == 2, "both were handled")
    assert loop.count("vgpu_reconcile_api_requests_total", verb="list") > listed


class Deadly(Audit):
    """An audit at whose third action the API server dies."""

    server = None
    begun = 0

    def intent(self, plan, entry):
        super().intent(plan, entry)
        self.begun += 1
        if self.begun == 3:
            self.server.kill()


def test_an_api_server_that_dies_in_mid_cycle_costs_the_rest_of_that_cycle_only(
    troubled, account, stage, space, tmp_path
):
    pods = [falls_ill(stage, space, f"sick-{at}") for at in range(8)]
    policy = replace(EAGER, limits=Limits(per_node=100))
    with (
        ApiClient.connect(str(account.kubeconfig)) as cluster,
        Deadly.open(str(tmp_path / "audit.jsonl")) as audit,
    ):
        audit.server = troubled.daemons["kube-apiserver"]
        apply = Applier(cluster, audit).apply
        cycles = Cycles(ListingObserver(cluster, Units()), policy, apply=apply)
        outcomes = [result.outcome for result in cycles.apply(cycles.make())]
        done, failed, late = ActionOutcome.DONE, ActionOutcome.FAILED, ActionOutcome.OUT_OF_TIME
        assert outcomes == [*[done] * 2, *[failed] * 3, *[late] * 3]
        assert cycles.run().ending is Ending.BLIND
        troubled.restart_api()
        again = cycles.run()
        assert [result.outcome for result in again.results] == [done] * 6
    assert all(is_evicted(troubled.client, pod) for pod in pods)


LEVEL = "one-at-a-time"


@contextmanager
def no_time_for_evictions(client, account, pod):
    """The API server takes one eviction of an account at a time, and is busy with one for a while.

    It tries for ten seconds to evict what is not there; meanwhile it refuses any other (429).
    """
    version = "flowcontrol.apiserver.k8s.io/v1"
    *_, namespace, name = account.user.split(":")
    limits = {
        "nominalConcurrencyShares": 0,
        "lendablePercent": 0,
        "borrowingLimitPercent": 0,
        "limitResponse": {"type": "Reject"},
    }
    object_ref = {
        "kind": "ServiceAccount",
        "serviceAccount": {"name": name, "namespace": namespace},
    }
    evictions = {
        "verbs": ["create"],
        "apiGroups": [""],
        "resources": ["pods/eviction"],
        "namespaces": ["*"],
    }
    level = {
        "apiVersion": version,
        "kind": "PriorityLevelConfiguration",
        "metadata": {"name": LEVEL},
        "spec": {"type": "Limited", "limited": limits},
    }
    flow = {
        "apiVersion": version,
        "kind": "FlowSchema",
        "metadata": {"name": LEVEL},
        "spec": {
            "matchingPrecedence": 2,
            "priorityLevelConfiguration": {"name": LEVEL},
            "rules": [{"subjects": [object_ref], "resourceRules": [evictions]}],
        },
    }
    made = [client.create(each) for each in (level, flow)]
    uid = made[0]["metadata"]["uid"]
    wait_until(lambda: level_of_evictions(account, pod) == uid, "evictions are limited")
    stranger = "00000000-0000-0000-0000-000000000000"

    def evict():
        with pytest.raises(Refused):
            account.evict(pod, uid=stranger)

    busy = threading.Thread(target=evict)
    busy.start()
    try:
        wait_until(lambda: under_way(client), "the API server is busy")
        yield
    finally:
        busy.join()
        for each in reversed(made):
            client.delete(each)


def level_of_evictions(account, pod):
    """The UID of the priority level by which the API server treats an account's evictions."""
    about = {key: pod["metadata"][key] for key in ("name", "namespace")}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": about}
    answer = account.raw("POST", account.path(pod, "eviction"), eviction, dryRun="All")
    return answer.headers["X-Kubernetes-PF-PriorityLevel-UID"]


def under_way(client):
    """How many evictions the API server is busy with."""
    text = client.raw("GET", "/metrics").data.decode()
    prefix = "apiserver_flowcontrol_current_executing_requests{"
    lines = (line for line in text.splitlines() if line.startswith(prefix) and LEVEL in line)
    return sum(float(line.rpartition(" ")[2]) for line in lines)


@pytest.fixture
def two(troubled, stage, space):
    """Two refused pods, the first of which is skipped."""
    busy, sick = falls_ill(stage, space, "busy"), falls_ill(stage, space, "sick")
    opt_out = {"metadata": {"annotations": {OPT_OUT: "false"}}}
    return troubled.client.patch(busy, opt_out), sick


def test_an_api_server_that_has_no_time_is_waited_for(troubled, account, two, tmp_path):
    busy, sick = two
    with (
        no_time_for_evictions(troubled.client, account, busy),
        ApiClient.connect(str(account.kubeconfig)) as cluster,
        Audit.open(str(tmp_path / "audit.jsonl")) as audit,
    ):
        apply = Applier(cluster, audit).apply
        cycles = Cycles(ListingObserver(cluster, Units()), EAGER, apply=apply)
        made = cycles.make()
        assert [entry.finding.rule for entry in made.plan.actions] == [Rule.REFUSED]
        assert [result.outcome for result in cycles.apply(made)] == [ActionOutcome.DONE]
        assert cluster.requests["create", "429"]
    assert is_evicted(troubled.client, sick)


def test_an_api_server_that_is_busy_until_the_end_is_reported(troubled, account, two, tmp_path):
    busy, sick = two
    command = Command(account, tmp_path, AT_ONCE | {"deadline": "1s"})
    with no_time_for_evictions(troubled.client, account, busy):
        applied = command.apply()
    assert (applied.code, applied.actions[0]["outcome"]) == (4, "throttled")
    assert not is_evicted(troubled.client, sick)
