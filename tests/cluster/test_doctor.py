"""`vgpu doctor` at a real API server: its rights, those of components, clocks of nodes."""

import json
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from click.testing import CliRunner

from tests.cluster.reconciling import MANIFESTS, documents, with_rights
from tests.support import kai_player
from tests.support import sample_cluster as sample
from tests.support.bed import objects
from tests.support.environment import ROOT
from tests.support.installed import ours
from tests.support.nvml_fake import Device, FakeDriver
from tests.support.waiting import wait_until
from vgpu.apiserver.client import ApiClient
from vgpu.kube.installation_kinds import NODE_HEARTBEATS
from vgpucli.main import main

SCHEDULER = "Deployment vgpu-system/vgpu-scheduler"
RIGHTS = (MANIFESTS / "namespace.yaml", MANIFESTS / "scheduler-rbac.yaml")
BINDING = {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]}


def doctor(kubeconfig):
    result = CliRunner().invoke(main, ("doctor", "--kubeconfig", str(kubeconfig), "-o", "json"))
    assert result.exit_code in (0, 3), result.output
    return json.loads(result.stdout)["findings"]


def of_reason(findings, *reasons):
    return [each for each in findings if each["reason"] in reasons]


@pytest.fixture
def scheduler(api):
    """The Deployment of our scheduler, without pods, and its rights."""
    with_rights(api, *RIGHTS, account="vgpu-scheduler")
    deployment = next(
        each for each in documents(MANIFESTS / "scheduler.yaml") if each["kind"] == "Deployment"
    )
    made = api.client.apply(deployment)
    yield made
    api.client.delete(made)


def test_the_lines_that_are_printed_are_the_rights_that_are_missing(api, scheduler):
    """A user with these lines alone reads all parts."""
    nobody = of_reason(doctor(api.client_for().kubeconfig), "not_read")
    lines = [text.partition(": ")[2] for each in nobody for text in each["evidence"][1:]]
    assert len(lines) == len(nobody) >= 5
    rules = [rule for line in lines for rule in yaml.safe_load(line)]
    review = {
        "apiGroups": ["authorization.k8s.io"],
        "resources": ["subjectaccessreviews"],
        "verbs": ["create"],
    }
    # The components are not known to a user who may not list them, so nothing asks for this right.
    assert review not in rules
    reader = of_reason(doctor(api.client_for(*rules).kubeconfig), "not_read")
    assert {each["about"] for each in reader} == {
        "ValidatingAdmissionPolicies",
        "ValidatingAdmissionPolicyBindings",
        "rights of system:serviceaccount:vgpu-system:vgpu-scheduler",
    }
    lines = [each["evidence"][1].partition(": ")[2] for each in reader]
    more = [rule for line in lines for rule in yaml.safe_load(line)]
    assert review in more
    assert not of_reason(doctor(api.client_for(*rules, *more).kubeconfig), "not_read")


def test_a_right_that_a_component_lacks(api, scheduler):
    def missing():
        findings = doctor(api.kubeconfig)
        assert of_reason(findings, "kubelets", "nodes", "installed")
        return [
            each
            for each in of_reason(findings, "missing_right", "missing_optional_right")
            if each["about"] == SCHEDULER
        ]

    assert missing() == []
    role = api.client.get(documents(RIGHTS[1])[1])
    rules = [rule for rule in role["rules"] if rule != BINDING]
    assert len(rules) == len(role["rules"]) - 1
    changed = api.client.patch(role, {"rules": rules})
    try:
        wait_until(missing, "the right is missing")  # the authorizer learns of it a moment later
        (finding,) = missing()
        assert finding["severity"] == "error"
        assert finding["evidence"][0].endswith("vgpu-scheduler may not create pods/binding")
    finally:
        api.client.patch(changed, {"rules": role["rules"]})


def test_an_account_without_a_policy_and_a_daemon_set_whose_pods_are_not_ready(api, scheduler):
    """The policy of the manifests is in force, and does not name this account."""
    plugin = ours("DaemonSet", "device-plugin", "device-plugin", "--require-node-token", ready=0)
    made = api.client.apply(plugin)
    status = plugin["status"] | {"currentNumberScheduled": 0, "numberMisscheduled": 0}
    api.client.patch(made, {"status": status}, "status")
    try:
        findings = doctor(api.kubeconfig)
    finally:
        api.client.delete(made)
    (unlimited,) = of_reason(findings, "account_not_limited")
    assert unlimited["about"] == "DaemonSet vgpu-system/vgpu-device-plugin"
    (required,) = of_reason(findings, "node_token_required")
    assert "authentication.kubernetes.io/node-name" in required["advice"]


def test_pods_of_kai_that_name_their_queue_by_the_old_label_only(api, api_namespace):
    (written,) = (
        each
        for each in kai_player.after("kai_is_installed")
        if (each["kind"], each["metadata"]["name"]) == ("Deployment", "pod-grouper")
    )
    spec = {**written["spec"], "replicas": 1}
    meta = {"name": "pod-grouper", "namespace": api_namespace}
    made = api.client.create({**written, "metadata": meta, "spec": spec, "status": {}})
    old, new = {"runai/queue": "a"}, {"kai.scheduler/queue": "a"}
    for name, labels in (("old", old), ("new", new), ("both", {**old, **new})):
        api.client.create(objects.pod(name, api_namespace, labels=labels))
    try:
        (finding,) = of_reason(doctor(api.kubeconfig), "kai_queue_label_unread")
    finally:
        api.client.delete(made)
    assert finding["about"] == "runai/queue"
    assert finding["evidence"] == [f"1 pod without kai.scheduler/queue: {api_namespace}/old"]


def test_clocks_of_nodes(api):
    ahead = datetime.now(UTC) + timedelta(seconds=100)
    lease = sample_lease("doctor-ahead", ahead)
    made = [api.client.create(lease, fieldManager="kubelet")]
    try:
        (finding,) = of_reason(doctor(api.kubeconfig), "clock_of_node")
        assert finding["about"] == "Node doctor-ahead"
        assert "ahead of the API server" in finding["evidence"][0]
    finally:
        for each in made:
            api.client.delete(each)


def sample_lease(name, renewed):
    return {
        "kind": "Lease",
        "apiVersion": "coordination.k8s.io/v1",
        "metadata": {"name": name, "namespace": "kube-node-lease"},
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": 40,
            "renewTime": renewed.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


def test_a_kubelet_and_its_api_server_agree_about_the_time(control_plane, node):
    """The API server writes its own time beside each renewal of the kubelet."""
    with ApiClient.connect(str(control_plane.kubeconfig)) as cluster:

        def heartbeat(after):
            pages = cluster.pages(NODE_HEARTBEATS, namespace="kube-node-lease")
            beats = [each for page in pages for each in page.objects]
            return next(
                (each for each in beats if each.node == node.name and each.renewed_at > after), None
            )

        begun = time.time()
        renewed = wait_until(lambda: heartbeat(begun), "the kubelet renews its Lease")
    assert -5 < renewed.renewed_at - renewed.written_at < 5
    assert renewed.written_at > begun - 1  # of this renewal, and not of the Lease's creation
    findings = doctor(control_plane.kubeconfig)
    assert not of_reason(findings, "not_read")
    assert of_reason(findings, "passed")


def test_doctor_reads_the_version_and_groups_of_a_real_server(api):
    node = sample.volcano_node("doctor-gpu", 1)
    made = api.client.create({**node, "status": {}})
    info = {"kubeletVersion": "v1.30.0", "containerRuntimeVersion": "containerd://1.7.35"}
    api.client.patch(made, {"status": {**node["status"], "nodeInfo": info}}, "status")
    try:
        findings = doctor(api.kubeconfig)
    finally:
        api.client.delete(made)
    (skew,) = of_reason(findings, "kubelet_skew")  # four minor versions
    assert "kubelet v1.30.0: 1 node (doctor-gpu)" in skew["evidence"]
    assert any(text.startswith("API server: v1.34.") for text in skew["evidence"])


# ---------------------------------------------------------------- a real node


WATCHED = """
import json, os, sys

opened = set()

def hook(event, arguments):
    if event in ("open", "os.listdir", "os.scandir", "os.mkdir", "os.remove", "os.rename"):
        place = arguments[0]
    elif event == "socket.connect":
        place = arguments[1]
    else:
        return
    if isinstance(place, (str, bytes, os.PathLike)):
        opened.add(os.fsdecode(place))

from click.testing import CliRunner
from vgpucli.doctor.local_node import command

sys.addaudithook(hook)
result = CliRunner().invoke(command, sys.argv[1:], catch_exceptions=False)
print(json.dumps([json.loads(result.stdout)["findings"], sorted(opened), result.exit_code]))
"""
"""Runs the command, and prints its findings and what it has opened."""

SECRET = "hunter2-s3cr3t"
AUTH = f'\n[plugins."io.containerd.grpc.v1.cri".registry.configs."x".auth]\npassword = "{SECRET}"\n'
CONFIG = "/var/tmp/containerd.toml"
SECRET_PLACES = ("/etc/kubernetes", "/var/lib/kubelet/config", "pki", ".key", "~secret", "shadow")


@pytest.fixture
def diagnosed(node, tmp_path, host_proc):
    """The findings of the node by this user, and what was opened for them."""
    driver = FakeDriver(tmp_path)
    driver.write(devices=[Device("GPU-0000-doctor")])
    text = node.run(["cat", "/etc/containerd/config.toml"]) + AUTH
    node.run(["sh", "-c", f"printf %s '{text}' > {CONFIG}"])
    procfs = host_proc()

    def run(*before):
        flags = ("--containerd.config", CONFIG, "--path.procfs", procfs, "-o", "json")
        command = [*before, sys.executable, "-c", WATCHED, *flags]
        env = {**driver.env(), "PYTHONPATH": str(ROOT)}
        findings, opened, status = json.loads(node.run(command, env=env))
        assert status in (0, 3)
        assert SECRET not in json.dumps(findings)
        return findings, opened

    yield run
    node.run(["rm", CONFIG])


def test_a_real_node(diagnosed):
    """The kubelet's sockets, containerd's configuration, and the sources of the exporter."""
    findings, opened = diagnosed()
    reasons = {each["reason"] for each in findings}
    assert {"driver", "runtime_config"} <= reasons
    assert reasons.isdisjoint({"no_driver", "socket_absent", "containerd_unknown", "check_failed"})
    (config,) = of_reason(findings, "runtime_config")
    assert config["evidence"] == ["enable_cdi = true"]
    assert not of_reason(findings, "source_failed"), findings
    assert CONFIG in opened
    assert not [path for path in opened for secret in SECRET_PLACES if secret in path]


def test_a_real_node_without_any_capability(diagnosed):
    """Files of root are enough: whatever needs more is a finding with its reason."""
    findings, _ = diagnosed("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    reasons = {each["reason"] for each in findings}
    assert {"driver", "runtime_config"} <= reasons
    assert reasons.isdisjoint({"no_driver", "socket_absent", "check_failed"})
    failed = of_reason(findings, "source_failed")
    assert all(each["evidence"][0] and each["advice"] for each in failed)
