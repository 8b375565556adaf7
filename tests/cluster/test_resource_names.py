"""Renamed resources at a real API server: their names by HAMi's ConfigMap, or by a node."""

import pytest
from click.testing import CliRunner

from tests.support import renamed_systems as renamed
from vgpucli.main import main

READS = [
    {"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["get", "list"]},
    {"apiGroups": ["kubeshare.nthu"], "resources": ["sharepods"], "verbs": ["list"]},
]
"""What `vgpu inspect` and `vgpu explain node` need, without ConfigMaps."""


@pytest.fixture
def cluster(api):
    """A node and a waiting pod of HAMi, with other names."""
    document = renamed.node("hami")
    status = document.pop("status")
    document["metadata"]["name"] = "renamed-1"
    node = api.client.create(document)
    api.client.patch(node, {"status": status}, "status")
    container = {
        "name": "main",
        "image": "x",
        "resources": {
            "limits": {name: str(units) for name, units in renamed.requested("hami").items()}
        },
    }
    try:
        with api.namespace() as namespace:
            about = {"name": "waits", "namespace": namespace}
            spec = {"containers": [container], "schedulerName": "nobody"}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}
            api.client.create(pod)
            held = renamed.held("hami") | {"hami.io/vgpu-node": "renamed-1"}
            about = {"name": "idle", "namespace": namespace, "annotations": held}
            spec = {**spec, "nodeName": "renamed-1", "terminationGracePeriodSeconds": 0}
            api.client.create({**pod, "metadata": about, "spec": spec})
            yield api
    finally:
        api.client.delete(node)


@pytest.fixture
def config_map(api):
    made = api.client.create(renamed.config_map("hami"))
    yield made
    api.client.delete(made)


def printed(kubeconfig, *words):
    result = CliRunner().invoke(main, [*words, "--kubeconfig", str(kubeconfig)])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_commands_find_the_names_in_hamis_config_map(cluster, config_map):
    shown = printed(cluster.kubeconfig, "inspect")
    assert "/waits 4.0 GiB, 25% of cores hami" in shown
    assert "are not known" not in shown
    node = printed(cluster.kubeconfig, "explain", "node", "renamed-1")
    assert "plugin passed nvidia.com/gpu: 1 nvidia.com/vgpu: 10" in node


def test_without_the_right_to_read_it_what_the_node_advertises_has_the_name(cluster, config_map):
    reader = cluster.client_for(*READS).kubeconfig
    shown = printed(reader, "inspect")
    assert "/waits" in shown
    assert "the name of the resource of HAMi is nvidia.com/vgpu" in shown
    node = printed(reader, "explain", "node", "renamed-1")
    assert "plugin passed nvidia.com/gpu: 1 nvidia.com/vgpu: 10" in node
