"""KubeShare's GPUs on a node, and the holder pods that name them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.model.allocation import Device
from vgpu.model.names import PodRef
from vgpu.model.objects import Pod
from vgpu.model.units import MIB
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.kubeshare.node import (
    HolderPod,
    format_gpu_info,
    holder,
    holder_labels,
    holder_name,
    parse_gpu_info,
    with_handles,
)

GPU = "GPU-8dcd427f-483b-b48f-d7e5-75fb19a52b76"
OTHER = "GPU-00000000-0000-0000-0000-000000000001"


def pod(name, labels=None, node="node-1.example.com", namespace="kube-system"):
    return Pod(PodRef("uid", namespace, name), node=node, labels=labels or {})


def test_a_holder_is_known_by_its_labels():
    name, labels = holder_name("n1", "zxcvb"), holder_labels("n1", "zxcvb")
    assert name == "kubeshare-vgpu-n1-zxcvb"
    assert labels == {
        "kubeshare/role": "dummyPod",
        "kubeshare/nodeName": "n1",
        "kubeshare/GPUID": "zxcvb",
    }
    one = pod(name, labels, node="")
    assert holder(one) == HolderPod("n1", "zxcvb", one.ref)


def test_a_holders_labels_come_before_its_name():
    one = pod("renamed", holder_labels("n2", "zxcvb"), node="n1")
    assert holder(one) == HolderPod("n1", "zxcvb", one.ref)


@pytest.mark.parametrize("begin", ["kubeshare-vgpu", "kubeshare-dummypod"])
def test_without_labels_a_holder_is_known_by_its_name(begin):
    one = pod(f"{begin}-node-1.example.com-my-gpu")
    assert holder(one) == HolderPod("node-1.example.com", "my-gpu", one.ref)


def test_other_pods_are_no_holders():
    labels = holder_labels("n1", "zxcvb")
    for one in (pod("coredns"), pod(holder_name("n1", "a"), labels, namespace="default")):
        assert holder(one) is None


def test_a_holder_whose_virtual_gpu_cannot_be_read_is_refused():
    for one in (
        pod("kubeshare-vgpu-another-node-zxcvb"),
        pod("x", {"kubeshare/role": "dummyPod"}),
        pod("kubeshare-vgpu-node-1.example.com-"),
    ):
        with pytest.raises(ClaimError) as refused:
            holder(one)
        assert refused.value.object_name == f"kube-system/{one.ref.name}"


@given(
    st.text("ab-.9", min_size=1, max_size=12),
    st.text("xyz-", min_size=1, max_size=6),
    st.booleans(),
)
def test_every_holder_that_is_named_is_recognised(node, gpuid, labelled):
    labels = holder_labels(node, gpuid) if labelled else {}
    one = pod(holder_name(node, gpuid), labels, node)
    assert holder(one) == HolderPod(node, gpuid, one.ref)


def test_virtual_gpus_are_names_of_their_gpus():
    gpus = (Device(GPU), Device(OTHER, index=1))
    uuids = {"zxcvb": GPU, "qwert": OTHER, "asdfg": OTHER, "lost": "GPU-gone"}
    first, second = with_handles(gpus, uuids)
    assert first.names == (GPU, "zxcvb")
    assert second.names == (OTHER, "1", "asdfg", "qwert")


@pytest.mark.parametrize(
    "text",
    [
        ",",
        GPU,
        f"{GPU}:",
        f"{GPU}:x",
        f"{GPU}:1.5",
        f"{GPU}:-1",
        f"{GPU}:1,,",
        f"{GPU}:1:2",
        f"{GPU}:1,{GPU}:1",
        ":1",
        "0:1",
        f"{GPU}:" + "9" * 10_000,
        f"{GPU}:\u0661",
        "".join(f"GPU-{number}:1," for number in range(65)),
    ],
    ids=lambda text: text[:60],
)
def test_a_broken_gpu_info_is_refused_whole(text):
    with pytest.raises(ClaimError) as refused:
        parse_gpu_info(text, "node n1")
    assert (refused.value.object_name, refused.value.key) == ("node n1", "kubeshare/gpu_info")
    assert refused.value.text == text


def test_gpu_info_without_its_last_comma_is_read_too():
    assert parse_gpu_info(f"{GPU}:1", "n") == parse_gpu_info(f"{GPU}:1,", "n")


def test_a_gpu_without_uuid_or_memory_is_not_written():
    for device in (Device(GPU), Device("", 0, MIB), Device("GPU 0", memory_bytes=MIB)):
        with pytest.raises(ClaimError):
            format_gpu_info([device], "node n1")


gpus = st.builds(
    lambda uuid, size: Device(f"GPU-{uuid}", memory_bytes=size * MIB),
    st.uuids(),
    st.integers(0, 10**17),
)


@given(st.lists(gpus, max_size=4, unique_by=lambda gpu: gpu.uuid))
def test_every_gpu_info_that_is_written_is_read_back(devices):
    assert parse_gpu_info(format_gpu_info(devices, "n"), "n") == tuple(devices)


@given(st.text(st.sampled_from(f"{GPU}:,1 x"), max_size=60) | st.text(max_size=60))
def test_any_gpu_info_is_understood_or_refused(text):
    try:
        devices = parse_gpu_info(text, "node n1")
    except ClaimError as error:
        assert error.text == text  # noqa: PT017
    else:
        assert all(device.uuid in text for device in devices)
