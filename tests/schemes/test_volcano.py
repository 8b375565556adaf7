"""Volcano's and HAMi's codec: requests of pods, the kubelet's IDs, edits of containers."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.model.allocation import Allocation, Device, Request, Share
from vgpu.model.names import ContainerKind, Phase, PodRef
from vgpu.model.objects import Container, Pod
from vgpu.model.units import MIB
from vgpu.schemes.codec import ClaimError, Mount, SchemeCodec, Slot
from vgpu.schemes.volcano.codec import (
    HAMI,
    Volcano,
    is_shared,
    memory_limit,
    mig_slot,
    physical,
    visible_uuids,
)
from vgpu.schemes.volcano.key_set import ShimPaths

VOLCANO: SchemeCodec = Volcano()
HAMI_CODEC: SchemeCodec = Volcano(HAMI)
POD = PodRef("uid-1", "ml", "train-0")

NUMBER, MEMORY, PERCENTAGE, CORES = (
    f"volcano.sh/vgpu-{name}" for name in ("number", "memory", "memory-percentage", "cores")
)
GPU, GPUMEM, GPUMEM_PERCENTAGE, GPUCORES = (
    f"nvidia.com/{name}" for name in ("gpu", "gpumem", "gpumem-percentage", "gpucores")
)

L40S = tuple(
    Device(f"GPU-{number}", number, 49140 * MIB, slots=10, model="NVIDIA L40S")
    for number in range(8)
)
"""The published deployment: its plugin was started with a memory factor of 10."""


def asked(codec, **limits):
    (request,) = codec.requests(Pod(POD, containers=(Container("c", **limits),)))
    return request


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("codec", "limits", "expected"),
    [
        pytest.param(
            VOLCANO,
            {NUMBER: 2, MEMORY: 3000, CORES: 50},
            Request("c", 2, memory_bytes=3000 * MIB, cores_milli=500),
            id="of each of two GPUs",
        ),
        pytest.param(
            VOLCANO,
            {MEMORY: 3000},
            Request("c", 1, memory_bytes=3000 * MIB),
            id="memory alone is of one GPU",
        ),
        pytest.param(
            VOLCANO,
            {NUMBER: 1},
            Request("c", 1, memory_percent=100),
            id="a number alone is the whole memory",
        ),
        pytest.param(
            VOLCANO,
            {NUMBER: 1, MEMORY: 0, PERCENTAGE: 101},
            Request("c", 1, memory_percent=100),
            id="101 percent are none asked",
        ),
        pytest.param(
            VOLCANO,
            {NUMBER: 1, MEMORY: 7, PERCENTAGE: 101},
            Request("c", 1, memory_bytes=7 * MIB),
            id="101 percent leave the memory alone",
        ),
        pytest.param(
            VOLCANO,
            {NUMBER: 1, MEMORY: 7, PERCENTAGE: 30},
            Request("c", 1, memory_percent=30),
            id="with Volcano the percentage decides",
        ),
        pytest.param(
            HAMI_CODEC,
            {GPU: 1, GPUMEM: 7, GPUMEM_PERCENTAGE: 30},
            Request("c", 1, memory_bytes=7 * MIB),
            id="with HAMi the memory decides",
        ),
        pytest.param(
            HAMI_CODEC,
            {GPUCORES: 130},
            Request("c", 1, memory_percent=100, cores_milli=1000),
            id="with HAMi cores alone are of one GPU, and at most all of it",
        ),
        pytest.param(
            Volcano(memory_factor=10),
            {MEMORY: 1024},
            Request("c", 1, memory_bytes=10240 * MIB),
            id="E5: a unit of 10 MiB, 1024 of them",
        ),
        pytest.param(
            Volcano(HAMI, memory_factor=10),
            {GPUMEM: 1024},
            Request("c", 1, memory_bytes=10240 * MIB),
            id="HAMi has a factor for requests too",
        ),
        pytest.param(
            Volcano(memory_factor=10),
            {"volcano.sh/gpu-memory": 100},
            Request("c", 1, memory_bytes=1000 * MIB),
            id="the older plugin's memory",
        ),
        pytest.param(
            VOLCANO,
            {"volcano.sh/gpu-number": 2},
            Request("c", 2, cores_milli=1000),
            id="the older plugin's whole GPUs",
        ),
    ],
)
def test_a_request_is_read_as_the_scheduler_reads_it(codec, limits, expected):
    assert asked(codec, limits=limits) == expected
    assert set(codec.resources) & set(limits)


def test_containers_that_ask_for_nothing_are_left_out():
    containers = (
        Container("plain"),
        Container("only-cores", {CORES: 10}),  # the scheduler does not look at these either
        Container("none", {NUMBER: 0, MEMORY: 5}),
        Container("other", {GPU: 1}),
        Container("setup", {NUMBER: 1}, ContainerKind.INIT),
        Container("beside", {MEMORY: 1}, ContainerKind.SIDECAR),
    )
    requests = VOLCANO.requests(Pod(POD, containers=containers))
    assert [(each.container, each.kind) for each in requests] == [
        ("setup", ContainerKind.INIT),
        ("beside", ContainerKind.SIDECAR),
    ]


@pytest.mark.parametrize(
    ("container", "key", "text"),
    [
        (Container("c", broken={NUMBER: "1500m"}), NUMBER, "1500m"),
        (Container("c", {NUMBER: 1, MEMORY: 2**31}), MEMORY, str(2**31)),
        (Container("c", {CORES: -1}), CORES, "-1"),
        (Container("c", {"volcano.sh/gpu-number": 10**30}), "volcano.sh/gpu-number", str(10**30)),
    ],
)
def test_a_quantity_that_the_scheduler_would_misread_is_refused(container, key, text):
    with pytest.raises(ClaimError) as refused:
        VOLCANO.requests(Pod(POD, containers=(container,)))
    assert (refused.value.object_name, refused.value.key) == ("ml/train-0", key)
    assert refused.value.text == text


def test_a_unit_of_nothing_is_no_setting():
    with pytest.raises(ValueError, match="0 MiB"):
        Volcano(memory_factor=0)


# ---------------------------------------------------------------- the kubelet's device IDs


@pytest.mark.parametrize(
    ("resource", "total", "ends"),
    [
        (MEMORY, 39312, ("GPU-0-memory-0", "GPU-7-memory-4913")),
        (CORES, 800, ("GPU-0-core-0", "GPU-7-core-99")),
        (NUMBER, 80, ("GPU-0-0", "GPU-7-9")),
    ],
)
def test_the_plugin_reports_what_a_published_deployment_shows(resource, total, ends):
    """E5: 8 GPUs of 49140 MiB at a factor of 10."""
    ids = list(Volcano(memory_factor=10).device_ids(resource, L40S))
    assert (len(ids), ids[0], ids[-1]) == (total, *ends)


def test_hami_reports_its_gpus_only():
    """HAMi's memory and cores are counted by its scheduler alone."""
    assert list(HAMI_CODEC.device_ids(GPU, L40S[:1]))[:2] == ["GPU-0-0", "GPU-0-1"]
    assert not list(HAMI_CODEC.device_ids(GPUMEM, L40S))


def test_a_gpu_of_unknown_slots_is_split_in_ten():
    assert len(list(VOLCANO.device_ids(NUMBER, (Device("GPU-a"),)))) == 10


@given(
    gpus=st.lists(
        st.builds(
            Device,
            st.uuids().map("GPU-{}".format) | st.from_regex(r"\A[A-Z]{1,3}(-[a-f0-9]{1,4}){1,4}\Z"),
            memory_bytes=st.integers(0, 30).map(MIB.__mul__),
            cores_milli=st.integers(0, 30).map((10).__mul__),
            slots=st.integers(0, 5),
        ),
        unique_by=lambda gpu: gpu.uuid,
        max_size=3,
    ),
    resource=st.sampled_from([NUMBER, MEMORY, CORES]),
)
def test_every_id_leads_back_to_its_gpu(gpus, resource):
    slots = [VOLCANO.slot(resource, one) for one in VOLCANO.device_ids(resource, tuple(gpus))]
    sizes = {NUMBER: "slots", MEMORY: "memory_bytes", CORES: "cores_milli"}
    units = {NUMBER: 1, MEMORY: MIB, CORES: 10}[resource]
    assert slots == [
        Slot(resource, gpu.uuid, ordinal)
        for gpu in gpus
        for ordinal in range(getattr(gpu, sizes[resource]) // units)
    ]


def test_other_spellings_of_an_id_are_read():
    assert HAMI_CODEC.slot(GPU, "GPU-0fc3eda5::3") == Slot(GPU, "GPU-0fc3eda5", 3)
    assert VOLCANO.slot("volcano.sh/gpu-memory", "1-204") == Slot("volcano.sh/gpu-memory", "1", 204)


@pytest.mark.parametrize(
    ("resource", "device_id"),
    [
        (NUMBER, "GPU-a-memory-1"),
        (MEMORY, "GPU-a-1"),
        (CORES, "GPU-a-memory-1"),
        (NUMBER, "GPU-a"),
        (NUMBER, "GPU-a-99999999"),
        (NUMBER, "-1"),
        (PERCENTAGE, "GPU-a-1"),
    ],
)
def test_an_id_of_another_resource_is_refused(resource, device_id):
    with pytest.raises(ClaimError) as refused:
        VOLCANO.slot(resource, device_id)
    assert (refused.value.key, refused.value.text) == (resource, device_id)


@given(st.text(max_size=200), st.sampled_from([NUMBER, MEMORY, CORES, GPU, ""]))
def test_any_id_is_a_slot_or_refused(device_id, resource):
    try:
        slot = VOLCANO.slot(resource, device_id)
    except ClaimError as refused:
        assert refused.text == device_id  # noqa: PT017  # either is right
    else:
        assert slot.device in device_id


# ---------------------------------------------------------------- the edits of a container


def allocation_of(*shares, container="train"):
    return Allocation(container, shares, Phase.ASSIGNED)


def by_name(*devices):
    return {name: device for device in devices for name in device.names}


def test_the_edits_of_a_container_have_its_limits_and_the_library():
    """E5: 1024 units of 10 MiB are a limit of 10240 MiB."""
    memory = asked(Volcano(memory_factor=10), limits={MEMORY: 1024}).memory_bytes
    assert memory == 1.073741824e10
    shares = allocation_of(Share("GPU-2", memory, 500), Share("GPU-0", memory, 500))
    edits = VOLCANO.edits(POD, shares, by_name(*L40S), cache_name="3fa8")
    assert edits.env == {
        "NVIDIA_VISIBLE_DEVICES": "GPU-2,GPU-0",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "10240m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "10240m",
        "CUDA_DEVICE_SM_LIMIT": "50",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/tmp/vgpu/3fa8.cache",
    }
    assert edits.mounts == (
        Mount("/usr/local/vgpu/libvgpu.so", "/usr/local/vgpu/libvgpu.so", read_only=True),
        Mount("/usr/local/vgpu/vgpu/containers/uid-1_train", "/tmp/vgpu", read_only=False),
        Mount("/tmp/vgpulock", "/tmp/vgpulock", read_only=False),
        Mount("/usr/local/vgpu/ld.so.preload", "/etc/ld.so.preload", read_only=True),
    )


def test_hami_has_its_folder_elsewhere():
    edits = HAMI_CODEC.edits(POD, allocation_of(Share("GPU-0", MIB, 0)), by_name(*L40S))
    assert edits.env["CUDA_DEVICE_MEMORY_SHARED_CACHE"] == "/usr/local/vgpu/vgpu.cache"
    cache = Mount("/usr/local/vgpu/containers/uid-1_train", "/usr/local/vgpu", read_only=False)
    assert cache in edits.mounts


def test_the_edits_of_a_container_have_the_operators_settings():
    codec = Volcano(
        paths=ShimPaths("/h/lib", "/t/lib", "/h/preload", "/h/c", "/t/c"),
        oversubscribe=True,
        core_policy="disable",
    )
    shares = allocation_of(Share("GPU-0", MIB, 200))
    edits = codec.edits(POD, shares, by_name(*L40S), preload=False)
    assert edits.env["CUDA_OVERSUBSCRIBE"] == "true"
    assert edits.env["GPU_CORE_UTILIZATION_POLICY"] == "disable"
    assert [(mount.host, mount.container) for mount in edits.mounts] == [
        ("/h/lib", "/t/lib"),
        ("/h/c/uid-1_train", "/t/c"),
        ("/tmp/vgpulock", "/tmp/vgpulock"),
    ]


def test_cores_that_differ_are_limited_gpu_by_gpu():
    shares = allocation_of(Share("GPU-0", MIB, 200), Share("GPU-1", MIB, 300))
    env = VOLCANO.edits(POD, shares, by_name(*L40S)).env
    limits = {name: value for name, value in env.items() if "SM_LIMIT" in name}
    assert limits == {"CUDA_DEVICE_SM_LIMIT": "20", "CUDA_DEVICE_SM_LIMIT_1": "30"}


def test_a_mig_slot_is_a_device_without_limits():
    instance = Device("MIG-1", handles=("GPU-0[group1-2]",))
    edits = VOLCANO.edits(POD, allocation_of(Share("GPU-0[group1-2]", 0, 0)), by_name(instance))
    assert edits.env == {"NVIDIA_VISIBLE_DEVICES": "MIG-1"}
    assert not edits.mounts


@pytest.mark.parametrize(
    "share",
    [
        pytest.param(Share("GPU-9", MIB, 0), id="no such GPU"),
        pytest.param(Share("GPU-0[group1-2]", MIB, 0), id="no such MIG slot"),
        pytest.param(Share("GPU-0", 0, 0), id="the library takes a limit of 0 for none"),
        pytest.param(Share("GPU-0", MIB - 1, 0), id="less than the library counts"),
        pytest.param(Share("GPU-0", None, 0), id="no limit at all"),
    ],
)
def test_a_share_that_could_not_be_enforced_is_refused(share):
    with pytest.raises(ClaimError, match="ml/train-0"):
        VOLCANO.edits(POD, allocation_of(share), by_name(*L40S))


@given(
    st.lists(
        st.builds(
            Share,
            st.sampled_from([device.uuid for device in L40S]),
            st.integers(1, 2**20).map(MIB.__mul__),
            st.integers(0, 100).map((10).__mul__),
        ),
        min_size=1,
        max_size=8,
        unique_by=lambda share: share.device,
    )
)
def test_the_environment_of_a_container_is_read_back(shares):
    env = VOLCANO.edits(POD, allocation_of(*shares), by_name(*L40S)).env
    assert is_shared(env)
    assert visible_uuids(env) == tuple(share.device for share in shares)
    limits = [memory_limit(env, position) for position in range(len(shares))]
    assert limits == [share.memory_bytes for share in shares]


# ---------------------------------------------------------------- names of devices


@pytest.mark.parametrize(
    ("name", "gpu", "slot"),
    [
        ("GPU-0fc3eda5-e98b", "GPU-0fc3eda5-e98b", None),
        ("GPU-0fc3eda5-e98b[group2-3]", "GPU-0fc3eda5-e98b", ("group2", 3)),
        ("GPU-a[0-1]", "GPU-a", ("0", 1)),  # HAMi's
        ("MIG-GPU-a/3/0", "MIG-GPU-a/3/0", None),
        ("GPU-a[group2]", "GPU-a[group2]", None),
    ],
)
def test_a_mig_slot_leads_to_its_gpu(name, gpu, slot):
    assert (physical(name), mig_slot(name)) == (gpu, slot)


# ---------------------------------------------------------------- the environment of a container


@pytest.mark.parametrize(
    ("env", "position", "limit"),
    [
        ({"CUDA_DEVICE_MEMORY_LIMIT_1": "10240m"}, 1, 10737418240),  # a published example
        ({"CUDA_DEVICE_MEMORY_LIMIT": "2G"}, 0, 2 * 2**30),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "512k"}, 0, 512 * 2**10),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "1048576"}, 0, 2**20),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "1m", "CUDA_DEVICE_MEMORY_LIMIT": "2m"}, 0, 2**20),
        ({"CUDA_DEVICE_MEMORY_LIMIT_0": "0"}, 0, None),
        ({}, 0, None),
    ],
)
def test_limits_as_the_plugins_write_them(env, position, limit):
    assert memory_limit(env, position) == limit


@given(st.text(max_size=30))
def test_any_other_text_is_no_limit(text):
    limit = memory_limit({"CUDA_DEVICE_MEMORY_LIMIT_0": text}, 0)
    assert limit is None or text.rstrip("kmgKMG").isdigit()


def test_devices_are_named_by_uuid_or_not_at_all():
    assert visible_uuids({"NVIDIA_VISIBLE_DEVICES": "GPU-a, MIG-b"}) == ("GPU-a", "MIG-b")
    assert visible_uuids({"NVIDIA_VISIBLE_DEVICES": "GPU-a,1"}) == ()
    assert visible_uuids({"NVIDIA_VISIBLE_DEVICES": "all"}) == ()
    assert visible_uuids({}) == ()


def test_a_whole_gpu_has_no_limit_in_its_environment():
    assert is_shared({"CUDA_DEVICE_MEMORY_SHARED_CACHE": "/tmp/vgpu/x.cache"})
    assert not is_shared({"NVIDIA_VISIBLE_DEVICES": "GPU-a"})


# ---------------------------------------------------------------- the two dialects


def test_no_key_is_in_both_key_sets():
    names = Counter(
        itertools.chain.from_iterable(
            {*keys.quantities, *keys.locks, *keys.handshake}
            | {keys.devices, keys.to_allocate, keys.node, keys.time, keys.bind_time}
            | {keys.bind_phase, keys.register}
            for keys in (VOLCANO.key_set, HAMI)
        )
    )
    assert set(names.values()) == {1}
