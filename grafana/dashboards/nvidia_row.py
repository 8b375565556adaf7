"""Rows about GPUs that NVIDIA's own device plugin shares: by node, and by workload."""

from collections.abc import Callable
from typing import Final

from grafana.dashboards import links
from grafana.dashboards.model import (
    Colour,
    Column,
    GrafanaUnit,
    PanelQuery,
    PanelRow,
    TablePanel,
    bars,
    graph,
)
from grafana.promql import CONTAINER, GPU, once

TITLE: Final = "NVIDIA's own sharing"

NO_SHARING: Final = (
    "no container has a GPU of NVIDIA's device plugin, or the exporter is not scraped"
)
NO_REPLICAS: Final = (
    "no container has a replica of NVIDIA's device plugin, or the exporter is not scraped"
)

FAIR: Final = (
    "The fair share is the GPU's memory by its replicas, times those of the container; nothing"
    " enforces it"
)


SHARING: Final = "vgpu_container_sharing_info"
OF_IT: Final = f"on ({CONTAINER}, uuid)"


def node_row(of_containers: Callable[[str, str], str]) -> PanelRow:
    """Who has how much of which GPU.

    ``of_containers(metric, beside)`` are the node's series of the metric with the containers' own
    names; ``beside`` follows the metric.
    """
    shares = once(f"{CONTAINER}, uuid", "vgpu_container_shares_allocated")
    used = "vgpu_container_memory_used_bytes"
    return PanelRow(
        TITLE,
        (
            TablePanel(
                "Replicas and fair shares",
                f"One line for each container and GPU of NVIDIA's device plugin. {FAIR}. MPS limits"
                " each process and not the container; time-slicing limits nothing.",
                {
                    "namespace": "Namespace",
                    "pod": "Pod",
                    "container": "Container",
                    "pod_uid": "",
                    "uuid": "UUID",
                },
                (
                    Column(
                        "Replicas",
                        of_containers(SHARING, f" * {OF_IT} group_left () {shares}"),
                        more={"sharing": "Sharing"},
                    ),
                    Column(
                        "Of",
                        of_containers(
                            SHARING,
                            f" * on ({GPU}) group_left () {once(GPU, 'vgpu_gpu_replicas')}",
                        ),
                    ),
                    Column(
                        "Limit of the container",
                        of_containers("vgpu_container_memory_unlimited", f" and {OF_IT} {SHARING}"),
                        value_texts={0: "limited", 1: "unlimited"},
                    ),
                    Column(
                        "Limit of each process",
                        of_containers("vgpu_container_process_memory_limit_bytes", ""),
                        GrafanaUnit.BYTES,
                    ),
                    Column(
                        "Fair share",
                        of_containers("vgpu_container_memory_fair_share_bytes", ""),
                        GrafanaUnit.BYTES,
                    ),
                    Column(
                        "Used", of_containers(used, f" and {OF_IT} {SHARING}"), GrafanaUnit.BYTES
                    ),
                    Column(
                        "Used of fair share",
                        of_containers(used, " / vgpu_container_memory_fair_share_bytes"),
                        GrafanaUnit.RATIO,
                        steps=((None, Colour.GOOD), (1, Colour.ODD)),
                    ),
                ),
                "Used of fair share",
                NO_SHARING,
                links={"Pod": links.POD},
                height=7,
            ),
        ),
    )


def workload_row(ways: str, fair: tuple[PanelQuery, ...], shown: int) -> PanelRow:
    """The ways of sharing, and who uses more than a fair share.

    ``ways`` are the series with the label ``sharing``, ``fair`` the queries of use by fair share.
    """
    return PanelRow(
        TITLE,
        (
            bars(
                "Containers by way of sharing",
                "Containers on a GPU of NVIDIA's device plugin. Time-slicing limits nothing, MPS"
                " each process, MIG the container to its instance.",
                GrafanaUnit.COUNT,
                (PanelQuery(f"sort_desc(sum by (sharing) ({ways}))", "{{sharing}}"),),
                NO_SHARING,
                width=8,
                height=8,
            ),
            graph(
                "Memory used of the fair share",
                f"{FAIR}: above 100 % a container takes from its neighbours. The {shown} largest of"
                " now.",
                GrafanaUnit.RATIO,
                fair,
                NO_REPLICAS,
                width=16,
                link=links.runbook("VgpuFairShareExceeded"),
            ),
        ),
    )
