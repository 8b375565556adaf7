"""Beside the oldest Kubernetes client that we allow, a real API server is read and repaired."""

import json

import pytest

from tests.cluster.reconciling import CLUSTER_RIGHTS, Command, is_evicted, staged, with_rights
from tests.reconciler import samples


@pytest.fixture
def stage(api):
    with staged(api.client) as stage:
        yield stage


@pytest.fixture
def command(api, tmp_path):
    return Command(with_rights(api, *CLUSTER_RIGHTS), tmp_path)


@pytest.fixture
def vgpu(oldest_client):
    """Runs a command of ours beside it: what it prints on standard output."""

    def run(*command, status=0):
        ran = oldest_client.run("-m", "vgpu", *command)
        assert ran.returncode == status, ran.stderr
        return ran.stdout

    return run


def test_inspect_shows_the_clusters_pods(stage, command, api_namespace, vgpu):
    stage.put(samples.node("old-1", "gpushare"))
    stage.put(samples.pod("train", "gpushare", namespace=api_namespace, node="old-1"))
    output = vgpu("inspect", f"--kubeconfig={command.kubeconfig}", "old-1")
    assert "old-1" in output
    assert f"{api_namespace}/train" in output


def test_reconcile_plans_and_applies(stage, api, command, api_namespace, vgpu):
    stage.put(samples.node("old-2", "volcano"))
    sick = stage.put(samples.refused(samples.pod("sick", namespace=api_namespace, node="old-2")))
    flags = (*command.flags(), f"--namespace={api_namespace}")
    planned = json.loads(vgpu("reconcile", "plan", "--output=json", *flags, status=3))
    assert [action["name"] for action in planned["actions"]] == ["sick"]
    output = vgpu("reconcile", "apply", f"--audit={command.audit}", "--yes", *flags)
    assert "1 done" in output
    assert is_evicted(api.client, sick)
    assert [record["event"] for record in command.audit_records()] == ["intent", "result"]
