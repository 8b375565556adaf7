"""Nodes and pods for our scheduler behind a kube-scheduler, and what holds at every moment.

    bed = Placing(api, extender, "ours", namespace)
    replay = Replay(bed)
    ...
    replay.check(lambda pods: all_that_fit(bed, pods))  # after each event up to now

Nodes have two GPUs of 16 GiB, and pods ask for quarters of one.
"""

import json
import random
from concurrent.futures import ThreadPoolExecutor

from tests.cluster.extending import bound, condition_message, make_node
from tests.support.bed import objects
from tests.support.registers import HAMI, hami_gpu, volcano_register
from tests.support.waiting import wait_until
from vgpu.kube.kinds import NODES, PODS
from vgpu.placement.dialects import demand_of, scheduler_schemes
from vgpu.placement.node_view import held_shares, node_view, scheme_of
from vgpu.placement.result import PlacementRefusal

SCHEMES = scheduler_schemes({})
(HAMI_SCHEME,) = (scheme for scheme in SCHEMES if scheme.row.name == "hami")

HAMI_GPUS = [hami_gpu(f"GPU-hami-{number}", number) for number in range(2)]

NODES_OF = {
    "gpushare": ({"aliyun.com/gpu-mem": 32, "aliyun.com/gpu-count": 2}, {}),
    "gaia": ({"tencent.com/vcuda-core": 200, "tencent.com/vcuda-memory": 128}, {}),
    "volcano": (
        {
            "volcano.sh/vgpu-number": 20,
            "volcano.sh/vgpu-memory": 32768,
            "volcano.sh/vgpu-cores": 200,
        },
        volcano_register("GPU-volcano-0", "GPU-volcano-1"),
    ),
    "hami": ({"nvidia.com/gpu": 20}, {HAMI: json.dumps(HAMI_GPUS)}),
}
"""Two GPUs of 16 GiB each: capacity and annotations."""


def limits(system, quarters):
    """What a pod asks for that wants so many quarters of a GPU."""
    return {
        "gpushare": {"aliyun.com/gpu-mem": 4 * quarters},
        "gaia": {"tencent.com/vcuda-core": 25 * quarters, "tencent.com/vcuda-memory": 16 * quarters}
        if quarters < 4
        else {"tencent.com/vcuda-core": 100},
        "volcano": {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 4096 * quarters},
        "hami": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096 * quarters},
    }[system]


def explain_path(pod):
    return f"/explain/{pod['metadata']['namespace']}/{pod['metadata']['name']}"


class Placing:
    """The bed of these tests: nodes by name, the extender, the proxy, pods."""

    def __init__(self, api, extender, proxy, name):
        self.api, self.client = api, api.client
        self.extender, self.proxy, self.name = extender, proxy, name
        self.nodes = []

    def node(self, system, name):
        self.nodes.append(name)
        return make_node(self.api, name, *NODES_OF[system])

    def pod(self, name, namespace, system, quarters, **spec):
        asked = limits(system, quarters)
        return objects.pod(name, namespace, limits=asked, **{"schedulerName": self.name} | spec)

    def start(self, *args, **spec):
        return self.client.create(self.pod(*args, **spec))

    def pods(self, namespace):
        return self.client.list(f"/api/v1/namespaces/{namespace}/pods")

    def wait_bound(self, namespace, count):
        """Until so many pods of a namespace are bound; the pods."""

        def enough():
            pods = self.pods(namespace)
            return pods if sum(map(bound, pods)) >= count else None

        return wait_until(enough, f"{count} pods are bound", context=self.state)

    def wait_refused(self, pod, text):
        self.client.wait_for(
            pod, lambda pod: text in condition_message(pod), f"the condition has {text!r}"
        )

    def state(self):
        """The end of the extender's log, and why pods wait."""
        waiting = [
            f"{condition_message(pod)}\n{self._explained(pod)}"
            for pod in self.pods(self.namespace)
            if not bound(pod)
        ]
        return "\n".join([self.extender.daemon.log(20), *waiting])

    def _explained(self, pod):
        try:
            return self.extender.get(explain_path(pod))[1]
        except OSError as error:
            return error


def as_pod(obj):
    return PODS.one(json.dumps(obj).encode())


def check(placing, pods):
    """What holds at every moment of these pods: no GPU has more than it can hold."""
    views = {}
    for name in placing.nodes:
        node = NODES.one(json.dumps(placing.client.get(f"/api/v1/nodes/{name}")).encode())
        scheme = scheme_of(node, SCHEMES)
        here = [as_pod(pod) for pod in pods if pod["spec"].get("nodeName") == name]
        views[name] = view = node_view(node, scheme, here, (), (), now=0.0)
        assert view.reason is None, view.detail
        for gpu in view.candidate.gpus:
            assert gpu.memory_bytes <= gpu.capacity_bytes, (name, gpu)
            assert gpu.cores_milli <= 1000, (name, gpu)
            assert gpu.device.slots is None or gpu.users <= gpu.device.slots
        for pod in here:  # I2: its annotations name its node, where they name one, and a GPU there
            claim = scheme.codec.claim(pod)
            assert claim.node in ("", name)
            names = {each for gpu in view.candidate.gpus for each in gpu.device.names}
            assert {share.device for share in held_shares(scheme, pod, ())} <= names
    for pod in pods:  # I3: a pod that is not bound has no annotation of ours
        if not bound(pod):
            assert pod["metadata"].get("annotations", {}).keys() <= {"vgpu.dev/retry"}
    return views


def random_pods(bed, count, seed, **spec):
    """Create pods of random sizes for the nodes of the bed, from several threads."""
    draw = random.Random(seed)
    systems = sorted({name.rpartition("-")[0] for name in bed.nodes})
    sizes = [(draw.choice(systems), draw.choice((1, 1, 2, 3))) for _ in range(count)]
    asked = [
        bed.pod(f"r{number}", bed.namespace, system, quarters, **spec)
        for number, (system, quarters) in enumerate(sizes)
    ]
    with ThreadPoolExecutor(8) as threads:
        return list(threads.map(bed.client.create, asked))


class Replay:
    """Watches the pods of a namespace, and checks what holds after each event."""

    def __init__(self, bed):
        self.bed, self.pods = bed, {}
        listed = bed.client.get(f"/api/v1/namespaces/{bed.namespace}/pods")
        self.version = listed["metadata"]["resourceVersion"]

    def check(self, enough):
        """Replay all events up to now; ``enough`` ends the watch."""
        path = f"/api/v1/namespaces/{self.bed.namespace}/pods"
        events = self.bed.client.watch(path, resourceVersion=self.version, timeoutSeconds=60)
        for kind, pod in events:
            self.pods[pod["metadata"]["uid"]] = pod
            if kind == "DELETED":
                del self.pods[pod["metadata"]["uid"]]
            check(self.bed, list(self.pods.values()))
            if enough(self.pods.values()):
                return
        names = sorted(pod["metadata"]["name"] for pod in self.pods.values() if bound(pod))
        raise AssertionError(
            f"the watch ended too early: {len(self.pods)} pods, bound {names}\n{self.bed.state()}"
        )


def all_that_fit(bed, pods):
    """Whether every pod is bound, or refused because no node has room."""
    views = check(bed, list(pods))
    for pod in pods:
        if bound(pod):
            continue
        asked = as_pod(pod)
        for view in views.values():
            scheme = scheme_of(
                NODES.one(
                    json.dumps(bed.client.get(f"/api/v1/nodes/{view.candidate.name}")).encode()
                ),
                SCHEMES,
            )
            found = demand_of(asked, [scheme])
            if isinstance(found, tuple) and not isinstance(
                scheme.dialect.choose(found[1], view.candidate), PlacementRefusal
            ):
                return False
    return True


def labelled(pod):
    return pod["metadata"].get("labels", {}).get("hami.io/vgpu-node")
