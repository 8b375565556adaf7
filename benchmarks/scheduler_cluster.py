"""The scheduler behind a real kube-scheduler, beside an extender that decides nothing; as root.

    python benchmarks/scheduler_cluster.py [--nodes 5000] [--pods 20000] [--placed 300] [--rounds 3]
        [--only rejections] [--rejected 2000]

The cluster is a fleet of the test bed: etcd, an API server and kwok, with Volcano's GPUs. Every
round measures each extender once, in another order, so that other work of the machine hits all of
them: with a kube-scheduler of its own the pods a second between the first binding and the last, of
pods that are there before it starts; then 64 binds at a time, and in turn as many bare Bindings.
At the end each extender rejects pods that fit on no GPU while bound pods change. Its CPU time has
two parts: that of the changes, measured while kube-scheduler is stopped, and that of the requests.
kube-scheduler's back-off and other work of the machine give each extender another number of
requests, so the budget is for an equal number: the null extender's.

A line has the median of the rounds' ratios. Pods are deleted before the next measurement: ours
takes no node with pods that nobody has reserved a GPU for. Everything shares this machine's cores.
"""

import argparse
import json
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from statistics import median
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from benchmarks.budgets import Budgets, load  # noqa: E402
from benchmarks.extenders import MODES, extending  # noqa: E402
from scheduler.cluster.reservations import PREFIX  # noqa: E402
from tests.cluster.extending import kube_scheduler  # noqa: E402
from tests.support.bed import objects  # noqa: E402
from tests.support.bed.fleet import create, start_fleet  # noqa: E402
from tests.support.bed.population import CARD_MIB, Population  # noqa: E402
from tests.support.bed.tools import ToolsMissing, ensure  # noqa: E402
from tests.support.bed.workplace import Workplace  # noqa: E402
from tests.support.waiting import wait_until  # noqa: E402
from vgpu.apiserver import bodies  # noqa: E402
from vgpu.kube.kinds import PODS  # noqa: E402
from vgpu.kube.verbs import BIND  # noqa: E402
from vgpu.model.names import PodRef  # noqa: E402
from vgpu.program.kube_flags import connected  # noqa: E402

NAMESPACE = "team-0"
NUMBER, MEMORY = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"
FITS = {NUMBER: 1, MEMORY: 8000}
FITS_NOWHERE = {NUMBER: 1, MEMORY: CARD_MIB + 1000}
"""More than any GPU has, and less than the sum of a node: kube-scheduler offers every node."""

AT_ONCE, BATCHES = 64, 4
WARM_UP = 2
"""Batches that open the connections to the API server, and are not counted. An extender's binds
arrive one after another, so that one batch opens only some of them."""

EVENTS_A_SECOND = 50
UNBOUND = "spec.nodeName="
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
PLACE_SECONDS = 900
LEAST_PART = {"single": 0.8, "leases": 0.5}
"""Of the null extender's pods a second."""

MOST_BIND = 4.0
"""Times of a bare Binding, at the 99th percentile."""

MOST_START = 10.0
"""Seconds from the start of the process to its first answer."""

MOST_CPU = 2.0
"""Times of the null extender's CPU time while pods are rejected, for its number of requests."""

SETTLE_SECONDS = 3
"""Time for which pods change before CPU time is measured, in seconds."""

FILTERS = 'vgpu_extender_requests_total{verb="filter"'
EVENTS = 'vgpu_extender_api_requests_total{verb="create"'

MOST_MEMORY = 400
"""Resident MiB at the peak."""


def pods(count, prefix, scheduler, limits=FITS):
    return [
        objects.pod(f"{prefix}-{number}", NAMESPACE, limits=limits, schedulerName=scheduler)
        for number in range(count)
    ]


def remove(fleet, prefix):
    """Delete the pods of a measurement."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    gone = [pod for pod in fleet.client.list(path) if pod["metadata"]["name"].startswith(prefix)]
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda pod: fleet.client.delete(pod, grace_seconds=0), gone))


def throughput(fleet, folder, mode, extender, count):
    """Pods a second between the first binding and the last, and the extender's CPU ms of a pod."""
    waiting = {pod["metadata"]["uid"] for pod in create(fleet.client, pods(count, "placed", mode))}
    times = []
    before, until = extender.cpu(), time.monotonic() + PLACE_SECONDS
    with kube_scheduler(fleet.cluster, folder, mode, extender.port):
        while waiting:
            assert time.monotonic() < until, f"{len(waiting)} pods are not bound"
            for pod in states(fleet):
                if pod["spec"].get("nodeName") and pod["metadata"]["uid"] in waiting:
                    waiting.remove(pod["metadata"]["uid"])
                    times.append(time.perf_counter())
                    if not waiting:
                        break
    cpu = 1000 * (extender.cpu() - before) / count
    remove(fleet, "placed")
    return (len(times) - 1) / (times[-1] - times[0]), cpu


def forget_claims(fleet):
    """Remove the Leases of nodes: the next extender would count the pods of the one before, until
    it has asked for each of them.
    """
    for lease in fleet.client.list(LEASES):
        if lease["metadata"]["name"].startswith(PREFIX):
            fleet.client.delete(lease)


def states(fleet):
    """The pods of the namespace, and each change of one, until the server ends the watch.

    It does so early for a reader that it finds too slow.
    """
    path = f"/api/v1/namespaces/{NAMESPACE}/pods"
    page = fleet.client.get(path)
    yield from page["items"]
    version = page["metadata"]["resourceVersion"]
    for _, pod in fleet.client.watch(path, resourceVersion=version, timeoutSeconds=60):
        yield pod


# ---------------------------------------------------------------- binds


def at_once(calls):
    """Milliseconds of each call; all begin together."""
    barrier = threading.Barrier(len(calls))

    def timed(call):
        barrier.wait()
        started = time.perf_counter()
        call()
        return 1000 * (time.perf_counter() - started)

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(timed, calls))


def bind_p99(fleet, api, extender):
    """Milliseconds of a bind by the extender and of a bare Binding, at the 99th percentile."""
    times = {}
    names = cycle(node["metadata"]["name"] for node in fleet.nodes)
    nodes = list(islice(names, AT_ONCE))
    for number in range(WARM_UP + BATCHES):
        for kind, call in (("bind", by_extender(extender.port)), ("bare", bare(api))):
            made = create(fleet.client, pods(AT_ONCE, f"bound-{number}-{kind}", "nobody"))
            refs = [
                PodRef(pod["metadata"]["uid"], NAMESPACE, pod["metadata"]["name"]) for pod in made
            ]
            calls = [
                lambda ref=ref, node=node, call=call: call(ref, node)
                for ref, node in zip(refs, nodes, strict=True)
            ]
            took = at_once(calls)
            if number >= WARM_UP:
                times.setdefault(kind, []).extend(took)
            remove(fleet, "bound")
    return {kind: sorted(took)[int(0.99 * len(took))] for kind, took in times.items()}


def bare(api):
    def send(ref, node):
        body = bodies.binding(ref, "", node, {})
        del body["metadata"]["resourceVersion"]
        api.send(BIND, PODS, ref.namespace, ref.name, body)

    return send


def by_extender(port):
    def send(ref, node):
        body = {
            "PodName": ref.name,
            "PodNamespace": ref.namespace,
            "PodUID": ref.uid,
            "Node": node,
        }
        url = f"http://127.0.0.1:{port}/bind"
        with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=60) as answer:
            error = json.loads(answer.read())["Error"]
        assert not error, error

    return send


# ---------------------------------------------------------------- rejections


@contextmanager
def changing(fleet):
    """Bound pods change, so that kube-scheduler tries rejected pods again."""
    bound = cycle(fleet.client.list("/api/v1/namespaces/team-1/pods", limit=500)[:500])
    ended = threading.Event()

    def change():
        while not ended.wait(1 / EVENTS_A_SECOND):
            annotations = {"example.com/changed": str(time.time())}
            fleet.client.patch(next(bound), {"metadata": {"annotations": annotations}})

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class RejectingCost(NamedTuple):
    """What an extender needs while pods that fit nowhere are tried again and others change.

    ``changes`` and ``rejections`` are seconds of CPU time a second, ``requests`` a second, and
    ``memory`` MiB.
    """

    changes: float
    rejections: float
    requests: float
    memory: int

    @property
    def request(self):
        """Seconds of CPU time of a request."""
        return self.rejections / self.requests

    def beside(self, null):
        """Times of the null extender's CPU time, for its number of requests."""
        return (self.changes + self.request * null.requests) / (null.changes + null.rejections)


def rejecting_cost(fleet, folder, mode, count, seconds):
    """The pods are those of the measurement before, if there was one."""
    name = "rejecting"
    made = fleet.client.list(f"/api/v1/namespaces/{NAMESPACE}/pods", fieldSelector=UNBOUND)
    create(fleet.client, pods(count - len(made), "rejected", name, FITS_NOWHERE))
    with (
        extending(fleet.cluster, folder, mode, rejects=True) as extender,
        kube_scheduler(fleet.cluster, folder, name, extender.port) as scheduler,
    ):
        wait_until(
            lambda: extender.counted(FILTERS) >= count,
            "each was rejected",
            seconds=PLACE_SECONDS,
            pause=1,
        )
        with changing(fleet):
            wait_until(lambda: is_silent(extender), "the events are written", seconds=120)
            rejecting, requests = cpu_share(extender, seconds)
            scheduler.signal(SIGSTOP)
            try:
                time.sleep(SETTLE_SECONDS)
                changes, _ = cpu_share(extender, seconds / 2)
            finally:
                scheduler.signal(SIGCONT)
        return RejectingCost(changes, rejecting - changes, requests, extender.memory())


def is_silent(extender):
    """Whether it writes no events: a pod's first rejection is one, the others are not."""
    before = extender.counted(EVENTS)
    time.sleep(SETTLE_SECONDS)
    return extender.counted(EVENTS) == before


def cpu_share(extender, seconds):
    """CPU time a second, and answers to filter a second."""
    filters, before, started = extender.counted(FILTERS), extender.cpu(), time.perf_counter()
    time.sleep(seconds)
    took = time.perf_counter() - started
    return (extender.cpu() - before) / took, (extender.counted(FILTERS) - filters) / took


# ---------------------------------------------------------------- the whole


def show(what, value, unit, note=""):
    print(f"  {what:44}{value:9.2f} {unit:8}{note}", flush=True)


def measure(population, tools, args):
    budgets = Budgets()

    def hold(*figures):
        print(f"    {budgets.hold(*figures)}", flush=True)

    with (
        Workplace() as workplace,
        tempfile.TemporaryDirectory() as name,
        start_fleet(workplace, tools, population) as fleet,
        connected(str(fleet.cluster.kubeconfig), "", waits=True, connections=AT_ONCE) as api,
    ):
        folder = Path(name)
        fleet.nodes = fleet.client.list("/api/v1/nodes")
        print(f"{population.nodes} nodes, {population.pods} bound pods; load {load()}", flush=True)
        if args.only != "rejections":
            place(fleet, api, folder, args, hold)
        if args.only != "binds":
            reject(fleet, folder, args, hold)
    return budgets.status()


def place(fleet, api, folder, args, hold):
    """The figures of pods that are placed."""
    rounds = [one_round(fleet, api, folder, args.placed, number) for number in range(args.rounds)]
    print(f"  {args.placed} pods are placed")
    for mode in MODES:
        show(f"{mode}: pods a second", of_rounds(rounds, mode, "rate"), "")
        show(f"{mode}: CPU time of a pod", of_rounds(rounds, mode, "cpu"), "ms")
        show(f"{mode}: bind, p99", of_rounds(rounds, mode, "bind"), "ms")
        show("  a bare Binding, p99", of_rounds(rounds, mode, "bare"), "ms")
        times = median(each[mode]["bind"] / each[mode]["bare"] for each in rounds)
        show("  bind of a bare Binding", times, "times")
        if mode == "null":
            continue
        hold(f"{mode}, bind", times, MOST_BIND, "times")
        slower = [each["null"]["rate"] / each[mode]["rate"] for each in rounds]
        part = 1 / median(slower)
        show("  of the null extender's pods a second", part, "")
        hold(f"{mode}, null / own", 1 / part, 1 / LEAST_PART[mode], "times")
        start = min(each[mode]["start"] for each in rounds)
        show(f"{mode}: ready after", start, "s")
        hold(f"{mode}, start", start, MOST_START, "s")


def reject(fleet, folder, args, hold):
    """The figures of pods that are rejected again and again."""
    rounds = [
        {mode: rejecting(fleet, folder, args, mode, number) for mode in in_turn(number)}
        for number in range(args.rounds)
    ]
    remove(fleet, "rejected")
    print(f"  {args.rejected} pods are rejected again and again")
    for mode in MODES:
        costs = [each[mode] for each in rounds]
        show(f"{mode}: requests", median(cost.requests for cost in costs), "a second")
        show("  CPU time of a request", median(1000 * cost.request for cost in costs), "ms")
        changes = median(1000 * cost.changes for cost in costs)
        show(f"  CPU time of {EVENTS_A_SECOND} changes a second", changes, "ms/s")
        if mode == "null":
            continue
        times = median(each[mode].beside(each["null"]) for each in rounds)
        show("  of the null extender's", times, "times")
        hold(f"{mode}, CPU with rejected pods", times, MOST_CPU, "times")
        memory = max(cost.memory for cost in costs)
        show(f"{mode}: resident memory at the peak", memory, "MiB")
        hold(f"{mode}, memory", memory, MOST_MEMORY, "MiB")


def rejecting(fleet, folder, args, mode, number):
    """The cost of an extender in one round."""
    cost = rejecting_cost(fleet, folder, mode, args.rejected, args.seconds)
    print(
        f"  round {number + 1}, {mode:8}requests {cost.requests:.0f}"
        f"  request {1000 * cost.request:.2f}  changes {1000 * cost.changes:.1f}  load {load()}",
        flush=True,
    )
    return cost


def of_rounds(rounds, mode, figure):
    return median(each[mode][figure] for each in rounds)


def in_turn(number):
    """The extenders in the order of a round: another one begins each."""
    modes = list(MODES)
    first = number % len(modes)
    return modes[first:] + modes[:first]


def one_round(fleet, api, folder, placed, number):
    """The figures of each mode; the order of modes differs from round to round."""
    figures = {}
    for mode in in_turn(number):
        with extending(fleet.cluster, folder, mode) as extender:
            rate, cpu = throughput(fleet, folder, mode, extender, placed)
            figures[mode] = {
                "rate": rate,
                "cpu": cpu,
                "start": extender.start,
                **bind_p99(fleet, api, extender),
            }
        forget_claims(fleet)
        row = "  ".join(f"{name} {value:.1f}" for name, value in figures[mode].items())
        print(f"  round {number + 1}, {mode:8}{row}  load {load()}", flush=True)
    return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=20000)
    parser.add_argument("--placed", type=int, default=300, help="pods of one measurement")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("binds", "rejections"), help="one half of the figures")
    parser.add_argument("--rejected", type=int, default=2000, help="pods that fit nowhere")
    parser.add_argument("--seconds", type=float, default=20, help="of the CPU measurement")
    args = parser.parse_args()
    try:
        tools = ensure()
    except ToolsMissing as missing:
        sys.exit(str(missing))
    sys.exit(measure(Population(args.nodes, args.pods), tools, args))


if __name__ == "__main__":
    main()
