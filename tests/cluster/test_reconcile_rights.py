"""The reconciler's rights: those in deploy/manifests suffice, and none of them is idle.

The API server's own audit log records who asked for what. Every request is authorized by itself, so
what is asked for is needed: without its line it would be refused.
"""

import json
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from reconciler.owners.eviction import ROWS
from simulator.demo import demo
from tests.cluster.reconcile_node import NodeOnStage
from tests.cluster.reconciling import (
    AT_ONCE,
    CLUSTER_RIGHTS,
    HOME,
    NODE_RIGHTS,
    Command,
    documents,
    make_default_account,
    staged,
    with_rights,
)
from tests.reconciler import samples
from tests.support.bed import crds
from tests.support.bed.client import Refused
from tests.support.bed.cluster import start_cluster
from tests.support.bed.processes import Daemon
from vgpu.kube.kept_keys import GROUP_NAME

KUBESHARE = AT_ONCE | {"rules": {"kubeshare": {"mode": "apply"}}}


class Right(NamedTuple):
    """A verb on a resource; ``namespace`` and ``name`` are "" for all."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""


def given(*files) -> Iterator[Right]:
    """What the files give to their ServiceAccount."""
    for adapter in documents(*files):
        for rule in adapter.get("rules", ()):
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        for name in rule.get("resourceNames", ("",)):
                            home = adapter["metadata"].get("namespace", "")
                            yield Right(verb, group, resource, home, name)


@pytest.fixture(scope="module")
def audited(workplace, tools):
    """A cluster of this module's own, whose API server keeps an audit log."""
    folder = workplace.subfolder("audit")
    policy = folder / "policy.yaml"
    rules = [{"level": "None", "userGroups": ["system:masters"]}, {"level": "Metadata"}]
    about = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy"}
    policy.write_text(json.dumps({**about, "rules": rules}))
    flags = [f"--audit-policy-file={policy}", f"--audit-log-path={folder / 'audit.log'}"]
    with start_cluster(
        workplace, tools, name="audited", controllers=False, flags={"kube-apiserver": flags}
    ) as cluster:
        crds.load(cluster.client, crds.SHARE_POD)
        make_default_account(cluster.client, "kube-system")
        cluster.audit_log = folder / "audit.log"
        yield cluster


@pytest.fixture
def stage(audited):
    with staged(audited.client) as stage:
        yield stage


@pytest.fixture
def namespace(audited):
    with audited.namespace() as name:
        yield name


def asked(cluster, client) -> Iterator[tuple[Right, int]]:
    """What a client has asked for, of all that needs rights, and the answer's status."""
    for line in cluster.audit_log.read_text().splitlines():
        event = json.loads(line)
        about = event.get("objectRef", {})
        if event["user"]["username"] != client.user or "resource" not in about:
            continue
        if about.get("apiGroup", "").endswith(".k8s.io") and about["resource"].endswith("reviews"):
            continue  # the test's own
        resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
        right = Right(
            event["verb"],
            about.get("apiGroup", ""),
            resource,
            about.get("namespace", ""),
            about.get("name", ""),
        )
        yield right, event.get("responseStatus", {}).get("code", 0)


def covers(right, request):
    """Whether this right is what allowed the request."""
    return all(mine in ("", theirs) for mine, theirs in zip(right, request, strict=True))


def check_rights(cluster, account, *files, in_vain=()):
    """What was asked for was granted, by the rights of these files, and took all of them.

    ``in_vain`` are resources that are asked for and done without.
    """
    rights = {*given(*files)}
    requests = [*asked(cluster, account)]
    refused = {request for request, code in requests if code in (401, 403)}
    assert {request for request in refused if request.resource not in in_vain} == set()
    used = {right for right in rights if any(covers(right, request) for request, _ in requests)}
    assert rights - used == set()


def run(command, folder, *args):
    """`vgpu reconcile run` in another process."""
    line = command.line(
        "run", "--mode=apply", "--every=1s", f"--audit={command.audit}", *command.flags(), *args
    )
    return Daemon("reconcile", line, folder / "run.log", env=command.environment)


def of_an_owner_who_is_asked(row, namespace):
    """A refused pod whose owner's own policy decides; here nobody has installed that kind."""
    owner = samples.owner(row.kind, "train", f"{row.group}/v1")
    name, labels = f"of-a-{row.kind.lower()}", {}
    if row.kind == "LeaderWorkerSet":
        owner, labels = samples.owner("StatefulSet", "train"), {GROUP_NAME: "train"}
    pod = samples.pod(name, namespace=namespace, owner=owner, labels=labels)
    return samples.refused(pod)


def make_all_rules_act(stage, namespace):
    """Something to be done with every right."""
    lost = samples.lock(samples.pod("lost", "hami", namespace=namespace))
    stage.put(
        samples.node("gpu-1", "volcano"),
        samples.node("gpu-2", "hami", annotations=lost),
        samples.node("gpu-3", "gpushare"),
        samples.node("gpu-4", "gaia"),  # whose gpu-admission may have a quota
        # Their owner gets the same event twice, so that the second one is counted.
        *(samples.refused(samples.pod(f"sick-{at}", namespace=namespace)) for at in range(2)),
        *(of_an_owner_who_is_asked(row, namespace) for row in ROWS if row.judge),
        samples.unbound("unbound", namespace=namespace),
        samples.pod("well", "gpushare", node="gpu-3", namespace=namespace),
        samples.share_pod("stuck", gpuid="ghost", served=False, bound=False, namespace=namespace),
    )


def test_the_rights_suffice_and_none_is_idle(audited, stage, namespace, tmp_path):
    account = with_rights(audited, *CLUSTER_RIGHTS)
    command = Command(account, tmp_path, KUBESHARE)
    make_all_rules_act(stage, namespace)
    assert command.plan().code == 3
    applied = command.apply()
    assert applied.code == 0, applied.errors
    assert applied.errors == ""
    port = f"--web.listen-address={audited.workplace.address}:{audited.workplace.port()}"
    with run(command, tmp_path, port) as loop:
        late = stage.put(samples.refused(samples.pod("late", namespace=namespace)))
        loop.wait_until(lambda: audited.client.find(late) is None, "the late one is evicted")
        assert loop.stop() == 0
        log_text = loop.log()
    assert "forbidden" not in log_text.lower()

    # ConfigMaps of schedulers, which may rename resources, are read where that is allowed.
    check_rights(audited, account, *CLUSTER_RIGHTS, in_vain=["configmaps"])


def test_the_rights_on_a_node_suffice_and_none_is_idle(audited, stage, namespace, tmp_path):
    account = with_rights(audited, *NODE_RIGHTS, account="vgpu-reconciler-node", node=demo().node)
    command = Command(account, tmp_path)
    node = NodeOnStage(stage, namespace, tmp_path)
    for name in ("notebook-bao", "detector", "notebook-bao"):  # the same event again is counted
        pod = node.pod(name)
        forget = dict.fromkeys(pod["metadata"]["annotations"])
        audited.client.patch(pod, {"metadata": {"annotations": forget}})
        assert command.apply(*node.flags()).code == 0
    port = f"--web.listen-address={audited.workplace.address}:{audited.workplace.port()}"
    with run(command, tmp_path, port, *node.flags()) as loop:
        loop.wait_until(lambda: not node.orphan.exists(), "the orphaned folder is removed")
        assert loop.stop() == 0
    # It may keep no memory in the cluster, and goes on with its process's own.
    check_rights(audited, account, NODE_RIGHTS[1], in_vain=["configmaps"])


REFUSED = (
    ("DELETE", "/api/v1/namespaces/{namespace}/pods/well"),
    ("GET", "/api/v1/namespaces/{namespace}/secrets"),
    ("GET", f"/api/v1/namespaces/{HOME}/secrets"),
    ("GET", "/api/v1/namespaces/{namespace}/configmaps"),
    ("GET", f"/api/v1/namespaces/{HOME}/configmaps/another"),
    ("PUT", f"/api/v1/namespaces/{HOME}/configmaps/another"),
    ("DELETE", f"/api/v1/namespaces/{HOME}/configmaps/vgpu-reconcile-state"),
    ("POST", "/api/v1/namespaces/{namespace}/configmaps"),
    ("PUT", f"/apis/coordination.k8s.io/v1/namespaces/{HOME}/leases/another"),
    ("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"),
    ("PATCH", "/api/v1/nodes/gpu-1"),
    ("PATCH", "/api/v1/namespaces/{namespace}/pods/well"),
    ("POST", "/api/v1/namespaces/{namespace}/pods"),
    ("POST", "/api/v1/namespaces/{namespace}/pods/well/exec"),
    ("DELETE", "/api/v1/nodes/gpu-1"),
    ("DELETE", "/apis/kubeshare.nthu/v1/namespaces/{namespace}/sharepods/stuck"),
    ("GET", "/apis/apps/v1/replicasets"),
    ("GET", "/apis/batch.volcano.sh/v1alpha1/jobs"),
    ("PATCH", "/apis/batch.volcano.sh/v1alpha1/namespaces/{namespace}/jobs/train"),
    ("GET", "/apis/batch/v1/namespaces/{namespace}/jobs/train"),
)


@pytest.mark.parametrize(("method", "path"), REFUSED, ids=lambda each: each)
def test_whatever_else_is_refused(audited, namespace, method, path):
    account = with_rights(audited, *CLUSTER_RIGHTS)
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    body = None if method == "GET" else {}
    with pytest.raises(Refused) as refused:
        account.raw(method, path.format(namespace=namespace), body, kind)
    assert refused.value.status == 403
