"""The time of a daemon, which a test moves: it expects the same however busy the machine is."""


class ManualClock:
    """Microseconds that pass only by :meth:`advance`.

    A daemon that waits until a time looks at it again when it gets a message, or when as much real
    time has passed.
    """

    def __init__(self):
        self._now = 0

    def __call__(self):
        return self._now

    def advance(self, milliseconds):
        self._now += milliseconds * 1000
