"""The limits of pods in Gemini's configuration file of one GPU. Pure."""

from vgpu.model.facts import LimitFile
from vgpu.model.names import Scheme
from vgpu.model.units import percent
from vgpu.schemes.kubeshare.gemini_config import parse_config


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
