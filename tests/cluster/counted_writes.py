"""The writes that an API server has counted, in its own metrics.

before = counted_writes(client)
...
assert counted_writes(client) == before

Requests about Leases are left out: an election renews one all the time. So are kinds that none of
our programs may write: the API server itself writes some of them after its start.
"""

import re
from collections import Counter
from functools import cache
from typing import Final

from tests.cluster.accounts import EVERYTHING, HOME, RELEASE
from tests.cluster.charting import Chart
from tests.support.bed import tools
from tests.support.bed.client import Client
from tests.support.deploy_objects import kinds

VERBS: Final = {"create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE"}
"""Verbs of rights that write -> how the metric calls them."""

_COUNTED: Final = re.compile(
    r'apiserver_request_total\{[^}]*dry_run=""[^}]*resource="([^"]*)"[^}]*subresource="([^"]*)"'
    rf',verb="({"|".join(VERBS.values())}|APPLY|DELETECOLLECTION)"[^}}]*\}} (\S+)'
)

Writes = Counter[tuple[str, str]]
"""The number of requests by verb and resource."""


@cache
def rights_to_write() -> dict[str, frozenset[tuple[str, str]]]:
    """Part of the chart -> what its account may write: verbs as of the metric, and resources."""
    chart = Chart(tools.ensure().path("helm"))
    rendered = chart.rendered(EVERYTHING, f"--namespace={HOME}", release=RELEASE)
    rights: dict[str, set[tuple[str, str]]] = {}
    for role in kinds(rendered, "Role", "ClusterRole"):
        part = role["metadata"]["labels"]["app.kubernetes.io/component"].removesuffix("-labels")
        for rule in role["rules"]:
            rights.setdefault(part, set()).update(
                (VERBS[verb], resource)
                for resource in rule["resources"]
                for verb in VERBS.keys() & set(rule["verbs"])
                if resource != "leases"
            )
    return {part: frozenset(writes) for part, writes in rights.items() if writes}


def counted_writes(client: Client) -> Writes:
    """The writes up to now, also those of others than our programs."""
    resources = {resource for writes in rights_to_write().values() for _, resource in writes}
    counts: Writes = Counter()
    page = client.raw("GET", "/metrics").data.decode()
    for resource, subresource, verb, number in _COUNTED.findall(page):
        name = f"{resource}/{subresource}".rstrip("/")
        if name in resources:
            counts[verb, name] += int(float(number))
    return counts
