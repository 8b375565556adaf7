"""What the reconciler did lately: its events, and the failures and evictions that it keeps in mind.

Both are of the API server: a dump shows nothing about them.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

import msgspec

from reconciler.apply.records import COMPONENT
from reconciler.reconciler_state import ReconcilerState, decode
from reconciler.state_store import CONFIG_MAP, KEY
from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.connection import ClusterError
from vgpu.kube import wire
from vgpu.kube.api_kind import Decoders
from vgpu.kube.kinds import EVENTS
from vgpu.model.reasons import SourceError
from vgpucli.doctor.check_rights import own_namespace
from vgpucli.doctor.components import ComponentRole
from vgpucli.doctor.facts import ClusterFacts
from vgpucli.queue_objects import listed

MOST: Final = 50
"""Maximum number of events that are kept, the newest."""


class Repair(msgspec.Struct, frozen=True, rename="camel"):
    """An event of the reconciler: what it did to an object, or why it did not."""

    kind: str
    namespace: str
    name: str
    reason: str
    message: str
    times: int
    since: datetime | None


class Repairs(msgspec.Struct, frozen=True, rename="camel"):
    """What is known of the reconciler's work.

    Attributes:
        events: the newest first.
        kept_in: where it keeps its state; "" if no reconciler is installed, or it has none yet.
        failed: number of findings whose action has failed.
        evicted: number of owners of whose pods it has evicted some.
        notes: what could not be read.
    """

    events: tuple[Repair, ...] = ()
    kept_in: str = ""
    failed: int = 0
    evicted: int = 0
    notes: tuple[str, ...] = ()


class _Involved(wire.Wire, frozen=True):
    kind: str = ""
    namespace: str = ""
    name: str = ""


class _Source(wire.Wire, frozen=True):
    component: str = ""


class _EventFields(wire.ObjectFields, frozen=True):
    metadata: wire.Meta
    involved_object: _Involved = _Involved()
    reason: str = ""
    message: str = ""
    count: wire.Count | None = None
    last_timestamp: wire.Time = None
    source: _Source = _Source()


def _repair(fields: _EventFields, _: str) -> Repair | None:
    if fields.source.component != COMPONENT:
        return None
    about = fields.involved_object
    times, since = fields.count or 1, fields.last_timestamp
    return Repair(
        about.kind, about.namespace, about.name, fields.reason, fields.message, times, since
    )


REPAIRS: Final = EVENTS.read_as(Decoders.of(_EventFields), _repair)
"""All events, of which those of the reconciler are kept."""


def repairs_at(cluster: ApiClient, facts: ClusterFacts) -> Repairs:
    """What the API server has of it, as far as it may be read.

    Raises ClusterError if the API server cannot be reached.
    """
    notes: list[str] = []
    found = listed(cluster, REPAIRS, notes, set(), field_selector=f"source={COMPONENT}") or ()
    state, kept_in = ReconcilerState(), ""
    for component in facts.of_role(ComponentRole.RECONCILER):
        namespace = own_namespace(component)
        try:
            data = cluster.config_map(namespace, CONFIG_MAP)
        except ClusterError as error:
            if error.status is None:
                raise
            notes.append(f"ConfigMap {namespace}/{CONFIG_MAP} could not be read: {error.message}")
        except SourceError as error:
            notes.append(f"ConfigMap {namespace}/{CONFIG_MAP} cannot be read: {error.detail}")
        else:
            if data is not None:
                state, kept_in = decode(data.get(KEY, "")), f"{namespace}/{CONFIG_MAP}"
    events = newest(each for each in found if each is not None)
    return Repairs(events, kept_in, len(state.failed), len(state.attempts), tuple(notes))


def newest(events: Iterable[Repair]) -> tuple[Repair, ...]:
    """The newest ones; those without a time come last."""

    def age(event: Repair) -> tuple[float, str, str, str]:
        time = 0.0 if event.since is None else -event.since.timestamp()
        return time, event.namespace, event.name, event.reason

    return tuple(sorted(events, key=age)[:MOST])
