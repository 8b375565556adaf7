"""Wrong values, which the chart refuses by its schema or in its templates."""

import functools
import json

import pytest

from tests.cluster.charting import HelmRefused
from tests.deploy.wrong_values import WRONG, merged
from tests.support.defects import no_defects
from tests.support.deploy_objects import kinds

SECURED = {"enabled": True, "tlsSecret": "tls"}
"""Values of a scheduler with client certificates."""


def two_plugins(volcano, gaia, **everywhere):
    """Values of two schemes, by labels of their nodes."""
    return {
        "units": {"volcanoMemoryFactor": 1},
        "gpuNodes": {"nodeSelector": everywhere},
        "devicePlugin": {
            "schemes": {
                "volcano": {"enabled": True, "nodeSelector": volcano},
                "gaia": {"enabled": True, "nodeSelector": gaia},
            }
        },
    }


def test_helm_refuses_wrong_values_by_the_schema(chart):
    """All in one go: it names each. That the schema refuses each alone is in tests/deploy."""
    values = functools.reduce(merged, (wrong.values for wrong in WRONG))
    with pytest.raises(HelmRefused) as refused:
        chart.rendered(values)
    lines = str(refused.value).splitlines()
    for wrong in WRONG:
        assert [
            line for line in lines if f"at '{wrong.place}'" in line and wrong.message in line
        ], wrong


REFUSED = (
    ({"fleet": {"enabled": True}}, "fleet.enabled: the page shows everything"),
    ({"bill": {"enabled": True}}, "bill.prometheus: give the address of the Prometheus"),
    ({"exporter": {"compat": ["none", "volcano"]}}, "none cannot be combined"),
    ({"exporter": {"compat": ["volcano", "hami-legacy"]}}, "volcano and hami-legacy use the same"),
    ({"exporter": {"compat": ["volcano-scheduler"]}}, "set units.volcanoMemoryFactor"),
    (
        {"rules": {"alerts": {"VgpuDoubelBooked": {}}}},
        "VgpuDoubelBooked: there is no alert of this name; the nearest is VgpuDoubleBooked\n",
    ),
    (
        {"monitoring": {"alerts": ["default", "VgpuPluginDwon"]}},
        'alerts: there is no alert "VgpuPluginDwon"; the nearest name is VgpuPluginDown\n',
    ),
    (
        {"monitoring": {"alerts": ["all", "-VgpuGPUMissing"]}},
        'there is no alert "-VgpuGPUMissing"; the nearest name is VgpuGpuMissing\n',
    ),
    ({"monitoring": {"alerts": "defualt"}}, "the nearest name is default\n"),
    (
        {"monitoring": {"alerts": ["all", "none"]}},
        "monitoring.alerts: all and none contradict each other: give one of them\n",
    ),
    (
        {"monitoring": {"alerts": ["all", "-VgpuXidWarning", "VgpuXidWarning"]}},
        "monitoring.alerts: VgpuXidWarning and -VgpuXidWarning contradict each other",
    ),
    (
        {"monitoring": {"alerts": ["-VgpuXidWarning"]}},
        "monitoring.alerts: -VgpuXidWarning is without effect",
    ),
    (
        {"monitoring": {"alerts": "none"}, "rules": {"alerts": {"VgpuPluginDown": {"for": "1h"}}}},
        "rules.alerts.VgpuPluginDown: without effect, since monitoring.alerts makes no alert",
    ),
    (
        {
            "exporter": {"serviceAccount": {"name": "one"}},
            "reconciler": {"serviceAccount": {"name": "one"}},
        },
        "serviceAccount.name: exporter and reconciler would both make one",
    ),
    (
        {"kubeshare": {"enabled": True}, "paths": {"kubeshare": ""}},
        "paths.kubeshare: the node component",
    ),
    (
        {"tokens": {"enabled": True}, "paths": {"kubeshare": ""}},
        "paths.kubeshare: the token daemon",
    ),
    (
        {"tokens": {"enabled": True, "client": {"secret": "client"}}},
        "tokens.client.secret: without effect",
    ),
    (
        {"kubeshare": {"enabled": True, "pool": {"idleTtl": "5m"}}},
        "kubeshare.pool.idleTtl: without effect",
    ),
    ({"scheduler": {"enabled": True}}, "scheduler: whoever reaches its port can bind pods"),
    (
        {"scheduler": {"enabled": True, "tlsSecret": "tls"}},
        "scheduler.clientSans: every certificate",
    ),
    (
        {"scheduler": {"enabled": True, "allowAnonymous": True, "clientSans": ["kube-scheduler"]}},
        "scheduler.clientSans: without effect",
    ),
    (
        {"scheduler": {"enabled": True, "allowAnonymous": True, "pageSans": ["prometheus"]}},
        "scheduler.pageSans: without effect",
    ),
    (
        {"scheduler": {**SECURED, "clientSans": ["vgpu-scheduler.default.svc"]}},
        "scheduler.clientSans: vgpu-scheduler.default.svc is the name in the scheduler's own",
    ),
    (
        {
            "monitoring": {"kind": "PodMonitor"},
            "scheduler": {**SECURED, "clientSans": ["a"], "pageSans": ["prometheus"]},
        },
        "scheduler.pageSans: Prometheus scrapes with the certificate in scheduler.tlsSecret",
    ),
    (
        {"scheduler": {"enabled": True, "allowAnonymous": True, "scrapeSecret": "prometheus"}},
        "scheduler.scrapeSecret: without effect",
    ),
    (
        {
            "scheduler": {
                "enabled": True,
                "tlsSecret": "tls",
                "clientSans": ["kube-scheduler"],
                "extraArgs": ["--single"],
            }
        },
        "scheduler.extraArgs: --single decides in the memory of one process",
    ),
    ({"monitoring": {"scrapeTimeout": "16s"}}, "monitoring.scrapeTimeout: 16s is longer than"),
    (
        {"monitoring": {"scrapeTimeout": "1m30s", "interval": "89s"}},
        "1m30s is longer than monitoring.interval, 89s",
    ),
    ({"reconciler": {"config": {"every": "500ms"}}}, "reconciler.config.every: 500ms is not from"),
    ({"reconciler": {"node": {"config": {"every": "25h"}}}}, "reconciler.node.config.every: 25h"),
    ({"reconciler": {"config": {"every": "2m", "cron": "* * * * *"}}}, "every or cron, not both"),
    (
        {
            "paths": {"shims": ""},
            "units": {"volcanoMemoryFactor": 1},
            "devicePlugin": {"schemes": {"volcano": {"enabled": True}}},
        },
        "paths.shims:",
    ),
    (
        {"paths": {"gpuManager": ""}, "devicePlugin": {"schemes": {"gaia": {"enabled": True}}}},
        "paths.gpuManager:",
    ),
    ({"devicePlugin": {"schemes": {"volcano": {"enabled": True}}}}, "units.volcanoMemoryFactor:"),
    ({"devicePlugin": {"schemes": {"gpushare": {"enabled": True}}}}, "units.gpushareMemoryUnit:"),
    (two_plugins({}, {}), "gaia and volcano have nodes in common"),
    (two_plugins({}, {"pool": "b"}), "gaia and volcano have nodes in common"),
    (two_plugins({"pool": "b"}, {}), "gaia and volcano have nodes in common"),
    (two_plugins({"pool": "b"}, {"pool": "b", "a": ""}), "gaia and volcano have nodes in common"),
    (two_plugins({"pool": "a"}, {}, pool="a"), "gaia and volcano have nodes in common"),
    (
        {
            "devicePlugin": {"schemes": {"gaia": {"enabled": True}}},
            "reconciler": {"node": {"daemonSet": True}},
        },
        "reconciler.node.daemonSet:",
    ),
)
"""What templates refuse: a schema does not know of it."""


@no_defects
def test_templates_refuse_what_the_schema_cannot(chart):
    for values, message in REFUSED:
        try:
            chart.rendered(values)
        except HelmRefused as refused:
            if message not in str(refused):
                yield f"{values}: {refused}"
        else:
            yield f"{values}: not refused"


@pytest.mark.parametrize(
    "values",
    [
        two_plugins({"pool": "a"}, {"pool": "b"}),
        two_plugins({"pool": "a"}, {"pool": "b"}, pool="c"),
        two_plugins({"pool": "a"}, {}, pool="c"),
        two_plugins({"pool": "a"}, {"pool": "", "b": ""}),
    ],
    ids=json.dumps,
)
def test_two_plugins_may_have_different_nodes(chart, values):
    assert len(kinds(chart.rendered(values), "DaemonSet")) == 3
