"""A node as its own sources show it: the simulated node's real files, and what goes wrong there."""

import json
import os
import shutil
import time
from pathlib import Path

import msgspec
import pytest

from reconciler.model import Coverage, Scope
from reconciler.observe import folders
from reconciler.observe.node import NodeObserver
from reconciler.plan import make_plan
from reconciler.policy import Ages, Mode, Policy
from reconciler.reasons import Rule
from reconciler.reconciler_state import ReconcilerState
from simulator.demo import A10, L40S, demo
from simulator.node import SimulatedNode
from tests.kubelet.test_checkpoint import checkpoint
from tests.reconciler import samples
from tests.support import own_state
from tests.support.waiting import WAIT_SECONDS
from vgpu.inventory import Units
from vgpu.kube.documents import Keep
from vgpu.kube.kinds import PODS
from vgpu.ledger import ConflictKind
from vgpu.ledger.conflicts import Conflict
from vgpu.model.allocation import Device
from vgpu.model.names import PodRef, Scheme, Source
from vgpu.model.objects import Container, Pod
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.units import GIB
from vgpu.schemes.gpushare.codec import Gpushare
from vgpu.schemes.registry import registry
from vgpu.schemes.volcano.codec import VOLCANO, Volcano
from vgpu.sources.collector import Collector
from vgpu.sources.node_sources import NodePaths
from vgpu.sources.pods import pod_sample, with_node

replace = msgspec.structs.replace

FULL = {Coverage.PODS, Coverage.NODES, Coverage.LEDGER, Coverage.FOLDERS, Coverage.USAGE}
IDS = "volcano.sh/vgpu-ids-new"


class Bench:
    """The demo's node, with its pods on an API server that tests can change."""

    def __init__(self, folder):
        self.sim = SimulatedNode(demo(), folder)
        self.sim.write(5.0)
        page = PODS.page(Path(self.sim.paths.pods_file).read_bytes(), keep=Keep.ALL)
        self.pods = {pod.ref.name: pod for pod in page.objects}
        self.node = samples.node(self.sim.scenario.node, "volcano", "gpushare")
        self.node = replace(self.node, annotations={})
        self.failure = None
        self.places = NodePaths(
            **{
                name: getattr(self.sim.paths, name)
                for name in NodePaths.__struct_fields__
                if hasattr(self.sim.paths, name)
            }
        )
        self.made = []

    def read_pods(self, _):
        if self.failure is not None:
            raise self.failure
        return with_node(pod_sample(self.pods.values(), complete=True), self.node)

    def observer(self, **options):
        places = replace(self.places, **options.pop("places", {}))
        options = {"read_pods": self.read_pods, "driver": self.sim.driver(lambda: 5.0), **options}
        units = Units(volcano_factor=1024, gpushare_unit=GIB)
        name = self.sim.scenario.node
        self.made.append(
            NodeObserver(None, name, places, units, **{"timeout": WAIT_SECONDS} | options)
        )
        return self.made[-1]

    def view(self, **options):
        return self.observer(**options).view(self.sim.start + 5).snapshot

    def one(self, name):
        """The pod whose name begins so."""
        (found,) = (pod for key, pod in self.pods.items() if key.startswith(name))
        return found

    def change(self, pod, **fields):
        self.pods[pod.ref.name] = replace(pod, **fields)


@pytest.fixture
def bench(tmp_path):
    made = Bench(tmp_path)
    yield made
    for observer in made.made:
        observer.close()


def ledger_of(snapshot):
    (ledger,) = snapshot.ledgers.values()
    return ledger


def conflicts(snapshot, kind) -> list[Conflict]:
    return [one for one in ledger_of(snapshot).conflicts if one.kind is kind]


def scenario_pods(bench, **fields):
    return [
        pod
        for pod in bench.sim.scenario.pods
        if all(getattr(pod, name) == value for name, value in fields.items())
    ]


# ---------------------------------------------------------------- a node that can be read


def test_where_every_source_can_be_read_everything_is_complete(bench):
    snapshot = bench.view()
    assert snapshot.complete == FULL
    assert snapshot.scope is Scope.NODE
    assert snapshot.nodes == (bench.node,)
    assert snapshot.live_pods
    assert snapshot.ledgers.keys() == {bench.sim.scenario.node}


def test_a_view_of_a_loop_is_marked_as_continuous(bench):
    assert bench.view(continuous=True).continuous
    assert not bench.view().continuous


def test_the_ledger_is_made_from_all_sources(bench):
    assert ledger_of(bench.view()).read >= {
        Source.PROCESS,
        Source.CHECKPOINT,
        Source.SHIM,
        Source.LIMIT_FILE,
        Source.ANNOTATIONS,
    }


def test_the_pods_are_those_that_share_gpus(bench):
    stranger = Pod(PodRef("web", "ml", "web"), node=bench.node.name, phase="Running")
    bench.pods["web"] = stranger
    names = {pod.ref.name for pod in bench.view().pods}
    assert "web" not in names
    assert {pod.ref.name for pod in scenario_pods(bench, deleted=False) if pod.containers} >= names


def test_a_pod_with_whole_gpus_of_nvidias_own_plugin_is_skipped(bench):
    whole = Pod(
        PodRef("whole", "ml", "whole"),
        node=bench.node.name,
        containers=(Container("main", {"nvidia.com/gpu": 1}),),
        phase="Running",
    )
    bench.pods["whole"] = whole
    for pod in list(bench.pods.values()):  # nobody speaks HAMi's language
        if "nvidia.com/gpu" in {name for each in pod.containers for name in each.limits}:
            bench.pods.pop(pod.ref.name)
    bench.pods["whole"] = whole
    assert whole not in bench.view().pods


def test_a_second_look_sees_what_changed(bench):
    observer = bench.observer()
    first = observer.view(bench.sim.start + 5).snapshot
    detector = bench.one("detector")
    bench.change(detector, phase="Failed")
    second = observer.view(bench.sim.start + 6).snapshot
    assert detector in first.pods
    assert bench.one("detector") in second.pods
    assert second.now == bench.sim.start + 6


def test_what_a_container_uses_is_what_the_driver_counts_of_its_processes(bench):
    detector = bench.one("detector")
    (usage,) = (one for one in bench.view().usage if one.pod_uid == detector.ref.uid)
    pids = {process.pid for process in bench.sim.driver(lambda: 5.0).sample(5.0).processes}
    assert (usage.container, usage.device) == (detector.containers[0].name, A10.uuid)
    assert usage.used_bytes
    assert pids.issuperset(usage.pids)


def test_when_a_container_last_launched_a_kernel_is_what_its_library_reports(bench):
    launches = bench.view().last_kernels
    assert launches
    assert {launch.pod_uid for launch in launches} <= {
        pod.kubelet_uid for pod in bench.pods.values()
    }
    assert all(0 <= launch.launched_at <= bench.sim.start + 5 for launch in launches)


def test_of_a_container_that_nobody_names_it_is_not_known_what_it_uses(bench, tmp_path):
    """Neither by the kubelet's links nor by the API server."""
    snapshot = bench.view(places={"log_dir": str(tmp_path / "nothing")}, read_pods=None)
    assert snapshot.complete == {Coverage.USAGE}
    assert [one for one in snapshot.usage if one.pod_uid] == []


# ---------------------------------------------------------------- faults


def cross(bench):
    """A pod on the one GPU whose annotations say the other."""
    detector = bench.one("detector")
    crossed = {key: text.replace(A10.uuid, L40S.uuid) for key, text in detector.annotations.items()}
    assert crossed != detector.annotations
    bench.change(detector, annotations=crossed)
    return detector


def test_a_container_on_another_gpu_than_its_annotation_names_is_a_conflict(bench):
    detector = cross(bench)
    snapshot = bench.view()
    (conflict,) = conflicts(snapshot, ConflictKind.GPU_DIFFERS)
    assert conflict.pod.uid == detector.ref.uid
    (holding,) = ledger_of(snapshot).of_pod(detector.ref.uid)
    assert holding.share.device == A10.uuid
    assert holding.source is Source.PROCESS


def test_without_a_driver_the_kubelets_checkpoint_decides_about_the_gpu(bench):
    cross(bench)
    register(bench)
    snapshot = bench.view(driver=None)
    assert Coverage.LEDGER in snapshot.complete
    (conflict,) = conflicts(snapshot, ConflictKind.GPU_DIFFERS)
    assert conflict.statements[0].source is Source.CHECKPOINT
    (holding,) = ledger_of(snapshot).of_pod(conflict.pod.uid)
    assert holding.share.device == A10.uuid


def test_a_container_that_outlives_its_pod_is_a_conflict(bench):
    detector = bench.one("detector")
    bench.change(detector, phase="Failed", statuses=())
    (conflict,) = conflicts(bench.view(), ConflictKind.OUTLIVES_POD)
    assert conflict.pod.uid == detector.ref.uid


def test_a_process_of_no_container_is_a_conflict(bench):
    assert conflicts(bench.view(), ConflictKind.PROCESS_WITHOUT_ALLOCATION)


def register(bench, **sizes):
    """Volcano's plugin registers this many GiB of each GPU; by default those of the GPU."""
    gpus = [
        Device(gpu.uuid, None, sizes.get(name, gpu.memory_bytes // GIB) * GIB, slots=10)
        for name, gpu in (("a10", A10), ("l40s", L40S))
    ]
    bench.node = replace(bench.node, annotations=Volcano(VOLCANO, 1024).register(gpus))


def test_what_is_held_is_compared_with_what_is_registered(bench):
    """Who scales a GPU on purpose registers more of it than the driver sees."""
    register(bench, a10=4, l40s=400)
    (conflict,) = (
        one
        for one in conflicts(bench.view(), ConflictKind.OVERCOMMITTED)
        if " memory" in one.detail
    )
    assert conflict.device == A10.uuid


# ---------------------------------------------------------------- folders


def folders_of(bench, pod):
    """The paths of the shims' folders that are named after a pod."""
    return [
        path for root in bench.places.shim_roots for path in Path(root).glob(f"{pod.ref.uid}_*")
    ]


def test_the_folder_of_a_deleted_pod_is_seen_and_nobody_uses_it(bench):
    (gone,) = scenario_pods(bench, deleted=True)
    (folder,) = (one for one in bench.view().folders if one.pod_uid == gone.ref.uid)
    assert not folder.mapped
    assert folder.path.startswith(bench.places.shim_roots)


def test_the_folders_of_all_other_pods_count_as_used(bench):
    (gone,) = scenario_pods(bench, deleted=True)
    others = [one for one in bench.view().folders if one.pod_uid != gone.ref.uid]
    assert others
    assert all(folder.mapped for folder in others)


def test_a_pod_that_has_ended_is_known_with_its_folder(bench):
    (ended,) = scenario_pods(bench, phase="Succeeded")
    snapshot = bench.view()
    assert ended.ref.uid in {folder.pod_uid for folder in snapshot.folders}
    assert ended.ref.uid in {pod.ref.uid for pod in snapshot.pods}


def test_a_pod_with_a_folder_is_in_the_picture_whatever_it_asks_for(bench):
    detector = bench.one("detector")
    plain = replace(detector, annotations={}, labels={}, containers=(Container("detector"),))
    bench.pods[detector.ref.name] = plain
    assert plain in bench.view().pods


def test_a_pod_that_only_the_kernel_knows_keeps_its_folder(bench):
    detector = bench.one("detector")
    del bench.pods[detector.ref.name]
    (folder,) = (one for one in bench.view().folders if one.pod_uid == detector.ref.uid)
    assert folder.mapped


def test_whether_a_folder_is_used_can_be_asked_again(bench):
    (gone,) = scenario_pods(bench, deleted=True)
    observer = bench.observer()
    (folder,) = (
        one
        for one in observer.view(bench.sim.start + 5).snapshot.folders
        if one.pod_uid == gone.ref.uid
    )
    assert observer.mapped(folder.path) is False
    shutil.rmtree(folder.path)
    with pytest.raises(SourceError) as caught:
        observer.mapped(folder.path)
    assert caught.value.reason is Reason.ABSENT


def test_more_folders_than_are_looked_at_keep_none_from_being_tidied(bench, monkeypatch):
    monkeypatch.setattr(folders, "MOST_FOLDERS", 1)
    snapshot = bench.view()
    assert snapshot.folders
    assert Coverage.FOLDERS in snapshot.complete
    assert any("more than 1 entries" in note for note in snapshot.notes)


@pytest.fixture
def hurry(monkeypatch):
    """Names collectors that hang in what they ask: only the others are worth waiting for."""
    finish, hang = Collector.finish, set()

    def hurried(collector, deadline):
        finish(collector, time.monotonic() + 0.2 if collector.name in hang else deadline)

    monkeypatch.setattr(Collector, "finish", hurried)
    return hang.update


def test_a_kernel_that_does_not_answer_leaves_the_use_of_a_folder_untold(bench, hurry):
    """A process that hangs in the driver holds the lock of its mappings."""
    (gone,) = scenario_pods(bench, deleted=True)
    maps = Path(bench.places.procfs, "1", "maps")
    os.mkfifo(maps)  # as a file of /proc that blocks
    observer = bench.observer()
    hurry({"folders", "mapped"})
    snapshot = observer.view(bench.sim.start + 5).snapshot
    assert snapshot.complete == FULL - {Coverage.FOLDERS}
    assert any("no answer before the deadline" in note for note in snapshot.notes)
    (folder,) = folders_of(bench, gone)
    with pytest.raises(SourceError) as caught:
        observer.mapped(str(folder))
    assert caught.value.reason is Reason.TIMEOUT
    maps.write_bytes(b"")  # lets both go


# ---------------------------------------------------------------- what is missing


def test_without_the_api_server_nothing_can_be_acted_on(bench):
    bench.failure = SourceError(Reason.UNREACHABLE, "https://api", "refused")
    snapshot = bench.view()
    assert snapshot.complete == {Coverage.USAGE}
    assert not snapshot.pods
    assert not snapshot.folders
    assert any("api is not read" in note for note in snapshot.notes)
    assert ledger_of(snapshot).read >= {Source.PROCESS, Source.CHECKPOINT}


def test_without_an_api_server_to_ask_every_language_is_understood(bench):
    sight = bench.observer(read_pods=None).view(bench.sim.start + 5)
    assert {codec.scheme for codec in sight.codecs} == set(registry().schemes)
    assert sight.snapshot.complete == {Coverage.USAGE}


def test_a_list_of_some_of_the_pods_is_no_complete_view(bench):
    def some(_):
        return with_node(pod_sample(bench.pods.values(), complete=False), bench.node)

    snapshot = bench.view(read_pods=some)
    assert snapshot.complete == {Coverage.NODES, Coverage.USAGE}


def test_without_the_right_to_read_nodes_only_the_node_is_missing(bench):
    def pods_only(_):
        return with_node(pod_sample(bench.pods.values(), complete=True), None)

    snapshot = bench.view(read_pods=pods_only)
    assert snapshot.complete == FULL - {Coverage.NODES}
    assert snapshot.nodes == ()


@pytest.mark.parametrize(
    ("place", "views", "message"),
    [
        ("checkpoint", {Coverage.LEDGER}, "the kubelet's grants"),
        ("procfs", {Coverage.LEDGER, Coverage.FOLDERS, Coverage.USAGE}, "the host's processes"),
        ("cgroupfs", {Coverage.LEDGER, Coverage.FOLDERS}, "cgroups"),
    ],
)
def test_a_source_that_decides_and_cannot_be_read_makes_its_views_incomplete(
    bench, place, views, message, tmp_path
):
    snapshot = bench.view(places={place: str(tmp_path / "nothing")})
    assert snapshot.complete == FULL - views
    assert any(message in note for note in snapshot.notes)


@pytest.mark.parametrize("place", ["log_dir", "state_dir"])
def test_a_source_that_does_not_decide_may_be_missing(bench, place, tmp_path):
    assert bench.view(places={place: str(tmp_path / "nothing")}).complete == FULL


@pytest.mark.parametrize("row", ["gaia", "kubeshare"])
def test_a_systems_limit_files_may_be_missing(bench, row, tmp_path):
    folders = {**bench.sim.paths.limit_dirs, row: str(tmp_path / "nothing")}
    assert bench.view(places={"limit_dirs": folders}).complete == FULL


def test_what_our_own_plugin_has_bound_is_read_and_decides(bench):
    (before,) = (
        one for one in ledger_of(bench.view()).holdings if one.pod.name.startswith("detector")
    )
    path = own_state.keep(bench.sim.paths, before)
    snapshot = bench.view()
    assert snapshot.complete == FULL
    assert Source.OWN_CHECKPOINT in ledger_of(snapshot).read
    holdings = ledger_of(snapshot).holdings
    recorded_pods = [one.pod for one in holdings if Source.OWN_CHECKPOINT in one.sources]
    assert recorded_pods == [before.pod]
    path.write_bytes(b"damaged")
    snapshot = bench.view()
    assert snapshot.complete == FULL - {Coverage.LEDGER}
    assert any("our own device plugin's checkpoint" in note for note in snapshot.notes)


def test_other_processes_than_the_hosts_decide_nothing(bench):
    link = Path(bench.places.procfs, "self/ns/pid")
    link.unlink()
    link.symlink_to("pid:[4026532000]")
    snapshot = bench.view()
    assert snapshot.complete == {Coverage.PODS, Coverage.NODES}
    assert not snapshot.folders


def test_the_pods_of_another_node_are_not_taken_for_this_ones(bench):
    """With a wrong --node-name every folder here would be an orphan."""
    bench.pods = {"other": samples.pod("other", node="gpu-2")}
    snapshot = bench.view()
    assert snapshot.complete == {Coverage.USAGE}
    assert not snapshot.pods
    assert not snapshot.folders
    assert any("--node-name" in note for note in snapshot.notes)


def test_a_driver_that_hangs_costs_only_what_it_knows(bench, hurry):
    driver = bench.sim.driver(lambda: 5.0)
    driver.hang(3600.0)
    observer = bench.observer(driver=driver)
    hurry({"nvml"})
    snapshot = observer.view(bench.sim.start + 5).snapshot
    assert snapshot.complete == FULL - {Coverage.USAGE}
    assert snapshot.usage == ()
    assert any("nvml is not read" in note for note in snapshot.notes)
    assert Source.PROCESS not in ledger_of(snapshot).read
    driver.recover()


def test_gpushares_unit_is_the_configured_one(bench):
    sight = bench.observer().view(bench.sim.start + 5)
    (gpushare,) = (one for one in sight.codecs if one.scheme is Scheme.GPUSHARE)
    assert gpushare == Gpushare(GIB)


def test_a_node_that_speaks_one_language_is_read_in_that_one(bench):
    for name, pod in list(bench.pods.items()):
        if IDS not in pod.annotations:
            del bench.pods[name]
    bench.node = samples.node(bench.node.name, "volcano")
    (codec,) = bench.observer().view(bench.sim.start + 5).codecs
    assert codec.key_set is VOLCANO


# ---------------------------------------------------------------- resources under other names

OTHER_NAMES = {
    "volcano.sh/vgpu-number": "example.com/vgpu",
    "volcano.sh/vgpu-memory": "example.com/vgpu-memory",
    "volcano.sh/vgpu-cores": "example.com/vgpu-cores",
    "aliyun.com/gpu-mem": "example.com/gpu-mem",
}


def rename(bench, names=OTHER_NAMES):
    """The operator has renamed resources before any of these pods was made."""
    file = Path(bench.places.checkpoint)
    data = json.loads(file.read_bytes())["Data"]
    for entry in data["PodDeviceEntries"]:
        entry["ResourceName"] = names.get(entry["ResourceName"], entry["ResourceName"])
    registered = {names.get(name, name): ids for name, ids in data["RegisteredDevices"].items()}
    file.write_bytes(checkpoint(*data["PodDeviceEntries"], registered=registered))
    for pod in bench.pods.values():
        known = (
            replace(
                each,
                limits={key: units for key, units in each.limits.items() if key not in names},
            )
            for each in pod.containers
        )
        bench.change(pod, containers=tuple(known))


def kubelets_holdings(snapshot):
    """What containers hold by the kubelet's checkpoint: device, memory and its limit."""
    return {
        (holding.pod.uid, holding.container, holding.share.device, holding.share.memory_bytes)
        for holding in ledger_of(snapshot).holdings
        if Source.CHECKPOINT in holding.sources
        and holding.scheme in (Scheme.VOLCANO, Scheme.GPUSHARE)
    }


def test_shares_of_renamed_resources_are_held_as_before(bench):
    before = kubelets_holdings(bench.view())
    assert len(before) > 3
    rename(bench)
    assert kubelets_holdings(bench.view()) == before


@pytest.mark.parametrize("names", [OTHER_NAMES, {"volcano.sh/vgpu-number": "example.com/vgpu"}])
def test_no_rule_evicts_a_healthy_pod_since_its_resource_has_another_name(bench, names):
    policy = Policy(
        modes={
            Rule.RUNNING_WITHOUT_DEVICE: Mode.APPLY,
            Rule.UNOWNED_PROCESS: Mode.APPLY,
            Rule.RECOVER: Mode.APPLY,
        },
        evict_running=True,
        ages=Ages(drift=0.0, clock_skew=0.0),
    )

    def accused():
        seen = bench.observer().view(bench.sim.start + 5)
        plan, _ = make_plan(seen.snapshot, policy, ReconcilerState(), seen.codecs)
        return {
            (entry.finding.rule, entry.finding.object_ref.name)
            for entry in plan.entries
            if entry.finding.rule in policy.modes
        }

    before = accused()
    rename(bench, names)
    assert accused() <= before
