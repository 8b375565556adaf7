"""kill -9 of our scheduler after each of its writes, and in the middle of its first list (I4).

The API server has taken the write, and the scheduler never learns of it. It starts again at once,
and kube-scheduler goes on.
"""

import itertools
from signal import SIGKILL

import pytest

from scheduler.presence import LEASE
from tests.cluster.extending import Extender, bound, kube_scheduler, remove_nodes
from tests.cluster.killing_proxy import KillingProxy
from tests.cluster.placing import Placing, Replay, all_that_fit, labelled
from tests.cluster.scheduler_bed import bind_body
from tests.support.waiting import wait_emptied, wait_until

pytestmark = pytest.mark.thorough("schedulers")

SECONDS = 300.0
"""Maximum time to wait for the pods of one round, in seconds: a program starts in it."""

UNREAD = "vgpu scheduler is not ready: the cluster has not been read completely yet"

QUARTERS = (3, 2, 2, 1, 1)
"""What the pods of a round ask for: the last one does not fit."""

KINDS = {"l": "lease", "b": "binding", "p": "PATCH of a pod"}
"""What a bind writes, by the first letter of the pods' names. How many writes of a kind a round has
differs: binds that wait for each other are one write of the Lease."""


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
    for name, kind in KINDS.items():
        proxy.counts = lambda method, path, kind=kind: kind_of(method, path) == kind
        for number in itertools.count(1):
            kills = len(proxy.killed_after)
            proxy.kill_after = number
            one_round(bed, f"{name}{number}")
            if len(proxy.killed_after) == kills:  # there are fewer writes
                break
    assert {kind_of(*write) for write in proxy.killed_after} == set(KINDS.values())
    figure(f"the scheduler was killed after each of {len(proxy.killed_after)} writes")


def test_a_scheduler_that_has_read_some_of_the_pods_answers_nothing_and_the_next_one_reads_all(bed):
    """kill -9 between two pages of the list of pods."""
    replay = Replay(bed)
    first = [bed.start(f"first-{number}", bed.namespace, "hami", 3) for number in range(2)]
    bed.wait_bound(bed.namespace, 2)
    bed.extender.kill()
    bed.proxy.stopped_list = "/api/v1/pods"
    bed.extender.launch()
    bed.extender.daemon.wait_until(bed.proxy.has_stopped.is_set, "reads the second page")
    late = [bed.start(f"late-{number}", bed.namespace, "hami", 2) for number in range(2)]
    assert bed.extender.get("/-/ready")[0] == 503
    query = {"Pod": late[0], "Nodes": None, "NodeNames": ["hami-k"]}
    assert bed.extender.post("/filter", query)["Error"].startswith(UNREAD)
    assert bed.extender.post("/bind", bind_body(late[0], "hami-k"))["Error"].startswith(UNREAD)
    bed.proxy.stopped_list = ""
    bed.extender.kill()
    bed.extender.start()
    for pod in late:
        bed.wait_refused(pod, "no GPU has enough free memory")
    bed.client.delete(first[0], grace_seconds=0)
    replay.check(lambda pods: len(pods) == 3 and sum(map(bound, pods)) == 3)
