"""`vgpu doctor` as a person calls it: on dumps, at an API server, and with wrong flags."""

import json

import msgspec
import pytest
from click.testing import CliRunner

from tests.commands.conftest import dumped
from tests.support import sample_cluster as sample
from tests.support.answering_server import answer, serving, status
from tests.support.installed import (
    hami_plugin,
    hami_scheduler,
    heartbeat,
    nvidia_plugin,
    our_scheduler,
    with_software,
)
from vgpucli.doctor import read as doctor_read
from vgpucli.doctor.answer import cluster_findings
from vgpucli.doctor.model import diagnosis
from vgpucli.doctor.report import DiagnosisDocument, report
from vgpucli.main import main

ITEMS = [
    with_software(
        sample.node(
            "a",
            {"nvidia.com/gpu": 10},
            {"hami.io/node-nvidia-register": "GPU-1,10,24576,100,L40S,0,true:"},
        )
    ),
    hami_plugin(config_maps=["hami-device-plugin"]),
    hami_scheduler(config_maps=["hami-scheduler"]),
    nvidia_plugin(),
    heartbeat("a"),
    {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": "hami-scheduler", "namespace": "kube-system"},
        "data": {"config.yaml": "kind: KubeSchedulerConfiguration\n"},
    },
    {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": "a-tenant", "namespace": "ml"},
        "data": {"password": "hunter2"},
    },
]
GOOD = [ITEMS[0], ITEMS[1], hami_scheduler(), heartbeat("a")]


def run(*words, **options):
    return CliRunner().invoke(main, ("doctor", *words), **options)


def reasons(result, status):
    assert result.exit_code == status, result.output
    document = msgspec.json.decode(result.stdout.encode(), type=DiagnosisDocument)
    assert sum(document.counts.values()) == len(document.findings)
    return {(each.severity, each.reason) for each in document.findings}


def test_a_dump_and_an_api_server_have_the_same_problems(source):
    found = reasons(run(*source, "-o", "json"), 3)
    assert {("error", "several_plugins"), ("warning", "config_unreadable")} <= found
    assert {("info", "installed"), ("ok", "passed")} <= found


def test_the_text_for_people(tmp_path):
    result = run(*dumped(tmp_path, ITEMS), terminal_width=100)
    assert result.exit_code == 3
    text = " ".join(result.output.split())
    for part in (
        "error several_plugins: nvidia.com/gpu: several device plugins of one resource are meant",
        "HAMi device plugin v2.8.0 (DaemonSet kube-system/hami-device-plugin)",
        "What to do: let their node selectors exclude each other.",
        "info DaemonSet kube-system/hami-device-plugin: HAMi device plugin v2.8.0, HAMi monitor",
        "1 error, 2 warnings",  # the configuration; no webhooks are in the dump
    ):
        assert part in text, result.output
    assert "hunter2" not in result.output


def test_no_error_is_status_0(tmp_path):
    result = run(*dumped(tmp_path, GOOD))
    assert result.exit_code == 0, result.output
    assert "0 errors, 1 warning" in result.output


def test_what_is_not_in_the_dump_is_reported(tmp_path):
    result = run(*dumped(tmp_path, GOOD[:1]), "-o", "json")
    findings = json.loads(result.stdout)["findings"]
    not_read = [each for each in findings if each["reason"] == "not_read"]
    unread = {each["about"] for each in not_read}
    assert {each["advice"].partition(",")[0] for each in not_read} == {"add it to the dump"}
    assert unread == {
        "DaemonSets",
        "Deployments",
        "Leases of kube-node-lease",
        "MutatingWebhookConfigurations",
    }


def test_a_configuration_of_kube_scheduler_in_a_file(tmp_path):
    path = tmp_path / "kube-scheduler.yaml"
    path.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    )
    flags = dumped(tmp_path, [*GOOD, our_scheduler("--original-plugin")])
    result = run(*flags, "--scheduler-config", str(path), "-o", "json")
    assert ("error", "no_extender") in reasons(result, 3)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("--from", "-", "--context", "x"), 2, "--from asks no cluster: drop --context"),
        (("--from", "-", "--from", "-"), 2, "--from - can be read once only"),
        (("--from", "/nonexistent"), 1, "--from /nonexistent: No such file or directory"),
        (("--scheduler-config", "/nonexistent"), 1, "--scheduler-config /nonexistent: No such"),
        (("--kubeconfig", "/nonexistent"), 1, "/nonexistent"),
        (("everything",), 2, "No such command 'everything'"),
        (("-o", "json", "node"), 2, "flags of this node come behind the word node"),
        (("node", "-o", "xml"), 2, "'xml' is not one of 'text', 'json'"),
    ],
)
def test_wrong_flags(words, status, message):
    result = run(*words)
    assert result.exit_code == status
    assert message in result.output


@pytest.mark.parametrize("content", ["", "{}", "no", '{"kind":"List","items":[]}'])
def test_what_is_no_dump(tmp_path, content):
    path = tmp_path / "dump.json"
    path.write_text(content)
    result = run("--from", str(path))
    assert result.exit_code == 1
    assert "--from" in result.output


def test_a_simulated_node():
    result = run("node", "--simulate", "-o", "json")
    assert {("info", "driver"), ("ok", "passed")} == reasons(result, 0)


def test_this_node(tmp_path):
    """Without a GPU and a kubelet: each missing part is one finding, and none ends the command."""
    config = tmp_path / "config.toml"
    config.write_text('[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false\n')
    paths = ("--kubelet.checkpoint", str(tmp_path / "checkpoint"), "--path.procfs", str(tmp_path))
    result = run("node", "--containerd.config", str(config), *paths, "-o", "json")
    found = reasons(result, 3)
    assert {("error", "no_driver"), ("warning", "socket_absent"), ("warning", "cdi_off")} <= found
    assert ("info", "monitor_unknown") in found


LISTS = {
    "Nodes",
    "DaemonSets",
    "Deployments",
    "MutatingWebhookConfigurations",
    "Leases of kube-node-lease",
}
LOGIN = answer(b"<html><h1>Log in</h1></html>", Content_Type="text/html")


@pytest.mark.parametrize(
    ("given", "advice"),
    [(LOGIN, "look at what answered"), (status(403, "Forbidden", "no"), "grant the right")],
    ids=["a login page", "no right"],
)
def test_where_nothing_can_be_read_the_status_is_that_of_an_error(given, advice, capsys):
    with serving(*[given] * 40) as (cluster, _):
        facts = doctor_read.from_server(cluster, {})
    found = tuple(cluster_findings(facts))
    assert found[0].reason == "nothing_read"
    assert "nothing_installed" not in {each.reason for each in found}
    lists = [each for each in found if each.reason == "not_read" and each.about in LISTS]
    assert len(lists) == len(LISTS)
    assert {each.advice.partition(":")[0].partition(" that is")[0] for each in lists} == {advice}
    assert report(diagnosis(facts.as_of, found), "text") == 3
    assert ("ClusterRole" in capsys.readouterr().out) == (given is not LOGIN)


def test_one_list_that_can_be_read_is_not_nothing():
    empty = answer({"kind": "NodeList", "metadata": {}, "items": []})
    answers = [LOGIN, LOGIN, empty, *[LOGIN] * 40]  # version and groups are asked for first
    with serving(*answers) as (cluster, _):
        facts = doctor_read.from_server(cluster, {})
    assert "nothing_read" not in {each.reason for each in cluster_findings(facts)}


def test_sharing_systems_have_their_names_for_people(tmp_path):
    gaia = sample.node("b", {"tencent.com/vcuda-core": 100, "tencent.com/vcuda-memory": 10})
    text = run(*dumped(tmp_path, [ITEMS[0], with_software(gaia)])).stdout
    assert "1 node with GPUs of HAMi: a" in text
    assert "1 node with GPUs of gpu-manager: b" in text
    assert "gaia" not in text
