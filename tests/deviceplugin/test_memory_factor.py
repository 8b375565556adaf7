"""The unit of memory that a plugin finds out itself: the smallest that fits, one for all nodes."""

import pytest
from msgspec.structs import replace

from deviceplugin.adapters.memory_factor import ANNOTATION, FactorError, automatic, published
from deviceplugin.adapters.volcano import VolcanoAdapter
from deviceplugin.list_size import KUBELET_LIMIT, Series, list_bytes
from tests.support.plugin_pods import gpu, node
from vgpu.schemes.volcano.codec import Volcano

UUID = "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b7{}"


def devices(gpu_count=8, mebibytes=143_360, factor=1):
    gpus = [gpu(UUID.format(n), n, mebibytes) for n in range(gpu_count)]
    return VolcanoAdapter(Volcano(memory_factor=factor)).devices(gpus)


def named(name, factor=None):
    return replace(node({} if factor is None else {ANNOTATION: factor}), name=name)


def message_bytes(factor):
    """Of the list that a plugin with this factor sends, from its own IDs."""
    codec = Volcano(memory_factor=factor)
    ids = list(codec.device_ids("volcano.sh/vgpu-memory", devices(factor=factor)))
    prefix = len(UUID) - 2 + len("0-memory-")
    assert len(ids[-1]) == prefix + len(ids[-1].rpartition("-")[2])
    return list_bytes([Series(prefix, len(ids) // 8)] * 8)


def test_the_smallest_unit_whose_list_the_kubelet_takes_is_found():
    factor = automatic(devices(), [])
    assert factor == 19
    assert message_bytes(factor) <= KUBELET_LIMIT < message_bytes(factor - 1)


def test_a_small_node_needs_no_larger_unit():
    assert automatic(devices(1, 16_384), [named("a"), named("b", "1")]) == 1


def test_nodes_that_agree_do_not_stand_in_the_way():
    nodes = [named(f"n{n}", "19") for n in range(3)]
    assert automatic(devices(), [*nodes, named("silent")]) == 19
    assert published(19) == {ANNOTATION: "19"}


@pytest.mark.parametrize(
    "nodes", [[node({ANNOTATION: "19"})], [named("a", "19"), named("b", "19")]]
)
def test_a_larger_unit_on_which_all_agree_is_taken(nodes):
    """With a GPU less a smaller one would do, and the pods' requests are in theirs."""
    assert automatic(devices(7), []) == 17
    assert automatic(devices(7), nodes) == 19


def test_nodes_that_do_not_agree_are_not_followed():
    with pytest.raises(FactorError, match=r"a \(19\), b \(30\)"):
        automatic(devices(7), [named("a", "19"), named("b", "30")])


def test_a_unit_of_which_a_gpu_has_none_is_not_taken():
    with pytest.raises(FactorError, match="other"):
        automatic(devices(1, 16_384), [named("other", "16385")])
    assert automatic(devices(1, 16_384), [named("other", "16384")]) == 16384


def test_a_node_without_gpus_agrees_with_all():
    assert automatic([], []) == 1
    assert automatic([], [named("other", "19")]) == 19


@pytest.mark.parametrize("other", ["10", "", "019", "auto"])
def test_a_node_with_another_factor_is_named_and_nothing_is_decided(other):
    nodes = [named("good", "19"), named("bad", other), named("silent")]
    with pytest.raises(FactorError) as info:
        automatic(devices(), nodes)
    assert f"bad ({other})" in str(info.value)
    assert "good" not in str(info.value)
    assert "--volcano.memory-factor" in str(info.value)


def test_a_large_cluster_is_not_listed_in_full():
    with pytest.raises(FactorError, match="and 92 more"):
        automatic(devices(), [named(f"n{n}", "7") for n in range(100)])


def test_what_the_node_itself_published_before_counts():
    """Its pods' annotations are in that unit."""
    assert automatic(devices(), [node({ANNOTATION: "30"})]) == 30
    with pytest.raises(FactorError, match="gpu-1"):
        automatic(devices(), [node({ANNOTATION: "10"})])


def test_a_gpu_without_a_whole_unit_gives_no_factor():
    with pytest.raises(FactorError, match="no unit"):
        automatic((*devices(2000, 143_360), *devices(1, 16)), [])
