"""Device IDs and answers of NVIDIA's own device plugin (k8s-device-plugin 0.12 to 0.20).

The forms of the IDs are those of its ``internal/rm``: ``AnnotatedID`` is ``<id>::<replica>``, the
IDs of MIG instances are NVML's UUIDs, ``tegra`` and ``all`` stand for GPUs without a UUID. The
answers are those of ``internal/plugin/server.go``.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vgpu.model.allocation import Allocation, Claim, Share
from vgpu.model.names import Phase, PodRef, Scheme, Sharing
from vgpu.model.objects import Node, Pod
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.nvidia.grant import NVIDIA, UNKNOWN, is_counted, named_devices, parse_device_id
from vgpu.schemes.nvidia.resources import other_names
from vgpu.schemes.nvidia.row import NVIDIA_ROW
from vgpu.schemes.row import KubeletGrant, NamedDevices

G0 = "GPU-11111111-2222-3333-4444-555555555555"
G1 = "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
M = "MIG-0a1b2c3d-1111-5222-8333-444455556666"
OLD_M = f"MIG-{G0}/7/0"
WHOLE = 1000
ENV = "NVIDIA_VISIBLE_DEVICES"
MOUNTS = "/var/run/nvidia-container-devices"
MPS = {"CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu/pipe"}
HAMI = {ENV: G1, "CUDA_DEVICE_MEMORY_LIMIT_0": "4000m", "CUDA_DEVICE_SM_LIMIT": "30"}


def read(resource, *ids, env=None, answered=True, **more):
    return named_devices(KubeletGrant(resource, ids, env or {}, answered, **more))


@pytest.mark.parametrize(
    ("resource", "ids", "env", "shares", "sharing"),
    [
        ("gpu", [f"{G0}::0", f"{G0}::3"], {ENV: f"{G0},{G0}"}, [Share(G0)] * 2, "time-slicing"),
        ("gpu", [f"{G0}::0", f"{G0}::3"], {}, [Share(G0)] * 2, "time-slicing"),  # CDI only
        ("gpu", [f"{G0}::2"], {ENV: MOUNTS}, [Share(G0)], "time-slicing"),
        ("gpu.shared", [f"{G0}::0"], {ENV: G0}, [Share(G0)], "time-slicing"),
        ("gpu", [f"{G0}::1"], {ENV: G0, **MPS}, [Share(G0)], "mps"),
        ("mig-1g.10gb", [M], {ENV: M}, [Share(M, None, WHOLE)], "mig"),
        ("mig-1g.5gb", [OLD_M], {ENV: OLD_M}, [Share(OLD_M, None, WHOLE)], "mig"),
        ("gpu", [f"{OLD_M}::1"], {ENV: OLD_M}, [Share(OLD_M)], "mig-time-slicing"),
        ("mig-1g.10gb.shared", [f"{M}::1"], {ENV: M}, [Share(M)], "mig-time-slicing"),
        ("gpu", [G1], {ENV: G1}, [Share(G1, None, WHOLE)], "exclusive"),
        ("gpu", [G1], {}, [Share(G1, None, WHOLE)], "exclusive"),  # CDI only
        ("gpu", [G1], {ENV: "0"}, [Share(G1, None, WHOLE)], "exclusive"),  # deviceIDStrategy index
    ],
)  # fmt: skip
def test_an_id_names_the_device_whatever_the_strategy_of_the_answer(
    resource, ids, env, shares, sharing
):
    devices = read(f"nvidia.com/{resource}", *ids, env=env)
    assert devices == NamedDevices(NVIDIA, tuple(shares), Sharing(sharing))


def test_without_an_answer_a_replicas_device_is_known_and_its_sharing_is_not():
    """pod-resources has the IDs alone."""
    devices = read("nvidia.com/gpu", f"{G0}::1", answered=False)
    assert devices == NamedDevices(NVIDIA, (Share(G0),), Sharing.UNKNOWN)


@pytest.mark.parametrize(
    ("resource", "ids", "env"),
    [
        ("nvidia.com/gpu", [f"{G1}-4"], HAMI),
        ("nvidia.com/gpu", [f"{G1}-4"], {ENV: M}),  # HAMi's MIG mode
        ("nvidia.com/gpu", [f"{G1}-4"], {}),
        ("nvidia.com/gpu", [f"{G1}::2-4"], {}),
        ("nvidia.com/gpu", [M], HAMI),
        ("nvidia.com/gpu", [G1], {ENV: "void"}),  # our own plugin's, with CDI
        ("volcano.sh/vgpu-number", [f"{G1}-4"], HAMI),
        ("example.com/gpu", [G1], {ENV: G1}),
        ("nvidia.com/hostdev", ["0000:3b:00.0"], {}),
        ("nvidia.com/gpu", [], {}),
    ],
)
def test_what_another_plugin_allocated_is_not_of_nvidias(resource, ids, env):
    assert read(resource, *ids, env=env) is None


def test_both_kinds_of_id_may_be_in_one_resource():
    """The last plugin to register has the resource; entries of the other stay."""
    assert read("nvidia.com/gpu", f"{G0}::0").scheme is NVIDIA
    assert read("nvidia.com/gpu", f"{G0}-0") is None


@pytest.mark.parametrize("text", ["tegra", "tegra::0", "all", "all::1", "nvidia", "nvidia0/vgpu"])
def test_an_id_of_no_known_form_is_a_share_of_an_unknown_device(text):
    devices = read("nvidia.com/gpu", text)
    assert devices == NamedDevices(UNKNOWN, (Share(""),), Sharing.UNKNOWN)


@pytest.mark.parametrize(
    ("registered", "scheme"),
    [
        (None, UNKNOWN),
        (frozenset(), NVIDIA),
        (frozenset({Scheme.GPUSHARE}), NVIDIA),
        (frozenset({Scheme.VOLCANO}), Scheme.VOLCANO),
    ],
)
def test_the_scheme_of_an_instance_in_the_common_resource_comes_from_the_nodes_register(
    registered, scheme
):
    devices = read("nvidia.com/gpu", M, env={ENV: M}, registered=registered)
    assert (devices.scheme, devices.shares) == (scheme, (Share(M, None, WHOLE),))
    assert read("nvidia.com/mig-1g.10gb", M, registered=registered).scheme is NVIDIA


def test_a_renamed_resource_is_read_while_its_name_is_set():
    with other_names(["example.com/gpu"]):
        devices = read("example.com/gpu", f"{G0}::0")
        assert read("example.com/gpu-memory", f"{G0}::0") is None
    assert devices == NamedDevices(NVIDIA, (Share(G0),), Sharing.TIME_SLICING)
    assert read("example.com/gpu", f"{G0}::0") is None


@given(st.text(max_size=60) | st.from_regex(r"(GPU|MIG)-[0-9a-f-]{1,40}(::[0-9]+)?(-[0-9]+)?"))
def test_any_text_is_of_one_kind_at_most(text):
    assert not (parse_device_id(text) and is_counted(text))
    devices = read("nvidia.com/gpu", text)
    assert devices is None or len(devices.shares) == 1


def test_its_codec_reads_and_writes_nothing():
    codec = NVIDIA_ROW.codec(None)
    pod = Pod(PodRef("u", "ml", "train"))
    assert codec.scheme is NVIDIA
    assert (codec.resources, codec.requests(pod), codec.claim(pod)) == ((), (), None)
    assert (codec.claim_keys(pod), codec.devices(Node("n"))) == ((), ())
    assert list(codec.device_ids("nvidia.com/gpu", ())) == []
    allocation = Allocation("main", (Share(G0),), Phase.ASSIGNED)
    for refused in (
        lambda: codec.annotations(Claim(NVIDIA, pod.ref, "", (allocation,)), {}),
        lambda: codec.slot("nvidia.com/gpu", G0),
        lambda: codec.edits(pod.ref, allocation, {}),
    ):
        with pytest.raises(ClaimError, match="only observed"):
            refused()
    assert not NVIDIA_ROW.has_devices(Node("n"))
