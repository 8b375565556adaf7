"""Ports of pod managers, round robin, and GPUIDs that are made up: never one that is in use."""

from msgspec import structs

from kubeshare.model import VirtualGpuName
from kubeshare.place_choice import new_gpuid
from kubeshare.reasons import SharePodReason
from kubeshare.virtual_gpu import next_port
from tests.kubeshare.model_cluster import ModelCluster, node, share_pod
from tests.kubeshare.model_controllers import Controllers, reasons, settled, started
from vgpu.model.names import PodRef
from vgpu.model.objects import MalformedObject
from vgpu.schemes.kubeshare.gemini_config import MANAGER_PORTS
from vgpu.schemes.kubeshare.sharepod import GPUID


def test_ports_are_allocated_round_robin():
    assert next_port((), 0) == 50051
    assert next_port({50051}, 50051) == 50052
    assert next_port((), 50052) == 50053, "not the lowest: an old connection reaches nobody"
    assert next_port((), MANAGER_PORTS[-1]) == 50051
    assert next_port(set(MANAGER_PORTS) - {50060}, 50300) == 50060
    assert next_port(MANAGER_PORTS, 50051) is None


def test_a_new_process_goes_on_with_the_ports_after_the_newest():
    cluster, _ = started(share_pod("a"), share_pod("b", 200))
    since = "2026-01-01T00:00:0"
    for name, second in (("a", 1), ("b", 2)):
        stored = cluster.share_pods[f"ns/{name}"]
        conditions = tuple(
            structs.replace(each, since=f"{since}{second}Z") for each in stored.conditions
        )
        cluster.store(structs.replace(stored, conditions=conditions))
    newest = cluster.share_pods["ns/b"].port
    cluster.remove(cluster.share_pods["ns/a"])
    controllers = Controllers(cluster)
    cluster.store(share_pod("c", 100))
    settled(cluster, controllers)
    assert cluster.share_pods["ns/c"].port == newest + 1


def test_a_share_pod_waits_for_a_port_when_all_are_taken():
    """KubeShare's device manager allocates 50049 to every pod then."""
    cluster = ModelCluster(node("n1"))
    controllers = Controllers(cluster)
    place = {"node": "n1", "gpuid": "mine"}
    for port in MANAGER_PORTS:
        cluster.store(share_pod(f"p{port}", 1, 0, **place, bound="GPU-n1-0", port=port))
    cluster.deliver(controllers.state)
    controllers.hold(VirtualGpuName("n1", "mine"))
    cluster.serve_holder(*cluster.holders())
    cluster.store(share_pod("more", 1, 0, **place))
    cluster.deliver(controllers.state)
    controllers.sync("ns/more")
    assert reasons(cluster, "more")["Bound"] == SharePodReason.NO_PORT
    cluster.remove(cluster.share_pods["ns/p50060"])
    cluster.deliver(controllers.state)
    controllers.sync("ns/more")
    assert cluster.share_pods["ns/more"].port == 50060


def test_a_made_up_gpuid_is_none_that_anything_has():
    """Not on any node, not of a holder alone, and not of a SharePod that cannot be read."""
    cluster, controllers = started(
        share_pod("a", node="n1", gpuid="aaaaa"),
        share_pod("b", 900, node="n2", gpuid="bbbbb"),
        nodes={"n1": 1, "n2": 1},
    )
    for each in list(cluster.share_pods.values()):
        cluster.remove(each)
    cluster.deliver(controllers.state)
    ref = PodRef("uid-c", "ns", "c")
    unread = MalformedObject("SharePod", ref, "broken", "n3", {GPUID: "ccccc"})
    controllers.state.set_share_pod("ns/c", unread)
    letters = iter("aaaaabbbbbcccccddddd")
    assert new_gpuid(controllers.state.is_used_gpuid, lambda _: next(letters)) == "ddddd"
