"""Pages of device plugins: the plugin's own code over simulated GPUs, and made-up counts of calls.

What is offered, and which GPUs are healthy, the plugin computes from a simulated driver's sample.
Who was answered and refused, and how long it took, is a function of the seconds since it began.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Self

from msgspec import structs

from deviceplugin.adapters.volcano import VolcanoAdapter
from deviceplugin.builders.registry import builder_of
from deviceplugin.health.device_health import Health, heard, seen
from deviceplugin.health.rules import HealthRules
from deviceplugin.kubelet.offers import Offers, gpu_statuses
from deviceplugin.metrics import PluginView, Wait
from deviceplugin.reasons import BindRefusal
from deviceplugin.status_server import routes
from vgpu.model.facts import GpuSample, XidCount
from vgpu.program.process import build_info, process_numbers
from vgpu.schemes.volcano.codec import VOLCANO, Volcano
from vgpu.web.server import WebServer

JOB = "vgpu-device-plugin"

SECONDS_A_POD = 7
"""Interval between two pods that come to a node, in seconds."""

OF_A_POD = {Wait.ALLOCATE: 0.0008, Wait.BIND: 0.021, Wait.PRESTART: 0.016}
"""Seconds that each step takes."""

Seen = Callable[[float], PluginView]


def before_anybody_came(sample: GpuSample, factor: int, *xids: XidCount) -> PluginView:
    """A plugin that has just registered all that it can of these GPUs."""
    health = heard(seen(Health.at_start(), sample, 0.0, HealthRules()), xids, 0.0, HealthRules())
    role = VolcanoAdapter(Volcano(VOLCANO, memory_factor=factor))
    unit_of = partial(builder_of(role.scheme).unit_of, role)
    offers = Offers(role, unit_of, lambda *_: None, lambda _: None)
    devices = offers.update(health)
    events = {(uuid, reason.value): count for (uuid, reason), count in health.events.items()}
    return PluginView(
        scheme="volcano",
        mode="cdi",
        node="",
        ready=True,
        recovered=True,
        offers=offers.rows(dict.fromkeys(offers.servable(), True)),
        gpus=gpu_statuses(devices, health),
        registrations={(resource, "registered"): 1 for resource in offers.servable()},
        allocations={},
        refusals={},
        waits=dict.fromkeys(Wait, (0, 0.0)),
        admitted_pods={"bound": 0, "foreign": 0, "unbooked": 0},
        expecting=0,
        unbound={},
        conflicts=0,
        remarks=0,
        checkpoint_problem="",
        checkpoint_failures=0,
        health_events=events,
        write_counts={},
        requests={("list", "200"): 2, ("watch", "200"): 2},
        build=build_info(),
        own=process_numbers(None)(),
    )


def serving(sample: GpuSample) -> Seen:
    """One that serves its pods."""
    begun = before_anybody_came(sample, factor=16)
    return lambda t: with_pods(begun, t)


def named(seen: Seen, node: str) -> Seen:
    """The same on a node of that name."""
    return lambda t: structs.replace(seen(t), node=node)


def with_pods(begun: PluginView, t: float) -> PluginView:
    """After pods have come and gone for so many seconds."""
    pods = 20 + int(t / SECONDS_A_POD)
    return structs.replace(
        begun,
        allocations={offer.resource: pods for offer in begun.offers if offer.registered},
        waits={step: (pods, pods * seconds) for step, seconds in OF_A_POD.items()},
        admitted_pods={"bound": 4 + pods % 5, "foreign": 1, "unbooked": 0},
        expecting=int(t % SECONDS_A_POD < 1),
        write_counts={
            ("pod", "told"): pods,
            ("lock", "told"): pods,
            ("node", "told"): int(t / 30) + 1,
        },
        requests={**begun.requests, ("patch", "200"): 2 * pods},
    )


def troubled(sample: GpuSample) -> Seen:
    """One that serves, with a GPU lost, a unit that is too small, and pods that have to wait."""
    begun = before_anybody_came(sample, 1, XidCount(sample.gpus[0].uuid, 79, 1, 0.0))

    def view(t: float) -> PluginView:
        return structs.replace(
            with_pods(begun, t),
            refusals={
                ("allocate", BindRefusal.NO_CANDIDATE): 1 + int(t / 60),
                ("bind", BindRefusal.NO_ROOM): 2,
            },
            unbound={BindRefusal.NO_ROOM: 1 + int(t / 90) % 2, BindRefusal.NOT_SEEN: 1},
        )

    return view


def sick(sample: GpuSample) -> Seen:
    """One with all that can be wrong while it serves."""
    xids = (XidCount(sample.gpus[0].uuid, 79, 1, 0.0), XidCount("", 48, 2, 0.0))
    begun = before_anybody_came(sample, 1, *xids)
    cores = "volcano.sh/vgpu-cores"
    offers = tuple(
        structs.replace(each, registered=each.registered and each.resource != cores)
        for each in begun.offers
    )

    def view(t: float) -> PluginView:
        now = int(t) + 5
        return structs.replace(
            begun,
            mode="files",
            ready=False,
            offers=offers,
            registrations={**begun.registrations, (cores, "refused"): now},
            refusals={
                ("allocate", BindRefusal.NO_CANDIDATE): now,
                ("bind", BindRefusal.CROSSED): now,
                ("prestart", BindRefusal.NO_ROOM): now,
            },
            waits=dict.fromkeys(Wait, (now, now * 6.5)),
            unbound={BindRefusal.CROSSED: 1, BindRefusal.NO_ROOM: 2},
            admitted_pods={"bound": 5, "foreign": 3, "unbooked": 1},
            conflicts=2,
            remarks=1,
            checkpoint_failures=now,
            write_counts={("lock", "failed"): now},
        )

    return view


def blind(sample: GpuSample) -> Seen:
    """One that does not know who holds what: its checkpoint is broken, the API server away."""
    begun = before_anybody_came(sample, factor=10)
    lost = structs.replace(
        begun, ready=False, recovered=False, checkpoint_problem="checksum_mismatch"
    )
    return lambda t: structs.replace(lost, requests={("list", "0"): int(t)})


class PretendedPlugin:
    """Serves the page of what is ``seen`` of it."""

    def __init__(self, of_time: Seen) -> None:
        start = time.time()
        self.view = lambda: of_time(time.time() - start)
        self._server = WebServer(routes(self), ["127.0.0.1:0"])

    @property
    def ready(self) -> bool:
        return self.view().ready

    def complaint(self) -> str:
        """Why it is not ready; nothing is wrong with its token."""
        return ""

    @property
    def target(self) -> str:
        """Where Prometheus finds it."""
        return self._server.addresses[0]

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
