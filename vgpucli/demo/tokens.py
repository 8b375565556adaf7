"""The third GPU of ``vgpu demo``, whose time two pods of KubeShare share by tokens.

``trainer`` requests half of the time and gets four fifths at most; ``notebook`` requests a fifth
and may have all. Both compute without pause, but ``notebook`` rests every other minute: then
``trainer`` is at its limit. While both work, each gets its request, and what is left makes them
equal.

What they get is computed by the token daemon's own code: the files of the tenants, the decisions,
the messages and the page of metrics are those of `vgpu tokens`; in place of its sockets and clock
are processes on a virtual clock, which follows that of the demo.
"""

import heapq
import struct
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Self

import msgspec
from msgspec import structs

from kubeshare.node_files import PORTS
from kubeshare.tenant_identity import TenantEntry
from kubeshare.tokens.frames import QuotaRequest
from kubeshare.tokens.gpu_tokens import Answer, GpuTokens
from kubeshare.tokens.metrics import TABLES
from kubeshare.tokens.scheduler import DEFAULT_RULES
from kubeshare.tokens.server import ServerView
from kubeshare.tokens.tally import no_lags, no_token_switches
from kubeshare.tokens.tenant_files import TenantFiles
from simulator.demo import make_pod, make_share
from simulator.scenario import Process, Scenario, Shape, SimulatedGpu, Waveform, constant
from vgpu.model.names import Scheme
from vgpu.model.units import GIB, MIB
from vgpu.schemes.kubeshare.gemini_config import MANAGER_PORTS, ClientPort, format_ports
from vgpu.web.metrics import LiveMetrics, metrics_page
from vgpu.web.server import WebServer

T4: Final = SimulatedGpu(
    uuid="GPU-2d94c1f7-6a3b-4e58-b0c2-91f5e8d73a16",
    index=2,
    name="Tesla T4",
    pci_bus_id="00000000:CA:00.0",
    memory_bytes=15360 * MIB,
    reserved_bytes=448 * MIB,
    baseline_bytes=16 * MIB,
    idle_watts=10.0,
    limit_watts=70.0,
    sm_hertz=1.59e9,
    memory_hertz=5.001e9,
)

PERIOD_SECONDS: Final = 120.0
"""Time in which ``notebook`` works once and rests once, in seconds."""

WORKS: Final = Waveform(low=0, high=1, period=PERIOD_SECONDS, shape=Shape.BURST)
"""1 while ``notebook`` works."""

TRAINER: Final = make_pod(
    "sharing/trainer-0/trainer",
    Scheme.KUBESHARE,
    (make_share(T4, 6, 80),),
    (
        Process(
            pid=1173309,
            container_pid=9,
            gpu=T4.index,
            data=constant(4 * GIB),
            sm=Waveform(low=0.8, high=0.5, period=PERIOD_SECONDS, shape=Shape.BURST),
        ),
    ),
    cores_request_percent=50,
)
NOTEBOOK: Final = make_pod(
    "sharing/notebook-0/jupyter",
    Scheme.KUBESHARE,
    (make_share(T4, 4, 100),),
    (
        Process(
            pid=1173866,
            container_pid=14,
            gpu=T4.index,
            data=constant(2 * GIB),
            sm=Waveform(low=0, high=0.5, period=PERIOD_SECONDS, shape=Shape.BURST),
        ),
    ),
    cores_request_percent=20,
)


def with_tenants(scenario: Scenario) -> Scenario:
    """The node with this GPU and its pods."""
    return structs.replace(
        scenario,
        gpus=(*scenario.gpus, T4),
        pods=(*scenario.pods, TRAINER, NOTEBOOK),
    )


WARM_UP_SECONDS: Final = 20.0
"""Time for which the pods have shared the GPU when the demo begins, in seconds: two windows."""

BURST: Final = 40_000
"""Time that the GPU works for one step of a program, in microseconds."""

SECOND: Final = 1_000_000


class _SimulatedClient(msgspec.Struct):
    """A process with Gemini's hook; ``works`` is whether it computes at a second of the demo."""

    entry: TenantEntry
    works: Callable[[float], bool]
    messages: int = 0


class TokenSimulation:
    """Two pods on a GPU. Times are microseconds since the pods began. For one thread."""

    def __init__(self, folder: Path) -> None:
        """``folder`` is that of KubeShare's scheduler on the node, with the file of shares."""
        ports = [
            ClientPort(pod.ref.namespace, pod.ref.name, port)
            for pod, port in zip((TRAINER, NOTEBOOK), MANAGER_PORTS, strict=False)
        ]
        (folder / PORTS).mkdir(parents=True, exist_ok=True)
        (folder / PORTS / T4.uuid).write_bytes(format_ports(ports))
        files = TenantFiles(folder)
        entries = tuple(files.read().values())
        self.problems = files.problems
        self._tokens = GpuTokens[int](DEFAULT_RULES, 0)
        self._clients = {
            number: _SimulatedClient(entry, _works if entry.pod == NOTEBOOK.ref.name else _always)
            for number, entry in enumerate(entries)
        }
        self._events: list[tuple[int, int, int]] = []  # time, client, overuse
        self._answered(self._tokens.configure(entries, 0), 0)
        for number, client in self._clients.items():
            self._tokens.connect(client.entry, number, "127.0.0.1")
            heapq.heappush(self._events, (0, number, 0))

    def view(self, now: int) -> ServerView:
        """What the daemon reports at a time, up to which the pods have worked."""
        self._advance(now)
        tenants = tuple(self._tokens.views(now))
        # Nothing was measured: no program runs here.
        lags, token_switches = (
            no_lags().histogram(),
            no_token_switches().histogram(),
        )  # no time of a program
        problem = next(iter(self.problems), "")
        return ServerView(problem, tenants, len(self.problems), 0, lags, token_switches)

    def _advance(self, until: int) -> None:
        while True:
            wake_at = self._tokens.wake_at
            now = min(wake_at, self._events[0][0] if self._events else wake_at)
            if now > until:
                return
            if now == wake_at:
                self._answered(self._tokens.tick(now), now)
            else:
                _, number, overuse = heapq.heappop(self._events)
                self._ask(number, overuse, now)

    def _ask(self, number: int, overuse: int, now: int) -> None:
        client = self._clients[number]
        second = now / SECOND - WARM_UP_SECONDS
        if not client.works(second):
            heapq.heappush(self._events, (now + SECOND // 10, number, 0))
            return
        name = client.entry.name.encode()
        request = QuotaRequest(name, client.messages, overuse / 1000, BURST / 1000)
        client.messages += 1
        self._answered(self._tokens.request(number, request, now), now)

    def _answered(self, answers: Iterable[Answer[int]], now: int) -> None:
        """A process makes the steps that end within its quota, and one in any case."""
        for number, response, _ in answers:
            (milliseconds,) = struct.unpack_from("<d", response, 4)
            quota = round(milliseconds * 1000)
            used = max(1, quota // BURST) * BURST
            heapq.heappush(self._events, (now + used, number, max(0, used - quota)))


def _always(_: float) -> bool:
    return True


def _works(second: float) -> bool:
    return second < 0 or WORKS.value(second) > 0


class DemoTokens:
    """The page of the daemon's metrics, on a port of its own of the loopback interface."""

    def __init__(self, folder: Path, start: float) -> None:
        """``start`` is the unix time of second 0 of the demo."""
        self._simulation = TokenSimulation(folder)
        self._start = start
        self._lock = threading.Lock()
        metrics = LiveMetrics(TABLES, self._view)
        self._server = WebServer({"/metrics": metrics_page(metrics.body)}, ["127.0.0.1:0"])

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{self._server.addresses[0]}/metrics"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def _view(self) -> ServerView:
        with self._lock:
            seconds = time.time() - self._start + WARM_UP_SECONDS
            return self._simulation.view(max(0, int(seconds * SECOND)))
