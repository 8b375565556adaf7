"""Each component of the chart, by helm: names, labels, rights, and what it finds on a node."""

import pytest

from deploy.manifests import NAMESPACE
from reconciler.config.settings import parse as configuration
from reconciler.reasons import Rule
from tests.cluster.charting import VALUES
from tests.support.defects import no_defects
from tests.support.deploy_objects import containers, kinds, parse, pod_templates
from vgpu import __version__

each_set = pytest.mark.parametrize("name", VALUES)


# ---------------------------------------------------------------- names, labels, accounts


@no_defects
def test_every_object_and_pod_has_the_common_labels_and_names_its_chart(sets):
    for each in sets["everything"]:
        name, labels = each["metadata"]["name"], each["metadata"].get("labels", {})
        if name in ("vgpu-more", "text"):
            continue  # extraManifests are what they are
        if labels.get("team") != "sre" or labels.get("app.kubernetes.io/name") != "gpus":
            yield f"{each['kind']} {name}: {labels}"
        if labels.get("app.kubernetes.io/managed-by") != "Helm":
            yield f"{each['kind']} {name} is managed by nobody"
        if labels.get("helm.sh/chart") != f"vgpu-{__version__}":
            yield f"{each['kind']} {name} has no chart"
    for name, template in pod_templates(sets["everything"]):
        labels = template["metadata"]["labels"]
        if labels["team"] != "sre" or "helm.sh/chart" in labels:
            yield f"pods of {name}: {labels}"


def test_names_begin_with_the_configured_prefix(chart, sets):
    assert {each["metadata"]["name"] for each in kinds(sets["everything"], "Deployment")} == {
        "vgpu-gpus-kubeshare-controller",
        "vgpu-gpus-reconciler",
        "vgpu-gpus-scheduler",
    }
    (workload,) = kinds(chart.rendered({"nameOverride": "gpus"}, release="gpus"), "Deployment")
    assert workload["metadata"]["name"] == "gpus-reconciler"


def test_more_objects_are_templates(sets):
    more = [
        each for each in sets["everything"] if each["metadata"]["name"] in ("vgpu-more", "text")
    ]
    assert [each.get("data") for each in more] == [{"here": NAMESPACE}, None]


def test_an_account_has_its_name_and_annotations_and_an_existing_one_is_bound(sets):
    accounts = {
        each["metadata"]["name"]: each["metadata"].get("annotations")
        for each in kinds(sets["everything"], "ServiceAccount")
    }
    assert accounts.pop("watcher") == {"example.com/role": "reader"}
    assert set(accounts.values()) == {None}
    assert not {"existing", "vgpu-gpus-reconciler"} & set(accounts)
    templates = dict(pod_templates(sets["everything"]))
    for workload, account in (("exporter", "watcher"), ("reconciler", "existing")):
        spec = templates[f"vgpu-gpus-{workload}"]["spec"]
        assert spec["serviceAccountName"] == account
    bound = {
        (each["metadata"]["name"], object_name["name"])
        for each in kinds(sets["everything"], "RoleBinding", "ClusterRoleBinding")
        for object_name in each["subjects"]
    }
    assert ("vgpu-gpus-exporter", "watcher") in bound
    assert {account for name, account in bound if name.startswith("vgpu-gpus-reconciler")} == {
        "existing"
    }


def test_two_releases_have_priority_classes_of_their_own(chart):
    def name(namespace, release, **values):
        rendered = chart.rendered(values, f"--namespace={namespace}", release=release)
        (priority,) = kinds(rendered, "PriorityClass")
        used = {template["spec"]["priorityClassName"] for _, template in pod_templates(rendered)}
        assert used == {priority["metadata"]["name"]}
        return priority["metadata"]["name"]

    assert name("gpu", "vgpu") == "gpu-vgpu"
    assert name("gpu", "a") == "gpu-a-vgpu"
    assert name("gpu", "vgpu", priorityClass={"name": "watchers"}) == "watchers"


def test_a_component_has_its_own_security_and_tolerations(sets):
    exporter = dict(pod_templates(sets["everything"]))["vgpu-gpus-exporter"]["spec"]
    plain = dict(pod_templates(sets["defaults"]))["vgpu-exporter"]["spec"]
    more = {"seLinuxOptions": {"type": "spc_t"}}
    assert exporter["securityContext"] == plain["securityContext"] | more
    (container,) = exporter["containers"]
    capabilities = container["securityContext"]["capabilities"]
    assert capabilities == {"drop": ["ALL"], "add": ["SYS_PTRACE", "DAC_READ_SEARCH"]}
    assert {"key": "slow", "operator": "Exists"} in exporter["tolerations"]
    for name, template in pod_templates(sets["everything"]):
        if name != "vgpu-gpus-exporter":
            assert "seLinuxOptions" not in template["spec"]["securityContext"]
            assert {"key": "slow", "operator": "Exists"} not in template["spec"].get(
                "tolerations", []
            )


@pytest.mark.parametrize("replicas", [0, 1, 2])
def test_a_budget_keeps_one_replica_where_there_are_two(chart, replicas):
    rendered = chart.rendered({"reconciler": {"replicas": replicas}})
    budgets = kinds(rendered, "PodDisruptionBudget")
    assert len(budgets) == (replicas > 1)
    for budget in budgets:
        (workload,) = kinds(rendered, "Deployment")
        assert budget["spec"]["selector"] == workload["spec"]["selector"]
        assert budget["spec"]["maxUnavailable"] == 1


# ---------------------------------------------------------------- the scheduler


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_scheduler_keeps_a_replica_where_there_are_two(chart, replicas):
    values = {"enabled": True, "allowAnonymous": True, "replicas": replicas}
    rendered = chart.rendered({"reconciler": {"kind": "None"}, "scheduler": values})
    (workload,) = kinds(rendered, "Deployment")
    assert workload["spec"]["replicas"] == replicas
    budgets = kinds(rendered, "PodDisruptionBudget")
    assert [budget["spec"]["selector"] for budget in budgets] == [workload["spec"]["selector"]] * (
        replicas - 1
    )


def test_the_scheduler_has_one_service_however_it_is_scraped(chart):
    for monitoring in ("None", "PodMonitor", "ServiceMonitor"):
        rendered = chart.rendered(
            {
                "monitoring": {"kind": monitoring},
                "scheduler": {
                    "enabled": True,
                    "tlsSecret": "tls",
                    "clientSans": ["kube-scheduler"],
                },
            }
        )
        services = {
            service["metadata"]["name"]: service["spec"] for service in kinds(rendered, "Service")
        }
        assert "clusterIP" not in services["vgpu-scheduler"]
        assert len(kinds(rendered, "Service")) == len(services)
        monitors = [
            monitor
            for monitor in kinds(rendered, "PodMonitor", "ServiceMonitor")
            if monitor["metadata"]["name"] == "vgpu-scheduler"
        ]
        for monitor in monitors:
            spec = monitor["spec"]
            (endpoint,) = spec.get("endpoints") or spec["podMetricsEndpoints"]
            assert endpoint["scheme"] == "https"
            assert endpoint["tlsConfig"]["keySecret"] == {"name": "tls", "key": "tls.key"}
            assert endpoint["port"] == services["vgpu-scheduler"]["ports"][0]["name"]
        assert len(monitors) == (monitoring != "None")


def test_kube_scheduler_is_let_through_where_only_some_may_scrape(chart, sets):
    def ingress(rendered):
        return next(
            policy["spec"]["ingress"]
            for policy in kinds(rendered, "NetworkPolicy")
            if policy["metadata"]["name"].endswith("-scheduler")
        )

    (named,) = ingress(sets["everything"])
    assert [next(iter(peer)) for peer in named["from"]] == ["namespaceSelector", "ipBlock"]
    values = {
        "scheduler": {"enabled": True, "allowAnonymous": True},
        "networkPolicy": {"enabled": True, "from": named["from"]},
    }
    (everybody,) = ingress(chart.rendered(values))
    assert "from" not in everybody


# ---------------------------------------------------------------- the token daemon


def test_the_token_daemon_has_no_policy_and_the_exporter_may_ask_it(chart):
    """Policies do not hold on the network of the node; that they are there would deceive."""

    def exporter(**values):
        rendered = chart.rendered(
            {"tokens": {"enabled": True}, "networkPolicy": {"enabled": True}} | values
        )
        policies = {
            policy["metadata"]["name"]: policy["spec"]
            for policy in kinds(rendered, "NetworkPolicy")
        }
        assert "vgpu-tokens" not in policies
        (args,) = (
            container["args"]
            for _, _, container in containers(rendered)
            if container["name"] == "exporter"
        )
        return "--collector.tokens" in args, policies["vgpu-exporter"].get("egress")

    assert exporter() == (True, [{"ports": [{"port": 9402, "protocol": "TCP"}]}])
    assert exporter(web={"configSecret": "web"}) == (False, None)
    assert exporter(tokens={"enabled": True, "nodeSelector": {"gpu": "shared"}}) == (False, None)


def test_the_exporter_has_what_a_protected_token_daemon_asks_for(chart):
    client = {"secret": "tokens-client", "serverName": "gpu.example.com", "username": "exporter"}
    values = {"tokens": {"enabled": True, "client": client}, "web": {"configSecret": "web"}}
    (pod,) = (
        each["spec"]["template"]["spec"]
        for each in kinds(chart.rendered(values), "DaemonSet")
        if each["metadata"]["name"] == "vgpu-exporter"
    )
    (container,) = pod["containers"]
    assert [flag for flag in container["args"] if "tokens" in flag] == [
        "--collector.tokens",
        "--tokens.url=https://[$(NODE_ADDRESS)]:9402/metrics",
        "--tokens.ca-file=/etc/vgpu-tokens/ca.crt",
        "--tokens.server-name=gpu.example.com",
        "--tokens.username=exporter",
        "--tokens.password-file=/etc/vgpu-tokens/password",
    ]
    assert {"name": "tokens", "secret": {"secretName": "tokens-client"}} in pod["volumes"]
    assert {"name": "tokens", "mountPath": "/etc/vgpu-tokens", "readOnly": True} in container[
        "volumeMounts"
    ]


def test_the_token_daemon_is_scraped_at_its_port_which_it_does_not_declare(chart):
    values = {"tokens": {"enabled": True}, "monitoring": {"kind": "ServiceMonitor"}}
    (service,) = (
        service
        for service in kinds(chart.rendered(values), "Service")
        if service["metadata"]["name"] == "vgpu-tokens"
    )
    assert service["spec"]["ports"] == [{"name": "tokens", "port": 9402, "targetPort": 9402}]


# ---------------------------------------------------------------- days for bills


def test_days_are_closed_with_no_right_but_to_ask_prometheus(sets):
    documents = [
        each
        for each in sets["everything"]
        if each["metadata"]["name"] == "vgpu-gpus-bill" and each["kind"] != "NetworkPolicy"
    ]
    assert {each["kind"] for each in documents} == {"ServiceAccount", "CronJob"}
    ((_, spec, container),) = containers(documents)
    assert spec["automountServiceAccountToken"] is False
    assert spec["volumes"][0] == {"name": "days", "persistentVolumeClaim": {"claimName": "days"}}
    params = parse(container["args"]).params
    assert (params["zone"].key, params["kube_labels"]) == ("Europe/Berlin", ("pool",))
    assert params["prometheus"] == "https://prometheus.example.com/thanos"
    (policy,) = (
        each["spec"]
        for each in kinds(sets["everything"], "NetworkPolicy")
        if each["metadata"]["name"] == "vgpu-gpus-bill"
    )
    assert "ingress" not in policy
    prometheus, names = policy["egress"]
    assert [port["port"] for port in prometheus["ports"]] == [9090, 443]
    assert [next(iter(peer)) for peer in prometheus["to"]] == ["namespaceSelector"]
    assert {port["port"] for port in names["ports"]} == {53, 5353}


def test_the_volume_of_closed_days_outlives_the_release(sets):
    (claim,) = kinds(sets["least"], "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert claim["spec"]["storageClassName"] == "fast"
    assert claim["spec"]["resources"] == {"requests": {"storage": "10Gi"}}
    (job,) = (
        each
        for each in kinds(sets["least"], "CronJob")
        if each["metadata"]["name"] == claim["metadata"]["name"]
    )
    (volume,) = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["volumes"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]


# ---------------------------------------------------------------- KubeShare's controllers


@pytest.mark.parametrize("replicas", [1, 2])
def test_kubeshares_controllers_keep_a_replica_where_there_are_two(chart, replicas):
    values = {"enabled": True, "controller": {"replicas": replicas}}
    rendered = chart.rendered({"reconciler": {"kind": "None"}, "kubeshare": values})
    (workload,) = kinds(rendered, "Deployment")
    budgets = kinds(rendered, "PodDisruptionBudget")
    assert [budget["spec"]["selector"] for budget in budgets] == [workload["spec"]["selector"]] * (
        replicas - 1
    )


def test_kubeshares_flags_are_what_the_values_say(chart, sets):
    def flags(rendered):
        return next(
            parse(container["args"]).params
            for _, _, container in containers(rendered)
            if container["name"] == "kubeshare-controller"
        )

    chosen = flags(sets["everything"])
    assert (chosen["placement"], chosen["pool_keep_idle"], chosen["pool_idle_ttl"]) == (
        "kubeshare-1",
        2,
        600.0,
    )
    assert chosen["holder_priority_class"] == "holders"
    assert chosen["holder_pull_secrets"] == ("registry",)
    plain = flags(chart.rendered({"kubeshare": {"enabled": True}}))
    assert (plain["pool_keep_idle"], plain["pool_idle_ttl"]) == (0, None)
    assert plain["holder_priority_class"] == "default-vgpu-holder"


def test_kubeshares_own_definition_is_left_to_the_cluster_on_request(chart, sets):
    (crd,) = kinds(sets["everything"], "CustomResourceDefinition")
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert "subresources" not in crd["spec"]["versions"][0]
    values = {"enabled": True, "crd": False}
    assert not kinds(chart.rendered({"kubeshare": values}), "CustomResourceDefinition")


# ---------------------------------------------------------------- folders of nodes


def host_paths(documents):
    return {
        volume["hostPath"]["path"]
        for _, template in pod_templates(documents)
        for volume in template["spec"].get("volumes", ())
        if "hostPath" in volume
    }


def test_folders_that_a_node_cannot_have_are_not_asked_for(sets):
    cannot = {"/usr/local/vgpu", "/tmp/vgpu", "/etc/gpu-manager/vm", "/kubeshare/scheduler/config"}
    everywhere = host_paths(sets["defaults"])
    assert cannot <= everywhere
    assert host_paths(sets["least"]) & cannot == set()
    assert host_paths(sets["least"])


def test_a_plugin_finds_its_folder_where_the_node_has_it(chart):
    """It names files there to the container runtime; the others find it where it always is."""
    values = {
        "paths": {"shims": "/var/lib/shims", "gpuManager": "/var/lib/gpu-manager"},
        "units": {"volcanoMemoryFactor": 1},
        "devicePlugin": {
            "schemes": {
                name: {"enabled": True, "nodeSelector": {"pool": name}}
                for name in ("volcano", "gaia")
            }
        },
    }
    rendered = list(containers(chart.rendered(values)))
    places = {
        (name, container["name"], mount["name"]): mount["mountPath"]
        for name, _, container in rendered
        for mount in container["volumeMounts"]
    }
    assert places["vgpu-device-plugin-volcano", "device-plugin", "shims"] == "/var/lib/shims"
    assert places["vgpu-device-plugin-volcano", "reconcile", "shims"] == "/usr/local/vgpu"
    assert places["vgpu-exporter", "exporter", "shims"] == "/usr/local/vgpu"
    gaia = places["vgpu-device-plugin-gaia", "device-plugin", "gpu-manager"]
    assert gaia == "/var/lib/gpu-manager"
    flags = {
        name: container["args"]
        for name, _, container in rendered
        if container["name"] == "device-plugin"
    }
    for args in flags.values():
        parse(args)
    assert "--volcano.shim-dir=/var/lib/shims" in flags["vgpu-device-plugin-volcano"]
    assert "--gaia.limits-dir=/var/lib/gpu-manager/vm" in flags["vgpu-device-plugin-gaia"]


# ---------------------------------------------------------------- the configuration


def test_the_configuration_has_the_values_of_the_chart(chart):
    values = {
        "every": "90s",
        "priority_ceiling": 1000000000,
        "evict_bare": True,
        "namespaces": ["a", "b"],
        "limits": {"per_owner": 0.25, "per_node": 0},
        "rules": {"refused": {"mode": False}, "recover": {"mode": "plan"}},
    }
    rendered = chart.rendered({"reconciler": {"config": values}})
    (text,) = (
        each["data"]["reconcile.yaml"]
        for each in kinds(rendered, "ConfigMap")
        if "reconcile.yaml" in each["data"]
    )
    settings = configuration(text, "values")
    policy = settings.policy
    assert settings.every == 90
    assert (policy.priority_ceiling, policy.evict_bare) == (10**9, True)
    assert (policy.namespaces, policy.limits.per_owner) == (("a", "b"), 0.25)
    assert policy.limits.per_node == 0
    assert [policy.mode(rule) for rule in (Rule.REFUSED, Rule.RECOVER)] == ["off", "plan"]


# ---------------------------------------------------------------- helm test


@each_set
def test_the_tests_of_the_chart_run_our_programs(chart, name):
    documents = chart.rendered(VALUES[name], tests=True)
    pods = {each["metadata"]["name"]: each for each in kinds(documents, "Pod")}
    assert len(pods) == {"nothing": 0}.get(name, 2)
    for pod in pods.values():
        assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
        assert pod["spec"]["restartPolicy"] == "Never"
        (container,) = pod["spec"]["containers"]
        parse(container["args"])
        assert "ports" not in container
        assert set(container["args"]) & {"--once", "report"}
