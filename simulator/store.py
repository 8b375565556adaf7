"""The objects of a simulated API server, each change of which has a version of its own.

A simulator: it keeps the promises that clients of Kubernetes need, and no others. Lists are of
one version, page by page; watches report every change after a version, or that it is too old; a
write that names a version or an identity is a conflict where the object has another one. An
eviction removes the object at once: there is no grace period and no disruption budget.
"""

import copy
import itertools
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final

import msgspec

from simulator.patches import PatchError, patched
from vgpu.kube.api_kind import ApiKind
from vgpu.kube.kinds import PODS
from vgpu.kube.label_selector import Selects
from vgpu.kube.merge_patches import merged

_Kind = ApiKind[Any]

Json = dict[str, Any]

HISTORY: Final = 10_000
"""Number of changes that are kept for watches."""

OPEN_LISTS: Final = 100
"""Number of paginated lists that may be open at a time."""


class StoreError(Exception):  # the server's answer, and no fault of its own
    """A request that is not granted.

    Attributes:
        code: the HTTP status.
        reason: Kubernetes' reason, such as ``NotFound``.
        message: for people.
        token: continues an expired list.
    """

    def __init__(self, code: HTTPStatus, reason: str, message: str, token: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.token = token


class Selector(msgspec.Struct, frozen=True):
    """Selects the objects of a namespace ("" for all) with these fields, and by their labels.

    ``unequal`` are pairs of a field and a value that it must not have.
    """

    namespace: str = ""
    fields: Mapping[str, str] = {}
    selects: Selects = lambda _: True
    unequal: tuple[tuple[str, str], ...] = ()

    def chooses(self, document: Json) -> bool:
        """Whether it selects the object; a missing field is empty."""
        meta = document["metadata"]
        return (
            self.namespace in ("", meta.get("namespace"))
            and all(_field(document, path) == text for path, text in self.fields.items())
            and all(_field(document, path) != text for path, text in self.unequal)
            and self.selects(meta.get("labels") or {})
        )


EVERYTHING: Final = Selector()


class ListPage(msgspec.Struct, frozen=True):
    """A part of a list; ``token`` is for the rest, "" if this is all."""

    items: tuple[Json, ...]
    version: int
    token: str = ""


class _Change(msgspec.Struct, frozen=True):
    """A change of an object; None means that it did not exist, or no longer exists."""

    version: int
    kind: _Kind
    before: Json | None
    after: Json | None


_Key = tuple[str, str, str]

_PRECONDITIONS: Final = {"uid": "UID", "resourceVersion": "ResourceVersion"}
"""Preconditions of an eviction -> their names in messages."""


class ObjectStore:
    """All objects. Safe to use from several threads; callers must not change what it returns."""

    def __init__(self, history: int = HISTORY) -> None:
        """``history`` is the number of the last changes that a watch can begin with."""
        self._objects: dict[_Key, Json] = {}
        self._changed = threading.Condition(threading.RLock())
        self._history: deque[_Change] = deque(maxlen=history)
        self._open: dict[str, tuple[int, _Kind, Selector, tuple[Json, ...]]] = {}
        self._numbers = itertools.count(1)
        self._version = 0
        self._closed = False
        self.on_gone: Callable[[Json], None] = lambda _: None
        """Called with each removed object under the same lock: no client sees a state between."""

    @property
    def version(self) -> int:
        """The version of the newest change."""
        return self._version

    def close(self) -> None:
        """End all watches."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # ------------------------------------------------------------ reads

    def get(self, kind: _Kind, namespace: str, name: str) -> Json:
        """One object. Raises StoreError NotFound."""
        with self._changed:
            try:
                return self._objects[kind.plural, namespace, name]
            except KeyError:
                message = f'{kind.plural} "{name}" not found'
                raise StoreError(HTTPStatus.NOT_FOUND, "NotFound", message) from None

    def list(self, kind: _Kind, selector: Selector = EVERYTHING, limit: int = 0) -> ListPage:
        """The first page of the selected objects; ``limit`` 0 is all of them."""
        with self._changed:
            objects = tuple(
                obj
                for key, obj in sorted(self._objects.items())
                if key[0] == kind.plural and selector.chooses(obj)
            )
            return self._page(self._version, kind, selector, objects, limit)

    def go_on(self, token: str, limit: int = 0) -> ListPage:
        """The next page of a list. Raises StoreError Expired."""
        with self._changed:
            version, kind, selector, rest = self._open.pop(token, (0, PODS, Selector(), ()))
            if not version:
                message = "The provided continue parameter is too old"
                raise StoreError(HTTPStatus.GONE, "Expired", message)
            return self._page(version, kind, selector, rest, limit)

    def _page(
        self,
        version: int,
        kind: _Kind,
        selector: Selector,
        objects: tuple[Json, ...],
        limit: int,
    ) -> ListPage:
        if not limit or len(objects) <= limit:
            return ListPage(objects, version)
        token = f"{version}-{next(self._numbers)}"
        self._open[token] = (version, kind, selector, objects[limit:])
        while len(self._open) > OPEN_LISTS:
            del self._open[next(iter(self._open))]
        return ListPage(objects[:limit], version, token)

    def watch(
        self, kind: _Kind, selector: Selector, version: int, bookmark_seconds: float
    ) -> Iterator[tuple[str, Json]]:
        """Type and object of each event after ``version``, as they come, until :meth:`close`.

        A bookmark follows changes of other objects, and ``bookmark_seconds`` without a change.
        Raises StoreError Expired before the first event, if not all changes since then are
        remembered.
        """
        with self._changed:
            oldest = self._history[0].version if self._history else self._version + 1
            if version < oldest - 1:
                message = f"too old resource version: {version} ({oldest - 1})"
                raise StoreError(HTTPStatus.GONE, "Expired", message)
        return self._events(kind, selector, version, bookmark_seconds)

    def _events(
        self, kind: _Kind, selector: Selector, version: int, bookmark_seconds: float
    ) -> Iterator[tuple[str, Json]]:
        while not self._closed:
            news = self._news(version, bookmark_seconds)
            version = max([version, *(change.version for change in news)])
            events = [event for change in news if (event := _event(change, kind, selector))]
            yield from events
            if not events:
                meta = {"resourceVersion": str(version)}
                yield (
                    "BOOKMARK",
                    {"kind": kind.name, "apiVersion": kind.api_version, "metadata": meta},
                )

    def _news(self, version: int, seconds: float) -> tuple[_Change, ...]:
        """The changes after ``version``; waits for the first of them for at most ``seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._version > version, seconds)
            return tuple(change for change in self._history if change.version > version)

    # ------------------------------------------------------------ writes

    def create(self, kind: _Kind, document: Json, *, dry_run: bool = False) -> Json:
        """Create an object, and return it. Raises StoreError AlreadyExists."""
        with self._changed:
            made = copy.deepcopy(document)
            meta = made["metadata"]
            key = (kind.plural, meta.get("namespace", ""), meta["name"])
            if key in self._objects:
                message = f'{kind.plural} "{meta["name"]}" already exists'
                raise StoreError(HTTPStatus.CONFLICT, "AlreadyExists", message)
            made |= {"kind": kind.name, "apiVersion": kind.api_version}
            meta.setdefault("uid", str(uuid.uuid4()))
            meta.setdefault("creationTimestamp", f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}")
            return self._keep(kind, key, None, made, dry_run=dry_run)

    def replace(self, kind: _Kind, document: Json, *, dry_run: bool = False) -> Json:
        """Replace the object. Raises StoreError NotFound, Conflict, Invalid."""
        with self._changed:
            meta = document["metadata"]
            before = self.get(kind, meta.get("namespace", ""), meta["name"])
            kept = {key: before["metadata"][key] for key in ("uid", "creationTimestamp")}
            whole = document | {"metadata": kept | meta}
            return self._update(kind, before, copy.deepcopy(whole), dry_run=dry_run)

    def patch(
        self, kind: _Kind, namespace: str, name: str, patch: Json, *, dry_run: bool = False
    ) -> Json:
        """Merge a patch into the object (RFC 7386). Raises as :meth:`replace`."""
        with self._changed:
            before = self.get(kind, namespace, name)
            after = merged(copy.deepcopy(before), patch)
            return self._update(kind, before, after, dry_run=dry_run)

    def patch_status(
        self,
        kind: _Kind,
        namespace: str,
        name: str,
        patch: Json | Sequence[Any],
        *,
        dry_run: bool = False,
    ) -> Json:
        """Apply a merge patch (RFC 7386), or a list as JSON patch (RFC 6902), through ``status``.

        As at a real API server status, annotations, labels and finalizers change; a changed spec,
        and changed owners of a pod, are ignored. Raises as :meth:`replace`.
        """
        with self._changed:
            before = self.get(kind, namespace, name)
            try:
                if isinstance(patch, dict):
                    after = merged(copy.deepcopy(before), patch)
                else:
                    after = patched(before, patch)
            except PatchError as error:
                raise _invalid(str(error)) from error
            if not isinstance(after.get("metadata"), dict):
                raise _invalid("the metadata is not an object")
            _restore(after, before, "spec")
            if kind is PODS:
                _restore(after["metadata"], before["metadata"], "ownerReferences")
            return self._update(kind, before, after, dry_run=dry_run)

    def bind(self, namespace: str, name: str, binding: Json, *, dry_run: bool = False) -> None:
        """Give a pod its node and the binding's annotations, if it has the binding's version.

        Raises StoreError NotFound, Conflict.
        """
        with self._changed:
            before = self.get(PODS, namespace, name)
            meta = binding["metadata"]
            for field in _PRECONDITIONS:
                if meta.get(field) not in (None, before["metadata"][field]):
                    message = f"{field} in the binding is not that of the pod"
                    raise _conflict(PODS, name, message)
            node = before["spec"].get("nodeName")
            if node:
                message = f'pod {name} is already assigned to node "{node}"'
                raise _conflict(PODS, name, message)
            after = copy.deepcopy(before)
            after["metadata"].setdefault("annotations", {}).update(meta.get("annotations") or {})
            after["spec"]["nodeName"] = binding["target"]["name"]
            self._update(PODS, before, after, dry_run=dry_run)

    def evict(
        self, namespace: str, name: str, preconditions: Mapping[str, str], *, dry_run: bool = False
    ) -> None:
        """Remove a pod, if it has that ``uid`` and ``resourceVersion``.

        Raises StoreError NotFound, Conflict.
        """
        with self._changed:
            before = self.get(PODS, namespace, name)
            for field, title in _PRECONDITIONS.items():
                wanted, actual = preconditions.get(field), before["metadata"][field]
                if wanted not in (None, actual):
                    message = (
                        f"Precondition failed: {title} in precondition: {wanted},"
                        f" {title} in object meta: {actual}"
                    )
                    raise _conflict(PODS, name, message)
            if not dry_run:
                del self._objects[PODS.plural, namespace, name]
                self._note(PODS, before, None)
                self.on_gone(before)

    def _update(self, kind: _Kind, before: Json, after: Json, *, dry_run: bool) -> Json:
        """Raises StoreError Conflict, Invalid."""
        was, meta = before["metadata"], after["metadata"]
        name = was["name"]
        if meta.get("resourceVersion", "") not in ("", was["resourceVersion"]):
            message = (
                "the object has been modified; please apply your changes to the latest version"
                " and try again"
            )
            raise _conflict(kind, name, message)
        for field in ("uid", "name", "namespace"):
            if meta.get(field) != was.get(field):
                message = f'{kind.name} "{name}" is invalid: metadata.{field}: field is immutable'
                raise _invalid(message)
        after |= {"kind": kind.name, "apiVersion": kind.api_version}
        key = (kind.plural, was.get("namespace", ""), name)
        return self._keep(kind, key, before, after, dry_run=dry_run)

    def _keep(
        self, kind: _Kind, key: _Key, before: Json | None, after: Json, *, dry_run: bool
    ) -> Json:
        """The object with its version; a write without a change makes no new version."""
        if before is not None:
            after["metadata"]["resourceVersion"] = before["metadata"]["resourceVersion"]
            if after == before:
                return before
        if not dry_run:
            after["metadata"]["resourceVersion"] = str(self._version + 1)
            self._objects[key] = after
            self._note(kind, before, after)
        return after

    def _note(self, kind: _Kind, before: Json | None, after: Json | None) -> None:
        self._version += 1
        self._history.append(_Change(self._version, kind, before, after))
        self._changed.notify_all()


def _restore(changed: Json, original: Json, field: str) -> None:
    """Give a field its original value, or none if it had none."""
    changed.pop(field, None)
    if field in original:
        changed[field] = copy.deepcopy(original[field])


def _event(change: _Change, kind: _Kind, selector: Selector) -> tuple[str, Json] | None:
    """A watch's event for a change: an object that is no longer selected is DELETED for it."""
    if change.kind != kind:
        return None
    was = change.before is not None and selector.chooses(change.before)
    if change.after is not None and selector.chooses(change.after):
        return ("MODIFIED" if was else "ADDED"), change.after
    if not was or change.before is None:
        return None
    return "DELETED", merged(change.before, {"metadata": {"resourceVersion": str(change.version)}})


_FIELDS: Final = {"source": "source.component"}
"""Fields of selectors that have another path in the object: that of an Event."""


def _field(document: Json, path: str) -> str:
    value: Any = document
    for part in _FIELDS.get(path, path).split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return "" if value is None else str(value)


def _conflict(kind: _Kind, name: str, message: str) -> StoreError:
    text = f'Operation cannot be fulfilled on {kind.plural} "{name}": {message}'
    return StoreError(HTTPStatus.CONFLICT, "Conflict", text)


def _invalid(message: str) -> StoreError:
    return StoreError(HTTPStatus.UNPROCESSABLE_ENTITY, "Invalid", message)
