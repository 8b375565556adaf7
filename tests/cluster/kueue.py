"""Kueue beside the Kubernetes of the tests, in a cluster of its own.

    with start_kueue(workplace, tools, "team-a") as kueue:
        kueue.client.create({"kind": "ClusterQueue", ...})
        kueue.series("kueue_cluster_queue_resource_usage")
        kueue.kill()

Its webhooks refuse pods of all namespaces while it is away, so it shares no cluster. It runs as its
own ServiceAccount, from its own manifests but for the Deployment. Where these need a kubelet or
kube-proxy: its Service is of type ExternalName, the ports of webhooks and conversions are the
program's, and its certificates, which it makes itself, are copied from the Secret to where a
kubelet would mount them. The visibility API is off: it writes to a fixed folder of the machine.

Nodes, their kubelets and HAMi's scheduler are the test's to play: nobody runs the pods.
"""

import base64
import json
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import urllib3
import yaml

from tests.support.bed import tools as bed_tools
from tests.support.bed.client import Client, Object
from tests.support.bed.cluster import Cluster, start_cluster
from tests.support.bed.processes import Daemon
from tests.support.bed.tools import Tools
from tests.support.bed.workplace import Workplace

HOME = "kueue-system"
CONFIG = "kueue-manager-config"
CONFIG_KEY = "controller_manager_config.yaml"
SERVICE = "kueue-webhook-service"
LEFT_OUT = {"Deployment", "APIService"}

CERTIFICATES = f"/api/v1/namespaces/{HOME}/secrets/kueue-webhook-server-cert"

SETTINGS: Mapping[str, Any] = {
    "apiVersion": "config.kueue.x-k8s.io/v1beta2",
    "kind": "Configuration",
    "leaderElection": {"leaderElect": False},
    "clientConnection": {"qps": 50, "burst": 100},
    "integrations": {"frameworks": ["batch/job", "pod"]},
    "resources": {
        "excludeResourcePrefixes": ["cpu", "memory", "ephemeral-storage"],
        "transformations": [
            {
                "input": f"nvidia.com/{name}",
                "strategy": "Replace",
                "multiplyBy": "nvidia.com/gpu",
                "outputs": {f"nvidia.com/total-{name}": "1"},
            }
            for name in ("gpumem", "gpucores")
        ],
    },
}
"""Its configuration: the transformations are those of Kueue's own page "Using HAMi"."""

_SERIES = re.compile(r"(kueue_cluster_queue_\w+)\{(.*)\} (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Kueue:
    """A running Kueue and its cluster."""

    def __init__(self, cluster: Cluster, program: Path) -> None:
        self.cluster, self.client = cluster, cluster.client
        self._program = program
        self._folder = cluster.folder / "kueue"
        self._folder.mkdir()
        self._webhook, self._metrics, self._health = (cluster.workplace.port() for _ in range(3))
        self._daemon: Daemon | None = None
        self._reader: Client | None = None

    def install(self, manifests: Path) -> None:
        """Apply its manifests, and its configuration as the ConfigMap that its users have."""
        printed = self.cluster.kubectl("kustomize", str(manifests / "default"))
        objects = [each for each in yaml.safe_load_all(printed) if each["kind"] not in LEFT_OUT]
        for each in objects:
            self._adapt(each)
        order = {"Namespace": 0, "CustomResourceDefinition": 1}
        late = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
        objects.sort(key=lambda each: order.get(each["kind"], 3 if each["kind"] in late else 2))
        text = "\n---\n".join(map(json.dumps, objects))
        self.cluster.kubectl("apply", "--server-side", "-f", "-", stdin=text)

    def start(self) -> None:
        """Start it, hand it its certificates, and wait until it serves and its webhooks answer."""
        file = self._folder / "config.json"
        file.write_text(json.dumps(self._settings()))
        account = self.cluster.service_account("kueue-controller-manager", HOME)
        self._daemon = Daemon(
            "kueue",
            [
                self._program,
                f"--config={file}",
                f"--kubeconfig={account.kubeconfig}",
                "--feature-gates=VisibilityOnDemand=false",
                "--zap-log-level=2",
            ],
            self._folder / "kueue.log",
        )
        certificates = self._daemon.wait_until(self._certificates, "has made its certificates")
        folder = self._folder / "certificates"
        folder.mkdir(exist_ok=True)
        for name, content in certificates.items():
            (folder / name).write_bytes(base64.b64decode(content))
        health = urllib3.PoolManager(retries=False)
        url = f"http://{self.cluster.workplace.address}:{self._health}/readyz"
        self._daemon.wait_until(
            lambda: health.request("GET", url).status == 200,
            "ready",
            failures=(urllib3.exceptions.HTTPError,),
        )

    def kill(self) -> None:
        """End it at once."""
        if self._daemon is not None:
            self._daemon.kill()
            self._daemon = None

    def series(self, *names: str) -> dict[tuple[str, ...], float]:
        """Its metrics of ClusterQueues: (name, queue, flavor, resource) -> the value."""
        if self._reader is None:
            rule = {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}
            self._reader = self.cluster.client_for(rule)
        token = json.loads(self._reader.kubeconfig.read_text())["users"][0]["user"]["token"]
        connection = HTTPSConnection(
            self.cluster.workplace.address, self._metrics, context=_unverified(), timeout=60
        )
        with closing(connection):
            connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
            text = connection.getresponse().read().decode()
        found = {}
        for name, labels, value in _SERIES.findall(text):
            if name in names:
                own = dict(_LABEL.findall(labels))
                key = (name, own["cluster_queue"], own.get("flavor", ""), own.get("resource", ""))
                found[key] = float(value)
        return found

    def _settings(self) -> dict[str, Any]:
        address = self.cluster.workplace.address
        return {
            **SETTINGS,
            "namespace": HOME,
            "health": {"healthProbeBindAddress": f"{address}:{self._health}"},
            "metrics": {
                "bindAddress": f"{address}:{self._metrics}",
                "enableClusterQueueResources": True,
            },
            "webhook": {
                "host": address,
                "port": self._webhook,
                "certDir": str(self._folder / "certificates"),
            },
        }

    def _certificates(self) -> Mapping[str, str]:
        secret = self.client.find(CERTIFICATES) or {}
        data: Mapping[str, str] = secret.get("data") or {}
        return data if "tls.crt" in data else {}

    def _adapt(self, each: Object) -> None:
        """Without kube-proxy and without a kubelet."""
        kind, name = each["kind"], each["metadata"]["name"]
        if kind == "ConfigMap" and name == CONFIG:
            each["data"] = {CONFIG_KEY: yaml.safe_dump(dict(SETTINGS))}
        if kind == "Service" and name == SERVICE:
            address = self.cluster.workplace.address
            each["spec"] = {"type": "ExternalName", "externalName": address}
        if kind == "CustomResourceDefinition":
            conversion = each["spec"].get("conversion", {})
            if "webhook" in conversion:
                conversion["webhook"]["clientConfig"]["service"]["port"] = self._webhook
        for webhook in each.get("webhooks", ()):
            webhook["clientConfig"]["service"]["port"] = self._webhook


def _unverified() -> ssl.SSLContext:
    """Its metrics have a certificate that it signs by itself at each start."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@contextmanager
def start_kueue(workplace: Workplace, tools: Tools) -> Iterator[Kueue]:
    """Kueue and its cluster until the block ends.

    Raises:
        ToolsMissing: Kueue is not built.
    """
    program, manifests = bed_tools.kueue()
    flags = {"kube-controller-manager": ("--controllers=*,-node-lifecycle-controller",)}
    with start_cluster(workplace, tools, name="kueue", controllers=True, flags=flags) as cluster:
        kueue = Kueue(cluster, program)
        kueue.install(manifests)
        try:
            kueue.start()
            yield kueue
        finally:
            kueue.kill()
