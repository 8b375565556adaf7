"""How one kind of object at the API server is read: a row of :mod:`vgpu.kube.kinds`; pure.

An invalid list, watch line or single object raises :class:`~vgpu.model.reasons.SourceError`
MALFORMED, which names the source and, if it is readable, the object. In a list or a watch an
unreadable object becomes a :class:`~vgpu.model.objects.MalformedObject` beside the others.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar

import msgspec

from vgpu.kube import wire
from vgpu.kube.decode import Content, decode, decode_at_once, is_too_deep, malformed, named
from vgpu.kube.documents import ApiError, EventType, Keep, ObjectPage, WatchEvent
from vgpu.model.names import PodRef
from vgpu.model.objects import MalformedObject, RawObject
from vgpu.model.reasons import Reason, SourceError

_LONGEST_KIND: Final = 64
"""Maximum number of characters of a kind that an error repeats."""

_CHANGES: Final = frozenset({EventType.ADDED, EventType.MODIFIED, EventType.DELETED})

_EXTENDED: Final = b'"extendedResourceClaimStatus"'
"""In the status of a pod whose extended resource is a ResourceClaim's."""

_T = TypeVar("_T")
_Other = TypeVar("_Other")
_Decoder = msgspec.json.Decoder


class _Line(wire.Wire, Generic[_T], frozen=True):
    """A line of a watch."""

    type: EventType
    object: _T


ANY_LIST: Final = _Decoder(wire.AnyList)
ANY_OBJECT: Final = _Decoder(wire.AnyObject)
_ANY_LINE: Final = _Decoder(_Line[msgspec.Raw])
_API_ERROR: Final = _Decoder(ApiError)


class Decoders(msgspec.Struct, frozen=True):
    """Decoders of one object, a page, and a line of a watch; None decodes a line in two steps."""

    object: _Decoder[Any]
    page: _Decoder[Any]
    line: _Decoder[Any] | None

    @classmethod
    def of(cls, fields: type[wire.ObjectFields]) -> "Decoders":
        """The decoders of objects with these fields."""
        page: Any = wire.ObjectList
        line: Any = _Line
        return cls(_Decoder(fields), _Decoder(page[fields]), _Decoder(line[fields]))


_RAW: Final = Decoders(_Decoder(msgspec.Raw), _Decoder(wire.ObjectList[msgspec.Raw]), None)
_RAW_FIELDS: Final = _Decoder(wire.RawFields)


class ApiKind(msgspec.Struct, Generic[_T], frozen=True):
    """One kind of object: its path, its decoders, and what is kept of it.

    Attributes:
        name, api_version, plural: as Kubernetes has them; the path has them.
        decoders: the decoders of its JSON.
        project: returns what is kept of the decoded fields; raises SourceError MALFORMED with its
            second argument as the error's ``object_name``.
        namespaced: whether its objects have a namespace.
        optional: whether a server may lack the kind, as with a custom resource.
        shares_gpus: whether decoded fields are of a pod that shares GPUs; None keeps all.
        older: older API versions whose objects are read alike, the newest first.
    """

    name: str
    api_version: str
    plural: str
    decoders: Decoders
    project: Callable[[Any, str], _T]
    namespaced: bool = True
    optional: bool = False
    shares_gpus: Callable[[Any], bool] | None = None
    older: tuple[str, ...] = ()

    def in_each_version(self) -> Iterator["ApiKind[_T]"]:
        """The kind in each of its API versions, the newest first."""
        yield self
        for version in self.older:
            yield msgspec.structs.replace(self, api_version=version, older=())

    @property
    def key(self) -> str:
        """The kind with its API group: several systems have a Queue."""
        return f"{self.name}.{self.group}"

    @property
    def group(self) -> str:
        """The API group; "" is the core's."""
        return self.api_version.rpartition("/")[0]

    def read_as(
        self, decoders: Decoders, project: Callable[[Any, str], _Other]
    ) -> "ApiKind[_Other]":
        """The same kind with all its objects, of which something else is kept."""
        return ApiKind(
            self.name,
            self.api_version,
            self.plural,
            decoders,
            project,
            self.namespaced,
            self.optional,
            older=self.older,
        )

    def raw(self) -> "ApiKind[RawObject]":
        """The same kind, with its objects as the server sends them, for copying them."""
        return self.read_as(_RAW, _raw_object)

    # ------------------------------------------------------------ the server's answers

    def one(self, content: Content, object_name: str = "") -> _T:
        """A single object. Raises SourceError MALFORMED, which names the object."""
        object_name = object_name or self.name
        try:
            return self._object(content, object_name)
        except SourceError as error:
            meta = decode(content, ANY_OBJECT, object_name).metadata
            raise named(error, meta.namespace, meta.name) from error

    def page(
        self, content: bytes, object_name: str = "", *, keep: Keep = Keep.SHARING, node: str = ""
    ) -> ObjectPage[_T]:
        """A page of a list; with ``node`` only the pods that are bound to it are kept.

        Nearly every page is decoded in one step; a page with a malformed object, object by object.
        Raises SourceError MALFORMED.
        """
        object_name = object_name or self.plural
        bad: list[MalformedObject] = []
        objects: list[_T] = []
        wanted = self._wanted(keep, node)
        try:
            listed = decode_at_once(content, self.decoders.page, object_name)
            items = listed.items or ()
            objects += (self.project(item, object_name) for item in items if wanted(item))
        except SourceError:
            objects.clear()
            listed = decode(content, ANY_LIST, object_name)
            if listed.listed is None:
                raise
            items = listed.listed
            for text in items:
                try:
                    objects += self._wanted_object(text, object_name, wanted)
                except SourceError as error:
                    bad.append(unread(self.name, text, error))
        return ObjectPage(
            tuple(objects),
            listed.metadata.continue_token,
            listed.metadata.resource_version,
            len(items),
            tuple(broken for broken in bad if not node or broken.node in (None, node)),
        )

    def event(self, line: bytes, object_name: str = "watch") -> WatchEvent[_T]:
        """One line of a watch. Raises SourceError MALFORMED.

        Nearly every line is an object of the kind, decoded in one step; others take two.
        """
        if self.decoders.line is not None:
            try:
                event = decode_at_once(line, self.decoders.line, object_name)
                fields = event.object
                if event.type in _CHANGES and fields.kind == self.name:
                    version = fields.metadata.resource_version
                    return WatchEvent(event.type, version, self.project(fields, object_name))
            except SourceError:
                pass
        return self._rare_event(line, object_name)

    def kept(self, content: Content, object_name: str, keep: Keep) -> tuple[_T, ...]:
        """The object, or () if it is not kept. Raises SourceError MALFORMED."""
        return self._wanted_object(content, object_name, self._wanted(keep, ""))

    def wants(self, keep: Keep) -> Callable[[Any], bool]:
        """A function: whether decoded fields are of an object that is kept."""
        return self._wanted(keep, "")

    # ------------------------------------------------------------ decoding

    def _object(self, content: Content, object_name: str) -> _T:
        return self.project(decode(content, self.decoders.object, object_name), object_name)

    def _wanted_object(
        self, content: Content, object_name: str, wanted: Callable[[Any], bool]
    ) -> tuple[_T, ...]:
        fields = decode(content, self.decoders.object, object_name)
        return (self.project(fields, object_name),) if wanted(fields) else ()

    def _wanted(self, keep: Keep, node: str) -> Callable[[Any], bool]:
        shares_gpus = None if keep is Keep.ALL else self.shares_gpus
        if keep is Keep.RESOURCE_CLAIMS:
            shares_gpus = _also_with_resource_claims(shares_gpus)
        if not node:
            return shares_gpus or (lambda _: True)
        return lambda pod: pod.spec.node_name == node and (shares_gpus is None or shares_gpus(pod))

    def _rare_event(self, line: bytes, object_name: str) -> WatchEvent[_T]:
        """An event that is a bookmark, the end of the watch, or an unreadable object."""
        event = decode(line, _ANY_LINE, object_name)
        if event.type is EventType.ERROR:
            return WatchEvent(event.type, error=decode(event.object, _API_ERROR, object_name))
        about = decode(event.object, ANY_OBJECT, object_name)
        version = about.metadata.resource_version
        if event.type is EventType.BOOKMARK:
            return WatchEvent(event.type, version)
        if about.kind != self.name:
            detail = f"an event of kind {about.kind[:_LONGEST_KIND]!r} in place of {self.name}"
            raise SourceError(Reason.MALFORMED, object_name, detail)
        try:
            return WatchEvent(event.type, version, self._object(event.object, object_name))
        except SourceError as error:
            return WatchEvent(event.type, version, unread(self.name, event.object, error))


def _also_with_resource_claims(
    shares_gpus: Callable[[Any], bool] | None,
) -> Callable[[Any], bool] | None:
    """The same, and pods that use ResourceClaims, or that may use one for an extended resource."""
    if shares_gpus is None:
        return None
    return lambda pod: (
        bool(pod.spec.resource_claims) or _EXTENDED in bytes(pod.status) or shares_gpus(pod)
    )


def unread(kind: str, content: Content, error: SourceError) -> MalformedObject:
    """The readable parts of an unreadable object. Raises the error if it is no object."""
    broken = malformed(kind, content, error.detail)
    if not broken.name:
        raise error
    return broken


def _raw_object(content: msgspec.Raw, object_name: str) -> RawObject:
    """The object, byte for byte. Raises SourceError MALFORMED if it is nested too deeply.

    The decoder may have cut such an object, and an incomplete object must not be copied.
    """
    meta = decode(content, _RAW_FIELDS, object_name).metadata
    if is_too_deep(content):
        raise SourceError(Reason.MALFORMED, object_name, "nested too deeply to be copied")
    ref = PodRef(meta.uid, meta.namespace, meta.name)
    # A copy: the text that was decoded is a whole page.
    return RawObject(ref, meta.resource_version, content.copy())
