"""The checkpoint of NVIDIA's DRA driver: UUIDs and sizes of what it has prepared."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.dra import dra_state, driver_checkpoint
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.resource_claims import AllocatedDevice
from vgpu.model.units import GIB
from vgpu.sources.dra_checkpoints import parse_driver_checkpoint
from vgpu.sources.kubelet import KubeletSource

GPU = "GPU-aaaaaaaa-0000-0000-0000-000000000000"
MIG = "MIG-bbbbbbbb-0000-0000-0000-000000000000"
WHOLE = {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-0"}


def parsed(*resource_claims, **changes):
    return parse_driver_checkpoint(
        driver_checkpoint(*resource_claims, **changes), "checkpoint.json"
    )


def test_a_whole_device_has_its_uuid_and_all_of_its_cores():
    (one,) = parsed(("c1", "ml", "train", [WHOLE], {"gpu-0": GPU}))
    assert (one.resource_claim.uid, one.resource_claim.namespace, one.resource_claim.name) == (
        "c1",
        "ml",
        "train",
    )
    assert one.uuids == {"gpu-0": GPU}
    assert one.resource_claim.results == (
        AllocatedDevice("gpu", "gpu.nvidia.com", "node-1", "gpu-0", cores_milli=1000),
    )


def test_a_share_has_the_memory_that_the_scheduler_counted():
    share = WHOLE | {"shareID": "s1", "consumedCapacity": {"memory": "4Gi"}}
    (one,) = parsed(("c1", "ml", "train", [share], {"gpu-0": GPU}))
    (result,) = one.resource_claim.results
    assert (result.share_id, result.memory_bytes, result.cores_milli) == ("s1", 4 * GIB, None)


@pytest.mark.parametrize(
    ("consumed", "memory"),
    [
        ({"gpu.nvidia.com/memory": "1Gi"}, GIB),
        ({"other.example/memory": "1Gi"}, None),
        ({"memory": "much"}, None),
        ({}, None),
        (None, None),
    ],
)
def test_a_capacity_without_a_domain_is_the_drivers_own(consumed, memory):
    share = WHOLE | {"shareID": "s1", "consumedCapacity": consumed}
    (one,) = parsed(("c1", "ml", "train", [share], {}))
    assert one.resource_claim.results[0].memory_bytes == memory


def test_admin_access_is_kept():
    (one,) = parsed(("c1", "ml", "watch", [WHOLE | {"adminAccess": True}], {"gpu-0": GPU}))
    assert one.resource_claim.results[0].admin


def test_a_mig_device_has_the_uuid_of_its_instance_in_both_forms():
    content = json.loads(driver_checkpoint(("c1", "ml", "train", [WHOLE], {"gpu-0": GPU})))
    for about in ({"info": {"uuid": MIG}}, {"concrete": {"migUUID": MIG, "parentUUID": GPU}}):
        part = {"mig": about | {"device": {"DeviceName": "gpu-0-mig-1g.10gb-19-0"}}}
        resource_claim = content["v2"]["preparedClaims"]["c1"]
        resource_claim["preparedDevices"] = [{"devices": [part], "configState": {}}]
        (one,) = parse_driver_checkpoint(json.dumps(content).encode(), "x")
        assert one.uuids == {"gpu-0-mig-1g.10gb-19-0": MIG}


def test_what_is_being_prepared_is_not_prepared():
    assert parsed(("c1", "ml", "train", [WHOLE], {}), state="PrepareStarted") == ()


@pytest.mark.parametrize("content", [b"", b"[]", b'{"v1":{}}', b'{"v2":{"preparedClaims":[]}}'])
def test_other_content_is_malformed(content):
    with pytest.raises(SourceError) as refused:
        parse_driver_checkpoint(content, "x")
    assert refused.value.reason is Reason.MALFORMED


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(content):
    with contextlib.suppress(SourceError):
        parse_driver_checkpoint(content, "x")


def test_it_is_looked_for_beside_the_kubelets_state(tmp_path):
    (tmp_path / "dra_manager_state").write_bytes(dra_state())
    folder = tmp_path / "plugins/gpu.nvidia.com"
    folder.mkdir(parents=True)
    (folder / "checkpoint.json").write_bytes(
        driver_checkpoint(("c1", "ml", "train", [WHOLE], {"gpu-0": GPU}))
    )
    (tmp_path / "pods").mkdir()
    source = KubeletSource(
        str(tmp_path / "pods"), None, dra_state=str(tmp_path / "dra_manager_state")
    )
    (one,) = source.sample(0.0).driver_resource_claims
    assert one.uuids == {"gpu-0": GPU}
