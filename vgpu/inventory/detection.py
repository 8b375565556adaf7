"""Which schemes share the GPUs of a cluster, which pods use them, and in which units."""

import msgspec

from vgpu.inventory.model import Objects, Units
from vgpu.model.objects import Pod
from vgpu.schemes.codec import SchemeCodec
from vgpu.schemes.registry import UnitBytes, registry


class DetectedSchemes(msgspec.Struct, frozen=True):
    """The pods that share GPUs, and the codecs that read them.

    Attributes:
        pods: the pods that share, joined with their SharePods; also SharePods without a pod.
        codecs: those of the schemes that some node or pod uses, in their units.
        nvidia: UIDs of pods with GPUs, replicas or MIG instances of NVIDIA's own device plugin.
        unit_bytes: bytes of one unit of memory in force, by the name of the registry's row.
        notes: the assumptions about the units, as sentences.
    """

    pods: tuple[Pod, ...]
    codecs: tuple[SchemeCodec, ...]
    nvidia: frozenset[str] = frozenset()
    unit_bytes: UnitBytes = {}
    notes: tuple[str, ...] = ()


def detect_schemes(objects: Objects, units: Units) -> DetectedSchemes:
    """Find the pods that share GPUs and the codecs that read them. Never raises."""
    schemes = registry()
    joined = schemes.join(objects.pods, objects.share_pods)
    is_foreign = schemes.foreign(objects.nodes)
    nvidia = frozenset(pod.ref.uid for pod in joined if is_foreign(pod))
    pods = tuple(pod for pod in joined if pod.ref.uid not in nvidia)
    unit_bytes, notes = schemes.assumed_units(units.by_row, objects.nodes)
    codecs = schemes.used(schemes.codecs(unit_bytes), objects.nodes, pods)
    return DetectedSchemes(pods, codecs, nvidia, unit_bytes, notes)
