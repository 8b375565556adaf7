"""The truth about rights: a client of the bed can do what its rules say, and nothing else."""

import json
import subprocess

import pytest

from tests.support.bed import objects
from tests.support.bed.client import Refused
from tests.support.waiting import wait_until

PODS = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}
EVICT = {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]}


def forbidden(call, *args, **kwargs):
    """The call must be refused for want of rights."""
    with pytest.raises(Refused) as info:
        call(*args, **kwargs)
    assert (info.value.status, info.value.reason) == (403, "Forbidden")


@pytest.fixture
def pod(api, api_namespace):
    return api.client.create(objects.pod("web", api_namespace))


def test_a_client_can_do_what_its_rule_allows_and_nothing_else(api, pod):
    reader = api.client_for(PODS)
    assert reader.get(pod)["metadata"]["uid"] == pod["metadata"]["uid"]
    assert reader.list("/api/v1/pods")
    forbidden(reader.delete, pod)
    forbidden(reader.evict, pod)
    forbidden(reader.patch, pod, {"metadata": {"labels": {"a": "b"}}})
    forbidden(reader.get, "/api/v1/nodes")
    forbidden(reader.get, "/api/v1/namespaces/kube-system/secrets")


def test_rights_in_a_namespace_end_at_its_border(api, pod, api_namespace):
    reader = api.client_for(PODS, namespace=api_namespace)
    assert reader.get(pod)["metadata"]["name"] == "web"
    forbidden(reader.list, "/api/v1/pods")
    forbidden(reader.list, "/api/v1/namespaces/default/pods")


def test_who_may_evict_need_not_be_able_to_delete(api, pod):
    evictor = api.client_for(EVICT)
    forbidden(evictor.delete, pod)
    evictor.evict(pod, uid=pod["metadata"]["uid"])
    assert api.client.find(pod) is None


def test_a_rule_can_be_for_one_object_by_name(api, api_namespace):
    about = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": api_namespace}}
    mine, other = (
        api.client.create({**about, "metadata": {**about["metadata"], "name": name}})
        for name in ("mine", "other")
    )
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "update"]}
    owner = api.client_for({**rule, "resourceNames": ["mine"]}, namespace=api_namespace)
    assert owner.replace({**owner.get(mine), "data": {"a": "b"}})["data"] == {"a": "b"}
    forbidden(owner.get, other)


def test_the_rules_of_an_existing_role_can_be_granted(api, pod, api_namespace):
    adapter = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "may-evict"},
        "rules": [PODS, EVICT],
    }
    api.client.create(adapter)
    evictor = api.client_for("may-evict", namespace=api_namespace)
    evictor.evict(evictor.get(pod))
    forbidden(evictor.list, "/api/v1/pods")


def test_a_path_that_is_no_resource_can_be_allowed(api):
    scraper = api.client_for({"nonResourceURLs": ["/metrics"], "verbs": ["get"]})
    assert b"apiserver_request_total" in scraper.raw("GET", "/metrics").data
    forbidden(scraper.raw, "GET", "/debug/pprof/")


def test_programs_can_be_the_same_client(api, pod, api_namespace):
    reader = api.client_for(PODS)
    got = api.kubectl("get", "pod", "web", "-n", api_namespace, "-o", "json", client=reader)
    assert json.loads(got)["metadata"]["uid"] == pod["metadata"]["uid"]
    with pytest.raises(subprocess.CalledProcessError) as info:
        api.kubectl("get", "nodes", client=reader)
    assert f'User "{reader.user}" cannot list resource "nodes"' in info.value.stderr


def test_the_token_of_an_account_that_is_gone_is_worth_nothing(api):
    reader = api.client_for(PODS)
    *_, namespace, name = reader.user.split(":")
    api.client.delete(f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}")

    def status():
        try:
            reader.list("/api/v1/pods")
        except Refused as refused:
            return refused.status
        return 200

    # The server looks the account up in its memory, which hears of the deletion a moment later.
    wait_until(lambda: status() == 401, "its token is worth nothing")


# ------------------------------------------------------------------------------------ nodes


@pytest.fixture
def node_identities(api):
    """Clients of the kubelets of two nodes, "one" and "two", which exist."""
    names = ("one", "two")
    for name in names:
        api.client.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    yield [api.user(f"system:node:{name}", "system:nodes") for name in names]
    for name in names:
        api.client.delete(f"/api/v1/nodes/{name}")


def test_a_node_may_change_itself_and_no_other(node_identities):
    one, _ = node_identities
    labels = {"metadata": {"labels": {"example.com/gpu": "yes"}}}
    assert one.patch("/api/v1/nodes/one", labels)["metadata"]["labels"]["example.com/gpu"] == "yes"
    forbidden(one.patch, "/api/v1/nodes/two", labels)


def test_a_node_may_not_set_labels_that_keep_others_out(node_identities):
    one, _ = node_identities
    labels = {"metadata": {"labels": {"node-restriction.kubernetes.io/gpu": "yes"}}}
    forbidden(one.patch, "/api/v1/nodes/one", labels)


def test_a_node_may_change_the_status_of_its_own_pods_only(api, api_namespace, node_identities):
    pod = api.client.create(objects.pod("web", api_namespace, nodeName="one"))
    one, two = node_identities
    status = {"status": {"phase": "Failed"}}
    forbidden(two.patch, pod, status, "status")
    assert one.patch(pod, status, "status")["status"]["phase"] == "Failed"
    forbidden(one.patch, pod, {"metadata": {"annotations": {"a": "b"}}})
