"""What a queue or cohort may have of one resource, as any queueing system declares it; pure."""

import msgspec


class QuotaResource(msgspec.Struct, frozen=True, order=True):
    """A resource that a quota limits, of one flavor of nodes; "" where a system has no flavors."""

    flavor: str
    resource: str

    @property
    def text(self) -> str:
        """The resource with its flavor, for people."""
        return f"{self.resource} of flavor {self.flavor}" if self.flavor else self.resource


class DeclaredQuota(msgspec.Struct, frozen=True):
    """The quota of a queue or cohort, in the unit of its resource; None limits nothing.

    Attributes:
        nominal: its own amount.
        borrowing_limit: how much more it may take of what others leave unused.
        lending_limit: how much of its own amount others may take.
    """

    nominal: int
    borrowing_limit: int | None = None
    lending_limit: int | None = None


class QuotaCeiling(msgspec.Struct, frozen=True):
    """What a queue of a system whose limits do not add up may have; None is not declared.

    Attributes:
        most: the limit for the queue and all below it.
        deserved: what it may take back from others.
        guaranteed: what nobody else may take.
        weight: its part of what the queues beside it leave of their quotas.
    """

    most: int | None = None
    deserved: int | None = None
    guaranteed: int | None = None
    weight: float | None = None
