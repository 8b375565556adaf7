"""The API server's JSON as the values of :mod:`vgpu.kube.objects`: lists, objects, watch events,
dumps.

Objects are read one by one: one that cannot be read is a
:class:`~vgpu.kube.objects.MalformedObject` beside the others, and costs nobody else. Only a list,
line or dump that is none itself, and an object that was asked for alone, are a
:class:`~vgpu.reasons.SourceError` MALFORMED, which names the subject and, where one can be told,
the object. What is kept of an object is :mod:`vgpu.kube.projection`'s part.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, StrEnum
from typing import Final, Generic, Protocol, TypeVar

import msgspec

from vgpu.kube import wire
from vgpu.kube.decode import Content, decode, malformed, named
from vgpu.kube.objects import Lease, MalformedObject, Node, Pod
from vgpu.kube.projection import (
    project_lease,
    project_node,
    project_pod,
    project_share_pod,
    wire_shares_gpus,
)
from vgpu.reasons import Reason, SourceError

_API_VERSIONS: Final = {
    "Pod": "v1",
    "Node": "v1",
    "ConfigMap": "v1",
    "SharePod": "kubeshare.nthu/v1",
}
"""Whose kinds are meant: others have a Node or a Pod too."""

_UNHEALTHY: Final = "unhealthy-gpu-"
"""gpushare's ConfigMaps: this, then the node's name."""

_LONGEST_KIND: Final = 64
"""Characters of a kind that an error repeats."""


class Keep(Enum):
    """Which pods a list gives."""

    SHARING = "sharing"  # those that ask for shared GPUs or carry a sharing system's marks
    ALL = "all"


# ---------------------------------------------------------------- what is given

_Object = TypeVar("_Object")


class PodPage(msgspec.Struct, frozen=True):
    """One page of a list of pods.

    Attributes:
        pods: those to be kept.
        continue_token: for the next page; "" if this is the last.
        resource_version: of the list, to watch from.
        total: pods on the page, those that are not kept included.
        malformed: those that cannot be read.
    """

    pods: tuple[Pod, ...]
    continue_token: str = ""
    resource_version: str = ""
    total: int = 0
    malformed: tuple[MalformedObject, ...] = ()


class NodePage(msgspec.Struct, frozen=True):
    """One page of a list of nodes; the rest as in :class:`PodPage`."""

    nodes: tuple[Node, ...]
    continue_token: str = ""
    resource_version: str = ""
    malformed: tuple[MalformedObject, ...] = ()


class EventType(StrEnum):
    """What a line of a watch says."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"  # nothing else happened up to this resource version
    ERROR = "ERROR"  # the watch has ended


_CHANGES: Final = frozenset({EventType.ADDED, EventType.MODIFIED, EventType.DELETED})


class ApiError(msgspec.Struct, frozen=True):
    """A failure in the server's words; ``code`` is an HTTP status, 0 if not told."""

    code: int = 0
    reason: str = ""
    message: str = ""


class WatchEvent(msgspec.Struct, Generic[_Object], frozen=True):
    """One line of a watch: an object as it is now, or was last; for ERROR the failure.

    An object that cannot be read is a :class:`~vgpu.kube.objects.MalformedObject`.
    A pod is given whether it shares GPUs or not, since it may have ceased to:
    :func:`~vgpu.kube.projection.shares_gpus` tells.
    """

    type: EventType
    resource_version: str = ""
    object: _Object | MalformedObject | None = None
    error: ApiError | None = None


class Expired(SourceError):  # noqa: N818  # it is what happened, and no fault of anybody's
    """The version to watch from is too old for the server: all has to be listed anew."""


class Dump(msgspec.Struct, frozen=True):
    """What ``kubectl get … -o json`` printed.

    Attributes:
        nodes, pods: as in the lists of the API server.
        share_pods: KubeShare's SharePods.
        unhealthy: the text of gpushare's ``unhealthy-gpu-<node>`` ConfigMaps, by node.
        total: pods in the dump, those that are not kept included.
        others: objects that are none of these, counted by kind.
        malformed: those of all these kinds that cannot be read.
    """

    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    share_pods: tuple[Pod, ...] = ()
    unhealthy: Mapping[str, str] = {}
    total: int = 0
    others: Mapping[str, int] = {}
    malformed: tuple[MalformedObject, ...] = ()


# ---------------------------------------------------------------- the kinds

_T = TypeVar("_T")
_Wire = TypeVar("_Wire", wire.PodFields, wire.SharePodFields, wire.NodeFields)
_Wire_co = TypeVar("_Wire_co", covariant=True)
_Decoder = msgspec.json.Decoder


class _List(Protocol[_Wire_co]):
    """A page of a list."""

    @property
    def items(self) -> Sequence[_Wire_co] | None: ...

    @property
    def metadata(self) -> wire.ListMeta: ...


class _Line(wire.Wire, Generic[_T], frozen=True):
    """A line of a watch."""

    type: EventType
    object: _T


class _Kind(msgspec.Struct, Generic[_Wire, _T], frozen=True):
    """How a kind is read: one object, all of a page in one go, a line of a watch in one go.

    ``project`` raises SourceError MALFORMED, as all decoding does.
    """

    name: str
    object: _Decoder[_Wire]
    page: _Decoder[_List[_Wire]]
    line: _Decoder[_Line[_Wire]]
    project: Callable[[_Wire, str], _T]

    def one(self, content: Content, subject: str) -> _T:
        """One object."""
        return self.project(decode(content, self.object, subject), subject)


_POD_STATUS = _Decoder(wire.PodStatusFields)


def _project_pod(pod: wire.PodFields, subject: str) -> Pod:
    return project_pod(pod, decode(pod.status, _POD_STATUS, subject))


_PODS = _Kind(
    "Pod",
    _Decoder(wire.PodFields),
    _Decoder(wire.PodList),
    _Decoder(_Line[wire.PodFields]),
    _project_pod,
)
_SHARE_PODS = _Kind(
    "SharePod",
    _Decoder(wire.SharePodFields),
    _Decoder(wire.SharePodList),
    _Decoder(_Line[wire.SharePodFields]),
    lambda share_pod, _: project_share_pod(share_pod),
)
_NODES = _Kind(
    "Node",
    _Decoder(wire.NodeFields),
    _Decoder(wire.NodeList),
    _Decoder(_Line[wire.NodeFields]),
    project_node,
)
_NODE = _NODES.object
_CONFIG_MAP = _Decoder(wire.ConfigMapFields)
_LEASE = _Decoder(wire.LeaseFields)
_EVENT = _Decoder(wire.EventFields)
_ANY_LIST = _Decoder(wire.AnyList)
_ANY_OBJECT = _Decoder(wire.AnyObject)
_ANY_LINE = _Decoder(_Line[msgspec.Raw])
_API_ERROR = _Decoder(ApiError)

# ---------------------------------------------------------------- the readers


def decode_pods(
    page: bytes, subject: str = "pods", *, keep: Keep = Keep.SHARING, node: str = ""
) -> PodPage:
    """A page of ``/api/v1/pods``; with ``node`` only the pods that are bound to it are kept.

    Raises SourceError MALFORMED.
    """

    def wanted(pod: wire.PodFields) -> bool:
        return node in ("", pod.spec.node_name) and (keep is Keep.ALL or wire_shares_gpus(pod))

    found = _page(page, _PODS, subject, wanted)
    bad = tuple(each for each in found.malformed if not node or each.node in (None, node))
    return PodPage(found.objects, found.continue_token, found.resource_version, found.total, bad)


def decode_share_pods(page: bytes, subject: str = "sharepods") -> PodPage:
    """A page of ``/apis/kubeshare.nthu/v1/sharepods``, all of them kept.

    Raises SourceError MALFORMED.
    """
    found = _page(page, _SHARE_PODS, subject)
    return PodPage(
        found.objects, found.continue_token, found.resource_version, found.total, found.malformed
    )


def decode_nodes(page: bytes, subject: str = "nodes") -> NodePage:
    """A page of ``/api/v1/nodes``. Raises SourceError MALFORMED."""
    found = _page(page, _NODES, subject)
    return NodePage(found.objects, found.continue_token, found.resource_version, found.malformed)


def decode_pod(content: Content, subject: str = "pod") -> Pod:
    """One pod. Raises SourceError MALFORMED."""
    return _one(content, _PODS.one, subject)


def decode_share_pod(content: Content, subject: str = "sharepod") -> Pod:
    """One SharePod. Raises SourceError MALFORMED."""
    return _one(content, _SHARE_PODS.one, subject)


def decode_node(content: Content, subject: str = "node") -> Node:
    """One node. Raises SourceError MALFORMED."""
    return _one(content, _NODES.one, subject)


def decode_capacity(content: Content, subject: str = "node") -> Mapping[str, str]:
    """A node's capacity, every resource of it, as it is written. Raises SourceError MALFORMED."""
    capacity = _plain(content, _NODE, subject).status.capacity or {}
    return {name: str(quantity) for name, quantity in capacity.items()}


def decode_config_map(
    content: Content, subject: str = "configmap"
) -> tuple[Mapping[str, str], str]:
    """The data of one ConfigMap, and its resource version. Raises SourceError MALFORMED."""
    config = _plain(content, _CONFIG_MAP, subject)
    return config.data or {}, config.metadata.resource_version


def decode_lease(content: Content, subject: str = "lease") -> Lease:
    """One Lease. Raises SourceError MALFORMED."""
    return project_lease(_plain(content, _LEASE, subject))


def decode_event_count(content: Content, subject: str = "event") -> int:
    """How often a core Event was said. Raises SourceError MALFORMED."""
    return _plain(content, _EVENT, subject).count or 0


def decode_pod_event(line: bytes, subject: str = "watch") -> WatchEvent[Pod]:
    """One line of a watch of pods. Raises SourceError MALFORMED."""
    return _event(line, _PODS, subject)


def decode_share_pod_event(line: bytes, subject: str = "watch") -> WatchEvent[Pod]:
    """One line of a watch of SharePods. Raises SourceError MALFORMED."""
    return _event(line, _SHARE_PODS, subject)


def decode_node_event(line: bytes, subject: str = "watch") -> WatchEvent[Node]:
    """One line of a watch of nodes. Raises SourceError MALFORMED."""
    return _event(line, _NODES, subject)


def decode_dump(content: bytes, subject: str = "dump", *, keep: Keep = Keep.SHARING) -> Dump:
    """Everything in the output of ``kubectl get nodes,pods -A -o json`` and its like.

    A ``List`` of mixed kinds, a list of one kind, or one object. Raises SourceError MALFORMED for
    what is none of these.
    """
    decoded = decode(content, _ANY_LIST, subject)
    if not decoded.kind:
        raise SourceError(Reason.MALFORMED, subject, "not a Kubernetes object: it has no kind")
    items: Iterable[Content] = (content,) if decoded.items is None else decoded.items
    kind_of_all = decoded.kind.removesuffix("List")  # where the items do not say theirs
    nodes: list[Node] = []
    pods: list[Pod] = []
    share_pods: list[Pod] = []
    unhealthy: dict[str, str] = {}
    total = 0
    others: Counter[str] = Counter()
    bad: list[MalformedObject] = []
    for item in items:
        about = decode(item, _ANY_OBJECT, subject)
        kind = about.kind or kind_of_all
        if about.api_version not in ("", _API_VERSIONS.get(kind)):
            others[kind] += 1
            continue
        try:
            match kind:
                case "Pod":
                    total += 1
                    pod = decode(item, _PODS.object, subject)
                    if keep is Keep.ALL or wire_shares_gpus(pod):
                        pods.append(_project_pod(pod, subject))
                case "Node":
                    nodes.append(_NODES.one(item, subject))
                case "SharePod":
                    share_pods.append(_SHARE_PODS.one(item, subject))
                case "ConfigMap" if about.metadata.name.startswith(_UNHEALTHY):
                    config = decode(item, _CONFIG_MAP, subject)
                    name = about.metadata.name.removeprefix(_UNHEALTHY)
                    unhealthy[name] = (config.data or {}).get("gpus", "")
                case _:
                    others[kind] += 1
        except SourceError as error:
            bad.append(_unread(kind, item, error))
    found = tuple(nodes), tuple(pods), tuple(share_pods)
    return Dump(*found, unhealthy, total, others, tuple(bad))


# ---------------------------------------------------------------- one by one


class _Page(msgspec.Struct, Generic[_T], frozen=True):
    """A page of any kind."""

    objects: tuple[_T, ...]
    malformed: tuple[MalformedObject, ...]
    continue_token: str
    resource_version: str
    total: int


def _page(
    page: bytes,
    kind: _Kind[_Wire, _T],
    subject: str,
    wanted: Callable[[_Wire], bool] = lambda _: True,
) -> _Page[_T]:
    """Nearly every page is decoded in one go; one with a malformed object, object by object."""
    bad: list[MalformedObject] = []
    found: list[_T] = []
    try:
        decoded = decode(page, kind.page, subject)
        items = decoded.items or ()
        meta, total = decoded.metadata, len(items)
        found += (kind.project(item, subject) for item in items if wanted(item))
    except SourceError:
        found.clear()
        listed = decode(page, _ANY_LIST, subject)
        if listed.items is None:
            raise
        meta, total = listed.metadata, len(listed.items)
        for content in listed.items:
            try:
                item = decode(content, kind.object, subject)
                if wanted(item):
                    found.append(kind.project(item, subject))
            except SourceError as error:
                bad.append(_unread(kind.name, content, error))
    return _Page(tuple(found), tuple(bad), meta.continue_token, meta.resource_version, total)


def _event(line: bytes, kind: _Kind[_Wire, _T], subject: str) -> WatchEvent[_T]:
    """Nearly every line is an object of the kind, and decoded in one go; the rest in two."""
    try:
        event = decode(line, kind.line, subject)
        told = event.object
        if event.type in _CHANGES and told.kind == kind.name:
            return WatchEvent(
                event.type, told.metadata.resource_version, kind.project(told, subject)
            )
    except SourceError:
        pass
    return _rare_event(line, kind, subject)


def _rare_event(line: bytes, kind: _Kind[_Wire, _T], subject: str) -> WatchEvent[_T]:
    """Bookmarks, the end of the watch, and an object that cannot be read."""
    event = decode(line, _ANY_LINE, subject)
    if event.type is EventType.ERROR:
        return WatchEvent(event.type, error=decode(event.object, _API_ERROR, subject))
    about = decode(event.object, _ANY_OBJECT, subject)
    version = about.metadata.resource_version
    if event.type is EventType.BOOKMARK:
        return WatchEvent(event.type, version)
    if about.kind != kind.name:
        detail = f"an event of kind {about.kind[:_LONGEST_KIND]!r} in place of {kind.name}"
        raise SourceError(Reason.MALFORMED, subject, detail)
    try:
        return WatchEvent(event.type, version, kind.one(event.object, subject))
    except SourceError as error:
        return WatchEvent(event.type, version, _unread(kind.name, event.object, error))


def _unread(kind: str, content: Content, error: SourceError) -> MalformedObject:
    """What is known of an object that cannot be read. Raises the error for what is no object."""
    found = malformed(kind, content, error.detail)
    if not found.name:
        raise error
    return found


def _one(content: Content, read: Callable[[Content, str], _T], subject: str) -> _T:
    """An object that was asked for alone. Raises SourceError MALFORMED, which names it."""
    try:
        return read(content, subject)
    except SourceError as error:
        meta = decode(content, _ANY_OBJECT, subject).metadata
        raise named(error, meta.namespace, meta.name) from error


def _plain(content: Content, decoder: _Decoder[_T], subject: str) -> _T:
    """One object that is kept as it is. Raises as :func:`_one`."""
    return _one(content, lambda told, about: decode(told, decoder, about), subject)
