"""What Prometheus Operator makes of a namespace's monitors and rules, for a Prometheus of the bed.

    jobs = scrape_jobs(client, namespace)
    Prometheus(folder, jobs=jobs, rules=[rule_file(client, namespace, folder / "rules.json")])

Debian's Prometheus is built without Kubernetes' service discovery: the targets are the pods that
run now, with the labels that the discovery would give them.
"""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from tests.support.bed.client import Client, Object

OPERATOR = "/apis/monitoring.coreos.com/v1"


def scrape_jobs(client: Client, namespace: str) -> list[Object]:
    """A scrape job for each endpoint of each PodMonitor."""
    pods = client.list(f"/api/v1/namespaces/{namespace}/pods")
    return [
        {
            "job_name": f"podMonitor/{namespace}/{monitor['metadata']['name']}/{number}",
            "scrape_interval": endpoint["interval"],
            "scrape_timeout": endpoint["scrapeTimeout"],
            "honor_labels": endpoint["honorLabels"],
            "static_configs": list(_targets(_selected(monitor, pods), endpoint["port"])),
            "relabel_configs": [
                {_snake_case(key): value for key, value in relabeling.items()}
                for relabeling in endpoint["relabelings"]
            ],
        }
        for monitor in client.list(f"{OPERATOR}/namespaces/{namespace}/podmonitors")
        for number, endpoint in enumerate(monitor["spec"]["podMetricsEndpoints"])
    ]


def rule_file(client: Client, namespace: str, file: Path) -> Path:
    """Write the groups of all PrometheusRules as a rule file."""
    found = client.list(f"{OPERATOR}/namespaces/{namespace}/prometheusrules")
    file.write_text(json.dumps({"groups": [each for it in found for each in it["spec"]["groups"]]}))
    return file


def _selected(monitor: Object, pods: Iterable[Object]) -> list[Object]:
    selector = monitor["spec"]["selector"]
    wanted = {name: [value] for name, value in selector["matchLabels"].items()}
    for each in selector["matchExpressions"]:
        assert each["operator"] == "In", each
        wanted[each["key"]] = each["values"]
    return [
        pod
        for pod in pods
        if all(pod["metadata"]["labels"].get(name) in values for name, values in wanted.items())
    ]


def _targets(pods: Iterable[Object], port: str) -> Iterable[Object]:
    for pod in pods:
        for container in pod["spec"]["containers"]:
            for each in container.get("ports", ()):
                if each["name"] == port:
                    yield {
                        "targets": [f"{pod['status']['podIP']}:{each['containerPort']}"],
                        "labels": {
                            "__meta_kubernetes_pod_node_name": pod["spec"]["nodeName"],
                            "namespace": pod["metadata"]["namespace"],
                            "pod": pod["metadata"]["name"],
                            "container": container["name"],
                        },
                    }


def _snake_case(name: str) -> str:
    return re.sub(r"[A-Z]", lambda letter: f"_{letter[0].lower()}", name)
