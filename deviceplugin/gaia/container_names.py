"""The name of a pod's container by its ID: from the kubelet's log links and the pod's status.

The kubelet makes the link when the container has started, so the container may ask before that.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from vgpu.model.names import PodRef
from vgpu.model.objects import Pod
from vgpu.model.reasons import SourceError
from vgpu.sources.files import Remembered
from vgpu.sources.kubelet_names import read_container_links

Names = Callable[[PodRef, Pod | None], Mapping[str, str]]
"""Container ID -> name, as far as the names are known by now."""


class ContainerNames:
    """The containers' names of one node."""

    def __init__(self, log_dir: str = "/var/log/pods") -> None:
        """The links are in the folder ``containers`` beside ``log_dir``."""
        self._links = Remembered(str(Path(log_dir).parent / "containers"), read_container_links)

    def of(self, ref: PodRef, pod: Pod | None) -> Mapping[str, str]:
        """See :data:`Names`; ``pod`` as the API server shows it, None if it does not."""
        reported = {status.id: status.name for status in pod.statuses if status.id} if pod else {}
        try:
            links, _ = self._links.get(time.time())
        except SourceError:
            return reported  # no such folder yet: nothing has started
        mine = (ref.namespace, ref.name)
        linked = {
            container: name.container
            for container, name in links.items()
            if (name.namespace, name.pod) == mine
        }
        return reported | linked
