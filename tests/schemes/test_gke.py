"""Device IDs, answers and labels of GKE's own plugin (container-engine-accelerators 992db812)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.model.allocation import Share
from vgpu.model.names import Scheme, Sharing
from vgpu.model.objects import Node
from vgpu.model.units import GIB, MIB
from vgpu.schemes.nvidia.gke import parse_device_id as parse
from vgpu.schemes.nvidia.grant import NVIDIA, UNKNOWN, is_counted, named_devices, parse_device_id
from vgpu.schemes.nvidia.node import AdvertisedDevices, advertised
from vgpu.schemes.row import KubeletGrant, NamedDevices

GPU = "nvidia.com/gpu"
WHOLE = 1000


def mps(memory, percent):
    return {
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": memory,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": percent,
    }


def read(*ids, env=None, answered=True, **more):
    return named_devices(KubeletGrant(GPU, ids, env or {}, answered, **more))


@pytest.mark.parametrize(
    ("ids", "shares", "sharing"),
    [
        (["nvidia2"], [Share("/dev/nvidia2", None, WHOLE)], "exclusive"),
        (["nvidia2/vgpu47"], [Share("/dev/nvidia2")], "time-slicing"),
        (["nvidia12/gi7"], [Share("/dev/nvidia12/gi7", None, WHOLE)], "mig"),
        (["nvidia0/gi0/vgpu1"], [Share("/dev/nvidia0/gi0")], "mig-time-slicing"),
        (
            ["nvidia0", "nvidia1"],
            [Share("/dev/nvidia0", None, WHOLE), Share("/dev/nvidia1", None, WHOLE)],
            "exclusive",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("registered", [None, frozenset(), frozenset({Scheme.VOLCANO})])
def test_an_id_names_the_device_node_and_the_gpu_instance(ids, shares, sharing, registered):
    """HAMi has no such IDs, so that it does not matter what the node registers."""
    devices = read(*ids, registered=registered)
    assert devices == NamedDevices(NVIDIA, tuple(shares), Sharing(sharing))


@pytest.mark.parametrize(
    ("ids", "memory", "percent", "amounts"),
    [
        (["nvidia1/vgpu0"], "0=20480M", "25", [(20 * GIB, 250)]),
        (["nvidia1/vgpu0", "nvidia1/vgpu2"], "0=40960M", "50", [(20 * GIB, 250)] * 2),
        # Three units of 10 GiB: 80 GiB / 24, in whole MiB.
        (
            ["nvidia1/vgpu0", "nvidia1/vgpu1", "nvidia1/vgpu2"],
            "0=10240M",
            "12",
            [(10 * GIB // 3 + 1, 40), *[(10 * GIB // 3, 40)] * 2],
        ),
        (["nvidia1/vgpu0"], "0=0M", "0", [(None, None)]),  # more clients than MiB, or than percent
        (["nvidia1/vgpu0"], "20480M", "much", [(None, None)]),
        (["nvidia1/vgpu0"], "0=999999999M", "101", [(None, None)]),  # more than any GPU has
        (["nvidia0/gi1/vgpu0"], "0=40960M", "50", [(None, None)]),  # of the GPU, not the instance
        (["nvidia0/vgpu0", "nvidia1/vgpu0"], "0=20480M", "25", [(None, None)] * 2),
    ],
)
def test_an_mps_replica_has_the_amount_of_the_answer(ids, memory, percent, amounts):
    devices = read(*ids, env=mps(memory, percent))
    assert devices.sharing is Sharing.MPS
    assert [(share.memory_bytes, share.cores_milli) for share in devices.shares] == amounts


def test_without_an_answer_the_way_of_sharing_is_not_known():
    for device_id in ("nvidia0/vgpu0", "nvidia0/gi1/vgpu0"):
        assert read(device_id, answered=False).sharing is Sharing.UNKNOWN
    assert read("nvidia0/gi1", answered=False).sharing is Sharing.MIG


HOSTILE = [
    "nvidia999999/vgpu-1",
    "nvidia0/gi0/gi0",
    "nvidia0/vgpu0/gi1",
    "nvidia0/vgpu",
    "nvidia-1",
    "nvidia00",
    "nvidia0/gi01",
    "nvidia0 ",
    "nvidia0\n",
    "nvidia٣",
    "xnvidia0",
    "nvidia0/../nvidia1",
    "nvidia" + "9" * 400,
    "/dev/nvidia0",
    "nvidia0::0",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_an_id_of_any_other_form_costs_only_itself(text):
    assert parse_device_id(text) is None
    if text.startswith(("nvidia0", "nvidia9")):
        assert not is_counted(text)
        assert read(text) == NamedDevices(UNKNOWN, (Share(""),), Sharing.UNKNOWN)
        beside = read("nvidia2/vgpu1", text, "nvidia2/vgpu0")
        shares = (Share("/dev/nvidia2"), Share(""), Share("/dev/nvidia2"))
        assert beside == NamedDevices(NVIDIA, shares, Sharing.TIME_SLICING)


_PARTS = st.sampled_from(
    ["nvidia", "0", "1", "42", "007", "/gi", "/vgpu", "-", "::", " ", "٣", "x"]
)
_ANY = st.lists(_PARTS, max_size=7).map("".join)


@given(_ANY)
def test_each_id_that_is_read_is_written_alike(text):
    named = parse(text)
    if named is not None:
        device, replica = named
        again = device.removeprefix("/dev/") + ("" if replica is None else f"/vgpu{replica}")
        assert again == text


_LIMITS = st.sampled_from(
    ["0=20480M", "0=0M", "0=999999999999M", "1=5M", "50", "0", "101", "M", ""]
)


@given(
    st.lists(_ANY, min_size=1, max_size=4),
    st.dictionaries(st.sampled_from(sorted(mps("", ""))), _LIMITS),
)
def test_any_ids_and_limits_give_as_many_shares(ids, env):
    devices = read(*ids, env=env)
    if devices is not None:
        assert len(devices.shares) == len(ids)
        assert all((share.memory_bytes or 1) > 0 for share in devices.shares)


# ---------------------------------------------------------------- the API server alone

PREFIX = "cloud.google.com/gke-"


def labelled(units, allocatable=None, **labels):
    named = {f"{PREFIX}{name.replace('_', '-')}": text for name, text in labels.items()}
    node = Node("n", labels=named, capacity={GPU: units}, allocatable={GPU: allocatable or units})
    (devices,) = advertised(node)
    return devices


@pytest.mark.parametrize(
    ("units", "labels", "expected"),
    [
        (2, {}, (Sharing.EXCLUSIVE, "nvidia-l4", 2, None)),
        (
            8,
            {"gpu_sharing_strategy": "time-sharing", "max_shared_clients_per_gpu": "4"},
            (Sharing.TIME_SLICING, "nvidia-l4", 2, 4),
        ),
        (
            8,
            {"gpu_sharing_strategy": "mps", "max_shared_clients_per_gpu": "8"},
            (Sharing.MPS, "nvidia-l4", 1, 8),
        ),
        (14, {"gpu_partition_size": "1g.5gb"}, (Sharing.MIG, "nvidia-l4-MIG-1g.5gb", 14, None)),
        (
            14,
            {
                "gpu_partition_size": "1g.5gb",
                "gpu_sharing_strategy": "time-sharing",
                "max_shared_clients_per_gpu": "2",
            },
            (Sharing.MIG_TIME_SLICING, "nvidia-l4-MIG-1g.5gb", 7, 2),
        ),
        (
            8,
            {"gpu_sharing_strategy": "time-sharing"},
            (Sharing.TIME_SLICING, "nvidia-l4", None, None),
        ),
        (
            8,
            {"gpu_sharing_strategy": "mps", "max_shared_clients_per_gpu": "-4"},
            (Sharing.MPS, "nvidia-l4", None, None),
        ),
        (8, {"gpu_sharing_strategy": "dreaming"}, (Sharing.UNKNOWN, "nvidia-l4", None, None)),
    ],
)  # fmt: skip
def test_the_labels_of_a_node_show_how_its_gpus_are_shared(units, labels, expected):
    devices = labelled(units, accelerator="nvidia-l4", **labels)
    assert (devices.sharing, devices.model, devices.devices, devices.replicas) == expected
    assert (devices.capacity, devices.memory_bytes) == (units, None)


def test_gpu_feature_discovery_adds_the_memory_and_its_strategy_counts_if_it_has_one():
    """The plugin of whoever wrote ``sharing-strategy`` runs on the node: NVIDIA's own."""
    gkes = {f"{PREFIX}accelerator": "nvidia-l4"}
    found = {"nvidia.com/gpu.memory": "23034", "nvidia.com/gpu.product": "NVIDIA-L4"}
    units = {"capacity": {GPU: 1}, "allocatable": {GPU: 1}}
    (devices,) = advertised(Node("n", labels=gkes | found, **units))
    assert devices == AdvertisedDevices(
        GPU, 1, Sharing.EXCLUSIVE, "nvidia-l4", 1, 23034 * MIB, None, 1
    )
    own = {"nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.replicas": "4"}
    (devices,) = advertised(Node("n", labels=gkes | found | own, **units))
    assert (devices.sharing, devices.replicas) == (Sharing.TIME_SLICING, 4)
