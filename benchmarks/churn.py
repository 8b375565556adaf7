"""An hour of churn on the test Kubernetes: the scheduler of the chart and two plugins; as root.

    python benchmarks/churn.py [--minutes 60] [--creations 40]

Two nodes with a kubelet and containerd each have four simulated GPUs and our device plugin, one of
Volcano's pods and one of gpushare's. The chart's Deployment has two replicas of the scheduler, and
kube-scheduler asks them as through a Service: each new connection goes to a ready endpoint in turn.
Pods of random sizes come; they end by themselves or are deleted, also before they are bound. Again
and again a plugin is killed, a kubelet is stopped and started, and the Deployment is rolled; the
API server is killed after a third and after two thirds of the time.

Each minute has a line. The exit status is 1 if one of these is not so:

- no GPU is over-reserved: by the sum of the annotations of pods that hold a share after each event
  of a pod, and by that of the claims in the nodes' Leases. Neither uses the product's own reading.
- no pod waits for FITS_SECONDS although it fits: a node offers the resource, and one of its GPUs
  has as much memory free as the pod requests.
- memory and descriptors are level: the most of the last third is that of the second third.
"""

import argparse
import asyncio
import itertools
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from tests.cluster.charting import Chart, install, of_the_bed  # noqa: E402
from tests.cluster.extending import bound, condition_message, kube_scheduler, request  # noqa: E402
from tests.cluster.plugin_kinds import GPU_GIB, KINDS, UNIT_MIB  # noqa: E402
from tests.cluster.scheduled import (  # noqa: E402
    GIB,
    SYSTEM,
    asking,
    holds,
    promised,
    require_no_overcommitment,
)
from tests.support.bed import product  # noqa: E402
from tests.support.bed.cluster import NOT_YET, start_cluster  # noqa: E402
from tests.support.bed.images import bed_images  # noqa: E402
from tests.support.bed.node import Node  # noqa: E402
from tests.support.bed.tools import ToolsMissing, ensure  # noqa: E402
from tests.support.bed.workplace import Workplace  # noqa: E402
from tests.support.waiting import wait_until  # noqa: E402

SYSTEMS = ("volcano", "gpushare")
GPUS = 4
SIZES = (2, 4, 8, 12, 24, 48)
"""GiB that pods request: more than the GPUs have at a time, so that some wait."""

LIFE = (20, 90)
"""Seconds for which a pod runs; every second one is deleted before its end."""

WAIT_SECONDS = 150
"""Seconds after which a pod that is not bound is deleted."""

FITS_SECONDS = 60
"""Maximum time for which a pod waits although it fits, in seconds."""

LOOK_SECONDS = 2.0
PLUGIN_MINUTES, KUBELET_MINUTES, ROLL_MINUTES = 4, 7, 10
"""Intervals between two restarts of a kind."""

SHORT_MINUTES = 30
"""In a shorter run these intervals are shorter."""

LAST_SECONDS = 20
"""Time before the end in which nothing is restarted, in seconds."""

MEMORY_PART, MEMORY_MIB, DESCRIPTORS = 0.1, 8, 8
"""What the last third may have more than the second."""

SCHEDULER = "churn"
EXPIRED = 410


class ServiceProxy(threading.Thread):
    """What kube-proxy does for a Service: each connection goes to one of the ready endpoints."""

    def __init__(self):
        super().__init__(daemon=True)
        self.targets = []
        self.port = 0
        self._turns = itertools.count()
        self._started = threading.Event()

    def start(self):
        super().start()
        self._started.wait()

    def run(self):
        asyncio.run(self._serve())

    async def _serve(self):
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await server.serve_forever()

    async def _connect(self, reader, writer):
        targets = self.targets
        with suppress(OSError):
            if targets:
                target = targets[next(self._turns) % len(targets)]
                other_reader, other_writer = await asyncio.open_connection(*target)
                await asyncio.gather(_copy(reader, other_writer), _copy(other_reader, writer))
        writer.close()


async def _copy(reader, writer):
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


class Churn:
    """The cluster, what happens to it, and what is wrong."""

    def __init__(self, cluster, plugins, namespaces, proxy, args):
        """``namespaces`` are that of the pods and that of the chart's release."""
        self.cluster, self.client, self.plugins = cluster, cluster.client, plugins
        self.namespace, self.home = namespaces
        self.proxy = proxy
        self.path = f"/api/v1/namespaces/{self.namespace}/pods"
        self.seconds, self.creations = 60 * args.minutes, args.creations
        self.random = random.Random(args.seed)
        self.wrong, self.count, self.restarts = [], Counter(), Counter()
        self.refusals = Counter()
        self.longest = 0.0
        self.deadlines, self.fitting, self.counted = {}, {}, set()
        self.levels = []
        self.version = self.client.get(self.path)["metadata"]["resourceVersion"]
        self.events = 0
        self.is_ending = False
        self.started = time.monotonic()

    def minute(self):
        return (time.monotonic() - self.started) / 60

    def report(self, text):
        """Something is not as it must be."""
        self.wrong.append(text)
        print(f"  VIOLATION at {self.minute():.1f} min: {text}", flush=True)

    # ------------------------------------------------------------ what is so after each event

    def pod_events(self):
        """All events of pods, also across restarts of the API server.

        A new API server does not have the newest versions: then the pods are listed, those first
        that hold nothing any more.
        """
        known = {}
        while not self.is_ending:
            try:
                query = {"resourceVersion": self.version, "timeoutSeconds": 30}
                for kind, pod in self.client.watch(self.path, **query):
                    if kind == "ERROR" and pod.get("code") == EXPIRED:
                        yield from self.relisted(known)
                        break
                    self.version = pod["metadata"]["resourceVersion"]
                    self.events += 1
                    known[pod["metadata"]["uid"]] = pod
                    if kind == "DELETED":
                        del known[pod["metadata"]["uid"]]
                    yield kind, pod
            except NOT_YET:
                time.sleep(0.5)

    def relisted(self, known):
        """What a list shows, as events."""
        page = self.client.get(self.path)
        self.version = page["metadata"]["resourceVersion"]
        now = {pod["metadata"]["uid"]: pod for pod in page["items"]}
        for uid in known.keys() - now.keys():
            yield "DELETED", known.pop(uid)
        known.update(now)
        for pod in sorted(now.values(), key=holds):
            yield "MODIFIED", pod

    def watch(self):
        try:
            require_no_overcommitment(self.pod_events(), self.plugins)
        except Exception as error:  # noqa: BLE001 - whatever ends it ends the check
            self.report(f"over-reserved, or unreadable: {error!r}")

    # ------------------------------------------------------------ what is so now and then

    def look(self):
        """Pods that end, that are counted, and that wait although they fit."""
        pods = self.client.list(self.path)
        nodes = {name: plugin.node.object() for name, plugin in self.plugins.items()}
        now = time.monotonic()
        free = self.free(pods)
        waiting = [pod for pod in pods if not bound(pod)]
        for pod in pods:
            self.count_once(pod)
        still = {}
        for pod in waiting:
            uid = pod["metadata"]["uid"]
            if not pod["metadata"].get("deletionTimestamp") and self.fits(pod, free, nodes, pods):
                still[uid] = self.fitting.get(uid, now)
                self.longest = max(self.longest, now - still[uid])
                if now - still[uid] > FITS_SECONDS:
                    name = pod["metadata"]["name"]
                    self.report(
                        f"{name} waits although it fits: {pod['metadata']['labels']},"
                        f" free {free}, {condition_message(pod)}\n{self.explained(pod)}"
                    )
                    still[uid] = now
        self.fitting = still
        self.waiting, self.alive = len(waiting), len(pods)
        self.end_some(pods, now)

    def explained(self, pod):
        """What a replica reports about a pod."""
        path = f"/explain/{self.namespace}/{pod['metadata']['name']}"
        try:
            return request(self.proxy.port, path)[1].decode()
        except OSError as error:
            return repr(error)

    def free(self, pods):
        """GiB of each GPU that no pod's annotations hold."""
        free = {name: [GPU_GIB] * GPUS for name in self.plugins}
        for pod in filter(holds, pods):
            system = pod["metadata"]["labels"][SYSTEM]
            promise = promised(self.plugins[system], pod)
            free[system][promise.gpu] -= promise.gib
        return free

    def fits(self, pod, free, nodes, pods):
        """Whether a pod that waits has a place, by sums alone."""
        system, gib = (pod["metadata"]["labels"][label] for label in (SYSTEM, GIB))
        if max(free[system]) < int(gib):
            return False
        node, name = nodes[system], nodes[system]["metadata"]["name"]
        ready = {each["type"]: each["status"] for each in node["status"]["conditions"]}
        there = [
            each
            for each in pods
            if each["spec"].get("nodeName") == name
            and each["status"].get("phase") not in ("Succeeded", "Failed")
        ]
        return ready["Ready"] == "True" and all(
            amount_of(pod, resource)
            <= int(node["status"]["allocatable"].get(resource, 0))
            - sum(amount_of(each, resource) for each in there)
            for resource in KINDS[system].offered
        )

    def count_once(self, pod):
        """Of each pod: that it was bound, and that it has ended."""
        uid, phase = pod["metadata"]["uid"], pod["status"].get("phase")
        marks = {
            "bound": bound(pod),
            "ended": phase == "Succeeded",
            "refused by a kubelet": phase == "Failed" and "reason" in pod["status"],
        }
        for mark, is_so in marks.items():
            if is_so and (uid, mark) not in self.counted:
                self.counted.add((uid, mark))
                self.count[mark] += 1
                if mark.startswith("refused"):
                    self.refusals[pod["status"]["message"][:120]] += 1

    def end_some(self, pods, now):
        """Delete those that have ended, whose time is over, or that have waited for long."""
        for pod in pods:
            meta = pod["metadata"]
            if meta.get("deletionTimestamp"):
                continue
            until, since = self.deadlines[meta["name"]]
            is_over = pod["status"].get("phase") in ("Succeeded", "Failed")
            if is_over or now > (until if bound(pod) else since + WAIT_SECONDS):
                self.count["deleted"] += not is_over
                self.client.delete(pod, grace_seconds=0 if is_over else 1)

    def create(self, number):
        """One more pod."""
        system = self.random.choice(SYSTEMS)
        seconds = self.random.randint(*LIFE)
        pod = asking(
            system,
            f"p{number}",
            self.namespace,
            self.random.choice(SIZES),
            schedulerName=SCHEDULER,
            restartPolicy="Never",
            terminationGracePeriodSeconds=1,
        )
        pod["spec"]["containers"][0]["command"] = ["sleep", str(seconds)]
        now = time.monotonic()
        kept = seconds / 2 if self.random.random() < 0.5 else 10 * seconds
        self.deadlines[pod["metadata"]["name"]] = now + kept, now
        self.client.create(pod)
        self.count["created"] += 1

    # ------------------------------------------------------------ restarts

    def restart_plugin(self):
        plugin = self.plugins[SYSTEMS[self.restarts["plugin"] % len(SYSTEMS)]]
        plugin.kill()
        plugin.start_plugin()
        self.restarts["plugin"] += 1

    def restart_kubelet(self):
        node = self.plugins[SYSTEMS[self.restarts["kubelet"] % len(SYSTEMS)]].node
        node.restart_kubelet()
        self.restarts["kubelet"] += 1

    def roll(self):
        """As ``kubectl rollout restart`` does."""
        path = f"/apis/apps/v1/namespaces/{self.home}/deployments"
        (deployment,) = self.client.list(path)
        stamp = {"metadata": {"annotations": {"restarted": str(time.time())}}}
        self.client.patch(deployment, {"spec": {"template": stamp}})
        self.restarts["roll"] += 1

    def kill_api(self):
        self.cluster.restart_api()
        self.fitting.clear()  # nothing was decided meanwhile
        self.restarts["API server"] += 1

    def follow_endpoints(self):
        """What the Service has now."""
        path = f"/apis/discovery.k8s.io/v1/namespaces/{self.home}/endpointslices"
        self.proxy.targets = [
            (address, slice_["ports"][0]["port"])
            for slice_ in self.client.list(path)
            for endpoint in slice_.get("endpoints") or ()
            if endpoint["conditions"].get("ready")
            for address in endpoint["addresses"]
        ]

    # ------------------------------------------------------------ once a minute

    def claims(self):
        """The largest sum of claims on one GPU, in GiB, of pods that are not gone."""
        pods = {pod["metadata"]["uid"]: pod for pod in self.client.list(self.path)}
        living = {uid for uid, pod in pods.items() if holds(pod) or not bound(pod)}
        sums = Counter()
        path = f"/apis/coordination.k8s.io/v1/namespaces/{self.home}/leases"
        for lease in self.client.list(path):
            text = (lease["metadata"].get("annotations") or {}).get("vgpu.dev/claims", "{}")
            for uid, claim in json.loads(text).items():
                for share in itertools.chain(*(a["shares"] for a in claim["allocations"])):
                    if uid in living:
                        key = lease["metadata"]["name"], share["device"]
                        sums[key] += share["memory_bytes"] / 2**30
        most = max(sums.values(), default=0)
        if most > GPU_GIB:
            self.report(f"claims of {most} GiB on one GPU of {GPU_GIB}: {dict(sums)}")
        return most

    def measure(self):
        """Resident MiB and descriptors of each program, the most of its processes."""
        levels = {}
        for system, plugin in self.plugins.items():
            for name, figures in processes(plugin.node, system):
                levels[name] = max(figures, levels.get(name, (0, 0)))
        self.levels.append(levels)
        return ", ".join(f"{name} {rss}/{fds}" for name, (rss, fds) in sorted(levels.items()))

    def line(self):
        most = self.claims()
        print(
            f"{self.minute():5.1f} min: created {self.count['created']},"
            f" bound {self.count['bound']}, ended {self.count['ended']},"
            f" deleted {self.count['deleted']}, refused by a kubelet"
            f" {self.count['refused by a kubelet']}; alive {self.alive}, waiting {self.waiting},"
            f" of them fitting now {len(self.fitting)}, longest {self.longest:.0f} s;"
            f" events {self.events}; most claimed of a GPU {most:.0f} of {GPU_GIB} GiB;"
            f" violations {len(self.wrong)};"
            f" MiB/descriptors: {self.measure()}; restarts {dict(self.restarts)}",
            flush=True,
        )

    def require_level(self):
        """Compare the last third with the second."""
        third = len(self.levels) // 3
        if third < 2:
            return
        for name in self.levels[-1]:
            second, last = (
                [each[name] for each in part if name in each]
                for part in (self.levels[third:-third], self.levels[-third:])
            )
            if not second:
                continue
            (rss, fds), (late_rss, late_fds) = (
                map(max, zip(*part, strict=True)) for part in (second, last)
            )
            if name in OURS and late_rss > rss * (1 + MEMORY_PART) + MEMORY_MIB:
                self.report(f"{name}: {late_rss} MiB, after {rss}")
            if name in OURS and late_fds > fds + DESCRIPTORS:
                self.report(f"{name}: {late_fds} descriptors, after {fds}")

    # ------------------------------------------------------------ the whole

    def run(self):
        watcher = threading.Thread(target=self.watch)
        watcher.start()
        minute = min(60, self.seconds / SHORT_MINUTES)
        intervals = {
            self.restart_plugin: PLUGIN_MINUTES * minute,
            self.restart_kubelet: KUBELET_MINUTES * minute,
            self.roll: ROLL_MINUTES * minute,
            self.kill_api: self.seconds / 3,
            self.line: 60,
        }
        due = dict(intervals)
        numbers = itertools.count(1)
        while (passed := time.monotonic() - self.started) < self.seconds:
            try:
                self.follow_endpoints()
                while self.count["created"] < passed * self.creations / 60:
                    self.create(next(numbers))
                self.look()
                for action, interval in intervals.items():
                    if due[action] <= passed < self.seconds - LAST_SECONDS:
                        due[action] += interval
                        action()
            except NOT_YET as error:
                print(f"  {self.minute():.1f} min: {error!r}", flush=True)
            time.sleep(LOOK_SECONDS)
        self.line()
        self.is_ending = True
        watcher.join()
        self.require_level()


OURS = ("scheduler", *(f"plugin of {system}" for system in SYSTEMS))


def processes(node, system):
    """The name, and resident MiB and descriptors, of the programs on a node."""
    for folder in node.path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        with suppress(OSError):  # it has ended
            words = (folder / "cmdline").read_bytes().split(b"\0")
            name = (
                "scheduler"
                if b"scheduler" in words
                else f"plugin of {system}"
                if b"device-plugin" in words
                else f"kubelet of {system}"
                if words[0].endswith(b"/kubelet")
                else ""
            )
            if name:
                status = (folder / "status").read_text()
                rss = int(status.partition("VmRSS:")[2].split()[0]) // 1024
                yield name, (rss, sum(1 for _ in (folder / "fd").iterdir()))


def amount_of(pod, resource):
    """What its container requests."""
    limits = pod["spec"]["containers"][0].get("resources", {}).get("limits") or {}
    return int(limits.get(resource, 0))


def chart_documents(tools, node, home):
    """What the chart makes: two replicas of the scheduler."""
    values = of_the_bed(node) | {
        "exporter": {"enabled": False},
        "reconciler": {"kind": "None"},
        "scheduler": {
            "enabled": True,
            "allowAnonymous": True,
            "extraArgs": [f"--volcano.memory-factor={UNIT_MIB}"],
        },
    }
    chart = Chart(tools.path("helm"))
    return chart.rendered(values, f"--namespace={home}", release=home)


def run(args):
    tools = ensure()
    with ExitStack() as stack:
        workplace = stack.enter_context(Workplace())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        images = bed_images(workplace.folder)
        archive = product.build(
            workplace.folder / "product.tar", product.sources(workplace.folder / "product")
        )
        cluster = stack.enter_context(start_cluster(workplace, tools, controllers=True))
        plugins = {}
        for system in SYSTEMS:
            node = stack.enter_context(Node(cluster, images))
            node.import_image(archive)
            (own := folder / system).mkdir()
            plugins[system] = stack.enter_context(KINDS[system].plugin(node, own, gpus=GPUS))
        for system, plugin in plugins.items():
            KINDS[system].wait_served(plugin)
        home = stack.enter_context(cluster.namespace("vgpu"))
        namespace = stack.enter_context(cluster.namespace("churn"))
        install(cluster.client, chart_documents(tools, node, home))
        proxy = ServiceProxy()
        proxy.start()
        churn = Churn(cluster, plugins, (namespace, home), proxy, args)

        def both_ready():
            churn.follow_endpoints()
            return len(proxy.targets) == 2

        wait_until(both_ready, "two replicas are ready", seconds=300)
        stack.enter_context(kube_scheduler(cluster, folder, SCHEDULER, proxy.port, weight=100))
        churn.started = time.monotonic()
        churn.run()
        for text, times in churn.refusals.most_common():
            print(f"{times} pods refused by a kubelet: {text}")
        print(f"{len(churn.wrong)} violations, {churn.events} events of pods")
        return int(bool(churn.wrong))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--creations", type=float, default=40, help="pods a minute")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    try:
        sys.exit(run(args))
    except ToolsMissing as missing:
        sys.exit(str(missing))


if __name__ == "__main__":
    main()
