"""`vgpu scheduler` on a port, asked as kube-scheduler asks: every test of a verb goes through here.

The bodies are recorded requests of a real kube-scheduler with other pods and nodes in them, over
one connection that is kept open. The program follows no API server: a test sets which objects
events have shown, and does what the program's own threads do. So a request is one step, which is
over with its answer.
"""

import json
import logging
import re

import msgspec

from scheduler.flags import SchedulerOptions
from scheduler.main import Scheduler
from tests.scheduler.model_api import ModelApi
from tests.support.environment import ROOT
from tests.support.waiting import WAIT_SECONDS
from tests.support.web_helpers import connect
from vgpu.kube.kinds import PODS
from vgpu.model.names import ContainerKind
from vgpu.placement.dialects import PlacementPolicies
from vgpu.placement.result import PlacementReason
from vgpu.web.message import plain
from vgpu.web.server import WebServer

GOLDEN = ROOT / "tests" / "golden" / "extender"
FILTER, WHOLE_NODES, BIND, PREEMPT, WHOLE_PODS = (
    (GOLDEN / f"{name}.json").read_bytes()
    for name in ("filter", "filter-whole-nodes", "bind", "preempt", "preempt-whole-pods")
)
RECORDED_FILTER, RECORDED_BIND, RECORDED_PREEMPT = map(json.loads, (FILTER, BIND, PREEMPT))
RECORDED_POD = RECORDED_FILTER["Pod"]
HEAD = (
    b"POST %b HTTP/1.1\r\nHost: localhost\r\nUser-Agent: Go-http-client/1.1\r\n"
    b"Content-Length: %d\r\nContent-Type: application/json\r\nAccept-Encoding: gzip\r\n\r\n"
)
"""As Go sends it."""

LENGTH = re.compile(rb"\r\n(?i:content-length): *(\d+)")

NOW = 1_000_000.0
REASONS = {reason.explanation: reason for reason in PlacementReason}


class Unattached(Scheduler):
    """The program without threads, and without an API server that it follows."""

    problem = ""

    def complaint(self):
        return self.problem


class Defects(logging.Handler):
    """The errors of handlers, which an answer may not have."""

    def __init__(self):
        super().__init__(logging.ERROR)
        self.errors = []

    def emit(self, record):
        self.errors.append(record.exc_info[1] if record.exc_info else record.getMessage())


DEFECTS = Defects()
logging.getLogger("scheduler.routes").addHandler(DEFECTS)


class Served:
    """One process: its cache, its port, and its API server.

    Attributes:
        cache: for events; a verb is asked by a request.
        time: returns unix seconds.
        error: the text of the last answer to bind.
        texts: why each node refused the pod, in the last answer to filter.
    """

    def __init__(
        self,
        api=None,
        clock=lambda: NOW,
        *,
        policies=PlacementPolicies(),  # noqa: B008 - frozen
        units=None,
        leases=False,
        locks=False,
        best_node_only=False,
        http_timeout=0.0,
    ):
        self.api = api if api is not None else ModelApi()
        self.time = clock
        options = SchedulerOptions(
            kubeconfig="",
            context="",
            request_timeout=None,
            lease_namespace="ns",
            policies=policies,
            units=units or {},
            is_single=not leases,
            has_original_plugin=locks,
            offers_best=best_node_only,
            http_timeout=http_timeout,
        )
        self.program = Unattached(
            self.api, options, lambda *_: lambda _: plain(200, ""), clock=clock
        )
        self.cache = self.program.cache
        self.program.waker.pause = 0.0
        self.server = WebServer(self.routes(), ["127.0.0.1:0"])
        self.server.start()
        self._connection = connect(self.server.addresses[0])

    def routes(self):
        return self.program.routes()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.program.locks.close()
        self._connection.close()
        self.server.stop()
        self.program.events.finish(WAIT_SECONDS)

    # ------------------------------------------------------------ requests

    def post(self, path, body, connection=None):
        """The answer to a body, which may be an object. Raises ConnectionError if none comes.

        ``connection`` is another one than that of the other requests.
        """
        connection = connection or self._connection
        sent = body if isinstance(body, bytes) else msgspec.json.encode(body)
        connection.sendall(HEAD % (path.encode(), len(sent)) + sent)
        head, _, text = _received(connection, b"").partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), "kube-scheduler reads no other answer"
        length = int(LENGTH.search(head)[1])
        while len(text) < length:
            text = _received(connection, text)
        if DEFECTS.errors:
            raise AssertionError(path) from DEFECTS.errors.pop()
        return msgspec.json.decode(text)

    def filter(self, pod, names):
        """The nodes that take the pod, and why each of the others does not."""
        answer = self.post("/filter", query(pod, names))
        assert answer["Error"] == ""
        failed = answer["FailedNodes"] | answer["FailedAndUnresolvableNodes"]
        assert sorted([*answer["NodeNames"], *failed]) == sorted(names)
        self.texts = failed
        return answer["NodeNames"], {name: reason_of(text) for name, text in failed.items()}

    def scores(self, pod, names):
        """The score of each node."""
        answer = self.post("/prioritize", query(pod, names))
        return {row["Host"]: row["Score"] for row in answer}

    def bind(self, ref, node):
        """Why the pod is not bound, "" if it is; ``error`` is the text of the answer."""
        before = self.counts()["bind_failures"]
        self.error = self.post("/bind", binding(ref, node))["Error"]
        after = self.counts()["bind_failures"]
        reason, *others = [key for key in after if after[key] > before.get(key, 0)] or [""]
        assert not others
        assert bool(reason) == bool(self.error)
        return reason

    def preempt(self, pod, victims):
        """The UIDs of all victims, by node; ``victims`` are kube-scheduler's."""
        chosen = {
            name: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": 0}
            for name, uids in victims.items()
        }
        body = RECORDED_PREEMPT | {"Pod": as_sent(pod), "NodeNameToMetaVictims": chosen}
        answer = self.post("/preempt", body)["NodeNameToMetaVictims"]
        return {name: [each["UID"] for each in node["Pods"]] for name, node in answer.items()}

    def counts(self):
        """The counters of its page of metrics."""
        return self.program.metrics.counts()

    # ------------------------------------------------------------ what its threads do

    def show_node(self, node):
        """An event of a node."""
        self.cache.set_node(node.name, node)
        self.program.note_node(node.name, node)

    def show(self, name, pod):
        """An event of a pod; what it makes the program hold is written."""
        namespace = pod.ref.namespace if pod is not None else "ns"
        self.cache.set_pod(f"{namespace}/{name}", pod)
        for held in taken(self.program.holder.queue):
            self.program.holder.write(held)

    def settle(self):
        """Check old reservations, ours and other schedulers'."""
        self.program.check_reservations()

    def events(self):
        """The messages of the events of rejected pods; no further one is written."""
        self.program.events.finish(WAIT_SECONDS)
        return [note.message for note in self.api.written_events]

    def labels(self):
        """The labels that wait to be written."""
        return taken(self.program.labeler.queue)

    def relieved(self):
        """The namespaces whose rejected pods wait to be woken."""
        return taken(self.program.reliever.queue)

    def changed(self):
        """The names of the nodes that wait for the waker, which it does not see any more."""
        return taken(self.program.waker.nodes)

    def wake(self):
        """Wake pods for the nodes that wait for the waker; returns how many it has woken by now."""
        for node in self.changed():
            assert self.program.waker.wake_fitting(node)
        return self.program.waker.woken


def _received(connection, text):
    """The text and what comes next."""
    more = connection.recv(1 << 20)
    if not more:
        raise ConnectionError("closed without an answer")
    return text + more


def reason_of(text):
    """The reason in a node's answer, in front of the pods that stand in the way."""
    return REASONS.get(text.partition(": ")[0], text)


def taken(queue):
    """What a worker of this queue would have done by now."""
    items = []
    while len(queue):
        items.append(queue.get())
        queue.done(items[-1])
    return items


def query(pod, names):
    """The recorded request for nodes, for another pod and other nodes."""
    return RECORDED_FILTER | {"Pod": as_sent(pod), "NodeNames": list(names)}


def binding(ref, node):
    """The recorded request to bind, for another pod and another node."""
    named = {"PodName": ref.name, "PodNamespace": ref.namespace, "PodUID": ref.uid, "Node": node}
    return RECORDED_BIND | named


def as_sent(pod):
    """The recorded pod with what is known of another one; a document stays as it is."""
    if isinstance(pod, dict):
        return pod
    containers = [each for each in pod.containers if each.kind is ContainerKind.APP]
    inits = [each for each in pod.containers if each.kind is not ContainerKind.APP]
    document = RECORDED_POD | {
        "metadata": RECORDED_POD["metadata"]
        | {
            "name": pod.ref.name,
            "namespace": pod.ref.namespace,
            "uid": pod.ref.uid,
            "resourceVersion": pod.resource_version,
            "annotations": pod.annotations,
            "labels": pod.labels,
        },
        "spec": RECORDED_POD["spec"]
        | {
            "containers": [_container(each) for each in containers],
            "initContainers": [_container(each) for each in inits],
            "priority": pod.priority,
        },
    }
    if pod.nominated_node:
        document["status"] = RECORDED_POD["status"] | {"nominatedNodeName": pod.nominated_node}
    return document


def _container(container):
    (recorded,) = RECORDED_POD["spec"]["containers"]
    amounts = {name: str(units) for name, units in container.limits.items()}
    sent = recorded | {
        "name": container.name,
        "resources": {"limits": amounts, "requests": amounts},
    }
    is_sidecar = container.kind not in (ContainerKind.APP, ContainerKind.INIT)
    return sent | {"restartPolicy": "Always"} if is_sidecar else sent


def read(pod):
    """A pod's document as the API server's list has it."""
    return PODS.one(json.dumps(as_sent(pod)).encode())


def filler(name, node, index, size, priority=0):
    """A bound pod that holds so many units of a GPU."""
    return PODS.one(
        json.dumps(
            {
                "metadata": {
                    "name": name,
                    "namespace": "ns",
                    "uid": f"uid-{name}",
                    "annotations": {
                        "ALIYUN_COM_GPU_MEM_IDX": str(index),
                        "ALIYUN_COM_GPU_MEM_POD": str(size),
                        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
                        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1",
                    },
                },
                "spec": {
                    "nodeName": node,
                    "priority": priority,
                    "containers": [
                        {
                            "name": "main",
                            "resources": {"limits": {"aliyun.com/gpu-mem": str(size)}},
                        }
                    ],
                },
                "status": {"phase": "Running"},
            }
        ).encode()
    )
