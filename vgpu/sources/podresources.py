"""The kubelet's pod-resources API: which pod, by name, holds which device IDs.

Needs the extra ``vgpu[pod-resources]``; the only reader that imports gRPC. As measured on a real
kubelet, its List answers with one entry for each device in random order, is empty for about a
second after a restart, and is refused above 100 calls a second.
"""

import os
import stat
from pathlib import Path

import grpc

from vgpu.model.facts import CdiDevice, HeldDevices, HeldResourceClaim, HeldResources
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.resource_claims import ResourceClaimDevice
from vgpu.rpc.podresources_pb2 import (
    DynamicResource,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
)
from vgpu.sources.files import EXHAUSTING, printable, translated

DEADLINE_SECONDS = 3.0

_METHOD = "/v1.PodResourcesLister/List"

_OPTIONS = (
    ("grpc.max_receive_message_length", 16 * 1024 * 1024),  # as the kubelet's own client
    ("grpc.max_reconnect_backoff_ms", 5000),  # gRPC's default keeps us away for two minutes
    ("grpc.enable_http_proxy", 0),
)


class PodResourcesSource:
    """One channel to the kubelet, kept open from sample to sample."""

    def __init__(self, socket: str) -> None:
        """``socket`` is a path; it need not exist yet."""
        self._path = socket
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=_OPTIONS)
        self._list = self._channel.unary_unary(
            _METHOD,
            request_serializer=ListPodResourcesRequest.SerializeToString,
            response_deserializer=ListPodResourcesResponse.FromString,
        )

    def sample(self) -> HeldResources:
        """The device IDs that every container holds, by resource, and its ResourceClaims.

        Raises:
            SourceError: ABSENT, RATE_LIMITED, TOO_LARGE, UNREADABLE, EXHAUSTED, and
                EMPTY_AFTER_RESTART for an answer without a single pod: the kubelet has not
                synced with the API server.
        """
        self._require_socket()
        try:
            answer = self._list(ListPodResourcesRequest(), timeout=DEADLINE_SECONDS)
        except grpc.RpcError as error:
            raise self._translated(error) from error
        if not answer.pod_resources:
            raise SourceError(Reason.EMPTY_AFTER_RESTART, printable(self._path))
        held: dict[HeldDevices, set[str]] = {}
        resource_claims: dict[HeldResourceClaim, None] = {}
        for pod in answer.pod_resources:
            for container in pod.containers:
                for devices in container.devices:
                    key = HeldDevices(
                        pod.namespace, pod.name, container.name, devices.resource_name
                    )
                    held.setdefault(key, set()).update(devices.device_ids)
                for resource in container.dynamic_resources:
                    # Kubernetes 1.34 repeats a ResourceClaim of which two requests are named.
                    where = resource.claim_namespace, pod.name, container.name
                    parts = _resource_claim_devices(resource), _cdi_devices(resource)
                    use = HeldResourceClaim(*where, resource.claim_name, *parts)
                    resource_claims[use] = None
        devices_held = {key: frozenset(ids) for key, ids in held.items()}
        return HeldResources(devices_held, tuple(resource_claims))

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _require_socket(self) -> None:
        """Report the path's problem; gRPC would only report 'unavailable'."""
        try:
            mode = Path(self._path).stat().st_mode
        except OSError as error:
            raise translated(error, self._path) from error
        if not stat.S_ISSOCK(mode):
            raise SourceError(Reason.UNREADABLE, printable(self._path), "not a socket")

    def _translated(self, error: grpc.RpcError) -> SourceError:
        code, detail = error.code(), error.details() or ""
        reason = Reason.UNREADABLE
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            # gRPC itself uses this code for an answer above max_receive_message_length.
            reason = Reason.TOO_LARGE if "larger than max" in detail else Reason.RATE_LIMITED
        elif any(os.strerror(number) in detail for number in EXHAUSTING):
            reason = Reason.EXHAUSTED  # gRPC has no code of its own for it
        return SourceError(reason, printable(self._path), f"{code.name}: {detail}")


def _resource_claim_devices(resource: DynamicResource) -> tuple[ResourceClaimDevice, ...]:
    """The devices of a ResourceClaim, each once.

    They are known by their names: the CDI devices of one repeat those of the devices before it.
    """
    devices = {
        ResourceClaimDevice(
            "",
            resource.claim_name,
            claim_resource.driver_name,
            claim_resource.pool_name,
            claim_resource.device_name,
            claim_resource.share_id,
        )
        for claim_resource in resource.claim_resources
    }
    return tuple(sorted(devices))


def _cdi_devices(resource: DynamicResource) -> tuple[CdiDevice, ...]:
    """The CDI devices of a ResourceClaim, each with the first device that has it.

    The kubelet repeats those of a driver's device for each device of this driver that follows.
    """
    devices: dict[tuple[str, str], CdiDevice] = {}
    for claim_resource in resource.claim_resources:
        driver = claim_resource.driver_name
        for cdi in claim_resource.cdi_devices:
            device = CdiDevice(
                driver, claim_resource.pool_name, claim_resource.device_name, cdi.name
            )
            devices.setdefault((driver, cdi.name), device)
    return tuple(sorted(devices.values()))
