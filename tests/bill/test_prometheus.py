"""A week of 20 pods in Debian's Prometheus: the bill of it, and what was true."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

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
from vgpucli.bill.model import SECOND
from vgpucli.bill.prometheus import BillSource
from vgpucli.bill.timeline import BilledContainer, BilledDevice

DAYS = 7
PHASE = 17
UTC = ZoneInfo("UTC")


class WritablePrometheus(Prometheus):
    """One that others write to, and that scrapes nothing."""

    def flags(self) -> list[str]:
        """With the receiver of remote write."""
        return [*super().flags(), "--web.enable-remote-write-receiver"]


def _target(timeline: Timeline, device: BilledDevice, at: int) -> dict[str, str]:
    """The exporter's target: its pod is replaced in the middle, and node 0 is renamed."""
    middle = (timeline.start + timeline.end) // 2
    node = timeline.devices[device]
    port = "9395" if at > middle and node == "node-0" else "9394"
    return {"job": "vgpu", "instance": f"{node}:{port}"}


def _own(tenant: BilledContainer, *, honors: bool) -> dict[str, str]:
    names = {
        "namespace": tenant.namespace,
        "pod": tenant.pod,
        "container": tenant.container,
    }
    if not honors:  # the target's own pod has the names
        names = {f"exported_{name}": value for name, value in names.items()}
        names |= {"namespace": "monitoring", "pod": "vgpu-exporter-x", "container": "exporter"}
    return {**names, "pod_uid": tenant.pod_uid}


def _samples(timeline: Timeline, begin: int, end: int) -> Iterator[Series]:
    """What is written of some hours; half of the nodes have ``honor_labels``."""
    found: dict[tuple[tuple[str, str], ...], list[tuple[int, float]]] = {}

    def add(at: int, name: str, value: float | None, labels: Mapping[str, str]) -> None:
        if value is not None:
            key = (*sorted({"__name__": name, **labels}.items()),)
            found.setdefault(key, []).append((at * 1000, value))

    for at in sample_times(begin, end, PHASE):
        for device, node in timeline.devices.items():
            if alive(timeline.gaps.get(device, ()), at):
                continue
            target = _target(timeline, device, at)
            uuid = {"uuid": device.uuid}
            add(at, "vgpu_gpu_memory_total_bytes", TOTAL, {**target, **uuid})
            add(at, "vgpu_node_info", 1, {**target, "node": node})
            add(at, "vgpu_gpu_info", 1, {**target, **uuid, "gpu": "0", "model": "A100"})
            for tenant in timeline.tenants:
                if tenant.device != device or not alive(tenant.runs, at):
                    continue
                labels = {**target, **uuid, **_own(tenant.name, honors=node != "node-1")}
                memory = tenant.memory and tenant.memory * TOTAL
                add(at, "vgpu_container_memory_allocated_bytes", memory, labels)
                add(at, "vgpu_container_core_allocated_ratio", tenant.cores, labels)
                add(at, "vgpu_container_shares_allocated", 1, labels)
                add(at, "vgpu_container_memory_used_bytes", tenant.memory_use * TOTAL, labels)
                add(at, "vgpu_container_sm_utilization_ratio", tenant.core_use, labels)
    for number in range(3):
        team = {"namespace": f"team-{number}", "team": f"dept-{number % 2}"}
        for at in range(begin + PHASE, end, 3600):
            add(at, "vgpu_reconcile_namespace_info", 1, {"job": "vgpu-reconciler", **team})
    for tenant in timeline.tenants:
        add(
            begin + PHASE,
            "kube_pod_owner",
            1,
            {
                "namespace": tenant.name.namespace,
                "pod": tenant.name.pod,
                "uid": tenant.name.pod_uid,
                "owner_kind": "ReplicaSet",
                "owner_name": f"{tenant.name.pod}-7f",
                "owner_is_controller": "true",
            },
        )
        add(
            begin + PHASE,
            "kube_replicaset_owner",
            1,
            {
                "namespace": tenant.name.namespace,
                "replicaset": f"{tenant.name.pod}-7f",
                "owner_kind": "Deployment",
                "owner_name": tenant.name.pod,
            },
        )
    return ((dict(key), samples) for key, samples in found.items())


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> tuple[Timeline, Path]:
    """The timeline, and the folder with its closed days."""
    today = int(time.time()) // 86_400 * 86_400
    begin = today - DAYS * 86_400
    timeline = generated(7, begin, today, pods=20, gpus=8)
    folder = tmp_path_factory.mktemp("bill")
    with WritablePrometheus(folder / "prometheus") as server:
        for at in range(begin, today, 6 * 3600):
            write(server.port, _samples(timeline, at, at + 6 * 3600))
        source = BillSource(f"http://127.0.0.1:{server.port}", ClientOptions())
        writer = DayWriter(folder / "days", UTC, Method(), source, ())
        now = today + 7200.0
        for day in writer.due(now, time.strftime("%Y-%m-%d", time.gmtime(begin))):
            writer.close(day, now)
    return timeline, folder / "days"


def test_each_share_of_the_week_is_exact_to_its_bound(week: tuple[Timeline, Path]) -> None:
    timeline, folder = week
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
                assert name.team == f"dept-{int(name.namespace[-1]) % 2}"
                seen.add(key)
            for (of, name_), (held, _) in truth.items():
                if of == device and name_ not in {
                    BilledContainer(*(getattr(s.share, f) for f in BilledContainer._fields))
                    for s in shares
                }:
                    assert held <= 120 + (gpu.not_measured / SECOND)
    assert len(seen) == len(timeline.tenants)


def test_the_hours_of_each_device_are_whole_days_and_holes_are_named(
    week: tuple[Timeline, Path],
) -> None:
    timeline, folder = week
    rows = [gpu for day in closed_days(folder) for gpu in read_day(path_of(folder, day)).gpus]
    for device in timeline.devices:
        of_device = [gpu for gpu in rows if gpu.key.uuid == device.uuid]
        lost = sum(gpu.not_measured for gpu in of_device) / SECOND
        total = sum(gpu.total for gpu in of_device) / SECOND
        gap = sum(end - begin for begin, end in timeline.gaps.get(device, ()))
        ends = [end for _, end in timeline.gaps.get(device, ())]
        if timeline.end not in ends:  # else nothing was measured after it
            assert abs(total - DAYS * 86_400) <= 60
            assert abs(lost - gap) <= 120
