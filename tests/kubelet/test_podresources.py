"""pod-resources, over a real gRPC server on a unix socket."""

import socket
import threading
import time

import grpc
import pytest

from tests.support.descriptors import no_descriptors
from tests.support.environment import ROOT
from tests.support.kubelet_server import Kubelet, one_entry_per_device
from tests.support.waiting import WAIT_SECONDS, wait_until
from vgpu.model.facts import CdiDevice, Grant, HeldDevices, HeldResourceClaim, HeldResources
from vgpu.model.names import PodRef
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.resource_claims import ResourceClaimDevice
from vgpu.rpc import podresources_pb2 as pb
from vgpu.sources import podresources
from vgpu.sources.kubelet import KubeletSource, name_grants
from vgpu.sources.podresources import PodResourcesSource


@pytest.fixture
def kubelet(tmp_path):
    running = Kubelet(tmp_path / "kubelet.sock")
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine may be late with an answer; what a test measures is not the deadline."""
    monkeypatch.setattr(podresources, "DEADLINE_SECONDS", WAIT_SECONDS)


@pytest.fixture
def source(kubelet):
    opened = PodResourcesSource(kubelet.path)
    yield opened
    opened.close()


WEB = ("default", "web-0", "main", "nvidia.com/gpu", ["a", "b", "c"])
HELD = {HeldDevices("default", "web-0", "main", "nvidia.com/gpu"): frozenset("abc")}


def refusal(source):
    with pytest.raises(SourceError) as refused:
        source.sample()
    return refused.value


def test_the_committed_code_is_what_the_proto_gives(tmp_path):
    from grpc_tools import protoc

    written = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    arguments = ["protoc", f"-I{ROOT}", *written, "vgpu/rpc/podresources.proto"]
    assert protoc.main(arguments) == 0
    for name in ("podresources_pb2.py", "podresources_pb2.pyi"):
        assert (tmp_path / "vgpu/rpc" / name).read_text() == (ROOT / "vgpu/rpc" / name).read_text()


def test_entries_of_single_devices_in_any_order_are_one_set(kubelet, source):
    kubelet.answer = lambda: one_entry_per_device(WEB)
    for _ in range(5):
        assert source.sample().devices == HELD


def test_an_answer_without_any_pod_is_a_kubelet_that_has_just_started(kubelet, source):
    assert refusal(source).reason is Reason.EMPTY_AFTER_RESTART
    kubelet.answer = lambda: one_entry_per_device(("default", "idle", "main", "cpu", []))
    assert source.sample() == HeldResources()


def test_a_refusal_for_the_rate_of_requests_has_its_own_reason(kubelet, source):
    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    kubelet.answer = lambda: (status, "rejected by rate limit")
    assert refusal(source).reason is Reason.RATE_LIMITED


def test_an_answer_above_the_bound_is_too_large(kubelet, source):
    ids = ["x" * 1024 * 1024] * 17
    kubelet.answer = lambda: one_entry_per_device(("default", "web", "main", "r", ids))
    assert refusal(source).reason is Reason.TOO_LARGE


def test_another_error_is_reported_with_its_code(kubelet, source):
    kubelet.answer = lambda: (grpc.StatusCode.INTERNAL, "oops")
    error = refusal(source)
    assert (error.reason, error.object_name) == (Reason.UNREADABLE, kubelet.path)
    assert error.detail == "INTERNAL: oops"


def test_a_kubelet_that_does_not_answer_is_a_timeout(kubelet, source, monkeypatch):
    monkeypatch.setattr(podresources, "DEADLINE_SECONDS", 0.05)
    timed_out = threading.Event()
    kubelet.answer = lambda: timed_out.wait(WAIT_SECONDS) and one_entry_per_device(WEB)
    error = refusal(source)
    timed_out.set()
    assert error.reason is Reason.UNREADABLE
    assert error.detail.startswith("DEADLINE_EXCEEDED")


def test_bytes_that_are_no_answer_are_refused(kubelet, source):
    class Garbage:
        def SerializeToString(self):  # noqa: N802  # protobuf's name
            return b"\x0a\xff"

    kubelet.answer = Garbage
    assert refusal(source).reason is Reason.UNREADABLE


def test_a_missing_socket_is_absent_and_another_file_no_socket(tmp_path):
    source = PodResourcesSource(str(tmp_path / "kubelet.sock"))
    assert refusal(source).reason is Reason.ABSENT
    (tmp_path / "kubelet.sock").touch()
    assert refusal(source).reason is Reason.UNREADABLE
    source.close()


def test_a_call_for_which_no_descriptor_is_left_is_not_the_kubelets_fault(source):
    with no_descriptors():
        assert refusal(source).reason is Reason.EXHAUSTED


def test_a_socket_that_nobody_serves_is_unreadable(tmp_path):
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(tmp_path / "kubelet.sock"))
    source = PodResourcesSource(str(tmp_path / "kubelet.sock"))
    error = refusal(source)
    assert error.reason is Reason.UNREADABLE
    assert error.detail.startswith("UNAVAILABLE")
    source.close()


def test_the_channel_finds_the_kubelet_again_after_its_restart(kubelet, source):
    kubelet.answer = lambda: one_entry_per_device(WEB)
    assert source.sample().devices == HELD
    kubelet.stop()
    assert refusal(source).reason in (Reason.ABSENT, Reason.UNREADABLE)
    kubelet.start()
    sample = wait_until(source.sample, "the kubelet answers again", failures=(SourceError,))
    assert sample.devices == HELD


# ---------------------------------------------------------------- joined with the checkpoint


def grant(uid, ids, container="main", resource="nvidia.com/gpu"):
    return Grant(uid, container, resource, tuple(ids), {})


def held(pod, ids, container="main"):
    return {HeldDevices("default", pod, container, "nvidia.com/gpu"): frozenset(ids)}


def test_the_same_devices_in_one_grant_give_the_pod_its_name():
    pods, rejections = name_grants([grant("u", "ab"), grant("v", "c")], held("web", "ab"))
    assert pods == {"u": PodRef("u", "default", "web")}
    assert rejections == ()


@pytest.mark.parametrize(
    ("grants", "there"),
    [
        ([grant("u", "abc")], held("web", "ab")),  # a part
        ([grant("u", "a")], held("web", "ab")),  # more
        ([grant("u", "ab", container="other")], held("web", "ab")),
        ([grant("u", "ab", resource="other")], held("web", "ab")),
        ([grant("u", "ab"), grant("v", "ab")], held("web", "ab")),  # two grants
        ([grant("u", "")], held("web", "")),  # no devices say nothing
    ],
)
def test_anything_less_than_one_exact_match_names_nobody(grants, there):
    assert name_grants(grants, there) == ({}, ())


def test_a_pod_that_would_get_two_names_gets_none():
    grants = [grant("u", "a"), grant("u", "b", container="side")]
    there = held("web", "a") | held("db", "b", container="side")
    pods, rejections = name_grants(grants, there)
    assert pods == {}
    assert [(r.object_name, r.reason) for r in rejections] == [("u", Reason.AMBIGUOUS)]


def test_a_sample_has_the_names_that_pod_resources_and_the_checkpoint_give(kubelet, tmp_path):
    (tmp_path / "checkpoint").write_bytes(
        b'{"Data":{"PodDeviceEntries":[{"PodUID":"9a422c32-4fc2-11e9-bb64-505dac4c3a38",'
        b'"ContainerName":"main","ResourceName":"nvidia.com/gpu","DeviceIDs":{"-1":'
        b'["GPU-ad63c684-5593-111a-cbb1-c1451ebcd0aa-3"]},"AllocResp":"CkIKFk5WSURJQV9WSVNJQkxF'
        b"X0RFVklDRVMSKEdQVS1hZDYzYzY4NC01NTkzLTExMWEtY2JiMS1jMTQ1MWViY2QwYWE="
        b'"}],"RegisteredDevices":{"nvidia.com/gpu":["GPU-ad63c684-5593-111a-cbb1-c1451ebcd0aa-0",'
        b'"GPU-ad63c684-5593-111a-cbb1-c1451ebcd0aa-3"]}},"Checksum":2933151149}'
    )
    ids = ["GPU-ad63c684-5593-111a-cbb1-c1451ebcd0aa-3"]
    kubelet.answer = lambda: one_entry_per_device(("ns", "train", "main", "nvidia.com/gpu", ids))
    source = KubeletSource(None, str(tmp_path / "checkpoint"), kubelet.path)
    uid = "9a422c32-4fc2-11e9-bb64-505dac4c3a38"
    assert source.sample(time.time()).pods == {uid: PodRef(uid, "ns", "train")}
    kubelet.answer = pb.ListPodResourcesResponse
    sample = source.sample(time.time())
    assert (list(sample.pods), len(sample.grants)) == ([uid], 1)
    assert [rejection.reason for rejection in sample.rejections] == [Reason.EMPTY_AFTER_RESTART]
    (tmp_path / "checkpoint").write_bytes(
        b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"res-10":["d61"]}},'
        b'"Checksum":655664086}'
    )
    assert source.sample(time.time()).pods == {}


# ---------------------------------------------------------------- ResourceClaims


def test_the_devices_of_a_resource_claim_are_known_by_their_names(kubelet, source):
    """Kubernetes 1.34 lists the ResourceClaim twice if a container names two of its requests.

    The CDI devices of the second repeat those of the first, so they say nothing.
    """
    answer = pb.ListPodResourcesResponse()
    main = answer.pod_resources.add(name="web-0", namespace="ml").containers.add(name="main")
    for _ in range(2):
        resource_claim = main.dynamic_resources.add(claim_name="two", claim_namespace="ml")
        for device in ("gpu-0", "gpu-1"):
            resource_claim.claim_resources.add(
                driver_name="gpu.nvidia.com", pool_name="node-1", device_name=device
            )
    resource_claim.claim_resources[1].share_id = "s1"
    kubelet.answer = lambda: answer
    first, second, shared = (
        ResourceClaimDevice("", "two", "gpu.nvidia.com", "node-1", device, share_id)
        for device, share_id in (("gpu-0", ""), ("gpu-1", ""), ("gpu-1", "s1"))
    )
    assert source.sample().resource_claims == (
        HeldResourceClaim("ml", "web-0", "main", "two", (first, second)),
        HeldResourceClaim("ml", "web-0", "main", "two", (first, shared)),
    )
    del main.dynamic_resources[1]
    main.dynamic_resources.append(main.dynamic_resources[0])
    assert len(source.sample().resource_claims) == 1


def test_a_cdi_device_is_of_the_first_device_that_has_it(kubelet, source):
    """Within one driver the kubelet repeats the CDI devices of the devices before."""
    answer = pb.ListPodResourcesResponse()
    main = answer.pod_resources.add(name="web-0", namespace="ml").containers.add(name="main")
    resource_claim = main.dynamic_resources.add(claim_name="two", claim_namespace="ml")
    devices = (("a", "gpu-0", ["x"]), ("a", "gpu-1", ["x", "y"]), ("b", "nic-0", ["z"]))
    for driver, device, names in devices:
        claim_resource = resource_claim.claim_resources.add(
            driver_name=driver, pool_name="n", device_name=device
        )
        for name in names:
            claim_resource.cdi_devices.add(name=name)
    kubelet.answer = lambda: answer
    (held,) = source.sample().resource_claims
    assert held.cdi == (
        CdiDevice("a", "n", "gpu-0", "x"),
        CdiDevice("a", "n", "gpu-1", "y"),
        CdiDevice("b", "n", "nic-0", "z"),
    )
