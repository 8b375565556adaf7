"""The objects of the page: from the API server, or from dumps of it, as the commands read them."""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from fleet.repairs import Repairs, repairs_at
from reconciler.cycle import Cycles, PreparedPlan
from reconciler.observe.cluster import ListingObserver
from reconciler.observe.dump import DumpObserver
from reconciler.policy import Policy
from vgpu.inventory import Units
from vgpu.kube.dump import joined
from vgpu.kube.installation_kinds import MUTATING_WEBHOOKS
from vgpu.model.reasons import SourceError
from vgpu.program.kube_flags import not_a_dump, reread
from vgpucli.doctor.facts import ClusterFacts
from vgpucli.doctor.read import from_dumps, from_server, installed_in_dumps
from vgpucli.explain.cluster_objects import ClusterObjects
from vgpucli.explain.kai_read import all_kai_at, dumped_kai
from vgpucli.explain.read import EXPLAINED_KINDS, dumped_webhooks, volcano_of_dumps
from vgpucli.explain.webhooks import PodWebhooks
from vgpucli.inspect.read import (
    UNREAD_CLAIMS,
    Read,
    from_cluster,
    from_files,
    with_quotas,
    with_teams,
)
from vgpucli.queue_objects import kueue_at
from vgpucli.volcano_objects import volcano_at, with_scheduler_of

if TYPE_CHECKING:
    from vgpu.apiserver.client import ApiClient


class FleetObjects(msgspec.Struct, frozen=True):
    """The objects of a cluster as each command reads them.

    Attributes:
        name: the cluster or the files, for people.
        read: as ``vgpu inspect`` reads, with quotas, teams and queues.
        explained: as ``vgpu explain`` reads.
        facts: as ``vgpu doctor`` reads.
        prepared: the plan of ``vgpu reconcile plan``, with its defaults.
        is_dump: whether files were read, which do not change.
        notes: what is missing of the kinds of queues.
        repairs: what the reconciler did lately; None of a dump, which does not show it.
    """

    name: str
    read: Read
    explained: ClusterObjects
    facts: ClusterFacts
    prepared: PreparedPlan
    is_dump: bool
    notes: tuple[str, ...] = ()
    repairs: Repairs | None = None


def of_files(paths: Sequence[str], units: Units, team_key: str) -> FleetObjects:
    """The objects of dumps. Raises click.ClickException."""
    file = reread(paths)
    read = from_files(
        paths, None, team_key, scheduling=True, queues=True, used=EXPLAINED_KINDS, read=file
    )
    found = installed_in_dumps(paths, read.others, file)
    installation = None if found is None else cache(found)
    volcano = with_scheduler_of(read.volcano, installation)
    read = msgspec.structs.replace(read, volcano=volcano)
    explained = msgspec.structs.replace(
        _explained(read),
        is_dump=True,
        installation=installation,
        volcano=volcano_of_dumps(read, installation),
        webhooks=dumped_webhooks(paths, read.others, file),
        kai=dumped_kai(paths, file),
    )
    facts = from_dumps(paths, units.by_row, read=file)
    name = " and ".join(paths)
    try:
        content = joined([(path, file(path)[0]) for path in paths])
        observer = DumpObserver(content, name, units)
        prepared = Cycles(observer, Policy(), clock=lambda: read.as_of).make()
    except SourceError as error:
        raise not_a_dump(str(error)) from error
    return FleetObjects(name, read, explained, facts, prepared, is_dump=True)


def of_cluster(cluster: "ApiClient", units: Units, team_key: str) -> FleetObjects:
    """The objects of the API server. Raises ClusterError, SourceError, click.ClickException."""
    facts = from_server(cluster, units.by_row)
    read = from_cluster(cluster, "", scheduling=True)
    unread = len(read.notes)
    read = with_quotas(read, cluster)
    quotas_read = len(read.notes) == unread
    read = msgspec.structs.replace(
        with_teams(read, cluster, team_key),
        kueue=kueue_at(cluster),
        volcano=with_scheduler_of(volcano_at(cluster), lambda: facts),
    )
    kai, kai_notes = all_kai_at(cluster)
    explained = msgspec.structs.replace(
        _explained(read),
        quotas_read=quotas_read,
        installation=lambda: facts,
        volcano=lambda *_: read.volcano,
        webhooks=lambda *_: PodWebhooks(
            facts.webhooks if facts.has_read(MUTATING_WEBHOOKS) else None
        ),
        kai=kai,
    )
    policy = Policy()
    observer = ListingObserver(
        cluster,
        units,
        quotas=policy.reads_quotas,
        resource_claims=policy.reads_resource_claims,
    )
    prepared = Cycles(observer, policy, clock=lambda: read.as_of).make()
    notes = (*read.kueue.notes, *read.volcano.notes, *kai_notes)
    return FleetObjects(
        cluster.server,
        read,
        explained,
        facts,
        prepared,
        is_dump=False,
        notes=notes,
        repairs=repairs_at(cluster, facts),
    )


def _explained(read: Read) -> ClusterObjects:
    return ClusterObjects(
        read.objects,
        read.as_of,
        read.namespaces,
        read.quotas,
        read.gpu_quota,
        notes=read.notes,
        pods_read=read.pods_read,
        claims_read=not any(UNREAD_CLAIMS in note for note in read.notes),
        scheduling=read.scheduling,
        kueue=read.kueue,
    )
