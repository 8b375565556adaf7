"""A week of 20 pods in Debian's Prometheus: the bill of it, and what was true."""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import pytest

from grafana.recording import COSTS, GROUPS, PRICE
from tests.bill.remote_write import Series, write
from tests.bill.timelines import (
    TOTAL,
    Timeline,
    alive,
    generated,
    sample_times,
    true_seconds,
)
from tests.support.bed.monitoring import Prometheus
from vgpu.sources.http_access import ClientOptions
from vgpucli.bill.day_file import closed_days, path_of, read_day
from vgpucli.bill.day_writer import DayWriter
from vgpucli.bill.measurement import Method
from vgpucli.bill.model import HOUR, SECOND, Part
from vgpucli.bill.prices import Price, PriceTable
from vgpucli.bill.prometheus import BillSource, of_containers
from vgpucli.bill.read import Period, period_charges
from vgpucli.bill.summary import lines
from vgpucli.bill.timeline import BilledContainer, BilledDevice

DAYS = 7
PHASE = 17
UTC = ZoneInfo("UTC")


class WritablePrometheus(Prometheus):
    """One that others write to, and that scrapes nothing."""

    def flags(self) -> list[str]:
        """With the receiver of remote write."""
        return [
            *super().flags(),
            "--web.enable-remote-write-receiver",
            "--query.lookback-delta=1m",  # no scrape ends a series here
        ]


def _target(node: str, *, late: bool) -> dict[str, str]:
    """The exporter's target; later node 0 has another port, and node 1 the address of node 0."""
    instances = {"node-0": "10.0.0.1:9395", "node-1": "10.0.0.1:9394"} if late else {}
    address = instances.get(node, f"10.0.0.{int(node[-1]) + 1}:9394")
    pod = {"namespace": "monitoring", "pod": f"vgpu-exporter-{int(late)}", "container": "exporter"}
    if node == "node-2":
        del pod["container"]
    return {"job": "vgpu", "instance": address, **pod}


def _own(tenant: BilledContainer, target: Mapping[str, str], *, honors: bool) -> dict[str, str]:
    """The labels of a container's series, as Prometheus joins them with those of the target."""
    own = {
        "namespace": tenant.namespace,
        "pod": tenant.pod,
        "container": tenant.container,
        "pod_uid": tenant.pod_uid,
    }
    if honors:
        return {**target, **own}
    return {**{f"exported_{k}" if k in target else k: v for k, v in own.items()}, **target}


def _samples(timeline: Timeline) -> Iterator[Series]:
    """What is written. Node 0 has ``honor_labels``, node 1 only later; node 2 has it not.

    No reconciler is scraped in some hours of each day.
    """
    scrapes = [*sample_times(timeline.start, timeline.end, PHASE)]
    for late in (False, True):
        half = [at for at in scrapes if (at > timeline.middle) == late]
        seen: dict[str, set[int]] = {}
        for device, node in timeline.devices.items():
            times = [at for at in half if timeline.exporting(device, at)]
            seen.setdefault(node, set()).update(times)
            target = _target(node, late=late)
            labels = {**target, "uuid": device.uuid}
            parent = timeline.instances.get(device)
            mig = {"parent_uuid": parent.uuid, "mig_profile": "1g.10gb"} if parent else {}
            yield _series("vgpu_gpu_memory_total_bytes", labels, times, TOTAL)
            yield _series("vgpu_gpu_info", {**labels, "model": "A100", **mig}, times, 1)
            for tenant in timeline.tenants:
                if tenant.device != device:
                    continue
                there = [at for at in times if alive(tenant.runs, at)]
                honors = node == "node-0" or (node == "node-1" and late)
                of_tenant = {**_own(tenant.name, target, honors=honors), "uuid": device.uuid}
                for name, value in (
                    ("memory_allocated_bytes", tenant.memory and tenant.memory * TOTAL),
                    ("core_allocated_ratio", tenant.cores),
                    ("shares_allocated", 1),
                    ("memory_used_bytes", tenant.memory_use * TOTAL),
                    ("sm_utilization_ratio", tenant.core_use),
                ):
                    if value is not None:
                        yield _series(f"vgpu_container_{name}", of_tenant, there, value)
        for node, at_any in seen.items():
            labels = {**_target(node, late=late), "node": node}
            yield _series("vgpu_node_info", labels, sorted(at_any), 1)
    hourly = [*range(timeline.start + PHASE, timeline.end, 3600)]
    reconciled = [at for at in hourly if at % 86_400 // 3600 not in (0, 7, 8, 9, 23)]
    for number in range(3):
        team = {"job": "vgpu-reconciler", "namespace": f"team-{number}", "team": f"d{number % 2}"}
        yield _series("vgpu_reconcile_namespace_info", team, reconciled, 1)
    for tenant in timeline.tenants:
        replicas = f"{tenant.name.pod}-7f"
        of = {"namespace": tenant.name.namespace}
        pod = {**of, "pod": tenant.name.pod, "uid": tenant.name.pod_uid}
        owner = {"owner_kind": "ReplicaSet", "owner_name": replicas}
        yield _series("kube_pod_owner", {**pod, **owner}, hourly[::6], 1)
        owner = {"owner_kind": "Deployment", "owner_name": tenant.name.pod}
        yield _series("kube_replicaset_owner", {**of, "replicaset": replicas, **owner}, hourly, 1)


def _series(name: str, labels: Mapping[str, str], times: Sequence[int], value: float) -> Series:
    return {"__name__": name, **labels}, [(at * 1000, value) for at in times]


class Week(NamedTuple):
    """The timeline, the folder with its closed days, and what cost series had of its fourth day.

    ``cost`` is by namespace, ``peak`` the most samples that the server held at once to answer the
    query for an hour of a metric, by series.
    """

    timeline: Timeline
    folder: Path
    cost: Mapping[str, Mapping[str, float]]
    peak: float


PRICES = {"": 2.0, "1g.10gb": 0.25}
"""By MIG profile."""


def _cost(server: Prometheus, record: str, begin: int) -> dict[str, float]:
    """The integral of a cost series over a day, by namespace."""
    rules = {rule.name: rule.expr for group in GROUPS for rule in group.rules}
    held = "cluster_namespace:vgpu_gpus_allocated:sum"
    prices = " or ".join(
        f'label_replace(label_replace(vector({price}), "model", "A100", "", ""),'
        f' "mig_profile", "{profile}", "", "")'
        for profile, price in PRICES.items()
    )
    expr = rules[record].replace(PRICE, f"({prices})").replace(held, f"({rules[held]})")
    answer = _range(server, f"sum by (namespace) ({expr})", begin, begin + 86_400)
    return {
        line["metric"]["namespace"]: sum(float(value) for _, value in line["values"]) / 60
        for line in answer["result"]
    }


def _range(server: Prometheus, query: str, begin: int, end: int) -> Any:
    asked = {"query": query, "start": begin + 60, "end": end, "step": 60, "stats": "all"}
    return server.api(f"/api/v1/query_range?{urlencode(asked)}")["data"]


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> Week:
    """A week that was scraped, recorded and closed."""
    today = int(time.time()) // 86_400 * 86_400
    begin = today - DAYS * 86_400
    timeline = generated(7, begin, today, pods=20, gpus=6)
    folder = tmp_path_factory.mktemp("bill")
    (folder / "days").mkdir()
    with WritablePrometheus(folder / "prometheus") as server:
        write(server.port, _samples(timeline))
        source = BillSource(f"http://127.0.0.1:{server.port}", ClientOptions())
        writer = DayWriter(folder / "days", UTC, Method(), source, ())
        now = today + 7200.0
        for day in writer.due(now, time.strftime("%Y-%m-%d", time.gmtime(begin))):
            writer.close(day, now)
        fourth = begin + 3 * 86_400
        cost = {rule.name: _cost(server, rule.name, fourth) for rule in COSTS}
        metric = of_containers("vgpu_container_shares_allocated")
        hour = _range(server, metric, fourth, fourth + 3600)
        peak = hour["stats"]["samples"]["peakSamples"] / len(hour["result"])
    return Week(timeline, folder / "days", cost, peak)


def test_a_server_holds_a_few_samples_of_each_series_at_once(week: Week) -> None:
    """Two for each step: an hour of 400,000 containers is within Prometheus' limit of 50 million.

    ``BillSource`` asks for more hours at once where containers are fewer.
    """
    assert week.peak <= 2 * 60 + 10


def test_cost_series_agree_with_the_bill_of_a_day_to_its_bound(week: Week) -> None:
    day = closed_days(week.folder)[3]
    table = PriceTable("EUR", tuple(Price("A100", p, profile) for profile, p in PRICES.items()))
    period = Period()
    bill = lines(period_charges(week.folder, [day], table, UTC, period), "namespace")
    held, used = (week.cost[rule.name] for rule in COSTS)
    by_name = {line.name: line for line in bill if not line.name.startswith("(")}
    assert by_name.keys() == held.keys()
    bound = period.bound / HOUR * max(PRICES.values())
    assert bound > 0.01
    for name, line in by_name.items():
        of_used = line.amount[Part.USED] / SECOND
        of_held = of_used + line.amount[Part.HELD_IDLE] / SECOND
        assert held[name] == pytest.approx(of_held, abs=0.01)  # the samples are the same
        assert used.get(name, 0.0) == pytest.approx(of_used, abs=0.01)


def test_each_share_of_the_week_is_exact_to_its_bound(week: Week) -> None:
    timeline, folder, *_ = week
    days = closed_days(folder)
    assert len(days) == DAYS
    seen = set()
    for day in days:
        closed = read_day(path_of(folder, day))
        for gpu in closed.gpus:
            if gpu.key.day != day:
                continue
            device = BilledDevice("", gpu.key.uuid)
            assert (gpu.key.node, gpu.model) == (timeline.devices[device], "A100")
            truth = true_seconds(timeline, gpu.first, gpu.last, Method())
            shares = [share for share in closed.shares if share.gpu == gpu.key]
            for share in shares:
                name = share.share
                key = BilledContainer(name.namespace, name.pod, name.pod_uid, name.container)
                held, used = (seconds * SECOND for seconds in truth.get((device, key), (0, 0)))
                assert abs(share.used + share.idle - held) <= share.bound + 1
                assert abs(share.used - used) <= share.bound + 1
                assert name.owner == f"Deployment/{name.pod}"
                assert name.team == f"d{int(name.namespace[-1]) % 2}"
                seen.add(key)
            for (of, name_), (held, _) in truth.items():
                if of == device and name_ not in {
                    BilledContainer(*(getattr(s.share, f) for f in BilledContainer._fields))
                    for s in shares
                }:
                    assert held <= 120 + (gpu.not_measured / SECOND)
    assert len(seen) == len(timeline.tenants)


def test_the_hours_of_each_device_are_whole_days_and_holes_are_named(
    week: Week,
) -> None:
    timeline, folder, *_ = week
    rows = [gpu for day in closed_days(folder) for gpu in read_day(path_of(folder, day)).gpus]
    for device in timeline.devices:
        of_device = [gpu for gpu in rows if gpu.key.uuid == device.uuid]
        lost = sum(gpu.not_measured for gpu in of_device) / SECOND
        total = sum(gpu.total for gpu in of_device) / SECOND
        begins = timeline.middle if device in timeline.instances else timeline.start
        until = timeline.middle if device in timeline.instances.values() else timeline.end
        gaps = [
            (max(begins, begin), min(until, end))
            for begin, end in timeline.gaps.get(device, ())
            if begin < until and end > begins
        ]
        if all(begin > begins and end < until for begin, end in gaps):  # else they are no holes
            assert abs(total - (until - begins)) <= 60
            assert abs(lost - sum(end - begin for begin, end in gaps)) <= 120
