"""A real kubelet with a stand-in for NVIDIA's device plugin: its IDs, its replicas, its answers.

Each value on the wire is that of k8s-device-plugin 0.18: IDs of replicas are ``<uuid>::<n>``
(``internal/rm/rm.go``, ``AnnotatedID``); the answer of the strategy ``envvar`` is
``NVIDIA_VISIBLE_DEVICES`` with each UUID once; with MPS it also has ``CUDA_MPS_PIPE_DIRECTORY`` and
the mounts of the pipe and of /dev/shm (``internal/plugin/server.go``, ``internal/plugin/mps.go``);
resources of MIG are ``nvidia.com/mig-<profile>`` (``internal/rm/nvml_manager.go``).
"""

from contextlib import ExitStack

import pytest

from tests.support.bed import objects
from tests.support.bed.deviceplugin import DevicePlugin
from tests.support.waiting import wait_until
from vgpu.facts import Gpu, GpuSample
from vgpu.model import Sharing, Source
from vgpu.rpc import deviceplugin_pb2 as pb
from vgpu.schemes.own_devices import OwnGrant
from vgpu.schemes.registry import registry
from vgpu.sources.kubelet import DEFAULT_CHECKPOINT, DEFAULT_LOG_DIR, KubeletSource
from vgpu.sources.ledger_builder import LedgerBuilder
from vgpu.sources.samples import Observation

G0 = "GPU-11111111-2222-3333-4444-555555555555"
G1 = "GPU-aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"
M = "MIG-0a1b2c3d-1111-5222-8333-444455556666"
TIME_SLICED, MPS, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"
SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"

GPUS = (
    Gpu(G0, 0, {}, {}),
    Gpu(G1, 1, {}, {}),
    Gpu(M, 0, {"gpu_instance_id": "7", "compute_instance_id": "0"}, {}, G1),
)


def uuids(ids):
    """The UUIDs of the IDs, each once."""
    return ",".join(sorted({device_id.partition("::")[0] for device_id in ids}))


def in_the_environment(ids):
    return pb.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": uuids(ids)})


def through_mps(ids):
    """Without the mounts: their folders are not on this node."""
    envs = {
        "NVIDIA_VISIBLE_DEVICES": uuids(ids),
        "CUDA_MPS_PIPE_DIRECTORY": f"/mps/{MPS}/pipe",
    }
    return pb.ContainerAllocateResponse(envs=envs)


@pytest.fixture
def plugins(node):
    with ExitStack() as stack:
        for resource, ids, answer in (
            (TIME_SLICED, [f"{G0}::{n}" for n in range(4)], in_the_environment),
            (MPS, [f"{G1}::{n}" for n in range(2)], through_mps),
            (MIG, [M], in_the_environment),
        ):
            plugin = stack.enter_context(DevicePlugin(node, resource, ids, answer))
            plugin.wait_counted(len(ids))
        yield


def sharing(grant):
    read = OwnGrant(grant.resource, grant.device_ids, grant.env, grant.answered)
    return registry().own_devices(read).sharing


def holdings(ledger):
    return {
        (one.pod.name, one.share.device, one.slots, one.scheme.value) for one in ledger.holdings
    }


@pytest.mark.usefixtures("plugins")
def test_the_ledger_has_what_the_kubelet_allocated(control_plane, node, namespace):
    client = control_plane.client
    wanted = {
        "sliced": {TIME_SLICED: 1},
        "twice": {TIME_SLICED: 2},
        "mps": {MPS: 1},
        "mig": {MIG: 1},
    }
    made = [client.create(objects.pod(name, namespace, limits=of)) for name, of in wanted.items()]
    for pod in made:
        client.wait_for(pod, objects.ready, "Ready")
    source = KubeletSource(
        str(node.path(DEFAULT_LOG_DIR)), str(node.path(DEFAULT_CHECKPOINT)), str(node.path(SOCKET))
    )
    builder = LedgerBuilder(registry().codecs({}), node.name)
    held = {
        ("sliced", G0, 1, "nvidia"),
        ("twice", G0, 2, "nvidia"),
        ("mps", G1, 1, "nvidia"),
        ("mig", M, 1, "nvidia"),
    }

    def read():
        return source.sample(0.0)

    def ledger():
        return builder.ledger(Observation(gpu=GpuSample(GPUS), kubelet=read()))

    wait_until(lambda: holdings(ledger()) == held, "the ledger", context=lambda: str(read()))
    found = ledger()
    assert found.conflicts == ()
    for holding in found.holdings:
        assert set(holding.sources) == {Source.POD_RESOURCES, Source.CHECKPOINT}
    sample = read()
    assert sample.replicas == {G0: 4, G1: 2}
    granted = {
        sample.pods[one.pod_uid].name: one for one in sample.grants if one.pod_uid in sample.pods
    }
    assert {granted[name].env["NVIDIA_VISIBLE_DEVICES"] for name in ("sliced", "twice")} == {G0}
    assert {name: sharing(grant) for name, grant in granted.items() if name in wanted} == {
        "sliced": Sharing.TIME_SLICING,
        "twice": Sharing.TIME_SLICING,
        "mps": Sharing.MPS,
        "mig": Sharing.MIG,
    }

    node.restart_kubelet()
    node.wait_ready()
    wait_until(lambda: holdings(ledger()) == held, "the ledger after the kubelet's restart")
