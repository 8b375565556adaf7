"""gpu-manager's codec: requests, annotations, GPUs of a node, device IDs, what a container gets."""

import math
import re
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.model.allocation import Allocation, Claim, Device, Request, Share
from vgpu.model.names import ContainerKind, Phase, PodRef, Scheme, device_node
from vgpu.model.objects import Container, Node, Pod
from vgpu.model.units import GAIA_MEMORY_BLOCK
from vgpu.schemes.codec import ClaimError, Mount, Slot
from vgpu.schemes.gaia.codec import Gaia
from vgpu.schemes.gaia.node import model_label

GAIA = Gaia()
REF = PodRef("9a422c32-4fc2-11e9-bb64-505dac4c3a38", "ml", "train-0")
CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
TIME, NODE = "tencent.com/predicate-time", "tencent.com/predicate-node"
INDEX, ASSIGNED = "tencent.com/predicate-gpu-idx-", "tencent.com/gpu-assigned"
LIMIT = "tencent.com/vcuda-core-limit"
AT = 1_600_000_000.5


def container(name="main", cores=0, blocks=0, **fields):
    asked = {resource: units for resource, units in ((CORE, cores), (MEMORY, blocks)) if units}
    return Container(name, asked, **fields)


def pod(*containers, **annotations):
    return Pod(REF, annotations=annotations, containers=containers)


def annotated(*containers, indices=(), **annotations):
    """A pod whose containers have the GPUs ``indices``, assigned."""
    gpus = {f"{INDEX}{number}": text for number, text in enumerate(indices) if text is not None}
    return pod(*containers, **{ASSIGNED: "true"} | gpus | annotations)


def refused(call, *arguments):
    with pytest.raises(ClaimError) as error:
        call(*arguments)
    return error.value


def outcome(call, *arguments):
    """What it returns, or the typed error."""
    try:
        return call(*arguments)
    except ClaimError as error:
        return error


def gpus(count=8):
    """Devices under every name that a share may use."""
    devices = [
        Device(uuid=f"GPU-{minor}", index=99 - minor, memory_bytes=16 * 2**30, minor=minor)
        for minor in range(count)
    ]
    return {name: device for device in devices for name in device.names}


# ---------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("cores", "blocks", "request_"),
    [
        pytest.param(50, 30, Request("main", 1, 7680 * 2**20, cores_milli=500), id="T13"),
        (1, 1, Request("main", 1, GAIA_MEMORY_BLOCK, cores_milli=10)),
        (99, 4, Request("main", 1, 4 * GAIA_MEMORY_BLOCK, cores_milli=990)),
        (100, 0, Request("main", 1, cores_milli=1000)),
        (100, 3, Request("main", 1, cores_milli=1000)),
        (300, 12, Request("main", 3, cores_milli=1000)),
    ],
)
def test_a_request_below_100_cores_is_a_part_of_a_gpu_and_from_100_whole_gpus(
    cores, blocks, request_
):
    assert GAIA.requests(pod(container("main", cores, blocks))) == (request_,)


def test_containers_that_ask_for_nothing_are_left_out_and_the_others_keep_their_kind():
    asked = GAIA.requests(
        pod(
            container("sidecar"),
            container("main", 10, 1),
            container("zero", blocks=0),
            container("setup", 20, 2, kind=ContainerKind.INIT),
        )
    )
    assert [(one.container, one.kind) for one in asked] == [
        ("main", ContainerKind.APP),
        ("setup", ContainerKind.INIT),
    ]


@pytest.mark.parametrize(
    ("one", "key", "text"),
    [
        (container(cores=150, blocks=1), CORE, "150"),
        (container(cores=50), MEMORY, "0"),
        (container(blocks=4), CORE, "0"),
        (container(cores=-1), CORE, "-1"),
        (container(cores=6500), CORE, "6500"),
        (container(cores=10, blocks=2**25 + 1), MEMORY, str(2**25 + 1)),
        (container(cores=10, broken={MEMORY: "1.5"}), MEMORY, "1.5"),
    ],
)
def test_a_request_that_gpu_manager_does_not_allow_is_refused_by_name(one, key, text):
    error = refused(GAIA.requests, pod(one))
    assert (error.object_name, error.key, error.text) == ("ml/train-0", key, text)
    assert "container main" in error.detail


@pytest.mark.parametrize(("text", "milli"), [("80", 800), ("100", 1000), ("250", 1000), ("0", 0)])
def test_the_core_limit_lets_parts_of_gpus_grow_up_to_one_gpu(text, milli):
    both = pod(container("part", 50, 1), container("whole", 100), **{LIMIT: text})
    part, whole = GAIA.requests(both)
    assert (part.limit_milli, whole.limit_milli) == (milli, None)


@pytest.mark.parametrize("text", ["", "80%", "-1", "0.5", "9" * 10_000, "\uff18\uff10"])
def test_a_core_limit_that_is_no_percentage_is_refused(text):
    error = refused(GAIA.requests, pod(container(cores=50, blocks=1), **{LIMIT: text}))
    assert (error.key, error.text) == (LIMIT, text)


# ---------------------------------------------------------------- claims


def test_gpu_admissions_reservation_is_an_assumed_claim():
    promised = annotated(
        container("main", 50, 30),
        container("sidecar"),
        container("more", 200),
        indices=("1", None, "0,3"),
        **{ASSIGNED: "false", NODE: "node-7", TIME: "1600000000500000000"},
    )
    assert GAIA.claim(promised) == Claim(
        Scheme.GAIA,
        REF,
        "node-7",
        (
            Allocation(
                "main", (Share("/dev/nvidia1", 30 * GAIA_MEMORY_BLOCK, 500),), Phase.ASSUMED
            ),
            Allocation(
                "more",
                (Share("/dev/nvidia0", None, 1000), Share("/dev/nvidia3", None, 1000)),
                Phase.ASSUMED,
            ),
        ),
        assumed_at=AT,
    )


def test_gpu_managers_flag_makes_it_assigned():
    assert GAIA.claim(annotated(container(cores=100), indices=("2",))) == Claim(
        Scheme.GAIA,
        REF,
        "",
        (Allocation("main", (Share("/dev/nvidia2", None, 1000),), Phase.ASSIGNED),),
    )


def test_a_pod_without_annotations_of_the_system_claims_nothing():
    assert GAIA.claim(pod(container(cores=100), **{LIMIT: "80", "other": "0"})) is None


def test_the_number_counts_app_containers_only():
    served = annotated(
        container("main", 10, 1),
        container("proxy", 10, 1, kind=ContainerKind.SIDECAR),
        indices=("0", "1"),
    )
    claim = GAIA.claim(served)
    assert [allocation.container for allocation in claim.allocations] == ["main"]
    assert claim.remarks == (f"{INDEX}1: of no container that asks for GPUs: '1'",)


@pytest.mark.parametrize(
    ("changed", "remark", "device_numbers"),
    [
        ({f"{INDEX}1": None}, f"{INDEX}1: missing: container more asks for GPUs: ''", ["0"]),
        ({f"{INDEX}1": "2"}, f"{INDEX}1: container more asks for 2: '2'", ["0", "2"]),
        (
            {f"{INDEX}7": "5"},
            f"{INDEX}7: of no container that asks for GPUs: '5'",
            ["0", "1", "2"],
        ),
        ({ASSIGNED: "maybe"}, f"{ASSIGNED}: neither true nor false: 'maybe'", ["0", "1", "2"]),
        ({TIME: "soon"}, f"{TIME}: not a time in nanoseconds: 'soon'", ["0", "1", "2"]),
        ({TIME: str(2**64)}, f"{TIME}: not a time in nanoseconds: '{2**64}'", ["0", "1", "2"]),
    ],
)
def test_what_cannot_be_right_beside_known_gpus_is_a_doubt(changed, remark, device_numbers):
    whole = {f"{INDEX}0": "0", f"{INDEX}1": "1,2", ASSIGNED: "true"} | changed
    annotations = {key: text for key, text in whole.items() if text is not None}
    claim = GAIA.claim(pod(container("main", 10, 1), container("more", 200), **annotations))
    shares = [share for allocation in claim.allocations for share in allocation.shares]
    assert [share.device for share in shares] == [f"/dev/nvidia{gpu}" for gpu in device_numbers]
    assert claim.remarks == (remark,)


def test_a_users_mistyped_core_limit_hides_no_gpu():
    typo = annotated(container(cores=50, blocks=1), indices=("3",), **{LIMIT: "80%"})
    assert GAIA.claim(typo).allocations[0].shares[0].device == "/dev/nvidia3"


@pytest.mark.parametrize(
    "text", ["", ",", "0,", "-1", "+1", "0 ,1", "1000", "0,0", "00,0", "a", "\uff11", "0\n"]
)
def test_text_that_names_no_gpu_is_refused_with_its_key(text):
    error = refused(GAIA.claim, annotated(container(cores=200), indices=(text,)))
    assert (error.object_name, error.key, error.text) == ("ml/train-0", f"{INDEX}0", text)


GPUS = gpus(64)
TIMES = st.integers(0, 4_000_000_000 * 10**9).map(lambda nano: nano / 10**9)


@st.composite
def claims(draw):
    """A claim that gpu-manager can express, and the app containers of its pod."""
    containers, allocations = [], []
    phase = draw(st.sampled_from((Phase.ASSUMED, Phase.ASSIGNED)))
    for number in range(draw(st.integers(1, 5))):
        name, kind = f"c{number}", draw(st.sampled_from(("none", "part", "whole")))
        if kind == "none":
            containers.append(container(name))
            continue
        if kind == "part":
            cores, blocks = draw(st.integers(1, 99)), draw(st.integers(1, 2**25))
            asked = container(name, cores, blocks)
            shares = [(draw(st.integers(0, 63)), blocks * GAIA_MEMORY_BLOCK, 10 * cores)]
        else:
            indices = draw(st.lists(st.integers(0, 63), min_size=1, max_size=64, unique=True))
            asked = container(name, 100 * len(indices), draw(st.integers(0, 9)))
            shares = [(index, None, 1000) for index in indices]
        containers.append(asked)
        held = tuple(Share(device_node(index), memory, cores) for index, memory, cores in shares)
        allocations.append(Allocation(name, held, phase))
    node = draw(st.sampled_from(("", "node-7", "10.0.0.1")))
    at = draw(st.none() | TIMES)
    return containers, Claim(Scheme.GAIA, REF, node, tuple(allocations), assumed_at=at)


@given(claims().filter(lambda drawn: drawn[1].allocations))
def test_what_was_written_is_read(drawn):
    containers, claim = drawn
    annotations = GAIA.annotations(claim, GPUS, [one.name for one in containers])
    assert GAIA.claim(pod(*containers, **annotations)) == claim


def test_the_annotations_are_those_of_the_original():
    claim = Claim(
        Scheme.GAIA,
        REF,
        "node-7",
        (
            Allocation(
                "more",
                (Share("GPU-2", None, 1000), Share("/dev/nvidia0", None, 1000)),
                Phase.ASSUMED,
            ),
        ),
        assumed_at=AT,
    )
    assert GAIA.annotations(claim, gpus(), ["main", "more"]) == {
        "tencent.com/predicate-gpu-idx-1": "2,0",
        "tencent.com/predicate-node": "node-7",
        "tencent.com/predicate-time": "1600000000500000000",
        "tencent.com/gpu-assigned": "false",
    }


PART = Allocation("main", (Share("/dev/nvidia0", GAIA_MEMORY_BLOCK, 500),), Phase.ASSIGNED)


def held(*shares, container="main", phase=Phase.ASSIGNED):
    return Allocation(container, shares, phase)


def claimed(*allocations, scheme=Scheme.GAIA, at=None, **fields):
    return Claim(scheme, REF, "", allocations, assumed_at=at, **fields)


@pytest.mark.parametrize(
    "claim",
    [
        claimed(),
        claimed(PART, scheme=Scheme.GPUSHARE),
        claimed(PART, failed=True),
        claimed(PART, unserved=("main",)),
        claimed(held(*PART.shares, phase=Phase.RELEASED)),
        claimed(
            PART, held(Share("/dev/nvidia1", None, 1000), container="more", phase=Phase.ASSUMED)
        ),
        claimed(PART, PART),
        claimed(held(*PART.shares, container="nobody")),
        claimed(held()),
        claimed(held(Share("/dev/nvidia99", None, 1000))),
        claimed(held(Share("/dev/nvidia0", None, 1000), Share("/dev/nvidia0", None, 1000))),
        claimed(
            held(
                Share("/dev/nvidia0", GAIA_MEMORY_BLOCK, 500),
                Share("/dev/nvidia1", GAIA_MEMORY_BLOCK, 500),
            )
        ),
        claimed(held(Share("/dev/nvidia0", 5, 500))),
        claimed(held(Share("/dev/nvidia0", GAIA_MEMORY_BLOCK, 505))),
        claimed(held(Share("/dev/nvidia0", GAIA_MEMORY_BLOCK, None))),
        claimed(held(Share("/dev/nvidia0", None, None))),
        claimed(PART, at=math.nan),
        claimed(PART, at=math.inf),
        claimed(PART, at=-1.0),
        claimed(PART, at=2.0**70),
    ],
)
def test_a_claim_that_the_annotations_cannot_express_is_not_written(claim):
    assert refused(GAIA.annotations, claim, gpus(), ["main", "more"]).object_name == "ml/train-0"


# ---------------------------------------------------------------- any text


KEYS = st.sampled_from((TIME, NODE, ASSIGNED, LIMIT, f"{INDEX}0", f"{INDEX}1", f"{INDEX}x", INDEX))
LIKELY = st.sampled_from(("0", "0,1", "true", "false", "1600000000123456789", "80"))
BROKEN = st.builds(
    lambda text, at, piece, cut: text[:at] + piece + text[at + cut :],
    LIKELY,
    st.integers(0, 20),
    st.text(max_size=3),
    st.integers(0, 3),
)
IDS = (f"{CORE}-", f"{MEMORY}-268435456-", f"{CORE}-7", f"{MEMORY}-268435456-70000")
LIMITS = st.sampled_from((0, 1, 50, 99, 100, 150, 200, 10**30, -5))


@given(
    st.dictionaries(KEYS, st.text(max_size=40) | LIKELY | BROKEN, max_size=6),
    st.lists(st.tuples(LIMITS, LIMITS), max_size=3),
)
def test_any_annotations_give_a_claim_or_an_error_that_names_pod_key_and_text(annotations, asked):
    containers = [container(f"c{number}", *units) for number, units in enumerate(asked)]
    result = outcome(GAIA.claim, pod(*containers, **annotations))
    if isinstance(result, ClaimError):
        assert result.object_name == "ml/train-0"
        assert result.key in (CORE, MEMORY) or result.text == annotations[result.key]
    else:
        assert (result is None) == (annotations.keys() <= {LIMIT})


@given(
    st.sampled_from((CORE, MEMORY, "nvidia.com/gpu")),
    st.text(max_size=60)
    | st.builds("{}{}{}".format, st.sampled_from(IDS), *[st.text(max_size=3)] * 2),
)
def test_any_device_id_gives_a_slot_or_the_typed_error(resource, text):
    result = outcome(GAIA.slot, resource, text)
    if isinstance(result, ClaimError):
        assert result.text == text
    else:
        assert text.endswith(f"-{result.ordinal}")


def test_a_hundred_thousand_digits_are_refused_unread():
    digits = "1" * 100_000  # int() of them would raise ValueError
    whole = container(cores=100)
    assert GAIA.claim(annotated(whole, indices=("0",), **{TIME: digits})).remarks
    assert refused(GAIA.claim, annotated(whole, indices=(digits,))).key == f"{INDEX}0"
    refused(GAIA.slot, CORE, f"{CORE}-{digits}")


# ---------------------------------------------------------------- nodes


def test_a_nodes_gpus_are_counted_and_its_memory_divided():
    node = Node(
        "gpu-1",
        capacity={CORE: 200, MEMORY: 9},
        allocatable={CORE: 200, MEMORY: 9},
        labels={"gaia.tencent.com/gpu-model": "P40"},
    )
    assert GAIA.devices(node) == tuple(
        Device(index=index, memory_bytes=4 * GAIA_MEMORY_BLOCK, model="P40", minor=index)
        for index in range(2)
    )


def test_nothing_new_goes_to_a_node_that_no_plugin_serves():
    node = Node("gpu-1", capacity={CORE: 100, MEMORY: 4}, allocatable={CORE: 0, MEMORY: 0})
    assert [device.healthy for device in GAIA.devices(node)] == [False]


def test_memory_that_is_not_registered_is_unknown_and_a_node_without_cores_has_no_gpus():
    assert GAIA.devices(Node("gpu-1", capacity={CORE: 100}))[0].memory_bytes is None
    assert GAIA.devices(Node("cpu-1", capacity={MEMORY: 4})) == ()
    assert GAIA.locks(Node("cpu-1")) == ()


@pytest.mark.parametrize(
    ("capacity", "key"),
    [
        ({CORE: 150}, CORE),
        ({CORE: -100}, CORE),
        ({CORE: 10**30}, CORE),
        ({CORE: 100, MEMORY: -1}, MEMORY),
        ({CORE: 100, MEMORY: 10**30}, MEMORY),
    ],
)
def test_a_capacity_that_no_gpus_have_is_refused(capacity, key):
    error = refused(GAIA.devices, Node("gpu-1", capacity=capacity))
    assert (error.object_name, error.key, error.text) == ("node gpu-1", key, str(capacity[key]))


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("NVIDIA Tesla P40", "Tesla"),
        ("NVIDIA GeForce RTX 3090", "GeForce"),
        ("Tesla P40", ""),
        ("NVIDIA A100-SXM4-80GB", ""),
        ("one (two) three", ""),
        ("", ""),
    ],
)
def test_the_model_label_is_the_second_word_of_more_than_two(name, label):
    assert model_label(name) == label


# ---------------------------------------------------------------- the kubelet and the container


def test_the_device_ids_only_count():
    two = tuple(Device(index=index, memory_bytes=GAIA_MEMORY_BLOCK * 3 // 2) for index in range(2))
    cores = list(GAIA.device_ids(CORE, two))
    assert cores[:2] == ["tencent.com/vcuda-core-0", "tencent.com/vcuda-core-1"]
    assert len(cores) == 200
    # All memory together is divided, as the original does it: two halves are a block.
    assert list(GAIA.device_ids(MEMORY, two)) == [
        f"tencent.com/vcuda-memory-268435456-{number}" for number in range(3)
    ]
    assert GAIA.slot(CORE, cores[199]) == Slot(CORE, None, 199)
    assert GAIA.slot(MEMORY, "tencent.com/vcuda-memory-268435456-2") == Slot(MEMORY, None, 2)


def test_every_id_that_is_reported_is_read_back():
    devices = tuple(Device(index=index, memory_bytes=80 * 2**30) for index in range(64))
    for resource in GAIA.resources:
        slots = [
            GAIA.slot(resource, one) for one in islice(GAIA.device_ids(resource, devices), 9999)
        ]
        assert slots == [Slot(resource, None, number) for number in range(len(slots))]


@pytest.mark.parametrize(
    ("resource", "device_id"),
    [
        (CORE, "tencent.com/vcuda-core-01"),
        (CORE, "tencent.com/vcuda-core--1"),
        (CORE, "tencent.com/vcuda-core-"),
        (CORE, "-1"),
        (CORE, "tencent.com/vcuda-memory-268435456-1"),
        (MEMORY, "tencent.com/vcuda-memory-1"),
        (MEMORY, "tencent.com/vcuda-memory-1-1"),
        ("nvidia.com/gpu", "tencent.com/vcuda-core-1"),
    ],
)
def test_an_id_of_another_form_is_refused(resource, device_id):
    assert refused(GAIA.slot, resource, device_id).text == device_id


def test_ids_need_a_known_resource_and_known_memory():
    refused(GAIA.device_ids, "nvidia.com/gpu", ())
    refused(GAIA.device_ids, MEMORY, (Device(index=0),))


def test_a_part_of_a_gpu_comes_with_the_libraries_that_enforce_it():
    # T13
    allocation = held(Share("/dev/nvidia1", 30 * GAIA_MEMORY_BLOCK, 500))
    edits = GAIA.edits(REF, allocation, gpus())
    assert edits.env == {
        "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64",
        "NVIDIA_VISIBLE_DEVICES": "GPU-1",
    }
    assert edits.mounts == (
        Mount("/etc/gpu-manager/vdriver/nvidia", "/usr/local/nvidia", read_only=True),
        Mount(f"/etc/gpu-manager/vm/{REF.uid}", "/etc/vcuda", read_only=True),
    )
    assert edits.devices == ("/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm")
    assert edits.annotations == {
        "tencent.com/vcuda-core": "50",
        "tencent.com/vcuda-memory": "8053063680",
        "tencent.com/vcuda-device": "/dev/nvidia1",
    }


def test_whole_gpus_come_with_the_drivers_own_libraries_and_what_the_operator_adds():
    gaia = Gaia(extra_devices=("/dev/infiniband",), compat32=True, driver_path="/drv")
    edits = gaia.edits(
        REF, held(Share("GPU-2", None, 1000), Share("/dev/nvidia0", None, 1000)), gpus()
    )
    assert edits.env == {
        "LD_LIBRARY_PATH": "/usr/local/nvidia/lib",
        "NVIDIA_VISIBLE_DEVICES": "GPU-2,GPU-0",
    }
    assert edits.mounts[0].host == "/drv/origin"
    assert edits.devices[:2] == ("/dev/nvidia2", "/dev/nvidia0")
    assert edits.devices[-1] == "/dev/infiniband"
    assert edits.annotations[CORE] == "200"
    assert edits.annotations["tencent.com/vcuda-device"] == "/dev/nvidia2,/dev/nvidia0"


@pytest.mark.parametrize(
    ("allocation", "devices"),
    [
        (held(), gpus()),
        (held(Share("/dev/nvidia9", None, 1000)), gpus()),
        (held(Share("GPU-0", None, 1000)), {"GPU-0": Device(uuid="GPU-0")}),
        (held(Share("/dev/nvidia0", None, 1000)), {"/dev/nvidia0": Device(minor=0)}),
        (
            held(Share("/dev/nvidia0", None, 1000)),
            {"/dev/nvidia0": Device(uuid="GPU-0", minor=1000)},
        ),
    ],
)
def test_an_allocation_of_unknown_gpus_makes_no_container_edits(allocation, devices):
    error = refused(GAIA.edits, REF, allocation, devices)
    assert re.match("ml/train-0", error.object_name)
