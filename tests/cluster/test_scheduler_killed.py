"""kill -9 of our scheduler after each of its writes, which the API server has taken (I4).

The scheduler never learns of the write. It starts again at once, and kube-scheduler goes on.
"""

import itertools
from signal import SIGKILL

import pytest

from scheduler.presence import LEASE
from tests.cluster.extending import Extender, bound, kube_scheduler, remove_nodes
from tests.cluster.killing_proxy import KillingProxy
from tests.cluster.placing import Placing, Replay, all_that_fit, labelled
from tests.support.waiting import wait_emptied, wait_until

pytestmark = pytest.mark.thorough("schedulers")

SECONDS = 300.0
"""Maximum time to wait for the pods of one round, in seconds: a program starts in it."""

QUARTERS = (3, 2, 2, 1, 1)
"""What the pods of a round ask for: the last one does not fit."""


@pytest.fixture
def bed(api, api_namespace, tmp_path):
    """A node, and the scheduler behind the proxy that kills it."""
    with (
        KillingProxy(api) as proxy,
        Extender(api, tmp_path, relay=proxy) as extender,
        kube_scheduler(api, tmp_path, "killed", extender.port),
    ):
        proxy.uncounted = (f"/leases/{LEASE}",)
        proxy.kill = lambda: extender.daemon.signal(SIGKILL)
        placing = Placing(api, extender, proxy, "killed")
        placing.namespace = api_namespace
        placing.node("hami", "hami-k")
        yield placing
    remove_nodes(api, placing.nodes)


def kind_of(method, path):
    """What was written."""
    if path.endswith("/binding"):
        return "binding"
    return "lease" if "/leases" in path else f"{method} of a pod"


def one_round(bed, name):
    """All pods that fit are bound, each with its label, and no GPU is over-committed meanwhile."""
    replay = Replay(bed)
    for number, quarters in enumerate(QUARTERS):
        bed.start(f"{name}-{number}", bed.namespace, "hami", quarters)

    def settled():
        if not bed.extender.daemon.running:
            bed.extender.start()
        pods = bed.pods(bed.namespace)
        return all_that_fit(bed, pods) and all(map(labelled, filter(bound, pods)))

    wait_until(settled, f"{name}: all that fit are bound", seconds=SECONDS, context=bed.state)
    replay.check(lambda pods: len(pods) == len(QUARTERS) and all_that_fit(bed, pods))
    bed.client.raw("DELETE", f"/api/v1/namespaces/{bed.namespace}/pods", {"gracePeriodSeconds": 0})
    wait_emptied(lambda: bed.pods(bed.namespace), f"{name}: its pods go")


def test_kill_9_after_each_write_neither_overcommits_nor_loses_a_pod_or_its_label(bed, figure):
    proxy = bed.proxy
    for number in itertools.count(1):
        kills = len(proxy.killed_after)
        proxy.kill_after = number
        one_round(bed, f"r{number}")
        if len(proxy.killed_after) == kills:  # there are fewer writes
            break
    kinds = {kind_of(*write) for write in proxy.killed_after}
    assert kinds >= {"lease", "binding", "PATCH of a pod"}
    figure(f"the scheduler was killed after each of {len(proxy.killed_after)} writes")
