"""The reconciler as people install it: deploy/manifests, the product's image, a real node."""

import json
import re
from contextlib import closing, suppress
from threading import Thread
from uuid import uuid4

import pytest
import urllib3

from tests.cluster.accounts import TOKEN
from tests.cluster.reconciling import (
    CLUSTER_RIGHTS,
    HOME,
    MANIFESTS,
    NODE_RIGHTS,
    NOT_RELEASED,
    documents,
)
from tests.support.bed import objects
from tests.support.bed.deviceplugin import DevicePlugin, in_the_environment
from tests.support.waiting import WAIT_SECONDS, wait_ended, wait_until

RESOURCE = "volcano.sh/vgpu-number"
AT_ONCE = "\nages: {failed: 0s}\n"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{HOME}/leases/vgpu-reconciler"
PODS = f"/api/v1/namespaces/{HOME}/pods"
DONE = 'vgpu_reconcile_actions_total{rule="refused",outcome="done"}'
KEPT = "example.com/kept"
"""A finalizer: what became of a pod can still be read when it has ended."""


@pytest.fixture(scope="module")
def home(control_plane):
    """The reconciler's namespace, ServiceAccounts and rights.

    Namespace and ServiceAccounts stay: programs of other tests have their accounts there.
    """
    client = control_plane.client
    files = dict.fromkeys((*CLUSTER_RIGHTS, *NODE_RIGHTS))
    made = [client.apply(document) for document in documents(*files)]
    account = f"/api/v1/namespaces/{HOME}/serviceaccounts/default"
    wait_until(lambda: client.find(account), "the namespace is furnished")
    yield client
    for each in made:
        if each["kind"] not in ("Namespace", "ServiceAccount"):
            client.delete(each)


def programs(client):
    """The pods of what is installed."""
    return client.list(PODS, labelSelector=f"!{TOKEN}")


@pytest.fixture
def install(home, product_image):
    """Applies one of deploy/manifests with the bed's image; all is taken away at the end.

    ``change`` gets each of its objects, and changes in it what a user might.
    """
    made = []

    def start(name, change):
        for document in documents(MANIFESTS / f"{name}.yaml"):
            if spec := pod_spec(document):
                spec["containers"][0]["image"] = product_image
            change(document)
            made.append(home.apply(document))
        return made[-1]

    yield start
    for each in reversed(made):
        home.delete(each, propagation="Foreground")
        home.wait_gone(each)
    wait_until(lambda: not programs(home), "its pods are gone")


class FollowedLogs:
    """What pods print until their ends; it is kept when they are gone."""

    def __init__(self, client):
        self._client, self._chunks, self._threads = client, {}, []

    def follow(self, *pods):
        for pod in pods:
            name, path = pod["metadata"]["name"], self._client.path(pod, "log")
            if name not in self._chunks:
                answer = self._client.raw("GET", path, stream=True, follow="true")
                chunks = self._chunks[name] = []
                self._threads.append(Thread(target=self._keep, args=(answer, chunks), daemon=True))
                self._threads[-1].start()

    def _keep(self, answer, chunks):
        with closing(answer), suppress(urllib3.exceptions.HTTPError):
            chunks.extend(answer.stream())

    def wait_ended(self):
        for thread in self._threads:
            wait_ended(thread, "the log of a pod ends")

    def of(self, name):
        return b"".join(self._chunks[name]).decode(errors="replace")

    def print(self):
        for name in self._chunks:
            print(f"{name}:\n{self.of(name)}")


@pytest.fixture
def logs(home):
    """Follows the logs of pods, which have to be gone at the end; a failure shows the logs."""
    followed = FollowedLogs(home)
    yield followed
    followed.print()
    followed.wait_ended()


def pod_spec(document):
    """The pod's spec in a workload, None in anything else."""
    spec = document.get("spec", {})
    spec = spec.get("jobTemplate", {}).get("spec", spec)
    return spec.get("template", {}).get("spec")


def mount(spec, name, path, **volume):
    """One volume more."""
    (container,) = spec["containers"]
    container.setdefault("volumeMounts", []).append({"name": name, "mountPath": path})
    spec.setdefault("volumes", []).append({"name": name, **volume})


def at_once(document):
    """Acts at once, and every second."""
    if document["kind"] == "ConfigMap":
        config = document["data"]["reconcile.yaml"].replace("every: 2m", "every: 1s")
        document["data"]["reconcile.yaml"] = config + AT_ONCE


@pytest.fixture
def sick_deployment(home, node, namespace):
    """Starts a Deployment whose first pod the kubelet really refuses, and which replaces it.

    The plugin fails the first Allocate, as one does that has just been restarted.
    """
    fails = []

    def answer(ids):
        if fails:
            fails.clear()
            raise RuntimeError("the plugin is starting")
        return in_the_environment(ids)

    def start(name):
        fails.append(True)
        home.create(objects.deployment(name, namespace, limits={RESOURCE: 1}))
        wait_until(lambda: not fails, "Allocate has failed")

    with DevicePlugin(node, RESOURCE, [f"gpu-{number}" for number in range(4)], answer) as plugin:
        plugin.wait_counted(4)
        yield start


@pytest.fixture
def refused(home, namespace, sick_deployment):
    """The pod that was refused, when another is in its place."""
    sick_deployment("train")

    def found():
        pods = home.list(f"/api/v1/namespaces/{namespace}/pods")
        failed = [pod for pod in pods if pod["status"].get("phase") == "Failed"]
        return failed if any(map(objects.ready, pods)) else []

    (pod,) = wait_until(found, "one pod was refused, and another is in its place")
    assert pod["status"]["reason"] == "UnexpectedAdmissionError"
    return pod


def metrics(pod):
    """The page of a pod that runs, "" while it does not answer."""
    address = f"http://{pod['status'].get('podIP', '')}:9396/metrics"
    try:
        return urllib3.request("GET", address, retries=False, timeout=WAIT_SECONDS).data.decode()
    except urllib3.exceptions.HTTPError:
        return ""


def value(page, series):
    """A series' number on a page, None if it is not there."""
    match = re.search(rf"^{re.escape(series)} (\S+)$", page, re.MULTILINE)
    return float(match[1]) if match else None


def audit(log):
    """The audit's records in a log."""
    return [json.loads(line) for line in log.splitlines() if line.startswith("{")]


def leading(home):
    """The replicas that say it: 1 -> the one that leads, 0 -> the one that does not."""
    pods = [pod for pod in programs(home) if "deletionTimestamp" not in pod["metadata"]]
    by_value = {value(metrics(pod), "vgpu_reconcile_leader"): pod for pod in pods}
    return {leads: pod for leads, pod in by_value.items() if leads is not None}


def end(pod):
    """How the pod's container ended, None while it runs."""
    (status,) = pod["status"]["containerStatuses"]
    return status["state"].get("terminated")


# ---------------------------------------------------------------- the CronJob


def test_the_cron_jobs_job_evicts_a_refused_pod_and_its_log_is_the_audit(
    control_plane, home, install, refused
):
    def change(document):
        at_once(document)
        if document["kind"] == "CronJob":
            document["spec"]["suspend"] = True  # nothing runs but what is run here

    install("reconciler-cronjob", change)
    how = ("create", "job", "once", "--from=cronjob/vgpu-reconciler", f"--namespace={HOME}")
    control_plane.kubectl(*how)
    job = home.get(f"/apis/batch/v1/namespaces/{HOME}/jobs/once")
    home.wait_for(job, lambda job: objects.condition(job, "Complete") == "True", "Complete")
    (ran,) = home.list(PODS, labelSelector="job-name=once")
    log = home.logs(ran)
    assert home.find(refused) is None, log
    records = audit(log)
    events = [(record["event"], record.get("outcome")) for record in records]
    assert events == [("intent", None), ("result", "done")]
    assert records[0]["subject"]["name"] == refused["metadata"]["name"]
    reasons = {event["reason"] for event in home.events(refused)}
    assert "VgpuEvicted" in reasons
    home.delete(job, propagation="Foreground")
    home.wait_gone(job)


# ---------------------------------------------------------------- the Deployment


def test_one_of_two_replicas_repairs_and_the_other_takes_over(
    home, logs, install, refused, sick_deployment
):
    workload = install("reconciler-deployment", at_once)
    home.wait_for(workload, lambda it: it["status"].get("availableReplicas") == 2, "available")
    home.wait_gone(refused)

    def leading_and_waiting():
        pods = leading(home)
        return pods if sorted(pods) == [0, 1] else None

    both = wait_until(leading_and_waiting, "one of two leads")
    logs.follow(*both.values())
    leader, other = both[1], both[0]
    wait_until(lambda: value(metrics(leader), DONE) == 1, "it counts what it did")
    assert value(metrics(other), DONE) is None

    home.patch(leader, {"metadata": {"finalizers": [KEPT]}})
    home.delete(leader)
    ended = home.wait_for(leader, end, "ended by SIGTERM")
    assert end(ended)["exitCode"] == 0
    home.patch(leader, {"metadata": {"finalizers": None}})
    home.wait_gone(leader)
    wait_until(lambda: 1 in leading(home), "another leads")
    sick_deployment("again")
    wait_until(
        lambda: (one := leading(home).get(1)) and value(metrics(one), DONE) == 1, "that one repairs"
    )

    logs.follow(*wait_until(leading_and_waiting, "the third one runs").values())
    home.patch(workload, {"spec": {"replicas": 0}})
    wait_until(lambda: not programs(home), "all have ended")
    logs.wait_ended()
    if holder := home.get(LEASE)["spec"].get("holderIdentity"):
        assert NOT_RELEASED in logs.of(holder.rpartition("_")[0])


def test_prometheus_scrapes_it(home, install, prometheus):
    install("reconciler-deployment", at_once)
    pods = wait_until(lambda: sorted(both := leading(home)) == [0, 1] and both, "both serve")
    server = prometheus(*(f"{pod['status']['podIP']}:9396" for pod in pods.values()))
    server.wait_for("vgpu_reconcile_cycles_total")
    wait_until(lambda: server.value("sum(up)") == 2, "both are scraped")
    wait_until(lambda: server.value("sum(vgpu_reconcile_leader)") == 1, "one leads")


# ---------------------------------------------------------------- the DaemonSet

SHIMS = "/usr/local/vgpu/containers"
AGES = "ages: {orphan: 1s, clock_skew: 0s}\n"


@pytest.fixture
def left_behind(node, home, namespace):
    """Two folders of shims whose pods are no more, and a pod that uses the second one."""
    folders = [f"{SHIMS}/{uuid4()}_main" for _ in range(2)]
    for folder in folders:
        node.run(["mkdir", "-p", folder])
        node.run(["cp", "/etc/hostname", f"{folder}/region.cache"])
    user = objects.pod(
        "user",
        namespace,
        command=["sh", "-c", "exec sleep 100000000 </left/region.cache"],
        nodeName=node.name,
        securityContext={"runAsUser": 1000},
    )
    mount(user["spec"], "left", "/left", hostPath={"path": folders[1]})
    user = home.create(user)
    home.wait_for(user, objects.ready, "Ready")
    yield *map(node.path, folders), user
    node.run(["rm", "-rf", *folders])


def test_the_nodes_own_reconciler_removes_a_folder_once_nobody_uses_it(
    home, install, left_behind, host_proc
):
    idle, used, user = left_behind
    procfs = host_proc()

    def change(document):
        if document["kind"] == "ConfigMap":
            ((name, text),) = document["data"].items()
            document["data"] = {name: text.replace("every: 2m", "every: 1s") + AGES}
            return
        spec = pod_spec(document)
        (old,) = [each for each in spec["volumes"] if each["name"] == "old-shims"]
        old["hostPath"]["path"] = "/var/lib/vgpu-old"  # the node's /tmp is the machine's
        mount(spec, "proc", "/host/proc", hostPath={"path": procfs})
        spec["containers"][0]["args"].append("--path.procfs=/host/proc")

    workload = install("reconciler-node", change)
    home.wait_for(workload, lambda it: it["status"].get("numberReady") == 1, "ready")
    (pod,) = programs(home)
    wait_until(lambda: not idle.exists(), "the folder is gone", context=lambda: home.logs(pod))
    mapped = 'vgpu_reconcile_skipped{reason="still_mapped"}'
    wait_until(lambda: value(metrics(pod), mapped) == 1, "it is reported that one is used")
    assert used.exists()
    home.delete(user)
    wait_until(lambda: not used.exists(), "the other is gone, too", context=lambda: home.logs(pod))
    own = [f"{SHIMS}/{folder.name}" for folder in (idle, used)]

    def removed():
        done = [each for each in audit(home.logs(pod)) if each.get("outcome") == "done"]
        names = [each["subject"]["name"] for each in done]
        return [name for name in names if name in own]  # others may have left some, too

    wait_until(lambda: own[1] in removed(), "it is reported")
    assert removed() == own
