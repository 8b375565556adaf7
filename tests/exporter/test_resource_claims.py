"""ResourceClaims on the exporter's page, and the page of a node that has none."""

import re

import msgspec

from tests.exporter.test_ledger import GPUS, NODE, WEB, A, kernel, named, observation, series
from vgpu.ledger.conflicts import OF_RESOURCE_CLAIMS
from vgpu.model.facts import (
    ContainerName,
    DriverResourceClaim,
    GpuProcess,
    HeldResourceClaim,
    KubeletSample,
    PreparedResourceClaim,
    ProcessOwner,
)
from vgpu.model.resource_claims import AllocatedDevice, ResourceClaim, ResourceClaimDevice
from vgpu.model.units import GIB

INFO = "vgpu_container_resource_claim_info"
READ = 'vgpu_allocation_source_read{source="dra-manager-state"}'
DEVICE = ResourceClaimDevice("c1", "train", "gpu.nvidia.com", NODE, "gpu-0", "s1", ("gpu",))
RESOURCE_CLAIM = PreparedResourceClaim("c1", "ml", "train", (WEB.uid,), (DEVICE,))


RESOURCE_CLAIM_CONFLICTS = {kind.value for kind in OF_RESOURCE_CLAIMS}


def conflicts_of(exported):
    return {at.split('"')[1] for at in named(exported, "vgpu_allocation_conflicts")}


def page(*processes, **changes):
    """The page of a node with processes of the containers c1 (main) and c2 (side)."""
    names = {"c1": "main", "c2": "side"}
    containers = {key: ContainerName("ml", "web", name, WEB.uid) for key, name in names.items()}
    kubelet = KubeletSample({WEB.uid: WEB}, containers, grants=(), **changes)
    owners = {pid: ProcessOwner(f"c{pid // 100}", WEB.uid, "containerd") for pid in (100, 101, 200)}
    gpu = msgspec.structs.replace(GPUS, processes=processes)
    return series(observation(gpu=gpu, kubelet=kubelet, process=kernel(owners)))


def containers_of(exported, name):
    """The values by container; a series without this label is of the pod."""
    found = {at: re.search(r'[{,]container="([^"]*)"', at) for at in named(exported, name)}
    return {match[1] if match else "": exported[at] for at, match in found.items()}


def on_gpu(resource_claim="c1", share_id="s1", name="train"):
    """A share of 4 GiB of GPU A, by NVIDIA's checkpoint, without pod-resources."""
    device = ResourceClaimDevice(
        resource_claim, name, "gpu.nvidia.com", NODE, "gpu-0", share_id, ("gpu",)
    )
    prepared = PreparedResourceClaim(resource_claim, "ml", name, (WEB.uid,), (device,))
    result = AllocatedDevice("gpu", "gpu.nvidia.com", NODE, "gpu-0", share_id, 4 * GIB)
    of_driver = DriverResourceClaim(
        ResourceClaim(resource_claim, "ml", name, (result,)), "gpu.nvidia.com", {"gpu-0": A}
    )
    return prepared, of_driver


def test_each_device_of_a_resource_claim_has_a_series():
    held = HeldResourceClaim("ml", "web", "main", "train", (DEVICE,))
    exported = page(resource_claims=(RESOURCE_CLAIM,), held_resource_claims=(held,))
    assert named(exported, INFO) == {
        f'{INFO}{{container="main",device="gpu-0",driver="gpu.nvidia.com",namespace="ml",'
        f'pod="web",pod_uid="{WEB.uid}",pool="{NODE}",request="gpu",resource_claim="train",'
        'share_id="s1"}': 1
    }
    assert exported[READ] == 1
    assert conflicts_of(exported) >= RESOURCE_CLAIM_CONFLICTS


def test_a_node_without_resource_claims_has_no_series_of_them():
    for without in ({}, {"resource_claims": ()}, {"resource_claims": None}):
        exported = page(**without)
        assert not named(exported, INFO)
        assert READ not in exported
        assert not RESOURCE_CLAIM_CONFLICTS & conflicts_of(exported)


USED, ALLOCATED = "vgpu_container_memory_used_bytes", "vgpu_container_memory_allocated_bytes"


def claimed(*resource_claims):
    """The parts of the kubelet's sample with these ResourceClaims."""
    prepared, of_drivers = zip(*resource_claims, strict=True)
    return {"resource_claims": prepared, "driver_resource_claims": of_drivers}


def test_a_busy_container_has_one_row_without_pod_resources():
    """Use and allocation have the same labels, so that the alert can compare them."""
    exported = page(GpuProcess(100, A, 5 * GIB), **claimed(on_gpu()))
    assert containers_of(exported, USED) == {"main": 5 * GIB}
    assert containers_of(exported, ALLOCATED) == {"main": 4 * GIB}
    assert containers_of(exported, INFO) == {"main": 1}
    assert containers_of(exported, "vgpu_container_info").keys() == {"main"}


def test_two_busy_containers_of_a_resource_claim_have_a_row_each():
    both = GpuProcess(100, A, GIB), GpuProcess(200, A, GIB)
    exported = page(*both, **claimed(on_gpu()))
    assert containers_of(exported, USED) == {"main": GIB, "side": GIB}
    assert containers_of(exported, ALLOCATED) == {"main": 4 * GIB, "side": 4 * GIB}
    assert exported[f'vgpu_gpu_memory_allocated_bytes{{uuid="{A}"}}'] == 4 * GIB


def test_an_idle_pod_has_a_row_without_a_container():
    exported = page(**claimed(on_gpu()))
    assert containers_of(exported, ALLOCATED) == {"": 4 * GIB}
    assert containers_of(exported, USED) == {"": 0}


def test_of_two_resource_claims_of_one_gpu_the_process_may_use_either():
    two = on_gpu(), on_gpu("c2", "s2", "infer")
    exported = page(GpuProcess(100, A, GIB), **claimed(*two))
    assert containers_of(exported, ALLOCATED).keys() == {""}
    assert exported[f'vgpu_gpu_memory_allocated_bytes{{uuid="{A}"}}'] == 8 * GIB
