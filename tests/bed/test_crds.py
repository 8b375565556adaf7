"""The truth about the kinds that the bed adds: what fits is accepted, what does not is refused."""

import pytest

from tests.support.bed import crds
from tests.support.bed.client import Refused

MONITORING = "monitoring.coreos.com/v1"
ENDPOINT = {"port": "metrics", "interval": "15s"}
SELECTOR = {"matchLabels": {"app": "vgpu"}}
ALERT = {"alert": "CardLost", "expr": "vgpu_gpus < 8", "for": "5m", "labels": {"severity": "page"}}


@pytest.fixture(scope="module")
def client(api, crd_files):
    crds.load(api.client, *crd_files)
    return api.client


@pytest.fixture
def make(client, api_namespace):
    """Create an object of a kind, or only try to, as strictly as kubectl does."""

    def create(kind, spec, version=MONITORING, **query):
        about = {"apiVersion": version, "kind": kind}
        metadata = {"name": "one", "namespace": api_namespace}
        return client.create(
            {**about, "metadata": metadata, "spec": spec}, fieldValidation="Strict", **query
        )

    return create


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("PodMonitor", {"selector": SELECTOR, "podMetricsEndpoints": [ENDPOINT]}),
        ("ServiceMonitor", {"selector": SELECTOR, "endpoints": [ENDPOINT]}),
        ("PrometheusRule", {"groups": [{"name": "vgpu", "rules": [ALERT]}]}),
    ],
)
def test_prometheus_operators_objects_are_accepted(client, make, kind, spec):
    made = make(kind, spec)
    assert client.get(made)["spec"] == made["spec"]
    client.delete(made)
    client.wait_gone(made)


@pytest.mark.parametrize(
    ("rule", "place"),
    [
        ({**ALERT, "exprs": "1"}, 'unknown field "spec.groups[0].rules[0].exprs"'),
        ({**ALERT, "for": "five minutes"}, "spec.groups[0].rules[0].for"),
        ({**ALERT, "labels": "page"}, "spec.groups[0].rules[0].labels"),
        ({"alert": "CardLost"}, "spec.groups[0].rules[0].expr: Required value"),
    ],
)
def test_a_broken_rule_is_refused_by_a_dry_run_that_names_the_place(make, rule, place):
    with pytest.raises(Refused) as refused:
        make("PrometheusRule", {"groups": [{"name": "vgpu", "rules": [rule]}]}, dryRun="All")
    assert refused.value.status in (400, 422)
    assert place in refused.value.message


def test_a_dry_run_of_a_good_rule_leaves_nothing(client, make):
    spec = {"groups": [{"name": "vgpu", "rules": [ALERT]}]}
    tried = make("PrometheusRule", spec, dryRun="All")
    assert client.find(client.path(tried)) is None


def test_a_share_pod_keeps_its_pod_spec_and_its_status(client, make):
    container = {"name": "main", "image": "train", "env": [{"name": "A", "value": "1"}]}
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    made = make("SharePod", spec, "kubeshare.nthu/v1")
    client.replace(
        {**made, "status": {"boundDeviceID": "GPU-1", "podStatus": {"phase": "Running"}}}
    )
    found = client.get(made)
    assert found["spec"] == spec
    assert found["status"]["podStatus"] == {"phase": "Running"}


def test_what_is_loaded_may_be_loaded_again(client, crd_files):
    crds.load(client, *crd_files)
    served = client.list("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
    assert len(served) == len(crd_files)
