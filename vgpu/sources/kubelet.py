"""What the kubelet leaves on its node: pod names, container names, device grants.

Each piece is optional and fails alone: what could not be read is a rejection, and its part of
the sample is absent. A file or folder is parsed again only when it changed.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from vgpu.model.facts import (
    ContainerName,
    Grant,
    HeldDevices,
    HeldResources,
    KubeletSample,
)
from vgpu.model.names import PodRef
from vgpu.model.reasons import Reason, Rejection, SourceError
from vgpu.sources.cdi_specs import CdiSpecs
from vgpu.sources.dra_checkpoints import PATH as NVIDIA_CHECKPOINT
from vgpu.sources.dra_checkpoints import read_dra_state, read_driver_checkpoint
from vgpu.sources.files import Remembered, printable, read_file
from vgpu.sources.kubelet_checkpoint import (
    CHECKPOINT_LIMIT,
    parse_checkpoint,
    registered_replicas,
)
from vgpu.sources.kubelet_names import read_container_links, read_pod_folders

T = TypeVar("T")

Folders = tuple[dict[str, PodRef], tuple[Rejection, ...]]
Links = tuple[dict[str, ContainerName], tuple[Rejection, ...]]
Checkpoint = tuple[tuple[Grant, ...], tuple[Rejection, ...], Mapping[str, int]]
"""What is read from the log folders, the log links and the checkpoint, and what was refused.

Of the checkpoint also the number of registered replicas by device."""

DEFAULT_LOG_DIR = "/var/log/pods"
DEFAULT_CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
DEFAULT_DRA_STATE = "/var/lib/kubelet/dra_manager_state"


def name_grants(
    grants: Iterable[Grant], held: Mapping[HeldDevices, frozenset[str]]
) -> tuple[dict[str, PodRef], tuple[Rejection, ...]]:
    """Pod UID -> names, by joining the checkpoint with the answer of pod-resources.

    The checkpoint knows the UID, pod-resources the name; both know container, resource and
    device IDs. Only IDs that are the same set, in exactly one grant, join. A UID that would
    get two names gets none, and is a rejection.
    """
    holders: dict[tuple[str, str, frozenset[str]], set[str]] = {}
    for grant in grants:
        key = grant.container, grant.resource, frozenset(grant.device_ids)
        holders.setdefault(key, set()).add(grant.pod_uid)
    names: dict[str, set[PodRef]] = {}
    for place, ids in held.items():
        uids = holders.get((place.container, place.resource, ids), set())
        if ids and len(uids) == 1:
            (uid,) = uids
            names.setdefault(uid, set()).add(PodRef(uid, place.namespace, place.pod))
    pods = {uid: refs.pop() for uid, refs in names.items() if len(refs) == 1}
    rejections = tuple(
        Rejection(uid, Reason.AMBIGUOUS, "its devices belong to several pods in pod-resources")
        for uid in sorted(names.keys() - pods.keys())
    )
    return pods, rejections


class KubeletCheckpointFile:
    """The kubelet's checkpoint. One thread uses it.

    The kubelet renames it into place, so that it is whole; its checksum also proves that nothing
    has damaged it. A version that replaces a verified one soon is used until it is verified.
    """

    def __init__(self, path: str, verify_seconds: float = 0.0) -> None:
        """``verify_seconds`` is the minimum time between two verifications: they take long."""
        self._path = path
        self._verify_seconds = verify_seconds
        self._remembered = Remembered(path, self._load)
        self._now = 0.0
        self._verified_at = -math.inf
        self._verified = False

    def get(self, now: float) -> Checkpoint:
        """What is in it; ``now`` is unix seconds. Raises SourceError."""
        self._now = now
        checkpoint = self._remembered.get(now)
        if not self._verified and self._is_due():
            self._remembered = Remembered(self._path, self._load)
            checkpoint = self._remembered.get(now)
        return checkpoint

    def _load(self, path: str) -> Checkpoint:
        self._verified = False
        content, verify = read_file(path, CHECKPOINT_LIMIT), self._is_due()
        grants, rejections = parse_checkpoint(content, printable(path), verify=verify)
        try:
            replicas = registered_replicas(content)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise SourceError(Reason.MALFORMED, printable(path), str(error)) from error
        if verify:
            self._verified, self._verified_at = True, self._now
        return grants, rejections, replicas

    def _is_due(self) -> bool:
        return not 0 <= self._now - self._verified_at < self._verify_seconds


class KubeletSource:
    """The pieces that are configured, each read once per sample."""

    def __init__(
        self,
        log_dir: str | None = DEFAULT_LOG_DIR,
        checkpoint: str | None = DEFAULT_CHECKPOINT,
        pod_resources: str | None = None,
        verify_seconds: float = 0.0,
        dra_state: str | None = None,
        *,
        cdi_dirs: Collection[str] = (),
    ) -> None:
        """Any of the paths may be None: not configured.

        A checkpoint that changes more often is verified once in ``verify_seconds``.

        The container links are looked for in the folder ``containers`` beside ``log_dir``;
        ``pod_resources`` is the path of the kubelet's socket, and of use only with a checkpoint.
        ``dra_state`` is the kubelet's state of dynamic resource allocation; a node without it, or
        with an empty one, uses none. The checkpoint of NVIDIA's driver is looked for in the folder
        of ``dra_state``. ``cdi_dirs`` are the folders of CDI specs, in which the CDI devices of
        ResourceClaims are looked for.

        Raises SourceError NOT_INSTALLED when ``pod_resources`` is set without the extra.
        """
        self._folders = _remember(log_dir, read_pod_folders)
        self._links = _remember(
            log_dir and str(Path(log_dir).parent / "containers"), read_container_links
        )
        self._checkpoint = (
            KubeletCheckpointFile(checkpoint, verify_seconds).get if checkpoint else None
        )
        self._held = _pod_resources(pod_resources) if pod_resources else None
        self._dra_state = _remember(dra_state, read_dra_state)
        self._driver_resource_claims = _remember(
            dra_state and str(Path(dra_state).parent / NVIDIA_CHECKPOINT), read_driver_checkpoint
        )
        self._specs = CdiSpecs(cdi_dirs)
        # A UID's name never changes, so a silent socket takes no name away.
        self._named: dict[str, PodRef] = {}
        self._pieces: Any = None
        self._sample = KubeletSample({}, {})

    @property
    def newest(self) -> KubeletSample:
        """The newest sample; it is empty before the first one. Any thread may ask."""
        return self._sample

    def sample(self, now: float) -> KubeletSample:
        """Read everything once; ``now`` is unix seconds.

        Raises SourceError when not one of the configured pieces could be read.
        """
        failures: list[SourceError] = []

        def read(piece: Callable[[float], T] | None) -> T | None:
            try:
                return piece and piece(now)
            except SourceError as error:
                failures.append(error)
                return None

        folders, links = read(self._folders), read(self._links)
        checkpoint, held = read(self._checkpoint), read(self._held)
        # An absent file is a kubelet without DRA, or another driver than NVIDIA's.
        before = len(failures)
        state = read(_optional(self._dra_state))
        prepared = None if len(failures) > before else state or ()
        drivers = read(_optional(self._driver_resource_claims))
        if all(piece is None for piece in (folders, links, checkpoint, held)) and not prepared:
            reason = failures[0].reason if failures else Reason.ABSENT
            detail = "; ".join(map(str, failures)) or "no folder, file or socket is configured"
            raise SourceError(reason, "kubelet", detail)

        in_use = prepared if state is not None else held.resource_claims if held else ()
        names = frozenset(cdi.name for resource_claim in in_use or () for cdi in resource_claim.cdi)
        missing = read(lambda _: self._specs.missing(names)) or frozenset()
        pieces = (
            (folders, links, checkpoint, held, prepared, drivers, state is None, missing),
            [str(error) for error in failures],
        )
        if pieces != self._pieces:
            self._sample = msgspec.structs.replace(
                self._joined(folders, links, checkpoint, held, failures),
                resource_claims=prepared,
                driver_resource_claims=drivers or (),
                dra_state_known=state is not None,
                missing_cdi=missing,
            )
            self._pieces = pieces
        return self._sample

    def _joined(
        self,
        folders: Folders | None,
        links: Links | None,
        checkpoint: Checkpoint | None,
        held: HeldResources | None,
        failures: Iterable[SourceError],
    ) -> KubeletSample:
        """The sample of these pieces; None is not read."""
        rejections = [error.rejection() for error in failures]
        pods: dict[str, PodRef] = {}
        containers: dict[str, ContainerName] = {}
        grants = None
        replicas: Mapping[str, int] = {}
        if checkpoint:
            grants, refused, replicas = checkpoint
            rejections += refused
            if held:
                named, refused = name_grants(grants, held.devices)
                self._named |= named
                rejections += refused
            granted = {grant.pod_uid for grant in grants}
            self._named = {uid: ref for uid, ref in self._named.items() if uid in granted}
            pods |= self._named
        if folders:
            pods |= folders[0]
            rejections += folders[1]
        if links:
            containers = _with_uids(links[0], pods.values())
            rejections += links[1]
        log_folders_read = folders is not None
        return KubeletSample(
            pods,
            containers,
            grants,
            tuple(rejections),
            held.devices if held else None,
            log_folders_read,
            held.resource_claims if held else (),
            replicas=replicas,
        )


def _with_uids(
    containers: Mapping[str, ContainerName], pods: Iterable[PodRef]
) -> dict[str, ContainerName]:
    """The names with the UID of the pod that is called so, where just one is."""
    uids: dict[tuple[str, str], str] = {}
    for pod in pods:
        name = pod.namespace, pod.name
        uids[name] = "" if name in uids else pod.uid
    return {
        container_id: ContainerName(
            name.namespace, name.pod, name.container, uids.get((name.namespace, name.pod), "")
        )
        for container_id, name in containers.items()
    }


def _remember(path: str | None, load: Callable[[str], T]) -> Callable[[float], T] | None:
    return Remembered(path, load).get if path else None


def _optional(
    piece: Callable[[float], T] | None,
) -> Callable[[float], T | None]:
    """The piece, or None where it is not configured or its file is absent."""

    def get(now: float) -> T | None:
        try:
            return piece(now) if piece else None
        except SourceError as error:
            if error.reason is not Reason.ABSENT:
                raise
            return None

    return get


def _pod_resources(socket: str) -> Callable[[float], HeldResources]:
    """The socket's reader; gRPC is only loaded here."""
    try:
        from vgpu.sources.podresources import PodResourcesSource  # noqa: PLC0415
    except ImportError as error:
        detail = f"pip install vgpu[pod-resources] ({error})"
        raise SourceError(Reason.NOT_INSTALLED, printable(socket), detail) from error
    source = PodResourcesSource(socket)
    return lambda _: source.sample()
