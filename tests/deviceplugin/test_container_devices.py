"""The kubelet's checkpoint as assignments: golden files of its own Go code, and what is refused."""

import base64
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deviceplugin.kubelet.container_devices import read_assignments, stamp
from deviceplugin.kubelet.responses import answer
from deviceplugin.model import ContainerDevices
from tests.support.environment import GOLDEN_FILES
from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.codec import ContainerEdits
from vgpu.sources.kubelet_checkpoint import parse_checkpoint

GOLDEN = sorted((GOLDEN_FILES / "kubelet-checkpoints").glob("*.json"))
RESOURCE = "volcano.sh/vgpu-number"
UID = "9a422c32-4fc2-11e9-bb64-505dac4c3a38"
NAME = "0123456789abcdef01234567"
EDITS = ContainerEdits({"NVIDIA_VISIBLE_DEVICES": "void"})


def encoded(message):
    return base64.b64encode(message).decode()


ANSWER = encoded(answer(NAME, EDITS, cdi=True).SerializeToString())


def entry(**fields):
    return {
        "PodUID": UID,
        "ContainerName": "main",
        "ResourceName": RESOURCE,
        "DeviceIDs": {"-1": ["b", "a"]},
        "AllocResp": ANSWER,
    } | fields


def assigned(ids=("a", "b"), name=NAME, answer=EDITS):
    return ContainerDevices(UID, "main", frozenset(ids), name, answer)


@pytest.fixture
def checkpoint(tmp_path):
    """Writes one, and gives its path."""
    path = tmp_path / "kubelet_internal_checkpoint"

    def write(*entries, content=None, **more):
        data = {"PodDeviceEntries": list(entries), "RegisteredDevices": {}} | more
        path.write_bytes(content or json.dumps({"Data": data, "Checksum": 7}).encode())
        return str(path)

    return write


def refusal(path):
    with pytest.raises(SourceError) as refused:
        read_assignments(path, RESOURCE)
    return refused.value.reason


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_golden_file_gives_what_the_verifying_reader_gives(path: Path):
    grants, _ = parse_checkpoint(path.read_bytes())
    for resource in {grant.resource for grant in grants} | {RESOURCE}:
        assignments = read_assignments(str(path), resource)
        assert [(a.pod_uid, a.container, a.ids) for a in assignments] == [
            (g.pod_uid, g.container, frozenset(g.device_ids))
            for g in grants
            if g.resource == resource
        ]


def test_there_are_golden_files():
    assert len(GOLDEN) == 60


def test_an_entry_has_the_name_and_the_edits_of_its_answer(checkpoint):
    assert read_assignments(checkpoint(entry()), RESOURCE) == (assigned(),)


def test_entries_of_other_resources_are_skipped_whatever_they_hold(checkpoint):
    foreign = entry(ResourceName="nvidia.com/gpu", DeviceIDs="?", AllocResp=["?"])
    assert read_assignments(checkpoint(foreign, entry()), RESOURCE) == (assigned(),)


def test_the_list_of_older_kubelets_is_read(checkpoint):
    path = checkpoint(entry(DeviceIDs=["a", "b"]))
    assert read_assignments(path, RESOURCE) == (assigned(),)


def test_a_device_of_two_numa_nodes_is_one(checkpoint):
    path = checkpoint(entry(DeviceIDs={"0": ["a", "b"], "1": ["a"], "10": None}))
    assert read_assignments(path, RESOURCE) == (assigned(),)


def test_null_is_nothing(checkpoint):
    path = checkpoint(entry(DeviceIDs=None, AllocResp=None), RegisteredDevices=None)
    assert read_assignments(path, RESOURCE) == (
        assigned(ids=(), name="", answer=ContainerEdits({})),
    )
    assert read_assignments(checkpoint(PodDeviceEntries=None), RESOURCE) == ()
    assert read_assignments(checkpoint(content=b'{"Data":null}'), RESOURCE) == ()


@pytest.mark.parametrize(
    "answered",
    ["not base64!", "QQ", encoded(b"\xff"), 7, {"a": 1}, "", "\u00e9"],
    ids=["text", "cut", "no-message", "number", "object", "empty", "not-ascii"],
)
def test_an_entry_whose_answer_cannot_be_read_is_kept_without_a_name(checkpoint, answered):
    path = checkpoint(entry(AllocResp=answered), entry(ContainerName="side"))
    first, second = read_assignments(path, RESOURCE)
    assert first == assigned(name="", answer=ContainerEdits({}))
    assert second.name == NAME


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b"{}", b"\xff", b'{"Data":[]}', b"[" * 100_000, b'{"Data":' * 50_000],
)
def test_a_file_that_is_no_checkpoint_is_malformed(checkpoint, content):
    assert refusal(checkpoint(content=content)) is Reason.MALFORMED


@pytest.mark.parametrize(
    "fields",
    [{"PodUID": None}, {"ContainerName": 1}, {"DeviceIDs": "a"}, {"DeviceIDs": {"-1": "a"}}],
)
def test_an_entry_that_does_not_say_whose_what_is_is_malformed(checkpoint, fields):
    assert refusal(checkpoint(entry(**fields))) is Reason.MALFORMED


@given(st.binary(max_size=80))
def test_any_bytes_give_assignments_or_a_source_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(content)
    assert refusal(str(path)) is Reason.MALFORMED


def test_an_unreadable_file_is_reported_as_such(tmp_path):
    assert refusal(str(tmp_path / "none")) is Reason.ABSENT
    assert refusal(str(tmp_path)) is Reason.NOT_REGULAR_FILE
    large = tmp_path / "large"
    large.touch()
    os.truncate(large, 2**40)
    assert refusal(str(large)) is Reason.TOO_LARGE


def test_the_stamp_distinguishes_a_file_from_an_equal_one_that_replaced_it(tmp_path):
    path = tmp_path / "checkpoint"
    assert stamp(str(path)) is None
    path.write_bytes(b"{}")
    before = stamp(str(path))
    assert stamp(str(path)) == before
    other = tmp_path / "other"
    other.write_bytes(b"{}")
    os.utime(other, ns=(before[1], before[1]))
    other.rename(path)
    assert stamp(str(path)) != before
