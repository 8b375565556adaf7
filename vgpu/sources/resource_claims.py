"""The ResourceClaims that a node uses, and its ResourceSlices, from the API server.

Neither can be watched for one node alone, so nothing is: each ResourceClaim is read once, by its
name, when the kubelet or a driver first reports it, since its allocation never changes while a pod
uses it; without the kubelet's state also when other pods use it, since these are in it. The
node's ResourceSlices are listed when a ResourceClaim has a device that was not asked for before,
and every five minutes while a device is not in them: its driver may have published it since. So a
node whose ResourceClaims do not change makes no request.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from vgpu.apiserver.list_watch import translate_errors
from vgpu.apiserver.reader import Reader
from vgpu.kube.api_kind import ApiKind
from vgpu.kube.dra_objects import DeviceName, PublishedDevices
from vgpu.kube.kinds import RESOURCE_CLAIMS, RESOURCE_SLICES
from vgpu.model.facts import KubeletSample, ResourceClaimSample
from vgpu.model.reasons import Rejection, SourceError
from vgpu.model.resource_claims import ResourceClaim

AGAIN_SECONDS: Final = 300.0
"""Interval between two reads of what may have changed, in seconds: ResourceSlices without a device
that is in use, and a ResourceClaim that only a driver has."""


class _Wanted(msgspec.Struct, frozen=True, order=True):
    """A ResourceClaim that the node names.

    Attributes:
        namespace, name: its name.
        uid: its UID; "" if only pod-resources names it.
        is_left: whether only a driver has it.
        pods: UIDs of the pods that use it, where only pod-resources names it.
    """

    namespace: str
    name: str
    uid: str = ""
    is_left: bool = False
    pods: tuple[str, ...] = ()


class _Known(msgspec.Struct, frozen=True):
    """A ResourceClaim as it was read, None if there is none; ``read_at`` is of our clock."""

    resource_claim: ResourceClaim | None
    read_at: float


class ResourceClaimSource:
    """Reads what the node's ResourceClaims have. One thread calls ``sample``."""

    def __init__(
        self,
        server: Reader,
        node: str,
        kubelet: Callable[[], KubeletSample | None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``kubelet`` returns its newest sample, None without one; ``clock`` returns seconds."""
        self._server = server
        self._node = node
        self._kubelet = kubelet
        self._clock = clock
        self._resource_claims: dict[_Wanted, _Known] = {}
        self._kind: ApiKind[ResourceClaim] | None = None
        self._published = PublishedDevices()
        self._listed_at: float | None = None
        self._asked_for: frozenset[DeviceName] = frozenset()
        self._sample = ResourceClaimSample()

    def sample(self, _: float) -> ResourceClaimSample:
        """What is known now. Raises SourceError if the ResourceSlices cannot be listed.

        What fails for one ResourceClaim is a rejection, and is tried again with the next sample.
        """
        kubelet = self._kubelet()
        wanted = sorted(set(_wanted(kubelet)))
        self._resource_claims = {
            key: known for key, known in self._resource_claims.items() if key in wanted
        }
        rejections: list[Rejection] = []
        if wanted and self._kind is None and self._is_due(self._listed_at):
            self._list()
        read: dict[tuple[str, str], ResourceClaim | None] = {}
        for key in wanted if self._kind else ():
            known = self._resource_claims.get(key)
            if known is None or (key.is_left and self._is_due(known.read_at)):
                name = key.namespace, key.name
                try:
                    resource_claim = read[name] = read[name] if name in read else self._read(*name)
                except SourceError as error:
                    rejections.append(error.rejection())
                    break  # the next one would fail as well, after another time-out
                # Another ResourceClaim of that name is none.
                is_it = resource_claim is not None and key.uid in ("", resource_claim.uid)
                self._resource_claims[key] = _Known(
                    resource_claim if is_it else None, self._clock()
                )
        resource_claims = {
            known.resource_claim.uid: known.resource_claim
            for known in self._resource_claims.values()
            if known.resource_claim
        }
        lacking = _devices(resource_claims.values()) - self._published.devices.keys()
        if lacking - self._asked_for or (lacking and self._is_due(self._listed_at)):
            self._list()
        self._asked_for = lacking
        of_drivers = {
            one.resource_claim.uid for one in (kubelet.driver_resource_claims if kubelet else ())
        }
        gone = {
            key.uid for key, known in self._resource_claims.items() if not known.resource_claim
        } & of_drivers
        sample = ResourceClaimSample(
            tuple(resource_claims.values()), frozenset(gone), self._uuids(), tuple(rejections)
        )
        if sample != self._sample:
            self._sample = sample
        return self._sample

    def _read(self, namespace: str, name: str) -> ResourceClaim | None:
        """The ResourceClaim of this name, None if there is none. Raises SourceError."""
        with translate_errors(f"ResourceClaim {namespace}/{name}"):
            return self._server.find(self._kind, namespace, name) if self._kind else None

    def _list(self) -> None:
        """List the node's ResourceSlices; the server has ResourceClaims in the same version.

        The list is from the API server's cache, as many nodes ask. Raises SourceError.
        """
        selector = f"spec.nodeName={self._node}"
        with translate_errors("ResourceSlices"):
            served = self._server.served_pages(
                RESOURCE_SLICES, resource_version="0", field_selector=selector
            )
        self._listed_at = self._clock()
        if served is None:
            return
        kind, pages = served
        self._kind = msgspec.structs.replace(
            RESOURCE_CLAIMS, api_version=kind.api_version, older=()
        )
        self._published = PublishedDevices(each for page in pages for each in page.objects)

    def _uuids(self) -> Mapping[DeviceName, str]:
        return {
            name: device.uuid for name, device in self._published.devices.items() if device.uuid
        }

    def _is_due(self, read_at: float | None) -> bool:
        return read_at is None or self._clock() - read_at >= AGAIN_SECONDS


def _devices(resource_claims: Iterable[ResourceClaim]) -> frozenset[DeviceName]:
    return frozenset(
        (result.driver, result.pool, result.device)
        for resource_claim in resource_claims
        for result in resource_claim.results
    )


def _wanted(kubelet: KubeletSample | None) -> Iterator[_Wanted]:
    """The ResourceClaims that the kubelet or a driver has, each with its UID if that is known."""
    if kubelet is None:
        return
    pods: dict[tuple[str, str], set[str]] = {}
    for ref in kubelet.pods.values() if kubelet.held_resource_claims else ():
        pods.setdefault((ref.namespace, ref.name), set()).add(ref.uid)
    users: dict[tuple[str, str], set[str]] = {}
    for held in kubelet.held_resource_claims:
        uses = users.setdefault((held.namespace, held.resource_claim), set())
        uses |= pods.get((held.namespace, held.pod), set())
    uids, names = set(), set()
    for prepared in kubelet.resource_claims or ():
        uids.add(prepared.uid)
        names.add((prepared.namespace, prepared.name))
        yield _Wanted(prepared.namespace, prepared.name, prepared.uid)
    for one in kubelet.driver_resource_claims:
        if one.resource_claim.uid not in uids:
            name = one.resource_claim.namespace, one.resource_claim.name
            is_left = kubelet.dra_state_known or name not in users
            yield _Wanted(*name, one.resource_claim.uid, is_left)
    for name, uses in users.items():
        if name not in names:
            yield _Wanted(*name, pods=tuple(sorted(uses)))
