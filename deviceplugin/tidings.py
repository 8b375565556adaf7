"""Who is told of what the binder does: the counters, the events on pods, the scheme's keeper."""

import logging
from collections.abc import Callable, Collection

from deviceplugin.desk import Desk
from deviceplugin.events import Word
from deviceplugin.metrics import Numbers, Wait
from deviceplugin.model import Binding, Conflict, Tenant
from deviceplugin.ports import Keeper
from deviceplugin.reasons import Refused, Why
from deviceplugin.telling import Teller

log = logging.getLogger(__name__)

Living = Callable[[], Collection[str] | None]
"""UIDs of all pods that may have containers here, tenants or not; None if that is not known."""

Mend = Callable[[], object]
"""Writes anew what all containers are given, where it is lost or damaged. Raises OSError."""


class Tidings:
    """A :class:`deviceplugin.binder.Watcher`."""

    def __init__(
        self,
        numbers: Numbers,
        teller: Teller,
        keeper: Keeper | None,
        living: Living,
        *,
        mend: Mend = lambda: None,
    ) -> None:
        self._numbers = numbers
        self._teller = teller
        self._keeper = keeper
        self._living = living
        self._mend = mend

    def recovered(self, desk: Desk) -> None:
        """The keeper goes on with those who are there."""
        if self._keeper is None:
            return
        living = self._living()
        try:
            if living is not None:
                self._keeper.keep_only({*desk.tenants, *living})
        except OSError as error:
            log.warning("what pods have left behind cannot be removed: %s", error)
        for tenant in desk.tenants.values():
            try:
                self._keeper.seat(tenant)
            except OSError as error:
                log.warning("%s: %s", tenant.pod.name or tenant.pod.uid, error)

    def prepare(self, tenant: Tenant) -> None:
        """What all containers are given is there, and the keeper's part. Raises OSError."""
        self._mend()
        if self._keeper:
            self._keeper.bound(tenant)

    def mend(self) -> None:
        """What cannot be mended is said; no new container is made meanwhile."""
        try:
            self._mend()
        except OSError as error:
            log.warning("what all containers are given cannot be mended: %s", error)

    def bound(self, tenant: Tenant, binding: Binding, seconds: float | None) -> None:  # noqa: ARG002  # the log has it
        """A container is bound."""
        if seconds is not None:
            self._numbers.waited(Wait.BIND, seconds)

    def refused(self, error: Refused) -> None:
        """A container cannot be bound. That a pod is not seen yet is no news to anybody."""
        self._numbers.refused("bind", error.why)
        if error.pod is not None and error.why is not Why.NOT_SEEN:
            self._teller.say(error.pod, Word.REFUSED, f"{error} ({error.why.explanation})")

    def left(self, tenant: Tenant) -> None:
        """A tenant is gone."""
        if self._keeper is None:
            return
        try:
            self._keeper.left(tenant.pod.uid)
        except OSError as error:
            log.warning("what %s has left behind cannot be removed: %s", tenant.pod.name, error)

    def unsaved(self) -> None:
        """Our checkpoint could not be written."""
        self._numbers.checkpoint_failed()

    def conflicts(self, found: tuple[Conflict, ...], remarks: tuple[Conflict, ...]) -> None:
        """Publish all conflicts of now; what is only claimed goes to the log alone."""
        self._numbers.conflicts(len(found), len(remarks))
        for each in found:
            if each.pod is not None and each.pod.name:
                self._teller.say(each.pod, Word.CONFLICT, each.detail)

    def changed(self) -> None:
        """The desk, or who is refused, is another."""
        self._teller.wake()
