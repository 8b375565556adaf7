"""What ``vgpu demo`` shows of the other commands, one after the other, with the real client.

`vgpu reconcile` makes a plan and applies it, then makes the next one. `vgpu scheduler` places a few
pods on a node that joins, asked over HTTP as kube-scheduler asks an extender: filter, prioritize
and bind, for one pod after the other. At the end are the commands that the user can try.
"""

import itertools
import json
import os
import shlex
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from scheduler.flags import SchedulerOptions
from scheduler.main import Scheduler
from simulator.demo_cluster import JOINING
from simulator.objects import node_object
from simulator.store import Json, ObjectStore
from vgpu.io import atomic_files
from vgpu.kube.kinds import NODES, PODS
from vgpu.kube.merge_patches import merged
from vgpu.model.units import GIB
from vgpu.placement.dialects import PlacementPolicies
from vgpu.program.exporter_pod import DEMO_PAGE
from vgpu.program.failures import report
from vgpu.program.kube_flags import connected
from vgpu.program.output import say, say_text
from vgpu.program.terminal import BOLD, standard_output, write
from vgpu.schemes.gpushare.annotations import ASSIGNED, INDEX
from vgpu.schemes.gpushare.node import NAMES
from vgpu.web.metrics import LiveMetrics, metrics_page
from vgpu.web.server import WebServer
from vgpucli.bill.day_file import MODE, write_day
from vgpucli.bill.days import days_between
from vgpucli.demo.bill_days import PRICES, MadeUp

UNITS: Final = {"VGPU_VOLCANO_MEMORY_FACTOR": "1024", "VGPU_GPUSHARE_MEMORY_UNIT": "GiB"}
"""The environment variables with the units of the demo's pods."""

_REPAIR: Final = """\
  The node is one of four of a simulated cluster, where things have failed, got
  stuck or been forgotten. A plan is made and applied, then the next one is made:
"""


def audit_of(kubeconfig: str) -> str:
    """The file with what was repaired."""
    return str(Path(kubeconfig).with_name("audit.jsonl"))


def repair(kubeconfig: str, page: str) -> None:
    """Make a plan for the cluster, apply it, and make the next one.

    ``page`` is the node of the exporter and the address of its page: ``NODE=URL``.
    """
    audit = audit_of(kubeconfig)
    say_text(f"{_REPAIR}\n")
    _source(kubeconfig, page)
    _reconcile("apply", "--yes", f"--audit={audit}")
    _reconcile("plan")


def environment_of(kubeconfig: str) -> str:
    """The file that a shell reads to run commands on the simulated cluster."""
    return str(Path(kubeconfig).with_name("env"))


def _source(kubeconfig: str, page: str) -> None:
    """Write that file, and set its variables for the commands that follow."""
    settings = {"KUBECONFIG": kubeconfig, DEMO_PAGE: page, **UNITS}
    lines = [f"export {name}={shlex.quote(text)}\n" for name, text in settings.items()]
    Path(environment_of(kubeconfig)).write_text("".join(lines))
    os.environ.update(settings)
    _show(".", environment_of(kubeconfig))


def _reconcile(*words: str) -> None:
    from reconciler.main import command  # noqa: PLC0415  # the client library is large

    _show("vgpu", "reconcile", *words)
    try:
        command.main([*words], prog_name="vgpu reconcile", standalone_mode=False)
    except click.ClickException as error:
        report(error)
    say()


def _show(*words: str) -> None:
    write(standard_output(), [[(f"$ {shlex.join(words)}", BOLD)]])


SECONDS: Final = 10.0
"""Maximum time to wait for the scheduler, and for each answer, in seconds."""

PAUSE_SECONDS: Final = 0.05
"""Interval between two attempts, in seconds."""

NAMESPACE: Final = "training"

PODS_IN_GIB: Final = {"tokenizer-0": 24, "train-0": 40, "train-1": 48, "train-2": 36}
"""Pods and the memory that each requests. The node's sum suffices for the last one, no GPU does; it
fits once the first one has moved to the other GPU.
"""

_SCHEDULING: Final = """\
  A node with two GPUs of 80 GiB joins. The scheduler is asked as kube-scheduler
  asks an extender (POST /filter, /prioritize, /bind), for one pod after the
  other:
"""


class _Extender(msgspec.Struct, frozen=True):
    """The scheduler's port."""

    address: str

    def post(self, verb: str, body: Json) -> Any:
        """The answer to a verb."""
        return json.loads(self._ask(f"/{verb}", json.dumps(body).encode()))

    def gpus(self, pod: str, node: str) -> list[str]:
        """The lines about the GPUs of a node, from the page about a pod that waits."""
        end = time.monotonic() + SECONDS
        while True:
            try:
                lines = self._ask(f"/explain/{NAMESPACE}/{pod}").decode().splitlines()
            except urllib.error.HTTPError:  # the watch has not shown the pod yet
                if time.monotonic() > end:
                    raise
                time.sleep(PAUSE_SECONDS)
                continue
            of_node = itertools.dropwhile(lambda line: not line.startswith(f"node {node}"), lines)
            next(of_node)
            return list(itertools.takewhile(lambda line: line.startswith("  "), of_node))

    def _ask(self, path: str, body: bytes | None = None) -> bytes:
        url = f"http://{self.address}{path}"
        with urllib.request.urlopen(url, body, timeout=SECONDS) as answer:
            content: bytes = answer.read()
        return content


def schedule(kubeconfig: str, store: ObjectStore) -> None:
    """Place the pods, and print where each of them is."""
    say_text(f"{_SCHEDULING}\n")
    node = store.create(NODES, _joining())
    with _running(kubeconfig) as extender:
        for name, gib in PODS_IN_GIB.items():
            pod = store.create(PODS, _new_pod(name, gib))
            line = _placed(extender, store, pod, node["metadata"]["name"])
            say(*f"    {name:<12}{gib:>3} GiB   {line}".splitlines())
    say()


@contextmanager
def _running(kubeconfig: str) -> Iterator[_Extender]:
    options = SchedulerOptions(
        kubeconfig, "", None, "kube-system", PlacementPolicies(), {"gpushare": GIB}
    )
    with connected(kubeconfig, "", gather=0.0) as api:
        scheduler = Scheduler(
            api, options, lambda tables, view: metrics_page(LiveMetrics(tables, view).body)
        )
        server = WebServer(scheduler.routes(), ["127.0.0.1:0"])
        server.start()
        scheduler.start()
        try:
            if not scheduler.wait(SECONDS):
                raise click.ClickException("the scheduler has not read the simulated cluster")
            yield _Extender(server.addresses[0])
        finally:
            scheduler.stop()
            server.stop()


def _placed(extender: _Extender, store: ObjectStore, pod: Json, node: str) -> str:
    """Place a pod as kube-scheduler does, and begin it; where it is, or why it waits."""
    meta = pod["metadata"]
    query = {"Pod": pod, "Nodes": None, "NodeNames": [node]}
    answer = extender.post("filter", query)
    names = answer["NodeNames"]
    if not names:
        reason = next(iter(answer["FailedNodes"].values()), answer["Error"])
        gpus = extender.gpus(meta["name"], node)
        return "\n".join([f"waits: {reason}", *(f"{'':<23}{line}" for line in gpus)])
    extender.post("prioritize", {**query, "NodeNames": names})
    binding = {"PodName": meta["name"], "PodNamespace": NAMESPACE, "PodUID": meta["uid"]}
    error = extender.post("bind", {**binding, "Node": names[0]})["Error"]
    if error:
        return f"waits: {error}"
    bound = store.get(PODS, NAMESPACE, meta["name"])
    started = {"metadata": {"annotations": {ASSIGNED: "true"}}, "status": {"phase": "Running"}}
    store.patch(PODS, NAMESPACE, meta["name"], started)  # as device plugin and kubelet do
    return f"{bound['spec']['nodeName']}, GPU {bound['metadata']['annotations'][INDEX]}"


def _joining() -> Json:
    """The node as gpushare's plugin registers it."""
    gib = sum(gpu.memory_bytes for gpu in JOINING.gpus) // GIB
    offered = {NAMES.memory: str(gib), NAMES.count: str(len(JOINING.gpus))}
    return merged(node_object(JOINING), {"status": {"capacity": offered, "allocatable": offered}})


def _new_pod(name: str, gib: int) -> Json:
    limits = {NAMES.memory: str(gib)}
    container = {
        "name": "main",
        "image": "registry.example/main:1.0",
        "resources": {"limits": limits, "requests": limits},
    }
    owner, _, _ = name.rpartition("-")
    reference = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": owner, "uid": owner}
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "ownerReferences": [reference | {"controller": True}],
        },
        "spec": {"containers": [container]},
        "status": {"phase": "Pending"},
    }


_WAITING: Final = f"{NAMESPACE}/{list(PODS_IN_GIB)[-1]}"
"""The pod that waits."""


BILLED: Final = ("2026-11-01", "2026-11-08")
"""The first day that is made up for the bill, and the day after the last one."""

PODS_BILLED: Final = 24


def write_bill(folder: Path) -> None:
    """A week of closed days that are made up, and their prices."""
    days = folder / "bill"
    days.mkdir(mode=0o700)
    made_up = MadeUp(PODS_BILLED)
    for day in days_between(*BILLED):
        write_day(days, made_up.day(day))
    atomic_files.write(folder / "prices.yaml", PRICES.encode(), MODE)


def show_more(kubeconfig: str) -> None:
    """Print the commands."""
    write_bill(Path(kubeconfig).parent)
    source = shlex.join((".", environment_of(kubeconfig)))
    lines = [(source, "once in each terminal")]
    lines += [(f"{ourselves()} {words}", why) for words, why in _commands(kubeconfig)]
    width = max(len(line) for line, why in lines if why)
    say("  To try more, type in another terminal, in this folder:")
    for line, why in lines:
        say(f"    {line:<{width}}   # {why}" if why else f"    {line}")
    say()


def _commands(kubeconfig: str) -> Iterator[tuple[str, str]]:
    """The words of each command, and the question that it answers, if they do not say it."""
    audit, folder = audit_of(kubeconfig), Path(kubeconfig).parent
    yield "inspect", "who holds what"
    yield f"explain pod {_WAITING}", "why it waits"
    yield f"fit --pod {_WAITING} --pods 1 --defragment", "what to move, so that it fits"
    yield "doctor", "what is wrong with the installation"
    yield f"reconcile restore {audit} --audit {audit}.restored --yes", ""
    yield "reconcile plan", "what would be repaired again"
    first, until = BILLED
    files = f"--days {folder}/bill --prices {folder}/prices.yaml"
    yield f"bill {files} --from {first} --to {until} --by team", ""


def ourselves() -> str:
    """The command line that calls this program, for the user to repeat."""
    called = Path(sys.argv[0])
    if called.name != "__main__.py":
        return shlex.quote(called.name)
    python = Path(sys.executable)
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    return f"{shlex.quote(str(python))} -m vgpu"
