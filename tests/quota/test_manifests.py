"""Quotas in Kubernetes' own form: what it can count, and what stands as a remark."""

from hypothesis import given
from hypothesis import strategies as st

from vgpu.model.objects import Namespace, ResourceQuota
from vgpu.model.units import MIB
from vgpu.quota.limits import cluster_quotas
from vgpucli.quota.manifests import native_quota, over_quota_policy

UNITS = {"volcano": 2 * MIB, "gpushare": 1024 * MIB}


def proposed(*systems, quotas=(), gpu_quota=None, **annotations):
    declared = {f"vgpu.dev/quota-{key}": text for key, text in annotations.items()}
    found = cluster_quotas([Namespace("ml", annotations=declared)], quotas, gpu_quota)
    return native_quota(found["ml"], systems, UNITS)


def test_annotations_become_entries_in_the_units_of_each_system():
    whole = {"gpus": "8", "memory": "10Gi", "cores": "250"}
    assert proposed("volcano", **whole).hard == {
        "requests.volcano.sh/vgpu-number": "8",
        "requests.volcano.sh/vgpu-memory": "5120",
        "requests.volcano.sh/vgpu-cores": "250",
    }
    assert proposed("hami", **whole).hard == {
        "requests.nvidia.com/gpu": "8",
        "requests.nvidia.com/gpumem": "10240",
        "requests.nvidia.com/gpucores": "250",
    }
    assert proposed("gpushare", **whole).hard == {"requests.aliyun.com/gpu-mem": "10"}
    assert proposed("gaia", **whole).hard == {
        "requests.tencent.com/vcuda-core": "250",
        "requests.tencent.com/vcuda-memory": "40",
    }
    assert proposed("kubeshare", **whole).hard == {}


def test_what_a_system_cannot_count_is_a_remark():
    (remark,) = proposed("gpushare", gpus="8").remarks
    assert remark == (
        "left out for gpushare: gpus: 8 (Namespace ml, vgpu.dev/quota-gpus):"
        " the system has no resource for it"
    )
    (remark,) = proposed("gpushare", memory="A100=80Gi").remarks
    assert remark.endswith("Kubernetes counts no GPU models")
    (remark,) = proposed("gpushare", memory="much").remarks
    assert "cannot be read" in remark
    gaia = proposed("gaia", gpu_quota={"gpu_quota": '{"ml": {"quota": {"M40": 1}}}'})
    assert (gaia.hard, len(gaia.remarks)) == ({}, 2)


def test_several_systems_are_not_added_up():
    quota = proposed("gpushare", "gaia", memory="10Gi")
    assert len(quota.hard) == 2
    (remark,) = quota.remarks
    assert remark == (
        "memory: Kubernetes does not add up aliyun.com/gpu-mem, tencent.com/vcuda-memory:"
        " each may reach it"
    )


def test_hamis_entries_become_requests_and_native_entries_are_left_as_they_are():
    hard = {"limits.nvidia.com/gpumem": "4000", "requests.nvidia.com/gpu": "4"}
    quota = proposed("hami", quotas=(ResourceQuota("ml", "q", hard),), memory="2Gi")
    assert quota.hard == {"requests.nvidia.com/gpumem": "2048"}, "the lowest counts"
    assert proposed("hami", quotas=(ResourceQuota("ml", "q", hard),)).hard == {
        "requests.nvidia.com/gpumem": "4000"
    }


@given(
    st.lists(st.sampled_from(["volcano", "hami", "gpushare", "gaia", "kubeshare"]), unique=True),
    st.integers(0, 1 << 45),
    st.integers(0, 1000),
)
def test_no_entry_allows_more_than_the_quota_and_a_second_run_proposes_the_same(
    systems, memory, gpus
):
    quota = proposed(*systems, memory=str(memory), gpus=str(gpus))
    units = {
        "requests.volcano.sh/vgpu-memory": UNITS["volcano"],
        "requests.nvidia.com/gpumem": MIB,
        "requests.aliyun.com/gpu-mem": UNITS["gpushare"],
        "requests.tencent.com/vcuda-memory": 256 * MIB,
    }
    for entry, amount in quota.hard.items():
        limit, unit = (memory, units[entry]) if entry in units else (gpus, 1)
        assert limit - unit < int(amount) * unit <= limit
    if quota.hard:
        applied = ResourceQuota("ml", "vgpu-shared-gpus", quota.hard)
        again = proposed(*systems, quotas=(applied,), memory=str(memory), gpus=str(gpus))
        assert again == quota


def test_the_policy_is_about_every_systems_pods():
    policy, binding = over_quota_policy()
    (condition,) = policy["spec"]["matchConditions"]
    for word in ("volcano.sh/", "nvidia.com/gpu", "aliyun.com/gpu", "tencent.com/vcuda-"):
        assert f"startsWith('{word}')" in condition["expression"]
    assert binding["spec"]["policyName"] == policy["metadata"]["name"]
