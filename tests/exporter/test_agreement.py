"""A node's page beside `vgpu inspect`: of the same pods they have the same sums for each GPU."""

import pytest
from hypothesis import given
from msgspec import structs

from tests.exporter.test_page_sums import Page
from tests.scheduler.agreement import (
    UNITS,
    clusters,
    nodes_of_one_system,
    nodes_with_unseen_holders,
)
from vgpu.inventory import inventory
from vgpu.model.facts import Gpu, GpuSample
from vgpu.model.objects import holds_devices
from vgpu.sources.observation import Observation
from vgpu.sources.samples import pod_sample, with_node


def gpus_of(view):
    """What the driver of the node reports of the GPUs that its plugin has registered."""
    return GpuSample(
        gpus=tuple(
            Gpu(
                entry.device.uuid or f"GPU-{entry.device.index}",
                place if entry.device.index is None else entry.device.index,
                {"minor": str(place)},
                {("memory_total_bytes",): float(entry.device.memory_bytes or 0)},
            )
            for place, entry in enumerate(view.ledger.devices)
        )
    )


@pytest.mark.slow
@given(clusters())
def test_the_page_of_a_node_has_the_sums_of_inspect_for_each_gpu(cluster):
    bound = tuple(pod for pod in cluster.objects.pods if pod.node)
    objects = structs.replace(cluster.objects, pods=bound)
    for view in inventory(objects, UNITS, cluster.now).nodes:
        name = view.node.name
        if name not in nodes_of_one_system(objects) or not view.ledger.devices:
            continue
        if name in nodes_with_unseen_holders(objects) or view.of_other_systems:
            continue  # a page has ResourceClaims by the kubelet, and each GPU by the driver once
        if view.ledger.malformed:
            continue  # where claims and requests differ, a node has better sources than requests
        pods = [pod for pod in bound if pod.node == view.node.name and holds_devices(pod)]
        sample = with_node(pod_sample(pods, complete=True), view.node)
        page = Page(Observation(at=cluster.now, gpu=gpus_of(view), pods=sample), view.node.name)
        of_page = page.by(("uuid",), "vgpu_gpu_memory_allocated_bytes")
        of_inspect = {
            (entry.device.uuid or f"GPU-{entry.device.index}",): entry.held.memory_bytes
            for entry in view.ledger.devices
            if all(each.share.memory_bytes is not None for each in entry.holdings)
        }
        assert {key: of_page[key] for key in of_inspect} == of_inspect
