"""Time that passes only while somebody waits for a condition."""

import threading


class PassingTime(threading.Condition):
    """A condition whose waits last no time; ``now[0]`` is the time, in seconds.

    ``events`` are times in their order with calls that happen then, if somebody waits.
    """

    def __init__(self, now):
        super().__init__()
        self.now, self.events, self.waits = now, [], []

    def wait(self, timeout=None):
        self.waits.append(timeout)
        end = self.now[0] + timeout
        while self.events and self.events[0][0] <= end:
            self.now[0], happen = self.events.pop(0)
            happen()
        self.now[0] = end
        return False
