"""The manifests as they lie in deploy/manifests: what people apply is what was meant.

That the chart renders them, and that an API server takes them, is in
tests/cluster/test_chart.py and tests/cluster/test_chart_accepted.py.
"""

import re

import pytest
import yaml

import deviceplugin.flags
import exporter.flags
import fleet.main
import kubeshare.main
import kubeshare.tokens.main
import scheduler.main
import vgpucli.feedback.command
from deploy.manifests import FOLDER, MANIFESTS, NAMESPACE, PLACEHOLDER, unpublished
from fleet.rights import RIGHTS as FLEET_RIGHTS
from grafana.settings import EXPORTER, RECONCILER
from tests.cluster.extending import MAP_RIGHTS, RIGHTS
from tests.cluster.kubesharing import NODE_RULES, RULES
from tests.support.deploy_objects import OWN, containers, granted, kinds, parse, pod_templates
from tests.support.environment import ROOT
from vgpu import __version__
from vgpu.schemes.kubeshare.node import HOLDER_NAMESPACE

DOCUMENTS = {
    name: [
        each for each in yaml.load_all((FOLDER / name).read_text(), Loader=yaml.CSafeLoader) if each
    ]
    for name in MANIFESTS
}
CONTAINERS_OF = {name: list(containers(documents)) for name, documents in DOCUMENTS.items()}
CONTAINERS = {
    f"{name}:{container['name']}": (name, spec, container)
    for name, documents in DOCUMENTS.items()
    for _, spec, container in containers(documents)
}
each_container = pytest.mark.parametrize(
    ("name", "spec", "container"), CONTAINERS.values(), ids=CONTAINERS
)


def test_there_is_no_file_that_nothing_makes():
    assert {path.name for path in FOLDER.iterdir()} == MANIFESTS.keys()


def test_nothing_that_is_released_names_the_placeholder():
    """What is in dist/ is what `make release` has left there; the source's own files do name it."""
    assert unpublished(ROOT / "dist") == []
    with_containers = {name for name in MANIFESTS if CONTAINERS_OF[name]}
    with_policies = {"kubeshare-rbac.yaml"}  # holder pods have this image, and no other
    assert {path.name for path in unpublished(FOLDER)} == with_containers | with_policies


# ---------------------------------------------------------------- what runs


@each_container
def test_the_program_takes_its_command_line(name, spec, container):
    assert container["args"][0] in OWN
    parse(container["args"])


@each_container
def test_no_gpu_is_requested_and_memory_is_limited(name, spec, container):
    resources = container["resources"]
    assert resources["limits"].keys() == {"memory"}
    assert resources["requests"].keys() == {"cpu", "memory"}


@each_container
def test_the_image_is_the_placeholder_of_this_version(name, spec, container):
    assert container["image"] == f"{PLACEHOLDER}:{__version__}"


@each_container
def test_it_has_no_more_rights_than_documented(name, spec, container):
    security = container["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"]["drop"] == ["ALL"]
    added = set(security["capabilities"].get("add", ()))
    allowed = {"exporter": {"SYS_PTRACE"}, "reconcile": {"SYS_PTRACE", "DAC_READ_SEARCH"}}
    assert added <= allowed.get(container["args"][0], set())
    assert ("appArmorProfile" in security) == bool(added)
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert bool(spec.get("hostNetwork")) == (container["args"][0] == "tokens")
    assert not spec.get("hostIPC")


def mounted(container):
    return container.get("volumeMounts", ())


@each_container
def test_what_is_mounted_is_there(name, spec, container):
    volumes = {volume["name"] for volume in spec.get("volumes", ())}
    mounts = [mount["name"] for mount in mounted(container)]
    assert set(mounts) <= volumes
    paths = [mount["mountPath"] for mount in mounted(container)]
    assert len({*paths}) == len(paths)


def test_a_volume_is_of_use():
    for documents in DOCUMENTS.values():
        for _, template in pod_templates(documents):
            spec = template["spec"]
            used = {mount["name"] for each in spec["containers"] for mount in mounted(each)}
            assert {volume["name"] for volume in spec.get("volumes", ())} == used


WRITTEN = {
    "exporter": set(),
    "device-plugin": {
        "/var/lib/kubelet/device-plugins",
        "/var/run/cdi",
        "/var/lib/vgpu",
        "/run/vgpu",
        "/usr/local/vgpu",
        "/tmp/vgpulock",
        "/etc/gpu-manager",
    },
    "reconcile": {"/usr/local/vgpu", "/tmp/vgpu"},
    "scheduler": set(),
    "kubeshare": {"/kubeshare/scheduler", "/kubeshare/library"},
    "feedback": {
        "/usr/local/vgpu/containers",
        "/usr/local/vgpu/vgpu/containers",
        "/tmp/vgpu/containers",
        "/run/vgpu",
    },
    "tokens": {"/run/vgpu/tokens"},
    "bill": {"/var/lib/vgpu-bill"},
    "fleet": set(),
}


@each_container
def test_it_writes_to_the_host_only_where_it_must(name, spec, container):
    writable = {mount["mountPath"] for mount in mounted(container) if not mount.get("readOnly")}
    assert writable <= WRITTEN[container["args"][0]]


DEVICE_PLUGINS = [name for name in MANIFESTS if name.startswith("device-plugin")]


@pytest.mark.parametrize("name", DEVICE_PLUGINS)
def test_the_device_plugin_reads_which_container_is_which(name):
    """By the kubelet's links, in folders of their own."""
    (folders,) = (
        {mount["mountPath"]: mount.get("readOnly", False) for mount in mounted(container)}
        for _, _, container in containers(DOCUMENTS[name])
        if container["args"][0] == "device-plugin"
    )
    assert folders["/var/log/pods"]
    assert folders["/var/log/containers"]


@pytest.mark.parametrize("name", DEVICE_PLUGINS)
def test_the_device_plugin_may_end_what_it_has_begun(name):
    ((spec, _),) = (
        (spec, container)
        for _, spec, container in containers(DOCUMENTS[name])
        if container["args"][0] == "device-plugin"
    )
    assert spec["terminationGracePeriodSeconds"] == 60


@each_container
def test_probes_and_port_are_the_programs(name, spec, container):
    ports = {
        "exporter": exporter.flags.DEFAULT_PORT,
        "device-plugin": deviceplugin.flags.DEFAULT_PORT,
        "reconcile": 9396,
        "tokens": int(kubeshare.tokens.main.DEFAULT_ADDRESS.rpartition(":")[2]),
        "fleet": int(fleet.main.DEFAULT_ADDRESS.rpartition(":")[2]),
        "feedback": int(vgpucli.feedback.command.DEFAULT_ADDRESS.rpartition(":")[2]),
        "scheduler": int(scheduler.main.DEFAULT_ADDRESS.rpartition(":")[2]),
        "controller": int(kubeshare.main.DEFAULT_ADDRESS.rpartition(":")[2]),
        "node": int(kubeshare.main.NODE_ADDRESS.rpartition(":")[2]),
    }
    program = container["args"][container["args"][0] == "kubeshare"]
    if name in ("reconciler-cronjob.yaml", "bill-close.yaml"):
        assert "ports" not in container
        return
    if name == "tokens.yaml":  # a port of the host would keep the next pod from starting
        assert "ports" not in container
        port = {"name": ports[program]}
    else:
        port = container["ports"][0]
        assert port["containerPort"] == ports[program]
    if name in ("scheduler.yaml", "fleet.yaml"):  # the kubelet has no client certificate
        port = container["ports"][1]
        assert f"--web.probe-address=:{port['containerPort']}" in container["args"]
    assert container["livenessProbe"]["httpGet"] == {"path": "/-/healthy", "port": port["name"]}
    assert container["readinessProbe"]["httpGet"] == {"path": "/-/ready", "port": port["name"]}


# ---------------------------------------------------------------- the exporter's profiles

PROFILES = {
    "exporter-minimal.yaml": (65532, False, set(), {"process", "limits", "plugin"}),
    "exporter.yaml": (0, True, set(), set()),
    "exporter-full.yaml": (0, True, {"SYS_PTRACE"}, set()),
}
"""user, hostPID, capabilities, collectors that are switched off."""


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_of_the_exporter_has_just_its_rights(name):
    ((_, spec, container),) = containers(DOCUMENTS[name])
    user, host_pid, added, off = PROFILES[name]
    assert spec["securityContext"]["runAsUser"] == user
    assert spec["securityContext"].get("runAsNonRoot", False) == (user != 0)
    assert spec["hostPID"] is host_pid
    assert set(container["securityContext"]["capabilities"].get("add", ())) == added
    collectors = exporter.flags.options_from(parse(container["args"])).collectors
    assert {each for each, (on, _) in exporter.flags.COLLECTORS.items() if on} - collectors == off
    assert ("bare" in collectors) == bool(added)


def test_only_who_asks_the_api_server_has_a_token_and_rights():
    for name in PROFILES:
        ((_, spec, container),) = containers(DOCUMENTS[name])
        asks = "--collector.api" in container["args"]
        assert spec["automountServiceAccountToken"] is asks
        rights = {("list", "pods"), ("watch", "pods"), ("get", "nodes")}
        assert granted(DOCUMENTS[name]) == (rights if asks else set())


# ---------------------------------------------------------------- days for bills


def test_days_are_closed_by_who_has_no_account_and_nothing_of_the_host():
    documents = DOCUMENTS["bill-close.yaml"]
    ((_, spec, _),) = containers(documents)
    assert spec["automountServiceAccountToken"] is False
    (account,) = kinds(documents, "ServiceAccount")
    assert account["automountServiceAccountToken"] is False
    assert granted(documents) == set()
    assert spec["securityContext"]["runAsUser"] == 65532
    assert spec["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"  # modes stay 0600
    (claim,) = kinds(documents, "PersistentVolumeClaim")
    (volume,) = spec["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}


def test_days_are_closed_in_the_zone_of_their_schedule():
    documents = DOCUMENTS["bill-close.yaml"]
    (job,) = kinds(documents, "CronJob")
    ((_, _, container),) = containers(documents)
    assert job["spec"]["concurrencyPolicy"] == "Forbid"
    assert parse(container["args"]).params["zone"].key == job["spec"]["timeZone"] == "UTC"


# ---------------------------------------------------------------- rights


def test_nobody_may_delete_a_pod_read_a_secret_or_make_one_into_an_admin():
    for name, documents in DOCUMENTS.items():
        rights = granted(documents)
        if name == "kubeshare-rbac.yaml":  # it creates the pods that it deletes
            rights.remove(("delete", "pods"))
        for verb, resource in rights:
            assert verb not in ("delete", "deletecollection", "*", "escalate", "bind"), name
            assert resource not in ("*", "secrets", "pods/exec", "serviceaccounts/token"), name


def test_nobody_may_change_the_spec_of_a_pod_or_node():
    """Annotations and labels are written through status, where a changed spec is ignored."""
    for name, documents in DOCUMENTS.items():
        changes = {(verb, kind) for verb in ("patch", "update") for kind in ("pods", "nodes")}
        assert not changes & set(granted(documents)), name


FOLLOWED = {(verb, resource) for verb in ("list", "watch") for resource in ("pods", "nodes")}
STATUS_WRITES = {
    ("patch", "pods/status"),
    ("patch", "nodes/status"),
    *((verb, "events") for verb in ("create", "get", "patch")),
}
"""What a plugin writes. With no more it is tested at a real API server, in
tests/cluster/test_plugin_status_manager.py."""
OF_THE_RECONCILER = {("get", "pods"), ("get", "nodes")}


@pytest.mark.parametrize("scheme", ["volcano", "gpushare", "gaia"])
def test_a_device_plugin_may_only_what_it_and_the_reconciler_beside_it_ask_for(scheme):
    rights = granted(DOCUMENTS[f"device-plugin-{scheme}.yaml"])
    assert rights == FOLLOWED | STATUS_WRITES | OF_THE_RECONCILER


def test_no_device_plugin_may_touch_config_maps_unless_its_nodes_are_configured():
    for name in (name for name in DOCUMENTS if name.startswith("device-plugin")):
        assert not [one for one in granted(DOCUMENTS[name]) if one[1] == "configmaps"]


def test_the_scheduler_may_only_what_it_is_tested_with():
    """With no more, the cluster tests of the scheduler run it."""
    tested = {
        (verb, resource)
        for rule in (*RIGHTS, *MAP_RIGHTS)
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted(DOCUMENTS["scheduler-rbac.yaml"]) == tested
    leases, maps = (
        (role["metadata"]["namespace"], rule["resources"])
        for role in kinds(DOCUMENTS["scheduler-rbac.yaml"], "Role")
        for rule in role["rules"]
    )
    assert leases == (NAMESPACE, ["leases"])
    assert maps == ("kube-system", ["configmaps"])
    ((_, _, container),) = containers(DOCUMENTS["scheduler.yaml"])
    assert parse(container["args"]).params["lease_namespace"] == NAMESPACE


def test_the_fleet_page_may_only_what_its_table_of_rights_has():
    """But the ConfigMaps of all namespaces, which the chart lets it list in none but one."""
    granted_rights = {
        (group, resource, verb)
        for role in kinds(DOCUMENTS["fleet.yaml"], "Role", "ClusterRole")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    table = {(each.group, each.resource, verb) for each in FLEET_RIGHTS for verb in each.verbs}
    assert granted_rights == table
    for role in kinds(DOCUMENTS["fleet.yaml"], "ClusterRole"):
        maps = [rule for rule in role["rules"] if "configmaps" in rule["resources"]]
        assert [rule["verbs"] for rule in maps if rule.get("resourceNames")] == [["get"]]
        assert len(maps) == 1


def test_the_fleet_page_is_behind_the_web_configuration():
    ((_, spec, container),) = containers(DOCUMENTS["fleet.yaml"])
    assert "--web.config.file=/etc/vgpu-web/web-config.yaml" in container["args"]
    assert spec["securityContext"]["runAsNonRoot"] is True


def test_kubeshares_controllers_may_only_what_they_are_tested_with():
    """With no more, tests/cluster/test_kubeshare_controllers.py and test_kubeshare_node.py run."""
    roles = kinds(DOCUMENTS["kubeshare-rbac.yaml"], "ClusterRole", "Role")
    for part, tested in (("controller", RULES), ("node", NODE_RULES)):
        rights = granted(each for each in roles if each["metadata"]["name"].endswith(part))
        assert rights == {
            (verb, resource)
            for rule in tested
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }


def test_kubeshares_controllers_may_write_one_lease_and_the_node_component_holder_pods_alone():
    rules = {
        (role["metadata"]["namespace"], rule["resources"][0], *rule["verbs"]): rule.get(
            "resourceNames"
        )
        for role in kinds(DOCUMENTS["kubeshare-rbac.yaml"], "Role")
        for rule in role["rules"]
    }
    assert rules == {
        (NAMESPACE, "leases", "get", "update"): [kubeshare.main.LEASE],
        (NAMESPACE, "leases", "create"): None,
        (HOLDER_NAMESPACE, "pods", "list", "watch"): None,
        (HOLDER_NAMESPACE, "pods/status", "patch"): None,
    }
    (lease_namespace,) = (
        parse(container["args"]).params["lease_namespace"]
        for _, _, container in containers(DOCUMENTS["kubeshare.yaml"])
        if container["name"] == "kubeshare-controller"
    )
    assert lease_namespace == NAMESPACE


def test_holder_pods_are_not_preempted_and_preempt_nobody():
    (priority,) = kinds(DOCUMENTS["kubeshare.yaml"], "PriorityClass")
    assert (priority["value"], priority["preemptionPolicy"]) == (10**9, "Never")
    (name,) = (
        parse(container["args"]).params["holder_priority_class"]
        for _, _, container in containers(DOCUMENTS["kubeshare.yaml"])
        if container["name"] == "kubeshare-controller"
    )
    assert name == priority["metadata"]["name"]


def test_the_token_daemon_has_no_rights_and_is_replaced_by_one_beside_it():
    """A closed connection ends processes in pods; the next pod takes them over."""
    documents = DOCUMENTS["tokens.yaml"]
    ((_, spec, container),) = containers(documents)
    assert not granted(documents)
    assert spec["automountServiceAccountToken"] is False
    assert spec["priorityClassName"] == "system-node-critical"
    (daemon_set,) = kinds(documents, "DaemonSet")
    rollout = {"maxSurge": 1, "maxUnavailable": 0}
    assert daemon_set["spec"]["updateStrategy"]["rollingUpdate"] == rollout
    params = parse(container["args"]).params
    assert params["handover_wait"] < 30  # the default of terminationGracePeriodSeconds
    folders = {mount["mountPath"]: mount.get("readOnly", False) for mount in mounted(container)}
    socket_folder = params["handover_socket"].rpartition("/")[0]
    assert folders == {params["kubeshare_dir"]: True, socket_folder: False}
    (endpoint,) = (
        endpoint
        for monitor in kinds(DOCUMENTS["podmonitors.yaml"], "PodMonitor")
        if monitor["metadata"]["name"] == "vgpu-tokens"
        for endpoint in monitor["spec"]["podMetricsEndpoints"]
    )
    port = kubeshare.tokens.main.DEFAULT_ADDRESS
    address = {"sourceLabels": ["__meta_kubernetes_pod_ip"], "targetLabel": "__address__"}
    assert {**address, "replacement": f"$1{port}"} in endpoint["relabelings"]


# ---------------------------------------------------------------- what is scraped


def test_the_scrape_jobs_are_named_as_rules_and_dashboards_expect():
    jobs = {
        relabeling["replacement"]
        for monitor in kinds(DOCUMENTS["podmonitors.yaml"], "PodMonitor")
        for endpoint in monitor["spec"]["podMetricsEndpoints"]
        for relabeling in endpoint["relabelings"]
        if relabeling["targetLabel"] == "job"
    }
    (known,) = re.findall('"(.*)"', EXPORTER)
    assert [job for job in jobs if re.fullmatch(known, job)] == ["vgpu-exporter"]
    (known,) = re.findall('"(.*)"', RECONCILER)
    ours = {"vgpu-reconciler", "vgpu-reconciler-node"}
    assert {job for job in jobs if re.fullmatch(known, job)} == ours
    controllers = {"vgpu-kubeshare-controller", "vgpu-kubeshare-node"}
    own = {"vgpu-exporter", "vgpu-device-plugin", "vgpu-scheduler", "vgpu-feedback", "vgpu-tokens"}
    assert jobs == {*own, *controllers, *ours}


def test_every_port_that_serves_metrics_is_scraped_once():
    monitors = DOCUMENTS["podmonitors.yaml"]
    label = "app.kubernetes.io/component"
    scraped = sorted(
        (component, endpoint["port"])
        for monitor in monitors
        for endpoint in monitor["spec"]["podMetricsEndpoints"]
        if "port" in endpoint
        for expression in monitor["spec"]["selector"]["matchExpressions"]
        for component in expression["values"]
    )
    served = {
        (template["metadata"]["labels"][label], port["name"])
        for documents in DOCUMENTS.values()
        for _, template in pod_templates(documents)
        for container in template["spec"]["containers"]
        for port in container.get("ports", ())
        if not port["name"].endswith("-probe")
    }
    served.discard(("fleet", "fleet"))  # a page for people, without metrics
    assert set(scraped) == served
    assert len(scraped) == len(served)


def test_what_is_installed_is_absent_also_if_it_was_never_scraped():
    """The plain manifests have an exporter and a reconciler, and no device plugin."""
    (rules,) = kinds(DOCUMENTS["prometheusrule.yaml"], "PrometheusRule")
    expressions = {
        rule.get("alert"): rule["expr"]
        for group in rules["spec"]["groups"]
        for rule in group["rules"]
    }
    assert expressions["VgpuExportersAbsent"] == 'absent(up{job="vgpu-exporter"})'
    assert expressions["VgpuReconcilerAbsent"] == 'absent(up{job="vgpu-reconciler"})'
    assert "last_over_time" in expressions["VgpuPluginsAbsent"]


def test_the_policy_names_every_account_that_writes_and_no_other():
    """What an account writes beside its own Leases, ConfigMaps and events."""
    written = {"pods/status", "nodes/status", "namespaces", "sharepods"}
    writers = set()
    for documents in DOCUMENTS.values():
        roles = {
            each["metadata"]["name"]
            for each in kinds(documents, "ClusterRole", "Role")
            for rule in each["rules"]
            if {"patch", "update"} & {*rule["verbs"]} and written & {*rule["resources"]}
        }
        for binding in kinds(documents, "ClusterRoleBinding", "RoleBinding"):
            if binding["roleRef"]["name"] in roles:
                writers |= {each["name"] for each in binding["subjects"]}
    policy, _ = DOCUMENTS["account-policy.yaml"]
    (condition,) = policy["spec"]["matchConditions"]
    named = re.findall(rf"'system:serviceaccount:{NAMESPACE}:([^']+)'", condition["expression"])
    assert {*named} == writers
