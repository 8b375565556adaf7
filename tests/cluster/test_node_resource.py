"""`vgpu node-resource` on a real API server: what it changes, and what it keeps."""

import os
import pty
import subprocess
import sys

import pytest
from click.testing import CliRunner

from tests.support.environment import ROOT
from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.connection import ClusterError
from vgpucli.main import main
from vgpucli.node_resource import operations

NAME = "example.com/fpga"


@pytest.fixture
def node(api):
    """The path of a node that has a few resources."""
    name = "by-hand"
    made = api.client.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    api.client.patch(made, {"status": {"capacity": {"cpu": "8", "example.com/x": "1"}}}, "status")
    yield f"/api/v1/nodes/{name}"
    api.client.delete(made)


@pytest.fixture
def run(api):
    def call(*args):
        flags = ["--kubeconfig", str(api.kubeconfig)]
        return CliRunner().invoke(main, ["node-resource", *args, *flags])

    return call


def capacity(api, node):
    return api.client.get(node)["status"].get("capacity", {})


def test_a_resource_is_set_changed_and_withdrawn(api, node, run):
    result = run("set", "by-hand", f"{NAME}=4", "--yes")
    assert result.output == f"by-hand: {NAME} none -> 4\nchanged\n"
    assert capacity(api, node) == {"cpu": "8", "example.com/x": "1", NAME: "4"}
    assert f"{NAME} 4 -> 6\n" in run("set", "by-hand", f"{NAME}=6", "--yes").output
    assert capacity(api, node)[NAME] == "6"
    assert run("set", "by-hand", f"{NAME}=6", "--yes").output == f"by-hand: {NAME} is 6 already\n"
    assert f"{NAME} 6 -> 1000\n" in run("set", "by-hand", f"{NAME}=1000", "--yes").output
    assert run("set", "by-hand", f"{NAME}=1000", "--yes").output.endswith("is 1k already\n")
    run("set", "by-hand", f"{NAME}=6", "--yes")
    assert f"{NAME} 6 -> none\n" in run("unset", "by-hand", NAME, "--yes").output
    assert capacity(api, node) == {"cpu": "8", "example.com/x": "1"}
    assert "is none already" in run("unset", "by-hand", NAME, "--yes").output


def test_a_node_without_any_capacity_can_get_some(api, run):
    about = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "bare"}}
    made = api.client.create(about)
    result = run("set", "bare", f"{NAME}=1", "--yes")
    assert result.output.endswith("changed\n"), result.output
    assert capacity(api, "/api/v1/nodes/bare") == {NAME: "1"}
    api.client.delete(made)


def test_a_dry_run_asks_the_server_and_changes_nothing(api, node, run):
    result = run("set", "by-hand", f"{NAME}=4", "--dry-run")
    assert "the server would take it, nothing was changed" in result.output
    assert NAME not in capacity(api, node)


@pytest.mark.parametrize(
    ("seen", "count"),
    [({"cpu": "8"}, 5), ({"cpu": "8", NAME: "2"}, 5), ({"cpu": "8", NAME: "2"}, None), ({}, 5)],
)
def test_what_was_changed_meanwhile_is_not_overwritten(api, node, seen, count):
    """The resource, or the whole of the capacity, is no longer what was seen."""
    api.client.patch(node, {"status": {"capacity": {NAME: "3"}}}, "status")
    with ApiClient.connect(str(api.kubeconfig)) as cluster, pytest.raises(ClusterError) as info:
        cluster.patch_node_status("by-hand", operations(NAME, seen, count))
    assert info.value.status == 422
    assert capacity(api, node)[NAME] == "3"


def test_the_command_reports_a_concurrent_change(api, node, run, monkeypatch):
    monkeypatch.setattr(ApiClient, "capacity", lambda *_: {"cpu": "8", NAME: "2"})
    api.client.patch(node, {"status": {"capacity": {NAME: "3"}}}, "status")
    result = run("set", "by-hand", f"{NAME}=4", "--yes")
    assert result.exit_code == 1
    assert "was changed by another client" in result.output
    assert capacity(api, node)[NAME] == "3"


@pytest.mark.parametrize(("typed", "after"), [(b"n\n", None), (b"\n", None), (b"y\n", "4")])
def test_a_person_is_asked(api, node, typed, after):
    master, terminal = pty.openpty()
    command = [sys.executable, "-m", "vgpu", "node-resource", "set", "by-hand", f"{NAME}=4"]
    with subprocess.Popen(
        [*command, "--kubeconfig", str(api.kubeconfig)],
        stdin=terminal,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
    ) as process:
        os.write(master, typed)
        output = process.stdout.read().decode()
    os.close(master)
    os.close(terminal)
    assert f"Change it at {api.address}? [y/N]" in output
    assert process.returncode == (0 if after else 1)
    assert capacity(api, node).get(NAME) == after


def test_an_unknown_node_and_a_missing_right_are_reported(api, node, run):
    result = run("set", "nobody", f"{NAME}=4", "--yes")
    assert result.exit_code == 1
    assert 'nodes "nobody" not found' in result.output
    reader = api.client_for({"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]})
    flags = ["--yes", "--kubeconfig", str(reader.kubeconfig)]
    result = CliRunner().invoke(main, ["node-resource", "set", "by-hand", f"{NAME}=4", *flags])
    assert result.exit_code == 1
    assert 'cannot patch resource "nodes/status"' in result.output
    assert NAME not in capacity(api, node)
