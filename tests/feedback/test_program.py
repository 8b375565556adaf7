"""`vgpu feedback` as a process, on regions of the library's format and a kubelet's checkpoint."""

import base64
import os
import signal
import subprocess
import sys

import pytest

from simulator.tree import allocate_response
from tests.feedback.test_other_monitor import FakeProc
from tests.kubelet.test_checkpoint import checkpoint, entry
from tests.support import regions
from tests.support.bed.processes import Daemon
from tests.support.environment import (
    ROOT,
    required_root,
    required_tool,
    without_pytest_options,
)
from tests.support.live import parse, port_in
from tests.support.waiting import wait_until
from tests.support.web_helpers import fetch
from vgpu.io.writer_lock import WriterLockHeld, writer_lock
from vgpu.ledger.statements import Statement
from vgpu.model.allocation import Share
from vgpu.model.facts import Grant
from vgpu.model.names import PodRef, Source
from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.volcano import hami_core
from vgpu.sources.regions import read_region
from vgpucli.feedback.confirmed_devices import ConfirmedDevices, confirmed_devices
from vgpucli.feedback.feedback_loop import FeedbackLoop
from vgpucli.feedback.metrics import FeedbackState

FRAME = hami_core.LAYOUTS["v1.2"].frame
LAYOUTS = ("v1.2", "v1.1c", "v0", "p0")


class FeedbackNode:
    """A node with a checkpoint and regions: of each pod, its priority is its number."""

    def __init__(self, folder):
        self.folder = folder
        self.proc = FakeProc(folder)
        self.root = self.proc.regions
        self.checkpoint = folder / "kubelet_internal_checkpoint"
        self.paths = {}
        self.granted = {}

    def place(self, pod, *, devices=1, granted=None, layout=None, **fields):
        region = regions.a_region(layout or LAYOUTS[pod % 4], devices=devices, priority=pod)
        self.paths[pod] = regions.place(self.root, region, pod=pod, **fields)
        self.granted[pod] = regions.GPUS[:devices] if granted is None else granted
        self.write_checkpoint()

    def write_checkpoint(self):
        entries = [
            entry(
                PodUID=regions.PODS[pod],
                AllocResp=base64.b64encode(
                    allocate_response({"NVIDIA_VISIBLE_DEVICES": ",".join(gpus)})
                ).decode(),
            )
            for pod, gpus in self.granted.items()
        ]
        new = self.checkpoint.with_name("new")
        new.write_bytes(checkpoint(*entries))
        new.rename(self.checkpoint)

    def launch(self, pod):
        """What the library writes with a kernel launch."""
        frame = hami_core.FRAMES[self.paths[pod].stat().st_size]
        with self.paths[pod].open("r+b") as file:
            regions.put(file.fileno(), [hami_core.recent_kernel_patch(frame, 2)])

    def words(self, pod):
        region = read_region(str(self.paths[pod]))
        return region.recent_kernel, region.utilization_switch

    def flags(self):
        return [
            *("--shim.root", self.root, "--kubelet.checkpoint", self.checkpoint),
            *("--plugin.state-dir", self.folder / "state", "--path.procfs", self.proc.procfs),
            *("--lock-file", self.folder / "run" / "feedback.lock"),
        ]

    def command(self, *more):
        return [sys.executable, "-m", "vgpu", "feedback", *map(str, self.flags()), *more]

    def ended(self, *more, under=()):
        return subprocess.run(
            [*under, *self.command(*more)],
            cwd=ROOT,
            env=without_pytest_options(),
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def node(tmp_path):
    return FeedbackNode(tmp_path)


class LiveFeedback:
    def __init__(self, node):
        self.log_file = node.folder / "log"
        self.process = Daemon(
            "feedback",
            node.command("--web.listen-address", "127.0.0.1:0"),
            self.log_file,
            cwd=ROOT,
        )
        self.port = self.process.wait_until(lambda: port_in(self.log_file.read_text()), "it serves")

    def ask(self, path):
        status, _, body = fetch(f"127.0.0.1:{self.port}", path)
        return status, body.decode()

    def series(self):
        return parse(self.ask("/metrics")[1])


@pytest.fixture
def live():
    started = []

    def start(node):
        started.append(LiveFeedback(node))
        return started[-1]

    yield start
    for each in started:
        if each.process.running:
            each.process.kill()


def test_a_low_priority_is_paused_and_resumed_at_the_end(node, live):
    node.place(0)
    node.place(1)
    node.place(2, granted=())  # nobody has allocated its GPU
    program = live(node)
    program.process.wait_until(lambda: node.words(1) == (-1, 1), "the low priority is blocked")
    program.process.wait_until(
        lambda: program.series().get('vgpu_feedback_containers{state="blocked"}') == 1,
        "the metrics have it",
    )
    assert node.words(0) == (1, 0)
    assert node.words(2) == (2, 1)
    series = program.series()
    assert series["vgpu_feedback_ready"] == 1
    assert series['vgpu_feedback_containers{state="active"}'] == 1
    assert series['vgpu_feedback_containers{state="unconfirmed"}'] == 1
    assert series['vgpu_feedback_writes_total{word="recent_kernel"}'] == 2
    assert program.ask("/-/ready")[0] == 200
    assert program.process.stop(signal.SIGTERM) == 0
    assert [node.words(pod) for pod in (0, 1, 2)] == [(1, 1), (0, 1), (2, 1)]


def test_root_without_capabilities_may_do_all_of_it(node):
    """The library creates regions that everybody may write, for whatever user."""
    required_root()
    setpriv = required_tool("setpriv", "util-linux")
    for pod in (0, 1):
        node.place(pod)
        node.paths[pod].chmod(0o666)
        os.chown(node.paths[pod], 1000 + pod, 1000)
    loop(node, holding(0, 1)).round()
    assert node.words(1) == (-1, 1)
    ended = node.ended(
        "--release", "--yes", under=[setpriv, "--bounding-set=-all", "--no-new-privs"]
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout == "containers released: 2\n"
    assert node.words(1) == (0, 1)


def test_it_is_refused_while_another_one_writes(node):
    with writer_lock(str(node.folder / "run" / "feedback.lock")):
        ended = node.ended()
        assert ended.returncode == 1
        assert "another `vgpu feedback` writes on this node" in ended.stderr
    with writer_lock(str(node.folder / "run" / "feedback.lock")):
        pass  # it is free again


def test_a_lock_is_held_once(tmp_path):
    path = str(tmp_path / "lock")
    with writer_lock(path), pytest.raises(WriterLockHeld), writer_lock(path):
        pass


def test_it_is_refused_beside_the_original_monitor(node):
    node.place(0)
    node.place(1)
    node.proc.process(4711, "vGPUmonitor", [node.proc.host])
    before = [node.words(pod) for pod in (0, 1)]
    for flags in ((), ("--release", "--yes")):
        ended = node.ended(*flags)
        assert ended.returncode == 1
        assert "process 4711 (vGPUmonitor) writes the same words" in ended.stderr
        assert "Traceback" not in ended.stderr
    assert [node.words(pod) for pod in (0, 1)] == before


def test_it_is_refused_without_the_hosts_processes(node):
    (node.proc.procfs / "1" / "comm").unlink()
    (node.proc.procfs / "1" / "mountinfo").unlink()
    (node.proc.procfs / "1").rmdir()
    ended = node.ended()
    assert ended.returncode == 1
    assert "--path.procfs: it is unknown whether HAMi's monitor runs" in ended.stderr


def test_after_a_kill_one_command_resumes_all_containers(node, live):
    node.place(0)
    node.place(1)
    program = live(node)
    program.process.wait_until(lambda: node.words(1)[0] == -1, "the low priority is blocked")
    program.process.kill()
    assert node.words(1)[0] == -1
    unasked = node.ended("--release")
    assert (unasked.returncode, unasked.stdout) == (2, "")
    assert "--yes" in unasked.stderr
    assert node.words(1)[0] == -1
    ended = node.ended("--release", "--yes")
    assert (ended.returncode, ended.stdout) == (0, "containers released: 2\n")
    assert [node.words(pod) for pod in (0, 1)] == [(1, 1), (0, 1)]


# ---------------------------------------------------------------- rounds without a process


class Given:
    """The devices that the node confirms."""

    def __init__(self, devices, problem=""):
        self.devices = devices
        self.problem = problem

    def read(self, now):
        return self.devices


def holding(*pods, gpus=1):
    return Given({(regions.PODS[pod], "main"): frozenset(regions.GPUS[:gpus]) for pod in pods})


def loop(node, devices, **options):
    return FeedbackLoop([str(node.root)], devices, clock=lambda: 1000.0, **options)


def test_a_container_runs_on_when_the_higher_one_is_quiet(node):
    node.place(0)
    node.place(1)
    rounds = loop(node, holding(0, 1))
    rounds.round()
    assert node.words(1) == (-1, 1)
    node.launch(0)
    rounds.round()
    assert node.words(1) == (-1, 1)
    rounds.round()
    assert [node.words(pod) for pod in (0, 1)] == [(0, 0), (0, 0)]
    assert rounds.complaint() == ""
    view = rounds.view()
    assert (view.rounds, view.last_round, view.unlimited) == (3, 1000.0, 2)
    assert view.containers == {FeedbackState.IDLE: 2}


def test_a_region_that_names_the_gpus_of_others_pauses_nobody(node):
    node.place(0, devices=16, granted=())
    node.place(1)
    rounds = loop(node, Given({(regions.PODS[1], "main"): frozenset(regions.GPUS[:1])}))
    rounds.round()
    assert node.words(1) == (1, 0)
    assert node.words(0) == (2, 1)
    assert rounds.view().containers == {FeedbackState.UNCONFIRMED: 1, FeedbackState.ACTIVE: 1}


def test_a_hostile_region_keeps_nobody_else_from_being_served(node):
    node.place(0)
    node.place(1)
    node.place(2)
    os.truncate(node.paths[2], 12)
    rounds = loop(node, holding(0, 1, 2))
    rounds.round()
    assert node.words(1) == (-1, 1)
    assert rounds.complaint() == ""
    assert sum(rounds.view().rejected.values()) == 1


def test_a_checkpoint_that_cannot_be_read_is_a_complaint(node):
    node.place(0)
    rounds = loop(node, Given({}, problem="kubelet_internal_checkpoint: no such file"))
    assert rounds.complaint()
    rounds.round()
    assert rounds.complaint() == "kubelet_internal_checkpoint: no such file"
    assert not rounds.view().ready


def test_when_the_original_monitor_appears_it_ends_and_writes_no_region_any_more(node, monkeypatch):
    monkeypatch.setattr("vgpucli.feedback.feedback_loop.CHECK_SECONDS", 0.0)
    node.place(0)
    node.place(1)
    loop(node, holding(0, 1)).round()
    reasons = []
    rounds = loop(node, holding(0, 1), other_writer=lambda: "it", give_up=reasons.append)
    rounds.start()
    wait_until(lambda: reasons, "it has looked for another monitor")
    assert rounds.stop()
    assert reasons == ["it"]
    assert node.words(1) == (-1, 1)


def test_while_it_is_unknown_whether_the_monitor_runs_it_writes_nothing_and_goes_on(
    node, monkeypatch
):
    monkeypatch.setattr("vgpucli.feedback.feedback_loop.CHECK_SECONDS", 0.0)
    monkeypatch.setattr("vgpucli.feedback.feedback_loop.ROUND_SECONDS", 0.01)
    node.place(0)
    node.place(1)
    problems, reasons = [SourceError(Reason.EXHAUSTED, "/proc")], []

    def other_writer():
        if problems:
            raise problems[0]
        return ""

    rounds = loop(node, holding(0, 1), other_writer=other_writer, give_up=reasons.append)
    rounds.round()
    assert node.words(1) == (-1, 1)
    rounds.start()
    wait_until(lambda: "it is unknown" in rounds.complaint(), "it is not ready")
    wait_until(lambda: node.words(1) == (0, 1), "all are let go")
    assert not rounds.view().ready
    problems.clear()
    wait_until(lambda: rounds.view().ready, "it goes on")
    assert rounds.complaint() == ""
    assert rounds.stop()
    assert reasons == []


def test_release_resumes_the_containers_whose_regions_can_be_written(node):
    node.place(0)
    node.place(1)
    node.place(2)
    rounds = loop(node, holding(0, 1, 2))
    rounds.round()
    os.truncate(node.paths[2], 12)
    assert rounds.release() == 2
    assert [node.words(pod) for pod in (0, 1)] == [(1, 1), (0, 1)]
    assert rounds.release() == 0


def test_devices_are_confirmed_by_both_checkpoints():
    """A container's answer may name no GPU (CDI); no answer of another container counts for it."""
    first, second = regions.GPUS[:2]
    granted = [
        Grant(
            "a", "main", "nvidia.com/gpu", ("x",), {"NVIDIA_VISIBLE_DEVICES": f"{first},{second}"}
        ),
        Grant("b", "main", "volcano.sh/vgpu-number", ("y",), {"NVIDIA_VISIBLE_DEVICES": "void"}),
        Grant("c", "main", "nvidia.com/gpu", ("z",), {"NVIDIA_VISIBLE_DEVICES": "all"}),
    ]
    shares = (Share(second), Share(""))
    own = Statement(Source.OWN_CHECKPOINT, PodRef("b", "", ""), "main", shares)
    assert confirmed_devices(granted, [own]) == {
        ("a", "main"): {first, second},
        ("b", "main"): {second},
        ("c", "main"): frozenset(),
    }


def test_devices_stay_confirmed_while_a_checkpoint_cannot_be_read(node):
    node.place(0)
    devices = ConfirmedDevices(str(node.checkpoint), str(node.folder / "state"), "/proc")
    before = devices.read(1000.0)
    assert before == {(regions.PODS[0], "main"): {regions.GPUS[0]}}
    assert devices.problem == ""
    node.checkpoint.unlink()
    assert devices.read(2000.0) == before
    assert str(node.checkpoint) in devices.problem
    node.write_checkpoint()
    assert devices.read(3000.0) == before
    assert devices.problem == ""
