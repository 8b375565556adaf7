"""The reconciler's sample objects made real, and the real command that looks at them.

    stage.put(samples.refused(samples.pod("train-0", namespace=namespace)))
    Command(client.kubeconfig, folder).plan().actions

A sample is a value of :mod:`vgpu.model.objects`; here it becomes an object of the API server, whose
status is written as a kubelet would. UIDs and versions are the server's own.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import yaml
from click.testing import CliRunner

from tests.cluster.accounts import limited
from tests.support.bed.client import Client, Object
from tests.support.bed.cluster import Cluster
from tests.support.environment import ROOT
from tests.support.waiting import wait_until
from vgpu.model.names import ContainerKind
from vgpu.model.objects import (
    BOUND_DEVICE,
    MANAGER_PORT,
    SHARE_POD,
    Container,
    ContainerState,
    Node,
    Pod,
    Status,
)
from vgpu.schemes.kubeshare.sharepod import OWNER
from vgpucli.main import main

MANIFESTS = ROOT / "deploy" / "manifests"
NAMESPACE = MANIFESTS / "namespace.yaml"
CLUSTER_RIGHTS = (
    NAMESPACE,
    MANIFESTS / "reconciler-rbac.yaml",
    MANIFESTS / "reconciler-rbac-gpushare.yaml",
)
NODE_RIGHTS = (NAMESPACE, MANIFESTS / "reconciler-node-rbac.yaml")
HOME = "vgpu-system"
"""The namespace that the files of rights are about."""

NOT_RELEASED = "leader election did not end in time; the Lease expires by itself"
"""What a program reports that could not release its Lease, as at an API server that is busy."""

AT_ONCE: Object = {
    "ages": dict.fromkeys(
        ("failed", "assumed", "lock", "handshake", "drift", "orphan", "clock_skew"), "0s"
    ),
    "limits": {
        "per_cycle": 100,
        "per_node": 100,
        "per_namespace": 100,
        "per_owner": 1.0,
        "breaker": 1.0,
    },
}
"""A configuration with which everything may be acted on as soon as it is seen."""

# ---------------------------------------------------------------- values -> objects


def manifest(pod: Pod) -> Object:
    """The pod or SharePod as somebody would create it."""
    share_pod = SHARE_POD in pod.annotations
    derived = {SHARE_POD, BOUND_DEVICE, MANAGER_PORT}
    metadata: Object = {
        "name": pod.ref.name,
        "namespace": pod.ref.namespace,
        "annotations": {key: text for key, text in pod.annotations.items() if key not in derived},
        "labels": dict(pod.labels),
    }
    if pod.owner is not None:
        metadata["ownerReferences"] = [
            {
                "apiVersion": pod.owner.api_version,
                "kind": pod.owner.kind,
                "name": pod.owner.name,
                "uid": pod.owner.uid,
                "controller": True,
            }
        ]
    spec: Object = {
        "restartPolicy": pod.restart_policy,
        "terminationGracePeriodSeconds": 30,
        "containers": _containers(pod, ContainerKind.APP),
        "initContainers": _containers(pod, ContainerKind.INIT),
    }
    if pod.node:
        spec["nodeName"] = pod.node
    if pod.gated:
        spec["schedulingGates"] = [{"name": "example.com/quota"}]
    if share_pod:
        return {
            "apiVersion": "kubeshare.nthu/v1",
            "kind": OWNER,
            "metadata": metadata,
            "spec": spec,
            "status": _share_pod_status(pod),
        }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def status(pod: Pod) -> Object:
    """The status that the kubelet would write."""
    fields: Object = {
        "phase": pod.phase,
        "reason": pod.reason,
        "message": pod.message,
        "startTime": _time(pod.started_at),
        "containerStatuses": [_status(one) for one in pod.statuses],
        "conditions": [{"type": "Ready", "status": "True"}] if pod.phase == "Running" else [],
    }
    return {key: value for key, value in fields.items() if value}


def node_manifest(node: Node) -> Object:
    """The node, with the status that its kubelet would write."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": node.name,
            "annotations": dict(node.annotations),
            "labels": dict(node.labels),
        },
        "status": {
            "capacity": _quantities(node.capacity),
            "allocatable": _quantities(node.allocatable),
            "conditions": [{"type": "Ready", "status": str(node.ready)}],
        },
    }


def _containers(pod: Pod, kind: ContainerKind) -> list[Object]:
    return [_container(one) for one in pod.containers if one.kind is kind]


def _container(container: Container) -> Object:
    return {
        "name": container.name,
        "image": "registry.example.com/train:1",
        "resources": {"limits": _quantities(container.limits)},
    }


def _quantities(numbers) -> dict[str, str]:
    return {name: str(number) for name, number in numbers.items()}


def _status(one: Status) -> Object:
    detail: Object = {"reason": one.reason, "message": one.message}
    if one.state is ContainerState.RUNNING:
        detail = {}
    if one.state is ContainerState.TERMINATED:
        detail |= {"exitCode": 0 if one.reason == "Completed" else 1}
    running = one.state is ContainerState.RUNNING
    return {
        "name": one.name,
        "image": "registry.example.com/train:1",
        "imageID": "",
        "ready": running,
        "restartCount": one.restarts,
        "state": {one.state.value: {key: text for key, text in detail.items() if text != ""}},
    }


def _share_pod_status(pod: Pod) -> Object:
    made = pod.annotations[SHARE_POD]
    return {
        "PodStatus": status(pod),
        "PodObjectMeta": {"name": pod.ref.name, "uid": made} if made else None,
        "BoundDeviceID": pod.annotations.get(BOUND_DEVICE, ""),
    }


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# ---------------------------------------------------------------- objects on a server


class Stage:
    """Objects of one test on an API server without controllers; they are gone at its end."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._made: list[Object] = []

    def put(
        self,
        *things: Pod | Node | Object,
        labels: Mapping[str, str] | None = None,
        spec: Object | None = None,
    ) -> Any:
        """Make them real; as the API server has them, one alone if it was one.

        ``labels`` and ``spec`` are of pods, beside what the samples know.
        """
        made = [self._put(thing, labels or {}, spec or {}) for thing in things]
        return made[0] if len(made) == 1 else made

    def _put(self, thing: Pod | Node | Object, labels: Mapping[str, str], spec: Object) -> Object:
        if isinstance(thing, Node):
            made = self.client.create(node_manifest(thing))
        elif isinstance(thing, Pod):
            asked = manifest(thing)
            asked["metadata"]["labels"] |= labels
            asked["spec"] |= spec
            made = self.client.create(asked)
        else:
            made = self.client.create(thing)
        self._made.append(made)
        if isinstance(thing, Pod) and SHARE_POD not in thing.annotations:
            made = self.client.patch(
                made, {"status": status(thing)}, "status", fieldManager="kubelet"
            )
            if thing.deleted_at is not None:
                self.client.delete(made)
                made = self.client.get(made)
        return made

    def kubelet_ends(self) -> None:
        """The kubelets have ended what is being deleted, so that it goes."""
        for obj in self._made:
            found = self.client.find(obj)
            if found and found["metadata"].get("deletionTimestamp"):
                self.client.delete(found, grace_seconds=0)

    def close(self) -> None:
        """Take everything away."""
        for obj in reversed(self._made):
            if self.client.find(obj):
                self.client.delete(obj, grace_seconds=0)


@contextmanager
def staged(client: Client) -> Iterator[Stage]:
    """A stage until the block ends."""
    stage = Stage(client)
    try:
        yield stage
    finally:
        stage.close()


def make_default_account(client: Client, namespace: str) -> None:
    """Pods need one, and without controllers nobody makes it."""
    about = {"name": "default", "namespace": namespace}
    client.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about})


def forget_state(client: Client) -> None:
    """Of what the reconciler remembers from run to run, nothing is left."""
    state = f"/api/v1/namespaces/{HOME}/configmaps/vgpu-reconcile-state"
    if client.find(state):
        client.delete(state)


def is_evicted(client: Client, pod: Object) -> bool:
    """Whether it is gone, or is on its way: only a kubelet lets a bound pod go."""
    found = client.find(pod)
    return found is None or bool(found["metadata"].get("deletionTimestamp"))


def version(client: Client, obj: Object) -> str:
    """The object's version: as long as it is the same, nobody has touched it."""
    return client.get(obj)["metadata"]["resourceVersion"]


# ---------------------------------------------------------------- rights


def documents(*files: Path) -> list[Object]:
    """The objects that files define."""
    return [each for file in files for each in yaml.safe_load_all(file.read_text()) if each]


def with_rights(
    cluster: Cluster, *files: Path, account: str = "vgpu-reconciler", node: str = ""
) -> Client:
    """The ServiceAccount of the files, with exactly the rights in them, and the policies.

    Its token names the node, if there is one.
    """
    for each in documents(*files):
        cluster.client.apply(each)
    client = limited(cluster, account, node=node)
    roles = {(each["kind"], each["metadata"]["name"]): each for each in documents(*files)}
    for binding in documents(*files):
        if any(object_ref["name"] == account for object_ref in binding.get("subjects", ())):
            adapter = roles[binding["roleRef"]["kind"], binding["roleRef"]["name"]]
            for rule in adapter["rules"]:  # the authorizer learns of them a moment later
                wait_until(partial(_may, client, adapter, rule), f"{account} may {rule}")
    return client


def _may(client: Client, adapter: Object, rule: Object) -> bool:
    """Whether the client has the last right of a rule."""
    resource, _, subresource = rule["resources"][-1].partition("/")
    where = {
        "namespace": adapter["metadata"].get("namespace", ""),
        "name": rule.get("resourceNames", [""])[0],
        "subresource": subresource,
    }
    return client.may(rule["verbs"][-1], resource, rule["apiGroups"][-1], **where)


# ---------------------------------------------------------------- the command


class Ran(NamedTuple):
    """What a command left behind."""

    code: int
    output: str
    errors: str

    @property
    def document(self) -> Any:
        """Its JSON."""
        return json.loads(self.output)

    @property
    def actions(self) -> list[Object]:
        return self.document["actions"]

    @property
    def skipped(self) -> list[Object]:
        return self.document["skipped"]

    @property
    def findings(self) -> list[Object]:
        return self.document["findings"]

    @property
    def entries(self) -> list[Object]:
        """All objects of the plan."""
        return [*self.actions, *self.skipped, *self.findings]


class Command:
    """`vgpu reconcile` as one user, with a configuration and an audit of this test's own."""

    def __init__(self, client: Client, folder: Path, config: Object | None = None) -> None:
        self.kubeconfig = client.kubeconfig
        self.audit = folder / "audit.jsonl"
        self.config = folder / "reconcile.yaml"
        self.configure(AT_ONCE if config is None else config)

    def configure(self, config: Object) -> None:
        """Work with another configuration from now on."""
        self.config.write_text(json.dumps(config))

    def flags(self) -> list[str]:
        """Of plan, apply and run."""
        return [
            f"--kubeconfig={self.kubeconfig}",
            f"--config={self.config}",
            f"--state-namespace={HOME}",
        ]

    def plan(self, *args: str) -> Ran:
        """What would be done."""
        return self._run("plan", "--output=json", *self.flags(), *args)

    def apply(self, *args: str) -> Ran:
        """Do it."""
        return self._run(
            "apply", "--output=json", f"--audit={self.audit}", "--yes", *self.flags(), *args
        )

    def restore(self, *args: str) -> Ran:
        """Undo the actions in the audit."""
        own = (f"--kubeconfig={self.kubeconfig}", f"--audit={self.audit}.restored")
        return self._run("restore", str(self.audit), "--output=json", "--yes", *own, *args)

    def audit_records(self) -> list[Object]:
        """The audit's records."""
        return [json.loads(line) for line in self.audit.read_text().splitlines()]

    environment: ClassVar = {"PYTHONPATH": str(ROOT)}
    """For the command in another process."""

    def line(self, *args: str) -> list[str]:
        """The command line that does the same in another process."""
        return [sys.executable, "-m", "vgpu", "reconcile", *args]

    def _run(self, *args: str) -> Ran:
        result = CliRunner().invoke(main, ["reconcile", *args])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Ran(result.exit_code, result.stdout, result.stderr)
