"""What is seen of a node: the simulated one's real files, by the real readers."""

import shutil
from pathlib import Path

import pytest

from deviceplugin.adapters.gpushare import GpushareAdapter
from deviceplugin.adapters.volcano import VolcanoAdapter
from deviceplugin.allocate.contradictions import of_allocations
from deviceplugin.recovery.node_probe import NodeProbe, live_pods
from deviceplugin.recovery.recovered_state import RecoverySources, recover
from simulator.demo import A10, L40S, demo
from simulator.node import SimulatedNode
from tests.deviceplugin.allocation_values import replace
from vgpu.kube.documents import Keep
from vgpu.kube.kinds import PODS
from vgpu.model.admitted_pod import AdmittedPod
from vgpu.model.allocation import Allocation, Share
from vgpu.model.names import Phase, Scheme
from vgpu.model.units import GIB
from vgpu.schemes.volcano.codec import Volcano
from vgpu.sources import runtime
from vgpu.sources.node_sources import NodePaths

VOLCANO = VolcanoAdapter(Volcano(memory_factor=1024))
GPUSHARE = GpushareAdapter()


class Bench:
    """The demo's node."""

    def __init__(self, folder):
        self.sim = SimulatedNode(demo(), folder)
        self.sim.write(5.0)
        paths = self.sim.paths
        self.places = NodePaths(
            procfs=paths.procfs,
            cgroupfs=paths.cgroupfs,
            log_dir=paths.log_dir,
            checkpoint=paths.checkpoint,
            shim_roots=paths.shim_roots,
            limit_dirs={"gaia": paths.gaia_dir},
        )
        page = PODS.page(Path(paths.pods_file).read_bytes(), keep=Keep.ALL)
        self.pods = page.objects
        self.now = self.sim.start + 5
        self.gpu = self.sim.driver(lambda: 5.0).sample(self.now)

    def probe(self, adapter, pods=(), gpu=(), own=()):
        node = self.sim.scenario.node
        probe = NodeProbe(adapter.codec, node, self.places, timeout=30.0)
        gpu = self.gpu if gpu == () else gpu
        devices = adapter.devices(self.gpu.gpus)
        return probe.probe(gpu, devices, own, self.pods if pods == () else pods, self.now)


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def where(node_snapshot, scheme):
    """Pod's name, up to the first dash -> the devices that it holds."""
    found = {}
    for one in node_snapshot.ledger.holdings:
        if one.scheme is scheme:
            found.setdefault(one.pod.name.partition("-")[0], set()).add(one.share.device)
    return found


RUNNING = {
    "finetune": {A10.uuid, L40S.uuid},
    "notebook": {A10.uuid},
    "detector": {A10.uuid},
    "embeddings": {L40S.uuid},
    "chat": {L40S.uuid},
}


def test_each_scheme_sees_its_own_holders_on_their_gpus(bench):
    assert where(bench.probe(VOLCANO), Scheme.VOLCANO) == RUNNING
    assert where(bench.probe(GPUSHARE), Scheme.GPUSHARE) == {"whisper": {A10.uuid}}


def test_without_driver_or_api_server_the_node_itself_still_has_the_answer(bench):
    node_snapshot = bench.probe(VOLCANO, gpu=None)
    assert where(node_snapshot, Scheme.VOLCANO) == RUNNING
    node_snapshot = bench.probe(VOLCANO, pods=None)
    assert (
        where(node_snapshot, Scheme.VOLCANO).items() >= {"finetune": {A10.uuid, L40S.uuid}}.items()
    )
    assert {pod.kubelet_uid for pod in bench.pods} >= node_snapshot.live_pods


@pytest.mark.parametrize(("place", "collector"), [("checkpoint", "kubelet"), ("procfs", "process")])
def test_what_cannot_be_read_is_named_and_costs_only_itself(bench, place, collector):
    nothing = {"log_dir": "/nonexistent"} if place == "checkpoint" else {}
    bench.places = replace(bench.places, **{place: "/nonexistent"}, **nothing)
    node_snapshot = bench.probe(VOLCANO)
    assert [failure.partition(":")[0] for failure in node_snapshot.failures] == [collector]
    assert where(node_snapshot, Scheme.VOLCANO).items() >= {"detector": {A10.uuid}}.items()


def test_where_no_cgroup_is_seen_at_all_nobody_is_taken_for_dead(bench):
    for child in Path(bench.places.cgroupfs).rglob("*pod*"):
        if child.is_dir() and child.name != "kubepods.slice":
            shutil.rmtree(child, ignore_errors=True)
    node_snapshot = bench.probe(VOLCANO)
    assert node_snapshot.live_pods is None
    assert where(node_snapshot, Scheme.VOLCANO) == RUNNING


def test_gpus_have_the_numbers_that_the_scheme_gives_them(bench):
    """Those that are not shared have none: else a claim could mean them."""
    turned = (replace(gpu, index=1 - gpu.index) for gpu in VOLCANO.devices(bench.gpu.gpus))
    numbers = {A10.uuid: 1, L40S.uuid: 0}
    for devices in (tuple(turned), VOLCANO.devices(bench.gpu.gpus[:1])):
        probe = NodeProbe(VOLCANO.codec, "n", bench.places, timeout=30.0)
        ledger = probe.probe(bench.gpu, devices, (), bench.pods, bench.now).ledger
        assert {one.device.uuid: one.device.index for one in ledger.devices} == numbers
        numbers = {A10.uuid: 0, L40S.uuid: None}


def test_what_is_shared_of_a_gpu_is_what_is_there(bench):
    scaled = replace(VOLCANO, memory_scaling=2.0)
    (gpu, _) = bench.probe(scaled).ledger.devices
    assert gpu.device.memory_bytes == 2 * A10.memory_bytes // GIB * GIB
    assert gpu.device.slots == 10


def test_our_own_checkpoint_is_one_of_the_sources(bench):
    chat = next(pod for pod in bench.pods if pod.ref.name.startswith("chat"))
    shares = (Share(A10.uuid, 2 * GIB, 100),)
    admitted_pod = AdmittedPod(chat.ref, (Allocation("vllm", shares, Phase.ASSIGNED),), since=1.0)
    node_snapshot = bench.probe(VOLCANO, own=(admitted_pod,))
    places = {one.where for entry in node_snapshot.ledger.devices for one in entry.disputed}
    assert "our own checkpoint" in places


def test_from_a_look_the_originals_pods_are_recovered(bench):
    """The driver, the kubelet, regions and annotations of the demo, all in their real formats."""
    node_snapshot = bench.probe(VOLCANO)
    seen = RecoverySources(node_snapshot.ledger, (), tuple(bench.pods), node_snapshot.live_pods)
    recovery = recover(VOLCANO.codec, VOLCANO.devices(bench.gpu.gpus), (), seen, bench.now)
    names = {
        admitted_pod.pod.name.partition("-")[0]
        for admitted_pod in recovery.allocation_state.admitted_pods.values()
    }
    assert names == RUNNING.keys()
    assert all(
        admitted_pod.foreign for admitted_pod in recovery.allocation_state.admitted_pods.values()
    )
    # What all schemes together hold of a GPU is the exporter's to say.
    assert any("more than it has" in one.kind.explanation for one in node_snapshot.ledger.conflicts)
    assert (recovery.conflicts, of_allocations(recovery.allocation_state)) == ((), ())


# ---------------------------------------------------------------- who is alive


def test_the_pods_that_have_a_cgroup_are_alive(bench):
    assert live_pods(bench.places.cgroupfs) == bench.probe(VOLCANO).live_pods


def test_where_there_is_no_tree_nobody_knows(tmp_path):
    assert live_pods(str(tmp_path / "nothing")) is None
    (tmp_path / "kubepods.slice").mkdir()
    (tmp_path / "cgroup.controllers").touch()
    assert live_pods(str(tmp_path)) is None


def test_a_tree_that_cannot_be_read_whole_gives_no_answer(tmp_path, monkeypatch):
    monkeypatch.setattr(runtime, "MAX_FOLDERS", 4)
    (tmp_path / "cgroup.controllers").touch()
    tree = tmp_path / "kubepods.slice"
    for number in range(5):
        (tree / f"kubepods-pod{number:032x}.slice").mkdir(parents=True)
    assert live_pods(str(tmp_path)) is None
