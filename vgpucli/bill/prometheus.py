"""The samples of an hour, from a server with Prometheus' HTTP API."""

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

import msgspec

from vgpu.model.printable_text import printable
from vgpu.sources.http_access import ClientOptions
from vgpucli.bill.timeline import (
    STEP,
    BilledContainer,
    BilledDevice,
    Described,
    DeviceHour,
    Hour,
    Series,
    ShareHour,
    Values,
)
from vgpucli.prometheus_source import PrometheusSource
from vgpucli.top.source import Unanswered

SECONDS: Final = 120.0
"""Maximum time to wait for an answer."""

LIMIT: Final = 256 * 2**20
"""Maximum size of an answer, in bytes: an hour of one metric of 50,000 containers."""

_OWN_STEP: Final = "59s999ms"
"""Samples of a step: Prometheus 2 counts one at the begin of a window, too."""

_LABELS: Final = "namespace", "pod", "container"
_DEVICE: Final = "cluster, uuid"
_NAMES: Final = "namespace, pod, container"
_SHARE: Final = (
    f"cluster, pod_uid, uuid, {_NAMES}, exported_namespace, exported_pod, exported_container"
)


def _sample(metric: str, matcher: str = "") -> str:
    return f"last_over_time({metric}{{{matcher}}}[{_OWN_STEP}])"


def of_containers(metric: str) -> str:
    """A metric of containers, once for each device, whichever target reports it.

    Where a target has a label of this name and no ``honor_labels: true``, a container's own one is
    in ``exported_…``: :func:`container_of` has its name.
    """
    return f"max by ({_SHARE}) ({_sample(metric)})"


def of_devices(metric: str) -> str:
    """A metric of devices, once for each, whichever target reports it."""
    return f"max by ({_DEVICE}) ({_sample(metric)})"


def _within(query: str, begin: int, end: int) -> str:
    """A query about a whole period, evaluated at its end."""
    return query.replace("RANGE", f"{end - begin}s")


TARGET: Final = "cluster, job, instance"
TOTAL: Final = f"max by ({TARGET}, node, {_NAMES}, uuid) ({_sample('vgpu_gpu_memory_total_bytes')})"
NODES: Final = f"max by ({TARGET}, node) ({_sample('vgpu_node_info')})"
INFO: Final = (
    "max by (cluster, uuid, parent_uuid, model, mig_profile) (last_over_time(vgpu_gpu_info[RANGE]))"
)
TEAMS: Final = (
    "max by (cluster, namespace, exported_namespace, team)"
    " (max_over_time(timestamp(vgpu_reconcile_namespace_info)[1h:1m]))"
)
NODE_LABELS: Final = "last_over_time(kube_node_labels[1d])"
_UNNAMED: Final = re.compile(r"[^a-zA-Z0-9_]")
"""Characters that kube-state-metrics replaces in the name of a label."""

POD_OWNERS: Final = (
    "max by (uid, namespace, owner_kind, owner_name)"
    ' (last_over_time(kube_pod_owner{uid!=""}[RANGE]))'
)
OWNERS: Final = (
    ("ReplicaSet", "replicaset", "kube_replicaset_owner"),
    ("Job", "job_name", "kube_job_owner"),
)
"""Owners that have owners: kind, kube-state-metrics' label of its name, and its metric."""


class _Line(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []
    value: tuple[float, str] = (0.0, "")


class _Data(msgspec.Struct, frozen=True, rename="camel"):
    result: list[_Line]
    result_type: str = ""


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    """An answer; VictoriaMetrics has ``isPartial``, Thanos has warnings."""

    data: _Data = _Data([])
    status: str = ""
    error: str = ""
    warnings: list[str] = []
    infos: list[str] = []
    is_partial: bool = False


_ANSWER: Final = msgspec.json.Decoder(_Answer)
_RESULTS: Final = {"query": "vector", "query_range": "matrix"}
_ABOUT_QUERY: Final = "PromQL info:"
"""Prometheus 3 begins so what it has to say about a query, whose answer is whole."""


def checked(answer: _Answer, path: str) -> _Answer:
    """An answer that is whole. Raises Unanswered.

    A bill of a part of the samples would look like any other: a warning about
    missing ones is a failure here and no note.
    """
    infos = (each for each in answer.infos if not each.startswith(_ABOUT_QUERY))
    doubts = printable("; ".join(answer.warnings) or "; ".join(infos))
    if answer.status != "success":
        what = answer.error or "is this a Prometheus?"
        raise Unanswered(f"not an answer of Prometheus' HTTP API: {printable(what)}")
    if doubts or answer.is_partial:
        raise Unanswered(f"its answer may not be whole: {doubts or 'isPartial'}")
    if answer.data.result_type != _RESULTS[path]:
        kind = printable(answer.data.result_type) or "nothing"
        raise Unanswered(f"it answered with {kind} and not with a {_RESULTS[path]}")
    return answer


_HOUR_SECONDS: Final = 3600
_HOUR_STEPS: Final = _HOUR_SECONDS // STEP
_VALUES_AT_ONCE: Final = 1_000_000
"""Values of one metric that are read in one answer: 30 MB of JSON."""


class _Span(NamedTuple):
    """Some hours that were read at once; series by field."""

    devices: dict[BilledDevice, DeviceHour]
    shares: dict[BilledDevice, dict[BilledContainer, dict[str, Values]]]

    def hour(self, start: int, first: int, last: int, names: "_Names") -> Hour:
        """The steps from ``first`` to the one before ``last``."""
        own = slice(first, last)
        return Hour(
            start + first * STEP,
            last - first,
            {
                device: DeviceHour(
                    each.node,
                    each.total[own],
                    each.replicas[own],
                    each.outside[own],
                    each.nodes[own],
                )
                for device, each in self.devices.items()
            },
            {
                device: {
                    name: ShareHour(**{field: series[own] for field, series in fields.items()})
                    for name, fields in sorted(of.items())
                }
                for device, of in self.shares.items()
            },
            *names,
        )


class _Names(NamedTuple):
    """What devices are, and whose the pods are: the fields of an hour behind its samples."""

    described: Mapping[BilledDevice, Described]
    teams: Mapping[tuple[str, str], str]
    owners: Mapping[str, str]


class BillSource(PrometheusSource):
    """A Prometheus by its URL."""

    def __init__(self, url: str, access: ClientOptions) -> None:
        """Read the certificates and the password. Raises BadOption."""
        super().__init__(url, access, SECONDS, LIMIT)

    def hours(self, begin: int, end: int) -> Iterator[Hour]:
        """The hours from ``begin`` to ``end`` with their samples. Raises Unanswered."""
        described = self._described(begin, end)
        teams = self._teams(begin, end)
        owners = self._owners(begin, end)
        for start, stop in self._spans(begin, end):
            steps = (stop - start) // STEP
            devices, names = self._devices(start, stop)
            span = _Span(devices, {})
            for field, metric in _SHARE_METRICS.items():
                for labels, series in self._range(of_containers(metric), start, stop, STEP):
                    device = _device(labels)
                    if device in span.devices:
                        of_device = span.shares.setdefault(device, {})
                        fields = of_device.setdefault(container_of(labels, names[device]), {})
                        fields[field] = _merged(fields.get(field), series)
            for first in range(0, steps, _HOUR_STEPS):
                hour = (start - begin) // _HOUR_SECONDS + first // _HOUR_STEPS
                of_hour = teams[min(hour, len(teams) - 1)]
                last = min(first + _HOUR_STEPS, steps)
                yield span.hour(start, first, last, _Names(described, of_hour, owners))

    def _spans(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Whole hours, as many at once as do not take too much memory."""
        query = f"count(count_over_time(vgpu_container_shares_allocated[{end - begin}s]))"
        number = next((value for _, value in self._at(query, end)), 1.0)
        at_once = int(max(1, min(24, _VALUES_AT_ONCE / (_HOUR_STEPS * max(1.0, number)))))
        for start in range(begin, end, at_once * _HOUR_SECONDS):
            yield start, min(start + at_once * _HOUR_SECONDS, end)

    def node_labels(self, moment: int, labels: Sequence[str]) -> dict[str, dict[str, str]]:
        """These labels of each node, from kube-state-metrics. Raises Unanswered."""
        names = {f"label_{_UNNAMED.sub('_', label)}": label for label in labels}
        found: dict[str, dict[str, str]] = {}
        for metric, _ in self._at(NODE_LABELS, moment):
            kept = {label: metric[name] for name, label in names.items() if metric.get(name)}
            found.setdefault(metric.get("node", ""), {}).update(kept)
        return found

    def _devices(
        self, begin: int, end: int
    ) -> tuple[dict[BilledDevice, DeviceHour], dict[BilledDevice, set[tuple[str, str]]]]:
        """The devices, and the labels of the pods of their exporters."""
        fields: dict[str, dict[BilledDevice, Values]] = {
            field: {
                _device(labels): series
                for labels, series in self._range(of_devices(metric), begin, end, STEP)
            }
            for field, metric in _DEVICE_METRICS.items()
        }
        of_target: dict[tuple[str, ...], dict[str, Values]] = {}
        for labels, series in self._range(NODES, begin, end, STEP):
            of_target.setdefault(_target(labels), {})[labels.get("node", "")] = series
        totals: dict[BilledDevice, Values] = {}
        nodes: dict[BilledDevice, list[str]] = {}
        names: dict[BilledDevice, set[tuple[str, str]]] = {}
        for labels, series in self._range(TOTAL, begin, end, STEP):
            device = _device(labels)
            if not device.uuid:
                continue
            own = labels.get("node") or labels.get("instance", "")
            there = node_by_step(of_target.get(_target(labels), {}), series, own)
            totals[device] = _merged(totals.get(device), series)
            nodes[device] = [
                old if value is None else new
                for old, new, value in zip(nodes.get(device, there), there, series, strict=True)
            ]
            of_device = names.setdefault(device, set())
            of_device.update((name, labels[name]) for name in _LABELS if labels.get(name))
        found = {}
        for device, series in totals.items():
            of_step = nodes[device]
            node = next((of_step[index] for index, at in enumerate(series) if at is not None), "")
            changes = any(
                each != node and at is not None for each, at in zip(of_step, series, strict=True)
            )
            found[device] = DeviceHour(
                node,
                series,
                fields["replicas"].get(device, ()),
                fields["outside"].get(device, ()),
                of_step if changes else (),
            )
        return found, names

    def _described(self, begin: int, end: int) -> dict[BilledDevice, Described]:
        return {
            _device(labels): Described(
                labels.get("model", ""),
                labels.get("mig_profile", ""),
                labels.get("parent_uuid", ""),
            )
            for labels, _ in self._at(_within(INFO, begin, end), end)
        }

    def _teams(self, begin: int, end: int) -> list[dict[tuple[str, str], str]]:
        """The team of each namespace, by hour: the last one that it had in the hour.

        In an hour without any, since no reconciler was scraped, it is that of the hours before, or
        of the first hour after.
        """
        newest: dict[tuple[int, tuple[str, str]], tuple[float, str]] = {}
        for labels, series in self._range(TEAMS, begin, end, _HOUR_SECONDS):
            name = labels.get("exported_namespace") or labels.get("namespace", "")
            for hour, moment in enumerate(series):
                if moment is not None:
                    key = hour, (labels.get("cluster", ""), name)
                    team = moment, labels.get("team", "")
                    newest[key] = max(newest.get(key, (0.0, "")), team)
        teams: dict[int, dict[tuple[str, str], str]] = {}
        for (hour, of), (_, name) in newest.items():
            teams.setdefault(hour, {})[of] = name
        known = teams[min(teams)] if teams else {}
        by_hour = []
        for hour in range(max(1, (end - begin) // _HOUR_SECONDS)):
            known = teams.get(hour, known)
            by_hour.append(known)
        return by_hour

    def _owners(self, begin: int, end: int) -> dict[str, str]:
        """The owner of each pod by its UID, as kube-state-metrics has it."""
        above = {
            (kind, labels.get("namespace", ""), labels.get(label, "")): labels
            for kind, label, metric in OWNERS
            for labels, _ in self._at(
                _within(
                    f"max by (namespace, {label}, owner_kind, owner_name)"
                    f' (last_over_time({metric}{{owner_name!=""}}[RANGE]))',
                    begin,
                    end,
                ),
                end,
            )
        }
        owners = {}
        for labels, _ in self._at(_within(POD_OWNERS, begin, end), end):
            kind, namespace, name = (
                labels.get(each, "") for each in ("owner_kind", "namespace", "owner_name")
            )
            of = above.get((kind, namespace, name), labels)
            kind, name = of.get("owner_kind", ""), of.get("owner_name", "")
            if name and not name.startswith("<"):  # <none> is kube-state-metrics' word
                owners[labels["uid"]] = f"{kind}/{name}"
        return owners

    def _range(
        self, query: str, begin: int, end: int, step: int
    ) -> Iterator[tuple[dict[str, str], Values]]:
        """Each series with a value for each step; a step is named by its end."""
        parameters = {"query": query, "start": begin + step, "end": end, "step": step}
        for line in self._ask("query_range", parameters).data.result:
            series: Values = [None] * ((end - begin) // step)
            for moment, text in line.values:
                index = round((moment - begin) / step) - 1
                if 0 <= index < len(series):
                    series[index] = _number(text)
            yield line.metric, series

    def _at(self, query: str, moment: int) -> Iterator[tuple[dict[str, str], float]]:
        for line in self._ask("query", {"query": query, "time": moment}).data.result:
            yield line.metric, _number(line.value[1]) or 0.0

    def _ask(self, path: str, parameters: Mapping[str, object]) -> _Answer:
        return checked(self.ask(path, parameters, _ANSWER), path)


_SHARE_METRICS: Final = {
    "memory": "vgpu_container_memory_allocated_bytes",
    "cores": "vgpu_container_core_allocated_ratio",
    "shares": "vgpu_container_shares_allocated",
    "memory_use": "vgpu_container_memory_used_bytes",
    "core_use": "vgpu_container_sm_utilization_ratio",
}
_DEVICE_METRICS: Final = {
    "replicas": "vgpu_gpu_replicas",
    "outside": "vgpu_gpu_memory_unattributed_bytes",
}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None


def _device(labels: Mapping[str, str]) -> BilledDevice:
    return BilledDevice(labels.get("cluster", ""), labels.get("uuid", ""))


def _target(labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(labels.get(each, "") for each in ("cluster", "job", "instance"))


def node_by_step(nodes: Mapping[str, Series], series: Series, otherwise: str) -> list[str]:
    """The node of a device at each step.

    ``nodes`` are those that the target of its ``series`` named, with the steps in which it did. A
    target that is another node's exporter from now on has both in one step: a device stays on its
    node, and a new one is on the node that the target goes on naming.
    """
    if len(nodes) < 2:  # as nearly always
        return [next(iter(nodes), otherwise)] * len(series)
    steps = {node: {i for i, at in enumerate(of) if at is not None} for node, of in nodes.items()}
    node = ""
    found = []
    for index, value in enumerate(series):
        there = [each for each, of in steps.items() if index in of]
        if value is not None and there and node not in there:
            node = max(there, key=lambda each: index + 1 in steps[each])
        found.append(node or otherwise)
    return found


def _merged(known: Values | None, more: Values) -> Values:
    """Two series of one thing: of two values in a step the larger one."""
    if known is None:
        return more
    return [
        old if new is None else new if old is None else max(old, new)
        for old, new in zip(known, more, strict=True)
    ]


def container_of(
    labels: Mapping[str, str], of_exporter: AbstractSet[tuple[str, str]]
) -> BilledContainer:
    """A container by its own names, each of them in ``exported_…`` if the target has such a label.

    A name that is empty is dropped by Prometheus, and then the exporter's own stands there.
    """
    hidden = ("pod", labels.get("pod", "")) in of_exporter or any(
        labels.get(f"exported_{name}") for name in _LABELS
    )
    names = []
    for label in _LABELS:
        name = labels.get(f"exported_{label}", "")
        if not name and not (hidden and (label, labels.get(label, "")) in of_exporter):
            name = labels.get(label, "")
        names.append(name)
    namespace, pod, container = names
    return BilledContainer(namespace, pod, labels.get("pod_uid", ""), container)
