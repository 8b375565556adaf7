"""The registry's row of Tencent's gpu-manager, whose scheme is called ``gaia``."""

import re
from typing import Final

from vgpu.model.facts import LimitFile
from vgpu.model.names import Scheme
from vgpu.model.reasons import Reason, SourceError
from vgpu.schemes.gaia import vcuda_config
from vgpu.schemes.gaia.codec import (
    ASSIGNED,
    PREDICATE_INDEX,
    PREDICATE_NODE,
    PREDICATE_TIME,
    Gaia,
)
from vgpu.schemes.gaia.node import MODEL_LABEL
from vgpu.schemes.gaia.vcuda_config import CONFIG_SIZE, VCUDA_CONFIG
from vgpu.schemes.limit_ways import VCUDA
from vgpu.schemes.resource_names import ORIGINAL_NAMES, SystemNames
from vgpu.schemes.row import (
    AnnotationRepair,
    DefectCause,
    KeyPrefixes,
    LimitFiles,
    LimitLayout,
    NodeEvidence,
    SchedulerDefect,
    SchemeRow,
    WrittenKeys,
)

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


def gaia_row(names: SystemNames = ORIGINAL_NAMES) -> SchemeRow:
    """gpu-manager with its names."""
    own = names[Scheme.GAIA.value]
    return SchemeRow(
        name=Scheme.GAIA.value,
        scheme=Scheme.GAIA,
        codec=lambda _: Gaia(names=own),
        has_devices=lambda node: bool(node.capacity.get(own.cores)),
        keys=KeyPrefixes(
            resources=("tencent.com/vcuda-",),
            marks=("tencent.com/",),
            kept=("gaia.tencent.com/", "nvidia-device-enable", "clusterName"),
            evidence=("tencent.com/", *own.all),
        ),
        written=WrittenKeys(
            pods=(PREDICATE_TIME, PREDICATE_NODE, ASSIGNED, f"{PREDICATE_INDEX}*"),
            node_labels=(MODEL_LABEL,),
        ),
        evidence=NodeEvidence(
            limits=LimitFiles(
                "--limits.gaia-dir",
                "/etc/gpu-manager/vm",
                LimitLayout.CONTAINER,
                VCUDA_CONFIG,
                CONFIG_SIZE,
                read_limits,
            )
        ),
        repair=AnnotationRepair(
            reservation=(PREDICATE_TIME, PREDICATE_NODE), allocated=((ASSIGNED, "true"),)
        ),
        defect=SchedulerDefect(DefectCause.CACHE_BEHIND),
        adapter="gaia",
        limit_way=VCUDA,
        names=own,
        with_names=gaia_row,
    )


GAIA_ROW: Final = gaia_row()
