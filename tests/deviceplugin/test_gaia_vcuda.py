"""Registrations of gpu-manager's library over the real socket, and the files that they bring."""

import os
import socket
import stat
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from deviceplugin.gaia import limits_writer, vcuda_server
from deviceplugin.gaia.driver_mirror import DriverSource
from deviceplugin.gaia.limits_writer import PodFiles, pids_of
from deviceplugin.gaia.services import GaiaServices, GaiaSettings, driver_version
from deviceplugin.gaia.vcuda_files import LimitsFolder
from deviceplugin.gaia.vcuda_server import (
    ContainerQuery,
    VcudaRefusal,
    VcudaServers,
    is_answered,
    query_of,
)
from tests.deviceplugin.gaia_host import Host, register
from tests.deviceplugin.gaia_pods import CORE_LIMIT, DEVICES, ROLE, asking
from tests.support.plugin_pods import NODE, admitted_pod_of, no_capacity
from tests.support.waiting import WAIT_SECONDS, wait_ended
from vgpu.model.objects import ContainerState, Status
from vgpu.model.reasons import Reason, SourceError
from vgpu.rpc import vcuda_pb2 as pb
from vgpu.schemes.gaia import vcuda_config
from vgpu.sources.limits import LimitSource

UID = "9a422c32-4fc2-11e9-bb64-505dac4c3a38"
DRIVER = (580, 95)
ID = "ab" * 32
Code = grpc.StatusCode


class Node:
    """A keeper on a host whose API server knows ``pods``."""

    def __init__(self, root, **settings):
        self.host = Host(root, **settings)
        self.pods = {}
        self.driver = DRIVER
        self.start()

    def start(self):
        host = self.host
        self.keeper = GaiaServices(
            GaiaSettings(
                limits_dir=str(host.limits),
                driver_dir=str(host.limits.parent / "vdriver"),
                driver=DriverSource(root=str(host.limits.parent / "no-driver")),
                procfs=str(host.procfs),
                cgroupfs=str(host.cgroupfs),
                log_dir=str(host.log_dir),
            ),
            pod=self.pods.get,
            driver=self.version,
        )
        self.keeper.start()

    def version(self):
        if self.driver is None:
            raise SourceError(Reason.DRIVER_NOT_LOADED, "driver")
        return self.driver

    def restart(self):
        self.keeper.stop()
        self.start()

    def seat(self, pod, bound=("c0",), **fields):
        """The pod is admitted; its containers in ``bound`` are bound."""
        self.pods[pod.kubelet_uid] = pod
        allocations = ROLE.claim(pod, NODE, DEVICES, no_capacity(DEVICES))
        admitted_pod = admitted_pod_of(pod, allocations, bound=bound, **fields)
        self.keeper.serve(admitted_pod)
        return admitted_pod

    def socket(self, uid=UID):
        return self.host.limits / uid / "vcuda.sock"

    def config(self, folder, uid=UID):
        content = (self.host.limits / uid / folder / "vcuda.config").read_bytes()
        return vcuda_config.decode(content)

    def damage(self, folder, uid=UID):
        """The container's limits are cut, so that the next look writes them again."""
        (self.host.limits / uid / folder / "vcuda.config").write_bytes(b"cut")

    def pids(self, folder, uid=UID):
        return vcuda_config.decode_pids(
            (self.host.limits / uid / folder / "pids.config").read_bytes()
        )


@pytest.fixture
def root():
    """A folder whose name is short enough for a pod's socket below it."""
    with tempfile.TemporaryDirectory(prefix="gaia-") as folder:
        yield Path(folder)


@pytest.fixture
def node(root):
    one = Node(root)
    yield one
    one.keeper.stop()


def names(folder):
    return sorted(one.name for one in folder.iterdir())


# ---------------------------------------------------------------- registering


def test_a_container_gets_its_limits_and_its_pids(node):
    """T13: 50 cores and 30 blocks."""
    pod = asking((50, 30), uid=UID)
    node.seat(pod)
    container = node.host.start(pod.ref, "c0", [4711, 12, 4712])
    assert register(node.socket(), pod_uid=UID, container_id=container) is None
    config = node.config(container)
    assert config.memory_bytes == 8_053_063_680
    assert config.cores_limit_percent == 50
    assert (config.pod_uid, config.container, config.driver) == (UID, "c0", DRIVER)
    assert config.enable
    assert node.pids(container) == (12, 4711, 4712)
    raw = (node.host.limits / UID / container / "pids.config").read_bytes()
    assert raw == vcuda_config.encode_pids([12, 4711, 4712])


def test_the_exporter_reads_what_is_written(node):
    pod = asking((50, 30), uid=UID)
    node.seat(pod)
    container = node.host.start(pod.ref, "c0", [7])
    register(node.socket(), pod_uid=UID, container_id=container)
    sample = LimitSource({"gaia": str(node.host.limits), "kubeshare": ""}).sample()
    assert [(one.pod_uid, one.container_id, one.cores_percent) for one in sample.limits] == [
        (UID, container, 50)
    ]


def test_cgroups_of_version_1_are_understood(root):
    node = Node(root, v1=True)
    pod = asking((50, 30), uid=UID)
    node.seat(pod)
    container = node.host.start(pod.ref, "c0", [7])
    assert register(node.socket(), pod_uid=UID, container_id=container) is None
    assert node.pids(container) == (7,)
    node.keeper.stop()


def test_processes_below_a_containers_cgroup_are_the_containers(node):
    pod = asking((50, 30), uid=UID)
    node.seat(pod)
    container = node.host.start(pod.ref, "c0", [7])
    inner = node.host.cgroup(UID, container) / "container/deeper"
    inner.mkdir(parents=True)
    (inner / "cgroup.procs").write_text("9\n")
    register(node.socket(), pod_uid=UID, container_id=container)
    assert node.pids(container) == (7, 9)


def test_processes_are_asked_where_the_cgroups_lie_elsewhere(node):
    """The kubelet uses systemd, and the runtime does not."""
    pod = asking((50, 30), uid=UID)
    node.seat(pod)
    path = f"/system.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice:cri-containerd:{ID}"
    (node.host.procfs / "33").mkdir()
    (node.host.procfs / "33/cgroup").write_text(f"0::{path}\n")
    node.host.link(pod.ref, "c0", ID)
    assert register(node.socket(), pod_uid=UID, container_id=ID) is None
    assert node.pids(ID) == (33,)


def test_looking_through_all_processes_opens_no_descriptor_for_each(root, monkeypatch):
    monkeypatch.setattr(os, "pidfd_open", lambda pid: pytest.fail(f"a descriptor for {pid}"))
    with suppress(SourceError):  # where this test does not see the host's processes
        pids_of(UID, "/proc", str(root))


def test_pids_of_another_namespace_are_an_error(node):
    pod = asking((50, 30), uid=UID)
    node.seat(pod)
    container = node.host.start(pod.ref, "c0", [0])
    code, text = register(node.socket(), pod_uid=UID, container_id=container)
    assert code is Code.UNAVAILABLE
    assert "hostPID" in text


def test_more_processes_than_the_library_counts_are_cut(node):
    pod = asking((50, 30), uid=UID)
    node.seat(pod)
    container = node.host.start(pod.ref, "c0", range(1, 1200))
    register(node.socket(), pod_uid=UID, container_id=container)
    assert node.pids(container) == tuple(range(1, 1025))


def test_each_container_has_its_own_limits(node):
    pod = asking((50, 30), (20, 4), uid=UID)
    node.seat(pod, bound=["c0", "c1"])
    containers = [node.host.start(pod.ref, f"c{at}", [100 + at]) for at in range(2)]
    for container in containers:
        assert register(node.socket(), pod_uid=UID, container_id=container) is None
    assert [node.config(one).utilization_percent for one in containers] == [50, 20]
    assert [node.pids(one) for one in containers] == [(100,), (101,)]


def test_a_soft_limit_is_the_pods_own(node):
    pod = asking((50, 30), uid=UID, annotations={CORE_LIMIT: "80"})
    node.seat(pod)
    container = node.host.start(pod.ref, "c0", [7])
    register(node.socket(), pod_uid=UID, container_id=container)
    config = node.config(container)
    assert (config.hard_limit, config.cores_limit_percent) == (False, 80)


def test_whole_gpus_are_not_limited(node):
    pod = asking((200, 0), uid=UID)
    node.seat(pod)
    container = node.host.start(pod.ref, "c0", [7])
    register(node.socket(), pod_uid=UID, container_id=container)
    assert not node.config(container).enable


def test_an_older_library_asks_by_name(node):
    pod = asking((50, 30), uid=UID)
    node.seat(pod)
    node.host.start(pod.ref, "c0", [7])
    assert register(node.socket(), pod_uid=UID, container_name="c0") is None
    assert node.config("c0").utilization_percent == 50
    assert node.pids("c0") == (7,)


def test_containers_that_ask_by_name_together_all_have_their_files(node):
    """They share looks, of which none may leave out who has asked before it began."""
    pod = asking((10, 4), (10, 4), (10, 4), (10, 4), uid=UID)
    each = [f"c{at}" for at in range(4)]
    node.seat(pod, bound=each)
    for at, name in enumerate(each):
        node.host.start(pod.ref, name, [100 + at])

    def written(name):
        assert register(node.socket(), pod_uid=UID, container_name=name) is None
        return node.pids(name)

    with ThreadPoolExecutor(4) as workers:
        assert list(workers.map(written, each)) == [(100,), (101,), (102,), (103,)]


def test_the_name_may_come_from_the_pods_status(node):
    """The kubelet cuts long links."""
    pod = asking((50, 30), uid=UID)
    node.seat(pod)
    container = node.host.start(pod.ref, "c0", [7], linked=False)
    status = Status("c0", ContainerState.RUNNING, id=container)
    node.pods[UID] = replace(pod, statuses=(status,))
    assert register(node.socket(), pod_uid=UID, container_id=container) is None


def test_a_container_that_is_faster_than_the_kubelet_waits_for_its_name(node):
    pod = asking((50, 30), uid=UID)
    node.seat(pod)
    container = node.host.start(pod.ref, "c0", [7], linked=False)
    threading.Timer(0.5, node.host.link, [pod.ref, "c0", container]).start()
    assert register(node.socket(), pod_uid=UID, container_id=container) is None


def test_many_processes_of_a_container_register_at_once(node):
    """They share looks; each look begins after who waits for it has asked."""
    pod = asking((50, 30), uid=UID)
    node.seat(pod)
    container = node.host.start(pod.ref, "c0", [7])
    with ThreadPoolExecutor(16) as workers:
        asks = [
            workers.submit(register, node.socket(), pod_uid=UID, container_id=container)
            for _ in range(64)
        ]
        assert [one.result() for one in asks] == [None] * 64


def test_a_new_process_is_counted_when_it_has_registered(node):
    pod = asking((50, 30), uid=UID)
    node.seat(pod)
    container = node.host.start(pod.ref, "c0", [7])
    register(node.socket(), pod_uid=UID, container_id=container)
    node.host.put(UID, container, [7, 8])
    register(node.socket(), pod_uid=UID, container_id=container)
    assert node.pids(container) == (7, 8)


def test_limits_are_not_written_again(node):
    pod = asking((50, 30), uid=UID)
    node.seat(pod)
    container = node.host.start(pod.ref, "c0", [7])
    register(node.socket(), pod_uid=UID, container_id=container)
    file = node.host.limits / UID / container / "vcuda.config"
    before = file.stat().st_ino
    node.host.put(UID, container, [8])
    register(node.socket(), pod_uid=UID, container_id=container)
    assert file.stat().st_ino == before


def test_the_folder_of_a_container_that_was_restarted_goes(node):
    pod = asking((50, 30), uid=UID)
    node.seat(pod)
    first = node.host.start(pod.ref, "c0", [7])
    register(node.socket(), pod_uid=UID, container_id=first)
    node.host.end(UID, first)
    second = node.host.start(pod.ref, "c0", [8])
    register(node.socket(), pod_uid=UID, container_id=second)
    assert {one.name for one in (node.host.limits / UID).iterdir()} == {second, "vcuda.sock"}


# ---------------------------------------------------------------- who may not


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"pod_uid": "other", "container_id": ID}, Code.PERMISSION_DENIED),
        ({"pod_uid": "", "container_id": ID}, Code.PERMISSION_DENIED),
        ({"pod_uid": UID}, Code.INVALID_ARGUMENT),
        ({"pod_uid": UID, "container_id": "../../etc"}, Code.INVALID_ARGUMENT),
        ({"pod_uid": UID, "container_id": ID + "\0"}, Code.INVALID_ARGUMENT),
        ({"pod_uid": UID, "container_id": ID.upper()}, Code.INVALID_ARGUMENT),
        ({"pod_uid": UID, "container_name": ".."}, Code.INVALID_ARGUMENT),
        ({"pod_uid": UID, "container_name": "a/b"}, Code.INVALID_ARGUMENT),
        ({"pod_uid": UID, "container_name": "x" * 5000}, Code.INVALID_ARGUMENT),
        ({"pod_uid": UID, "container_id": ID}, Code.NOT_FOUND),
        ({"pod_uid": UID, "container_name": "other"}, Code.NOT_FOUND),
        ({"pod_uid": UID, "container_id": ID, "bus_id": "x" * 20_000}, Code.RESOURCE_EXHAUSTED),
    ],
)
def test_hostile_requests_are_refused_and_leave_nothing(node, fields, code):
    pod = asking((50, 30), uid=UID)
    node.seat(pod)
    answer_code, _ = register(node.socket(), **fields)
    assert answer_code is code
    assert names(node.host.limits) == [UID]
    assert names(node.host.limits / UID) == ["vcuda.sock"]


def test_calls_that_come_together_share_looks(root):
    """A tenant that calls without end costs a few looks a second."""
    looks = []

    def look(uid, by_name):
        looks.append(uid)
        return PodFiles({ID: "c0"})

    servers = VcudaServers(look)
    servers.start()
    servers.open(UID, str(root / "vcuda.sock"))
    begun = time.monotonic()
    with ThreadPoolExecutor(16) as workers:
        asks = [
            workers.submit(register, root / "vcuda.sock", pod_uid=UID, container_id=ID)
            for _ in range(64)
        ]
        assert [one.result() for one in asks] == [None] * 64
    took = time.monotonic() - begun
    servers.stop()
    assert len(looks) <= 2 + took / vcuda_server.PAUSE_SECONDS


def test_connections_that_say_nothing_are_few(root):
    """What one tenant can take of our open files is bounded."""
    servers = VcudaServers(lambda uid, by_name: PodFiles({ID: "c0"}))
    servers.start()
    servers.open(UID, str(root / "hog.sock"))
    servers.open("other", str(root / "other.sock"))
    ours = Path("/proc/self/fd")
    before = len(names(ours))
    with ExitStack() as hogs:
        for _ in range(300):
            hog = hogs.enter_context(socket.socket(socket.AF_UNIX))
            hog.settimeout(WAIT_SECONDS)
            hog.connect(str(root / "hog.sock"))
        assert register(root / "other.sock", pod_uid="other", container_id=ID) is None
        assert len(names(ours)) - before - 300 < 150
    servers.stop()


def test_a_container_of_another_pod_is_not_found(node):
    """The pod is the one whose socket it is."""
    mine = asking((50, 30), uid=UID)
    other = asking((20, 4), uid="11111111-4fc2-11e9-bb64-505dac4c3a38", name="other")
    node.seat(mine)
    node.seat(other)
    container = node.host.start(other.ref, "c0", [7])
    code, _ = register(node.socket(), pod_uid=UID, container_id=container)
    assert code is Code.NOT_FOUND


def test_a_container_without_a_share_is_not_found(node):
    pod = asking((50, 30), (0, 0), uid=UID)
    node.seat(pod)
    container = node.host.start(pod.ref, "c1", [7])
    code, text = register(node.socket(), pod_uid=UID, container_id=container)
    assert code is Code.NOT_FOUND
    assert container in text


def test_a_container_that_nobody_can_name_waits_in_vain(node, monkeypatch):
    monkeypatch.setattr(vcuda_server, "PATIENCE_SECONDS", 0.3)
    pod = asking((50, 30), uid=UID)
    node.seat(pod)
    container = node.host.start(pod.ref, "c0", [7], linked=False)
    code, text = register(node.socket(), pod_uid=UID, container_id=container)
    assert code is Code.UNAVAILABLE
    assert "the kubelet's data does not identify" in text


def test_a_driver_that_does_not_answer_is_reported(node):
    node.driver = None
    pod = asking((50, 30), uid=UID)
    node.seat(pod)
    container = node.host.start(pod.ref, "c0", [7])
    code, text = register(node.socket(), pod_uid=UID, container_id=container)
    assert code is Code.UNAVAILABLE
    assert "kernel module" in text


def test_an_unexpected_error_is_not_shown_to_tenants(tmp_path, caplog):
    def look(uid, by_name):
        raise KeyError(str(tmp_path))

    servers = VcudaServers(look)
    servers.start()
    servers.open(UID, str(tmp_path / "vcuda.sock"))
    code, text = register(tmp_path / "vcuda.sock", pod_uid=UID, container_id=ID)
    servers.stop()
    assert code is Code.INTERNAL
    assert str(tmp_path) not in text
    assert "unexpected error" in caplog.text


@given(
    st.builds(
        pb.VDeviceRequest, pod_uid=st.just(UID), container_name=st.text(), container_id=st.text()
    )
)
def test_any_text_is_a_plain_name_or_refused(request):
    asks = ContainerQuery("", by_name=False)
    with suppress(VcudaRefusal):
        asks = query_of(request, UID)
    assert not set(asks.container) & set("/.\0")
    assert asks.container.isascii()


def test_who_waits_by_name_waits_while_any_container_is_unknown():
    assert not is_answered(ContainerQuery("c0", by_name=True), PodFiles(waiting=frozenset({ID})))
    with pytest.raises(VcudaRefusal):
        is_answered(ContainerQuery("c0", by_name=True), PodFiles(served={ID: "c1"}))


def test_files_under_the_id_are_none_under_the_name():
    by_id = PodFiles(served={ID: "c0"})
    assert is_answered(ContainerQuery(ID, by_name=False), by_id)
    assert not is_answered(ContainerQuery("c0", by_name=True), by_id)
    assert is_answered(
        ContainerQuery("c0", by_name=True), replace(by_id, by_name=frozenset({"c0"}))
    )


# ---------------------------------------------------------------- sockets


def test_any_user_of_the_pod_can_connect_and_read(node):
    """Only root may write, unlike in gpu-manager's folders of mode 0777."""
    pod = asking((50, 30), uid=UID)
    node.seat(pod)
    container = node.host.start(pod.ref, "c0", [7])
    register(node.socket(), pod_uid=UID, container_id=container)

    def mode(*parts):
        return stat.S_IMODE(node.host.limits.joinpath(UID, *parts).stat().st_mode)

    assert mode("vcuda.sock") == 0o666
    assert mode() == mode(container) == 0o755
    assert mode(container, "vcuda.config") == mode(container, "pids.config") == 0o644


def test_a_restarted_plugin_serves_its_admitted_pods_again(node):
    pod = asking((50, 30), uid=UID)
    admitted_pod = node.seat(pod)
    container = node.host.start(pod.ref, "c0", [7])
    node.restart()
    assert register(node.socket(), pod_uid=UID, container_id=container)[0] is Code.UNAVAILABLE
    node.keeper.serve(admitted_pod)
    assert register(node.socket(), pod_uid=UID, container_id=container) is None


def test_the_socket_is_replaced_in_one_step(tmp_path):
    """Who dials while another plugin takes over finds a socket at any time."""
    path = tmp_path / "vcuda.sock"
    missing, done = [], threading.Event()
    servers = [VcudaServers(lambda uid, names: PodFiles({ID: "c0"})) for _ in range(5)]
    for each in servers:
        each.start()
    servers[0].open(UID, str(path))

    def watch():
        while not done.is_set():
            if not path.exists():
                missing.append(path)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for before, after in pairwise(servers):
            after.open(UID, str(path))
            before.stop()
            assert register(path, pod_uid=UID, container_id=ID) is None
    finally:
        done.set()
        wait_ended(watcher, "the watcher ends")
        servers[-1].stop()
    assert missing == []


def test_a_socket_that_was_removed_is_recreated(node):
    admitted_pod = node.seat(asking((50, 30), uid=UID))
    node.socket().unlink()
    node.keeper.serve(admitted_pod)
    assert register(node.socket(), pod_uid=UID, container_id=ID)[0] is Code.NOT_FOUND


def test_an_admitted_pod_that_leaves_takes_its_folder_along(node):
    pod = asking((50, 30), uid=UID)
    node.seat(pod)
    container = node.host.start(pod.ref, "c0", [7])
    register(node.socket(), pod_uid=UID, container_id=container)
    node.keeper.stop_serving(UID)
    assert not (node.host.limits / UID).exists()
    node.keeper.stop_serving(UID)  # again


def test_admitted_pods_of_gpu_manager_are_served_too(node):
    """It is gone, and their library still asks on the socket in their folder."""
    pod = asking((50, 30), uid=UID)
    node.seat(pod, bound=(), foreign=True)
    container = node.host.start(pod.ref, "c0", [7])
    assert register(node.socket(), pod_uid=UID, container_id=container) is None


def test_limits_that_are_there_stay_while_the_pod_is_not_known(node):
    """After a restart, before the API server has answered."""
    pod = asking((50, 30), uid=UID, annotations={CORE_LIMIT: "80"})
    node.seat(pod)
    container = node.host.start(pod.ref, "c0", [7])
    register(node.socket(), pod_uid=UID, container_id=container)
    node.pods.clear()
    assert register(node.socket(), pod_uid=UID, container_id=container) is None
    assert node.config(container).cores_limit_percent == 80


def test_a_limit_that_its_user_broke_stays_what_it_was(node):
    pod = asking((50, 30), uid=UID, annotations={CORE_LIMIT: "80"})
    node.seat(pod)
    container = node.host.start(pod.ref, "c0", [7])
    register(node.socket(), pod_uid=UID, container_id=container)
    node.pods[UID] = asking((50, 30), uid=UID, annotations={CORE_LIMIT: "lots"})
    assert register(node.socket(), pod_uid=UID, container_id=container) is None
    assert node.config(container).cores_limit_percent == 80


@pytest.mark.parametrize("damage", [b"", b"\xff" * 10], ids=["emptied", "cut"])
@pytest.mark.parametrize("file", ["vcuda.config", "pids.config"])
def test_a_damaged_file_is_written_again_without_a_request(node, file, damage):
    pod = asking((50, 30), uid=UID)
    node.seat(pod)
    container = node.host.start(pod.ref, "c0", [7])
    register(node.socket(), pod_uid=UID, container_id=container)
    register(node.socket(), pod_uid=UID, container_name="c0")
    for folder in (container, "c0"):
        (node.host.limits / UID / folder / file).write_bytes(damage)
    node.keeper.repair()
    for folder in (container, "c0"):
        assert node.config(folder).memory_bytes == 8_053_063_680
        assert node.pids(folder) == (7,)


def test_a_damaged_limit_is_not_taken_over_while_the_pod_is_not_known(node):
    pod = asking((50, 30), uid=UID)
    node.seat(pod)
    container = node.host.start(pod.ref, "c0", [7])
    register(node.socket(), pod_uid=UID, container_id=container)
    damaged = node.host.limits / UID / container / "vcuda.config"
    damaged.write_bytes(b"cut")
    node.pods.clear()
    node.keeper.repair()
    assert damaged.read_bytes() == b"cut"
    node.pods[UID] = pod
    node.keeper.repair()
    assert node.config(container).cores_limit_percent == 50


def warnings(caplog):
    return [each.message for each in caplog.records if each.name == limits_writer.__name__]


def test_what_a_tenant_causes_at_each_check_is_logged_once(node, caplog):
    """It may fork, and end, as it likes; and have us look ten times a second."""
    pod = asking((50, 30), uid=UID)
    admitted_pod = node.seat(pod)
    container = node.host.start(pod.ref, "c0", [7])
    register(node.socket(), pod_uid=UID, container_id=container)
    broken = asking((50, 30), uid=UID, annotations={CORE_LIMIT: "lots"})
    for at in range(50):
        node.pods[UID] = broken if at % 2 else pod
        node.host.put(UID, container, range(1, 1200 if at % 3 else 20))
        node.damage(container)
        node.keeper.repair()
        node.keeper.serve(admitted_pod)
    assert sorted(warnings(caplog)) == [
        "more processes than gpu-manager's library counts",
        "the limits of a pod stay what they are",
    ]


def test_a_new_fault_of_a_pod_is_logged(node, caplog):
    pod = asking((50, 30), uid=UID)

    def running():
        admitted_pod = node.seat(pod)
        container = node.host.start(pod.ref, "c0", [7])
        register(node.socket(), pod_uid=UID, container_id=container)
        return admitted_pod, container

    def look(container, text):
        node.pods[UID] = asking((50, 30), uid=UID, annotations={CORE_LIMIT: text})
        node.damage(container)
        node.keeper.repair()
        return len(warnings(caplog))

    _, container = running()
    assert [look(container, text) for text in ("lots", "more", "more")] == [1, 2, 2]
    node.keeper.stop_serving(UID)
    _, container = running()
    assert look(container, "more") == 3  # nothing is kept of a pod that has left


def test_a_folder_too_deep_for_a_socket_is_reported(tmp_path):
    node = Node(tmp_path / ("x" * 60))
    with pytest.raises(OSError, match="longer than"):
        node.seat(asking((50, 30), uid=UID))
    node.keeper.stop()


def test_a_pod_is_not_started_before_the_driver_is_mirrored(node):
    """The folder of limits is there all the same: running containers need it."""
    admitted_pod = node.seat(asking((50, 30), uid=UID))
    with pytest.raises(OSError, match=r"driver|libcuda"):
        node.keeper.bound(admitted_pod)
    assert node.socket().is_socket()


# ---------------------------------------------------------------- the folder


def test_a_reader_finds_whole_files_and_a_lock_keeps_nobody_waiting(tmp_path):
    folder = LimitsFolder(str(tmp_path))
    folder.make(UID)
    folder.write(UID, ID, "pids.config", vcuda_config.encode_pids([1, 2]))
    file = tmp_path / UID / ID / "pids.config"
    halves, done = [], threading.Event()

    def read():
        while not done.is_set():
            if len(file.read_bytes()) not in (8, 4096):
                halves.append(file)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for at in range(200):
            folder.write(
                UID, ID, "pids.config", vcuda_config.encode_pids(range(1, 1025 if at % 2 else 3))
            )
    finally:
        done.set()
        wait_ended(reader, "the reader ends")
    assert halves == []


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/etc", "a\0", "x" * 65, "-", "ä"])
def test_no_name_leads_out_of_the_folder(tmp_path, name):
    folder = LimitsFolder(str(tmp_path / "vm"))
    folder.make(UID)
    for act in (
        folder.make,
        folder.remove,
        folder.socket,
        lambda name: folder.write(UID, name, "vcuda.config", b""),
        lambda name: folder.write(name, ID, "vcuda.config", b""),
    ):
        with pytest.raises(OSError, match="no folder is called"):
            act(name)


def test_links_in_the_place_of_folders_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    folder = LimitsFolder(str(tmp_path / "vm"))
    folder.make(UID)
    (tmp_path / "vm" / UID / ID).symlink_to(outside)
    with pytest.raises(OSError, match=ID):
        folder.write(UID, ID, "vcuda.config", b"x")
    folder.remove(UID)
    (tmp_path / "vm" / UID).symlink_to(outside)
    with pytest.raises(OSError, match="symbolic link"):
        folder.remove(UID)
    assert names(outside) == ["kept"]


STAYS, GONE, GONE_STATIC = UID.replace("9a", "1a"), UID.replace("9a", "2a"), "c0ffee00" * 4


def test_pods_that_are_gone_leave_no_folder(node):
    node.seat(asking((50, 30), uid=UID))
    for gone in (GONE, GONE_STATIC):
        node.host.limits.joinpath(gone, "deep/er").mkdir(parents=True)
    node.host.limits.joinpath(STAYS).mkdir()
    node.host.limits.joinpath("a file").touch()
    node.keeper.prune({UID, STAYS})
    assert names(node.host.limits) == sorted([UID, "a file", STAYS])


@pytest.mark.parametrize("name", ["ssl", "cron.d", "backup-2026", UID.upper(), f"{UID}-old", ID])
def test_a_folder_that_is_no_pods_is_never_removed(node, name):
    """Somebody may have named the wrong folder."""
    kept = node.host.limits / name
    kept.mkdir(parents=True)
    (kept / "file").touch()
    node.keeper.prune(())
    assert names(kept) == ["file"]


def test_a_folder_that_is_not_there_holds_no_pods(tmp_path):
    folder = LimitsFolder(str(tmp_path / "none"))
    assert folder.pods() == ()
    folder.remove(UID)


def test_the_drivers_version_is_read_from_nvml():
    assert driver_version("580.95.05") == (580, 95)
    assert driver_version("535.54") == (535, 54)
    for text in ("", "580", "a.b", "580.95-rc", "1" * 20 + ".1"):
        with pytest.raises(SourceError):
            driver_version(text)


# ---------------------------------------------------------------- size


@pytest.mark.slow
def test_240_sockets_cost_no_threads(tmp_path):
    """With a grpc.Server for each pod there would be a thread for each."""
    servers = VcudaServers(lambda uid, names: PodFiles({ID: "c0"}))
    servers.start()
    threads = len(names(Path("/proc/self/task")))
    for at in range(240):
        servers.open(f"uid-{at}", str(tmp_path / f"{at}.sock"))
    for at in range(240):
        assert register(tmp_path / f"{at}.sock", pod_uid=f"uid-{at}", container_id=ID) is None
    grown = len(names(Path("/proc/self/task"))) - threads
    servers.stop()
    assert grown < 24  # gRPC's own pool, as large as there are cores
