"""The registry's row of KubeShare, of both releases."""

from typing import Final

from vgpu.model.facts import LimitFile
from vgpu.model.names import Scheme
from vgpu.model.objects import Node, Pod
from vgpu.model.units import percent
from vgpu.schemes.codec import ClaimError, SchemeCodec
from vgpu.schemes.kubeshare.codec import KubeShare
from vgpu.schemes.kubeshare.gemini_config import CONFIG_LIMIT, parse_config
from vgpu.schemes.kubeshare.labels import CLAIM
from vgpu.schemes.kubeshare.node import GPU_INFO, holder
from vgpu.schemes.kubeshare.sharepod import GPUID, PREFIX, join
from vgpu.schemes.limit_ways import GEMINI
from vgpu.schemes.row import (
    KeyPrefixes,
    LimitFiles,
    LimitLayout,
    NodeEvidence,
    SchemeRow,
    WrittenKeys,
)


def read_limits(content: bytes, path: str, object_name: str) -> tuple[LimitFile, ...]:
    """The limits of the pods that may use the GPU after which the file is named.

    ``object_name`` is the path as messages have it. Raises SourceError.
    """
    return tuple(
        LimitFile(
            scheme=Scheme.KUBESHARE,
            path=object_name,
            namespace=pod.namespace,
            pod=pod.pod,
            device=path.rpartition("/")[2],
            memory_bytes=pod.memory_bytes,
            cores_percent=percent(pod.limit_milli),
            cores_request_percent=percent(pod.request_milli),
        )
        for pod in parse_config(content, object_name)
    )


def _codec(_: int | None) -> SchemeCodec:
    return KubeShare()


def _has_devices(node: Node) -> bool:
    return bool(node.annotations.get(GPU_INFO))


def _is_holder(pod: Pod) -> bool:
    """Whether it is a holder pod, also if the GPU that it holds cannot be read."""
    try:
        return holder(pod) is not None
    except ClaimError:
        return True


KUBESHARE_ROW: Final = SchemeRow(
    name=Scheme.KUBESHARE.value,
    scheme=Scheme.KUBESHARE,
    codec=_codec,
    has_devices=_has_devices,
    keys=KeyPrefixes(
        marks=("kubeshare/", "sharedgpu/"),
        kept=("SharedGPU", "component"),
        evidence=("kubeshare/", "sharedgpu/"),
        share_pods=(PREFIX,),  # release 2 has no SharePods
    ),
    written=WrittenKeys(pods=(GPUID, *CLAIM)),
    evidence=NodeEvidence(
        limits=LimitFiles(
            "--limits.kubeshare-dir",
            "/kubeshare/scheduler/config",
            LimitLayout.GPU,
            "",
            CONFIG_LIMIT,
            read_limits,
        )
    ),
    has_allocate=False,  # holder pods stand in place of a plugin of its own
    join=join,
    keeps_for_others=_is_holder,
    limit_way=GEMINI,
)
