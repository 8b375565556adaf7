"""The turns of PromQL that choose what a dashboard's variables say, whatever labels are called."""

from typing import Final

from grafana.promql import CARD, CONTAINER, TARGET, named, shareable

CLUSTER: Final = 'cluster=~"$cluster"'
NODE: Final = f'{CLUSTER}, instance=~"$node"'
"""A node is known by its target's `instance`, which every scrape job has; let it be its name."""

RECONCILER: Final = f'{CLUSTER}, instance=~"$reconciler"'

PROCESS: Final = f"{TARGET}, pod"
"""What identifies a reconciler: two may run on one node."""

BOTH_SCOPES: Final = (
    "Of a rule that both scopes know, the larger count: both may report the same object."
)
"""What a reader of :func:`findings` should know."""

CHOSEN: Final = "CHOSEN"
"""Stands for the selector of containers in what :func:`workload` takes."""

_EXPORTED: Final = f'{CLUSTER}, exported_namespace=~"$namespace", exported_namespace!="", '
_EXPORTED_POD: Final = 'exported_pod=~"$pod"'
_OWN: Final = f'{CLUSTER}, exported_namespace="", namespace=~"$namespace", pod=~"$pod"'
_OTHER_SCHEMES: Final = f'vgpu_container_info{{{CLUSTER}, scheme!~"$scheme"}}'


def workload(expr: str, beside: str = "") -> str:
    """``expr`` of the chosen namespaces, pods and schemes, with the containers' own names.

    ``expr`` has ``CHOSEN`` for its selector, ``beside`` follows it and needs none. A container
    whose scheme is unknown counts to each: what is missing must not hide it.
    """
    either = " or ".join(
        expr.replace(CHOSEN, selector) for selector in (_EXPORTED + _EXPORTED_POD, _OWN)
    )
    return named(f"(({either}) {beside}) unless on ({CONTAINER}) {_OTHER_SCHEMES}")


def with_scheme(expr: str) -> str:
    """With the labels ``scheme`` and ``phase`` of the container where they are known."""
    return (
        f"({expr}) * on ({CONTAINER}) group_left (scheme, phase) vgpu_container_info"
        f" or on ({CONTAINER}, uuid) ({expr})"
    )


def with_card(expr: str) -> str:
    """With the GPU's number and model."""
    return f"({expr}) * on ({CARD}) group_left (gpu, model) vgpu_gpu_info"


def findings(selector: str) -> str:
    """Findings by cluster and rule: those of the scope that finds more of them."""
    scoped = (
        f"vgpu_reconcile_findings{{{selector}}}"
        f" * on ({PROCESS}) group_left (scope) vgpu_reconcile_info"
    )
    return f"max by (cluster, rule) (sum by (cluster, rule, scope) ({scoped}))"


def or_zero(expr: str, witness: str, **name: str) -> str:
    """0 if ``expr`` has no series but ``witness``, which is there whenever somebody looked, has.

    ``name`` is a label of that zero, for its legend.
    """
    zero = f"0 * sum({witness})"
    for label, words in name.items():
        zero = f'label_replace({zero}, "{label}", "{words}", "", "")'
    return f"{expr} or on () ({zero})"


def free_memory(selector: str) -> str:
    """Memory of each GPU that is still to be allocated."""
    total = shareable(f"vgpu_gpu_memory_total_bytes{{{selector}}}")
    return f"clamp_min(({total}) - vgpu_gpu_memory_allocated_bytes, 0)"
