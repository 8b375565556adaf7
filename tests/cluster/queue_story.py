"""The story of Kueue's queues that is played beside a real Kueue, and what is recorded of it.

    org (Cohort)
    ├── ml (Cohort)     a: 4 GPUs, 40000 MiB     b: 4 GPUs, 40000 MiB, 20000 of them lent
    └── hpc (Cohort)    c: 2 GPUs, 20000 MiB, StrictFIFO, borrows and lends nothing

``a`` reclaims nothing and ``b`` reclaims what others have borrowed. HAMi's scheduler and the
kubelet are the story's own: it binds pods, annotates them, and reports them as running.
"""

import itertools
import json
import lzma
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import urllib3

from tests.cluster.kueue import CONFIG, HOME, Kueue
from tests.support.bed import objects
from tests.support.bed.client import Object, Refused
from tests.support.registers import hami_register
from tests.support.waiting import wait_until
from vgpu.kube.quantities import whole

GROUP = "kueue.x-k8s.io"
VERSION = f"{GROUP}/v1beta2"
QUEUE = f"{GROUP}/queue-name"
NODE = "gpu-1"
GPUS = tuple(f"GPU-00000000-0000-0000-0000-00000000000{number}" for number in range(8))
GPU, MEMORY = "nvidia.com/gpu", "nvidia.com/total-gpumem"
TEAMS = ("team-a", "team-b", "team-c")

KINDS = {
    "nodes": "/api/v1/nodes",
    "pods": "/api/v1/pods",
    "jobs": "/apis/batch/v1/jobs",
    **{
        kind: f"/apis/{VERSION}/{kind}"
        for kind in ("resourceflavors", "cohorts", "clusterqueues", "localqueues", "workloads")
    },
}
"""What is recorded: all objects of these kinds, and Kueue's ConfigMap."""

Event = tuple[str, Object]


class Recorder:
    """Watches all objects of the kinds, and has their events in the order of their arrival."""

    def __init__(self, kueue: Kueue) -> None:
        self._kueue, self._lock = kueue, threading.Lock()
        self._events: list[Event] = []
        self._objects: dict[tuple[str, str, str], Object] = {}
        self._ended = False
        for path in KINDS.values():
            thread = threading.Thread(target=self._watch, args=(path,), daemon=True)
            thread.start()

    def _watch(self, path: str) -> None:
        while not self._ended:
            try:
                for kind, obj in self._kueue.client.watch(path, timeoutSeconds=600):
                    self._take(kind, obj)
            except (Refused, urllib3.exceptions.HTTPError, OSError):
                continue

    def _take(self, kind: str, obj: Object) -> None:
        meta = obj["metadata"]
        meta.pop("managedFields", None)
        key = obj["kind"], meta.get("namespace", ""), meta["name"]
        with self._lock:
            if self._ended:
                return
            if kind == "DELETED":
                self._objects.pop(key, None)
            else:
                self._objects[key] = obj
            self._events.append((kind, json.loads(json.dumps(obj))))

    def objects(self) -> list[Object]:
        """The objects as they are now."""
        with self._lock:
            return [*self._objects.values()]

    def take(self) -> list[Event]:
        """The events since the last time."""
        with self._lock:
            taken, self._events = self._events, []
            return taken

    def end(self) -> None:
        """Take nothing more."""
        with self._lock:
            self._ended = True


class Story:
    """Plays the story step by step: ``for name in Story(kueue).steps(): …``."""

    def __init__(self, kueue: Kueue) -> None:
        self.kueue, self.client = kueue, kueue.client
        self._numbers = itertools.count()

    def steps(self) -> Iterator[str]:
        """Each step when it has been done and Kueue has taken it in; its name."""
        for step in (
            self.declare,
            self.a_job_is_admitted,
            self.its_pods_run,
            self.a_job_borrows,
            self.a_job_never_fits,
            self.a_plain_pod_is_admitted_and_another_waits,
            self.a_queue_reclaims_its_quota,
            self.a_queue_is_drained,
            self.a_strict_queue_has_a_head_that_does_not_fit,
            self.a_queue_of_no_cluster_queue_and_an_inactive_workload,
            self.a_job_ends,
        ):
            step()
            yield step.__name__

    # ------------------------------------------------------------ steps

    def declare(self) -> None:
        """The node, the flavor, the cohorts and the queues."""
        annotations = {
            **hami_register(*GPUS, mib=15360),
            "hami.io/node-handshake": "Reported 2026-11-28 12:00:00.000000000 +0000 UTC",
        }
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": NODE, "labels": {"gpu": "t4"}, "annotations": annotations},
        }
        self.client.create(node)
        self.client.patch(node, {"spec": {"taints": None}})
        number = {GPU: "80", "pods": "110", "cpu": "64", "memory": "256Gi"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        status = {"capacity": number, "allocatable": number, "conditions": [ready]}
        self.client.patch(node, {"status": status}, "status")
        for team in TEAMS:
            about = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team}}
            self.client.create(about)
            account = f"/api/v1/namespaces/{team}/serviceaccounts/default"
            wait_until(lambda account=account: self.client.find(account), "has an account")
        self._create("ResourceFlavor", "t4", nodeLabels={"gpu": "t4"})
        self._create("Cohort", "org")
        for cohort in ("ml", "hpc"):
            self._create("Cohort", cohort, parentName="org")
        never = {"reclaimWithinCohort": "Never", "withinClusterQueue": "Never"}
        self._cluster_queue("a", "ml", 4, 40000, preemption=never)
        self._cluster_queue(
            "b", "ml", 4, 40000, lending=20000, preemption={**never, "reclaimWithinCohort": "Any"}
        )
        self._cluster_queue("c", "hpc", 2, 20000, alone=True, queueingStrategy="StrictFIFO")
        for team in TEAMS:
            self._create("LocalQueue", "main", team, clusterQueue=team.rpartition("-")[2])
        for queue in "abc":
            self._until(f"clusterqueues/{queue}", _is_active)

    def a_job_is_admitted(self) -> None:
        """Two GPUs of 4000 MiB in a; its pods are not scheduled."""
        self._job("fits", "team-a", pods=2, memory=4000)
        self._until_reserved("a", 2, 8000)
        self._until_pods("team-a", "fits", 2)

    def its_pods_run(self) -> None:
        """The story is HAMi's scheduler and the kubelet."""
        self._run("team-a", "fits")

    def a_job_borrows(self) -> None:
        """Four more GPUs, of which two are borrowed from ml."""
        self._job("borrows", "team-a", pods=4, memory=8000)
        self._until_reserved("a", 6, 40000)
        self._until_pods("team-a", "borrows", 4)
        self._run("team-a", "borrows")

    def a_job_never_fits(self) -> None:
        """A hundred GPUs, which no cohort has."""
        self._job("never", "team-a", pods=100, memory=1000)
        self._until_pending("team-a", "never", "maximum capacity")

    def a_plain_pod_is_admitted_and_another_waits(self) -> None:
        """Bare pods wait with a gate; the second wants seven GPUs of eight."""
        self.client.create(self._pod("bare", "team-b", memory=2000))
        self._until_reserved("b", 1, 2000)
        wait_until(lambda: not self._gates("team-b", "bare"), "its gates go")
        self.client.create(self._pod("waits", "team-a", gpus=7, memory=2000))
        wait_until(lambda: self._gates("team-a", "waits"), "it is gated")
        self._until_pending("team-a", "waits", "more needed")

    def a_queue_reclaims_its_quota(self) -> None:
        """b needs its own three GPUs, and the borrower of a has to go."""
        self._job("reclaims", "team-b", pods=3, memory=4000)
        self._until_reserved("b", 4, 14000)
        self._until_true("team-a", "borrows", "Preempted")
        self._until_gone("team-a", "borrows")
        self._until_pods("team-b", "reclaims", 3)
        self._until_settled("a")

    def a_queue_is_drained(self) -> None:
        """HoldAndDrain: b evicts what it has admitted, and admits nothing; a borrows again."""
        self.client.patch(self._path("clusterqueues/b"), {"spec": {"stopPolicy": "HoldAndDrain"}})
        self._until("clusterqueues/b", lambda queue: not _is_active(queue))
        self._until_reserved("b", 0, 0)
        self._until_gone("team-b", "reclaims")
        self._until_reserved("a", 6, 40000)
        self._until_pods("team-a", "borrows", 4)

    def a_strict_queue_has_a_head_that_does_not_fit(self) -> None:
        """The job behind the head fits, and waits all the same, without a status."""
        self._job("runs", "team-c", pods=1, memory=2000)
        self._until_reserved("c", 1, 2000)
        self._until_pods("team-c", "runs", 1)
        self._run("team-c", "runs")
        self._job("head", "team-c", pods=2, memory=4000)
        self._until_pending("team-c", "head", "more needed")
        self._until_older("team-c", "head")
        self._job("behind", "team-c", pods=1, memory=1000)
        wait_until(lambda: self._workload("team-c", "behind"), "it has a Workload")

    def a_queue_of_no_cluster_queue_and_an_inactive_workload(self) -> None:
        """A LocalQueue whose ClusterQueue does not exist, and a workload that is switched off."""
        self._create("LocalQueue", "lost", "team-c", clusterQueue="nowhere")
        self._until("namespaces/team-c/localqueues/lost", lambda queue: queue.get("status"))
        self._job("lost", "team-c", pods=1, memory=1000, queue="lost")
        self._job("off", "team-b", pods=1, memory=1000)
        for namespace, name in (("team-c", "lost"), ("team-b", "off")):
            wait_until(
                lambda namespace=namespace, name=name: self._workload(namespace, name),
                "it has a Workload",
            )
        workload = self._workload("team-b", "off")
        self.client.patch(workload, {"spec": {"active": False}})

    def a_job_ends(self) -> None:
        """Its pods succeed, the Job completes, and the quota is free."""
        for pod in self._pods("team-c", "runs"):
            status = {"phase": "Succeeded", "containerStatuses": None}
            self.client.patch(pod, {"status": status}, "status")
        self._until_true("team-c", "runs", "Finished")
        self._until_reserved("c", 2, 8000)
        self._until_pods("team-c", "head", 2)

    # ------------------------------------------------------------ what the steps use

    def _create(self, kind: str, name: str, namespace: str = "", **spec: object) -> Object:
        meta = {"name": name, **({"namespace": namespace} if namespace else {})}
        about = {"apiVersion": VERSION, "kind": kind, "metadata": meta}
        return self.client.create({**about, "spec": spec})

    def _cluster_queue(
        self,
        name: str,
        cohort: str,
        gpus: int,
        memory: int,
        *,
        lending: int | None = None,
        alone: bool = False,
        **spec: object,
    ) -> None:
        limits = {"borrowingLimit": 0, "lendingLimit": 0} if alone else {}
        quotas: list[Object] = [
            {"name": GPU, "nominalQuota": gpus, **limits},
            {"name": MEMORY, "nominalQuota": memory, **limits},
        ]
        if lending is not None:
            quotas[1]["lendingLimit"] = lending
        group = {
            "coveredResources": [GPU, MEMORY],
            "flavors": [{"name": "t4", "resources": quotas}],
        }
        self._create(
            "ClusterQueue",
            name,
            cohortName=cohort,
            namespaceSelector={},
            resourceGroups=[group],
            **spec,
        )

    def _pod(
        self, name: str, namespace: str, *, memory: int, gpus: int = 1, queue: str = "main"
    ) -> Object:
        limits = {GPU: gpus, "nvidia.com/gpumem": memory}
        labels = {QUEUE: queue} if queue else {}
        return objects.pod(
            name, namespace, limits=limits, labels=labels, schedulerName="hami-scheduler"
        )

    def _job(
        self, name: str, namespace: str, *, pods: int, memory: int, queue: str = "main"
    ) -> None:
        spec = self._pod(name, namespace, memory=memory, queue="")["spec"]
        self.client.create(
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": name, "namespace": namespace, "labels": {QUEUE: queue}},
                "spec": {
                    "parallelism": pods,
                    "completions": pods,
                    "template": {"spec": {**spec, "restartPolicy": "Never"}},
                },
            }
        )

    def _pods(self, namespace: str, job: str) -> list[Object]:
        path = f"/api/v1/namespaces/{namespace}/pods"
        return self.client.list(path, labelSelector=f"batch.kubernetes.io/job-name={job}")

    def _run(self, namespace: str, job: str) -> None:
        """Bind and annotate the pods as HAMi's scheduler does; report them as the kubelet does."""
        for pod in self._pods(namespace, job):
            container = pod["spec"]["containers"][0]["resources"]["limits"]
            gpu = GPUS[next(self._numbers) % len(GPUS)]
            devices = f"{gpu},NVIDIA,{whole(container['nvidia.com/gpumem'])},0:;"
            annotations = {
                "hami.io/vgpu-node": NODE,
                "hami.io/vgpu-devices-allocated": devices,
                "hami.io/vgpu-devices-to-allocate": ";",
                "hami.io/vgpu-time": "1800000000",
                "hami.io/bind-time": "1800000000",
                "hami.io/bind-phase": "success",
            }
            self.client.patch(pod, {"metadata": {"annotations": annotations}})
            target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
            binding = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {key: pod["metadata"][key] for key in ("name", "namespace")},
                "target": target,
            }
            self.client.raw("POST", self.client.path(pod, "binding"), binding)
            running = {"running": {"startedAt": "2026-11-28T12:00:00Z"}}
            status = {
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [
                    {
                        "name": "main",
                        "image": "any",
                        "imageID": "any",
                        "ready": True,
                        "restartCount": 0,
                        "containerID": "containerd://1",
                        "state": running,
                    }
                ],
            }
            self.client.patch(pod, {"status": status}, "status")

    # ------------------------------------------------------------ waiting for Kueue

    def _path(self, rest: str) -> str:
        return f"/apis/{VERSION}/{rest}"

    def _until(self, rest: str, condition: Callable[[Object], object]) -> None:
        path = self._path(rest)
        wait_until(
            lambda: condition(self.client.get(path)),
            f"{rest} is so",
            context=lambda: json.dumps(self.client.get(path).get("status"), indent=1),
        )

    def _until_reserved(self, queue: str, gpus: int, memory: int) -> None:
        expected = {GPU: gpus, MEMORY: memory}
        self._until(f"clusterqueues/{queue}", lambda each: _reserved(each) == expected)
        team = f"namespaces/team-{queue}/localqueues/main"
        self._until(team, lambda each: _reserved(each) == expected)
        self._until_settled(queue)

    def _until_settled(self, queue: str) -> None:
        """Until Kueue's own metrics and the status of the queue are equal."""

        def equal() -> bool:
            status = _reserved(self.client.get(self._path(f"clusterqueues/{queue}")))
            name = "kueue_cluster_queue_resource_reservation"
            series = self.kueue.series(name)
            measured = {key[3]: value for key, value in series.items() if key[1] == queue}
            return {key: value for key, value in status.items() if value} == {
                key: value for key, value in measured.items() if value
            }

        wait_until(equal, f"status and metrics of {queue} are equal")

    def _workload(self, namespace: str, job: str) -> Object | None:
        found = self.client.list(self._path(f"namespaces/{namespace}/workloads"))
        owned = (
            each
            for each in found
            if any(owner["name"] == job for owner in each["metadata"].get("ownerReferences", ()))
        )
        return next(owned, None)

    def _condition(self, namespace: str, job: str, kind: str) -> Object:
        workload = self._workload(namespace, job) or {}
        conditions = workload.get("status", {}).get("conditions", ())
        return next((each for each in conditions if each["type"] == kind), {})

    def _until_pending(self, namespace: str, job: str, text: str) -> None:
        wait_until(
            lambda: (
                (condition := self._condition(namespace, job, "QuotaReserved"))
                and condition["status"] == "False"
                and text in condition["message"]
            ),
            f"{job} waits: {text}",
            context=lambda: json.dumps(self._workload(namespace, job), indent=1),
        )

    def _until_true(self, namespace: str, job: str, kind: str) -> None:
        wait_until(
            lambda: self._condition(namespace, job, kind).get("status") == "True",
            f"{job} is {kind}",
            context=lambda: json.dumps(self._workload(namespace, job), indent=1),
        )

    def _until_pods(self, namespace: str, job: str, number: int) -> None:
        wait_until(lambda: len(self._pods(namespace, job)) == number, f"{job} has its pods")

    def _until_gone(self, namespace: str, job: str) -> None:
        """Until the pods are gone; those of the node end at once, as the kubelet reports it."""

        def gone() -> bool:
            pods = self._pods(namespace, job)
            for pod in pods:
                if "deletionTimestamp" in pod["metadata"]:
                    self.client.delete(pod, grace_seconds=0)
            return not pods

        wait_until(gone, f"{job}: its pods go", failures=(Refused,))

    def _until_older(self, namespace: str, job: str) -> None:
        """Until a workload of now would be younger: Kueue orders by seconds."""
        workload = self._workload(namespace, job) or {}
        created = datetime.fromisoformat(workload["metadata"]["creationTimestamp"])
        wait_until(
            lambda: (datetime.now(UTC) - created).total_seconds() > 1, f"{job} is older than others"
        )

    def _gates(self, namespace: str, name: str) -> list[str]:
        pod = self.client.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
        return [gate["name"] for gate in pod["spec"].get("schedulingGates", ())]


def _is_active(queue: Object) -> bool:
    conditions = queue.get("status", {}).get("conditions", ())
    return any(each["type"] == "Active" and each["status"] == "True" for each in conditions)


def _reserved(queue: Object) -> dict[str, int]:
    """What Kueue counts for a queue, by its status; all its quantities are whole."""
    found = {GPU: 0, MEMORY: 0}
    for flavor in queue.get("status", {}).get("flavorsReservation", ()):
        for each in flavor["resources"]:
            found[each["name"]] = whole(str(each["total"])) or 0
    return found


def config_map(kueue: Kueue) -> Object:
    """Kueue's configuration, as its users have it."""
    found = kueue.client.get(f"/api/v1/namespaces/{HOME}/configmaps/{CONFIG}")
    found["metadata"].pop("managedFields", None)
    return found


def write(path: Path, record: list[Any]) -> None:
    """Write a record, small."""
    lines = (json.dumps(each, separators=(",", ":"), sort_keys=True) for each in record)
    path.write_bytes(lzma.compress("\n".join(lines).encode(), preset=9))
