"""Checkpoints that a real kubelet wrote beside a stand-in for NVIDIA's plugin, of each strategy.

``tests/cluster/test_nvidia_goldens.py`` (thorough, group ``plugin``) compares them with what a
kubelet writes.
"""

import json
from collections import Counter

import pytest

from tests.support.environment import GOLDEN_FILES
from tests.support.nvidia_plugin import CASES, G0, HAMIS, devices_of
from vgpu.ledger.from_kubelet import GrantReader
from vgpu.model.names import Scheme, Sharing, Source
from vgpu.schemes.nvidia.grant import NVIDIA, parse_device_id
from vgpu.schemes.registry import registry
from vgpu.sources.kubelet_checkpoint import parse_checkpoint, registered_replicas

READER = GrantReader(registry().codecs({}), Source.CHECKPOINT)


def content(name):
    return (GOLDEN_FILES / "nvidia-plugin" / f"{name}.json").read_bytes()


def statements(name):
    """The statement of each grant, with the grant."""
    grants, rejections = parse_checkpoint(content(name))
    assert rejections == ()
    for grant in grants:
        read = READER.read(grant.pod_uid, grant.container, {grant.resource: grant})
        (statement,) = read.statements
        assert read.malformed == ()
        yield grant, statement


def test_each_case_has_its_file_and_each_file_its_case():
    files = {path.stem for path in (GOLDEN_FILES / "nvidia-plugin").glob("*.json")}
    assert files == CASES.keys()


@pytest.mark.parametrize("name", CASES)
def test_every_answer_of_the_plugin_gives_the_devices_of_its_ids(name):
    case = CASES[name]
    held = {}
    for grant, statement in statements(name):
        if set(grant.device_ids) <= set(HAMIS):
            assert (statement.scheme, statement.shares[0].device) == (Scheme.VOLCANO, G0)
            continue
        held[len(grant.device_ids)] = statement
        assert statement.scheme is NVIDIA
        assert set(statement.sharing) == {case.sharing}
        assert Counter(share.device for share in statement.shares) == Counter(
            device_id.partition("::")[0] for device_id in grant.device_ids
        )
        assert {share.memory_bytes for share in statement.shares} == {None}
        is_whole = case.sharing in (Sharing.EXCLUSIVE, Sharing.MIG)
        assert {share.cores_milli for share in statement.shares} == {1000 if is_whole else None}
        assert statement.limits == ()
    assert sorted(held) == sorted(case.plugins[-1].requests)


@pytest.mark.parametrize("name", CASES)
def test_the_registered_replicas_are_those_of_the_last_plugin(name):
    ids = CASES[name].plugins[-1].ids
    shared = [one for one in ids if parse_device_id(one).replica is not None]
    expected = Counter(one.partition("::")[0] for one in shared)
    assert registered_replicas(content(name)) == dict(expected)
    assert set(devices_of(shared)) == set(expected)


@pytest.mark.parametrize("name", CASES)
def test_a_changed_byte_is_noticed(name):
    changed = json.loads(content(name))
    changed["Data"]["PodDeviceEntries"][0]["DeviceIDs"] = {"-1": ["GPU-other"]}
    with pytest.raises(Exception, match="checksum"):
        parse_checkpoint(json.dumps(changed).encode())
