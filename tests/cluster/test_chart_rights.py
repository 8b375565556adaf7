"""The rights that the chart gives: each program has those that it needs, and no others."""

import pytest

from tests.cluster.charting import HelmRefused
from tests.cluster.extending import LOCK_RIGHTS
from tests.support.deploy_objects import containers, granted, kinds
from vgpu.kube.kueue_kinds import KUEUE_KINDS


def test_who_only_plans_may_change_nothing(chart):
    values = {"reconciler": {"mode": "plan", "node": {"daemonSet": True}}}
    changes = {
        (verb, resource)
        for adapter in kinds(chart.rendered(values), "ClusterRole")
        for rule in adapter["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if verb not in ("get", "list", "watch")
    }
    assert changes == set()


NO_QUOTAS = {"over_quota": {"mode": "off"}, "quota_drift": {"mode": "off"}}
"""The rules about quotas, off."""


@pytest.mark.parametrize(
    ("policies", "verbs"),
    [
        ([], []),
        ([{"name": "a", "mode": "plan", "namespaces": ["a"]}], []),
        ([{"name": "a", "mode": "plan", "selector": {}}], ["list", "watch"]),
    ],
)
def test_namespaces_may_be_read_only_where_a_policy_selects_by_labels(chart, policies, verbs):
    config = {"policies": policies, "rules": NO_QUOTAS}
    rendered = chart.rendered({"reconciler": {"config": config}})
    rules = [
        rule["verbs"]
        for role in kinds(rendered, "ClusterRole")
        for rule in role["rules"]
        if "namespaces" in rule["resources"]
    ]
    assert rules == ([verbs] if verbs else [])


@pytest.mark.parametrize(
    ("rules", "is_read"),
    [
        (NO_QUOTAS, False),
        ({}, True),
        ({"quota_drift": {"mode": "off"}}, True),
        ({"over_quota": {"mode": "off"}}, True),
        ({"over_quota": {"mode": "apply"}, "quota_drift": {"mode": "off"}}, True),
        (NO_QUOTAS | {"quota_mark": {"mode": "plan"}}, True),
    ],
)
def test_quotas_may_be_read_unless_their_rules_are_off(chart, rules, is_read):
    rendered = chart.rendered({"reconciler": {"config": {"rules": rules}}})
    rules = [
        (rule["resources"], rule["verbs"])
        for role in (*kinds(rendered, "ClusterRole"), *kinds(rendered, "Role"))
        for rule in role["rules"]
        if {"resourcequotas", "namespaces"} & {*rule["resources"]}
        or rule.get("resourceNames") == ["gpuquota"]
    ]
    watched = ["list", "watch"]
    expected = [(["namespaces"], watched), (["resourcequotas"], watched), (["configmaps"], ["get"])]
    assert rules == (expected if is_read else [])


@pytest.mark.parametrize("is_on", [False, True])
def test_kueue_may_be_read_only_with_queues(chart, is_on):
    rendered = chart.rendered({"reconciler": {"config": {"queues": is_on}}})
    rules = [
        (rule["resources"], rule["verbs"])
        for role in kinds(rendered, "ClusterRole")
        for rule in role["rules"]
        if "kueue.x-k8s.io" in rule["apiGroups"]
        or "kueue-manager-config" in rule.get("resourceNames", ())
    ]
    listed = [kind.plural for kind in KUEUE_KINDS]
    expected = [(listed, ["list", "watch"]), (["configmaps"], ["get"])]
    assert rules == (expected if is_on else [])


def with_scheduler(chart, **values):
    """What is rendered with the scheduler alone, and its container."""
    values = {"enabled": True, "allowAnonymous": True, **values}
    rendered = chart.rendered({"exporter": {"enabled": False}, "scheduler": values})
    ((_, _, container),) = (
        each for each in containers(rendered) if each[2]["args"][0] == "scheduler"
    )
    return rendered, container


@pytest.mark.parametrize("is_on", [False, True])
def test_the_scheduler_may_read_quotas_unless_it_enforces_none(chart, is_on):
    rendered, container = with_scheduler(chart, quotas=is_on)
    assert ("--no-quotas" in container["args"]) != is_on
    readable = {
        resource
        for role in kinds(rendered, "ClusterRole")
        if role["metadata"]["name"].endswith("scheduler")
        for rule in role["rules"]
        for resource in rule["resources"]
    }
    assert ({"namespaces", "resourcequotas"} <= readable) == is_on


@pytest.mark.parametrize("is_original", [False, True])
def test_nodes_may_be_locked_only_for_an_original_plugin(chart, is_original):
    rendered, container = with_scheduler(chart, originalPlugin=is_original)
    assert ("--original-plugin" in container["args"]) == is_original
    rights = granted(
        role
        for role in kinds(rendered, "ClusterRole")
        if role["metadata"]["name"].endswith("scheduler")
    )
    locks = {
        (verb, resource)
        for rule in LOCK_RIGHTS
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    of_nodes = {right for right in rights if right[1].startswith("nodes")}
    assert of_nodes == {("list", "nodes"), ("watch", "nodes")} | (locks if is_original else set())


@pytest.mark.parametrize("daemon_set", [True, False])
def test_a_node_that_only_plans_writes_to_no_folder(chart, daemon_set):
    """Neither by itself nor in a device plugin's pod."""

    def written(mode):
        values = {
            "reconciler": {"mode": mode, "node": {"daemonSet": daemon_set}},
            "devicePlugin": {"schemes": {"gaia": {"enabled": not daemon_set}}},
        }
        return {
            mount["mountPath"]
            for _, _, container in containers(chart.rendered(values))
            if container["args"][0] == "reconcile"
            for mount in container["volumeMounts"]
            if not mount.get("readOnly")
        }

    assert written("plan") == set()
    assert written("apply") == {"/usr/local/vgpu", "/tmp/vgpu"}


@pytest.mark.parametrize("own_pod", [True, False])
def test_a_node_evicts_only_where_that_is_asked_for(chart, own_pod):
    """In a pod of its own as in a device plugin's, and not in one without it."""

    def evict(*, beside=True, mode="apply", **node):
        """The roles that may, or None if helm refuses; each scheme has nodes of its own."""
        schemes = {
            scheme: {"enabled": True, "nodeReconciler": beside, "nodeSelector": {"pool": scheme}}
            for scheme in ("volcano", "gpushare", "gaia")
        }
        values = {
            "units": {"volcanoMemoryFactor": 1, "gpushareMemoryUnit": "GiB"},
            "reconciler": {
                "kind": "None",
                "mode": mode,
                "node": {"daemonSet": own_pod, **node},
            },
            "devicePlugin": {} if own_pod else {"schemes": schemes},
        }
        try:
            rendered = chart.rendered(values)
        except HelmRefused as refused:
            if "reconciler.node.evict: without effect" in str(refused):
                return None
            raise
        return {
            adapter["metadata"]["name"]
            for adapter in kinds(rendered, "Role", "ClusterRole")
            if ("create", "pods/eviction") in granted([adapter])
        }

    plugins = {f"vgpu-device-plugin-{scheme}" for scheme in ("volcano", "gpushare", "gaia")}
    own = {"vgpu-reconciler-node"}
    assert evict(evict=True) == (own if own_pod else plugins)
    assert evict() == set()
    assert evict(evict=True, mode="plan") is None
    assert evict(evict=True, beside=False) == (own if own_pod else None)


def test_a_device_plugin_without_a_reconciler_beside_it_has_none_of_its_rights(chart):
    gaia = {"enabled": True, "nodeReconciler": False}
    rendered = chart.rendered({"devicePlugin": {"schemes": {"gaia": gaia}}})
    part = "vgpu-device-plugin-gaia"
    rights = granted(each for each in rendered if each["metadata"]["name"] == part)
    assert {resource for verb, resource in rights if verb == "get"} == {"events"}
