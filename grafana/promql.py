"""A rule as a value, and the PromQL expressions that several rules share."""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final

import msgspec

TARGET: Final = "cluster, job, instance"
GPU: Final = f"{TARGET}, uuid"
CONTAINER: Final = f"{TARGET}, pod_uid, container, exported_container"
"""Labels that identify a scrape target, a device of it, a container on it: for `on (…)`.

A label that is not set is empty, so that a single cluster needs no label `cluster`."""

DEVICE: Final = "cluster, uuid"
SHARE: Final = "cluster, pod_uid, container, uuid"
"""Labels that identify a device, and a container on it, whichever target reports them.

Two targets report one node while an exporter's pod replaces another, or where two scrape jobs find
it. So what is added up is first reduced to one series for each device or share of a node
(:func:`once_a_node`). ``container`` is the container's own name (:func:`named`).
"""

PLUGIN_TARGET: Final = f"{TARGET}, pod"
"""Labels of a device plugin: a node of several schemes has one plugin of each, under its name."""

NODE: Final = f"{TARGET}, node"
"""For `by (…)`: a `node` label that the scrape job gives its targets is kept."""


class AlertSeverity(StrEnum):
    """The severity of an alert."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class Alert(msgspec.Struct, frozen=True):
    """An alert.

    Attributes:
        name: ``Vgpu…``; its runbook has the same name.
        severity: that of ``monitoring.alerts: all``; :mod:`grafana.severities` has the default.
            critical pages a person, warning waits for the morning, info needs no reaction.
        expr: PromQL.
        pending: minimum time for which it must be true (``for``), "" for none.
        summary: the problem, in a line.
        description: the problem's numbers, and the first step.
        keep: time for which it goes on firing when it is no longer true (``keep_firing_for``), so
            that a value around its threshold is one alert; "" for none.
    """

    name: str
    severity: AlertSeverity
    expr: str
    pending: str
    summary: str
    description: str
    keep: str = ""


class RecordingRule(msgspec.Struct, frozen=True):
    """A recording rule; ``name`` is ``level:metric:operation``, ``about`` is its meaning."""

    name: str
    expr: str
    about: str


class RuleGroup(msgspec.Struct, frozen=True):
    """Rules that are evaluated one after another."""

    name: str
    rules: tuple[Alert | RecordingRule, ...]


def any_of(values: Iterable[object]) -> str:
    """A pattern for `=~` that matches exactly these values."""
    return "|".join(map(str, values))


def gained(metric: str, window: str) -> str:
    """The growth of counters in the window; a counter that is new in the window grew from 0.

    ``increase`` does not see the first event of a series that begins with it. After a restart, the
    growth is the count since the restart.
    """
    return f"(({metric} - {metric} offset {window} >= 0) or {metric})"


def failed_part(requests: str, codes: str) -> str:
    """The part of failed requests to the API server; ``requests`` is the requests' counter."""
    failed, all_ = (
        f"sum without (verb, code) (rate({requests}{which}[15m]))"
        for which in (f'{{code=~"{codes}"}}', "")
    )
    return f"{failed} / {all_}"


def named(expr: str, *labels: str) -> str:
    """The expression with the container's own names in ``labels``.

    Without ``honor_labels: true`` the names are in ``exported_…``, beside those of the exporter's
    pod; with it there is no such label, and nothing is replaced. Without it, a container whose pod
    has no known name also seems to be in the exporter's namespace: Prometheus drops empty labels.
    """
    for label in labels or ("namespace", "pod", "container"):
        expr = f'label_replace({expr}, "{label}", "$1", "exported_{label}", "(.+)")'
    return expr


def own_names(expr: Callable[[str], str], *labels: str) -> str:
    """``expr(which)`` of containers with their own names, once for all pods of one target.

    ``which`` is a matcher of the containers' series. Without ``honor_labels: true``, two pods of
    the exporter have series of one container that differ only by the pod of the target:
    :func:`named` would make them equal, and an expression with equal series fails.
    """
    renamed, others = expr('exported_pod!=""'), expr('exported_pod=""')
    return named(f"(max without (pod) ({renamed}) or ({others}))", *labels)


def once(labels: str, expr: str) -> str:
    """``expr`` once for each set of these labels: of several series the largest value."""
    return f"max by ({labels}) ({expr})"


NODE_NAMES: Final = once(f"{TARGET}, node", "vgpu_node_info")
"""The name of each target's node, once where one pod of the exporter follows another."""


def on_node(expr: str, metric: str) -> str:
    """``expr``, which is made of ``metric`` of exporters, with the name of the node.

    It is the name that the exporter reports. Without it, as in the series of an older exporter, it
    is the label ``node`` of the target, or else its instance.
    """
    targets = f'label_replace(group by ({NODE}) ({metric}), "own_node", "$1", "node", "(.+)")'
    for source in ("instance", "own_node"):
        targets = f'label_replace({targets}, "node", "$1", "{source}", "(.+)")'
    names = f"({NODE_NAMES} or on ({TARGET}) {targets})"
    return f"({expr}) * on ({TARGET}) group_left (node) {names}"


def once_a_node(expr: str, *labels: str, metric: str = "") -> str:
    """``expr`` of exporters once for each node and set of ``labels``, whoever reports it.

    ``metric`` is what ``expr`` is made of, if it is more than a metric.
    """
    return once(", ".join(("cluster", "node", *labels)), on_node(expr, metric or expr))


def of_pods(expr: Callable[[str, str], str], by: str) -> str:
    """What ``expr(by, which)`` aggregates, with each pod's own namespace and name.

    ``by`` are the labels to keep beside these two, ``which`` is a matcher of ``expr``'s series.
    After the pod of a target was replaced, both its pods have series in a time range, which differ
    only by the pod of the target if there is no ``honor_labels: true``. :func:`named` would make
    them equal, and an expression with equal series fails. So they are aggregated before.
    """
    renamed = expr(f"{by}, exported_namespace, exported_pod", 'exported_pod!=""')
    others = expr(f"{by}, namespace, pod", 'exported_pod=""')
    return named(f"(({renamed}) or ({others}))", "namespace", "pod")


_SPLIT_GPUS: Final = (
    f'label_replace(group by ({TARGET}, parent_uuid) (vgpu_gpu_info{{parent_uuid!=""}}),'
    ' "uuid", "$1", "parent_uuid", "(.+)")'
)


def shareable(metric: str) -> str:
    """The metric of every device that can be allocated: without GPUs that are split by MIG."""
    return f"{metric} unless on ({GPU}) {_SPLIT_GPUS}"
