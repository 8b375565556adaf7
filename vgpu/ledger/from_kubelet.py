"""Statements of the kubelet's allocations, from its checkpoint and pod-resources. Pure.

The device IDs of NVIDIA's own plugin name the devices. Those of the sharing systems do not: the
kubelet picks any of them, and the plugin follows the scheduler's annotation. The environment of the
plugin's answer has what it allocated. So the number of IDs is the amount, the answer names the
device, and an answer that names none is a share of an unknown device. Our own plugin's answer names
none where the runtime supports CDI: our checkpoint names it.

Operators rename resources (HAMi's ``--resource-name``, Volcano's ConfigMap). A resource that no
codec knows is read by the plugin's answer, whose environment identifies the sharing system. If
only the device IDs or the answer name a GPU, an unknown plugin has allocated something of it: it is
no holding, and no evidence that nothing was allocated.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from vgpu.ledger.statements import Malformed, Statement
from vgpu.model.allocation import Request, Share
from vgpu.model.facts import Grant, HeldDevices
from vgpu.model.names import PodRef, Scheme, Sharing, Source
from vgpu.model.objects import Container, Pod
from vgpu.schemes.codec import VISIBLE_DEVICES, ClaimError, SchemeCodec
from vgpu.schemes.gpushare.env import CONTAINER_UNITS
from vgpu.schemes.nvidia.grant import parse_device_id
from vgpu.schemes.registry import registry
from vgpu.schemes.row import KubeletGrant, NamedDevices
from vgpu.schemes.volcano.env import is_shared, set_limit

_DEVICE = re.compile(r"(?:GPU|MIG)-[0-9A-Za-z/-]{1,90}|[0-9]{1,4}")

_OF_GPU = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""The UUID of a GPU or MIG instance, which the device IDs of GPUs' plugins begin with."""

_MOST_NAMED = 3
"""Number of device IDs that a message names."""

_MOST_TEXT = 160
"""Number of characters of these IDs."""


class GrantContext(msgspec.Struct, frozen=True):
    """What distinguishes NVIDIA's grants from others: a field of :class:`KubeletGrant`."""

    registered: frozenset[Scheme] | None = None


NO_CONTEXT = GrantContext()
"""Without the Node object."""


class GrantStatements(msgspec.Struct, frozen=True):
    """The allocations to one container.

    ``unread`` is the UID of its pod if the kubelet has allocated something of a GPU by a resource
    that no codec knows, and nothing that can be read; else "".
    """

    statements: tuple[Statement, ...]
    malformed: tuple[Malformed, ...] = ()
    unread: str = ""


def by_container(grants: Iterable[Grant]) -> dict[tuple[str, str], dict[str, Grant]]:
    """(pod UID, container) -> its grants by resource."""
    containers: dict[tuple[str, str], dict[str, Grant]] = {}
    for grant in grants:
        containers.setdefault((grant.pod_uid, grant.container), {})[grant.resource] = grant
    return containers


class GrantReader:
    """Reads the grants of a checkpoint or of :func:`identified`, by container, with all codecs."""

    def __init__(
        self,
        codecs: Iterable[SchemeCodec],
        source: Source,
        context: GrantContext = NO_CONTEXT,
    ) -> None:
        self._codecs = [_CodecRequests(codec) for codec in codecs]
        self._source = source
        self._context = context

    def read(self, uid: str, container: str, by_resource: Mapping[str, Grant]) -> GrantStatements:
        """The allocations to one container."""
        grants = _ContainerGrants(
            PodRef(uid, "", ""), container, self._source, by_resource, self._context
        )
        statements = [*grants.named_devices()]
        malformed = [*grants.unreadable()]
        for codec_requests in self._codecs:
            try:
                statements += grants.shares(codec_requests)
            except ClaimError as error:
                scheme = codec_requests.codec.scheme
                malformed.append(Malformed(grants.pod, container, scheme, error.detail))
        codecs = [codec_requests.codec for codec_requests in self._codecs]
        schemes = {statement.scheme for statement in statements}
        # Those of a known resource have been read with the environment of all answers.
        statements += (
            statement
            for statement in grants.of_unknown_resources(codecs)
            if statement.scheme not in schemes
        )
        unread = uid if not statements and grants.names_gpus(codecs) else ""
        return GrantStatements(tuple(statements), tuple(malformed), unread)


class _CodecRequests:
    """A codec that caches requests by number of units, since many containers have the same."""

    def __init__(self, codec: SchemeCodec) -> None:
        self.codec = codec
        self.resources = codec.resources
        self._requests: dict[tuple[str, tuple[tuple[str, int], ...]], Request | None] = {}

    def request(self, container: str, counts: Mapping[str, int]) -> Request | None:
        """The request of a container with these numbers of units. Raises ClaimError."""
        key = (container, tuple(counts.items()))
        if key not in self._requests:
            pod = Pod(PodRef("", "", ""), containers=(Container(container, counts),))
            self._requests[key] = next(iter(self.codec.requests(pod)), None)
        return self._requests[key]


class _ContainerGrants:
    """The allocations to one container, by resource."""

    def __init__(
        self,
        pod: PodRef,
        container: str,
        source: Source,
        by_resource: Mapping[str, Grant],
        context: GrantContext,
    ) -> None:
        self.pod = pod
        self.container = container
        self.source = source
        self.env = {k: v for grant in by_resource.values() for k, v in grant.env.items()}
        self.own: dict[str, NamedDevices] = {}
        self.ids: dict[str, tuple[str, ...]] = {}
        self._grants = by_resource
        for resource, grant in by_resource.items():
            devices = registry().named_devices(
                KubeletGrant(
                    resource, grant.device_ids, self.env, grant.answered, context.registered
                )
            )
            if devices is None:
                self.ids[resource] = grant.device_ids
            else:
                self.own[resource] = devices

    def named_devices(self) -> Iterator[Statement]:
        """The devices that their IDs name, in one statement for each scheme."""
        for scheme in dict.fromkeys(devices.scheme for devices in self.own.values()):
            of_scheme = {r: its for r, its in self.own.items() if its.scheme is scheme}
            yield self._statement(
                tuple(share for its in of_scheme.values() for share in its.shares),
                scheme,
                {resource: self._grants[resource].device_ids for resource in of_scheme},
                sharing=tuple(its.sharing for its in of_scheme.values() for _ in its.shares),
            )

    def unreadable(self) -> Iterator[Malformed]:
        """The resources with IDs that name no device, in the form of no known plugin."""
        for resource, devices in self.own.items():
            if not all(share.device for share in devices.shares):
                ids = ", ".join(self._grants[resource].device_ids[:_MOST_NAMED])
                detail = f"{resource}: device IDs of no known form: {ids[:_MOST_TEXT]}"
                yield Malformed(self.pod, self.container, devices.scheme, detail)

    def shares(self, codec_requests: _CodecRequests) -> Iterator[Statement]:
        """The allocations in this codec's scheme. Raises ClaimError."""
        if self.ids.keys().isdisjoint(codec_requests.resources):
            return
        codec = codec_requests.codec
        binding = {r: self.ids[r] for r in codec_requests.resources if self.ids.get(r)}
        request = codec_requests.request(
            self.container, {r: len(ids) for r, ids in self.ids.items()}
        )
        devices = visible_devices(self.env)
        if binding and request:
            shares = self._sized(devices, request)
            yield self._statement(shares, codec.scheme, binding, _limits(self.env, shares))

    def of_unknown_resources(self, codecs: Sequence[SchemeCodec]) -> Iterator[Statement]:
        """The allocations of resources that no codec knows, by the plugins' answers."""
        for resource, ids in self._unknown(codecs):
            env = self._grants[resource].env
            answers = ((codec.scheme, codec.answered(env)) for codec in codecs)
            scheme, shares = next((each for each in answers if each[1]), (Scheme.NONE, ()))
            if shares:
                yield self._statement(shares, scheme, {resource: ids}, _limits(env, shares))

    def names_gpus(self, codecs: Sequence[SchemeCodec]) -> bool:
        """Whether a resource that no codec knows has a GPU in its device IDs or in its answer."""
        return any(
            visible_devices(self._grants[resource].env) or any(map(_names_gpu, ids))
            for resource, ids in self._unknown(codecs)
        )

    def _unknown(self, codecs: Sequence[SchemeCodec]) -> Iterator[tuple[str, tuple[str, ...]]]:
        known = {name for codec in codecs for name in codec.resources}
        return ((name, ids) for name, ids in self.ids.items() if ids and name not in known)

    def _sized(self, devices: tuple[str, ...], request: Request) -> tuple[Share, ...]:
        """Amounts as HAMi-core enforces them, where the answer has them, else as counted.

        A count of 0 is not an amount: the scheduler may have chosen one. Without a limit the amount
        is that of the device.
        """
        shared = is_shared(self.env)
        limits = (
            set_limit(self.env, position) if shared else None
            for position in range(len(devices) or request.count)
        )
        return tuple(
            Share(
                device,
                request.memory_bytes if limit is None else limit or None,
                request.cores_milli or None,
            )
            for device, limit in zip(devices or ("",) * request.count, limits, strict=True)
        )

    def _statement(
        self,
        shares: tuple[Share, ...],
        scheme: Scheme,
        ids: Mapping[str, tuple[str, ...]],
        limits: tuple[int | None, ...] = (),
        sharing: tuple[Sharing, ...] = (),
    ) -> Statement:
        return Statement(
            source=self.source,
            pod=self.pod,
            container=self.container,
            shares=shares,
            scheme=scheme,
            slices=tuple(sorted(ids.items())),
            where=f"{', '.join(sorted(ids))} of {self.pod.uid}",
            limits=limits,
            sharing=sharing,
        )


def _names_gpu(device_id: str) -> bool:
    """Whether a device ID of any plugin begins with a GPU's name."""
    return bool(_OF_GPU.match(device_id)) or parse_device_id(device_id) is not None


def _limits(env: Mapping[str, str], shares: tuple[Share, ...]) -> tuple[int | None, ...]:
    """The limits that the container's library (HAMi-core or cGPU) enforces by the answer."""
    if CONTAINER_UNITS in env:
        return tuple(share.memory_bytes for share in shares)
    limits = tuple(set_limit(env, position) for position in range(len(shares)))
    return () if set(limits) == {None} else limits


def visible_devices(env: Mapping[str, str]) -> tuple[str, ...]:
    """The devices that a plugin's answer names, in the container's order; () if any is unclear.

    ``all``, ``void`` and gpushare's ``no-gpu-has-8138MiB-to-run`` name no device.
    """
    devices = tuple(part.strip() for part in env.get(VISIBLE_DEVICES, "").split(","))
    return devices if all(map(_DEVICE.fullmatch, devices)) else ()


# ---------------------------------------------------------------- pod-resources


def identified(
    held: Mapping[HeldDevices, frozenset[str]],
    pods: Iterable[PodRef],
    checkpoint: Iterable[Grant] | None = None,
) -> list[Grant]:
    """What pod-resources reports, with the UID of the pod.

    pod-resources has names only, and between two reads a StatefulSet's pod may have been replaced
    by one of the same name. So a UID counts if it is the only one of that name and the checkpoint,
    where there is one, does not contradict it; else if it is the only one of them with these very
    IDs in the checkpoint. Containers that cannot be identified are left out.
    """
    uids_by_name: dict[tuple[str, str], set[str]] = {}
    for pod in pods:
        uids_by_name.setdefault((pod.namespace, pod.name), set()).add(pod.uid)
    granted = {
        (g.pod_uid, g.container, g.resource): frozenset(g.device_ids) for g in checkpoint or ()
    }
    grants = []
    for place, ids in held.items():
        uids = uids_by_name.get((place.namespace, place.pod), set())
        known_ids = {uid: granted.get((uid, place.container, place.resource)) for uid in uids}
        matching = [uid for uid, own in known_ids.items() if own == ids]
        if not matching and checkpoint is None and len(uids) == 1:
            matching = [*uids]
        if ids and len(matching) == 1:
            device_ids = tuple(sorted(ids))
            grant = Grant(matching[0], place.container, place.resource, device_ids, {}, False)
            grants.append(grant)
    return grants
