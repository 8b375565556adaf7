"""Resources that have the number of HAMi's register by chance: their pods are never judged by it.

All nodes are those of :mod:`tests.support.renamed_systems`: HAMi registers 10 shares of one GPU.
"""

import json

import click
import pytest

from tests.commands.conftest import dumped, printed_words
from tests.support import renamed_systems as renamed
from tests.support import sample_cluster as sample
from vgpu.program.resource_flags import renamed_resource_flags
from vgpu.program.resource_names import settle_by_dumps
from vgpu.schemes.registry import registry
from vgpu.schemes.resource_names import ORIGINAL_NAMES

FUSE, GPU, OTHER = "smarter-devices/fuse", "nvidia.com/gpu", "nvidia.com/vgpu"
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "x", "uid": "u", "controller": True}
ORIGINAL, UNKNOWN = "original", "unknown"


_KEYS = {FUSE: "fuse", GPU: "gpu", OTHER: "vgpu"}


def node(**units):
    """The node with these units of extended resources."""
    register = renamed.node("hami")["metadata"]["annotations"]
    return sample.node(renamed.NODE, {_name(key): one for key, one in units.items()}, register)


def held(name, **requested):
    units = {"nvidia.com/gpumem": 4096} | {_name(key): one for key, one in requested.items()}
    return sample.pod(name, renamed.NODE, units, renamed.held("hami"), owner=OWNER)


def plain(name, **requested):
    units = {_name(key): one for key, one in requested.items()}
    return sample.pod(name, renamed.NODE, units, owner=OWNER)


def _name(key):
    return next(name for name, each in _KEYS.items() if each == key)


NO_PLUGIN = node(gpu=0, fuse=10)
BESIDE = node(gpu=10, vgpu=10)
CASES = {
    "only another resource has the number": ([NO_PLUGIN, plain("well", fuse=1)], UNKNOWN),
    "pods show the original's name": (
        [NO_PLUGIN, held("train", gpu=1), plain("well", fuse=1)],
        ORIGINAL,
    ),
    "replicas have the number too": (
        [BESIDE, held("train", vgpu=1), plain("well", gpu=1)],
        OTHER,
    ),
    "no pod shows which of two names": ([BESIDE, plain("well", gpu=1)], UNKNOWN),
    "pods show two names": (
        [BESIDE, held("train", vgpu=1), held("old", gpu=1), plain("well", gpu=1)],
        UNKNOWN,
    ),
    "a pod shows two names": (
        [BESIDE, held("train", vgpu=1, gpu=1), plain("well", gpu=1)],
        UNKNOWN,
    ),
    "another number than is allocated": (
        [node(vgpu=10), held("train", vgpu=2), plain("well", gpu=1)],
        UNKNOWN,
    ),
    "a pod of nobody requests the name": (
        [NO_PLUGIN, held("train", fuse=1), plain("well", fuse=1)],
        UNKNOWN,
    ),
    "the name has the number, and pods show another": (
        [node(gpu=10, fuse=10), held("train", fuse=1), plain("well", fuse=1)],
        UNKNOWN,
    ),
}
cases = pytest.mark.parametrize("case", CASES)


@pytest.fixture
def run(tmp_path):
    return lambda case, *words: printed_words((*words, *dumped(tmp_path, CASES[case][0])))


@renamed_resource_flags
@click.command("probe")
def probe():
    """A command with nothing but the flags."""


@cases
def test_a_number_that_matches_by_chance_is_no_name(case):
    objects, expected = CASES[case]
    with probe.make_context("probe", []):
        settle_by_dumps([(json.dumps(sample.dump(objects)).encode(), "dump.json")])
        names = registry().names["hami"]
        assert names.is_unknown is (expected == UNKNOWN)
        if expected == ORIGINAL:
            assert names == ORIGINAL_NAMES["hami"]
        elif expected != UNKNOWN:
            assert names.count == expected


@cases
def test_no_rule_acts_on_a_healthy_pod_of_another_resource(run, case):
    words = ("--rule", "running_without_device=apply", "--evict-running")
    printed = json.loads(run(case, "reconcile", "plan", "-o", "json", *words))
    assert printed["actions"] == []
    assert printed["skipped"] == []


@cases
def test_inspect_and_explain_name_the_flag_where_no_name_is_known(run, case):
    is_unknown = CASES[case][1] == UNKNOWN
    inspected = run(case, "inspect")
    explained = run(case, "explain", "node", renamed.NODE)
    for printed in (inspected, explained):
        assert ("names of the resources of HAMi are not known" in printed) is is_unknown
        assert ("--hami.resource names them (count=NAME)" in printed) is is_unknown
        assert "Volcano" not in printed
    assert "kept free" not in inspected
    assert "pod_without_gpu" not in explained


@pytest.mark.parametrize("case", [case for case in CASES if len(CASES[case][0]) > 2])
def test_a_pod_with_an_allocation_is_hamis_whatever_it_requests(run, case):
    printed = run(case, "explain", "pod", "ml/train")
    assert "main holds 4.0 GiB" in printed
    assert "Volcano" not in printed
    assert "fails at step" not in printed
