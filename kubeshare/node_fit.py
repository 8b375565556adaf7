"""Whether a node takes a pod, besides its GPU: as kube-scheduler's filters decide it. Pure.

A pod that is created with its node's name passes no scheduler, so its selector, required node
affinity, taints, cordons, readiness, CPU, memory and number of pods are checked here. Pod affinity,
topology spread, host ports and volumes are not.
"""

from collections.abc import Callable, Mapping
from typing import Final

from kubeshare.model import ClusterNode, NodeAmounts, NodeNeeds, NodeRequirement
from kubeshare.reasons import UnplacedReason
from vgpu.model.taints import untolerated

NAME_FIELD: Final = "metadata.name"
"""The only field that a node affinity can select."""


def node_refusal(
    node: ClusterNode, needs: NodeNeeds, used: NodeAmounts, chosen: str = ""
) -> UnplacedReason | None:
    """Why the node does not take a pod; None if it does.

    ``used`` is what its pods request already, ``chosen`` the node that the pod names, if any.
    """
    free = node.allocatable.minus(used)
    asked = needs.amounts
    checks = (
        (chosen not in ("", node.name), UnplacedReason.OTHER_NODE),
        (not node.is_ready, UnplacedReason.NODE_NOT_READY),
        (node.is_cordoned, UnplacedReason.CORDONED),
        (untolerated(needs.tolerations, node.taints) is not None, UnplacedReason.TAINT),
        (not _is_selected(node, needs), UnplacedReason.SELECTOR),
        (asked.cpu_milli > free.cpu_milli, UnplacedReason.CPU),
        (asked.memory_bytes > free.memory_bytes, UnplacedReason.MEMORY),
        (asked.pods > free.pods, UnplacedReason.PODS),
    )
    return next((reason for is_so, reason in checks if is_so), None)


def _is_selected(node: ClusterNode, needs: NodeNeeds) -> bool:
    selected = all(node.labels.get(key) == value for key, value in needs.selector.items())
    if needs.terms is None:
        return selected
    return selected and any(
        term and all(_meets(node, requirement) for requirement in term) for term in needs.terms
    )


def _meets(node: ClusterNode, requirement: NodeRequirement) -> bool:
    """Whether the node meets a requirement; one that cannot be read is met by no node."""
    if requirement.field and requirement.key != NAME_FIELD:
        return False
    texts: Mapping[str, str] = {NAME_FIELD: node.name} if requirement.field else node.labels
    test = _OPERATORS.get(requirement.operator)
    return test is not None and test(texts.get(requirement.key), requirement.values)


def _compares(text: str | None, values: tuple[str, ...], sign: int) -> bool:
    if text is None or len(values) != 1:
        return False
    try:
        return sign * (int(text) - int(values[0])) > 0
    except ValueError:
        return False


_OPERATORS: Final[Mapping[str, Callable[[str | None, tuple[str, ...]], bool]]] = {
    "In": lambda text, values: text is not None and text in values,
    "NotIn": lambda text, values: text is None or text not in values,
    "Exists": lambda text, values: text is not None and not values,
    "DoesNotExist": lambda text, values: text is None and not values,
    "Gt": lambda text, values: _compares(text, values, 1),
    "Lt": lambda text, values: _compares(text, values, -1),
}
"""Operators of a node affinity (k8s.io/component-helpers, nodeaffinity)."""
