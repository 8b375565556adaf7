"""KubeShare's codec: requests, claims, GPUs and containers of both releases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.model.allocation import Allocation, Claim, Device, Request, Share
from vgpu.model.names import Phase, PodRef, Scheme
from vgpu.model.objects import BOUND_DEVICE, MANAGER_PORT, SHARE_POD, Node, OwnerReference, Pod
from vgpu.model.units import GIB, MIB
from vgpu.schemes.codec import ClaimError, ContainerEdits, Mount, SchemeCodec, Slot
from vgpu.schemes.kubeshare.codec import GPU_RESOURCE, KubeShare, Release, manager_env
from vgpu.schemes.kubeshare.sharepod import GPUID, Locality, join, locality

KUBESHARE: SchemeCodec = KubeShare()
LABELS = KubeShare(release=Release.LABELS)

REF = PodRef("uid", "ns", "name")
GPU = "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76"
OTHER = "GPU-00000000-0000-0000-0000-000000000001"
REAL = OwnerReference("SharePod", "name", "uid-of-the-sharepod")


def share_pod(request="0.5", limit="1.0", memory="1073741824", gpuid="zxcvb", node="n1", **more):
    """Release 1; "" leaves a number out."""
    numbers = {"gpu_request": request, "gpu_limit": limit, "gpu_mem": memory, "GPUID": gpuid}
    annotations = {f"kubeshare/{name}": text for name, text in numbers.items() if text}
    return Pod(REF, node=node, annotations=annotations | more.pop("annotations", {}), **more)


def labelled(request="0.5", limit="1.0", memory="", node="n1", **annotations):
    """Release 2; "" leaves a number out."""
    numbers = {"gpu_request": request, "gpu_limit": limit, "gpu_mem": memory}
    return Pod(
        REF,
        node=node,
        labels={f"sharedgpu/{name}": text for name, text in numbers.items() if text},
        annotations={f"sharedgpu/{name}": text for name, text in annotations.items()},
    )


def refusal(function, *args):
    with pytest.raises(ClaimError) as refused:
        function(*args)
    assert refused.value.object_name == "ns/name"
    return refused.value.key, refused.value.text


# ---------------------------------------------------------------- requests


def test_the_readmes_sharepod_asks_for_half_a_gpu_and_up_to_all_of_it():
    assert KUBESHARE.requests(share_pod()) == (
        Request("", 1, GIB, cores_milli=500, limit_milli=1000),
    )


def test_the_four_sharepods_of_the_documentation():
    """K3: request 0.5, limit 1.0, memory 3145728000 or 1073741824."""
    for memory in (3145728000, 1073741824):
        (request,) = KUBESHARE.requests(share_pod(memory=str(memory)))
        assert (request.cores_milli, request.memory_bytes) == (500, memory)


@pytest.mark.parametrize(
    ("decimal", "thousandths"),
    [("0.05", 50), ("1", 1000), ("1.", 1000), (".5", 500), ("0.0001", 1), ("0.3000", 300)],
)
def test_decimals_are_thousandths_without_floats(decimal, thousandths):
    (request,) = KUBESHARE.requests(share_pod(request=decimal))
    assert request.cores_milli == thousandths


def test_all_zero_is_no_gpu_at_all():
    nothing = share_pod("0", "0.0", "0", gpuid="")
    assert KUBESHARE.requests(nothing) == ()
    assert KUBESHARE.claim(share_pod("0", "0.0", "0")) is None
    assert KUBESHARE.requests(labelled("0.0", "0.0")) == ()


def test_a_pod_without_texts_or_with_empty_texts_only_requests_no_gpu():
    """The real pod of a SharePod without GPU carries all four annotations, empty."""
    empty = {f"kubeshare/{name}": "" for name in ("gpu_request", "gpu_limit", "gpu_mem", "GPUID")}
    for pod in (Pod(REF), Pod(REF, node="n1", annotations=empty)):
        assert KUBESHARE.requests(pod) == ()
        assert KUBESHARE.claim(pod) is None


@pytest.mark.parametrize(
    ("pod", "key", "text"),
    [
        (share_pod(request=""), "gpu_request", ""),
        (share_pod(limit=""), "gpu_limit", ""),
        (share_pod(memory=""), "gpu_mem", ""),
        (share_pod("", "", ""), "gpu_request", ""),
        (share_pod("0", "0"), "gpu_limit", "0"),
        (share_pod(limit="1.0001"), "gpu_limit", "1.0001"),
        (share_pod("0.6", "0.5"), "gpu_request", "0.6"),
        (share_pod("-0.1"), "gpu_request", "-0.1"),
        (share_pod("5e-1"), "gpu_request", "5e-1"),
        (share_pod("nan"), "gpu_request", "nan"),
        (share_pod("0.5 "), "gpu_request", "0.5 "),
        (share_pod("\u0660.\u0665"), "gpu_request", "\u0660.\u0665"),
        (share_pod("."), "gpu_request", "."),
        (share_pod("0." + "0" * 10_000), "gpu_request", "0." + "0" * 10_000),
        (share_pod(memory="1Gi"), "gpu_mem", "1Gi"),
        (share_pod(memory="1.5"), "gpu_mem", "1.5"),
        (share_pod(memory="9" * 10_000), "gpu_mem", "9" * 10_000),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, str) else "",
)
def test_a_request_that_kubeshare_1_rejects_is_refused_by_name(pod, key, text):
    assert refusal(KUBESHARE.requests, pod) == (f"kubeshare/{key}", text)


def test_release_2_asks_by_label():
    assert KUBESHARE.requests(labelled(memory="1073741824")) == (
        Request("", 1, GIB, cores_milli=500, limit_milli=1000),
    )


def test_release_2_without_memory_takes_the_requests_part_of_the_gpus_memory():
    assert KUBESHARE.requests(labelled("0.125", "0.5")) == (
        Request("", 1, None, memory_percent=13, cores_milli=125, limit_milli=500),
    )


def test_release_2_without_request_is_opportunistic():
    (request,) = KUBESHARE.requests(labelled(request="", limit="0.5"))
    assert (request.cores_milli, request.limit_milli) == (0, 500)


def test_release_2_above_one_takes_whole_gpus():
    assert KUBESHARE.requests(labelled("3.0", "3.0")) == (
        Request("", 3, cores_milli=1000, limit_milli=1000),
    )


@pytest.mark.parametrize(
    ("pod", "key", "text"),
    [
        (labelled(limit=""), "gpu_limit", ""),
        (labelled("0.6", "0.5"), "gpu_request", "0.6"),
        (labelled("2.0", "3.0"), "gpu_limit", "3.0"),
        (labelled("1.5", "1.5"), "gpu_limit", "1.5"),
        (labelled("999", "999"), "gpu_limit", "999"),
        (labelled("x"), "gpu_request", "x"),
        (labelled(memory="x"), "gpu_mem", "x"),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, str) else "",
)
def test_a_request_that_kubeshare_2_rejects_is_refused_by_name(pod, key, text):
    assert refusal(KUBESHARE.requests, pod) == (f"sharedgpu/{key}", text)


def test_localities_are_the_users_own_labels():
    wishes = {"kubeshare/sched_affinity": "red", "kubeshare/sched_exclusion": "blue"}
    assert locality(share_pod(annotations=wishes)) == Locality("red", "", "blue")
    assert locality(Pod(REF)) == Locality()


# ---------------------------------------------------------------- claims


def claimed(device, phase, memory=GIB, cores=500, node="n1"):
    allocation = Allocation("", (Share(device, memory, cores),), phase)
    return Claim(Scheme.KUBESHARE, REF, node, (allocation,))


def test_a_scheduled_sharepod_has_an_assumed_claim_on_its_gpuid():
    assert KUBESHARE.claim(share_pod()) == claimed("zxcvb", Phase.ASSUMED)


def test_a_bound_sharepod_has_the_gpu_of_its_status():
    bound = share_pod(annotations={SHARE_POD: "uid2", BOUND_DEVICE: GPU})
    assert KUBESHARE.claim(bound) == claimed(GPU, Phase.ASSIGNED)


def test_the_real_pod_of_a_sharepod_is_made_once_it_is_served():
    assert KUBESHARE.claim(share_pod(owner=REAL)) == claimed("zxcvb", Phase.ASSIGNED)


def test_a_gpuid_without_a_node_is_a_wish_that_nobody_serves():
    assert KUBESHARE.claim(share_pod(node="")) is None


def test_the_end_of_a_pod_is_not_the_claims_business():
    assert KUBESHARE.claim(share_pod(phase="Failed")) == KUBESHARE.claim(share_pod())


def test_release_2_has_the_gpu_in_an_annotation():
    pod = labelled(memory="5", gpu_uuid=GPU, gpu_mem="7", cell_id="n1/1", gpu_manager_port="50052")
    assert KUBESHARE.claim(pod) == claimed(GPU, Phase.ASSIGNED, memory=7)
    assert KUBESHARE.claim(labelled(memory="5", gpu_uuid=GPU)).allocations[0].shares == (
        Share(GPU, 5, 500),
    )
    unbound = labelled(memory="5", node="", gpu_uuid=GPU)
    assert KUBESHARE.claim(unbound) == claimed(GPU, Phase.ASSUMED, memory=5, node="")


def test_release_2_lists_whole_gpus():
    pod = labelled("2.0", "2.0", gpu_uuid=f"{GPU},{OTHER},", gpu_mem="30000")
    assert KUBESHARE.claim(pod).allocations == (
        Allocation("", (Share(GPU, None, 1000), Share(OTHER, None, 1000)), Phase.ASSIGNED),
    )


@pytest.mark.parametrize(
    ("pod", "key", "text"),
    [
        (share_pod(request=""), "kubeshare/gpu_request", ""),
        (share_pod(memory=""), "kubeshare/gpu_mem", ""),
        (share_pod("1.5", "1.5"), "kubeshare/gpu_request", "1.5"),
        (share_pod(gpuid="-x"), GPUID, "-x"),
        (share_pod(gpuid="a b"), GPUID, "a b"),
        (share_pod(gpuid="x" * 64), GPUID, "x" * 64),
        (share_pod(annotations={BOUND_DEVICE: "0"}), "status.BoundDeviceID", "0"),
        (labelled(gpu_uuid="0"), "sharedgpu/gpu_uuid", "0"),
        (labelled(gpu_uuid=","), "sharedgpu/gpu_uuid", ","),
        (labelled(gpu_uuid=f"{GPU},{GPU}"), "sharedgpu/gpu_uuid", f"{GPU},{GPU}"),
        (labelled(gpu_uuid=f"{GPU},{OTHER}"), "sharedgpu/gpu_uuid", f"{GPU},{OTHER}"),
        (labelled("2", "2", gpu_uuid=GPU), "sharedgpu/gpu_uuid", GPU),
        (labelled("1.5", "2", gpu_uuid=GPU), "sharedgpu/gpu_uuid", GPU),
        (labelled(gpu_uuid=GPU, gpu_mem="x"), "sharedgpu/gpu_mem", "x"),
        (labelled("64", "64", gpu_uuid=",GPU-a" * 70), "sharedgpu/gpu_uuid", ",GPU-a" * 70),
    ],
    ids=lambda value: str(value)[:20] if isinstance(value, str) else "",
)
def test_a_claim_that_is_none_is_refused_by_name(pod, key, text):
    assert refusal(KUBESHARE.claim, pod) == (key, text)


# ---------------------------------------------------------------- writing

DEVICES = {
    name: device
    for device in (
        Device(GPU, memory_bytes=16 * GIB, handles=("zxcvb",)),
        Device(OTHER, memory_bytes=8 * GIB, handles=("qwert", "asdfg")),
        Device("", memory_bytes=GIB, handles=("nouuid",)),
        Device("GPU-1", handles=()),
    )
    for name in device.names
}


def test_a_claim_is_written_as_a_sharepods_annotations():
    expected = {
        "kubeshare/gpu_request": "0.05",
        "kubeshare/gpu_mem": "1073741824",
        "kubeshare/GPUID": "zxcvb",
    }
    for name in ("zxcvb", GPU):
        claim = claimed(name, Phase.ASSUMED, cores=50)
        assert KUBESHARE.annotations(claim, DEVICES) == expected


def test_several_gpus_are_written_with_the_sum_of_their_memory():
    shares = (Share(GPU, None, 1000), Share("qwert", None, 1000))
    claim = Claim(Scheme.KUBESHARE, REF, "n1", (Allocation("", shares, Phase.ASSUMED),))
    assert LABELS.annotations(claim, DEVICES) == {
        "sharedgpu/gpu_uuid": f"{GPU},{OTHER},",
        "sharedgpu/gpu_mem": str(24 * GIB),
    }


@pytest.mark.parametrize(
    ("codec", "allocations"),
    [
        (KUBESHARE, ()),
        (KUBESHARE, (Allocation("", (), Phase.ASSUMED),)),
        (KUBESHARE, (Allocation("main", (Share("zxcvb", 1, 1),), Phase.ASSUMED),)),
        (KUBESHARE, (Allocation("", (Share("zxcvb", 1, 1),), Phase.RELEASED),)),
        (KUBESHARE, (Allocation("", (Share("zxcvb", 1, 1),) * 2, Phase.ASSUMED),)),
        (KUBESHARE, (Allocation("", (Share("zxcvb", None, 1),), Phase.ASSUMED),)),
        (KUBESHARE, (Allocation("", (Share("zxcvb", 1, None),), Phase.ASSUMED),)),
        (KUBESHARE, (Allocation("", (Share("zxcvb", 1, 1001),), Phase.ASSUMED),)),
        (KUBESHARE, (Allocation("", (Share("zxcvb", 0, 0),), Phase.ASSUMED),)),
        (KUBESHARE, (Allocation("", (Share("unknown", 1, 1),), Phase.ASSUMED),)),
        (KUBESHARE, (Allocation("", (Share(OTHER, 1, 1),), Phase.ASSUMED),)),
        (KUBESHARE, (Allocation("", (Share("GPU-1", 1, 1),), Phase.ASSUMED),)),
        (LABELS, (Allocation("", (Share("nouuid", 1, 1),), Phase.ASSUMED),)),
        (LABELS, (Allocation("", (Share(GPU, None, 1),), Phase.ASSUMED),)),
        (LABELS, (Allocation("", (Share(GPU, None, 1000),) * 2, Phase.ASSUMED),)),
        (LABELS, (Allocation("", (Share(GPU, 1, 1000), Share(OTHER)), Phase.ASSUMED),)),
        (
            LABELS,
            (Allocation("", (Share(GPU, None, 1000), Share("GPU-1", None, 1000)), Phase.ASSUMED),),
        ),
    ],
)
def test_a_claim_that_kubeshare_cannot_express_is_refused(codec, allocations):
    claim = Claim(Scheme.KUBESHARE, REF, "n1", allocations)
    refusal(codec.annotations, claim, DEVICES)


names = st.sampled_from(["zxcvb", "qwert", "asdfg"])
memories = st.integers(0, 10**18 - 1)


@given(names, memories, st.integers(0, 1000), st.sampled_from([None, REAL]))
def test_every_sharepods_claim_that_is_written_is_read_back(name, memory, cores, owner):
    phase = Phase.ASSIGNED if owner else Phase.ASSUMED
    claim = claimed(name, phase, memory + (memory == cores == 0), cores)
    written = KUBESHARE.annotations(claim, DEVICES)
    assert KUBESHARE.claim(Pod(REF, node="n1", annotations=written, owner=owner)) == claim


@given(st.sampled_from([GPU, OTHER]), memories, st.integers(0, 1000), st.sampled_from(["", "n1"]))
def test_every_claim_of_a_labelled_pod_that_is_written_is_read_back(uuid, memory, cores, node):
    phase = Phase.ASSIGNED if node else Phase.ASSUMED
    claim = claimed(uuid, phase, memory, cores, node)
    written = LABELS.annotations(claim, DEVICES)
    labels = {"sharedgpu/gpu_request": f"0.{cores:03}" if cores < 1000 else "1.0"}
    assert LABELS.claim(Pod(REF, node=node, labels=labels, annotations=written)) == claim


def test_whole_gpus_that_are_written_are_read_back():
    shares = (Share(GPU, None, 1000), Share(OTHER, None, 1000))
    claim = Claim(Scheme.KUBESHARE, REF, "n1", (Allocation("", shares, Phase.ASSIGNED),))
    pod = Pod(
        REF,
        node="n1",
        labels={"sharedgpu/gpu_request": "2.0"},
        annotations=LABELS.annotations(claim, DEVICES),
    )
    assert LABELS.claim(pod) == claim


numbers = st.sampled_from(["0.5", "1.0", "2.0", "0", "1073741824", GPU, "zxcvb", f"{GPU},"])
texts = st.text(max_size=5) | numbers | st.builds(lambda a, b: a + b, numbers, st.text(max_size=3))
keys = st.sampled_from(
    [
        *(
            prefix + name
            for prefix in ("kubeshare/", "sharedgpu/")
            for name in ("gpu_request", "gpu_limit", "gpu_mem", "GPUID", "gpu_uuid")
        ),
        BOUND_DEVICE,
    ]
)
any_texts = st.dictionaries(keys, texts, max_size=4)


@given(any_texts, any_texts, st.sampled_from(["", "n1"]), st.sampled_from([None, REAL]))
def test_any_text_is_understood_or_refused_by_pod_key_and_text(annotations, labels, node, owner):
    pod = Pod(REF, node=node, annotations=annotations, labels=labels, owner=owner)
    for read in (KUBESHARE.requests, KUBESHARE.claim, locality):
        try:
            read(pod)
        except ClaimError as error:
            assert error.object_name == "ns/name"  # noqa: PT017
            key = BOUND_DEVICE if error.key.startswith("status.") else error.key
            assert error.text == annotations.get(key, "") or error.text == labels.get(key, "")  # noqa: PT017


# ---------------------------------------------------------------- SharePods and their pods


def test_a_sharepod_and_its_real_pod_are_one_tenant():
    known = {SHARE_POD: "uid", BOUND_DEVICE: GPU, MANAGER_PORT: "50051"}
    theirs = PodRef("uid-of-the-sharepod", "ns", "name")
    bound = Pod(theirs, node="n1", annotations={**share_pod().annotations, **known})
    waiting = Pod(PodRef("uid3", "ns", "waiting"), annotations={SHARE_POD: ""})
    stranger = Pod(PodRef("uid4", "ns", "x"), owner=OwnerReference("ReplicaSet", "x", "uid3"))
    real, plain, still = join([share_pod(owner=REAL), stranger], [waiting, bound])
    assert KUBESHARE.claim(real) == claimed(GPU, Phase.ASSIGNED)
    assert (plain, still) == (stranger, waiting)


def test_a_pod_whose_sharepod_is_gone_keeps_its_own_annotations():
    assert join([share_pod(owner=REAL)], []) == (share_pod(owner=REAL),)


# ---------------------------------------------------------------- nodes and containers


def test_a_nodes_gpus_are_those_of_its_gpu_info():
    node = Node("n1", annotations={"kubeshare/gpu_info": f"{GPU}:16276,{OTHER}:8138,"})
    assert KUBESHARE.devices(node) == (
        Device(GPU, memory_bytes=16276 * MIB),
        Device(OTHER, memory_bytes=8138 * MIB),
    )
    assert KUBESHARE.devices(Node("n1")) == ()
    assert KUBESHARE.locks(node) == ()


def test_a_holders_device_ids_are_uuids():
    assert KUBESHARE.slot(GPU_RESOURCE, GPU) == Slot(GPU_RESOURCE, GPU, 0)
    assert KUBESHARE.slot(GPU_RESOURCE, f"{GPU}::3") == Slot(GPU_RESOURCE, GPU, 3)
    devices = (DEVICES[GPU], DEVICES["nouuid"], DEVICES[OTHER])
    assert list(KUBESHARE.device_ids(GPU_RESOURCE, devices)) == [GPU, OTHER]
    assert list(KUBESHARE.device_ids("volcano.sh/vgpu-number", devices)) == []


@pytest.mark.parametrize("device_id", ["", "0", "GPU-", f"{GPU}::", f"{GPU}::x", f"{GPU}\n"])
def test_what_is_no_device_id_is_refused(device_id):
    with pytest.raises(ClaimError):
        KUBESHARE.slot(GPU_RESOURCE, device_id)


def test_device_ids_of_another_resource_are_refused():
    with pytest.raises(ClaimError):
        KUBESHARE.slot("nvidia.com/gpumem", GPU)


@given(st.text(max_size=40))
def test_any_device_id_is_understood_or_refused(device_id):
    try:
        assert KUBESHARE.slot(GPU_RESOURCE, device_id).device in device_id
    except ClaimError as error:
        assert error.text == device_id  # noqa: PT017


def test_a_container_gets_its_gpu_and_geminis_hook():
    allocation = claimed("zxcvb", Phase.ASSUMED).allocations[0]
    assert KUBESHARE.edits(REF, allocation, DEVICES) == ContainerEdits(
        env={
            "NVIDIA_VISIBLE_DEVICES": GPU,
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
            "LD_PRELOAD": "/kubeshare/library/libgemhook.so.1",
            "POD_NAME": "ns/name",
        },
        mounts=(Mount("/kubeshare/library", "/kubeshare/library", read_only=True),),
    )
    assert manager_env(50052, "10.1.2.3") == {
        "POD_MANAGER_IP": "10.1.2.3",
        "POD_MANAGER_PORT": "50052",
    }
    assert manager_env(50052) == {"POD_MANAGER_PORT": "50052"}


def test_whole_gpus_are_allocated_without_a_hook():
    shares = (Share(GPU, None, 1000), Share(OTHER, None, 1000))
    edits = KUBESHARE.edits(REF, Allocation("", shares, Phase.ASSIGNED), DEVICES)
    assert edits.env["NVIDIA_VISIBLE_DEVICES"] == f"{GPU},{OTHER}"
    assert "LD_PRELOAD" not in edits.env
    assert edits.mounts == ()


def test_an_allocation_on_an_unknown_gpu_makes_no_container_edits():
    for name in ("nouuid", "unknown"):
        allocation = claimed(name, Phase.ASSUMED).allocations[0]
        refusal(KUBESHARE.edits, REF, allocation, DEVICES)
