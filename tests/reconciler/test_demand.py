"""What namespaces wait for, their teams and their quotas, as metrics have them."""

from reconciler.cluster_index import ClusterIndex
from reconciler.model import Scope
from reconciler.plan.demand import namespace_demands
from tests.reconciler.samples import (
    CODECS_IN_USE,
    SHARE,
    pod,
    real_pod,
    replace,
    share_pod,
    snapshot,
)
from vgpu.model.objects import Container, Namespace, ResourceQuota
from vgpu.quota.limits import cluster_quotas
from vgpu.quota.resources import CORES, GPUS, MEMORY

NONE = {GPUS: 0, MEMORY: 0, CORES: 0}


def waits(name, **fields):
    return pod(name, node="", claim=None, **fields)


def demands(*objects, team_key="team", **fields):
    sight = snapshot(*objects, **fields)
    found = namespace_demands(ClusterIndex(sight, CODECS_IN_USE), team_key)
    return {each.name: each for each in found}


def test_only_pods_that_nothing_is_reserved_for_wait():
    reserved = replace(pod("reserved", gpu=1), node="")
    found = demands(pod("runs"), reserved, waits("one"), waits("two"), pod("b", namespace="b"))
    assert (found["ml"].waiting_pods, found["ml"].waiting[GPUS]) == (2, 2)
    assert found["ml"].waiting[MEMORY] == 2 * SHARE
    assert (found["b"].waiting_pods, found["b"].waiting) == (0, NONE)


def test_pods_that_have_ended_do_not_wait():
    ended = replace(waits("ended"), phase="Failed")
    assert demands(ended)["ml"].waiting_pods == 0


def test_a_share_pod_without_a_node_waits():
    waiting = share_pod("waits", node="", claim=None, bound=False, served=False)
    found = demands(share_pod(), real_pod(share_pod()), waiting)["ml"]
    assert (found.waiting_pods, found.waiting[GPUS], found.waiting[MEMORY]) == (1, 1, SHARE)


def test_the_team_is_the_label_of_the_namespace_or_one_of_our_annotations():
    spaces = (
        Namespace("ml", {"team": "vision", "owner": "anna"}),
        Namespace("b", annotations={"vgpu.dev/team": "nlp"}),
        Namespace("c", annotations={"vgpu.dev/team": "x" * 1000}),
    )
    pods = pod("a"), pod("b", namespace="b"), pod("c", namespace="c")
    teams = {
        key: {
            name: each.team
            for name, each in demands(*pods, team_key=key, quota_namespaces=spaces).items()
        }
        for key in ("team", "owner", "vgpu.dev/team")
    }
    assert teams == {
        "team": {"ml": "vision", "b": "", "c": ""},
        "owner": {"ml": "anna", "b": "", "c": ""},
        "vgpu.dev/team": {"ml": "", "b": "nlp", "c": "x" * 63},
    }


def test_a_quota_has_its_use_also_where_there_is_no_pod():
    memory = {"vgpu.dev/quota-memory": "20Gi", "vgpu.dev/quota-gpus": "x"}
    spaces = [Namespace("ml", annotations=memory), Namespace("empty", annotations=memory)]
    found = demands(pod("a"), waits("b"), quotas=cluster_quotas(spaces, (), None))
    (limit,) = found["ml"].limits
    assert (limit.limit.resource, limit.used) == (MEMORY, SHARE)
    assert found["ml"].unreadable == 1
    assert found["empty"].limits[0].used == 0


def test_what_pods_of_nvidias_plugin_have_counts_for_its_resource():
    instance = "nvidia.com/mig-1g.10gb"
    quota = ResourceQuota("ml", "q", {f"requests.{instance}": "7"})
    quotas = cluster_quotas([], [quota], None)
    container = Container("main", {instance: 2})
    runs, waiting = (
        replace(pod(name, claim=None), node=node, containers=(container,))
        for name, node in (("runs", "gpu-1"), ("waits", ""))
    )
    (limit,) = demands(nvidia_pods=(runs, waiting), quotas=quotas)["ml"].limits
    assert (limit.used, limit.limit.amount) == (2, 7)


def test_a_part_of_the_pods_is_no_sum():
    assert not demands(pod("a"), complete=frozenset())
    assert not demands(pod("a"), scope=Scope.NODE)
