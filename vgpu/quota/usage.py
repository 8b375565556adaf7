"""What pods count for the quotas of their namespace; pure.

A pod counts at its peak (:mod:`vgpu.model.allocation`), as everywhere. A share counts for the
model of its GPU; what Kubernetes counts has no GPU and counts for the model of the node.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from msgspec import structs

from vgpu.model.allocation import Device, Request, Share, effective, mig_slot, physical
from vgpu.model.names import ContainerKind
from vgpu.model.objects import Node, Pod
from vgpu.model.units import MIB, MILLI_PER_PERCENT
from vgpu.placement.node_view import peak_shares
from vgpu.quota.resources import CORES, GPUS, MEMORY, Amounts, hami_cores, hami_memory, plus
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.counted_claims import CountedClaim
from vgpu.schemes.pod_requests import Basis, unknown_shares
from vgpu.schemes.registry import names_of

MODEL_LABELS: Final = (
    "gaia.tencent.com/gpu-model",
    "tkestack.io/gpu-model",
    "nvidia.com/gpu.product",
)
"""A node's labels with the model of its GPUs, the first one counts (gpu-admission, its older
documentation, NVIDIA's GPU feature discovery)."""

POOL_LABELS: Final = ("gaia.tencent.com/gpu-pool", "tkestack.io/gpu-pool")
"""A node's labels with the pool of its GPUs (gpu-admission)."""


class PodUsage(msgspec.Struct, frozen=True):
    """What one pod counts: amounts by the model of the GPU, "" if the model is unknown."""

    by_model: Mapping[str, Amounts] = {}

    @property
    def total(self) -> Amounts:
        """The amounts of all models."""
        return plus(*self.by_model.values())


NOTHING: Final = PodUsage()


def node_model(node: Node | None) -> str:
    """The GPU model in the node's labels; "" if there is none."""
    return _label(node, MODEL_LABELS)


def node_pool(node: Node | None) -> str:
    """The GPU pool in the node's labels; "" if there is none."""
    return _label(node, POOL_LABELS)


def _label(node: Node | None, keys: Iterable[str]) -> str:
    return next(filter(None, (node.labels.get(key) for key in keys)), "") if node else ""


def usage_of_requests(units: Amounts, requests: Iterable[Request], model: str) -> PodUsage:
    """The usage of a pod that holds no share yet.

    ``units`` are its extended resources as Kubernetes counts them. Memory that a request leaves to
    the size of the GPU counts as nothing, so that the result is a lower bound then.
    """
    ordered = sorted(requests, key=lambda request: request.kind is ContainerKind.APP)
    if len(ordered) == 1:  # the usual case
        [only] = ordered
        memory, cores = only.count * (only.memory_bytes or 0), only.count * only.cores_milli
        shares = {GPUS: only.count, MEMORY: memory, CORES: cores}
    else:
        shares = {
            GPUS: effective((each.kind, each.count) for each in ordered),
            MEMORY: effective(
                (each.kind, each.count * (each.memory_bytes or 0)) for each in ordered
            ),
            CORES: effective((each.kind, each.count * each.cores_milli) for each in ordered),
        }
    return PodUsage(_nonempty({model: plus(units, _with_hami(shares, units))}))


def usage_of_shares(
    units: Amounts,
    shares: Iterable[Share],
    devices: Mapping[str, Device],
    model: str,
) -> PodUsage:
    """The usage of a pod that holds these shares at its peak.

    ``units`` are those of :func:`usage_of_requests`. ``devices`` are the node's under every name
    that a share may have; ``model`` is that of the node's labels, and of GPUs that name none
    themselves. A share without memory has all of its GPU's.
    """
    by_model: dict[str, list[Amounts]] = {model: [units]}
    for share in shares:
        device = devices.get(share.device)
        memory = share.memory_bytes
        if memory is None:
            memory = (device.memory_bytes if device else None) or 0
        amounts = {GPUS: 1, MEMORY: memory, CORES: share.cores_milli or 0}
        name = (device.model if device else "") or model
        by_model.setdefault(name, []).append(_with_hami(amounts, units))
    return PodUsage(_nonempty({name: plus(*each) for name, each in by_model.items()}))


def observed_usage(pod: Pod) -> PodUsage:
    """The usage of a bound pod of a system that is observed only.

    Nothing but its resources counts. A ResourceQuota limits these without a model.
    """
    return PodUsage(_nonempty({"": pod.requested_units()}))


def with_observed(by_model: Mapping[str, Amounts], pods: Iterable[Pod]) -> Mapping[str, Amounts]:
    """The amounts, and what these pods of a system that is observed only count."""
    units = plus(by_model.get("", {}), *(observed_usage(pod).total for pod in pods))
    return {**by_model, "": units} if units else by_model


def _with_hami(amounts: dict[str, int], units: Amounts) -> dict[str, int]:
    """The amounts with what HAMi counts, if the pod is one of HAMi's."""
    if names_of("hami").count in units:
        amounts[hami_memory()] = -(-amounts[MEMORY] // MIB)
        amounts[hami_cores()] = amounts[CORES] // MILLI_PER_PERCENT
    return amounts


def _nonempty(by_model: Mapping[str, Amounts]) -> dict[str, Amounts]:
    counted = {
        model: {resource: amount for resource, amount in amounts.items() if amount}
        for model, amounts in by_model.items()
    }
    return {model: amounts for model, amounts in counted.items() if amounts}


class NamespaceUsage:
    """The sum of the pods of one namespace, kept while pods come and go."""

    def __init__(self) -> None:
        self._pods: dict[str, PodUsage] = {}
        self._sums: dict[str, dict[str, int]] = {}

    def set(self, uid: str, usage: PodUsage | None) -> PodUsage | None:
        """Count a pod with this usage from now on, None no more; returns what counted before."""
        before = self._pods.pop(uid, None)
        if before is not None:
            self._add(before, -1)
        if usage is not None:
            self._pods[uid] = usage
            self._add(usage, 1)
        return before

    def of_pod(self, uid: str) -> PodUsage:
        """What a pod counts."""
        return self._pods.get(uid, NOTHING)

    @property
    def by_model(self) -> Mapping[str, Amounts]:
        """The sums by the model of the GPUs."""
        return self._sums

    def _add(self, usage: PodUsage, sign: int) -> None:
        for model, amounts in usage.by_model.items():
            sums = self._sums.setdefault(model, {})
            for resource, amount in amounts.items():
                sums[resource] = sums.get(resource, 0) + sign * amount
                if not sums[resource]:
                    del sums[resource]
            if not sums:
                del self._sums[model]


def counted_usage(
    pod: Pod,
    codec: SchemeCodec,
    counted: CountedClaim,
    devices: Mapping[str, Device],
    model: str,
) -> PodUsage:
    """The usage of a pod that is bound or has a reservation.

    ``devices`` and ``model`` are those of :func:`~vgpu.quota.usage.usage_of_shares`. A share on a
    GPU that its node does not have is on an unknown GPU, and no share counts as more than its GPU.
    """
    shares = () if counted.claim is None else peak_shares(pod, counted.claim)
    if counted.missing:
        shares = tuple(share for share in shares if physical(share.device) in devices)
    if counted.basis is Basis.NAMED:
        shares = tuple(_at_most_whole(share, devices) for share in shares)
    missing = unknown_shares(counted.missing, devices.values(), codec.unit_bytes)
    named = {**devices, **unknown_devices(missing, devices.values())}
    return usage_of_shares(pod.requested_units(), (*shares, *missing), named, model)


def unknown_devices(shares: Iterable[Share], devices: Iterable[Device]) -> dict[str, Device]:
    """The unknown GPUs of these shares, of the model that all GPUs of their node have."""
    models = {device.model for device in devices}
    model = models.pop() if len(models) == 1 else ""
    return {share.device: Device(share.device, model=model) for share in shares}


def _at_most_whole(share: Share, devices: Mapping[str, Device]) -> Share:
    device = devices.get(share.device)
    if device is None or mig_slot(share.device) or share.memory_bytes is None:
        return share
    size = device.memory_bytes
    if size is None or share.memory_bytes <= size:
        return share
    return structs.replace(share, memory_bytes=size)
