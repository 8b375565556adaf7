"""The pods of each virtual GPU: the state of KubeShare's device manager for one node.

A virtual GPU lives from its first pod to its last. Sums are of whole thousandths and bytes:
KubeShare's own floating-point sums refuse 20 × 0.05, which its scheduler has placed.
"""

from collections.abc import Mapping

import msgspec
from msgspec import structs

from vgpu.schemes.kubeshare.daemon import ErrorCode
from vgpu.schemes.kubeshare.gemini_config import SharedPod
from vgpu.units import WHOLE_DEVICE_MILLI


class Pool(msgspec.Struct, frozen=True):
    """A node's virtual GPUs: each with its GPU's UUID, "" while its holder starts, and pods."""

    uuids: Mapping[str, str] = {}
    pods: Mapping[str, tuple[SharedPod, ...]] = {}


def admit(
    pool: Pool, gpuid: str, pod: SharedPod, memory_bytes: int | None = None
) -> tuple[Pool, ErrorCode]:
    """Put a pod on a virtual GPU; a GPUID that is not there yet gets a holder.

    ``memory_bytes`` is the GPU's; None is not checked, as KubeShare 1 does not. A pod that is
    there already stays there: asking again is how a SharePod waits for its holder.
    """
    tenants = pool.pods.get(gpuid, ())
    names = {(tenant.namespace, tenant.pod) for tenant in tenants}
    if (pod.namespace, pod.pod) not in names:
        tenants = (*tenants, pod)
        requested = sum(tenant.request_milli for tenant in tenants)
        claimed = sum(tenant.memory_bytes for tenant in tenants)
        if requested > WHOLE_DEVICE_MILLI or (memory_bytes is not None and claimed > memory_bytes):
            return pool, ErrorCode.RESOURCE_EXCEEDED
        uuids = {**pool.uuids, gpuid: pool.uuids.get(gpuid, "")}
        pool = Pool(uuids, {**pool.pods, gpuid: tenants})
    return pool, ErrorCode.OK if pool.uuids[gpuid] else ErrorCode.WAIT_FOR_HOLDER


def holder_reported(pool: Pool, gpuid: str, uuid: str) -> Pool:
    """The pool after a holder reported its GPU. An unknown virtual GPU changes nothing."""
    if gpuid not in pool.uuids:
        return pool
    return structs.replace(pool, uuids={**pool.uuids, gpuid: uuid})


def dismiss(pool: Pool, gpuid: str, namespace: str, pod: str) -> Pool:
    """Take a pod off a virtual GPU, which goes with its last pod."""
    tenants = tuple(
        tenant
        for tenant in pool.pods.get(gpuid, ())
        if (tenant.namespace, tenant.pod) != (namespace, pod)
    )
    pods = {name: held for name, held in pool.pods.items() if name != gpuid}
    if tenants:
        return structs.replace(pool, pods={**pods, gpuid: tenants})
    return Pool({name: uuid for name, uuid in pool.uuids.items() if name != gpuid}, pods)
