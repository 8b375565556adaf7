"""Two ConfigMaps of one scheduler, and which ConfigMaps are read."""

import json

import pytest

from tests.commands.conftest import dumped, printed_words
from tests.support import renamed_systems as renamed
from tests.support import sample_cluster as sample

ITEMS = renamed.objects("hami")
"""What the API server has: HAMi's node and pods, without a ConfigMap."""

COUNT, MEMORY = "nvidia.com/vgpu\n", "nvidia.com/vgpumem\n"


def config_map(name="other", **others):
    """HAMi's ConfigMap under another name, with other names of resources."""
    document = renamed.config_map("hami")
    document["metadata"]["name"] = name
    text = document["data"]["device-config.yaml"]
    for before, after in others.values():
        text = text.replace(f": {before}", f": {after}\n")
    document["data"]["device-config.yaml"] = text
    return document


def answer(tmp_path, *words, others=(), status=0, config_maps=()):
    objects = [*ITEMS, *others, *(config_maps or [renamed.config_map("hami")])]
    return printed_words((*words, *dumped(tmp_path, objects)), status)


def test_a_second_config_map_with_the_same_names_changes_nothing(tmp_path):
    alone = answer(tmp_path, "inspect")
    assert "ml/waits 4.0 GiB, 25% of cores" in alone
    both = [renamed.config_map("hami"), config_map()]
    assert answer(tmp_path, "inspect", config_maps=both) == alone


@pytest.mark.parametrize("order", [1, -1])
def test_none_of_two_config_maps_is_taken_for_the_name_in_which_they_differ(tmp_path, order):
    both = [renamed.config_map("hami"), config_map(memory=(MEMORY, "a.com/mem"))][::order]
    printed = answer(tmp_path, "inspect", config_maps=both)
    assert "ml/idle 4.0 GiB" in printed
    assert "ml/waits 1 GPU, memory and cores unknown" in printed
    assert "ConfigMaps of the scheduler of HAMi differ in the names of its resources (memory)" in (
        printed
    )
    found = answer(tmp_path, "doctor", config_maps=both, status=3)
    assert "names_differ: HAMi, memory" in found
    assert "a.com/mem: ConfigMap kube-system/other" in found
    assert "nvidia.com/vgpumem: ConfigMap kube-system/hami-scheduler-device" in found


def test_of_two_names_of_the_number_the_one_that_pods_show_is_known(tmp_path):
    both = [config_map(count=(COUNT, "a.com/gpu")), renamed.config_map("hami")]
    printed = answer(tmp_path, "explain", "node", renamed.NODE, config_maps=both)
    assert "plugin passed nvidia.com/gpu: 1 nvidia.com/vgpu: 10" in printed
    assert "the name of the resource of HAMi is nvidia.com/vgpu by what its nodes" in printed


def test_of_two_names_that_nothing_shows_none_is_known_and_nothing_is_judged(tmp_path):
    both = [config_map(count=(COUNT, "a.com/gpu")), renamed.config_map("hami")]
    pods = [sample.pod("plain", renamed.NODE, {"nvidia.com/vgpu": 1})]  # without HAMi's annotations
    words = ("reconcile", "plan", "--rule", "running_without_device=apply", "--evict-running")
    planned = answer(tmp_path, *words, config_maps=both, others=pods)
    assert "0 actions" in planned
    printed = answer(tmp_path, "inspect", config_maps=both, others=pods)
    assert "since ConfigMaps of its scheduler differ (vgpu doctor has them)" in printed
    assert "--hami.resource names them" in printed


def test_nodes_with_two_names_are_reported_and_no_pod_is_judged_by_either(tmp_path):
    """A node pool that was renamed, and one that was not."""
    other = json.loads(json.dumps(renamed.node("hami")).replace(renamed.NODE, "gpu-2"))
    for units in (other["status"]["capacity"], other["status"]["allocatable"]):
        units["nvidia.com/gpu"] = units.pop("nvidia.com/vgpu")
    dump = dumped(tmp_path, [*ITEMS, other])
    found = printed_words(("doctor", *dump), 3)
    assert "names_differ: HAMi, count" in found
    assert "nvidia.com/gpu: node gpu-2 advertises it" in found
    assert f"nvidia.com/vgpu: node {renamed.NODE} advertises it" in found
    assert "names_differ" not in printed_words(("doctor", *dumped(tmp_path, ITEMS)))
    lost = json.loads(json.dumps(other))  # its device plugin is away, and a number matches
    lost["status"]["capacity"] |= {"nvidia.com/gpu": "0", "smarter-devices/fuse": "10"}
    well = json.loads(json.dumps(other).replace("gpu-2", "gpu-3"))
    assert "names_differ" not in printed_words(("doctor", *dumped(tmp_path, [lost, well])))
    words = ("reconcile", "plan", "--rule", "running_without_device=apply", "--evict-running")
    assert "0 actions, 0 skipped" in printed_words((*words, *dumped(tmp_path, [*ITEMS, other])))


def test_only_the_config_map_of_a_registered_system_is_read(cluster, requests):
    printed_words(("inspect", *cluster))
    configs = [each for each in requests if "configmaps" in each]
    assert configs == ["/api/v1/configmaps app.kubernetes.io/component=hami-scheduler"]


def test_no_config_map_is_read_where_a_flag_has_the_names(cluster, requests):
    printed_words(("inspect", *cluster, *renamed.flags("hami")))
    assert not any("configmaps" in each for each in requests)
