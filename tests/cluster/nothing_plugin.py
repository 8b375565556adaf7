"""A process on a node that serves device plugins which do nothing but answer.

``nothing_plugin.py COUNT RESOURCE…`` offers so many IDs of each resource until it is ended.
"""

import signal
import sys
from pathlib import Path

from bed.deviceplugin import DevicePlugin


class Here:
    """The node, from inside."""

    path = staticmethod(Path)


count, *resources = sys.argv[1:]
plugins = [
    DevicePlugin(Here, resource, [f"{number:04}" for number in range(int(count))])
    for resource in resources
]
signal.sigwait({signal.SIGTERM})
for plugin in plugins:
    plugin.stop()
