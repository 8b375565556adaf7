"""The API server as a mirror sees it, played by a script, for what a real one rarely does.

server = ScriptedApi(["first list"], ["second list"])
server.events.put(event(EventType.ADDED, "an object"))  # or an error, or END
"""

import queue

from tests.support.waiting import WAIT_SECONDS
from vgpu.kube.documents import WatchEvent

END = object()


def event(type_, object_name=None, version="2"):
    return WatchEvent(type_, version, object_name)


class ScriptedApi:
    """Answers lists from ``lists`` and fills watches from ``events``, in order; errors are raised.

    ``accepts`` is whether a watch is accepted before its first event or error.
    Its clock stands still at ``now``, and whoever should pause notes that in ``pauses`` instead.
    """

    def __init__(self, *lists):
        self.lists = list(lists)
        self.events = queue.Queue()
        self.watched_from = []
        self.listed = 0
        self.pauses = []
        self.now = 1000.0
        self.accepts = False

    def clock(self):
        return self.now

    def list(self):
        self.listed += 1
        answer = self.lists.pop(0) if len(self.lists) > 1 else self.lists[0]
        if isinstance(answer, Exception):
            raise answer
        return answer, str(100 * self.listed)

    def watch(self, version, opened):
        self.watched_from.append(version)
        if self.accepts:
            opened()
        while (message := self.events.get(timeout=WAIT_SECONDS)) is not END:
            if isinstance(message, Exception):
                raise message
            yield message
