"""One of our extenders behind a kube-scheduler, for the tests of a file.

A proxy between the two records every request, and delays, drops or breaks it. A file imports
``placing`` and ``bed``.
"""

import pytest

from scheduler.compat.gauges import SchedulerCompat
from tests.cluster.extending import Extender, ExtenderProxy, Fault, kube_scheduler, remove_nodes
from tests.cluster.placing import Placing

LOST_REQUEST = Fault(passes=False, answers=False)
COMPAT = [f"--compat={each}" for each in SchedulerCompat]


@pytest.fixture(scope="module")
def placing(api, tmp_path_factory):
    """One extender and one kube-scheduler for all tests of this file."""
    folder = tmp_path_factory.mktemp("scheduler")
    with (
        Extender(api, folder, *COMPAT, "--volcano.exclusive-rule=app=train") as extender,
        ExtenderProxy(extender.port) as proxy,
        kube_scheduler(api, folder, "ours", proxy.port),
    ):
        yield Placing(api, extender, proxy, "ours")


@pytest.fixture
def bed(placing, api_namespace):
    """The same with a namespace of its own; afterwards its nodes and faults are gone."""
    placing.namespace = api_namespace
    placing.proxy.exchanges.clear()
    placing.proxy.broken = 0
    yield placing
    placing.proxy.fault = lambda *_: Fault()
    remove_nodes(placing.api, placing.nodes)
    placing.nodes.clear()


def bind_body(pod, node):
    meta = pod["metadata"]
    return {
        "PodName": meta["name"],
        "PodNamespace": meta["namespace"],
        "PodUID": meta["uid"],
        "Node": node,
    }
