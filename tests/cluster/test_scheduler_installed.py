"""The chart's scheduler on a real node: its probes see whether it has read the cluster."""

import pytest

from tests.cluster.charting import install, uninstall
from tests.support.bed import objects
from tests.support.waiting import wait_until
from tests.support.web_helpers import Pki

RIGHTS = ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")


@pytest.fixture
def documents(chart, namespace, product_image):
    """What the chart makes of a scheduler with client certificates, with the bed's image."""
    values = {
        "exporter": {"enabled": False},
        "reconciler": {"kind": "None"},
        "scheduler": {
            "enabled": True,
            "tlsSecret": "tls",
            "clientSans": ["kube-scheduler"],
            "replicas": 1,
        },
    }
    rendered = chart.rendered(values, f"--namespace={namespace}", release=namespace)
    for each in rendered:
        if each["kind"] == "Deployment":
            each["spec"]["template"]["spec"]["containers"][0]["image"] = product_image
    return rendered


@pytest.fixture
def installed(control_plane):
    """Makes objects in the order of the arguments; all are gone at the end."""
    made = []
    yield lambda documents: made.extend(install(control_plane.client, documents))
    uninstall(control_plane.client, made)


def test_a_replica_with_client_certificates_is_ready_once_it_has_read_the_cluster(
    control_plane, node, namespace, documents, installed, tmp_path
):
    """Its port is open from the start; without rights it reads nothing."""
    client = control_plane.client
    pki = Pki(tmp_path, "vgpu")
    certificate, key = pki.issue("scheduler")
    files = {"tls.crt": certificate, "tls.key": key, "ca.crt": pki.ca}
    client.create(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": "tls", "namespace": namespace},
            "stringData": {name: path.read_text() for name, path in files.items()},
        }
    )
    installed([each for each in documents if each["kind"] not in RIGHTS])

    def pods():
        return client.list(f"/api/v1/namespaces/{namespace}/pods")

    def refusals():
        events = [event["message"] for pod in pods() for event in client.events(pod)]
        return [text for text in events if "statuscode: 503" in text]

    wait_until(refusals, "the readiness probe has an answer", context=lambda: str(pods()))
    assert not any(map(objects.ready, pods()))
    installed([each for each in documents if each["kind"] in RIGHTS])
    wait_until(lambda: all(map(objects.ready, pods())), "it is ready", context=lambda: str(pods()))
