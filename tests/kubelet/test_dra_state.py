"""The kubelet's state of dynamic resource allocation: its format, its checksum, its absence."""

import contextlib
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.dra import dra_state
from tests.support.environment import GOLDEN_FILES
from vgpu.model.facts import CdiDevice, PreparedResourceClaim
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.resource_claims import ResourceClaimDevice
from vgpu.sources.dra_checkpoints import parse_dra_state
from vgpu.sources.kubelet import KubeletSource

RESOURCE_CLAIM, POD, OTHER = "c1", "p1", "p2"
TWO_PODS = (
    RESOURCE_CLAIM,
    "ml",
    "train",
    {POD, OTHER},
    {"gpu.nvidia.com": [("node-1", "gpu-0", ["gpu"])]},
)


def refused(content):
    with pytest.raises(SourceError) as error:
        parse_dra_state(content)
    return error.value.reason


def test_a_resource_claim_has_its_pods_and_devices():
    device = ResourceClaimDevice(
        RESOURCE_CLAIM, "train", "gpu.nvidia.com", "node-1", "gpu-0", "", ("gpu",)
    )
    cdi = CdiDevice("gpu.nvidia.com", "node-1", "gpu-0", "k8s.example/gpu=gpu-0")
    assert parse_dra_state(dra_state(TWO_PODS)) == (
        PreparedResourceClaim(RESOURCE_CLAIM, "ml", "train", (POD, OTHER), (device,), (cdi,)),
    )


def test_the_share_of_a_device_is_there_from_kubernetes_1_35_on():
    devices = [("node-1", "gpu-0", ["a"], "s1"), ("node-1", "gpu-0", ["b"], "s2")]
    (resource_claim,) = parse_dra_state(
        dra_state((RESOURCE_CLAIM, "ml", "train", {POD}, {"d": devices}))
    )
    assert [(one.share_id, one.requests) for one in resource_claim.devices] == [
        ("s1", ("a",)),
        ("s2", ("b",)),
    ]


def test_a_device_that_was_prepared_again_is_one_device():
    """After a reboot the kubelet of Kubernetes 1.34 adds the devices a second time."""
    devices = [("node-1", "gpu-0", ["gpu"])] * 2
    (resource_claim,) = parse_dra_state(
        dra_state((RESOURCE_CLAIM, "ml", "train", {POD}, {"d": devices}))
    )
    assert [device.device for device in resource_claim.devices] == ["gpu-0"]


def test_before_its_driver_has_answered_a_resource_claim_has_no_devices():
    (resource_claim,) = parse_dra_state(
        dra_state((RESOURCE_CLAIM, "ml", "train", {POD}, {"d": []}))
    )
    assert resource_claim.devices == ()


def test_a_state_without_resource_claims_is_empty():
    assert parse_dra_state(dra_state()) == ()


def test_the_checksum_is_the_crc_32_of_the_text_inside():
    """The number is pinned: it was computed once, with another program than this one."""
    text = '{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1"}'
    content = {"Data": text, "Checksum": 0}
    content["Checksum"] = 3232065943
    assert parse_dra_state(json.dumps(content).encode()) == ()
    content["Checksum"] += 1
    assert refused(json.dumps(content).encode()) is Reason.CHECKSUM_MISMATCH


def test_a_changed_byte_is_found():
    content = dra_state(TWO_PODS).replace(b"gpu-0", b"gpu-1", 1)
    assert refused(content) is Reason.CHECKSUM_MISMATCH


def test_a_later_format_is_named():
    assert refused(dra_state(TWO_PODS, version="v2")) is Reason.FUTURE_VERSION


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"Data":{},"Checksum":1}', b"\xff" * 9])
def test_other_content_is_malformed(content):
    assert refused(content) is Reason.MALFORMED


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(content):
    with contextlib.suppress(SourceError):
        parse_dra_state(content)


# ---------------------------------------------------------------- as a piece of the kubelet's data


def sample(path):
    (path.parent / "pods").mkdir(exist_ok=True)
    (path.parent / "containers").mkdir(exist_ok=True)
    source = KubeletSource(str(path.parent / "pods"), None, dra_state=str(path))
    return source.sample(time.time())


def test_a_node_without_the_file_uses_no_resource_claims(tmp_path):
    missing = sample(tmp_path / "dra_manager_state")
    assert (missing.resource_claims, missing.rejections) == ((), ())


def test_an_unreadable_file_is_reported_and_is_no_empty_one(tmp_path):
    path = tmp_path / "dra_manager_state"
    path.write_bytes(dra_state(TWO_PODS)[:-9])
    damaged = sample(path)
    assert damaged.resource_claims is None
    assert [rejection.reason for rejection in damaged.rejections] == [Reason.MALFORMED]
    path.write_bytes(dra_state(TWO_PODS))
    assert [resource_claim.name for resource_claim in sample(path).resource_claims or ()] == [
        "train"
    ]


# ---------------------------------------------------------------- a kubelet's own file


def test_the_file_of_a_kubelet_is_read_and_its_checksum_agrees():
    """Kubernetes 1.34.4 with its example driver: eight ResourceClaims, the first of two pods."""
    content = (GOLDEN_FILES / "dra-manager-state" / "kubernetes-1.34.json").read_bytes()
    resource_claims = {
        resource_claim.name: resource_claim for resource_claim in parse_dra_state(content)
    }
    assert sorted(resource_claims) == [f"claim-{n}" for n in range(8)]
    assert {
        name: len(resource_claim.pod_uids) for name, resource_claim in resource_claims.items()
    } == {f"claim-{n}": 2 if n == 0 else 1 for n in range(8)}
    devices = [
        device for resource_claim in resource_claims.values() for device in resource_claim.devices
    ]
    assert {device.driver for device in devices} == {"gpu.example.com"}
    assert sorted(device.device for device in devices) == [f"gpu-{n}" for n in range(8)]
    assert {(device.share_id, device.requests) for device in devices} == {("", ("gpu",))}
    for position in range(0, len(content), 97):
        changed = bytearray(content)
        changed[position] ^= 1
        with pytest.raises(SourceError):
            parse_dra_state(bytes(changed))
