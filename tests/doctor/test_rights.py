"""The doctor's table of rights is what the manifests grant, and what the components need."""

import json
from pathlib import Path

import pytest
import yaml

from tests.support.installed import our_plugin, our_scheduler, ours
from vgpu.kube.installation_kinds import DAEMON_SETS, DEPLOYMENTS
from vgpucli.doctor.access_review import Right
from vgpucli.doctor.check_rights import needed
from vgpucli.doctor.components import ComponentRole, components

MANIFESTS = Path(__file__).parents[2] / "deploy" / "manifests"
HOME = "vgpu-system"
KINDS = {"DaemonSet": DAEMON_SETS, "Deployment": DEPLOYMENTS}

OWNERS = ("batch.volcano.sh", "leaderworkerset.x-k8s.io", "kubeflow.org", "ray.io")
OWNERS += ("argoproj.io", "sparkoperator.k8s.io", "apps.kruise.io")
"""Groups of owners of pods: the reconciler needs the right for those that are in use only."""

FILES = {
    ComponentRole.SCHEDULER: ["scheduler-rbac.yaml"],
    ComponentRole.RECONCILER: ["reconciler-rbac.yaml", "reconciler-rbac-gpushare.yaml"],
    ComponentRole.NODE_RECONCILER: ["reconciler-node-rbac.yaml"],
    ComponentRole.CONTROLLER: ["kubeshare-rbac.yaml"],
    ComponentRole.NODE_COMPONENT: ["kubeshare-rbac.yaml"],
    ComponentRole.DEVICE_PLUGIN: ["device-plugin-volcano.yaml"],
    ComponentRole.EXPORTER: ["exporter-full.yaml"],
}

WORKLOADS = {
    ComponentRole.SCHEDULER: our_scheduler(f"--lease-namespace={HOME}"),
    ComponentRole.RECONCILER: ours("Deployment", "reconciler", "reconcile", "run"),
    ComponentRole.NODE_RECONCILER: ours(
        "DaemonSet", "reconciler-node", "reconcile", "run", "--scope=node"
    ),
    ComponentRole.CONTROLLER: ours(
        "Deployment",
        "kubeshare-controller",
        "kubeshare",
        "controller",
        f"--lease-namespace={HOME}",
    ),
    ComponentRole.NODE_COMPONENT: ours("DaemonSet", "kubeshare-node", "kubeshare", "node"),
    ComponentRole.DEVICE_PLUGIN: our_plugin(),
    ComponentRole.EXPORTER: ours("DaemonSet", "exporter", "exporter", "--collector.api"),
}
ACCOUNTS = {ComponentRole.DEVICE_PLUGIN: "vgpu-device-plugin-volcano"}


def granted(role, account):
    """The rights that the files of a component grant to its ServiceAccount."""
    documents = [
        each for file in FILES[role] for each in yaml.safe_load_all((MANIFESTS / file).read_text())
    ]
    names = {
        (binding["roleRef"]["kind"], binding["roleRef"]["name"]): binding["metadata"].get(
            "namespace", ""
        )
        for binding in documents
        if any(subject["name"] == account for subject in binding.get("subjects", ()))
    }
    return {
        Right(group, resource, verb, names[key], name)
        for each in documents
        if (key := (each["kind"], each["metadata"]["name"])) in names
        for rule in each["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", ("",))
    }


def component(workload):
    kind = KINDS[workload["kind"]]
    (installed,) = components([kind.one(json.dumps(workload).encode())])
    return installed


@pytest.mark.parametrize("role", FILES)
def test_the_table_is_what_the_manifests_grant(role):
    workload = WORKLOADS[role]
    account = ACCOUNTS.get(role) or workload["spec"]["template"]["spec"]["serviceAccountName"]
    rights = {right for right, _ in needed(component(workload))}
    manifests = granted(role, account)
    unused = {right for right in manifests if right.group in OWNERS}
    if role is ComponentRole.DEVICE_PLUGIN:  # those of the reconciler beside it
        unused |= {Right("", "nodes", "get"), Right("", "pods", "get")}
    if role is ComponentRole.RECONCILER:
        unused |= {Right("kubeshare.nthu", "sharepods", "patch")}
        unused |= {Right("", "configmaps", "get", "kube-system", "gpuquota")}
    assert rights == manifests - unused


def test_an_exporter_that_asks_no_api_server_needs_no_right():
    assert not list(needed(component(ours("DaemonSet", "exporter", "exporter"))))


def test_namespaces_of_flags():
    def leases(workload):
        rights = (right for right, _ in needed(component(workload)))
        return {right.namespace for right in rights if right.resource == "leases"}

    assert leases(our_scheduler()) == {"kube-system"}
    assert leases(our_scheduler("--lease-namespace", "gpu")) == {"gpu"}
    assert leases(our_scheduler("--lease-namespace=$(NAMESPACE)")) == {HOME}
    assert leases(ours("Deployment", "reconciler", "reconcile", "run")) == {HOME}


def workloads():
    """The workloads of the manifests, each with the name of its file."""
    for file in sorted(MANIFESTS.glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            if document and document["kind"] in KINDS:
                yield file.name, document


def test_each_container_of_the_manifests_is_recognised():
    for name, document in workloads():
        found = components([KINDS[document["kind"]].one(json.dumps(document).encode())])
        words = [each["args"][0] for each in document["spec"]["template"]["spec"]["containers"]]
        assert len(found) == len(words), f"{name}: {words}"
        assert all(each.is_ours for each in found)
