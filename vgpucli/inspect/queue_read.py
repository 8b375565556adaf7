"""The objects of ``vgpu inspect --by queue``: what the others need, and those of queues."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from vgpu.program.kube_flags import reread
from vgpucli.doctor.read import INSTALLATION_KINDS, installed, installed_in_dumps
from vgpucli.inspect.read import Read, from_cluster, from_files
from vgpucli.kai_queue_objects import kai_queues_at
from vgpucli.queue_objects import kueue_at
from vgpucli.volcano_objects import volcano_at, with_scheduler_of

if TYPE_CHECKING:
    from vgpu.apiserver.client import ApiClient


def queues_in_files(paths: Sequence[str]) -> Read:
    """The objects of dumps, with queues. Raises click.ClickException."""
    file = reread(paths)
    read = from_files(paths, queues=True, used=INSTALLATION_KINDS, read=file)
    volcano = with_scheduler_of(read.volcano, installed_in_dumps(paths, read.others, file))
    return msgspec.structs.replace(read, volcano=volcano)


def queues_at(cluster: "ApiClient", node: str) -> Read:
    """The objects of a cluster, or of a node of it, with queues.

    Raises ClusterError, SourceError, and click.ClickException for a node that does not exist.
    """
    read = from_cluster(cluster, node, node_labels=not node)
    volcano = with_scheduler_of(volcano_at(cluster), partial(installed, cluster))
    return msgspec.structs.replace(
        read, kueue=kueue_at(cluster), volcano=volcano, kai=kai_queues_at(cluster)
    )
