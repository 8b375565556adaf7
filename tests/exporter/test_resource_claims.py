"""ResourceClaims on the exporter's page, and the page of a node that has none."""

from tests.exporter.test_ledger import GPUS, NODE, WEB, kernel, named, observation, series
from vgpu.ledger.conflicts import OF_RESOURCE_CLAIMS
from vgpu.model.facts import HeldResourceClaim, KubeletSample, PreparedResourceClaim
from vgpu.model.resource_claims import ResourceClaimDevice

INFO = "vgpu_container_resource_claim_info"
READ = 'vgpu_allocation_source_read{source="dra-manager-state"}'
DEVICE = ResourceClaimDevice("c1", "train", "gpu.nvidia.com", NODE, "gpu-0", "s1", ("gpu",))
RESOURCE_CLAIM = PreparedResourceClaim("c1", "ml", "train", (WEB.uid,), (DEVICE,))


RESOURCE_CLAIM_CONFLICTS = {kind.value for kind in OF_RESOURCE_CLAIMS}


def conflicts_of(exported):
    return {at.split('"')[1] for at in named(exported, "vgpu_allocation_conflicts")}


def page(**changes):
    kubelet = KubeletSample({WEB.uid: WEB}, {}, grants=(), **changes)
    return series(observation(gpu=GPUS, kubelet=kubelet, process=kernel({})))


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
