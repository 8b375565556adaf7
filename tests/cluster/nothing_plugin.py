"""A process on a node that serves device plugins which do nothing but answer.

``nothing_plugin.py RESOURCE=COUNT…`` offers so many IDs of each resource until it is ended.
"""

import signal
import sys
from pathlib import Path

from tests.support.bed.deviceplugin import DevicePlugin

ID_LENGTH = len("GPU-12345678-1234-1234-1234-123456789abc-core-12")
"""Of Volcano's IDs."""


class Here:
    """The node, from inside."""

    path = staticmethod(Path)


offered = (each.split("=") for each in sys.argv[1:])
plugins = [
    DevicePlugin(Here, resource, [f"{number:0{ID_LENGTH}}" for number in range(int(count))])
    for resource, count in offered
]
signal.sigwait({signal.SIGTERM})
for plugin in plugins:
    plugin.stop()
