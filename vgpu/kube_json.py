"""The API server's JSON as the values of :mod:`vgpu.kube`: lists, objects, watch events, dumps.

Bytes that are something else are a :class:`~vgpu.reasons.SourceError` MALFORMED that names the
subject and, where one can be told, the object. What is kept of an object is
:mod:`vgpu.kube_projection`'s part.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import Enum, StrEnum
from typing import Any, Final, Generic, TypeVar

import msgspec

from vgpu import kube_wire as wire
from vgpu.kube import Lease, Node, Pod
from vgpu.kube_projection import (
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


_DATED: Final = frozenset({"Pending", "Failed"})
"""Phases of pods whose last status has a time: these may have to be told from a dead kubelet's."""

_LONGEST_NAME: Final = 253
"""Characters that an object's name may have; an error repeats no more."""

_LONGEST_KIND: Final = 64
"""Characters of a kind that an error repeats."""

_LONGEST_DETAIL: Final = 300
"""Characters of what a decoder says, which repeats what it has read."""


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
    """

    pods: tuple[Pod, ...]
    continue_token: str = ""
    resource_version: str = ""
    total: int = 0


class NodePage(msgspec.Struct, frozen=True):
    """One page of a list of nodes; the rest as in :class:`PodPage`."""

    nodes: tuple[Node, ...]
    continue_token: str = ""
    resource_version: str = ""


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


class Event(msgspec.Struct, Generic[_Object], frozen=True):
    """One line of a watch: an object as it is now, or was last; for ERROR the failure.

    A pod is given whether it shares GPUs or not, since it may have ceased to:
    :func:`~vgpu.kube_projection.shares_gpus` tells.
    """

    type: EventType
    resource_version: str = ""
    object: _Object | None = None
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
    """

    nodes: tuple[Node, ...] = ()
    pods: tuple[Pod, ...] = ()
    share_pods: tuple[Pod, ...] = ()
    unhealthy: Mapping[str, str] = {}
    total: int = 0
    others: Mapping[str, int] = {}


# ---------------------------------------------------------------- the readers

_T = TypeVar("_T")
_Wire = TypeVar("_Wire", wire.PodFields, wire.SharePodFields, wire.NodeFields)
_Decoder = msgspec.json.Decoder
_Content = bytes | msgspec.Raw


class _Line(wire.Wire, Generic[_T], frozen=True):
    type: EventType
    object: _T


_POD = _Decoder(wire.PodFields)
_NODE = _Decoder(wire.NodeFields)
_SHARE_POD = _Decoder(wire.SharePodFields)
_CONFIG_MAP = _Decoder(wire.ConfigMapFields)
_LEASE = _Decoder(wire.LeaseFields)
_EVENT = _Decoder(wire.EventFields)
_POD_STATUS = _Decoder(wire.PodStatus)
_MANAGED_FIELDS = _Decoder(list[wire.ManagedFields] | None)
_POD_LIST = _Decoder(wire.PodList)
_NODE_LIST = _Decoder(wire.NodeList)
_SHARE_POD_LIST = _Decoder(wire.SharePodList)
_ANY_LIST = _Decoder(wire.AnyList)
_ANY_OBJECT = _Decoder(wire.AnyObject)
_POD_LINE = _Decoder(_Line[wire.PodFields])
_NODE_LINE = _Decoder(_Line[wire.NodeFields])
_SHARE_POD_LINE = _Decoder(_Line[wire.SharePodFields])
_ANY_LINE = _Decoder(_Line[msgspec.Raw])
_API_ERROR = _Decoder(ApiError)


def decode_pods(
    page: bytes, subject: str = "pods", *, keep: Keep = Keep.SHARING, node: str = ""
) -> PodPage:
    """A page of ``/api/v1/pods``; with ``node`` only the pods that are bound to it are kept.

    Raises SourceError MALFORMED.
    """
    decoded = _decode_list(page, _POD_LIST, _POD, subject)
    items = decoded.items or ()
    pods = tuple(
        _pod(pod, subject)
        for pod in items
        if node in ("", pod.spec.node_name) and (keep is Keep.ALL or wire_shares_gpus(pod))
    )
    meta = decoded.metadata
    return PodPage(pods, meta.continue_token, meta.resource_version, len(items))


def decode_share_pods(page: bytes, subject: str = "sharepods") -> PodPage:
    """A page of ``/apis/kubeshare.nthu/v1/sharepods``, all of them kept.

    Raises SourceError MALFORMED.
    """
    decoded = _decode_list(page, _SHARE_POD_LIST, _SHARE_POD, subject)
    pods = tuple(project_share_pod(pod) for pod in decoded.items or ())
    meta = decoded.metadata
    return PodPage(pods, meta.continue_token, meta.resource_version, len(pods))


def decode_nodes(page: bytes, subject: str = "nodes") -> NodePage:
    """A page of ``/api/v1/nodes``. Raises SourceError MALFORMED."""
    decoded = _decode_list(page, _NODE_LIST, _NODE, subject)
    nodes = tuple(project_node(node, subject) for node in decoded.items or ())
    meta = decoded.metadata
    return NodePage(nodes, meta.continue_token, meta.resource_version)


def decode_pod(content: _Content, subject: str = "pod") -> Pod:
    """One pod. Raises SourceError MALFORMED."""
    return _pod(_decode_object(content, _POD, subject), subject)


def decode_share_pod(content: _Content, subject: str = "sharepod") -> Pod:
    """One SharePod. Raises SourceError MALFORMED."""
    return project_share_pod(_decode_object(content, _SHARE_POD, subject))


def decode_node(content: _Content, subject: str = "node") -> Node:
    """One node. Raises SourceError MALFORMED."""
    return project_node(_decode_object(content, _NODE, subject), subject)


def decode_capacity(content: _Content, subject: str = "node") -> Mapping[str, str]:
    """A node's capacity, every resource of it, as it is written. Raises SourceError MALFORMED."""
    capacity = _decode_object(content, _NODE, subject).status.capacity or {}
    return {name: str(quantity) for name, quantity in capacity.items()}


def decode_config_map(
    content: _Content, subject: str = "configmap"
) -> tuple[Mapping[str, str], str]:
    """The data of one ConfigMap, and its resource version. Raises SourceError MALFORMED."""
    config = _decode_object(content, _CONFIG_MAP, subject)
    return config.data or {}, config.metadata.resource_version


def decode_lease(content: _Content, subject: str = "lease") -> Lease:
    """One Lease. Raises SourceError MALFORMED."""
    return project_lease(_decode_object(content, _LEASE, subject))


def decode_event_count(content: _Content, subject: str = "event") -> int:
    """How often a core Event was said. Raises SourceError MALFORMED."""
    return _decode_object(content, _EVENT, subject).count or 0


def decode_pod_event(line: bytes, subject: str = "watch") -> Event[Pod]:
    """One line of a watch of pods. Raises SourceError MALFORMED."""
    return _decode_event(line, subject, _POD_LINE, kind="Pod", project=_pod, decode=decode_pod)


def decode_share_pod_event(line: bytes, subject: str = "watch") -> Event[Pod]:
    """One line of a watch of SharePods. Raises SourceError MALFORMED."""
    return _decode_event(
        line, subject, _SHARE_POD_LINE, kind="SharePod", project=_share_pod, decode=decode_share_pod
    )


def decode_node_event(line: bytes, subject: str = "watch") -> Event[Node]:
    """One line of a watch of nodes. Raises SourceError MALFORMED."""
    return _decode_event(
        line, subject, _NODE_LINE, kind="Node", project=project_node, decode=decode_node
    )


def decode_dump(content: bytes, subject: str = "dump", *, keep: Keep = Keep.SHARING) -> Dump:
    """Everything in the output of ``kubectl get nodes,pods -A -o json`` and its like.

    A ``List`` of mixed kinds, a list of one kind, or one object. Raises SourceError MALFORMED.
    """
    decoded = _decode(content, _ANY_LIST, subject)
    if not decoded.kind:
        raise SourceError(Reason.MALFORMED, subject, "not a Kubernetes object: it has no kind")
    items: Iterable[_Content] = (content,) if decoded.items is None else decoded.items
    kind_of_all = decoded.kind.removesuffix("List")  # where the items do not say theirs
    nodes: list[Node] = []
    pods: list[Pod] = []
    share_pods: list[Pod] = []
    unhealthy: dict[str, str] = {}
    total = 0
    others: Counter[str] = Counter()
    for item in items:
        about = _decode(item, _ANY_OBJECT, subject)
        kind = about.kind or kind_of_all
        if about.api_version not in ("", _API_VERSIONS.get(kind)):
            others[kind] += 1
            continue
        match kind:
            case "Pod":
                total += 1
                pod = _decode_object(item, _POD, subject)
                if keep is Keep.ALL or wire_shares_gpus(pod):
                    pods.append(_pod(pod, subject))
            case "Node":
                nodes.append(decode_node(item, subject))
            case "SharePod":
                share_pods.append(decode_share_pod(item, subject))
            case "ConfigMap" if about.metadata.name.startswith(_UNHEALTHY):
                config = _decode_object(item, _CONFIG_MAP, subject)
                name = about.metadata.name.removeprefix(_UNHEALTHY)
                unhealthy[name] = (config.data or {}).get("gpus", "")
            case _:
                others[kind] += 1
    return Dump(tuple(nodes), tuple(pods), tuple(share_pods), unhealthy, total, others)


# ---------------------------------------------------------------- decoding, and whose fault it is


def _decode(content: _Content, decoder: _Decoder[_T], subject: str) -> _T:
    try:
        return decoder.decode(content)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise SourceError(Reason.MALFORMED, subject, str(error)[:_LONGEST_DETAIL]) from error


def _pod(pod: wire.PodFields, subject: str) -> Pod:
    meta = pod.metadata
    try:
        status = _decode(pod.status, _POD_STATUS, subject)
        written = None
        if status.phase in _DATED:
            written = _decode(meta.managed_fields, _MANAGED_FIELDS, subject)
    except SourceError as error:
        raise _named(error, meta.namespace, meta.name) from error
    return project_pod(pod, status, written or ())


def _share_pod(pod: wire.SharePodFields, _: str) -> Pod:
    return project_share_pod(pod)


def _decode_event(
    line: bytes,
    subject: str,
    decoder: _Decoder[_Line[_Wire]],
    *,
    kind: str,
    project: Callable[[_Wire, str], _T],
    decode: Callable[[msgspec.Raw, str], _T],
) -> Event[_T]:
    """Nearly every line is an object of the kind, and decoded in one go; the rest in two."""
    try:
        event = decoder.decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return _decode_rare_event(line, kind, decode, subject)
    told = event.object
    if event.type not in _CHANGES or told.kind != kind:
        return _decode_rare_event(line, kind, decode, subject)
    return Event(event.type, told.metadata.resource_version, project(told, subject))


def _decode_rare_event(
    line: bytes, kind: str, decode: Callable[[msgspec.Raw, str], _T], subject: str
) -> Event[_T]:
    """Bookmarks, the end of the watch, and what cannot be read, to say whose fault it is."""
    event = _decode(line, _ANY_LINE, subject)
    if event.type is EventType.ERROR:
        return Event(event.type, error=_decode(event.object, _API_ERROR, subject))
    about = _decode(event.object, _ANY_OBJECT, subject)
    version = about.metadata.resource_version
    if event.type is EventType.BOOKMARK:
        return Event(event.type, version)
    if about.kind != kind:
        detail = f"an event of kind {about.kind[:_LONGEST_KIND]!r} in place of {kind}"
        raise SourceError(Reason.MALFORMED, subject, detail)
    return Event(event.type, version, decode(event.object, subject))


def _decode_object(content: _Content, decoder: _Decoder[_T], subject: str) -> _T:
    try:
        return _decode(content, decoder, subject)
    except SourceError as error:
        meta = _decode(content, _ANY_OBJECT, subject).metadata
        raise _named(error, meta.namespace, meta.name) from error


def _named(error: SourceError, namespace: str, name: str) -> SourceError:
    whose = "/".join(part[:_LONGEST_NAME] for part in (namespace, name) if part)
    return SourceError(error.reason, error.subject, f"{whose}: {error.detail}")


def _decode_list(
    page: bytes, decoder: _Decoder[_T], item_decoder: _Decoder[Any], subject: str
) -> _T:
    try:
        return _decode(page, decoder, subject)
    except SourceError:  # once more, slowly, to say whose fault it is
        for item in _decode(page, _ANY_LIST, subject).items or ():
            _decode_object(item, item_decoder, subject)
        raise
