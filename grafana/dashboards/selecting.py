"""PromQL expressions that select by a dashboard's variables, under any names of the labels."""

import re
from typing import Final

from grafana.promql import (
    CONTAINER,
    DEVICE,
    NODE_NAMES,
    TARGET,
    named,
    once,
    once_a_node,
    shareable,
)
from grafana.recording import teams

CLUSTER: Final = 'cluster=~"$cluster"'
NODE: Final = f'{CLUSTER}, instance=~"$node"'
"""The value of a selected node is its target's `instance`; people see and select its name."""

RECONCILER: Final = f'{CLUSTER}, instance=~"$reconciler"'

SCHEDULER: Final = f'{CLUSTER}, instance=~"$scheduler"'

TEAM: Final = f'{CLUSTER}, team=~"$team"'
"""Without a selection also what has no team, since an empty label matches everything."""

PROCESS: Final = f"{TARGET}, pod"
"""Labels that identify a reconciler: two may run on one node."""

BOTH_SCOPES: Final = (
    "Of a rule that both scopes know, the larger count: both may report the same object."
)
"""A note for panels with :func:`findings`."""

_SELECTOR: Final = re.compile(r"\b(?:\w+:)?vgpu_\w+(?::\w+)?(?:\{[^}]*\})?(?:\[[^\]]*\])?")
"""A metric or record in an expression, with its labels and its range."""

CHOSEN: Final = "CHOSEN"
"""Placeholder of the containers' selector in the argument of :func:`workload`."""

_EXPORTED: Final = f'{CLUSTER}, exported_namespace=~"$namespace", exported_namespace!="", '
_EXPORTED_POD: Final = 'exported_pod=~"$pod"'
_OWN: Final = f'{CLUSTER}, exported_namespace="", namespace=~"$namespace", pod=~"$pod"'
_OTHER_SCHEMES: Final = f'vgpu_container_info{{{CLUSTER}, scheme!~"$scheme"}}'


def of_targets(expr: str, beside: str = "") -> str:
    """``expr`` of the selected namespaces, pods and schemes, with the containers' own names.

    ``expr`` has ``CHOSEN`` for its selector; ``beside`` follows ``expr`` and needs no selector. A
    container of unknown scheme is in every scheme, so that missing data does not hide it. Two
    targets of one node have a series each, two pods of one target have one.
    """
    renamed, others = (
        f"(({expr.replace(CHOSEN, selector)}) {beside}) unless on ({CONTAINER}) {_OTHER_SCHEMES}"
        for selector in (_EXPORTED + _EXPORTED_POD, _OWN)
    )
    return named(f"(max without (pod) ({renamed}) or ({others}))")


def workload(expr: str, beside: str = "", *labels: str) -> str:
    """:func:`of_targets`, once for each container and device, whichever target reports it.

    ``labels`` are to be kept beside the names.
    """
    names = ("cluster", "namespace", "pod", "container", "pod_uid", "uuid", *labels)
    return once(", ".join(names), of_targets(expr, beside))


def with_scheme(expr: str) -> str:
    """``expr`` with the container's labels ``scheme`` and ``phase`` where they are known."""
    return (
        f"({expr}) * on ({CONTAINER}) group_left (scheme, phase)"
        f" {_one_of(CONTAINER, 'scheme, phase', 'vgpu_container_info')}"
        f" or on ({CONTAINER}, uuid) ({expr})"
    )


def with_gpu(expr: str, *labels: str) -> str:
    """``expr`` once for each device and set of ``labels``, with the GPU's number and model."""
    return (
        f"{once(', '.join((DEVICE, *labels)), expr)} * on ({DEVICE}) group_left (gpu, model)"
        f" {_one_of(DEVICE, 'gpu, model', 'vgpu_gpu_info')}"
    )


def _one_of(labels: str, more: str, info: str) -> str:
    """One series of ``info`` for each set of ``labels``, with ``more`` of its labels.

    Two targets may report different values of ``more`` for a moment.
    """
    return f"topk by ({labels}) (1, {once(f'{labels}, {more}', info)})"


def with_team(expr: str) -> str:
    """``expr`` of the namespaces of the selected teams, with the team of each."""
    return f"({expr}) * on (cluster, namespace) group_left (team) {teams(f'{{{TEAM}}}')}"


def with_node(expr: str) -> str:
    """``expr`` of exporters with the node's name, whatever the scrape job calls its target."""
    return f"({expr}) * on ({TARGET}) group_left (node) {NODE_NAMES}"


def at_end(expr: str) -> str:
    """``expr`` at the end of the time range, for a graph that selects its lines by it."""
    return _SELECTOR.sub(r"\g<0> @ end()", expr)


def largest(number: int, by: str, lines: str) -> str:
    """Those of ``lines``, which have the labels ``by``, that are the largest of now.

    ``topk`` alone selects at each point of time, so that a graph has many more lines.
    """
    return f"{lines} and on ({by}) topk({number}, {at_end(lines)})"


def hours(expr: str) -> str:
    """The integral of ``expr`` over the selected time range, in hours times its unit."""
    return f"sum_over_time(({expr})[$__range:$__interval]) * $__interval_ms / 3600000"


def findings(selector: str) -> str:
    """Findings by cluster and rule, of the scope with more findings."""
    scoped = (
        f"vgpu_reconcile_findings{{{selector}}}"
        f" * on ({PROCESS}) group_left (scope) vgpu_reconcile_info"
    )
    return f"max by (cluster, rule) (sum by (cluster, rule, scope) ({scoped}))"


def or_zero(expr: str, witness: str, **name: str) -> str:
    """``expr``, or 0 if it has no series but ``witness`` has; every measurement has a ``witness``.

    ``name`` is a label of that 0, for its legend.
    """
    zero = f"0 * sum({witness})"
    for label, words in name.items():
        zero = f'label_replace({zero}, "{label}", "{words}", "", "")'
    return f"{expr} or on () ({zero})"


def free_memory(selector: str, beside: str = "") -> str:
    """Memory of each GPU that is still to be allocated, once; ``beside`` follows it."""
    total = f"vgpu_gpu_memory_total_bytes{{{selector}}}"
    free = f"clamp_min(({shareable(total)}) - vgpu_gpu_memory_allocated_bytes, 0)"
    return once_a_node(f"{free}{beside}", "uuid", metric=total)
