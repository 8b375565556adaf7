"""The kubelet's device checkpoint: golden files of its own Go code, and what is refused."""

import base64
import copy
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.environment import GOLDEN_FILES
from vgpu.model.facts import Grant
from vgpu.model.reasons import Reason, SourceError
from vgpu.sources.kubelet_checkpoint import fnv1a_32, parse_checkpoint, registered_replicas

GOLDEN = sorted((GOLDEN_FILES / "kubelet-checkpoints").glob("*.json"))

ENV = bytes([10, 6, 10, 1, ord("K"), 18, 1, ord("V")])  # envs {K: V}


def entry(**fields):
    return {
        "PodUID": "9a422c32-4fc2-11e9-bb64-505dac4c3a38",
        "ContainerName": "main",
        "ResourceName": "nvidia.com/gpu",
        "DeviceIDs": {"-1": ["b", "a"]},
        "AllocResp": base64.b64encode(ENV).decode(),
    } | fields


def checkpoint(*entries, registered=None):
    """A checkpoint that verifies: the refusal of a wrong checksum contains the right one."""
    data = {"PodDeviceEntries": list(entries), "RegisteredDevices": registered}
    with pytest.raises(SourceError) as refused:
        parse_checkpoint(json.dumps({"Data": data, "Checksum": -1}).encode())
    assert refused.value.reason is Reason.CHECKSUM_MISMATCH
    right = int(refused.value.detail.rpartition(" ")[2])
    return json.dumps({"Data": data, "Checksum": right}).encode()


def refusal(content):
    with pytest.raises(SourceError) as refused:
        parse_checkpoint(content)
    return refused.value.reason


def test_there_are_sixty_golden_files():
    assert len(GOLDEN) == 60


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_a_golden_file_verifies_and_gives_each_entry(path: Path):
    content = path.read_bytes()
    grants, _ = parse_checkpoint(content)
    entries = json.loads(content)["Data"]["PodDeviceEntries"] or []
    assert [(g.pod_uid, g.container, g.resource) for g in grants] == [
        (e["PodUID"], e["ContainerName"], e["ResourceName"]) for e in entries
    ]
    assert [set(g.device_ids) for g in grants] == [
        {device for node in (e["DeviceIDs"] or {}).values() for device in node or ()}
        for e in entries
    ]


def replacements(value):
    """Values that mean something else than ``value`` does where a checkpoint holds it."""
    match value:
        case int():
            return [0, value + 1, value ^ 1 << 31]
        case str():
            return [value + "x", value[:-1], value.swapcase(), value[::-1], None]
        case [_, *_]:
            return [value[1:], value * 2, [*value, value[0]], [], None]
        case {"Data": _} | {"PodUID": _} | {"PodDeviceEntries": _}:
            return [{}, None]
        case {**items} if items:
            key, ids = next(iter(items.items()))
            fewer = {k: items[k] for k in items if k != key}
            return [fewer, {**items, "7": ["new"]}, {**fewer, "8": ids}, None]
        case _:
            return [None, [], {}, "QQ==", ["new"], {"7": ["new"]}]


def tampered_copies(value):
    """Copies of a document with one value replaced, at every place in it."""
    for other in replacements(value):
        if other != value:
            yield other
    if isinstance(value, dict | list):
        for place in value if isinstance(value, dict) else range(len(value)):
            for other in tampered_copies(value[place]):
                copied = copy.copy(value)
                copied[place] = other
                yield copied


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_every_tampered_copy_fails_its_checksum(path: Path):
    refusals = [
        refusal(json.dumps(c).encode()) for c in tampered_copies(json.loads(path.read_bytes()))
    ]
    assert set(refusals) == {Reason.CHECKSUM_MISMATCH, Reason.MALFORMED}
    assert refusals.count(Reason.CHECKSUM_MISMATCH) >= 5


@pytest.mark.parametrize("path", GOLDEN[::4], ids=lambda path: path.stem)
def test_a_flipped_bit_is_refused_or_changes_nothing(path: Path):
    content = path.read_bytes()
    intact = parse_checkpoint(content)
    for position in range(0, len(content), 3):
        damaged = bytearray(content)
        damaged[position] ^= 1 << position % 7
        try:
            assert parse_checkpoint(bytes(damaged)) == intact
        except SourceError as error:
            assert error.reason in (Reason.MALFORMED, Reason.CHECKSUM_MISMATCH)  # noqa: PT017


def test_the_reference_example_verifies():
    content = (
        b'{"Data":{"PodDeviceEntries":[{"PodUID":"9a422c32-4fc2-11e9-bb64-505dac4c3a38",'
        b'"ContainerName":"main","ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":'
        b'["GPU-ad63c684-5593-111a-cbb1-c1451ebcd0aa-3"]},"AllocResp":"CkIKFk5WSURJQV9WSVNJQkxF'
        b"X0RFVklDRVMSKEdQVS1hZDYzYzY4NC01NTkzLTExMWEtY2JiMS1jMTQ1MWViY2QwYWE="
        b'"}],"RegisteredDevices":{"nvidia.com/gpu":["GPU-ad63c684-5593-111a-cbb1-c1451ebcd0aa-0",'
        b'"GPU-ad63c684-5593-111a-cbb1-c1451ebcd0aa-3"]}},"Checksum":2933151149}'
    )
    grants, rejections = parse_checkpoint(content)
    assert rejections == ()
    assert grants == (
        Grant(
            pod_uid="9a422c32-4fc2-11e9-bb64-505dac4c3a38",
            container="main",
            resource="nvidia.com/gpu",
            device_ids=("GPU-ad63c684-5593-111a-cbb1-c1451ebcd0aa-3",),
            env={"NVIDIA_VISIBLE_DEVICES": "GPU-ad63c684-5593-111a-cbb1-c1451ebcd0aa"},
        ),
    )


def test_fnv1a_gives_its_authors_values():
    # Fowler, Noll, Vo: test vectors of FNV-1a 32
    assert fnv1a_32(b"") == 0x811C9DC5
    assert fnv1a_32(b"a") == 0xE40C292C
    assert fnv1a_32(b"foobar") == 0xBF9CF968


def test_the_shape_of_kubernetes_1_19_is_read_and_has_a_text_of_its_own():
    # Written out: what spew prints where DeviceIDs is a []string.
    text = (
        "(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)["
        "{PodUID:(string)u ContainerName:(string)c ResourceName:(string)r"
        " DeviceIDs:([]string)[b a] AllocResp:([]uint8)[10 0]}]"
        " RegisteredDevices:(map[string][]string)map[r:[a b]]}"
    )
    document = {
        "Data": {
            "PodDeviceEntries": [
                entry(
                    PodUID="u",
                    ContainerName="c",
                    ResourceName="r",
                    DeviceIDs=["b", "a"],
                    AllocResp="CgA=",
                )
            ],
            "RegisteredDevices": {"r": ["a", "b"]},
        },
        "Checksum": fnv1a_32(text.encode()),
    }
    grants, rejections = parse_checkpoint(json.dumps(document).encode())
    assert rejections == ()
    assert grants == (Grant("u", "c", "r", ("a", "b"), {"": ""}),)
    document["Data"]["PodDeviceEntries"][0]["DeviceIDs"] = {"-1": ["b", "a"]}
    assert refusal(json.dumps(document).encode()) is Reason.CHECKSUM_MISMATCH


def test_a_device_on_two_numa_nodes_is_granted_once():
    content = checkpoint(entry(DeviceIDs={"0": ["a", "b"], "1": ["b"], "2": None}))
    assert parse_checkpoint(content)[0][0].device_ids == ("a", "b")


def test_an_answer_that_is_not_protobuf_costs_the_entry_only_its_environment():
    content = checkpoint(entry(AllocResp=base64.b64encode(b"\x0a\xff").decode()), entry())
    grants, rejections = parse_checkpoint(content, "file")
    assert [grant.env for grant in grants] == [{}, {"K": "V"}]
    assert [rejection.reason for rejection in rejections] == [Reason.MALFORMED]
    assert (
        rejections[0].object_name
        == "file: 9a422c32-4fc2-11e9-bb64-505dac4c3a38/main/nvidia.com/gpu"
    )


G0 = "GPU-11111111-2222-3333-4444-555555555555"

TIME_SLICED = (
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"u1","ContainerName":"main",'
    b'"ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":["GPU-11111111-2222-3333-4444-555555555555'
    b'::1","GPU-11111111-2222-3333-4444-555555555555::0"]},"AllocResp":'
    b'"CkIKFk5WSURJQV9WSVNJQkxFX0RFVklDRVMSKEdQVS0xMTExMTExMS0yMjIyLTMzMzMtNDQ0NC01NTU1NTU1NTU1NTU'
    b'="}],"RegisteredDevices":{"nvidia.com/gpu":["GPU-11111111-2222-3333-4444-555555555555::0",'
    b'"GPU-11111111-2222-3333-4444-555555555555::1"]}},"Checksum":1248861725}'
)
"""Two replicas of one GPU, as Kubernetes and k8s-device-plugin 0.18 write them."""


def test_the_replicas_of_nvidias_plugin_are_granted_and_counted():
    (grant,), rejections = parse_checkpoint(TIME_SLICED)
    assert (grant.device_ids, grant.env) == (
        (f"{G0}::0", f"{G0}::1"),
        {"NVIDIA_VISIBLE_DEVICES": G0},
    )
    assert rejections == ()
    assert registered_replicas(TIME_SLICED) == {G0: 2}


def test_only_replicas_of_known_form_are_counted():
    registered = {
        "nvidia.com/gpu": [f"{G0}::0", f"{G0}::1", f"{G0}::2-0", "tegra::0", f"{G0}-1"],
        "nvidia.com/mig-1g.10gb.shared": [f"MIG-{G0}/7/0::0"],
        "example.com/thing": ["a::b"],
        "empty": None,
    }
    assert registered_replicas(checkpoint(registered=registered)) == {
        G0: 2,
        f"MIG-{G0}/7/0": 1,
    }
    assert registered_replicas(checkpoint(registered={"x": ["a-1"]})) == {}


def test_a_checkpoint_of_nothing_grants_nothing():
    assert parse_checkpoint(checkpoint()) == ((), ())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"Data":null,"Checksum":0}',
        b'{"Data":{"PodDeviceEntries":[null],"RegisteredDevices":{}},"Checksum":0}',
        b'{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{}},"Checksum":"1"}',
        b'{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{"r":[1]}},"Checksum":1}',
        b'{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{"r":["\xff"]}},"Checksum":1}',
        b'{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{"r":["\\ud800"]}},"Checksum":1}',
        b'{"x":' + b"[" * 100_000,
    ],
    ids=repr,
)
def test_what_is_not_a_checkpoint_is_malformed(content):
    assert refusal(content) is Reason.MALFORMED


def test_a_truncated_file_is_malformed_wherever_it_ends():
    content = GOLDEN[0].read_bytes().rstrip()
    for size in range(len(content)):
        assert refusal(content[:size]) is Reason.MALFORMED


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_give_grants_or_the_typed_error(content):
    try:
        parse_checkpoint(content)
    except SourceError as error:
        assert error.reason in (Reason.MALFORMED, Reason.CHECKSUM_MISMATCH)  # noqa: PT017


IDS = st.dictionaries(
    st.integers(-1, 12).map(str), st.none() | st.lists(st.text(max_size=5), max_size=3), max_size=3
)


@given(
    st.lists(
        st.builds(
            entry,
            PodUID=st.text(max_size=8),
            DeviceIDs=st.none() | IDS | st.lists(st.text(max_size=5), max_size=3),
            AllocResp=st.none()
            | st.binary(max_size=40).map(lambda b: base64.b64encode(b).decode()),
        ),
        max_size=3,
    )
)
def test_a_checkpoint_that_verifies_gives_every_entry(entries):
    grants, _ = parse_checkpoint(checkpoint(*entries))
    assert [grant.pod_uid for grant in grants] == [e["PodUID"] for e in entries]
    assert all(msgspec.json.encode(grant) for grant in grants)
