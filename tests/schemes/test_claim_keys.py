"""Which annotations a claim is made of: without them there is none, and the user asks the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from vgpu.model.names import PodRef
from vgpu.model.objects import Container, Pod
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.gaia.codec import Gaia
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.kubeshare.codec import KubeShare
from vgpu.schemes.volcano.codec import HAMI, Volcano

GPU = "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76"
DEVICES = f"{GPU},NVIDIA,1024,10:"
AT, NANOS = "1700000000", "1700000000000000000"

ASKED = {
    "volcano.sh/vgpu-number": 1,
    "nvidia.com/gpu": 1,
    "volcano.sh/gpu-memory": 1,
    "aliyun.com/gpu-mem": 4,
    "tencent.com/vcuda-core": 20,
    "tencent.com/vcuda-memory": 8,
}
USERS = {
    "volcano.sh/vgpu-mode": "hami-core",
    "volcano.sh/vgpu-use-gpuuuid": GPU,
    "volcano.sh/vgpu-nouse-gpuuuid": GPU,
    "volcano.sh/vgpu-podgroup-policy": "spread",
    "nvidia.com/use-gputype": "A100",
    "nvidia.com/nouse-gputype": "T4",
    "tencent.com/vcuda-core-limit": "50",
    "kubeshare/gpu_request": "0.5",
    "kubeshare/gpu_limit": "1.0",
    "kubeshare/gpu_mem": "1073741824",
    "kubeshare/sched_affinity": "red",
    "vgpu.dev/reconcile": "false",
}
LABELS = {"sharedgpu/gpu_request": "0.5", "sharedgpu/gpu_limit": "1.0"}

CLAIMS = {
    "volcano": (
        Volcano(),
        {
            "volcano.sh/bind-phase": "allocating",
            "volcano.sh/bind-time": AT,
            "volcano.sh/devices-to-allocate": DEVICES,
            "volcano.sh/vgpu-ids-new": DEVICES,
            "volcano.sh/vgpu-node": "gpu-1",
            "volcano.sh/vgpu-time": AT,
        },
    ),
    "volcano's older plugin": (
        Volcano(),
        {
            "volcano.sh/gpu-assigned": "false",
            "volcano.sh/gpu-index": "0",
            "volcano.sh/predicate-time": NANOS,
        },
    ),
    "HAMi": (
        Volcano(HAMI),
        {
            "hami.io/bind-phase": "success",
            "hami.io/bind-time": AT,
            "hami.io/vgpu-devices-allocated": f"{DEVICES};",
            "hami.io/vgpu-devices-to-allocate": ";",
            "hami.io/vgpu-node": "gpu-1",
            "hami.io/vgpu-time": AT,
        },
    ),
    "gpushare": (
        Gpushare(),
        {
            "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
            "ALIYUN_COM_GPU_MEM_ASSUME_TIME": NANOS,
            "ALIYUN_COM_GPU_MEM_DEV": "16",
            "ALIYUN_COM_GPU_MEM_IDX": "0",
            "ALIYUN_COM_GPU_MEM_POD": "4",
        },
    ),
    "gpushare by container": (
        Gpushare(),
        {
            "scheduler.framework.gpushare.allocation": '{"0":{"0":4}}',
            "scheduler.framework.gpushare.assigned": "false",
            "scheduler.framework.gpushare.assume-time": NANOS,
        },
    ),
    "gaia": (
        Gaia(),
        {
            "tencent.com/gpu-assigned": "false",
            "tencent.com/predicate-gpu-idx-0": "1",
            "tencent.com/predicate-node": "gpu-1",
            "tencent.com/predicate-time": NANOS,
        },
    ),
    "KubeShare": (KubeShare(), {"kubeshare/GPUID": "zxcvb"}),
    "KubeShare 2": (
        KubeShare(),
        {
            "sharedgpu/cell_id": "1/2",
            "sharedgpu/gpu_manager_port": "50051",
            "sharedgpu/gpu_mem": "1073741824",
            "sharedgpu/gpu_model": "A100",
            "sharedgpu/gpu_uuid": GPU,
        },
    ),
}


def pod(annotations, labels=()):
    return Pod(
        PodRef("u1", "ml", "train-0"),
        node="gpu-1",
        annotations=annotations,
        labels=dict(labels),
        containers=(Container("main", ASKED),),
    )


def without(one, keys):
    kept = {key: text for key, text in one.annotations.items() if key not in keys}
    return structs.replace(one, annotations=kept)


@pytest.mark.parametrize(("codec", "claim"), CLAIMS.values(), ids=CLAIMS)
def test_a_claim_is_made_of_what_scheduler_and_plugin_wrote(codec, claim):
    labels = LABELS if "sharedgpu/gpu_uuid" in claim else {}
    one = pod(USERS | claim, labels)
    assert codec.claim(one) is not None
    assert codec.claim_keys(one) == tuple(sorted(claim))
    bare = without(one, codec.claim_keys(one))
    assert bare.annotations == USERS
    assert codec.claim(bare) is None
    assert codec.requests(bare) == codec.requests(one) != ()


@pytest.mark.parametrize(("codec", "claim"), CLAIMS.values(), ids=CLAIMS)
def test_only_annotations_that_are_there_are_named(codec, claim):
    one = next(iter(claim))
    assert codec.claim_keys(pod(USERS | {one: claim[one]})) == (one,)
    assert codec.claim_keys(pod(USERS)) == ()


EVERYTHING = USERS | {key: text for _, claim in CLAIMS.values() for key, text in claim.items()}
TEXTS = st.sampled_from(sorted({*EVERYTHING.values(), ";", "true"})) | st.text(max_size=8)


@given(
    st.dictionaries(st.sampled_from(sorted(EVERYTHING)), TEXTS),
    st.dictionaries(st.sampled_from(sorted(LABELS)), TEXTS),
)
def test_without_its_keys_no_pod_has_a_claim_and_each_asks_for_the_same(annotations, labels):
    one = pod(annotations, labels)
    for codec in {id(codec): codec for codec, _ in CLAIMS.values()}.values():
        keys = codec.claim_keys(one)
        assert keys == tuple(sorted(keys))
        assert not USERS.keys() & set(keys)
        bare = without(one, keys)
        assert codec.claim(bare) is None
        try:
            asked = codec.requests(one)
        except ClaimError:  # a GPUID without its request is an error of its own
            continue
        assert codec.requests(bare) == asked
