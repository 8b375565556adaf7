"""The simulated node's files, read back through the real sources."""

import pytest

from simulator.demo import demo
from simulator.node import SimulatedNode, region_path
from simulator.scenario import End, Process, Scenario, SimulatedContainer, SimulatedPod
from simulator.scheme_objects import grants
from simulator.state import alive_at, regions_at, uses_at
from simulator.tree import allocate_response, tree
from tests.support.fleet_node import fleet_node
from vgpu.model.names import Scheme
from vgpu.model.reasons import Reason
from vgpu.schemes.gpushare.codec import limits_from_env
from vgpu.sources.kubelet import KubeletSource
from vgpu.sources.kubelet_checkpoint import environment
from vgpu.sources.limits import LimitSource
from vgpu.sources.pods import PodFile
from vgpu.sources.runtime import ProcessSource
from vgpu.sources.shim import ShimSource

START = 1_790_000_000.0


@pytest.fixture
def node(tmp_path):
    node = SimulatedNode(demo(), tmp_path, START)
    node.write(0)
    return node


def read_regions(node):
    sample = ShimSource(node.paths.shim_roots).sample()
    return {file.path: file for file in sample.files}, sample.rejections


def read_kubelet(node):
    paths = node.paths
    return KubeletSource(paths.log_dir, paths.checkpoint).sample(START)


def read_pods(node):
    return PodFile(node.paths.pods_file, node.scenario.node).sample(START)


def read_processes(node, pids):
    return ProcessSource(node.paths.procfs, node.paths.cgroupfs).sample(pids)


def files_below(folder):
    return {
        path: (path.read_bytes(), path.stat().st_ino)
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


# ---------------------------------------------------------------- regions


@pytest.mark.parametrize("scenario", [demo(), fleet_node(containers=16)], ids=["demo", "fleet"])
def test_regions_read_back_as_the_scenario_has_them(tmp_path, scenario):
    node = SimulatedNode(scenario, tmp_path, START)
    for t in (0, 1, 30.5, 95, 130):
        node.write(t)
        files, rejections = read_regions(node)
        assert rejections == ()
        expected = regions_at(scenario, t, START)
        for pod, container in scenario.containers():
            if container.shim is not None:
                file = files.pop(str(tmp_path / region_path(pod, container)))
                assert (file.pod_uid, file.container) == (pod.ref.uid, container.name)
                assert file.region == expected[container.id]
        assert files == {}


def test_regions_have_their_full_size_and_cost_little_disk(tmp_path):
    node = SimulatedNode(fleet_node(containers=16), tmp_path, START)
    node.write(0)
    regions = list(tmp_path.rglob("*.cache"))
    assert {path.stat().st_size for path in regions} == {2_008_953}
    assert all(path.stat().st_blocks * 512 < 100_000 for path in regions)


def test_regions_are_updated_in_place(node):
    before = {path: path.stat().st_ino for path in node.folder.rglob("*.cache")}
    contents = {path: path.read_bytes() for path in before}
    node.write(7)
    assert {path: path.stat().st_ino for path in node.folder.rglob("*.cache")} == before
    assert {path: path.read_bytes() for path in before} != contents


def test_an_update_leaves_every_seqlock_even_and_moved_on(node):
    pod = next(pod for pod in node.scenario.pods if pod.ref.name == "finetune-0")
    path = node.folder / region_path(pod, pod.containers[0])

    def seqlock():
        return int.from_bytes(path.read_bytes()[1856 + 1936 :][:8], "little")

    first = seqlock()
    node.write(1)
    assert seqlock() > first
    assert seqlock() % 2 == first % 2 == 0


def test_a_damaged_region_is_refused_alone_and_comes_back(node):
    whole = len(read_regions(node)[0])
    (damage,) = node.scenario.damages
    for t in (damage.since, damage.until - 0.1):
        node.write(t)
        files, (rejection,) = read_regions(node)
        assert len(files) == whole - 1
        assert rejection.reason is Reason.UNKNOWN_LAYOUT
    node.write(damage.until)
    files, rejections = read_regions(node)
    assert (len(files), rejections) == (whole, ())


def test_a_node_may_begin_while_a_region_is_damaged(tmp_path):
    scenario = demo()
    node = SimulatedNode(scenario, tmp_path, START)
    node.write(scenario.damages[0].since)
    assert [r.reason for r in read_regions(node)[1]] == [Reason.UNKNOWN_LAYOUT]


# ---------------------------------------------------------------- the kubelet


def test_the_checkpoint_verifies_and_holds_the_grants(node):
    sample = read_kubelet(node)
    assert sample.rejections == ()

    def comparable(grant):
        return (grant.pod_uid, grant.resource, sorted(grant.device_ids), dict(grant.env))

    assert sorted(map(comparable, sample.grants)) == sorted(map(comparable, grants(demo())))


def test_every_pod_that_ran_is_named_by_its_log_folder(node):
    sample = KubeletSource(node.paths.log_dir, None).sample(START)
    ran = {pod.ref for pod in node.scenario.pods if not pod.deleted and pod.phase != "Failed"}
    assert set(sample.pods.values()) == ran
    assert {
        (container_id, name.pod_uid, name.pod, name.container)
        for container_id, name in sample.containers.items()
    } == {
        (container.id, pod.ref.uid, pod.ref.name, container.name)
        for pod, container in node.scenario.containers()
        if pod.ref in ran
    }


def test_the_pods_file_has_phases_and_which_pods_request_a_gpu(node):
    statuses = {status.ref: status for status in read_pods(node).statuses}
    assert statuses.keys() == {pod.ref for pod in node.scenario.pods if not pod.deleted}
    assert all(status.wants_gpu for status in statuses.values())
    assert sorted((s.phase, s.reason) for s in statuses.values() if s.phase != "Running") == [
        ("Failed", "UnexpectedAdmissionError"),
        ("Succeeded", ""),
    ]


def test_the_orphan_is_known_by_its_region_alone(node):
    (deleted,) = (pod for pod in node.scenario.pods if pod.deleted)
    kubelet, (files, _) = read_kubelet(node), read_regions(node)
    assert deleted.ref.uid in {file.pod_uid for file in files.values()}
    assert deleted.ref.uid not in {*kubelet.pods, *read_pods(node).names}
    assert deleted.ref.uid not in read_processes(node, ()).live_pods


def test_gpushare_writes_its_share_into_the_environment(node):
    (grant,) = (g for g in read_kubelet(node).grants if g.resource == "aliyun.com/gpu-mem")
    limits = limits_from_env(grant.env)
    (container,) = (c for _, c in node.scenario.containers() if c.scheme is Scheme.GPUSHARE)
    (share,) = container.shares
    assert limits.container_units * 2**30 == share.memory_bytes
    assert node.scenario.gpus[limits.index].uuid == share.device
    assert len(grant.device_ids) == limits.container_units


@pytest.mark.parametrize("length", [0, 1, 127, 128, 20_000])
def test_an_answer_of_any_length_is_read_back(length):
    env = {"NAME": "v" * length, "n" * (length or 1): "short"}
    assert environment(allocate_response(env)) == env


# ---------------------------------------------------------------- processes


def test_every_process_is_found_in_its_container_or_on_the_host(node):
    alive = alive_at(node.scenario, 0)
    sample = read_processes(node, alive)
    owners = {
        pid: owner and (owner.pod_uid, owner.container_id) for pid, owner in sample.owners.items()
    }
    expected = {process.pid: None for process in node.scenario.host_processes} | {
        process.pid: (pod.ref.uid, container.id)
        for pod, container in node.scenario.containers()
        for process in container.processes
        if process.pid in alive
    }
    assert owners == expected
    assert {owner.runtime for owner in sample.owners.values() if owner} == {"containerd"}
    assert sample.sees_host
    assert sample.rejections == ()


def test_running_pods_and_only_they_have_a_cgroup(node):
    live = read_processes(node, ()).live_pods
    assert live == {pod.ref.uid for pod in node.scenario.pods if pod.running}


def test_a_killed_process_is_gone(node):
    killed = [p.pid for p in node.scenario.processes() if p.end is End.KILLED]
    assert killed
    assert read_processes(node, killed).owners == {}


def test_processes_come_and_go_with_time(tmp_path):
    process = Process(pid=4711, since=10, until=20)
    pod = SimulatedPod(
        ref=demo().pods[0].ref,
        containers=(SimulatedContainer(name="c", id="a" * 64, processes=(process,)),),
    )
    scenario = Scenario(node="n", gpus=(), pods=(pod,))
    node = SimulatedNode(scenario, tmp_path, START)
    seen = []
    for t in (0, 10, 19.9, 20):
        node.write(t)
        sample = read_processes(node, [4711])
        seen.append((4711 in sample.owners, sample.live_pods))
    live = {pod.ref.uid}
    assert seen == [(False, live), (True, live), (True, live), (False, live)]
    assert not (tmp_path / "proc/4711").exists()


# ---------------------------------------------------------------- limit files


def test_limit_files_hold_the_shares_of_gpu_manager_and_kubeshare(node):
    sample = LimitSource(node.paths.limit_dirs).sample()
    assert sample.rejections == ()
    limits = {limit.scheme: limit for limit in sample.limits}
    assert len(sample.limits) == len(limits) == 2
    for pod, container in node.scenario.containers():
        if limit := limits.pop(container.scheme, None):
            (share,) = container.shares
            assert limit.memory_bytes == share.memory_bytes
            assert limit.cores_percent == share.cores_milli // 10
            if limit.scheme is Scheme.GAIA:
                assert (limit.pod_uid, limit.container_id) == (pod.ref.uid, container.id)
                gpu = next(c for c in node.scenario.gpus if c.uuid == share.device)
                assert gpu.pci_bus_id.endswith(limit.pci_bus_id)
            else:
                assert (limit.namespace, limit.pod) == (pod.ref.namespace, pod.ref.name)
                assert limit.device == share.device
                assert limit.cores_request_percent == container.cores_request_percent
    assert limits == {}


# ---------------------------------------------------------------- writing


def test_only_regions_change_while_the_same_processes_live(node):
    before = files_below(node.folder)
    node.write(5)
    changed = {path for path, now in files_below(node.folder).items() if before[path] != now}
    assert changed
    assert {path.suffix for path in changed} == {".cache"}


def test_nothing_is_left_over_from_writing(node):
    node.write(5)
    state = tree(node.scenario, alive_at(node.scenario, 5), START)
    expected = {node.folder / path for path in state.files}
    regions = set(node.folder.rglob("*.cache"))
    assert set(files_below(node.folder)) - regions == expected


def test_the_driver_and_the_files_have_the_same_processes(node):
    used = {
        process.pid: process.used_bytes for process in node.driver(lambda: 0.0).sample(0).processes
    }
    assert used == {use.pid: use.used_bytes for use in uses_at(node.scenario, 0)}
    assert read_processes(node, used).owners.keys() == used.keys()


def test_a_node_of_240_containers_is_read_back_whole(tmp_path):
    node = SimulatedNode(fleet_node(containers=240), tmp_path, START)
    node.write(0)
    files, rejections = read_regions(node)
    assert (len(files), rejections) == (240, ())
    assert len(read_kubelet(node).pods) == len(read_pods(node).pods) == 240
