"""The limits in a container's ``vcuda.config``. Pure."""

import re

from vgpu.model.facts import LimitFile
from vgpu.model.names import Scheme
from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.gaia import vcuda_config

_CONTAINER_ID = re.compile(r"[0-9a-f]{64}")


def read_limits(content: bytes, path: str, object_name: str) -> tuple[LimitFile, ...]:
    """The limits of the container whose folder the file lies in.

    ``path`` ends in ``<podUID>/<containerID>/vcuda.config``; ``object_name`` is the path as
    messages have it. Raises SourceError.
    """
    config = vcuda_config.decode(content, object_name)
    pod_uid, folder = path.split("/")[-3:-1]
    if config.pod_uid != pod_uid:
        raise SourceError(Reason.MALFORMED, object_name, f"it names the pod {config.pod_uid}")
    # gpu-manager names the folder after the container where it does not know the id.
    by_id = _CONTAINER_ID.fullmatch(folder) is not None
    limit = LimitFile(
        scheme=Scheme.GAIA,
        path=object_name,
        pod_uid=pod_uid,
        container=config.container or ("" if by_id else folder),
        container_id=folder if by_id else "",
        pci_bus_id=config.bus_id,
        memory_bytes=config.memory_bytes if config.enable else None,
        cores_percent=config.cores_limit_percent if config.enable else None,
        cores_request_percent=config.utilization_percent,
    )
    return (limit,)
