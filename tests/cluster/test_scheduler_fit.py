"""`vgpu fit` on a real API server: after the planned evictions the wanted pods are bound."""

import json

import pytest
from click.testing import CliRunner

from tests.cluster.extending import Extender, ExtenderProxy, bound, kube_scheduler
from tests.cluster.placing import Placing, check
from tests.cluster.scheduler_bed import bed
from tests.cluster.test_reconcile_apply import budget
from tests.support.bed.client import Refused
from vgpucli.main import main

__all__ = ["bed"]

READY = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}

RIGHTS = tuple(
    {"apiGroups": [group], "resources": resources, "verbs": verbs}
    for group, resources, verbs in (
        ("", ["nodes", "pods"], ["list"]),
        ("", ["namespaces", "resourcequotas"], ["get", "list"]),
        ("", ["configmaps"], ["get"]),
        ("policy", ["poddisruptionbudgets"], ["list"]),
    )
)
"""All that the command may do."""


@pytest.fixture(scope="module")
def placing(api, tmp_path_factory):
    """An extender and a kube-scheduler for the tests of this file."""
    folder = tmp_path_factory.mktemp("scheduler")
    with (
        Extender(api, folder) as extender,
        ExtenderProxy(extender.port) as proxy,
        kube_scheduler(api, folder, "fits", proxy.port),
    ):
        yield Placing(api, extender, proxy, "fits")


def fit(kubeconfig, namespace):
    return answered(f"--kubeconfig={kubeconfig}", namespace)


def fit_without_pins(bed, dump):
    """The answer on a dump in which no pod has to be on its node."""
    budgets = f"/apis/policy/v1/namespaces/{bed.namespace}/poddisruptionbudgets"
    kinds = {"Node": "/api/v1/nodes", "Pod": "/api/v1/pods", "PodDisruptionBudget": budgets}
    items = [
        {"apiVersion": "policy/v1" if kind == "PodDisruptionBudget" else "v1", **item, "kind": kind}
        for kind, path in kinds.items()
        for item in bed.client.get(path)["items"]
    ]
    for item in items:
        item["spec"].pop("affinity", None)
    dump.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return answered(f"--from={dump}", bed.namespace)


def answered(source, namespace):
    words = ("volcano.sh/vgpu-number=1", "volcano.sh/vgpu-memory=16384")
    requests = [part for word in words for part in ("--request", word)]
    flags = ("--pods", "1", "--defragment", "-n", namespace, "-o", "json")
    command = ("fit", source, *requests, *flags)
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def only_on(node):
    """A pod's affinity to one node."""
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    required = {"nodeSelectorTerms": [term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def started(bed, name, quarters, node):
    """A running pod of a ReplicaSet; there are no controllers, and no kubelet."""
    pod = bed.pod(name, bed.namespace, "volcano", quarters, affinity=only_on(node))
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "uid-web"}
    pod["metadata"] |= {
        "labels": {"app": "web"},
        "ownerReferences": [owner | {"controller": True}],
    }
    made = bed.client.wait_for(bed.client.create(pod), bound, "is bound")
    status = {"phase": "Running", "conditions": [READY]}
    return bed.client.patch(made, {"status": status}, "status")


def test_the_wanted_pod_is_bound_after_the_planned_eviction(bed, tmp_path):
    """A quarter is free on each GPU of one node, and three on one GPU of the other."""
    kubeconfig = bed.api.client_for(*RIGHTS).kubeconfig
    quarters = {"a": (3, "volcano-1"), "b": (3, "volcano-1")}
    quarters |= {"c": (4, "volcano-2"), "d": (1, "volcano-2")}
    for name in ("volcano-1", "volcano-2"):
        node = bed.node("volcano", name)
        bed.client.patch(node, {"status": {"conditions": [READY]}}, "status")
    pods = {name: started(bed, name, *of_pod) for name, of_pod in quarters.items()}
    budget(bed.client, bed.namespace, "web", disruptionsAllowed=0)
    wanted = bed.start("wanted", bed.namespace, "volcano", 4)
    bed.wait_refused(wanted, "0/2 nodes are available")
    found = fit(kubeconfig, bed.namespace)
    assert (found["pods"], found["defragmentation"]["fits"]) == (0, False)
    assert found["defragmentation"]["obstacles"] == {"disruption_budget": 4}
    with pytest.raises(Refused, match="disruption budget"):
        bed.client.evict(pods["d"], grace_seconds=0)

    allowed = {"status": {"disruptionsAllowed": 1}}
    web = f"/apis/policy/v1/namespaces/{bed.namespace}/poddisruptionbudgets/web"
    bed.client.patch(web, allowed, "status")
    # What is pinned to its node comes back to it: the owners of these pods pin none.
    assert not fit(kubeconfig, bed.namespace)["defragmentation"]["fits"]
    plan = fit_without_pins(bed, tmp_path / "dump.json")["defragmentation"]
    (eviction,) = plan["evictions"]
    evicted = pods[eviction["name"]]
    assert eviction["budget"] == "web"
    bed.client.evict(evicted, uid=eviction["uid"], grace_seconds=0)
    wanted = bed.client.wait_for(wanted, bound, "is bound")
    assert [wanted["spec"]["nodeName"]] == [node["name"] for node in plan["nodes"]]
    size, _ = quarters[eviction["name"]]
    again = bed.start("again", bed.namespace, "volcano", size)
    again = bed.client.wait_for(again, bound, "is bound")
    assert again["spec"]["nodeName"] == eviction["target"]
    check(bed, bed.pods(bed.namespace))
