"""The truth about the control plane: what the Eviction API of a real API server does."""

import json
from contextlib import closing, contextmanager
from itertools import islice

import pytest

from tests.support.bed import objects
from tests.support.bed.client import Refused
from tests.support.bed.cluster import start_cluster
from tests.support.waiting import wait_until

PHASES = ("Pending", "Running", "Failed")


def pods_of(client, namespace, app):
    return client.list(f"/api/v1/namespaces/{namespace}/pods", labelSelector=f"app={app}")


def in_phase(client, namespace, phase):
    """A pod that no node runs, in a phase of our choice."""
    pod = client.create(
        objects.pod("victim", namespace, labels={"app": "web"}, nodeSelector={"no": "node"})
    )
    if phase != "Pending":
        pod = client.patch(pod, {"status": {"phase": phase}}, "status")
    return pod


@contextmanager
def refused(status):
    """The API server must answer with this status; the answer is in ``.value``."""
    with pytest.raises(Refused) as info:
        yield info
    assert info.value.status == status, info.value


def budget(namespace, **spec):
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "budget", "namespace": namespace},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec},
    }


def test_an_evicted_pod_of_a_deployment_is_replaced(control_plane, node, namespace):
    client = control_plane.client
    web = client.create(objects.deployment("web", namespace))
    client.wait_for(web, lambda web: web["status"].get("readyReplicas") == 1, "one ready")
    (first,) = pods_of(client, namespace, "web")
    client.evict(first, uid=first["metadata"]["uid"])
    client.wait_gone(first)
    (second,) = wait_until(
        lambda: [pod for pod in pods_of(client, namespace, "web") if objects.ready(pod)],
        "one ready again",
    )
    assert second["metadata"]["uid"] != first["metadata"]["uid"]
    assert second["spec"]["nodeName"] == node.name


def test_a_disruption_budget_refuses_an_eviction(control_plane, node, namespace):
    client = control_plane.client
    pod = client.create(objects.pod("web", namespace, labels={"app": "web"}))
    client.wait_for(pod, objects.ready, "ready")
    held = client.create(budget(namespace, minAvailable=1))
    client.wait_for(held, lambda budget: budget["status"].get("currentHealthy") == 1, "counted")
    with refused(429) as info:
        client.evict(pod)
    assert info.value.details["causes"][0]["reason"] == "DisruptionBudget"
    assert client.get(pod)["metadata"].get("deletionTimestamp") is None


@pytest.mark.parametrize("phase", ["Pending", "Failed"])
def test_a_budget_does_not_protect_a_pod_that_does_not_run(control_plane, namespace, phase):
    client = control_plane.client
    pod = in_phase(client, namespace, phase)
    held = client.create(budget(namespace, minAvailable=1))
    client.wait_for(held, lambda budget: budget["status"].get("expectedPods") == 1, "counted")
    client.evict(pod)
    client.wait_gone(pod)


@pytest.mark.parametrize("phase", PHASES)
def test_an_eviction_that_names_another_uid_is_refused(api, api_namespace, phase):
    # Of a pod that does not run, the API server tries for ten seconds before it reports that.
    pod = in_phase(api.client, api_namespace, phase)
    with refused(409):
        api.client.evict(pod, uid="00000000-0000-0000-0000-000000000000")
    assert api.client.get(pod)["status"]["phase"] == phase


@pytest.mark.parametrize("phase", PHASES)
def test_an_eviction_of_what_has_changed_since_is_refused(api, api_namespace, phase):
    pod = in_phase(api.client, api_namespace, phase)
    old = pod["metadata"]["resourceVersion"]
    api.client.patch(pod, {"metadata": {"labels": {"touched": "yes"}}})
    with refused(409):
        api.client.evict(pod, resource_version=old)
    assert api.client.get(pod)["status"]["phase"] == phase


@pytest.mark.parametrize("phase", PHASES)
def test_an_eviction_whose_preconditions_hold_is_granted(api, api_namespace, phase):
    pod = in_phase(api.client, api_namespace, phase)
    about = pod["metadata"]
    api.client.evict(pod, uid=about["uid"], resource_version=about["resourceVersion"])
    assert api.client.find(pod) is None


def test_the_condition_of_an_unschedulable_pod_names_the_missing_resource(
    control_plane, node, namespace
):
    client = control_plane.client
    pod = client.create(objects.pod("big", namespace, limits={"example.com/none": 1}))

    def is_explained(pod):
        conditions = pod["status"].get("conditions", ())
        return any("Insufficient example.com/none" in c.get("message", "") for c in conditions)

    client.wait_for(pod, is_explained, "the condition names the resource")
    assert client.get(pod)["status"]["phase"] == "Pending"


def test_a_wait_that_fails_reports_status_and_events(control_plane, node, namespace):
    client = control_plane.client
    pod = client.create(objects.pod("lost", namespace, image="localhost/no-such-image:1"))
    client.wait_for(
        pod, lambda pod: "ErrImageNeverPull" in str(pod["status"]), "the image is missing"
    )
    with pytest.raises(AssertionError) as info:
        client.wait_for(pod, objects.ready, "Ready", seconds=1)
    message = str(info.value)
    assert "never Pod lost: Ready" in message
    assert "ErrImageNeverPull" in message  # of its status
    assert "Scheduled" in message  # of its events


def test_a_watch_reports_every_change(api, api_namespace):
    path = f"/api/v1/namespaces/{api_namespace}/configmaps"
    about = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": api_namespace}}
    with closing(api.client.watch(path, fieldSelector="metadata.name=watched")) as seen:
        made = api.client.create({**about, "metadata": {**about["metadata"], "name": "watched"}})
        api.client.patch(made, {"data": {"key": "value"}})
        api.client.delete(made)
        kinds = [kind for kind, _ in islice(seen, 3)]
    assert kinds == ["ADDED", "MODIFIED", "DELETED"]


def test_a_cluster_starts_from_the_data_of_another(workplace, tools):
    about = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept"}}
    with start_cluster(workplace, tools, name="old", controllers=False) as old:
        old.client.create({**about, "data": {"key": "value"}})
        old.stop()
        data = old.etcd_data
        with start_cluster(workplace, tools, name="new", controllers=False, etcd_data=data) as new:
            assert new.client.get(about)["data"] == {"key": "value"}
            assert json.loads(new.kubectl("get", "configmap", "kept", "-o", "json"))["data"]
    assert not data.exists()
