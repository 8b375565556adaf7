"""Sends steps to the API server, logs them, and reports their events. It knows no cluster."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from kubeshare import bodies
from kubeshare.bodies import condition_events, malformed_event, pod_event
from kubeshare.decoders import CLUSTER_PODS, SHARE_POD_OBJECTS
from kubeshare.model import LABELLED, ClusterPod, SharePod
from kubeshare.reasons import SharePodReason
from kubeshare.steps import (
    BindPod,
    CreateHolder,
    CreateSharePodPod,
    DeletePod,
    EvictPod,
    PatchSharePod,
    Step,
)
from vgpu.apiserver.bodies import Body
from vgpu.apiserver.connection import CONFLICT, NOT_FOUND, ClusterError
from vgpu.apiserver.event_recorder import EventRecorder, EventWriter
from vgpu.kube.api_kind import ApiKind
from vgpu.kube.events import EventNote
from vgpu.kube.verbs import CREATE, MERGE_STATUS, PATCH, ApiVerb
from vgpu.model.names import PodRef
from vgpu.model.objects import MalformedObject
from vgpu.schemes.kubeshare.node import HOLDER_NAMESPACE, holder_name

log = logging.getLogger(__name__)

MOST_EVENTS: Final = 1000
"""Maximum number of events that wait to be written."""

EVENT_REPEAT_SECONDS: Final = 60.0
"""Time in which an equal event is not reported again, in seconds."""

EVENTS_SECONDS: Final = 1.0
"""Maximum time to wait at the end for events that are not written yet, in seconds."""

MOST_FUTILE: Final = 1000
"""Maximum number of patches that are remembered because they changed nothing."""

FUTILE_SECONDS: Final = 300.0
"""Time after which such a patch is sent again, in seconds: the definition may be another one."""


class ControllerApi(Protocol):
    """The API server. All methods raise ClusterError and SourceError."""

    def get(self, kind: ApiKind[Any], namespace: str, name: str) -> Any:
        """One object."""
        ...

    def send(
        self, verb: ApiVerb, kind: ApiKind[Any], namespace: str, name: str, body: object
    ) -> bytes:
        """Send a body; returns the answer."""
        ...

    def delete_pod(self, pod: PodRef) -> None:
        """Delete exactly this pod."""
        ...

    def evict(self, pod: PodRef, resource_version: str) -> None:
        """Evict exactly this pod in this state."""
        ...

    def bind(
        self, pod: PodRef, resource_version: str, node: str, annotations: Mapping[str, str]
    ) -> None:
        """Bind exactly this pod in this state, and set annotations, in one write."""
        ...

    def write_event(self, note: EventNote) -> None:
        """Report an event."""
        ...


class StepWriter:
    """Writes for the loops. Any thread may call every method."""

    def __init__(
        self, api: ControllerApi, holder: bodies.HolderOptions, clock: Callable[[], float]
    ) -> None:
        """``holder`` is what holder pods run as."""
        self._api = api
        self._holder = holder
        self._clock = clock
        recorder = EventRecorder(MOST_EVENTS, repeat_seconds=EVENT_REPEAT_SECONDS)
        self._events = EventWriter(recorder, api.write_event)
        self._lock = threading.Lock()
        self._futile: OrderedDict[str, tuple[Body, float]] = OrderedDict()

    def read(self, key: str) -> SharePod | ClusterPod | None:
        """The SharePod of a key, or the pod with labels; None if it is gone."""
        kind = CLUSTER_PODS if key.endswith(LABELLED) else SHARE_POD_OBJECTS
        namespace, _, name = key.removesuffix(LABELLED).partition("/")
        try:
            found: SharePod | ClusterPod = self._api.get(kind, namespace, name)
        except ClusterError as error:
            if error.status != NOT_FOUND:
                raise
            return None
        return found

    def is_futile(self, step: Step) -> bool:
        """Whether the same patch of the same version has changed nothing a short time ago.

        The definition of the kind drops what it writes: for example one whose schema does not have
        it, or with a status subresource. The next version of the object is tried at once.
        """
        if not isinstance(step, PatchSharePod):
            return False
        with self._lock:
            body, since = self._futile.get(step.before.key, ({}, 0.0))
        is_recent = bool(body) and self._clock() - since < FUTILE_SECONDS
        return is_recent and body == _patch_of(step, 0.0)

    def write(self, step: Step) -> SharePod | ClusterPod | None:
        """Send a step; returns what is certain of its object now, and None if it ends.

        Raises:
            ClusterError, SourceError: it may or may not have been written.
        """
        try:
            answer = self._send(step)
        except ClusterError as error:
            if isinstance(step, CreateSharePodPod | CreateHolder):
                self._record(pod_event(step, error.message, self._clock()))
            raise
        event, fields = step_event(step)
        log.info(event, extra=fields)
        if isinstance(step, PatchSharePod):
            self._record(*condition_events(step, self._clock()))
        elif not isinstance(step, CreateSharePodPod | CreateHolder):
            self._record(pod_event(step, "", self._clock()))
        return answer

    def report_malformed(self, objects: Iterable[MalformedObject]) -> None:
        """Report objects that cannot be read; their informers log them."""
        self._record(*(malformed_event(each, self._clock()) for each in objects))

    def finish(self) -> None:
        """Write the last events."""
        self._events.finish(EVENTS_SECONDS, lambda: False)

    def _send(self, step: Step) -> SharePod | ClusterPod | None:
        match step:
            case PatchSharePod():
                return self._patch(step)
            case CreateSharePodPod():
                ref = step.share_pod.ref
                body = bodies.share_pod_pod(step.share_pod)
                return self._create(ref.namespace, ref.name, body)
            case CreateHolder():
                body = bodies.holder_pod(step.name, self._holder)
                return self._create(HOLDER_NAMESPACE, holder_name(*step.name), body)
            case DeletePod():
                self._api.delete_pod(step.ref)
            case EvictPod():
                self._api.evict(step.ref, step.resource_version)
            case BindPod():
                after, version = step.after, step.after.pod.resource_version
                annotations = bodies.binding_annotations(after)
                self._api.bind(after.ref, version, after.node, annotations)
                return after
        return None

    def _patch(self, step: PatchSharePod) -> SharePod:
        ref, body = step.before.ref, _patch_of(step, self._clock())
        found: SharePod | ClusterPod
        if step.before.is_pod:
            answer = self._api.send(MERGE_STATUS, CLUSTER_PODS, ref.namespace, ref.name, body)
            found = pod = CLUSTER_PODS.one(answer, "Pod")
            share_pod = step.after if pod.labelled is None else pod.labelled
        else:
            answer = self._api.send(PATCH, SHARE_POD_OBJECTS, ref.namespace, ref.name, body)
            found = share_pod = SHARE_POD_OBJECTS.one(answer, "SharePod")
        if found.pod.resource_version == step.before.pod.resource_version:
            self._note_futile(step)
        return share_pod

    def _note_futile(self, step: PatchSharePod) -> None:
        body, key = _patch_of(step, 0.0), step.before.key
        with self._lock:
            self._futile[key] = body, self._clock()
            self._futile.move_to_end(key)
            if len(self._futile) > MOST_FUTILE:
                self._futile.popitem(last=False)
        fields = ", ".join(f"status.{name}" for name in body.get("status", ()))
        reason = f"its definition keeps none of: {fields or 'the changes'}"
        log.warning("patch changed nothing", extra={"share_pod": key, "reason": reason})

    def _create(self, namespace: str, name: str, body: Body) -> ClusterPod:
        """Create a pod; one of the name that is there already is read."""
        try:
            answer = self._api.send(CREATE, CLUSTER_PODS, namespace, "", body)
            return CLUSTER_PODS.one(answer, "Pod")
        except ClusterError as error:
            if error.status != CONFLICT:
                raise
        found: ClusterPod = self._api.get(CLUSTER_PODS, namespace, name)
        return found

    def _record(self, *notes: EventNote | None) -> None:
        written = [note for note in notes if note is not None]
        with self._lock:
            self._events.record(*written)


def _patch_of(step: PatchSharePod, now: float) -> Body:
    """The body of a patch."""
    is_pod = step.before.is_pod
    return bodies.labelled_patch(step, now) if is_pod else bodies.share_pod_patch(step, now)


def step_event(step: Step) -> tuple[str, dict[str, str]]:
    """The log line of a step that was written: its message, and its object, node and reason."""
    kind, details = "pod", {}
    match step:
        case PatchSharePod():
            event, ref, node = "SharePod patched", step.after.ref, step.after.node
            kind, details = "pod" if step.after.is_pod else "share_pod", {"gpuid": step.after.gpuid}
            reason = step.reason
        case CreateSharePodPod():
            event, ref, node = "pod created", step.share_pod.ref, step.share_pod.node
            details, reason = {"gpu": step.share_pod.bound}, SharePodReason.POD_MISSING
        case CreateHolder():
            ref, node = PodRef("", HOLDER_NAMESPACE, holder_name(*step.name)), step.name.node
            event, details = "holder pod created", {"gpuid": step.name.gpuid}
            reason = SharePodReason.HOLDER_PENDING
        case BindPod():
            event, ref, node = "pod bound", step.after.ref, step.after.node
            details, reason = {"gpu": step.after.bound}, SharePodReason.BOUND
        case DeletePod():
            event, ref, node, reason = "pod deleted", step.ref, "", step.reason
        case EvictPod():
            event, ref, node, reason = "pod evicted", step.ref, "", step.reason
    return event, {kind: f"{ref.namespace}/{ref.name}", "node": node, "reason": reason, **details}
