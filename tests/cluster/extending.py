"""A real kube-scheduler with our extender, and a proxy between the two that records and breaks.

    with Extender(cluster, folder) as extender, ExtenderProxy(extender.port) as proxy:
        with kube_scheduler(cluster, folder, "ours", proxy.port):
            ...

The extender is the command ``vgpu scheduler`` as a process. Nodes are made by hand: kube-scheduler
needs no kubelet.
"""

import itertools
import json
import random
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from signal import SIGKILL
from typing import Any, NamedTuple, Self

import yaml

from tests.cluster.accounts import account
from tests.cluster.api_relay import ApiRelay
from tests.cluster.killing_proxy import KillingProxy
from tests.support.bed.client import Object, Refused
from tests.support.bed.cluster import Cluster
from tests.support.bed.processes import Daemon
from tests.support.waiting import WAIT_SECONDS
from vgpu.placement.dialects import dialect_rows

RESOURCES = [
    {"name": name, "ignoredByScheduler": is_ignored}
    for row in dialect_rows()
    for name, is_ignored in row.managed.items()
]
"""What the extender manages, as docs/scheduler.md has it."""


RIGHTS = (
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "get", "patch"]},
    {
        "apiGroups": [""],
        "resources": ["namespaces", "resourcequotas"],
        "verbs": ["list", "watch"],
    },
    {"apiGroups": ["policy"], "resources": ["poddisruptionbudgets"], "verbs": ["list"]},
)
LOCK_RIGHTS = (
    {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]},
    {"apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"]},
)
"""Further rights with ``--original-plugin``."""

MAP_RIGHTS = (
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]},
    {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["get", "create", "update"],
    },
)
"""The rights of the program, as docs/scheduler.md has them: in the cluster, and in kube-system."""


def free_port() -> int:
    """A port of the loopback that nobody has now, and that the kernel gives to nobody: a program
    that is started again finds it free.
    """
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", random.randrange(20_000, 30_000)))
            return probe.getsockname()[1]


class Extender:
    """The command ``vgpu scheduler``, while the block lasts."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        *flags: str,
        is_locked: bool = False,
        relay: ApiRelay | KillingProxy | None = None,
    ) -> None:
        """``flags`` are of the command, such as ``--single``; ``relay`` is its API server.

        ``is_locked`` is whether ``flags`` make its port require client certificates: the probes
        then have a port of their own.
        """
        self.port = self.probe_port = free_port()
        if is_locked:
            self.probe_port = free_port()
            flags = (*flags, f"--web.probe-address=127.0.0.1:{self.probe_port}")
        self._folder, self._flags = folder, flags
        client = account(cluster, "scheduler")
        self._kubeconfig = client.kubeconfig
        if relay is not None:
            self._kubeconfig = relay.kubeconfig(client.kubeconfig, folder)
        self._starts = 0
        self._daemon: Daemon | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.daemon.kill()

    @property
    def daemon(self) -> Daemon:
        assert self._daemon is not None
        return self._daemon

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        self.launch()
        self.daemon.wait_until(
            lambda: request(self.probe_port, "/-/ready")[0] == 200, "ready", failures=(OSError,)
        )

    def launch(self) -> None:
        """Start it."""
        self._starts += 1
        command = [
            *(sys.executable, "-m", "vgpu", "scheduler"),
            f"--kubeconfig={self._kubeconfig}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.format=json",
            *self._flags,
        ]
        log = self._folder / f"vgpu-scheduler-{self.port}-{self._starts}.log"
        self._daemon = Daemon(
            "vgpu-scheduler", command, log, env={"MALLOC_ARENA_MAX": "1"}, cwd=Path.cwd()
        )

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.daemon.signal(SIGKILL)
        self.daemon.wait()

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of a page."""
        return request(self.port, path)

    def post(self, path: str, body: Object) -> Any:
        """The answer to a verb."""
        status, answer = request(self.port, path, json.dumps(body).encode())
        assert status == 200, answer
        return json.loads(answer)


def request(port: int, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Status and body of an answer."""
    url = f"http://127.0.0.1:{port}{path}"
    headers = {"Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, body, headers), timeout=WAIT_SECONDS
        ) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


class Exchange(NamedTuple):
    """One request that passed through the proxy, and its answer as the extender gave it."""

    path: str
    body: Object
    answer: Any


class Fault(NamedTuple):
    """What the proxy does to a request: pass it on or not, and answer or not.

    ``gate`` is waited for before it is passed on, and ``late`` before the extender's answer is
    passed back; ``status`` and ``text`` replace parts of the answer. An answer that is ``cut`` ends
    in the middle of its body.
    """

    passes: bool = True
    answers: bool = True
    status: int = 200
    gate: threading.Event | None = None
    late: threading.Event | None = None
    text: bytes | None = None
    cut: bool = False


FINE = Fault()


class ExtenderProxy:
    """Stands between kube-scheduler and the extender, while the block lasts."""

    def __init__(self, target: int) -> None:
        self.targets = itertools.cycle([target])
        self.exchanges: list[Exchange] = []
        self.broken = 0
        self.fault: Callable[[str, Object], Fault] = lambda *_: FINE
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                proxy.serve(self, body)

            def log_message(self, *_: object) -> None:
                """Nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: object) -> None:
                """A client that left."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def of(self, path: str) -> list[Exchange]:
        """The exchanges of one verb so far."""
        return [exchange for exchange in list(self.exchanges) if exchange.path == path]

    def serve(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        """Pass one request on, or break it."""
        sent = json.loads(body)
        fault = self.fault(handler.path, sent)
        if fault._replace(gate=None) != FINE:
            self.broken += 1
        if fault.gate is not None:
            fault.gate.wait(WAIT_SECONDS)
        status, answer = 502, b""
        if fault.passes:
            try:
                status, answer = request(next(self.targets), handler.path, body)
            except OSError:
                fault = fault._replace(answers=False)
            else:
                self.exchanges.append(Exchange(handler.path, sent, json.loads(answer)))
        if fault.late is not None:
            fault.late.wait(WAIT_SECONDS)
        if fault.text is not None:
            answer = fault.text
        if fault.answers:
            handler.send_response(status if fault.status == 200 else fault.status)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Content-Length", str(len(answer)))
            handler.end_headers()
            handler.wfile.write(answer[: len(answer) // 2] if fault.cut else answer)
        if fault.cut or not fault.answers:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def kube_scheduler(
    cluster: Cluster, folder: Path, name: str, port: int, **extender: Any
) -> Iterator[Daemon]:
    """A kube-scheduler for pods with ``schedulerName: <name>``, with one extender."""
    user = cluster.user("system:kube-scheduler")
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(user.kubeconfig), "qps": 300, "burst": 500},
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 2,
        "profiles": [{"schedulerName": name, "percentageOfNodesToScore": 100}],
        "extenders": [
            {
                "urlPrefix": f"http://127.0.0.1:{port}",
                "filterVerb": "filter",
                "prioritizeVerb": "prioritize",
                "preemptVerb": "preempt",
                "bindVerb": "bind",
                "weight": 1,
                "nodeCacheCapable": True,
                "httpTimeout": "5s",
                "managedResources": RESOURCES,
                **extender,
            }
        ],
    }
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(config))
    command = [
        cluster.tools.path("kube-scheduler"),
        f"--config={file}",
        f"--bind-address={cluster.workplace.address}",
        f"--secure-port={cluster.workplace.port()}",
        f"--cert-dir={folder}",
    ]
    with Daemon(f"kube-scheduler-{name}", command, folder / f"{name}.log") as daemon:
        yield daemon


def make_node(
    cluster: Cluster,
    name: str,
    capacity: Mapping[str, int],
    annotations: Mapping[str, str] | None = None,
) -> Object:
    """A node without a kubelet, which takes pods."""
    client = cluster.client
    node = client.create(
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "annotations": dict(annotations or {})},
        }
    )
    amounts = {"cpu": "64", "memory": "256Gi", "pods": "500"}
    amounts |= {key: str(number) for key, number in capacity.items()}
    client.patch(node, {"status": {"capacity": amounts, "allocatable": amounts}}, "status")
    return client.patch(node, {"spec": {"taints": None}})


def remove_nodes(cluster: Cluster, names: Sequence[str]) -> None:
    """Remove nodes and the pods that are bound to them."""
    for name in names:
        try:
            cluster.remove_node(name)
        except Refused as refused:
            if refused.status != 404:
                raise


def priority_class(cluster: Cluster, value: int) -> str:
    """The name of a PriorityClass with this value, which is made if there is none yet."""
    obj = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": f"priority-{value}"},
        "value": value,
    }
    if cluster.client.find(obj) is None:
        cluster.client.create(obj)
    return f"priority-{value}"


def bound(pod: Object) -> bool:
    """Whether a pod is bound."""
    return bool(pod["spec"].get("nodeName"))


def condition_message(pod: Object) -> str:
    """Why kube-scheduler has not bound a pod; "" before it tried."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return condition.get("message", "")
    return ""
