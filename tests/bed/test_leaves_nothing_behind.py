"""The truth about what stays of a session, however it ends: nothing; and about two at once."""

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.bed.workplace import Workplace
from tests.support.environment import ROOT
from tests.support.waiting import WAIT_SECONDS, wait_until

BED = "tests.support.bed.fixtures"

HOLDER = """
import pathlib
from tests.support.bed import objects
from tests.support.waiting import wait_until

def test_hold(api, node, namespace, workplace):
    client = node.cluster.client
    pod = client.create(objects.pod("before", namespace))
    client.wait_for(pod, objects.ready, "Ready")
    pathlib.Path("held").write_text(f"{workplace.number}\\n")
    wait_until(pathlib.Path("go-on").exists, "the file go-on exists", seconds=600)
    api.client.get("/api/v1/namespaces/default")
    pod = client.create(objects.pod("after", namespace))
    client.wait_for(pod, objects.ready, "Ready")
"""


class Session:
    """A pytest of its own; it holds an API server and a pod until the file ``go-on`` exists."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        (folder / "test_holder.py").write_text(HOLDER)
        with (folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "pytest", "-p", BED, "-p", "no:cacheprovider"],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_held(self):
        """The number of its test bed, as soon as it has one with everything running."""

        def number():
            assert self.process.poll() is None, (self.folder / "log").read_text()
            return (self.folder / "held").read_text()

        number_text = wait_until(
            number,
            "the session holds a bed",
            seconds=3 * WAIT_SECONDS,
            failures=(OSError,),
            context=(self.folder / "log").read_text,
        )
        self.number = int(number_text)

    def go_on(self):
        """Let its test end; the exit status."""
        (self.folder / "go-on").touch()
        return self.wait_ended()

    def wait_ended(self):
        """Its exit status."""
        wait_until(
            lambda: self.process.poll() is not None,
            "the session ends",
            seconds=2 * WAIT_SECONDS,
            context=(self.folder / "log").read_text,
        )
        return self.process.returncode

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def sessions(tmp_path):
    """Starts sessions, by name; they end with the test."""
    started = []

    def start(name):
        started.append(Session(tmp_path / name))
        return started[-1]

    yield start
    for session in started:
        session.kill()


def left_of(number):
    """What the machine has of a bed, by kind."""
    folder = Path(tempfile.gettempdir(), f"vgpu-bed-{number}")
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    rules = subprocess.check_output(["iptables-save"], text=True).splitlines()
    cgroups = Path("/sys/fs/cgroup").glob(f"*/vgpu-bed-{number}-*")
    return {
        "folders": [str(folder)] if folder.exists() else [],
        "mounts": [mount for mount in mounts if names(number, mount)],
        "links": [link for _, link in socket.if_nameindex() if names(number, link)],
        "cgroups": [str(cgroup) for cgroup in cgroups],
        "processes": list(processes_of(number)),
        "firewall": [rule for rule in rules if f"10.{180 + number}." in rule],
    }


def names(number, text):
    """Whether a text mentions this bed."""
    return re.search(rf"vgpu-?bed-?{number}(?!\d)", text)


def processes_of(number):
    """Those that name the bed in their command line, or are in its cgroups."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_text().replace("\0", " ")
            cgroups = (process / "cgroup").read_text()
        except OSError:
            continue
        if names(number, command + cgroups):
            yield f"{process.name} {command}"


def nothing_is_left_of(number):
    wait_until(
        lambda: not any(left_of(number).values()),
        "nothing is left",
        context=lambda: str(left_of(number)),
    )


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_session_that_is_ended_by(number, sessions, tools):
    session = sessions("only")
    session.wait_held()
    there = left_of(session.number)
    # A running bed is seen by its processes, not by mounts or rules in the machine's own tables.
    assert {kind for kind, found in there.items() if found} == {
        "folders",
        "links",
        "cgroups",
        "processes",
    }
    assert any("containerd-shim" in process for process in there["processes"])
    session.process.send_signal(number)
    session.wait_ended()
    nothing_is_left_of(session.number)


def test_two_sessions_work_side_by_side(sessions, tools):
    one, two = sessions("one"), sessions("two")
    one.wait_held()
    two.wait_held()
    assert one.number != two.number
    one.kill()
    nothing_is_left_of(one.number)
    assert two.go_on() == 0, (two.folder / "log").read_text()
    nothing_is_left_of(two.number)


def test_what_a_killed_sweeper_left_is_swept_by_the_next(sessions, tools):
    session = sessions("only")
    session.wait_held()
    (sweeper,) = (
        int(process.split()[0])
        for process in processes_of(session.number)
        if "workplace.py" in process
    )
    os.kill(sweeper, signal.SIGKILL)
    session.kill()
    held = Path("/proc/net/unix")
    wait_until(
        lambda: f"@vgpu-bed-{session.number}\n" not in held.read_text(),
        "nobody holds the number",
        context=held.read_text,
    )
    left = left_of(session.number)
    assert left["folders"]
    assert left["cgroups"]
    marker = Path(left["folders"][0], "marker")
    marker.touch()
    with Workplace():
        assert not marker.exists()
        assert not left_of(session.number)["cgroups"]
    nothing_is_left_of(session.number)


def test_a_session_in_another_network_namespace_has_another_number_and_sweeps_nothing_of_ours():
    take = "from tests.support.bed.workplace import Workplace as W\nwith W() as w: print(w.number)"
    with Workplace() as ours:
        marker = ours.subfolder("marker")
        there = subprocess.check_output(
            ["unshare", "--net", sys.executable, "-c", take], cwd=ROOT, text=True
        )
        assert int(there) != ours.number
        assert marker.exists()
    nothing_is_left_of(int(there))
    nothing_is_left_of(ours.number)
