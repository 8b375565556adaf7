"""The chart's policy for the annotations by which pods claim GPUs, by a real API server."""

import pytest

from tests.cluster.charting import install
from tests.cluster.test_admission_policies import only
from tests.scheduler.test_promise import KEYS
from tests.support.bed import objects
from tests.support.bed.client import Refused
from tests.support.deploy_objects import kinds
from tests.support.waiting import wait_until
from vgpu.schemes.gaia.codec import PREDICATE_INDEX
from vgpu.schemes.gpushare.annotations import ANNOTATIONS
from vgpu.schemes.volcano import legacy_format
from vgpu.schemes.volcano.key_set import HAMI, VOLCANO

POLICY = "ValidatingAdmissionPolicy"
CLAIM_KEYS = (*HAMI.claim, *VOLCANO.claim, *legacy_format.CLAIM, *ANNOTATIONS, *KEYS["gaia"])


def claim_policy(chart, namespace, **values):
    """The objects of the policy alone."""
    selected = {"enabled": True, "namespaceSelector": only(namespace), **values}
    rendered = chart.rendered({"claimPolicy": selected}, f"--namespace={namespace}", release="own")
    return [
        each
        for each in kinds(rendered, POLICY, f"{POLICY}Binding")
        if each["metadata"]["name"].endswith("-claims")
    ]


def test_the_policy_is_off_by_default(chart):
    names = [each["metadata"]["name"] for each in kinds(chart.rendered({}, release="own"), POLICY)]
    assert names == ["own-vgpu-accounts"]


def test_the_policy_names_the_annotations_of_all_systems(chart):
    """The index of gpu-manager's container is any number, so its key is known by its beginning."""
    policy, _ = claim_policy(chart, "any")
    (keys,) = (each for each in policy["spec"]["variables"] if each["name"] == "keys")
    for key in CLAIM_KEYS:
        known = PREDICATE_INDEX if key.startswith(PREDICATE_INDEX) else key
        assert f"'{known}'" in keys["expression"], key


def test_who_edits_a_pod_does_not_edit_what_it_holds(api, api_namespace, chart):
    rights = {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["get", "patch"]}
    tenant, plugin = (api.client_for(rights) for _ in range(2))
    made = install(api.client, claim_policy(chart, api_namespace, users=[plugin.user]))
    claims = {"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,4096,0:;"}
    pod = api.client.create(objects.pod("claims", api_namespace, annotations=claims))

    def edited(client, annotations, **options):
        return client.patch(pod, {"metadata": {"annotations": annotations}}, **options)

    def is_in_force():
        try:
            edited(tenant, {"tencent.com/predicate-gpu-idx-7": "0"}, dryRun="All")
        except Refused as refused:
            return "claims a GPU" in str(refused)
        return False

    try:
        wait_until(is_in_force, "the policy is in force")
        for change in (
            {"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,0,0:;"},
            {"hami.io/vgpu-devices-allocated": None},
            {"ALIYUN_COM_GPU_MEM_IDX": "0"},
            {"volcano.sh/gpu-index": "0"},
            {"sharedgpu/gpu_uuid": "GPU-0"},
        ):
            with pytest.raises(Refused, match="may not change it"):
                edited(tenant, change)
            with pytest.raises(Refused, match="may not change it"):
                edited(tenant, change, subresource="status")
        edited(tenant, {"mine": "yes"})
        edited(plugin, {"hami.io/bind-phase": "success"})
        edited(api.client, {"hami.io/bind-phase": "failed"})
    finally:
        api.client.delete(pod, grace_seconds=0)
        for each in made:
            api.client.delete(each)
