"""The GPUs in a tenant's ConfigMap: further evidence, less trusted than the reservation pod."""

import json

import pytest
from click.testing import CliRunner

from tests.support import sample_cluster as sample
from tests.support.kai_pods import LABEL_MIB, gpu, kai_node, reservation, tenant
from tests.support.sample_cluster import nvidia_node
from vgpu.apiserver.connection import ClusterError
from vgpu.inventory import Objects, Units, inventory
from vgpu.kube.dump import decode_dump
from vgpu.ledger.conflict_kinds import ConflictKind
from vgpu.model.names import ContainerKind, Source
from vgpu.model.objects import Container
from vgpu.schemes.kai.config_map import config_map_names, is_shared_gpu, visible_gpus
from vgpu.schemes.kai.keys import CONFIG_MAP, CONTAINER, FRACTION
from vgpucli.inspect.read import shared_gpu_maps
from vgpucli.main import main

PREFIX = "train-abcdefg-shared-gpu"
ASKS = {FRACTION: "0.5", CONFIG_MAP: PREFIX}
CDI = "k8s.device-plugin.nvidia.com/gpu="


def data(text, key="NVIDIA_VISIBLE_DEVICES", name=f"{PREFIX}-0"):
    return {("team-a", name): {key: text}}


@pytest.mark.parametrize(
    ("config_maps", "uuids"),
    [
        (data(gpu(1)), (gpu(1),)),
        (data(f"{gpu(1)},{gpu(2)}"), (gpu(1), gpu(2))),
        (data(f"{CDI}{gpu(1)},{CDI}{gpu(2)}"), (gpu(1), gpu(2))),
        (data(gpu(1), "RUNAI-VISIBLE-DEVICES"), (gpu(1),)),
        (data(gpu(1), name=f"{PREFIX}-0-evar"), (gpu(1),)),
        (data("0"), ()),
        (data("all"), ()),
        (data(f"{gpu(1)},"), ()),
        (data(gpu(1), name=f"{PREFIX}-1"), ()),
        ({("team-b", f"{PREFIX}-0"): {"NVIDIA_VISIBLE_DEVICES": gpu(1)}}, ()),
        ({}, ()),
    ],
)
def test_only_uuids_of_the_containers_own_config_map_count(config_maps, uuids):
    assert visible_gpus(tenant(annotations=ASKS), config_maps) == uuids


def test_the_name_counts_containers_of_one_kind():
    containers = (
        Container("main"),
        Container("gpu"),
        Container("first", kind=ContainerKind.INIT),
        Container("side", kind=ContainerKind.SIDECAR),
    )
    for name, index in (("gpu", "1"), ("first", "i0"), ("side", "i1")):
        pod = tenant(annotations=ASKS | {CONTAINER: name}, containers=containers)
        assert config_map_names(pod)[0] == f"{PREFIX}-{index}"
    assert config_map_names(tenant()) == ()
    assert is_shared_gpu(f"{PREFIX}-i0-evar")
    assert not is_shared_gpu("shared-gpu-config")


def view(*pods, config_maps):
    (seen,) = inventory(Objects((kai_node(),), pods, config_maps=config_maps), Units()).nodes
    return seen.ledger


def test_it_names_the_gpu_of_a_group_without_reservation_pod():
    ledger = view(tenant(annotations=ASKS), config_maps=data(gpu(2)))
    (holding,) = ledger.holdings
    assert (holding.share.device, holding.source) == (gpu(2), Source.CONFIG_MAP)
    assert [entry.device.memory_bytes for entry in ledger.devices] == [15300 << 20]


def test_the_reservation_pod_is_trusted_more_and_a_difference_is_a_conflict():
    pods = reservation(), tenant(annotations=ASKS)
    for uuid, kinds in ((gpu(1), []), (gpu(2), [ConflictKind.GPU_DIFFERS])):
        ledger = view(*pods, config_maps=data(uuid))
        (holding,) = ledger.holdings
        assert (holding.share.device, holding.source) == (gpu(1), Source.RESERVATION_POD)
        assert [conflict.kind for conflict in ledger.conflicts] == kinds


SPACE = "kai-resource-reservation"


@pytest.mark.parametrize(
    ("others", "token", "space", "lists_all"),
    [((), "", SPACE, False), (("kube-system",), "", SPACE, True), (("team-b",), "", SPACE, False),
     (("kai-scheduler",), "", SPACE, True), (("kai-scheduler",), "more", SPACE, False),
     (("kai-scheduler",), "", "default", False), (("kube-system", SPACE), "", "default", True)],
)  # fmt: skip
def test_a_dump_shows_by_its_namespaces_that_it_has_all_pods(others, token, space, lists_all):
    pod = sample.pod("train", "kai", None, ASKS, labels={"runai-gpu-group": "g"})
    items = [pod, *(sample.pod("other", "kai", namespace=each) for each in others)]
    items.append({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": space}})
    listed = {"kind": "List", "apiVersion": "v1", "metadata": {"continue": token}, "items": items}
    assert decode_dump(json.dumps(listed).encode()).lists_all is lists_all


@pytest.mark.parametrize("content", [{"NVIDIA_VISIBLE_DEVICES": gpu(1)}, None, [], {"a": 1}])
def test_a_dump_with_any_config_map_is_read(tmp_path, content):
    node = nvidia_node("kai", "nvidia.com/gpu", 2, product="T4", memory=LABEL_MIB)
    labels = {"runai-gpu-group": "g"}
    pod = sample.pod("train", "kai", None, ASKS, labels=labels, namespace="team-a")
    metadata = {"name": f"{PREFIX}-0", "namespace": "team-a"}
    config = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": content}
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(sample.dump([node, pod, config])))
    printed = CliRunner().invoke(main, ["inspect", "--from", str(path), "-o", "json"])
    assert printed.exit_code == 0
    document = json.loads(printed.stdout)
    held = [one["devices"][0]["name"] for one in document["nodes"]]
    assert held == ([gpu(1)] if content == {"NVIDIA_VISIBLE_DEVICES": gpu(1)} else [])
    assert len(document["otherSchedulers"]) == 1 - len(held)


class Cluster:
    """An API server that has ConfigMaps, and refuses those of one namespace."""

    def __init__(self, config_maps, refused=""):
        self.config_maps, self.refused, self.asked = config_maps, refused, []

    def config_map(self, namespace, name):
        self.asked.append((namespace, name))
        if namespace == self.refused:
            raise ClusterError(403, "Forbidden", "configmaps is forbidden")
        return self.config_maps.get((namespace, name))


def test_at_the_api_server_those_of_pods_without_a_reservation_pod_are_read():
    lost, kept = tenant(annotations=ASKS), tenant("kept", ("h",), annotations=ASKS)
    cluster, notes = Cluster(data(gpu(2))), []
    found = shared_gpu_maps(cluster, (lost, kept, reservation("h")), notes)
    assert (found, notes) == (data(gpu(2)), [])
    assert {name for _, name in cluster.asked} == {f"{PREFIX}-0", f"{PREFIX}-0-evar"}


def test_without_the_right_a_namespace_is_asked_once_and_is_a_note():
    pods = [tenant(name, annotations=ASKS) for name in ("a", "b")]
    cluster, notes = Cluster({}, "team-a"), []
    assert shared_gpu_maps(cluster, pods, notes) == {}
    assert len(cluster.asked) == len(notes) == 1
    assert "could not be read: configmaps is forbidden" in notes[0]


def test_a_cluster_without_such_pods_is_asked_for_nothing():
    cluster = Cluster({})
    assert shared_gpu_maps(cluster, (tenant(), reservation("g")), []) == {}
    assert cluster.asked == []
