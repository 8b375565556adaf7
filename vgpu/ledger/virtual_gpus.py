"""KubeShare's virtual GPUs: the GPU of each, and the pods that only hold one for others. Pure.

A SharePod is reserved a GPUID, a name that its scheduler made up. Until a holder pod or a bound
SharePod names the GPU, the SharePod is on no known GPU, whatever the name looks like.
"""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import structs

from vgpu.ledger.statements import Statement
from vgpu.model.allocation import Share
from vgpu.model.facts import Grant
from vgpu.model.names import PodRef, Scheme
from vgpu.model.objects import BOUND_DEVICE, Pod
from vgpu.schemes.codec import ClaimError
from vgpu.schemes.kubeshare.node import HOLDER_NAMESPACE, HOLDER_UUID, holder
from vgpu.schemes.kubeshare.sharepod import GPUID
from vgpu.schemes.kubeshare.text import is_uuid


def holders(pods: Iterable[PodRef], node: str) -> dict[str, str]:
    """The holder pods, which keep a GPU for others and use nothing of it: UID -> GPUID."""
    gpuids = {}
    for pod in pods:
        if pod.namespace != HOLDER_NAMESPACE:
            continue
        try:
            holding = holder(Pod(pod, node=node))
        except ClaimError:
            gpuids[pod.uid] = ""
        else:
            if holding:
                gpuids[pod.uid] = holding.gpuid
    return gpuids


def of_holders(gpuids: Mapping[str, str], grants: Iterable[Grant]) -> dict[str, str]:
    """GPUID -> UUID of the GPU that its holder pod has; ``gpuids`` is by holder."""
    uuids = {}
    for grant in grants:
        gpuid = gpuids.get(grant.pod_uid)
        if gpuid and len(grant.device_ids) == 1:
            uuids[gpuid] = grant.device_ids[0].partition("::")[0]
    return uuids


def of_share_pods(pods: Iterable[Pod]) -> dict[str, str]:
    """GPUID -> UUID of the GPU to which a SharePod is bound, or that its holder pod has.

    Our node component reports the latter on the holder pod. It is needed where the last SharePod
    is gone and its pod still runs; a SharePod's own binding comes first.
    """
    reported: dict[str, str] = {}
    bound: dict[str, str] = {}
    for pod in pods:
        gpuid, uuid = pod.annotations.get(GPUID), pod.annotations.get(BOUND_DEVICE)
        if gpuid and uuid:
            bound[gpuid] = uuid
        elif pod.owner is None and is_uuid(held := pod.annotations.get(HOLDER_UUID, "")):
            reported |= dict.fromkeys(holders([pod.ref], pod.node).values(), held)
    reported.pop("", None)
    return reported | bound


def on_gpus(
    pod: Pod, statements: Iterable[Statement], uuids: Mapping[str, str]
) -> Iterator[Statement]:
    """A pod's annotated statements with the GPU of its virtual GPU; "" if no source reports it.

    A GPUID is never taken for a GPU's own name: users may call a virtual GPU 0 or GPU-1.
    """
    gpuid = pod.annotations.get(GPUID, "")
    for statement in statements:
        if gpuid and statement.scheme is Scheme.KUBESHARE:
            shares = tuple(_on_gpu(share, gpuid, uuids) for share in statement.shares)
            yield structs.replace(statement, shares=shares)
        else:
            yield statement


def _on_gpu(share: Share, gpuid: str, uuids: Mapping[str, str]) -> Share:
    if share.device != gpuid:  # the SharePod is bound, and names the GPU itself
        return share
    return structs.replace(share, device=uuids.get(gpuid, ""))
