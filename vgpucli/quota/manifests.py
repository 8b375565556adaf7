"""Objects of Kubernetes that enforce quotas of shared GPUs without an extender; pure.

A native ResourceQuota counts what containers request when a pod is created. So it is exact for
resources that it can name, and knows neither GPUs, nor models, nor sums of several systems:
:func:`native_quota` names what it leaves out. The policy refuses pods of Namespaces that have the
mark :data:`vgpu.quota.check.OVER_QUOTA`. A policy sees one pod, and cannot sum.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from vgpu.model.units import GAIA_MEMORY_BLOCK, MIB, MILLI_PER_PERCENT
from vgpu.quota.check import OVER_QUOTA
from vgpu.quota.limits import NamespaceQuota, QuotaLimit
from vgpu.quota.resources import CORES, GPUS, MEMORY, OWN_RESOURCES, hami_cores, hami_memory
from vgpu.schemes.registry import names_of, registry
from vgpu.schemes.resource_names import ResourceNames

NAME: Final = "vgpu-shared-gpus"
"""The name of each proposed ResourceQuota."""

POLICY_NAME: Final = "vgpu-over-quota"
"""The name of the policy, and of its binding."""

Manifest = Mapping[str, Any]
"""An object of Kubernetes."""

_LABELS: Final = {"app.kubernetes.io/managed-by": "vgpu"}


class _Native(msgspec.Struct, frozen=True):
    """A sharing system's extended resources; "" where it has none for an amount.

    ``memory_unit`` is in bytes, None where the operator chooses it.
    """

    gpus: str = ""
    memory: str = ""
    cores: str = ""
    memory_unit: int | None = None

    def entry(self, resource: str) -> str:
        """The extended resource that counts an amount of our own."""
        return {GPUS: self.gpus, MEMORY: self.memory, CORES: self.cores}[resource]


_GPUS: Final = frozenset({"volcano", "hami"})
"""The systems whose count of GPUs is requested. A container of gpushare or gpu-manager sees one
GPU, unless it requests several whole ones; KubeShare's SharePods request nothing that Kubernetes
counts."""

_MEMORY_UNITS: Final[Mapping[str, int]] = {"hami": MIB, "gaia": GAIA_MEMORY_BLOCK}
"""Bytes of a unit of memory, where no operator chooses them."""


def _native(system: str) -> _Native:
    """A system's resources; those of a row without names have none."""
    names = registry().names.get(system, ResourceNames())
    gpus = names.count if system in _GPUS else ""
    return _Native(gpus, names.memory, names.cores, _MEMORY_UNITS.get(system))


class NativeQuota(msgspec.Struct, frozen=True):
    """What Kubernetes itself can enforce of a quota.

    Attributes:
        namespace: the namespace.
        hard: the entries of the ResourceQuota, ``requests.<resource>``.
        remarks: what the entries leave out, and where they count in another way, for people.
    """

    namespace: str
    hard: Mapping[str, str] = {}
    remarks: tuple[str, ...] = ()

    @property
    def manifest(self) -> Manifest:
        """The ResourceQuota."""
        metadata = {"name": NAME, "namespace": self.namespace, "labels": _LABELS}
        return {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": metadata,
            "spec": {"hard": dict(self.hard)},
        }


def native_quota(
    quota: NamespaceQuota, systems: Sequence[str], unit_bytes: Mapping[str, int | None]
) -> NativeQuota:
    """The native form of a quota, in a cluster with these sharing systems.

    ``systems`` are names of the registry's rows, and ``unit_bytes`` their configured units of
    memory. Limits that a ResourceQuota declares in Kubernetes' own form already are left out.
    """
    of_hami = {hami_memory(): names_of("hami").memory, hami_cores(): names_of("hami").cores}
    hard: dict[str, int] = {}
    remarks: list[str] = []

    def limit_to(resource: str, amount: int) -> None:
        entry = f"requests.{resource}"
        hard[entry] = min(amount, hard.get(entry, amount))

    for limit in quota.limits:
        if limit.model:
            remarks.append(f"left out: {limit.text}: Kubernetes counts no GPU models")
        elif limit.resource in of_hami:
            limit_to(of_hami[limit.resource], limit.amount)
        elif limit.resource in OWN_RESOURCES:
            entries, left_out = _entries(limit, systems, unit_bytes)
            for resource, amount in entries.items():
                limit_to(resource, amount)
            remarks += left_out
    if quota.node_rule is not None:
        remarks.append(f"left out: {quota.node_rule.text}: a ResourceQuota chooses no nodes")
    remarks += (
        f"left out: {unreadable.declared_in} cannot be read: {unreadable.detail}"
        for unreadable in quota.unreadable
    )
    loose = [
        system
        for system in ("volcano", "hami")
        for names in (names_of(system),)
        if hard.keys() & {f"requests.{names.memory}", f"requests.{names.cores}"}
    ]
    if loose:
        remarks.append(
            f"{' and '.join(loose)}: Kubernetes counts memory and cores once, not for each GPU of a"
            " container, and nothing for a container that requests a percentage or the whole GPU"
        )
    return NativeQuota(
        quota.namespace,
        {entry: str(amount) for entry, amount in sorted(hard.items())},
        tuple(remarks),
    )


def _entries(
    limit: QuotaLimit, systems: Sequence[str], unit_bytes: Mapping[str, int | None]
) -> tuple[dict[str, int], list[str]]:
    """The entries by extended resource, and remarks."""
    entries: dict[str, int] = {}
    without: list[str] = []
    for system in systems:
        native = _native(system)
        resource = native.entry(limit.resource)
        unit = native.memory_unit or unit_bytes.get(system)
        divisor = {GPUS: 1, MEMORY: unit, CORES: MILLI_PER_PERCENT}[limit.resource]
        if resource and divisor:
            entries[resource] = limit.amount // divisor
        else:
            without.append(system)
    remarks = [
        f"left out for {system}: {limit.text}: the system has no resource for it"
        for system in without
    ]
    if len(entries) > 1:
        names = ", ".join(sorted(entries))
        remarks.append(f"{limit.name}: Kubernetes does not add up {names}: each may reach it")
    return entries, remarks


# ---------------------------------------------------------------- the policy


def over_quota_policy() -> tuple[Manifest, Manifest]:
    """The ValidatingAdmissionPolicy that refuses pods with GPUs in marked Namespaces, its binding.

    It needs Kubernetes 1.30. It looks at what is created; pods that exist stay.
    """
    about = {"apiVersion": "admissionregistration.k8s.io/v1"}
    metadata = {"name": POLICY_NAME, "labels": _LABELS}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {
            "resourceRules": [
                _created("", "pods"),
                _created("kubeshare.nthu", "sharepods"),
            ]
        },
        "matchConditions": [
            {"name": "requests-a-shared-gpu", "expression": _requests_gpus()},
        ],
        "variables": [
            {
                "name": "mark",
                "expression": f"namespaceObject.metadata.?annotations[?'{OVER_QUOTA}'].orValue('')",
            }
        ],
        "validations": [
            {
                "expression": "variables.mark == ''",
                "messageExpression": "'namespace ' + request.namespace + ' exceeds its GPU quota ('"
                " + variables.mark + '): no further pod with GPUs is created until it is within it"
                " again'",
                "reason": "Forbidden",
            }
        ],
    }
    binding = {"policyName": POLICY_NAME, "validationActions": ["Deny"]}
    return (
        {**about, "kind": "ValidatingAdmissionPolicy", "metadata": metadata, "spec": spec},
        {
            **about,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": metadata,
            "spec": binding,
        },
    )


def _created(group: str, plural: str) -> Manifest:
    return {
        "apiGroups": [group],
        "apiVersions": ["*"],
        "operations": ["CREATE"],
        "resources": [plural],
    }


def _requests_gpus() -> str:
    """Whether the object is a SharePod, or a pod that requests a shared GPU, in CEL."""
    prefixes = registry().resource_prefixes
    renamed = sorted(name for name in registry().resource_names if not name.startswith(prefixes))
    equal = "".join(f" || name == '{name}'" for name in renamed)
    resources = _starts_with("name", prefixes) + equal
    rows = registry().rows
    labels = [mark for row in rows if not row.keys.resources for mark in row.keys.marks]
    own = {prefix for row in rows for prefix in row.keys.share_pods}
    labelled = _starts_with("key", [label for label in labels if label not in own])
    return (
        "request.resource.resource == 'sharepods'"
        " || (object.spec.containers + object.spec.?initContainers.orValue([])).exists(c,"
        f" c.?resources.?limits.orValue({{}}).exists(name, {resources}))"
        f" || object.metadata.?labels.orValue({{}}).exists(key, {labelled})"
    )


def _starts_with(name: str, prefixes: Iterable[str]) -> str:
    return " || ".join(f"{name}.startsWith('{prefix}')" for prefix in prefixes)
