"""Limits where operators declare them; pure.

* a ResourceQuota: ``requests.<resource>``, which the API server enforces itself when pods are
  created, and HAMi's ``limits.nvidia.com/gpumem`` and ``gpucores``, or whatever its resources are
  called, which only HAMi's scheduler did;
* gpu-admission's ConfigMap ``kube-system/gpuquota`` (gpu-admission before commit f7d98683);
* annotations of the Namespace, for all sharing systems together.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from vgpu.kube.dump import GPU_QUOTA, GPU_QUOTA_NAMESPACE
from vgpu.kube.quantities import QUOTED, whole
from vgpu.model.go_json import decode_go
from vgpu.model.objects import Namespace, ResourceQuota
from vgpu.model.units import MILLI_PER_PERCENT, WHOLE_DEVICE_PERCENT
from vgpu.quota.resources import CORES, GPUS, MEMORY, hami_cores, hami_memory
from vgpu.schemes.registry import names_of

ANNOTATIONS: Final[Mapping[str, str]] = {
    "vgpu.dev/quota-gpus": GPUS,
    "vgpu.dev/quota-memory": MEMORY,
    "vgpu.dev/quota-cores": CORES,
}
"""The annotations of a Namespace, and the resource that each one limits.

The value is an amount, or amounts of GPU models, joined by commas: ``200Gi, A100=80Gi``. Memory is
a quantity in bytes, cores are percent of a GPU.
"""

GPU_QUOTA_KEY: Final = "gpu_quota"
"""The key of gpu-admission's ConfigMap."""

_REQUESTS: Final = "requests."
_MODEL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/+-]{0,62}")


class DeclaredLimit(msgspec.Struct, frozen=True):
    """One declaration.

    Attributes:
        resource: what it limits (:mod:`vgpu.quota.resources`).
        amount: the maximum, in the resource's unit.
        declared_in: the object and key, for people.
        model: the GPU model that it is about; "" is all.
    """

    resource: str
    amount: int
    declared_in: str
    model: str = ""


class UnreadableLimit(msgspec.Struct, frozen=True):
    """A declaration whose amount cannot be read.

    ``resource`` is what it limits, "" if it may limit everything.
    """

    resource: str
    declared_in: str
    detail: str


class NodeRule(msgspec.Struct, frozen=True):
    """On which nodes gpu-manager's pods of a namespace may run.

    Attributes:
        declared_in: the object and key, for people.
        models: the allowed models, by the node's label; None is all.
        pools: the allowed pools, by the node's label; none is all.
    """

    declared_in: str
    models: frozenset[str] | None = None
    pools: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        """The rule with where it is declared, for people."""
        models = "any model" if self.models is None else f"models {_names(self.models)}"
        pools = f"pools {_names(self.pools)}" if self.pools else "any pool"
        return f"gpu-manager's pods: GPUs of {models}, of {pools} ({self.declared_in})"


class Declarations(msgspec.Struct, frozen=True):
    """What is declared for one namespace.

    Attributes:
        limits: the readable limits.
        unreadable: the others.
        node_rule: gpu-admission's rule about nodes.
        left_to_kubernetes: ResourceQuotas that are about some of the pods only.
    """

    limits: tuple[DeclaredLimit, ...] = ()
    unreadable: tuple[UnreadableLimit, ...] = ()
    node_rule: NodeRule | None = None
    left_to_kubernetes: tuple[str, ...] = ()


class _Entry(msgspec.Struct, frozen=True):
    """A namespace of gpu-admission's ConfigMap; ``quota`` is whole GPUs by model."""

    quota: dict[str, int] | None = None
    pool: list[str] | None = None


_ENTRIES: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENTRY: Final = msgspec.json.Decoder(_Entry)


class GpuAdmissionQuota(msgspec.Struct, frozen=True):
    """gpu-admission's ConfigMap: entries by namespace; ``error`` is why none can be read."""

    entries: Mapping[str, msgspec.Raw] = {}
    error: str = ""


NO_CONFIG_MAP: Final = GpuAdmissionQuota()


def declares_quota(namespace: Namespace) -> bool:
    """Whether the Namespace has an annotation of a quota."""
    return not ANNOTATIONS.keys().isdisjoint(namespace.annotations)


def gpu_admission_quota(data: Mapping[str, str] | None) -> GpuAdmissionQuota:
    """The data of the ConfigMap; None where there is none, which is no quota."""
    text = (data or {}).get(GPU_QUOTA_KEY, "")
    if not text.strip():
        return NO_CONFIG_MAP
    try:
        entries = decode_go(text.encode(errors="replace"), _ENTRIES)
    except (msgspec.DecodeError, RecursionError) as error:
        return GpuAdmissionQuota(error=str(error))
    return GpuAdmissionQuota(entries)


def declarations(
    name: str,
    quotas: Iterable[ResourceQuota] = (),
    namespace: Namespace | None = None,
    gpu_admission: GpuAdmissionQuota = NO_CONFIG_MAP,
) -> Declarations:
    """All that is declared for the namespace of this name. Never raises.

    ``quotas`` are the namespace's own.
    """
    of_quotas = sorted(quotas, key=lambda quota: quota.name)
    found = [
        *(each for quota in of_quotas if not quota.scoped for each in _of_quota(quota)),
        *(_of_annotations(namespace) if namespace else ()),
    ]
    limits, unreadable, node_rule = _of_gpu_admission(name, gpu_admission)
    return Declarations(
        (*(each for each in found if isinstance(each, DeclaredLimit)), *limits),
        (*(each for each in found if isinstance(each, UnreadableLimit)), *unreadable),
        node_rule,
        tuple(f"ResourceQuota {name}/{quota.name}" for quota in of_quotas if quota.scoped),
    )


def _of_quota(quota: ResourceQuota) -> Iterator[DeclaredLimit | UnreadableLimit]:
    of_hami = (hami_memory(), hami_cores())
    for entry, text in sorted(quota.hard.items()):
        if entry in of_hami:
            resource = entry
        elif entry.startswith(_REQUESTS):
            resource = entry.removeprefix(_REQUESTS)
        else:
            continue  # of another resource's limits neither Kubernetes nor an original reads
        declared_in = f"ResourceQuota {quota.namespace}/{quota.name}, {entry}"
        amount = whole(text)
        if amount is None:
            detail = f"not a whole number: {text[:QUOTED]!r}"
            yield UnreadableLimit(resource, declared_in, detail)
        else:
            yield DeclaredLimit(resource, amount, declared_in)


def _of_annotations(namespace: Namespace) -> Iterator[DeclaredLimit | UnreadableLimit]:
    for key, resource in ANNOTATIONS.items():
        text = namespace.annotations.get(key)
        for part in text.split(",") if text is not None else ():
            yield _part(resource, part.strip(), f"Namespace {namespace.name}, {key}")


def _part(resource: str, part: str, declared_in: str) -> DeclaredLimit | UnreadableLimit:
    model, separator, quantity = part.rpartition("=")
    model = model.strip()
    if separator and not _MODEL.fullmatch(model):
        return UnreadableLimit(resource, declared_in, f"not a GPU model: {model[:QUOTED]!r}")
    amount = whole(quantity.strip())
    if amount is None:
        return UnreadableLimit(resource, declared_in, f"not an amount: {quantity[:QUOTED]!r}")
    units = amount * MILLI_PER_PERCENT if resource == CORES else amount
    return DeclaredLimit(resource, units, declared_in, model)


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _of_gpu_admission(
    name: str, quota: GpuAdmissionQuota
) -> tuple[list[DeclaredLimit], list[UnreadableLimit], NodeRule | None]:
    cores = names_of("gaia").cores
    where = f"ConfigMap {GPU_QUOTA_NAMESPACE}/{GPU_QUOTA}, {GPU_QUOTA_KEY}"
    if quota.error:
        return [], [UnreadableLimit(cores, where, quota.error)], None
    if name not in quota.entries:
        return [], [], None
    declared_in = f"{where}, {name}"
    try:
        entry = decode_go(quota.entries[name], _ENTRY)
    except (msgspec.DecodeError, RecursionError) as error:
        return [], [UnreadableLimit(cores, declared_in, str(error))], None
    gpus = entry.quota
    below_zero = sorted(model for model, number in (gpus or {}).items() if number < 0)
    if below_zero:
        detail = f"less than no GPU of model {below_zero[0][:QUOTED]!r}"
        return [], [UnreadableLimit(cores, declared_in, detail)], None
    limits = [
        DeclaredLimit(cores, number * WHOLE_DEVICE_PERCENT, declared_in, model)
        for model, number in sorted((gpus or {}).items())
    ]
    models = None if gpus is None else frozenset(gpus)
    return limits, [], NodeRule(declared_in, models, frozenset(entry.pool or ()))
