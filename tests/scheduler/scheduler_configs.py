"""KubeSchedulerConfigurations with one mistake each, from the one of the documentation."""

import re

import yaml

from tests.support.environment import ROOT

PAGE = (ROOT / "docs" / "scheduler.md").read_text()
STANZA = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1]
WEIGHT = yaml.safe_load(STANZA)["extenders"][0]["weight"]

LONGEST_DOMAIN = "a" + ".".join(["a" * 60] * 4)
"""244 characters: a ResourceQuota has "requests." before it, and 253 are allowed."""


def changed(**fields):
    """The stanza of the documentation with other fields of its extender; None removes one."""
    config = yaml.safe_load(STANZA)
    extender = config["extenders"][0]
    extender.update(fields)
    for name in [name for name, value in extender.items() if value is None]:
        del extender[name]
    return config


def all_but(name):
    """The managed resources of the documentation without one."""
    resources = yaml.safe_load(STANZA)["extenders"][0]["managedResources"]
    return [one for one in resources if one["name"] != name]


def resource(name, ignored=False):
    return [{"name": name, "ignoredByScheduler": ignored}]


def beside(**fields):
    """The stanza with a second extender."""
    config = changed()
    config["extenders"].append({"urlPrefix": "http://127.0.0.1:1"} | fields)
    return config


TLS = "extenders[0].tlsConfig"
MANAGED = "extenders[0].managedResources"

REFUSED = {
    "a field of an old file": (changed(enableHttps=True), "unknown_field", "enableHttps"),
    "a field of a resource": (
        changed(managedResources=[{"name": "aliyun.com/gpu-mem", "ignored": True}]),
        "unknown_field",
        "managedResources[0].ignored",
    ),
    "a field of TLS": (changed(tlsConfig={"ca": "x"}), "unknown_field", "tlsConfig.ca"),
    "a score without weight": (changed(weight=None), "no_weight", "weight"),
    "a score that counts against": (changed(weight=-1), "no_weight", "weight"),
    "a duration without unit": (changed(httpTimeout="5"), "no_duration", "httpTimeout"),
    "a duration in days": (changed(httpTimeout="1d"), "no_duration", "httpTimeout"),
    "a resource of two extenders": (
        beside(managedResources=resource("aliyun.com/gpu-mem")),
        "resource_twice",
        "extenders[1].managedResources[0].name",
    ),
    "a resource twice": (
        changed(managedResources=resource("aliyun.com/gpu-mem") * 2),
        "resource_twice",
        "managedResources[1].name",
    ),
    **{
        f"{name[:20]!r} as a resource": (
            changed(managedResources=resource("aliyun.com/gpu-mem") + resource(name)),
            "no_extended_resource",
            "managedResources[1].name",
        )
        for name in (
            *("", "cpu", "kubernetes.io/gpu", "requests.a.b/gpu", "A.b/gpu", "a.b/-gpu", "a.b/c/d"),
            *("a.b/" + "x" * 64, f"{LONGEST_DOMAIN}a/gpu"),
        )
    },
    "no verification beside a CA": (
        changed(urlPrefix="https://vgpu", tlsConfig={"insecure": True, "caData": "YQ=="}),
        "insecure_with_ca",
        "tlsConfig.insecure",
    ),
    "two that bind": (beside(bindVerb="bind"), "second_binder", "extenders[1].bindVerb"),
    "a percentage above 100": (
        changed() | {"percentageOfNodesToScore": 101},
        "percentage",
        "percentageOfNodesToScore",
    ),
    "a percentage of a profile": (
        changed() | {"profiles": [{"schedulerName": "a", "percentageOfNodesToScore": -1}]},
        "percentage",
        "profiles[0].percentageOfNodesToScore",
    ),
}
"""What kube-scheduler refuses -> the configuration, its trap, and the field.

A field without "extenders" or "profiles" in it is one of the first extender, or of the file.
"""

UNKNOWN_TO_US = {
    "a field of the file": (
        changed() | {"percentageOfNodeToScore": 100},
        "unknown_field",
        "percentageOfNodeToScore",
    ),
    "a field of a profile": (
        changed() | {"profiles": [{"schedulername": "a"}]},
        "unknown_field",
        "profiles[0].schedulername",
    ),
}
"""As :data:`REFUSED`, but a later kube-scheduler may know the field."""

WRONG_TYPES = {
    "a duration that is a number": changed(httpTimeout=5),
    "a weight that is a text": changed(weight="1"),
    "a choice that is a text": changed(ignorable="true"),
}
"""What kube-scheduler refuses to decode."""

ACCEPTED = {
    "the documentation": changed(),
    "no verbs": changed(filterVerb=None, prioritizeVerb=None, preemptVerb=None, weight=None),
    "all in one": beside(
        filterVerb="filter",
        prioritizeVerb="prioritize",
        weight=2,
        enableHTTPS=True,
        ignorable=True,
        httpTimeout="1m0.5s",
        tlsConfig={"insecure": True, "serverName": "a"},
        managedResources=resource(f"{LONGEST_DOMAIN}/gpu") + resource("a/" + "X" * 63, True),
    ),
    "an extender of all pods": changed(managedResources=None, ignorable=True),
}
"""What kube-scheduler starts with, whatever else is wrong."""
