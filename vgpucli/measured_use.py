"""What pods use, for ``vgpu inspect --by``: from a Prometheus, or from exporters.

A pod is known by its UID on the node, so it counts for the right group whatever labels a scrape job
adds. Idle is what a container was allocated of a device and does not use, as the recording rules
and dashboards count it.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import click
import msgspec
from msgspec import structs

from vgpu.ledger.limit_verdict import LimitReason
from vgpu.model.units import WHOLE_DEVICE_MILLI
from vgpu.quota.resources import CORES, MEMORY
from vgpu.sources.http_access import BadOption, ClientOptions
from vgpucli.group_usage import MeasuredUse
from vgpucli.prometheus_source import PrometheusSource
from vgpucli.top.reading import PageError, PageShare, read_page
from vgpucli.top.source import Exporter, Unanswered

PROMETHEUS_SECONDS: Final = 60.0
"""Maximum time to wait for an answer of Prometheus, in seconds; its own default is two minutes."""

_CONTAINER: Final = "pod_uid, container, uuid"
"""Labels that identify a container on a device in a whole fleet. Two scrapes of one exporter, also
if one of them renames our labels to ``exported_…``, and two pods of the exporter one after another,
are one measurement."""


def _largest(metric: str) -> str:
    own = f'label_replace({metric}, "container", "$1", "exported_container", "(.+)")'
    return f"max by ({_CONTAINER}) ({own})"


def _used(metric: str) -> str:
    return f"sum by (pod_uid) ({_largest(metric)})"


def _idle(allocated: str, used: str) -> str:
    return f"sum by (pod_uid) (clamp_min({_largest(allocated)} - {_largest(used)}, 0))"


_MEMORY: Final = "vgpu_container_memory_allocated_bytes", "vgpu_container_memory_used_bytes"
_CORES: Final = "vgpu_container_core_allocated_ratio", "vgpu_container_sm_utilization_ratio"


def queries(pod_uid: str = "") -> dict[tuple[str, str], str]:
    """The questions to Prometheus about a pod or all, by field of MeasuredUse and resource."""
    selector = f"{{pod_uid={json.dumps(pod_uid)}}}" if pod_uid else ""
    memory, cores = ([name + selector for name in names] for names in (_MEMORY, _CORES))
    return {
        ("used", MEMORY): _used(memory[1]),
        ("idle", MEMORY): _idle(*memory),
        ("used", CORES): _used(cores[1]),
        ("idle", CORES): _idle(*cores),
    }


def limit_query(pod_uid: str = "") -> str:
    """The question about the reasons of limits of a pod or all: one series for each container."""
    which = f", pod_uid={json.dumps(pod_uid)}" if pod_uid else ""
    info = f'vgpu_container_info{{limit_reason!=""{which}}}'
    own = f'label_replace({info}, "container", "$1", "exported_container", "(.+)")'
    return f"max by (pod_uid, container, limit_reason) ({own})"


_FACTORS: Final = {MEMORY: 1, CORES: WHOLE_DEVICE_MILLI}


class Measured(msgspec.Struct, frozen=True):
    """What was measured, by the UID of the pod on its node, and notes about what is missing.

    ``server`` is the Prometheus that was asked, "" if ``exporters`` exporters were, of which
    ``answered`` have answered.
    """

    pods: Mapping[str, MeasuredUse]
    notes: tuple[str, ...] = ()
    server: str = ""
    exporters: int = 0
    answered: int = 0

    @property
    def limits(self) -> Mapping[tuple[str, str], LimitReason]:
        """(pod UID, container) -> why it is limited, or not; codes of newer exporters are none."""
        return {
            (uid, container): _REASONS[code]
            for uid, use in self.pods.items()
            for container, code in use.limits.items()
            if code in _REASONS
        }


_REASONS: Final[Mapping[str, LimitReason]] = {reason.value: reason for reason in LimitReason}


# ---------------------------------------------------------------- Prometheus


class _Series(msgspec.Struct, frozen=True):
    metric: dict[str, str]
    value: tuple[float, str]


class _Data(msgspec.Struct, frozen=True):
    result: list[_Series] = []


class _Answer(msgspec.Struct, frozen=True):
    """An answer of ``/api/v1/query`` whose query returns a vector."""

    data: _Data = _Data()
    warnings: list[str] = []


_ANSWER: Final = msgspec.json.Decoder(_Answer)


class Prometheus(PrometheusSource):
    """A server with Prometheus' HTTP API, by its URL."""

    def __init__(self, url: str, access: ClientOptions) -> None:
        """Read the certificates and the password. Raises BadOption."""
        super().__init__(url, access, PROMETHEUS_SECONDS)

    def measured(self, pod_uid: str = "") -> Measured:
        """What a pod uses now, with "" all pods. Raises Unanswered."""
        pods: dict[str, dict[str, dict[str, int]]] = {}
        notes: dict[str, None] = {}
        for (field, resource), query in queries(pod_uid).items():
            answer = self._vector(query)
            notes |= dict.fromkeys(f"{self.name}: {text}" for text in answer.warnings)
            for series in answer.data.result:
                amount = _whole(series.value[1], _FACTORS[resource])
                uid = series.metric.get("pod_uid", "")
                if uid and amount is not None:
                    pods.setdefault(uid, {}).setdefault(field, {})[resource] = amount
        if not (pods or pod_uid):
            notes[f"{self.name} has no measurement of vgpu's exporters"] = None
        uses = {
            uid: MeasuredUse(fields.get("used", {}), fields.get("idle", {}))
            for uid, fields in pods.items()
        }
        return Measured(uses, (*notes,), self.name)

    def with_limits(self, measured: Measured, pod_uid: str = "") -> Measured:
        """The same, with the reasons of limits; a note if they cannot be read."""
        try:
            answer = self._vector(limit_query(pod_uid))
        except Unanswered as error:
            note = f"{self.name}: no limits: {error}"
            return structs.replace(measured, notes=(*measured.notes, note))
        limits: dict[str, dict[str, str]] = {}
        for series in answer.data.result:
            labels = series.metric
            of_pod = limits.setdefault(labels.get("pod_uid", ""), {})
            of_pod[labels.get("container", "")] = labels.get("limit_reason", "")
        pods = {
            uid: structs.replace(measured.pods.get(uid, MeasuredUse()), limits=limits.get(uid, {}))
            for uid in dict.fromkeys((*measured.pods, *filter(None, limits)))
        }
        return structs.replace(measured, pods=pods)

    def _vector(self, query: str) -> _Answer:
        return self.ask("query", {"query": query}, _ANSWER)


def _whole(text: str, factor: int) -> int | None:
    """The amount as an integer; None if it is no number."""
    try:
        value = float(text) * factor
    except ValueError:
        return None
    return round(value) if math.isfinite(value) else None


# ---------------------------------------------------------------- exporters


def of_exporters(exporters: Sequence[Exporter]) -> Measured:
    """What the pods of some nodes use; a note names each exporter that does not answer."""

    def ask(exporter: Exporter) -> tuple[PageShare, ...] | str:
        try:
            reading = read_page(exporter.page())
        except (Unanswered, PageError) as error:
            return f"{exporter.name}: {error}"
        return (*reading.shares, *reading.idle)

    with ThreadPoolExecutor(max(1, min(32, len(exporters)))) as pool:
        answers = [*pool.map(ask, exporters)]
    shares = [share for answer in answers if not isinstance(answer, str) for share in answer]
    notes = tuple(each for each in answers if isinstance(each, str))
    answered = len(exporters) - len(notes)
    return Measured(_by_pod(shares), notes, exporters=len(exporters), answered=answered)


def _by_pod(shares: Iterable[PageShare]) -> dict[str, MeasuredUse]:
    by_pod: dict[str, list[PageShare]] = {}
    for share in shares:
        if share.pod_uid:
            by_pod.setdefault(share.pod_uid, []).append(share)
    return {uid: _use(of_pod) for uid, of_pod in by_pod.items()}


def _use(shares: Sequence[PageShare]) -> MeasuredUse:
    amounts: tuple[tuple[str, Callable[[PageShare], tuple[float | None, float | None]]], ...] = (
        (MEMORY, lambda share: (share.used, share.allocated)),
        (CORES, lambda share: (share.utilization, share.cores)),
    )
    used: dict[str, int] = {}
    idle: dict[str, int] = {}
    for resource, of in amounts:
        for use, allocated in map(of, shares):
            if use is None:
                continue
            factor = _FACTORS[resource]
            used[resource] = used.get(resource, 0) + round(use * factor)
            if allocated is not None:
                unused = max(0, round((allocated - use) * factor))
                idle[resource] = idle.get(resource, 0) + unused
    limits = {share.container: share.limit_reason for share in shares if share.limit_reason}
    return MeasuredUse(used, idle, limits)


# ---------------------------------------------------------------- the flags


def sources(
    prometheus: str | None,
    exporters: Sequence[str],
    access: ClientOptions,
    *,
    limits: bool = False,
) -> Callable[[str], Measured]:
    """A function that reads what a pod uses, or with "" all pods, from the servers of the flags.

    With ``limits`` a Prometheus is also asked whether the containers are limited; the page of an
    exporter has that in any case.
    Raises click.UsageError; the function raises click.ClickException.
    """
    try:
        server = Prometheus(prometheus, access) if prometheus else None
        pages = [Exporter(url, access, flag="--exporter") for url in dict.fromkeys(exporters)]
    except BadOption as error:
        raise click.UsageError(str(error)) from error

    def read(pod_uid: str) -> Measured:
        if server is None:
            return of_exporters(pages)
        try:
            measured = server.measured(pod_uid)
        except Unanswered as error:
            raise click.ClickException(f"{server.name}: {error}") from error
        return server.with_limits(measured, pod_uid) if limits else measured

    return read
