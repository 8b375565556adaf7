"""Kinds that Kubernetes does not have by itself, from the files that define them.

    load(client, SHARE_POD, *prometheus_operator())

Prometheus Operator's are those of its Go module, as pinned; KubeShare's is our own, minimal one.
"""

from pathlib import Path

import yaml

from tests.support.bed.client import Client, Refused
from tests.support.bed.objects import condition
from tests.support.bed.tools import module_folder
from tests.support.waiting import wait_until

SHARE_POD = Path(__file__).with_name("crds") / "sharepod.yaml"

OPERATOR_FOLDER = "example/prometheus-operator-crd"
OPERATOR_KINDS = ("podmonitors", "servicemonitors", "prometheusrules")


def prometheus_operator() -> list[Path]:
    """The files that define the kinds a chart may use to be scraped and to bring its alerts."""
    folder = module_folder("crds") / OPERATOR_FOLDER
    return [folder / f"monitoring.coreos.com_{plural}.yaml" for plural in OPERATOR_KINDS]


def load(client: Client, *files: Path) -> None:
    """Define what the files define, and wait until the API server serves it.

    A kind that is there already is made to be as in its file.
    """
    definitions = [obj for file in files for obj in yaml.safe_load_all(file.read_text()) if obj]
    for definition in definitions:
        client.apply(definition)
    for definition in definitions:
        client.wait_for(definition, lambda obj: condition(obj, "Established") == "True", "served")
        spec = definition["spec"]
        for version in spec["versions"]:
            place = f"/apis/{spec['group']}/{version['name']}"
            _wait_discovered(client, place, spec["names"]["plural"])


def _wait_discovered(client: Client, place: str, plural: str) -> None:
    """Until the API server lists a kind, which is a moment after it serves it."""

    def is_listed() -> bool:
        resources = client.raw("GET", place).json()["resources"]
        return any(resource["name"] == plural for resource in resources)

    wait_until(is_listed, f"{place} has {plural}", failures=(Refused,))
