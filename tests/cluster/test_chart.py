"""The chart, by the real helm, API server and node: what it makes, and what that does."""

import functools
import json
import re
import shutil
import textwrap
from collections import Counter
from types import SimpleNamespace

import pytest
import urllib3
import yaml
from click.testing import CliRunner
from msgspec.structs import replace

from deploy.generate import CHART
from deploy.manifests import FOLDER, MANIFESTS, NAMESPACE, unpublished
from deploy.manifests import main as write_manifests
from deploy.project import Project
from grafana.dashboards import DASHBOARDS
from grafana.generate import dashboard_files, rule_files
from grafana.runbooks import charted, published
from reconciler.config.settings import parse as configuration
from scheduler.config_check import config_findings, read_config
from tests.cluster.charting import (
    OPERATOR,
    VALUES,
    Chart,
    HelmRefused,
    driver_for_pods,
    install,
    of_the_bed,
    shown,
    uninstall,
)
from tests.cluster.extending import LOCK_RIGHTS, RESOURCES, make_node
from tests.cluster.plugin_node import volcano_pod
from tests.deploy.wrong_values import WRONG, merged
from tests.support.bed import crds, objects
from tests.support.bed.deviceplugin import DevicePlugin, pb
from tests.support.bed.images import Shown
from tests.support.defects import no_defects
from tests.support.deploy_objects import containers, granted, kinds, parse
from tests.support.environment import ROOT
from tests.support.live import parse as series_of
from tests.support.nvml_fake import Device, Process, uuid
from tests.support.regions import PODS, a_region, write
from tests.support.waiting import wait_until
from vgpu import __version__
from vgpu.sources.mps import DEFAULT_MPS_DIR
from vgpu.sources.regions import read_region

each_set = pytest.mark.parametrize("name", VALUES)


@pytest.fixture(scope="module")
def chart(tools):
    return Chart(tools.path("helm"))


@pytest.fixture(scope="module")
def sets(chart):
    """Name of each set of values -> what the chart makes of it. Tests only read it."""
    return {
        name: chart.rendered(values, f"--namespace={NAMESPACE}") for name, values in VALUES.items()
    }


# ---------------------------------------------------------------- helm


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_helm_has_nothing_to_say_against_it(chart, values):
    assert "0 chart(s) failed" in chart.lint(values)


@each_set
def test_programs_take_what_the_chart_tells_them(sets, name):
    for _, _, container in containers(sets[name]):
        parse(container["args"])


def test_the_manifests_are_what_the_chart_says(tools):
    checked = CliRunner().invoke(write_manifests, ["--check", f"--helm={tools.path('helm')}"])
    assert checked.exit_code == 0, checked.output


def test_what_can_be_switched_off_leaves_nothing(sets):
    assert sets["nothing"] == []


MUTATING = "MutatingAdmissionPolicy"

GETTING_AN_IMAGE = (
    "image.repository is empty",
    "make image",
    "ctr --namespace k8s.io images import ARCHIVE",
    "kind load image-archive",
    "k3s ctr images import",
    "minikube image load",
    "skopeo copy",
    "image.digest",
)


def test_a_chart_without_an_image_says_once_how_to_get_one(chart):
    with pytest.raises(HelmRefused) as refused:
        chart.rendered({"image": {}})
    said = str(refused.value)
    assert [words for words in GETTING_AN_IMAGE if said.count(words) != 1] == []
    assert chart.rendered({"image": {}} | VALUES["nothing"]) == []


def test_an_image_is_known_by_its_digest_before_its_tag(chart):
    def images(**image):
        documents = chart.rendered({"image": {"repository": "localhost:5000/vgpu"} | image})
        return {container["image"] for _, _, container in containers(documents)}

    digest = f"sha256:{'0' * 64}"
    assert images() == {f"localhost:5000/vgpu:{__version__}"}
    assert images(tag="main") == {"localhost:5000/vgpu:main"}
    assert images(tag="main", digest=digest) == {f"localhost:5000/vgpu@{digest}"}


def test_manifests_of_a_release_name_its_image(tools, tmp_path):
    image = f"registry.example.com/vgpu@sha256:{'0' * 64}"
    options = [f"--helm={tools.path('helm')}", f"--folder={tmp_path}", f"--image={image}"]
    written = CliRunner().invoke(write_manifests, options)
    assert written.exit_code == 0, written.output
    assert {path.name for path in tmp_path.iterdir()} == set(MANIFESTS)
    assert unpublished(tmp_path) == []
    for path in tmp_path.iterdir():
        documents = [each for each in yaml.safe_load_all(path.read_text()) if each]
        assert {container["image"] for _, _, container in containers(documents)} <= {image}


def test_no_profile_is_taken_away_by_a_field_that_the_cluster_does_not_know(chart):
    values = {"exporter": {"profile": "full"}, "reconciler": {"node": {"daemonSet": True}}}
    for version, field in (("1.26.0", False), ("1.29.9", False), ("1.30.0", True)):
        documents = chart.rendered(values, f"--kube-version={version}")
        for workload in kinds(documents, "DaemonSet"):
            template = workload["spec"]["template"]
            (container,) = template["spec"]["containers"]
            mark = f"container.apparmor.security.beta.kubernetes.io/{container['name']}"
            told = template["metadata"].get("annotations", {}).get(mark)
            assert told == (None if field else "unconfined")
            assert ("appArmorProfile" in container["securityContext"]) is field


def test_an_admission_policy_is_of_a_version_that_the_cluster_serves(chart):
    values = {"scheduler": {"policies": {"validate": True, "mutate": True}}}
    with pytest.raises(HelmRefused, match=r"needs Kubernetes 1\.30 or newer"):
        chart.rendered(values, "--kube-version=1.29.9")
    group = "admissionregistration.k8s.io"
    for flags, version in (((), "v1beta1"), ((f"--api-versions={group}/v1/{MUTATING}",), "v1")):
        (policy,) = kinds(chart.rendered(values, *flags), MUTATING)
        assert policy["apiVersion"] == f"{group}/{version}"


def test_a_new_configuration_means_new_pods(chart):
    def pods(config):
        documents = chart.rendered({"reconciler": {"config": config}})
        (workload,) = kinds(documents, "Deployment")
        return workload["spec"]["template"]

    assert pods({"every": "1m"}) != pods({"every": "2m"}) == pods({"every": "2m"})


def test_locked_metrics_are_probed_at_a_port_of_their_own(sets):
    for _, _, container in containers(sets["locked"]):
        if container["name"] == "tokens":  # it declares no port
            probed = {"name": 9502, "containerPort": 9502}
        else:
            _, probed = container["ports"]
            assert len(probed["name"]) <= 15  # the API server's limit
        assert f"--web.probe-address=:{probed['containerPort']}" in container["args"]
        for probe in ("livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] == probed["name"]
        assert "--web.config.file=/etc/vgpu-web/web-config.yaml" in container["args"]


def test_who_only_plans_may_change_nothing(chart):
    values = {"reconciler": {"mode": "plan", "node": {"daemonSet": True}}}
    changes = {
        (verb, resource)
        for adapter in kinds(chart.rendered(values), "ClusterRole")
        for rule in adapter["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if verb not in ("get", "list", "watch")
    }
    assert changes == set()


NO_QUOTAS = {"over_quota": {"mode": "off"}, "quota_drift": {"mode": "off"}}
"""The rules about quotas, off."""


@pytest.mark.parametrize(
    ("policies", "verbs"),
    [
        ([], []),
        ([{"name": "a", "mode": "plan", "namespaces": ["a"]}], []),
        ([{"name": "a", "mode": "plan", "selector": {}}], ["list", "watch"]),
    ],
)
def test_namespaces_may_be_read_only_where_a_policy_selects_by_labels(chart, policies, verbs):
    config = {"policies": policies, "rules": NO_QUOTAS}
    rendered = chart.rendered({"reconciler": {"config": config}})
    rules = [
        rule["verbs"]
        for role in kinds(rendered, "ClusterRole")
        for rule in role["rules"]
        if "namespaces" in rule["resources"]
    ]
    assert rules == ([verbs] if verbs else [])


@pytest.mark.parametrize(
    ("rules", "is_read"),
    [
        (NO_QUOTAS, False),
        ({}, True),
        ({"quota_drift": {"mode": "off"}}, True),
        ({"over_quota": {"mode": "off"}}, True),
        ({"over_quota": {"mode": "apply"}, "quota_drift": {"mode": "off"}}, True),
        (NO_QUOTAS | {"quota_mark": {"mode": "plan"}}, True),
    ],
)
def test_quotas_may_be_read_unless_their_rules_are_off(chart, rules, is_read):
    rendered = chart.rendered({"reconciler": {"config": {"rules": rules}}})
    rules = [
        (rule["resources"], rule["verbs"])
        for role in (*kinds(rendered, "ClusterRole"), *kinds(rendered, "Role"))
        for rule in role["rules"]
        if {"resourcequotas", "namespaces"} & {*rule["resources"]}
        or rule.get("resourceNames") == ["gpuquota"]
    ]
    watched = ["list", "watch"]
    expected = [(["namespaces"], watched), (["resourcequotas"], watched), (["configmaps"], ["get"])]
    assert rules == (expected if is_read else [])


@pytest.mark.parametrize("profile", ["minimal", "standard", "full"])
def test_the_files_of_mps_are_mounted_where_they_are_named(chart, profile):
    exporter = {"profile": profile}
    values = {"exporter": exporter, "reconciler": {"node": {"daemonSet": True}}}
    assert not list(_mps_mounts(chart.rendered(values)))
    rendered = chart.rendered(values | {"paths": {"mps": "/data/mps"}})
    readers = {"reconcile"} | ({"exporter"} if profile != "minimal" else set())
    assert dict(_mps_mounts(rendered)) == dict.fromkeys(readers, "/data/mps")


def _mps_mounts(rendered):
    """The programs that have the folder where they look for it, and where it is on the node."""
    for _, spec, container in containers(rendered):
        for mount in container.get("volumeMounts", ()):
            if mount["name"] == "mps":
                assert mount == {"name": "mps", "mountPath": DEFAULT_MPS_DIR, "readOnly": True}
                (volume,) = (each for each in spec["volumes"] if each["name"] == "mps")
                yield container["args"][0], volume["hostPath"]["path"]


def test_nvidias_resources_have_one_name_for_all_programs(chart):
    values = {
        "nvidia": {"resources": ["example.com/gpu"]},
        "reconciler": {"node": {"daemonSet": True}},
        "scheduler": {"enabled": True, "allowAnonymous": True},
    }
    readers = [
        container["args"][0]
        for _, _, container in containers(chart.rendered(values))
        if "--nvidia.resource=example.com/gpu" in container["args"]
    ]
    assert sorted(readers) == ["exporter", "reconcile", "reconcile", "scheduler"]


@pytest.mark.parametrize("is_on", [False, True])
def test_the_scheduler_may_read_quotas_unless_it_enforces_none(chart, is_on):
    values = {"enabled": True, "allowAnonymous": True, "quotas": is_on}
    rendered = chart.rendered({"exporter": {"enabled": False}, "scheduler": values})
    ((_, _, container),) = (
        each for each in containers(rendered) if each[2]["args"][0] == "scheduler"
    )
    assert ("--no-quotas" in container["args"]) != is_on
    readable = {
        resource
        for role in kinds(rendered, "ClusterRole")
        if role["metadata"]["name"].endswith("scheduler")
        for rule in role["rules"]
        for resource in rule["resources"]
    }
    assert ({"namespaces", "resourcequotas"} <= readable) == is_on


@pytest.mark.parametrize("is_original", [False, True])
def test_nodes_may_be_locked_only_for_an_original_plugin(chart, is_original):
    values = {"enabled": True, "allowAnonymous": True, "originalPlugin": is_original}
    rendered = chart.rendered({"exporter": {"enabled": False}, "scheduler": values})
    ((_, _, container),) = (
        each for each in containers(rendered) if each[2]["args"][0] == "scheduler"
    )
    assert ("--original-plugin" in container["args"]) == is_original
    granted = {
        verb
        for role in kinds(rendered, "ClusterRole")
        for rule in role["rules"]
        if "nodes" in rule["resources"] and role["metadata"]["name"].endswith("scheduler")
        for verb in rule["verbs"]
    }
    assert granted == {"list", "watch"} | (set(LOCK_RIGHTS["verbs"]) if is_original else set())


@pytest.mark.parametrize("daemon_set", [True, False])
def test_a_node_that_only_plans_writes_to_no_folder(chart, daemon_set):
    """Neither by itself nor in a device plugin's pod."""

    def written(mode):
        values = {
            "reconciler": {"mode": mode, "node": {"daemonSet": daemon_set}},
            "devicePlugin": {"schemes": {"gaia": {"enabled": not daemon_set}}},
        }
        return {
            mount["mountPath"]
            for _, _, container in containers(chart.rendered(values))
            if container["args"][0] == "reconcile"
            for mount in container["volumeMounts"]
            if not mount.get("readOnly")
        }

    assert written("plan") == set()
    assert written("apply") == {"/usr/local/vgpu", "/tmp/vgpu"}


@pytest.mark.parametrize("own_pod", [True, False])
def test_a_node_evicts_only_where_that_is_asked_for(chart, own_pod):
    """In a pod of its own as in a device plugin's, and not in one without it."""

    def evict(*, beside=True, mode="apply", **node):
        """The roles that may, or None if helm refuses; each scheme has nodes of its own."""
        schemes = {
            scheme: {"enabled": True, "nodeReconciler": beside, "nodeSelector": {"pool": scheme}}
            for scheme in ("volcano", "gpushare", "gaia")
        }
        values = {
            "units": {"volcanoMemoryFactor": 1, "gpushareMemoryUnit": "GiB"},
            "reconciler": {
                "kind": "None",
                "mode": mode,
                "node": {"daemonSet": own_pod, **node},
            },
            "devicePlugin": {} if own_pod else {"schemes": schemes},
        }
        try:
            rendered = chart.rendered(values)
        except HelmRefused as refused:
            if "reconciler.node.evict: without effect" in str(refused):
                return None
            raise
        return {
            adapter["metadata"]["name"]
            for adapter in kinds(rendered, "Role", "ClusterRole")
            if ("create", "pods/eviction") in granted([adapter])
        }

    plugins = {f"vgpu-device-plugin-{scheme}" for scheme in ("volcano", "gpushare", "gaia")}
    own = {"vgpu-reconciler-node"}
    assert evict(evict=True) == (own if own_pod else plugins)
    assert evict() == set()
    assert evict(evict=True, mode="plan") is None
    assert evict(evict=True, beside=False) == (own if own_pod else None)


def test_an_alert_can_be_changed_and_left_out(sets):
    (rule,) = kinds(sets["everything"], "PrometheusRule")
    alerts = {
        each["alert"]: each
        for group in rule["spec"]["groups"]
        for each in group["rules"]
        if "alert" in each
    }
    assert "VgpuDataStale" not in alerts
    down = alerts["VgpuExporterDown"]
    assert (down["for"], down["labels"]) == ("1h", {"severity": "info", "team": "sre"})
    page = "https://example.com/runbooks/alerts/VgpuExporterDown.md"
    assert down["annotations"]["runbook_url"] == page


def test_links_of_dashboards_begin_where_those_of_alerts_do(sets):
    files = {
        name: text
        for each in kinds(sets["everything"], "ConfigMap")
        for name, text in each.get("data", {}).items()
        if name.endswith(".json")
    }
    assert len(files) == len(DASHBOARDS)
    for text in files.values():
        variables = json.loads(text)["templating"]["list"]
        (runbooks,) = (each["query"] for each in variables if each["name"] == "runbooks")
        assert runbooks == "https://example.com/runbooks"


RELATIVE = re.compile(r"docs/|\.md\b|\.invalid|\$\{runbooks\}/")


def test_without_an_address_nothing_has_a_link_that_leads_nowhere(chart, tmp_path):
    copy, nowhere = shutil.copytree(CHART, tmp_path / "vgpu"), published(Project())
    for name, text in rule_files(nowhere).items():
        (copy / "files" / "rules" / name).write_text(text)
    for name, text in dashboard_files(charted(nowhere)).items():
        (copy / "files" / "dashboards" / name).write_text(text)
    values = {"rules": {"enabled": True}, "dashboards": {"enabled": True}}
    documents = chart.rendered(values, folder=copy)
    text = re.sub(r'"runbook": "Vgpu\w+\.md"', "", json.dumps(documents))
    assert "runbook_url" not in text
    assert RELATIVE.findall(text) == []
    dashboards = [
        json.loads(text)
        for each in kinds(documents, "ConfigMap")
        for name, text in each["data"].items()
        if name.endswith(".json")
    ]
    assert len(dashboards) == len(DASHBOARDS)


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
    """All in one go: it tells of each. That the schema refuses each alone is in tests/deploy."""
    values = functools.reduce(merged, (wrong.values for wrong in WRONG))
    with pytest.raises(HelmRefused) as refused:
        chart.rendered(values)
    lines = str(refused.value).splitlines()
    for wrong in WRONG:
        assert [line for line in lines if f"at '{wrong.place}'" in line and wrong.said in line], (
            wrong
        )


REFUSED = (
    ({"exporter": {"compat": ["none", "volcano"]}}, "none cannot be combined"),
    ({"exporter": {"compat": ["volcano", "hami-legacy"]}}, "volcano and hami-legacy use the same"),
    ({"exporter": {"compat": ["volcano-scheduler"]}}, "set units.volcanoMemoryFactor"),
    ({"rules": {"alerts": {"VgpuLost": {}}}}, "rules.alerts.VgpuLost: there is no alert"),
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
        {"scheduler": {"enabled": True, "tlsSecret": "tls", "extraArgs": ["--single"]}},
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
    for values, said in REFUSED:
        try:
            chart.rendered(values)
        except HelmRefused as refused:
            if said not in str(refused):
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


def test_a_device_plugin_without_a_reconciler_beside_it_has_none_of_its_rights(chart):
    gaia = {"enabled": True, "nodeReconciler": False}
    rendered = chart.rendered({"devicePlugin": {"schemes": {"gaia": gaia}}})
    part = "vgpu-device-plugin-gaia"
    rights = granted(each for each in rendered if each["metadata"]["name"] == part)
    assert {resource for verb, resource in rights if verb == "get"} == {"events"}


def test_replicas_are_spread_softly_unless_something_else_is_said(chart):
    def spread(**values):
        (workload,) = kinds(chart.rendered({"reconciler": values}), "Deployment")
        spec = workload["spec"]
        return spec["selector"], spec["template"]["spec"]["topologySpreadConstraints"]

    selector, (one,) = spread()
    assert one["labelSelector"] == selector
    assert one["whenUnsatisfiable"] == "ScheduleAnyway"
    zones = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    assert spread(topologySpreadConstraints=[zones]) == (selector, [zones])


# ---------------------------------------------------------------- what people are told

NOTES = '{{ include "vgpu/templates/NOTES.txt" . | dict "notes" | toJson }}'
"""Helm prints them only to who installs."""


@pytest.fixture
def notes(chart, tmp_path):
    """What helm prints to who installs the chart with values."""
    copy = shutil.copytree(CHART, tmp_path / "vgpu")
    (copy / "templates" / "shown.yaml").write_text(NOTES)

    def printed(values):
        (shown,) = chart.rendered(values, "--show-only=templates/shown.yaml", folder=copy)
        return shown["notes"]

    return printed


@pytest.mark.parametrize("kind", ["CronJob", "Deployment"])
@pytest.mark.parametrize("part", ["rules", "dashboards", ""])
def test_of_a_reconciler_without_metrics_that_is_told(notes, kind, part):
    values = {"reconciler": {"kind": kind}} | ({part: {"enabled": True}} if part else {})
    assert ("A CronJob serves no metrics" in notes(values)) is (kind == "CronJob" and part != "")


URLS = {
    "name": ({"allowAnonymous": True}, "http://vgpu-scheduler.default.svc:9398"),
    "address": (
        {"allowAnonymous": True, "service": {"clusterIP": "fd00::7"}},
        "http://[fd00::7]:9398",
    ),
    "TLS": ({"tlsSecret": "tls"}, "https://vgpu-scheduler.default.svc:9398"),
}


@pytest.mark.parametrize(("values", "url"), URLS.values(), ids=URLS)
def test_the_part_of_kube_schedulers_configuration_that_is_printed_has_no_trap(notes, values, url):
    text = notes({"scheduler": {"enabled": True} | values})
    block = re.search(r"^apiVersion:.*?(?=\n\n|\Z)", text, re.MULTILINE | re.DOTALL).group()
    document = yaml.safe_load(block)
    assert config_findings(read_config(document, "NOTES.txt")) == []
    (extender,) = document["extenders"]
    assert extender["urlPrefix"] == url
    assert sorted(extender["managedResources"], key=json.dumps) == sorted(RESOURCES, key=json.dumps)
    assert "apiVersion: kubescheduler" not in notes({})


BLOCK = re.compile(r"^( *)```yaml\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
KNOWN = yaml.safe_load((CHART / "values.yaml").read_text()).keys()


def examples():
    """(page, values of the chart that stand on it)."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for _, text in BLOCK.findall(page.read_text()):
            example = yaml.safe_load(textwrap.dedent(text))
            rbac = isinstance(example, dict) and isinstance(example.get("rules"), list)
            if isinstance(example, dict) and example.keys() <= KNOWN and not rbac:
                yield page.stem, example


EXAMPLES = list(examples())


@pytest.mark.parametrize(("page", "example"), EXAMPLES)
def test_values_on_a_page_are_taken(chart, page, example):
    rendered = chart.rendered(example)
    for _, _, container in containers(rendered):
        parse(container["args"])
    for each in kinds(rendered, "ConfigMap"):
        if "reconcile.yaml" in each["data"]:
            assert configuration(each["data"]["reconcile.yaml"], page).every == 120


def test_there_is_an_example_for_each_system_and_platform():
    pages = Counter(page for page, _ in EXAMPLES)
    assert (pages["install"], pages["platforms"]) == (4, 2)


# ---------------------------------------------------------------- the API server


@pytest.fixture(scope="module")
def accepting(api, crd_files):
    """An API server that knows Prometheus Operator's kinds, and the namespaces that are used.

    They stay: without controllers a namespace that is deleted is neither gone nor of any use.
    """
    crds.load(api.client, *crd_files)
    for name in (NAMESPACE, "monitoring"):
        api.client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return api


def accepts(api, files, folder):
    """Whether the API server takes all objects to the letter; who it does not is told by file."""
    for name, documents in files.items():
        if documents:
            (folder / f"{name}.json").write_text("\n---\n".join(map(json.dumps, documents)))
    how = ("--server-side", "--dry-run=server", "--validate=strict", "--force-conflicts")
    told = api.kubectl("apply", *how, "--filename", str(folder))
    return len(told.splitlines()) == sum(map(len, files.values())) > 0


def test_the_api_server_accepts_what_is_rendered_to_the_letter(sets, accepting, tmp_path):
    assert accepts(accepting, sets, tmp_path)


def test_the_api_server_accepts_each_manifest_to_the_letter(accepting, tmp_path):
    manifests = {
        name: [each for each in yaml.safe_load_all((FOLDER / name).read_text()) if each]
        for name in MANIFESTS
    }
    assert accepts(accepting, manifests, tmp_path)


def test_prometheus_operators_kinds_are_among_what_was_accepted(sets):
    rendered = [each for documents in sets.values() for each in documents]
    assert {each["kind"] for each in kinds(rendered, *OPERATOR)} == {*OPERATOR}


# ---------------------------------------------------------------- the node

RESOURCE = "volcano.sh/vgpu-number"
SHIMS = "/usr/local/vgpu/containers"
GPU = uuid(0)
GIB = 2**30
USERS = {"train": 4242, "bare": 4343}
"""The tenants' pods and their users."""

DAC_READ_SEARCH, SYS_PTRACE = 1 << 2, 1 << 19
PHASE = "volcano.sh/bind-phase"
PROFILES = {
    "minimal": (65532, 0, {"nvml", "shim", "kubelet"}),
    "standard": (0, 0, {"nvml", "shim", "kubelet", "limits", "plugin", "process"}),
    "full": (
        0,
        SYS_PTRACE,
        {"nvml", "shim", "kubelet", "limits", "plugin", "process", "api"},
    ),
}
"""Profile -> user, capabilities, collectors that bring data."""

OF_THE_NODE = {"process", "pod-resources", "kubelet-checkpoint", "own-checkpoint", "limit-file"}
SOURCES = {
    "minimal": {"shim"},
    "standard": {"shim", *OF_THE_NODE},
    "full": {"shim", "annotations", *OF_THE_NODE},
}
"""Profile -> sources of the ledger that are read."""


@pytest.fixture
def driver(tmp_path):
    """One GPU, in a driver that a pod can be shown."""
    driver = driver_for_pods(tmp_path / "driver")
    driver.write([Device(GPU)])
    return driver


def a_pod_on_the_gpu(name, namespace):
    command = ["sleep", "100000000"]
    pod = objects.pod(name, namespace, command=command, limits={RESOURCE: 1})
    pod["spec"]["containers"][0]["securityContext"] = {"runAsUser": USERS[name]}
    return pod


def on_the_gpu(ids):
    return pb.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": GPU})


def a_shim(file):
    """A region of the GPU, as HAMi-core leaves it, readable for all."""
    region = a_region("v1.2", devices=1)
    write(file, replace(region, devices=(replace(region.devices[0], uuid=GPU),)))
    file.chmod(0o666)


@pytest.fixture
def tenants(node, namespace, driver):
    """Two pods with a process on the GPU; one has a shim's folder, one a region of its own."""
    client = node.cluster.client
    with DevicePlugin(node, RESOURCE, ["a", "b"], on_the_gpu) as plugin:
        plugin.wait_counted(2)
        pods = {name: client.create(a_pod_on_the_gpu(name, namespace)) for name in USERS}
        pods = {name: client.wait_for(pod, objects.ready, "Ready") for name, pod in pods.items()}
        pids = {name: node.run(["pgrep", "-u", str(user)]).strip() for name, user in USERS.items()}
        processes = [Process(GPU, int(pid), used=GIB) for pid in pids.values()]
        driver.write([Device(GPU)], processes)
        folder = f"{SHIMS}/{pods['train']['metadata']['uid']}_main"
        node.run(["mkdir", "-p", folder])
        a_shim(node.path(f"{folder}/region.cache"))
        a_shim(node.path(f"/proc/{pids['bare']}/root/tmp/cudevshr.cache"))
        yield pods
    node.run(["rm", "-r", SHIMS])


@pytest.fixture
def volumes(driver, tenants, host_proc):
    """Folders of the node that the exporter is shown beside the chart's, and where."""
    return {"driver": (str(driver.folder), "/driver"), "proc": (host_proc(), "/host/proc")}


def kernel_says(node, program):
    """What /proc/<pid>/status has of a program's processes on the node."""
    for pid in node.run(["pgrep", "-f", program]).split():
        lines = node.run(["cat", f"/proc/{pid}/status"]).splitlines()
        yield dict(line.split(":\t", 1) for line in lines if ":\t" in line)


@pytest.fixture
def installed(chart, control_plane, namespace):
    """Installs the chart with values; all is taken away at the end."""
    client, made = control_plane.client, []

    def start(values):
        rendered = chart.rendered(values, f"--namespace={namespace}", release=namespace)
        made.extend(install(client, rendered))
        for workload in kinds(made, "DaemonSet"):
            client.wait_for(workload, lambda it: it["status"].get("numberReady") == 1, "ready")
        return client.list(f"/api/v1/namespaces/{namespace}/pods")

    yield start
    uninstall(client, made)


@pytest.fixture
def exporter(installed, node, volumes):
    """Installs the exporter in a profile; its page as series, and what the kernel says of it."""

    def start(profile):
        own = {
            "profile": profile,
            "api": profile == "full",
            "draState": profile == "full",
            "draSpecs": profile == "full",
            "sampleInterval": "1s",
            "extraArgs": [] if profile == "minimal" else ["--path.procfs=/host/proc"],
        }
        pods = installed(
            of_the_bed(node) | {"exporter": own | shown(volumes), "reconciler": {"kind": "None"}}
        )
        (pod,) = (pod for pod in pods if pod["metadata"]["name"] not in USERS)
        page = f"http://{pod['status']['podIP']}:9394/metrics"

        def series():
            return series_of(urllib3.request("GET", page).data.decode())

        (status,) = kernel_says(node, "vgpu exporter")
        return series, status

    return start


def about(series, name, pod):
    """The values of a metric that are of a pod."""
    return [
        value
        for at, value in series.items()
        if at.startswith(f"{name}{{") and f'pod="{pod}"' in at and 'container="main"' in at
    ]


@pytest.mark.usefixtures("product_image")
@pytest.mark.parametrize("profile", PROFILES)
def test_a_profile_of_the_exporter_sees_with_just_its_rights_what_it_should(
    node, exporter, profile
):
    user, capabilities, collectors = PROFILES[profile]
    series, status = exporter(profile)
    seen = 1 + (profile == "full")  # regions: that in a folder, and the bare one
    accounted = "vgpu_container_memory_accounted_bytes"
    page = wait_until(
        lambda: (told := series()) and sum(accounted in at for at in told) == seen and told,
        "the regions are seen",
        context=lambda: "\n".join(map(str, series().items())),
    )

    assert status["Uid"].split() == [str(user)] * 4
    assert {int(status[each], 16) for each in ("CapEff", "CapPrm", "CapBnd")} == {capabilities}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    if profile == "full":  # with draState: the kubelet's folder, without what pods have in it
        kubelet = f"/proc/{status['Pid'].strip()}/root/var/lib/kubelet"
        assert node.run(["ls", f"{kubelet}/pods"]) == ""
        assert "pod-resources" in node.run(["ls", kubelet]).split()

    success = {at: value for at, value in page.items() if at.startswith("vgpu_collector_success")}
    assert success == {f'vgpu_collector_success{{collector="{one}"}}': 1 for one in collectors}
    assert about(page, accounted, "train")
    assert bool(about(page, accounted, "bare")) == (profile == "full")
    for pod in USERS:
        used = about(page, "vgpu_container_memory_used_bytes", pod)
        assert used == ([] if profile == "minimal" else [GIB])
    read = {
        at.split('"')[1]
        for at, value in page.items()
        if at.startswith("vgpu_allocation_source_read") and value
    }
    assert read == SOURCES[profile]


# ---------------------------------------------------------------- the device plugins

OFFERED = {
    "volcano.sh/vgpu-number": "10",
    "aliyun.com/gpu-mem": "80",
    "tencent.com/vcuda-core": "100",
}
"""What one GPU of 80 GiB makes under each scheme."""


@pytest.fixture
def own_node(nodes, product_archive):
    """A node on which no plugin has ever been."""
    node = nodes()
    node.import_image(product_archive)
    return node


def test_the_device_plugins_serve_with_just_their_rights(own_node, installed, namespace, driver):
    driver.write([Device(GPU, total=80 * GIB)])
    beside = {"enabled": True, "nodeReconciler": False}
    schemes = {
        "volcano": {"enabled": True},
        "gpushare": beside | {"unhealthyReports": [own_node.name]},
        "gaia": beside,
    }
    pods = installed(
        of_the_bed(own_node)
        | {
            "exporter": {"enabled": False},
            "units": {"volcanoMemoryFactor": 64, "gpushareMemoryUnit": "GiB"},
            "devicePlugin": shown({"driver": (str(driver.folder), "/driver")})
            | {"schemes": schemes},
            "reconciler": {"kind": "None", "mode": "apply"},
        }
    )
    client, place = own_node.cluster.client, own_node.object()
    client.wait_for(
        place, lambda it: OFFERED.items() <= it["status"]["allocatable"].items(), "offers all"
    )
    plugins = list(kernel_says(own_node, "vgpu device-plugin"))
    assert len(plugins) == 3
    reconcilers = list(kernel_says(own_node, "vgpu reconcile"))
    assert len(reconcilers) == 1
    for statuses, rights in ((plugins, 0), (reconcilers, SYS_PTRACE | DAC_READ_SEARCH)):
        for status in statuses:
            assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == rights
            assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")

    shim = own_node.path("/usr/local/vgpu")
    for name in ("libvgpu.so", "ld.so.preload"):
        (shim / name).write_bytes(b"")
    allocation_state = SimpleNamespace(uuids=[GPU], node=own_node)
    pod = client.create(volcano_pod("train", namespace, allocation_state, {"main": [(0, 16, 30)]}))
    client.wait_for(pod, objects.ready, "Ready")
    shows = Shown.by(client, pod)
    assert shows.env["NVIDIA_VISIBLE_DEVICES"] == GPU
    assert shows.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1024m"
    client.wait_for(pod, lambda it: it["metadata"]["annotations"][PHASE] == "success", "told")
    for each in pods:
        for container in each["spec"]["containers"]:
            assert "forbidden" not in client.logs(each, container["name"]).lower()


# ---------------------------------------------------------------- the feedback


def test_the_feedback_lets_a_container_go_without_a_capability(
    node, installed, host_proc, product_image
):
    """A container that a dead monitor has left blocked, on a node where no checkpoint knows it."""
    del product_image
    folder = node.path("/usr/local/vgpu/containers") / f"{PODS[0]}_main"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    left = write(folder / "left.cache", replace(a_region("v1.2"), recent_kernel=-1))
    left.chmod(0o666)
    more = shown({"proc": (host_proc(), "/host/proc")}) | {"extraEnv": []}
    values = more | {"enabled": True, "extraArgs": ["--path.procfs=/host/proc"]}
    reach = {"exporter": {"enabled": False}, "reconciler": {"kind": "None"}}
    try:
        with DevicePlugin(node, "example.com/written", ("thing",)) as plugin:
            plugin.wait_counted(1)  # the kubelet has written its checkpoint
        installed(of_the_bed(node) | reach | {"feedback": values})
        wait_until(lambda: read_region(str(left)).recent_kernel == 0, "it is let go")
        (status,) = kernel_says(node, "vgpu feedback")
        assert status["Uid"].split() == ["0"] * 4
        assert {int(status[each], 16) for each in ("CapEff", "CapPrm", "CapBnd")} == {0}
    finally:
        shutil.rmtree(folder)


# ---------------------------------------------------------------- the token daemon


def test_the_token_daemon_serves_without_a_capability_and_the_exporter_reads_its_page(
    node, installed, product_image
):
    """On the node's network, from files as the node component writes them."""
    del product_image
    folder = node.path("/kubeshare/scheduler")
    contents = {"config": "1\nml/train 0.5 0.8 1024\n", "podmanagerport": "1\nml/train 50051\n"}
    try:
        for name, text in contents.items():
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / "GPU-1").write_text(text)
        values = {"tokens": {"enabled": True}, "reconciler": {"kind": "None"}}
        values["exporter"] = {"sampleInterval": "1s"}
        pods = installed(of_the_bed(node) | values)
        (status,) = kernel_says(node, "vgpu tokens")
        assert {int(status[each], 16) for each in ("CapEff", "CapPrm", "CapBnd")} == {0}
        (address,) = (
            pod["status"]["podIP"]
            for pod in pods
            if pod["metadata"]["labels"]["app.kubernetes.io/component"] == "exporter"
        )

        def reads():
            page = urllib3.request("GET", f"http://{address}:9394/metrics").data.decode()
            return series_of(page).get('vgpu_collector_success{collector="tokens"}') == 1

        wait_until(reads, "the exporter reads the page of the daemon")
    finally:
        for name in contents:
            (folder / name / "GPU-1").unlink(missing_ok=True)


# ---------------------------------------------------------------- the scheduler


def test_the_scheduler_binds_with_just_its_rights(node, installed, namespace, product_image):
    """One replica without client certificates, in a pod: it is asked as kube-scheduler would."""
    del product_image
    values = {"enabled": True, "allowAnonymous": True, "replicas": 1}
    reach = {"exporter": {"enabled": False}, "reconciler": {"kind": "None"}}
    installed(of_the_bed(node) | reach | {"scheduler": values})
    cluster, client = node.cluster, node.cluster.client
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{namespace}-vgpu-scheduler"
    client.wait_for(
        client.get(path), lambda it: it["status"].get("readyReplicas") == 1, "has read the cluster"
    )
    (pod,) = client.list(f"/api/v1/namespaces/{namespace}/pods")
    (status,) = kernel_says(node, "vgpu scheduler")
    assert status["Uid"].split() == ["65532"] * 4
    assert {int(status[each], 16) for each in ("CapEff", "CapPrm", "CapBnd")} == {0}

    place = make_node(
        cluster, f"{namespace}-gpus", {"aliyun.com/gpu-mem": 8, "aliyun.com/gpu-count": 1}
    )
    name = place["metadata"]["name"]
    try:
        fits, waits = (
            client.create(
                objects.pod(each, namespace, limits={"aliyun.com/gpu-mem": 8}, schedulerName="none")
            )
            for each in ("fits", "waits")
        )

        def ask(verb, body):
            url = f"http://{pod['status']['podIP']}:9398/{verb}"
            return urllib3.request("POST", url, json=body).json()

        def bind(pod):
            meta = pod["metadata"]
            return ask(
                "bind",
                {
                    "PodName": meta["name"],
                    "PodNamespace": namespace,
                    "PodUID": meta["uid"],
                    "Node": name,
                },
            )["Error"]

        wait_until(lambda: bind(fits) == "", "it is bound", context=lambda: client.logs(pod))
        assert client.get(fits)["spec"]["nodeName"] == name
        answer = ask("filter", {"Pod": waits, "Nodes": None, "NodeNames": [name]})
        assert answer["FailedNodes"] == {name: "no GPU has enough free memory"}
        lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/vgpu-node-{name}"
        claims = client.get(lease)["metadata"]["annotations"]["vgpu.dev/claims"]
        assert fits["metadata"]["uid"] in claims
        client.wait_for(waits, lambda it: bool(client.events(it)), "has an event")
        assert "forbidden" not in client.logs(pod).lower()
    finally:
        cluster.remove_node(name)
