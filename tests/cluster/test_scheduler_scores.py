"""On which node kube-scheduler places pods by our scores, with the weight of the documentation."""

import json
from collections import Counter

import pytest

from tests.cluster.extending import Extender, ExtenderProxy, kube_scheduler, make_node
from tests.cluster.placing import Placing
from tests.cluster.scheduler_bed import bed
from tests.scheduler.scheduler_configs import WEIGHT
from tests.support.bed import objects
from tests.support.registers import HAMI, hami_gpu

__all__ = ["bed"]

GPUS, NODES, PODS = 8, 4, 16
ASKED = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024}
NODE_POLICY = "hami.io/node-scheduler-policy"


@pytest.fixture(scope="module")
def placing(api, tmp_path_factory):
    """An extender and a kube-scheduler for the tests of this file."""
    folder = tmp_path_factory.mktemp("scheduler")
    with (
        Extender(api, folder) as extender,
        ExtenderProxy(extender.port) as proxy,
        kube_scheduler(api, folder, "scores", proxy.port, weight=WEIGHT),
    ):
        yield Placing(api, extender, proxy, "scores")


def numbers(bed, policy):
    """The number of pods on each node, the most first; all pods are of one service."""
    for number in range(PODS):
        pod = objects.pod(f"{policy}-{number}", bed.namespace, limits=ASKED, schedulerName=bed.name)
        pod["metadata"] |= {"annotations": {NODE_POLICY: policy}, "labels": {"app": "web"}}
        bed.client.create(pod)
    pods = bed.wait_bound(bed.namespace, PODS)
    of_node = Counter(pod["spec"]["nodeName"] for pod in pods)
    return sorted((of_node[name] for name in bed.nodes), reverse=True)


@pytest.mark.parametrize(
    ("policy", "expected"), [("binpack", [16, 0, 0, 0]), ("spread", [4, 4, 4, 4])]
)
def test_sixteen_small_pods_of_a_service_follow_the_policy_for_nodes(bed, policy, expected):
    """kube-scheduler's own score spreads pods of a service: it would win with a weight of 1."""
    for number in range(NODES):
        bed.nodes.append(name := f"{policy}-n{number}")
        gpus = [hami_gpu(f"GPU-{name}-{index}", index) for index in range(GPUS)]
        make_node(bed.api, name, {"nvidia.com/gpu": 10 * GPUS}, {HAMI: json.dumps(gpus)})
    service = {"selector": {"app": "web"}, "ports": [{"port": 80}]}
    bed.client.create(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web", "namespace": bed.namespace},
            "spec": service,
        }
    )
    assert numbers(bed, policy) == expected
