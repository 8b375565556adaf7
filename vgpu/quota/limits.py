"""The limits of a namespace, resolved once: one for each resource and GPU model; pure.

Where several objects limit the same, every one of them has to hold, as with Kubernetes' own quotas:
the lowest counts, and the others are kept as what contradicts it.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from vgpu.model.objects import Namespace, Node, ResourceQuota
from vgpu.quota.declarations import (
    Declarations,
    DeclaredLimit,
    NodeRule,
    UnreadableLimit,
    declarations,
    gpu_admission_quota,
)
from vgpu.quota.resources import Amounts, amount_text
from vgpu.schemes.registry import names_of

_WORDS: Final = re.compile(r"[a-z0-9]+")
_REMEMBERED: Final = 4096
"""Number of pairs of models that are cached; a cluster has a few."""


class QuotaLimit(msgspec.Struct, frozen=True):
    """One limit of a namespace.

    Attributes:
        resource: what it limits (:mod:`vgpu.quota.resources`).
        model: the GPU model that it is about; "" is all.
        amount: the maximum, in the resource's unit.
        declared: the declarations, the lowest first.
    """

    resource: str
    model: str
    amount: int
    declared: tuple[DeclaredLimit, ...]

    @property
    def name(self) -> str:
        """Resource and model, for people."""
        return f"{self.resource} of {self.model}" if self.model else self.resource

    @property
    def text(self) -> str:
        """The limit with where it is declared, for people."""
        amount = amount_text(self.resource, self.amount)
        return f"{self.name}: {amount} ({self.declared[0].declared_in})"

    @property
    def contradicted_by(self) -> tuple[DeclaredLimit, ...]:
        """The declarations of another amount."""
        return tuple(each for each in self.declared if each.amount != self.amount)

    def of(self, by_model: Mapping[str, Amounts]) -> int:
        """The part of these amounts by model that it limits."""
        return sum(
            amounts.get(self.resource, 0)
            for model, amounts in by_model.items()
            if is_of_model(self.model, model)
        )


class NamespaceQuota(msgspec.Struct, frozen=True):
    """The resolved quota of a namespace.

    Attributes:
        namespace: its name.
        limits: by resource and model.
        unreadable: declarations whose amount is unknown.
        node_rule: on which nodes gpu-manager's pods may run; None is everywhere.
        left_to_kubernetes: ResourceQuotas that are about some of the pods only, for people.
    """

    namespace: str
    limits: tuple[QuotaLimit, ...] = ()
    unreadable: tuple[UnreadableLimit, ...] = ()
    node_rule: NodeRule | None = None
    left_to_kubernetes: tuple[str, ...] = ()

    @property
    def needs_placement(self) -> bool:
        """Whether a limit or rule depends on the node."""
        return self.node_rule is not None or any(limit.model for limit in self.limits)

    def __bool__(self) -> bool:
        """Whether it limits anything."""
        return bool(self.limits or self.unreadable or self.node_rule)


def resolve(namespace: str, declared: Declarations) -> NamespaceQuota:
    """The quota of a namespace from what is declared for it."""
    by_key: dict[tuple[str, str], list[DeclaredLimit]] = {}
    for limit in declared.limits:
        by_key.setdefault((limit.resource, limit.model), []).append(limit)
    return NamespaceQuota(
        namespace,
        tuple(_lowest(limits) for _, limits in sorted(by_key.items())),
        declared.unreadable,
        declared.node_rule,
        declared.left_to_kubernetes,
    )


def _lowest(limits: Iterable[DeclaredLimit]) -> QuotaLimit:
    ordered = sorted(limits, key=lambda limit: (limit.amount, limit.declared_in))
    first = ordered[0]
    return QuotaLimit(first.resource, first.model, first.amount, tuple(ordered))


@lru_cache(_REMEMBERED)
def is_of_model(wanted: str, model: str) -> bool:
    """Whether a GPU model is meant by the words of ``wanted``; "" means every model.

    The words of ``wanted`` stand one after another in the model, whatever the case and what is
    between them: ``A100`` and ``a100-sxm4`` mean ``NVIDIA A100-SXM4-80GB``, and ``A10`` does not.
    """
    words, all_words = _words(wanted), _words(model)
    if not wanted:
        return True
    length = len(words)
    return bool(words) and any(
        all_words[start : start + length] == words for start in range(len(all_words) - length + 1)
    )


def _words(text: str) -> list[str]:
    return _WORDS.findall(text.lower())


def has_gpu_admission(nodes: Iterable[Node]) -> bool:
    """Whether gpu-manager shares GPUs of the cluster, so that gpu-admission's quota counts."""
    cores = names_of("gaia").cores
    return any(node.capacity.get(cores) for node in nodes)


def cluster_quotas(
    namespaces: Iterable[Namespace],
    quotas: Iterable[ResourceQuota],
    gpu_quota: Mapping[str, str] | None,
    also: Iterable[str] = (),
) -> dict[str, NamespaceQuota]:
    """The quota of each namespace that has one, by name.

    ``gpu_quota`` is the data of gpu-admission's ConfigMap, None if there is none. ``also`` are
    names of namespaces with pods: a ConfigMap that cannot be read is about them, too.
    """
    by_name = {namespace.name: namespace for namespace in namespaces}
    by_namespace: dict[str, list[ResourceQuota]] = {}
    for quota in quotas:
        by_namespace.setdefault(quota.namespace, []).append(quota)
    gpu_admission = gpu_admission_quota(gpu_quota)
    names = {*by_name, *by_namespace, *gpu_admission.entries, *also}
    resolved = (
        resolve(
            name,
            declarations(name, by_namespace.get(name, ()), by_name.get(name), gpu_admission),
        )
        for name in sorted(names)
    )
    return {quota.namespace: quota for quota in resolved if quota}
