"""What the thief of a token may write, at a real API server with the chart's policies."""

import sys
from contextlib import ExitStack

import pytest
from click.testing import CliRunner

import kubeshare.main
from kubeshare.bodies import HolderOptions, holder_pod
from kubeshare.model import VirtualGpuName
from reconciler import session, state_store
from scheduler import presence
from scheduler.cluster.reservations import lease_name
from simulator.demo import demo
from simulator.node import SimulatedNode
from tests.cluster.accounts import HOME, RELEASE, account, manifest_refusal, refusal
from tests.cluster.extending import free_port, make_node, remove_nodes, request
from tests.cluster.kubesharing import CRD, share_pod
from tests.cluster.reconciling import make_default_account
from tests.support import nvml_fake
from tests.support.bed import crds, objects, product
from tests.support.bed.client import Refused
from tests.support.bed.processes import Daemon
from tests.support.environment import ROOT
from tests.support.nvml_fake import FakeDriver
from tests.support.waiting import wait_until
from vgpu.apiserver.client import ApiClient
from vgpu.program.node_token import NodeToken
from vgpu.program.written_keys import program_keys
from vgpu.schemes.registry import registry
from vgpucli.main import main

PLUGINS = ("device-plugin-volcano", "device-plugin-gpushare", "device-plugin-gaia")
OF_NODES = (*PLUGINS, "reconciler-node", "kubeshare-node")
OF_CLUSTER = ("reconciler", "scheduler", "kubeshare-controller")
HERE, THERE = "thief-1", "thief-2"


class Stage:
    """Two nodes with a pod each, and an account of each program, on the first node."""

    def __init__(self, api):
        self.api, self.client = api, api.client
        crds.load(self.client, CRD)
        for namespace in ("default", "kube-system"):
            make_default_account(self.client, namespace)
        for node in (HERE, THERE):
            make_node(api, node, {"nvidia.com/gpu": 1}, {})
            for namespace in ("default", "kube-system"):
                pod = objects.pod(f"on-{node}", namespace, nodeName=node)
                pod["spec"]["automountServiceAccountToken"] = False
                self.client.create(pod)
        sharepods = "/apis/kubeshare.nthu/v1/sharepods"
        wait_until(lambda: self.client.get(sharepods), "SharePods", failures=(Refused,))
        self.shared = self.client.create(share_pod("shared", "default"))
        self.thieves = {
            part: account(api, part, node=HERE if part in OF_NODES else "")
            for part in (*OF_NODES, *OF_CLUSTER)
        }

    def leave(self):
        """Nothing is left that other tests would place or count."""
        self.client.delete(self.shared)
        remove_nodes(self.api, (HERE, THERE))


def pod_path(part, node=HERE, below="/status"):
    """A pod of which the part may write the status at all: RBAC."""
    namespace = "kube-system" if part == "kubeshare-node" else "default"
    return f"/api/v1/namespaces/{namespace}/pods/on-{node}{below}"


@pytest.fixture(scope="module")
def stage(api):
    made = Stage(api)
    yield made
    made.leave()


def node_path(node=HERE, below="/status"):
    return f"/api/v1/nodes/{node}{below}"


def annotated(*keys):
    return {"metadata": {"annotations": {key.replace("*", "0"): "x" for key in keys}}}


def labelled(*keys):
    return {"metadata": {"labels": dict.fromkeys(keys, "x")}}


def writes(part, keys):
    """Everything that a program writes: paths and bodies."""
    pod, node = pod_path(part), node_path()
    shared = "/apis/kubeshare.nthu/v1/namespaces/default/sharepods/shared"
    yield pod, annotated(*keys.pods) | {"spec": {"activeDeadlineSeconds": 5}}
    yield pod, annotated(*keys.pods) | labelled(*keys.pod_labels)
    if keys.conditions:
        yield pod, {"status": {"conditions": [{"type": keys.conditions[0], "status": "False"}]}}
    if keys.nodes or keys.node_labels:
        yield node, annotated(*keys.nodes) | {"spec": {"unschedulable": True}}
        yield node, labelled(*keys.node_labels)
    if keys.resources:
        amounts = dict.fromkeys(keys.resources, "2")
        yield node, {"status": {"capacity": amounts, "allocatable": amounts}}
    if keys.sharepods:
        body = annotated(*keys.sharepods) | {"spec": {"nodeName": HERE}}
        yield shared, body | ({"status": {"BoundDeviceID": "x"}} if keys.sharepod_status else {})
    if keys.namespaces:
        yield "/api/v1/namespaces/default", annotated(*keys.namespaces)


def test_each_program_writes_its_own_keys(stage):
    table = program_keys(registry())
    for part, thief in stage.thieves.items():
        if part == "kubeshare-controller":
            part_keys = [table[part], table["kubeshare-controller-labels"]]
        else:
            part_keys = [table[part]]
        for keys in part_keys:
            for path, body in writes(part, keys):
                if part == "kubeshare-controller" and keys is table[part] and "/pods/" in path:
                    continue
                assert not refusal(thief, "PATCH", path, body), (part, path, body)


ANNOTATION, LABEL = "may not write the annotation", "may not write the label"
OWNERS, SPEC = "may not write finalizers or owners", "may not write the spec"
STATUS, OTHER_NODE = "in the status of", "objects of its own node alone"
NO_RIGHT = "cannot patch resource"
OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "00000000-0000-0000"}
PRIVILEGED = {"name": "x", "image": "x", "securityContext": {"privileged": True}}


def test_nobody_changes_what_runs_or_where(stage):
    for part, thief in stage.thieves.items():
        for body in (
            {"spec": {"containers": [{"name": "main", "image": "stolen"}]}},
            {"spec": {"containers": [{"name": "main", "command": ["stolen"]}]}},
        ):
            assert NO_RIGHT in refusal(thief, "PATCH", pod_path(part, below=""), body), part
        taints = {"spec": {"taints": [{"key": "stolen", "effect": "NoExecute"}]}}
        assert NO_RIGHT in refusal(thief, "PATCH", node_path(below=""), taints), part


def test_nobody_writes_what_is_not_theirs_through_status(stage):
    for part, thief in stage.thieves.items():
        pod = pod_path(part)
        for body, why in (
            (annotated("example.com/other"), ANNOTATION),
            (annotated("vgpu.dev/reconcile"), ANNOTATION),
            (labelled("app"), LABEL),
            ({"metadata": {"finalizers": ["example.com/held"]}}, OWNERS),
            ({"status": {"phase": "Failed"}}, STATUS),
            ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "may not write"),
        ):
            assert why in refusal(thief, "PATCH", pod, body), (part, body)


def test_nobody_writes_what_is_not_theirs_of_a_node(stage):
    writers = {"device-plugin-volcano", "device-plugin-gpushare", "device-plugin-gaia"}
    for part in (*writers, "reconciler", "scheduler", "kubeshare-node"):
        thief = stage.thieves[part]
        for body, why in (
            (annotated("example.com/other"), ANNOTATION),
            (labelled("node-role.kubernetes.io/control-plane"), LABEL),
            ({"metadata": {"finalizers": ["example.com/held"]}}, OWNERS),
            ({"metadata": {"ownerReferences": [OWNER]}}, OWNERS),
            ({"status": {"capacity": {"nvidia.com/gpu": "9"}}}, STATUS),
            ({"status": {"allocatable": {"cpu": "0"}}}, STATUS),
            ({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, STATUS),
        ):
            assert why in refusal(thief, "PATCH", node_path(), body), (part, body)


def test_the_claims_and_registers_of_another_system_are_not_theirs(stage):
    table = program_keys(registry())
    for part in PLUGINS:
        for other in PLUGINS:
            if other == part:
                continue
            pods = annotated(*table[other].pods)
            assert ANNOTATION in refusal(stage.thieves[part], "PATCH", pod_path(part), pods)
            if table[other].nodes:
                nodes = annotated(*table[other].nodes)
                assert ANNOTATION in refusal(stage.thieves[part], "PATCH", node_path(), nodes)


def test_the_account_of_a_node_writes_nothing_of_another_node(stage):
    table = program_keys(registry())
    for part in OF_NODES:
        thief, keys = stage.thieves[part], table[part]
        body = annotated(*keys.pods[:1])
        assert OTHER_NODE in refusal(thief, "PATCH", pod_path(part, THERE), body), part
        if keys.nodes:  # the register of another node
            body = annotated(*keys.nodes)
            assert OTHER_NODE in refusal(thief, "PATCH", node_path(THERE), body), part


def test_a_token_that_names_no_node_is_refused_with_the_key_and_the_value(stage):
    unbound = account(stage.api, "device-plugin-volcano")
    path = pod_path("device-plugin-volcano")
    keys = program_keys(registry())["device-plugin-volcano"]
    why = refusal(unbound, "PATCH", path, annotated(*keys.pods))
    assert "authentication.kubernetes.io/node-name" in why
    assert "accountPolicy.ownNode: false" in why


def test_a_namespace_and_a_sharepod_are_theirs_only_in_their_keys(stage):
    reconciler, controller = (
        stage.thieves[part] for part in ("reconciler", "kubeshare-controller")
    )
    namespace = "/api/v1/namespaces/default"
    escaped = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "privileged"}}}
    assert LABEL in refusal(reconciler, "PATCH", namespace, escaped)
    assert ANNOTATION in refusal(reconciler, "PATCH", namespace, annotated("example.com/other"))
    shared = "/apis/kubeshare.nthu/v1/namespaces/default/sharepods/shared"
    for thief in (reconciler, controller):
        stolen = {"spec": {"containers": [PRIVILEGED]}}
        assert SPEC in refusal(thief, "PATCH", shared, stolen)
        assert ANNOTATION in refusal(thief, "PATCH", shared, annotated("kubeshare/gpu_mem"))
        assert LABEL in refusal(thief, "PATCH", shared, labelled("app"))


def test_nobody_reads_a_secret_runs_a_command_or_takes_another_lease(stage):
    lease = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/x"
    for part, thief in stage.thieves.items():
        for method, path in (
            ("GET", "/api/v1/namespaces/default/secrets/x"),
            ("GET", "/api/v1/namespaces/kube-system/secrets"),
            ("POST", pod_path(part, below="/exec")),
            ("POST", "/api/v1/namespaces/default/serviceaccounts/default/token"),
            ("PUT", lease),
            ("PUT", pod_path(part)),
            ("PUT", pod_path(part, below="")),
            ("PATCH", pod_path(part, below="/ephemeralcontainers")),
            ("PATCH", pod_path(part, below="/resize")),
            ("PUT", node_path()),
            ("GET", node_path(below="/proxy/pods")),
            ("POST", "/api/v1/namespaces/default/bindings"),
        ):
            assert "403" in refusal(thief, method, path, None if method == "GET" else {}), (
                part,
                path,
            )


def named(kind, name, namespace):
    """A new object of ours alone, or one that is not: its path and its body."""
    group = "v1" if kind == "ConfigMap" else "coordination.k8s.io/v1"
    root = "/api/v1" if kind == "ConfigMap" else f"/apis/{group}"
    body = {"apiVersion": group, "kind": kind, "metadata": {"name": name}}
    return f"{root}/namespaces/{namespace}/{kind.lower()}s", body


def test_leases_and_config_maps_are_theirs_only_by_their_names(stage):
    """The Lease of kube-controller-manager is in the namespace of the scheduler's Leases."""
    for part, kind, namespace, own, others in (
        ("scheduler", "Lease", "kube-system", f"vgpu-node-{HERE}", "kube-controller-manager"),
        ("scheduler", "Lease", "kube-system", "vgpu-scheduler", "vgpu-reconciler"),
        ("reconciler", "Lease", HOME, "vgpu-reconciler", "vgpu-scheduler"),
        ("reconciler", "ConfigMap", HOME, "vgpu-reconcile-state", "grafana-dashboards"),
        ("kubeshare-controller", "Lease", HOME, "vgpu-kubeshare-controller", "vgpu-reconciler"),
        ("device-plugin-gpushare", "ConfigMap", "kube-system", f"unhealthy-gpu-{HERE}", "coredns"),
    ):
        thief = stage.thieves[part]
        assert not refusal(thief, "POST", *named(kind, own, namespace)), (part, own)
        why = refusal(thief, "POST", *named(kind, others, namespace))
        assert f"may not write {others} among the {kind.lower()}s of {namespace}" in why
    path, body = named("Lease", "kube-controller-manager", "kube-system")
    lease = stage.client.create(
        body | {"metadata": body["metadata"] | {"namespace": "kube-system"}}
    )
    why = refusal(stage.thieves["scheduler"], "PUT", f"{path}/kube-controller-manager", lease)
    stage.client.delete(lease)
    assert "may not write kube-controller-manager" in why
    plugin = stage.thieves["device-plugin-gpushare"]
    for name in (f"unhealthy-gpu-{THERE}", f"unhealthy-gpu-x-{HERE}"):
        assert OTHER_NODE in refusal(plugin, "POST", *named("ConfigMap", name, "kube-system"))


def test_the_names_in_the_policy_are_those_of_the_programs():
    table = program_keys(registry())
    reconciler, scheduler = table["reconciler"], table["scheduler"]
    assert reconciler.configmaps == (state_store.CONFIG_MAP,)
    assert reconciler.leases == (session.LEASE,)
    assert scheduler.leases == (lease_name("*"), presence.LEASE)
    assert table["kubeshare-controller"].leases == (kubeshare.main.LEASE,)


def pods_of(namespace):
    return f"/api/v1/namespaces/{namespace}/pods"


def holder(**spec):
    """A holder pod as the controllers create it; ``spec`` are fields over it, of its container with
    ``main``.
    """
    main = spec.pop("main", {})
    pod = holder_pod(VirtualGpuName(HERE, "zxcvb"), HolderOptions(product.REFERENCE))
    pod["spec"] |= spec
    pod["spec"]["containers"][0] |= main
    return pod


def held(**about):
    """A holder pod with other metadata."""
    pod = holder()
    labels = pod["metadata"]["labels"] | about.pop("labels", {})
    pod["metadata"] |= {"labels": labels, **about}
    return pod


SECRET = {"name": "s", "secret": {"secretName": "s"}}
HOLDERS = (
    ("volumes", holder(volumes=[SECRET])),
    ("volumes", holder(volumes=[{"name": "root", "hostPath": {"path": "/"}}])),
    ("hostNetwork", holder(hostNetwork=True)),
    ("initContainers", holder(initContainers=[PRIVILEGED])),
    ("nodeName", holder(nodeName=HERE)),
    ("serviceAccountName", holder(serviceAccountName="stolen")),
    ("automountServiceAccountToken", holder(automountServiceAccountToken=True)),
    ("securityContext", holder(securityContext={"runAsUser": 0})),
    ("image", holder(main={"image": "stolen"})),
    ("args", holder(main={"args": ["exporter"]})),
    ("command", holder(main={"command": ["sh"]})),
    ("envFrom", holder(main={"envFrom": [{"secretRef": {"name": "s"}}]})),
    ("env", holder(main={"env": [{"name": "A", "value": "x"}]})),
    ("securityContext", holder(main={"securityContext": {"privileged": True}})),
    ("lifecycle", holder(main={"lifecycle": {"postStart": {"exec": {"command": ["sh"]}}}})),
    ("priorityClassName", holder(priorityClassName="system-node-critical")),
    ("shareProcessNamespace", holder(shareProcessNamespace=True)),
    ("hostAliases", holder(hostAliases=[{"ip": "192.0.2.1", "hostnames": ["api"]}])),
    ("dnsConfig", holder(dnsConfig={"nameservers": ["192.0.2.1"]})),
    ("schedulingGates", holder(schedulingGates=[{"name": "example.com/gate"}])),
    ("terminationGracePeriodSeconds", holder(terminationGracePeriodSeconds=3600)),
    ("affinity", holder(affinity={"podAntiAffinity": {}})),
    ("stdin", holder(main={"stdin": True})),
    ("workingDir", holder(main={"workingDir": "/"})),
    ("resources", holder(main={"resources": {"limits": {"nvidia.com/gpu": "8"}}})),
    ("finalizers", held(finalizers=["example.com/held"])),
    ("the label k8s-app", held(labels={"k8s-app": "kube-dns"})),
    ("the label app.kubernetes.io/name", held(labels={"app.kubernetes.io/name": "coredns"})),
)
"""What differs from a holder pod, and the pod."""


def test_a_holder_pod_has_one_shape(stage):
    thief = stage.thieves["kubeshare-controller"]
    for namespace, name in (("kube-system", "default"), ("kube-system", "stolen")):
        about = {"name": name, "namespace": namespace}
        stage.client.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about})
    priority = f"{HOME}-{RELEASE}-holder"
    about = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1}
    stage.client.apply(about | {"metadata": {"name": priority}})
    options = HolderOptions(product.REFERENCE, priority, ("pull",), may_stay=True)
    for pod in (holder(), holder_pod(VirtualGpuName(HERE, "zxcvb"), options)):
        assert not refusal(thief, "POST", pods_of("kube-system"), pod)
    for what, pod in HOLDERS:
        why = refusal(thief, "POST", pods_of("kube-system"), pod)
        assert what in why.partition("it differs in ")[2], (what, why)


def owned(namespace="default", **spec):
    """A pod that claims to belong to a SharePod; ``spec`` as of :func:`holder`."""
    main = spec.pop("main", {})
    pod = objects.pod("mine", namespace, nodeName=HERE, **spec)
    pod["spec"]["containers"][0] |= main
    owner = {"apiVersion": "kubeshare.nthu/v1", "kind": "SharePod", "name": "mine", "uid": "u"}
    pod["metadata"]["ownerReferences"] = [owner | {"controller": True}]
    return pod


LIBRARY_VOLUME = {"name": "kubeshare-lib", "hostPath": {"path": "/kubeshare/library"}}
MOUNT = {"name": "kubeshare-lib", "mountPath": "/kubeshare/library"}
TOKEN = {"serviceAccountToken": {"audience": "vault", "path": "t"}}
OWNED = (
    ("privileged", owned(main={"securityContext": {"privileged": True}})),
    ("privileged", owned(initContainers=[PRIVILEGED])),
    ("capabilities", owned(main={"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}})),
    ("hostNamespaces", owned(hostPID=True)),
    ("hostPath", owned(volumes=[{"name": "root", "hostPath": {"path": "/"}}])),
    ("hostPath", owned(volumes=[LIBRARY_VOLUME], main={"volumeMounts": [MOUNT]})),
    ("serviceAccountName", owned(serviceAccountName="stolen")),
    ("tokenAudience", owned(volumes=[{"name": "t", "projected": {"sources": [TOKEN]}}])),
)
"""The field that a SharePod may not have, and its pod."""


def test_a_pod_of_a_sharepod_has_no_more_rights_than_a_plain_pod(stage):
    thief = stage.thieves["kubeshare-controller"]
    about = {"name": "stolen", "namespace": "default"}
    stage.client.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": about})
    mounted = {"volumeMounts": [MOUNT | {"readOnly": True}]}
    for pod in (owned(), owned(volumes=[LIBRARY_VOLUME], main=mounted)):
        assert not refusal(thief, "POST", pods_of("default"), pod)
    for what, pod in OWNED:
        why = refusal(thief, "POST", pods_of("default"), pod)
        assert f"a SharePod may not have {what} in the namespace default" in why, (what, why)
    for namespace in ("kube-system", HOME):
        make_default_account(stage.client, namespace)
        why = refusal(thief, "POST", pods_of(namespace), owned(namespace))
        assert "no pod of a SharePod is created in the namespace" in why


def test_the_policy_of_the_manifests_refuses_what_is_not_theirs(stage):
    user = f"system:serviceaccount:{HOME}:vgpu-reconciler"
    pod = pod_path("reconciler")
    assert not manifest_refusal(stage.api, user, pod, annotated("hami.io/vgpu-node"))
    assert ANNOTATION in manifest_refusal(stage.api, user, pod, annotated("example.com/other"))
    deadline = {"spec": {"activeDeadlineSeconds": 5}}
    assert SPEC in manifest_refusal(stage.api, user, pod_path("reconciler", below=""), deadline)
    plugin = f"system:serviceaccount:{HOME}:vgpu-device-plugin-volcano"
    why = manifest_refusal(stage.api, plugin, pod, annotated("hami.io/vgpu-node"))
    assert "names no node (authentication.kubernetes.io/node-name)" in why


def test_a_person_who_sets_a_resource_of_a_node_by_hand_is_not_limited(stage):
    """`vgpu node-resource` is a command for people: no account of ours may write what it writes."""
    rule = {"apiGroups": [""], "verbs": ["get", "patch"]}
    person = stage.api.client_for({**rule, "resources": ["nodes", "nodes/status"]})
    words = ["node-resource", "set", HERE, "example.com/fpga=4", "--dry-run", "--kubeconfig"]
    ran = CliRunner().invoke(main, [*words, str(person.kubeconfig)])
    assert ran.exit_code == 0, ran.output
    body = {"status": {"capacity": {"example.com/fpga": "4"}}}
    assert not refusal(person, "PATCH", node_path(), body)
    for part in ("device-plugin-gpushare", "scheduler", "reconciler"):
        assert STATUS in refusal(stage.thieves[part], "PATCH", node_path(), body)


@pytest.mark.parametrize("is_bound", [True, False])
def test_a_program_learns_from_the_api_server_which_node_its_token_names(stage, is_bound):
    client = account(stage.api, "kubeshare-node", node=HERE if is_bound else "")
    with ApiClient.connect(str(client.kubeconfig)) as api:
        problem = NodeToken(api, HERE, is_required=True).complaint()
        other = NodeToken(api, THERE, is_required=True).complaint()
    assert bool(problem) is not is_bound
    assert ("names node" if is_bound else "names no node") in other


def programs(folder):
    """The program of each DaemonSet that writes, and the part of the chart with its account."""
    name = f"--node-name={HERE}"
    sim = SimulatedNode(demo(), folder / "node")
    sim.write(0)
    kubelet = folder / "kubelet"
    kubelet.mkdir()
    state = [f"--state-dir={folder}", f"--kubelet.dir={kubelet}", f"--cdi.spec-dir={folder}"]
    paths = [f"--path.procfs={sim.paths.procfs}", f"--path.cgroupfs={sim.paths.cgroupfs}"]
    node = ["reconcile", "run", "--scope=node", "--no-collector.nvml", *paths]
    files = [f"--kubeshare-dir={folder}/gemini", f"--library-dir={folder}/library"]
    return {
        "device-plugin-gpushare": ["device-plugin", "--scheme=gpushare", name, *state],
        "reconciler-node": [*node, name],
        "kubeshare-node": ["kubeshare", "node", name, *files],
    }


def test_no_program_of_a_node_is_ready_with_a_token_that_names_no_node(stage, tmp_path):
    driver = FakeDriver(tmp_path)
    driver.write([nvml_fake.Device("GPU-" + "0" * 8, "T4", total=2**34)])
    started = []
    with ExitStack() as stack:
        for part, words in programs(tmp_path).items():
            port = free_port()
            command = [
                *(sys.executable, "-m", "vgpu", *words, "--require-node-token"),
                f"--kubeconfig={account(stage.api, part).kubeconfig}",
                f"--web.listen-address=127.0.0.1:{port}",
            ]
            log = tmp_path / f"{part}.log"
            daemon = Daemon(part, command, log, env=driver.env(), cwd=ROOT)
            started.append((stack.enter_context(daemon), port, log))
        for daemon, port, log in started:

            def refused(port=port):
                text = request(port, "/-/ready")[1].decode()
                return text if "authentication.kubernetes.io/node-name" in text else ""

            text = daemon.wait_until(refused, "names the key", failures=(OSError,))
            assert "accountPolicy.ownNode: false" in text
            assert request(port, "/-/ready")[0] == 503
            assert "vgpu_node_token_valid 0" in request(port, "/metrics")[1].decode()
            assert "authentication.kubernetes.io/node-name" in log.read_text()
