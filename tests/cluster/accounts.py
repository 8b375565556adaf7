"""Programs' accounts with the rights and the admission policies that the chart renders for them.

client = account(cluster, "scheduler")
client = account(cluster, "kubeshare-node", node="n1")  # its token names the node

A release with every program is rendered once for each cluster; nothing of it runs.
"""

import itertools
from collections.abc import Callable
from typing import Final
from weakref import WeakKeyDictionary

import yaml

from deploy.manifests import FOLDER
from tests.cluster.charting import Chart, install
from tests.support.bed import objects, product
from tests.support.bed.client import PATCHES, Client, Object, Refused
from tests.support.bed.cluster import Cluster
from tests.support.deploy_objects import kinds
from tests.support.waiting import wait_until

HOME: Final = "vgpu-system"
RELEASE: Final = "bed-vgpu"
MANIFESTED: Final = "vgpu"
"""The release as which the manifests are rendered."""

POLICIES: Final = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
RIGHTS: Final = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")

TOKEN: Final = "vgpu.test/token"
"""The label of the pods to which tokens are bound: they stay as long as the tokens."""

_REPOSITORY, _, _TAG = product.REFERENCE.partition(":")

EVERYTHING: Final[Object] = {
    "image": {"repository": _REPOSITORY, "tag": _TAG},
    "exporter": {"api": True, "dra": True},
    "units": {"volcanoMemoryFactor": 1, "gpushareMemoryUnit": "GiB"},
    "devicePlugin": {
        "schemes": {
            scheme: {"enabled": True, "nodeReconciler": False, "nodeSelector": {"scheme": scheme}}
            | ({"unhealthyReports": ["*"]} if scheme == "gpushare" else {})
            for scheme in ("volcano", "gpushare", "gaia")
        }
    },
    "reconciler": {
        "mode": "apply",
        "gpushare": True,
        "config": {"rules": {"quota_mark": {"mode": "apply"}}},
        "node": {"daemonSet": True},
    },
    "scheduler": {
        "enabled": True,
        "allowAnonymous": True,
        "originalPlugin": True,
        "leaseNamespace": "kube-system",
    },
    "kubeshare": {"enabled": True, "labels": {"enabled": True, "validate": False}},
}
"""The chart's values with which every program that asks the API server is enabled."""

_numbers = itertools.count(1)
_installed: WeakKeyDictionary[Cluster, set[str]] = WeakKeyDictionary()


def account(cluster: Cluster, part: str, *, node: str = "") -> Client:
    """The account of a part of the release; its rights and its policy are in force."""
    _install(cluster, RELEASE, _rendered)
    return _client(cluster, f"{RELEASE}-{part}", node)


def limited(cluster: Cluster, name: str, *, node: str = "") -> Client:
    """An account of the manifests, whose rights are the test's, with the manifests' policy."""
    _install(cluster, MANIFESTED, _manifest)
    return _client(cluster, name, node)


def manifest_refusal(cluster: Cluster, user: str, path: str, body: Object) -> str:
    """Why the policy of the manifests refuses a user of all rights a patch; "" if it does not."""
    _install(cluster, MANIFESTED, _manifest)
    return _impersonated(cluster, user, path, body)


def refusal(thief: Client, method: str, path: str, body: object = None) -> str:
    """Why a request is refused; "" if it would be granted."""
    kind = PATCHES["merge"] if method == "PATCH" else "application/json"
    try:
        thief.raw(method, path, body, kind, dryRun=None if method == "GET" else "All")
    except Refused as refused:
        return str(refused)
    return ""


def _client(cluster: Cluster, name: str, node: str) -> Client:
    pod = None
    if node:
        pod = objects.pod(
            f"{name}-{next(_numbers)}",
            HOME,
            labels={TOKEN: "yes"},
            nodeName=node,
            serviceAccountName=name,
            automountServiceAccountToken=False,
            nodeSelector={"vgpu.test/nowhere": "yes"},  # a kubelet rejects it, and runs nothing
        )
        pod = cluster.client.create(pod)
    return cluster.service_account(name, HOME, pod)


def _rendered(cluster: Cluster) -> list[Object]:
    """Rights and policies of the chart."""
    chart = Chart(cluster.tools.path("helm"))
    rendered = chart.rendered(EVERYTHING, f"--namespace={HOME}", release=RELEASE)
    return kinds(rendered, *RIGHTS, *POLICIES)


def _manifest(_: Cluster) -> list[Object]:
    """The policy for those who have no Helm."""
    return list(yaml.safe_load_all((FOLDER / "account-policy.yaml").read_text()))


def _install(cluster: Cluster, release: str, of: Callable[[Cluster], list[Object]]) -> None:
    """Install the objects, once, and wait until they are in force."""
    if release in _installed.setdefault(cluster, set()):
        return
    client = cluster.client
    client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
    made = install(client, of(cluster))
    for role in kinds(made, "ClusterRole", "Role"):
        about = role["metadata"]
        part = about["labels"]["app.kubernetes.io/component"].removesuffix("-labels")
        user = cluster.service_account(f"{release}-{part}", HOME)
        for rule in role["rules"]:
            wait_until(_may(user, rule, about.get("namespace", "")), f"{user.user} may {rule}")
    _wait_in_force(cluster, release)
    _installed[cluster].add(release)


def _may(client: Client, rule: Object, namespace: str) -> Callable[[], bool]:
    """Whether the client has the last right of a rule."""
    resource, _, below = rule["resources"][-1].partition("/")
    name = rule.get("resourceNames", [""])[0]
    where = {"namespace": namespace, "name": name, "subresource": below}
    return lambda: client.may(rule["verbs"][-1], resource, rule["apiGroups"][-1], **where)


def _wait_in_force(cluster: Cluster, release: str) -> None:
    """Until the policy of the accounts refuses somebody who impersonates one of them.

    It is written last: then the others are in force, too.
    """
    user = f"system:serviceaccount:{HOME}:{release}-scheduler"
    stolen = {"metadata": {"labels": {"vgpu.test/in-force": "no"}}}
    path = f"/api/v1/namespaces/{HOME}"
    wait_until(
        lambda: "may not write the label" in _impersonated(cluster, user, path, stolen),
        f"the policy of {user} is in force",
    )


def _impersonated(cluster: Cluster, user: str, path: str, body: Object) -> str:
    """Why a user of all rights is refused a patch because of its name."""
    headers = {"Impersonate-User": user, "Impersonate-Group": "system:masters"}
    try:
        cluster.client.raw("PATCH", path, body, PATCHES["merge"], headers=headers, dryRun="All")
    except Refused as refused:
        return str(refused)
    return ""
