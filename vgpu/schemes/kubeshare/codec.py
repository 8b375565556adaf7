"""The codec of KubeShare, both releases.

A request is two decimals, thousandths of one GPU, and bytes; it is a whole pod's, never one
container's. Release 1 is asked by SharePods (:mod:`vgpu.schemes.kubeshare.sharepod`), release 2 by
labels of plain pods (:mod:`vgpu.schemes.kubeshare.labels`); both are read at once. What happens on
the node is in :mod:`vgpu.schemes.kubeshare.node` and :mod:`vgpu.schemes.kubeshare.gemini_config`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Final

from vgpu.model.allocation import Allocation, Claim, Device, Request
from vgpu.model.names import Phase, PodRef, Scheme
from vgpu.model.objects import Node, Pod
from vgpu.schemes.codec import (
    VISIBLE_DEVICES,
    BaseCodec,
    ClaimError,
    ContainerEdits,
    Mount,
    Slot,
)
from vgpu.schemes.kubeshare import labels as kubeshare_labels
from vgpu.schemes.kubeshare import sharepod as kubeshare_sharepod
from vgpu.schemes.kubeshare.gemini_config import client_name
from vgpu.schemes.kubeshare.node import GPU_INFO, parse_gpu_info
from vgpu.schemes.kubeshare.text import UUID, resolve
from vgpu.schemes.text import object_name_of

GPU_RESOURCE: Final = "nvidia.com/gpu"
"""What a holder pod requests of NVIDIA's plugin; the IDs are UUIDs, time-sliced ``<uuid>::<i>``."""

PORT_VARIABLE: Final = "POD_MANAGER_PORT"
"""The variable with the port of a container's pod manager."""

LIBRARY: Final = "/kubeshare/library"
_REPLICA = re.compile(rf"({UUID})(?:::([0-9]{{1,6}}))?")


class Release(IntEnum):
    """The release whose annotations are written."""

    SHARE_PODS = 1
    LABELS = 2


class KubeShare(BaseCodec, frozen=True):
    """The codec of KubeShare.

    Attributes:
        release: the release whose annotations are written.
        library: the host's folder with Gemini's hook, the same in containers.
    """

    release: Release = Release.SHARE_PODS
    library: str = LIBRARY

    @property
    def name(self) -> str:
        """The name of its row."""
        return "kubeshare"

    @property
    def scheme(self) -> Scheme:
        """KubeShare."""
        return Scheme.KUBESHARE

    @property
    def resources(self) -> tuple[str, ...]:
        """None: KubeShare is asked by annotation or label."""
        return ()

    def requests(self, pod: Pod) -> tuple[Request, ...]:
        """What the whole pod requests: one request or none. Raises ClaimError."""
        return kubeshare_sharepod.requests(pod) or kubeshare_labels.requests(pod)

    def claim(self, pod: Pod) -> Claim | None:
        """The devices in the pod's annotations; None if there are none. Raises ClaimError."""
        return kubeshare_sharepod.claim(pod) or kubeshare_labels.claim(pod)

    def claim_keys(self, pod: Pod) -> tuple[str, ...]:
        """The GPUID, and in release 2 all of its annotations: there the user asks by labels.

        A GPUID may be the user's own choice, together with a node; no annotation reports.
        """
        keys = {kubeshare_sharepod.GPUID, *kubeshare_labels.CLAIM}
        return tuple(sorted(keys & pod.annotations.keys()))

    def annotations(
        self,
        claim: Claim,
        devices: Mapping[str, Device],
        containers: Sequence[str] = (),  # noqa: ARG002  # KubeShare shares with whole pods
    ) -> dict[str, str]:
        """The annotations that say this claim; ``claim`` reads it back.

        They do not say what KubeShare keeps elsewhere: the node (in the spec), the limit (the
        user's), in release 1 that the claim is served (in the SharePod's status), in release 2
        the request (a label). Raises ClaimError for a claim that is not KubeShare's to make.
        """
        object_name = object_name_of(claim.pod)
        if len(claim.allocations) != 1 or claim.allocations[0].container:
            raise ClaimError(object_name, "allocations", "", "KubeShare shares with whole pods")
        allocation = claim.allocations[0]
        if not allocation.shares or allocation.phase is Phase.RELEASED:
            raise ClaimError(object_name, "allocations", "", "KubeShare has no word for released")
        if self.release is Release.LABELS:
            return kubeshare_labels.written(allocation.shares, devices, object_name)
        return kubeshare_sharepod.written(allocation.shares, devices, object_name)

    def devices(self, node: Node) -> tuple[Device, ...]:
        """The GPUs that release 1 reports the node has, without the names of its virtual GPUs.

        :func:`vgpu.schemes.kubeshare.node.with_handles` adds these. Release 2 keeps its GPUs
        in Prometheus only. Raises ClaimError.
        """
        return parse_gpu_info(node.annotations.get(GPU_INFO, ""), f"node {node.name}")

    def slot(self, resource: str, device_id: str) -> Slot:
        """What a kubelet device ID of a holder pod stands for. Raises ClaimError."""
        matched = _REPLICA.fullmatch(device_id)
        if resource != GPU_RESOURCE or matched is None:
            raise ClaimError("kubelet", resource, device_id, "not the ID of a GPU")
        return Slot(resource, matched[1], int(matched[2] or 0))

    def device_ids(self, resource: str, devices: tuple[Device, ...]) -> Iterator[str]:
        """The UUIDs, as NVIDIA's plugin reports them."""
        return (device.uuid for device in devices if resource == GPU_RESOURCE and device.uuid)

    def edits(
        self, pod: PodRef, allocation: Allocation, devices: Mapping[str, Device]
    ) -> ContainerEdits:
        """What every container of the pod gets, without :func:`manager_env`.

        Several GPUs are whole ones: there is nothing to enforce. Raises ClaimError if a GPU's
        UUID is not known.

        The folder of the library is mounted read-only, which KubeShare's own device manager does
        not (``pkg/devicemanager/controller.go``): all pods of the node load code from it. Gemini's
        hook reads ``schedulerIP.txt`` there and writes nothing (``src/hook.cpp`` of its branches
        ``v1.0-kubeshare`` and ``v1.1-kubeshare``).
        """
        object_name = object_name_of(pod)
        uuids = []
        for share in allocation.shares:
            device = resolve(share, devices, object_name, "device")
            if not device.uuid:
                raise ClaimError(object_name, "device", share.device, "its UUID is not known")
            uuids.append(device.uuid)
        env = {
            VISIBLE_DEVICES: ",".join(uuids),
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        }
        if len(uuids) > 1:
            return ContainerEdits(env)
        env["LD_PRELOAD"] = f"{self.library}/libgemhook.so.1"
        env["POD_NAME"] = client_name(pod.namespace, pod.name)
        return ContainerEdits(env, (Mount(self.library, self.library, read_only=True),))


def manager_env(port: int, address: str = "") -> dict[str, str]:
    """Where a pod finds its pod manager; release 2 leaves the address to a file."""
    env = {PORT_VARIABLE: str(port)}
    return {"POD_MANAGER_IP": address, **env} if address else env
