"""The extenders that :mod:`benchmarks.scheduler_cluster` compares, each as a process."""

import os
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import yaml

from tests.cluster.extending import Extender, free_port, request
from tests.support.bed.processes import Daemon

MODES = {"null": None, "single": ("--single",), "leases": ()}
"""Our flags by the name of the extender; the null extender decides nothing."""

LOCKS = ("--original-plugin", "--extender.http-timeout=30s")

FLAGS = {
    **MODES,
    "locks": LOCKS,
    "single-locks": ("--single", *LOCKS),
}
"""The same, with the locks of nodes that original device plugins need."""

NULL_EXTENDER = Path(__file__).with_name("null_extender.py")


class Running(NamedTuple):
    """An extender: its port and process, and the seconds of its start."""

    port: int
    pid: int
    start: float = 0.0

    def cpu(self):
        """Seconds of CPU time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def counted(self, name):
        """The sum of a metric's series so far."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=60) as answer:
            lines = answer.read().decode().splitlines()
        named = [line for line in lines if line.startswith(name)]
        return sum(float(line.rpartition(" ")[2]) for line in named)

    def memory(self):
        """Resident MiB at the peak."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) // 1024


@contextmanager
def extending(cluster, folder, mode, *, rejects=False):
    """An extender."""
    if mode != "null":
        extender = Extender(cluster, folder, *FLAGS[mode])
        started = time.perf_counter()
        with extender:
            yield Running(extender.port, extender.daemon.pid, time.perf_counter() - started)
            extender.daemon.stop()  # politely: the next one need not wait for its Lease
        return
    command = [sys.executable, NULL_EXTENDER, cluster.kubeconfig]
    command += ["--rejects"] * rejects
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield Running(int(process.stdout.readline()), process.pid)
        process.stdin.close()


class Other(NamedTuple):
    """An extender of another project: its command, and its fields in kube-scheduler's file."""

    command: list[str]
    stanza: dict[str, object]


def read_other(path):
    """The extender that a file of YAML describes."""
    described = yaml.safe_load(path.read_text())
    verbs = dict.fromkeys(("prioritizeVerb", "preemptVerb"))
    return Other(described["command"], {**verbs, **described["extender"]})


@contextmanager
def extending_other(cluster, folder, other):
    """An extender of another project; it answers ``/healthz`` when it is there."""
    port = free_port()
    command = [part.replace("{port}", str(port)) for part in other.command]
    environment = {"KUBECONFIG": str(cluster.kubeconfig), "HOME": str(folder)}
    started = time.perf_counter()
    with Daemon("other-extender", command, folder / "extender.log", env=environment) as daemon:
        daemon.wait_until(
            lambda: request(port, "/healthz")[0] == 200, "it answers", failures=(OSError,)
        )
        yield Running(port, daemon.pid, time.perf_counter() - started)
