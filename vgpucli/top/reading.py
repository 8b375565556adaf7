"""An exporter's metrics page as values: its GPUs, and the containers on them. Pure.

Only the page counts, so that a frame shows what Prometheus would store. A value that the page does
not have is None. The answer may be of any server: an unreadable page raises PageError, and no
control character of it reaches a terminal.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from exporter.processes import ProcessList, ProcessRow
from vgpu.inventory import NodeDoubt
from vgpu.model.printable_text import printable
from vgpu.model.units import MIB
from vgpu.schemes.registry import registry
from vgpu.schemes.row import UnitDoubt

WANTED = (
    "vgpu_gpu_",
    "vgpu_gpus ",
    "vgpu_container_",
    "vgpu_collector_success",
    "vgpu_collector_failures_total",
    "vgpu_driver_call_stuck_seconds",
    "vgpu_sample_interval_seconds",
    "vgpu_snapshot_timestamp_seconds",
    "vgpu_memory_unit_",
)
"""Prefixes of the series that are used; the other series of a large page are not parsed."""

UNIT, UNIT_CONFIRMED = "vgpu_memory_unit_bytes", "vgpu_memory_unit_confirmed"
UNIT_FITTING = "vgpu_memory_unit_fitting_bytes"

MARK = "vgpu_snapshot_timestamp_seconds"
"""A series of every page of a vgpu exporter."""

_QUOTED = 200
"""Maximum number of characters of an error that quotes the page."""

MOST_SERIES = 100_000
"""Maximum number of series of a page that are parsed; 8,000 containers have fewer."""

Labels = Mapping[str, str]


class PageError(Exception):
    """The answer is no metrics page of a vgpu exporter; the message has the reason."""


class PageDevice(msgspec.Struct, frozen=True):
    """A GPU, or a MIG instance of ``parent``. Bytes, degrees Celsius, watts, ratio 0 to 1.

    ``up`` is False for a lost device, and for a device that is known only from its containers.
    ``node`` is the node's name where several are shown. ``unit_confirmed`` is False where the
    node's data contradicts a unit of memory, so that sizes of shares may be wrong. ``sharing`` is
    how NVIDIA's own plugin shares it, "" if it does not; ``replicas`` and ``replicas_held`` are
    then the number of its replicas, and of those that containers have.
    """

    uuid: str
    index: int | None = None
    model: str = ""
    parent: str = ""
    profile: str = ""
    up: bool = False
    used: float | None = None
    total: float | None = None
    unattributed: float | None = None
    utilization: float | None = None
    celsius: float | None = None
    watts: float | None = None
    watts_limit: float | None = None
    node: str = ""
    unit_confirmed: bool = True
    sharing: str = ""
    replicas: int | None = None
    replicas_held: int = 0


class PageShare(msgspec.Struct, frozen=True):
    """A container on a device. Bytes; utilisation as a ratio of the whole device.

    ``limit`` is what it may use; if no source reports that, what it was ``allocated``. ``cores`` is
    the part of the device's cores that it was allocated. ``node`` is the node's name where several
    are shown. ``sharing`` is how NVIDIA's own plugin shares the device, "" if it does not; ``held``
    is the number of shares, ``process_limit`` what MPS lets each process have. ``limit_state`` is
    whether the container is limited, ``limit_reason`` why; "" if the exporter does not report it.
    """

    namespace: str
    pod: str
    container: str
    pod_uid: str
    device: str = ""
    scheme: str = ""
    phase: str = ""
    blocked: bool = False
    used: float | None = None
    limit: float | None = None
    unlimited: bool = False
    accounted: float | None = None
    utilization: float | None = None
    allocated: float | None = None
    cores: float | None = None
    node: str = ""
    sharing: str = ""
    held: int = 0
    process_limit: float | None = None
    limit_state: str = ""
    limit_reason: str = ""

    @property
    def name(self) -> str:
        """namespace/pod/container, or the known parts."""
        pod = f"{self.namespace}/{self.pod}" if self.pod else self.pod_uid or "(no pod)"
        return f"{pod}/{self.container}" if self.container else pod


class PageToken(msgspec.Struct, frozen=True):
    """The token of a pod on a device: parts of the device's time, and seconds it has waited.

    ``node`` is the node's name where several are shown.
    """

    namespace: str
    pod: str
    pod_uid: str
    device: str
    request: float | None = None
    limit: float | None = None
    share: float | None = None
    waited: float | None = None
    node: str = ""

    @property
    def place(self) -> tuple[str, ...]:
        """What distinguishes it from others."""
        return self.node, self.device, self.pod_uid, self.namespace, self.pod


class PageProcess(ProcessRow, frozen=True, gc=False):
    """A process; ``node`` is the node's name where several are shown."""

    node: str = ""


class PageProcesses(ProcessList, frozen=True):
    """The answer of an exporter."""

    processes: tuple[PageProcess, ...] = ()


class PageReading(msgspec.Struct, frozen=True):
    """One page. ``idle`` are containers on no known device, most of which have ended.

    Attributes:
        timestamp: when the exporter sampled, by its own clock.
        interval: seconds between two of its samples.
        failing: the last sample if it failed, and the collectors whose last pass failed, each with
            the reason if there is only one.
        stuck_seconds: seconds for which the driver's answer is overdue.
        units: the units that are not confirmed.
        processes: those on all devices; None if they were not asked for, or are unknown.
        tokens: the tokens of pods, with a token daemon.
    """

    timestamp: float
    interval: float = 0.0
    devices: tuple[PageDevice, ...] = ()
    shares: tuple[PageShare, ...] = ()
    idle: tuple[PageShare, ...] = ()
    failing: tuple[str, ...] = ()
    stuck_seconds: float = 0.0
    units: tuple[NodeDoubt, ...] = ()
    processes: tuple[PageProcess, ...] | None = None
    tokens: tuple[PageToken, ...] = ()


DEVICE_FIELDS = {
    "vgpu_gpu_memory_used_bytes": "used",
    "vgpu_gpu_memory_total_bytes": "total",
    "vgpu_gpu_memory_unattributed_bytes": "unattributed",
    "vgpu_gpu_utilization_ratio": "utilization",
    "vgpu_gpu_temperature_celsius": "celsius",
    "vgpu_gpu_power_usage_watts": "watts",
    "vgpu_gpu_power_limit_watts": "watts_limit",
}
SHARE_FIELDS = {
    "vgpu_container_memory_used_bytes": "used",
    "vgpu_container_memory_limit_bytes": "limit",
    "vgpu_container_memory_allocated_bytes": "allocated",
    "vgpu_container_memory_accounted_bytes": "accounted",
    "vgpu_container_sm_utilization_ratio": "utilization",
    "vgpu_container_process_memory_limit_bytes": "process_limit",
    "vgpu_container_core_allocated_ratio": "cores",
}
TOKEN_FIELDS = {
    "vgpu_container_token_request_ratio": "request",
    "vgpu_container_token_limit_ratio": "limit",
    "vgpu_container_token_window_share_ratio": "share",
    "vgpu_container_token_wait_seconds_total": "waited",
}
UNLIMITED = "vgpu_container_memory_unlimited"
HELD = "vgpu_container_shares_allocated"
"""The series of every share, also of one of unknown size, and of one only reserved."""

SHARING, REPLICAS = "vgpu_container_sharing_info", "vgpu_gpu_replicas"

CONTAINER = ("namespace", "pod", "container", "pod_uid")
POD = ("namespace", "pod", "pod_uid")


def read_page(text: str) -> PageReading:
    """The page as values. Raises PageError."""
    page = _Page()
    try:
        for name, labels, value in _samples(text):
            page.add(name, labels, value)
    except (ValueError, KeyError, IndexError) as error:
        raise PageError(f"not a metrics page: {str(error)[:_QUOTED]}") from error
    if page.timestamp is None:
        raise PageError(f"not a vgpu exporter: the page has no {MARK}")
    return page.reading(page.timestamp)


def read_processes(text: str) -> tuple[PageProcess, ...]:
    """The processes that an exporter lists. Raises PageError."""
    try:
        rows = msgspec.json.decode(text, type=PageProcesses).processes
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PageError("not a list of processes") from error
    return tuple(
        msgspec.structs.replace(
            row,
            uuid=printable(row.uuid),
            container=printable(row.container),
            pod_uid=printable(row.pod_uid),
        )
        for row in rows
    )


def _samples(text: str) -> Iterator[tuple[str, Labels, float]]:
    lines = [line for line in text.split("\n") if line.startswith(WANTED)]
    if len(lines) > MOST_SERIES:
        raise PageError(f"more than {MOST_SERIES} series")
    for family in text_string_to_metric_families("\n".join((*lines, ""))):
        for sample in family.samples:
            labels = {name: printable(value) for name, value in sample.labels.items()}
            yield sample.name, labels, sample.value


class _Page:
    """The values under construction, series by series, in any order."""

    def __init__(self) -> None:
        self.timestamp: float | None = None
        self.interval = self.stuck = 0.0
        self.counts_gpus = False
        self.collectors: dict[str, bool] = {}
        self.reasons: dict[str, list[str]] = {}
        self.devices: dict[str, dict[str, object]] = {}
        self.shares: dict[tuple[str, ...], dict[str, object]] = {}
        self.containers: dict[tuple[str, ...], dict[str, object]] = {}
        self.units: dict[str, dict[str, int]] = {}
        self.tokens: dict[tuple[str, ...], dict[str, float]] = {}

    def add(self, name: str, labels: Labels, value: float) -> None:
        """Add a series; unused series are skipped."""
        if not math.isfinite(value):
            return
        if name == MARK:
            self.timestamp = value
        elif name == "vgpu_sample_interval_seconds":
            self.interval = value
        elif name == "vgpu_driver_call_stuck_seconds":
            self.stuck = value
        elif name == "vgpu_gpus":
            self.counts_gpus = True
        elif name == "vgpu_collector_success":
            self.collectors[labels.get("collector", "")] = bool(value)
        elif name == "vgpu_collector_failures_total":
            reasons = self.reasons.setdefault(labels.get("collector", ""), [])
            reasons.append(labels.get("reason", ""))
        elif name == "vgpu_container_info":
            facts = {key: labels.get(key, "") for key in ("scheme", "phase", "limit_reason")}
            self.containers.setdefault(_key(labels), {}).update(facts)
        elif name == "vgpu_container_limit_state":
            self.containers.setdefault(_key(labels), {})["limit_state"] = labels.get("state", "")
        elif name == "vgpu_container_blocked":
            self.containers.setdefault(_key(labels), {})["blocked"] = bool(value)
        elif name in (UNIT, UNIT_CONFIRMED, UNIT_FITTING):
            unit = self.units.setdefault(labels.get("scheme", ""), {})
            unit[labels.get("bound", name)] = int(value)
        elif "uuid" in labels:
            self._add_of_device(name, labels, value)

    def _add_of_device(self, name: str, labels: Labels, value: float) -> None:
        uuid = labels["uuid"]
        if field := SHARE_FIELDS.get(name):
            self._share(labels)[field] = value
        elif field := TOKEN_FIELDS.get(name):
            place = tuple(labels.get(each, "") for each in (*POD, "uuid"))
            self.tokens.setdefault(place, {})[field] = value
        elif name == UNLIMITED:
            self._share(labels)["unlimited"] = bool(value)
        elif name == HELD:
            self._share(labels)["held"] = int(value)
        elif name == SHARING:
            self._share(labels)["sharing"] = labels.get("sharing", "")
        elif name == REPLICAS:
            self.devices.setdefault(uuid, {})["replicas"] = int(value)
        elif field := DEVICE_FIELDS.get(name):
            self.devices.setdefault(uuid, {})[field] = value
        elif name == "vgpu_gpu_up":
            self.devices.setdefault(uuid, {})["up"] = bool(value)
        elif name == "vgpu_gpu_info":
            index = labels.get("gpu", "")
            self.devices.setdefault(uuid, {}).update(
                index=int(index) if index.isdecimal() else None,
                model=labels.get("model", ""),
                parent=labels.get("parent_uuid", ""),
                profile=labels.get("mig_profile", ""),
            )

    def _share(self, labels: Labels) -> dict[str, object]:
        return self.shares.setdefault((*_key(labels), labels["uuid"]), {})

    def reading(self, timestamp: float) -> PageReading:
        """The whole page, devices in the order of their GPUs."""
        of_device: dict[tuple[str, ...], Mapping[str, object]] = {**self.shares}
        sharing = {share[:-1] for share in self.shares}
        of_device.update({(*key, ""): {} for key in self.containers if key not in sharing})
        page_shares = [
            _share_of(key, {**self.containers.get(key[:-1], {}), **fields})
            for key, fields in of_device.items()
        ]
        shares = [share for share in page_shares if share.device]
        held: Counter[str] = Counter()
        for share in shares:
            device = self.devices.setdefault(share.device, {})
            if share.sharing:
                held[share.device] += share.held
                device |= {"sharing": share.sharing, "replicas_held": held[share.device]}
        units = tuple(_doubts(self.units))
        common = {"unit_confirmed": not units}
        return PageReading(
            timestamp,
            self.interval,
            in_order(
                msgspec.convert({"uuid": u, **f, **common}, PageDevice)
                for u, f in self.devices.items()
            ),
            tuple(shares),
            tuple(share for share in page_shares if not share.device),
            (*self._failed_sample(), *self._failing_collectors()),
            self.stuck,
            units,
            tokens=tuple(_token_of(place, fields) for place, fields in self.tokens.items()),
        )

    def _failed_sample(self) -> Iterator[str]:
        """Where the driver has answered and its GPUs are not counted, the sample has failed."""
        if self.collectors.get("nvml") and not (self.counts_gpus or self.devices):
            yield "the last sample (the exporter's log has the reason)"

    def _failing_collectors(self) -> Iterator[str]:
        failing = (name for name, is_well in self.collectors.items() if not is_well)
        return map(self._with_reason, sorted(failing))

    def _with_reason(self, collector: str) -> str:
        reasons = self.reasons.get(collector, [])
        return f"{collector} ({reasons[0]})" if len(reasons) == 1 else collector


def _doubts(units: Mapping[str, Mapping[str, int]]) -> Iterator[NodeDoubt]:
    """The units that the page calls unconfirmed, with those that would fit."""
    for row in registry().rows:
        unit = units.get(row.name, {})
        if row.unit is not None and unit.get(UNIT) and unit.get(UNIT_CONFIRMED) == 0:
            most = unit.get("most")
            bounds = unit.get("least", 0) // MIB, None if most is None else most // MIB
            yield NodeDoubt("", row, unit[UNIT], UnitDoubt("", *bounds))


def _key(labels: Labels) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in CONTAINER)


def _share_of(key: tuple[str, ...], fields: Mapping[str, object]) -> PageShare:
    named = dict(zip((*CONTAINER, "device"), key, strict=True))
    values = {"limit": fields.get("allocated"), **fields}
    return msgspec.convert({**named, **values}, PageShare)


def _token_of(place: tuple[str, ...], fields: Mapping[str, float]) -> PageToken:
    named = dict(zip((*POD, "device"), place, strict=True))
    return msgspec.convert({**named, **fields}, PageToken)


def in_order(devices: Iterable[PageDevice]) -> tuple[PageDevice, ...]:
    """The devices by index, each GPU before its MIG instances; without an index last."""
    everything = list(devices)
    index = {device.uuid: device.index for device in everything}

    def position(device: PageDevice) -> tuple[float, bool, float, str]:
        gpu_index = index.get(device.parent) if device.parent else device.index
        own_index = device.index
        return (
            float("inf") if gpu_index is None else gpu_index,
            bool(device.parent),
            float("inf") if own_index is None else own_index,
            device.uuid,
        )

    return tuple(sorted(everything, key=position))
