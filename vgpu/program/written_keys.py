"""The annotations, labels and resources that our programs write, by program; pure.

The chart's admission policy lets an account write these and nothing else. The keys of a sharing
system are in its row; those that belong to no system are here. Names of Leases and of the
reconciler's ConfigMap are constants of the programs, with which a test compares them.

A key that ends with ``*`` stands for all keys with its beginning.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from vgpu.quota.check import OVER_QUOTA
from vgpu.schemes.kubeshare.labels import VIRTUAL_GPU
from vgpu.schemes.kubeshare.node import GPU_INFO, HOLDER_UUID
from vgpu.schemes.kubeshare.sharepod import GPUID
from vgpu.schemes.registry import SchemeRegistry
from vgpu.schemes.row import SchemeRow

RETRY: Final = "vgpu.dev/retry"
"""The annotation of a pod that is to be tried again; its value is the time in unix seconds."""


ALL: Final = "*"
"""Every field."""


class ProgramKeys(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one program writes, by kind of object.

    Attributes:
        pods, pod_labels: annotations and labels of pods.
        pod_status: fields in the status of pods.
        conditions: types of their conditions.
        nodes, node_labels: annotations and labels of nodes.
        node_status: fields in the status of nodes.
        resources: names in capacity and allocatable of nodes.
        sharepods: annotations of SharePods, beside ``spec.nodeName``.
        sharepod_status: fields in the status of SharePods.
        namespaces: annotations of Namespaces.
        configmaps, leases: names of the ConfigMaps and Leases that it creates and updates.
    """

    pods: tuple[str, ...] = ()
    pod_labels: tuple[str, ...] = ()
    pod_status: tuple[str, ...] = ()
    conditions: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    node_labels: tuple[str, ...] = ()
    node_status: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    sharepods: tuple[str, ...] = ()
    sharepod_status: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()
    configmaps: tuple[str, ...] = ()
    leases: tuple[str, ...] = ()


def program_keys(registry: SchemeRegistry) -> Mapping[str, ProgramKeys]:
    """What each program writes, by its name in the chart."""
    rows = registry.rows
    every = [row.written for row in rows]
    adapters = dict.fromkeys(row.adapter for row in rows if row.adapter)
    plugins = {
        f"device-plugin-{name}": _plugin([row for row in rows if row.adapter == name])
        for name in adapters
    }
    claims = _joined(keys.pods for keys in every)
    return {
        **plugins,
        "reconciler": ProgramKeys(
            pods=claims,
            nodes=_joined(keys.locks + keys.handshakes for keys in every),
            sharepods=(GPUID,),
            namespaces=(OVER_QUOTA,),
            configmaps=("vgpu-reconcile-state",),
            leases=("vgpu-reconciler",),
        ),
        "reconciler-node": ProgramKeys(pods=claims),
        "scheduler": ProgramKeys(
            pods=(RETRY,),
            pod_labels=_joined(keys.pod_labels for keys in every),
            nodes=_joined(keys.locks for keys in every),
            leases=("vgpu-node-*", "vgpu-scheduler"),
        ),
        "kubeshare-controller": ProgramKeys(
            sharepods=(GPUID,), sharepod_status=(ALL,), leases=("vgpu-kubeshare-controller",)
        ),
        "kubeshare-controller-labels": ProgramKeys(
            pods=(VIRTUAL_GPU,), pod_status=("conditions",), conditions=("PodScheduled",)
        ),
        "kubeshare-node": ProgramKeys(pods=(HOLDER_UUID,), nodes=(GPU_INFO,)),
    }


def _plugin(rows: list[SchemeRow]) -> ProgramKeys:
    written = [row.written for row in rows]
    resources = _joined(keys.resources for keys in written)
    return ProgramKeys(
        pods=_joined(keys.pods for keys in written),
        nodes=_joined(keys.nodes + keys.handshakes + keys.locks for keys in written),
        node_labels=_joined(keys.node_labels for keys in written),
        node_status=("allocatable", "capacity") if resources else (),
        resources=resources,
        configmaps=_joined((row.unhealthy_map.name("*"),) for row in rows if row.unhealthy_map),
    )


def _joined(groups: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """All keys, sorted, each once."""
    return tuple(sorted({key for group in groups for key in group}))
