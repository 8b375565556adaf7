"""Whole GPUs of NVIDIA's own plugin, which no allocation record has: what their pods hold; pure.

The kubelet alone knows which GPUs such a pod has. Their number is what the running pod requests;
their memory is not known.
"""

from collections.abc import Iterable, Iterator

from vgpu.model.objects import Node, Pod
from vgpu.model.units import WHOLE_DEVICE_MILLI
from vgpu.quota.resources import CORES, GPUS, UNKNOWN_MEMORY, Amounts
from vgpu.schemes.nvidia.resources import GPU
from vgpu.schemes.registry import names_of, registry
from vgpu.schemes.volcano.key_set import HAMI


def with_whole_gpus(
    held: Iterable[tuple[Pod, Amounts]], pods: Iterable[Pod], nodes: Iterable[Node]
) -> Iterator[tuple[Pod, Amounts]]:
    """What pods hold by the ledger, and what running pods without a record hold of whole GPUs."""
    recorded = set()
    for pod, amounts in held:
        if any(amounts.values()):
            recorded.add(pod.ref.uid)
        yield pod, amounts
    whole = {
        node.name
        for node in nodes
        if not any(row.name == HAMI.name and row.has_devices(node) for row in registry().rows)
    }
    names = names_of(HAMI.name)
    parts = {names.memory, names.percentage, names.cores}
    for pod in pods:
        if pod.phase != "Running" or pod.node not in whole or pod.ref.uid in recorded:
            continue
        units = pod.requested_units()
        gpus = units.get(GPU, 0)
        if gpus and parts.isdisjoint(units):
            amounts = {GPUS: gpus, CORES: gpus * WHOLE_DEVICE_MILLI, UNKNOWN_MEMORY: gpus}
            yield pod, amounts
