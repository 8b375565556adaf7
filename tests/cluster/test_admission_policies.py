"""The chart's admission policies in place of HAMi's webhook, evaluated by a real API server."""

import pytest

from tests.cluster.charting import install
from tests.cluster.kubesharing import labelled_pod
from tests.support.bed import objects
from tests.support.bed.client import Refused
from tests.support.bed.cluster import start_cluster
from tests.support.deploy_objects import kinds
from tests.support.waiting import wait_until

SERVES_MUTATING = {
    "kube-apiserver": [
        "--feature-gates=MutatingAdmissionPolicy=true",
        "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
    ]
}


def only(namespace):
    """The selector of one namespace: the API server is shared."""
    name = "kubernetes.io/metadata.name"
    return {"matchExpressions": [{"key": name, "operator": "In", "values": [namespace]}]}


def policies(chart, namespace, scheduler=(), **values):
    """The objects of the policies alone; ``scheduler`` are further values of the scheduler."""
    selected = {"namespaceSelector": only(namespace), **values}
    documents = {"scheduler": {"policies": selected, **dict(scheduler)}}
    rendered = chart.rendered(documents, release=namespace)
    names = ("Policy", "PolicyBinding")
    made = kinds(
        rendered,
        *(f"{kind}Admission{name}" for kind in ("Validating", "Mutating") for name in names),
    )
    return [each for each in made if "hami-pods" in each["metadata"]["name"]]


def a_pod(limits, *, init=None, privileged=False, env=(), labels=None, **spec):
    """A pod of one container; ``limits`` are names after ``nvidia.com/``."""

    def asked(names):
        return {f"nvidia.com/{name}": amount for name, amount in names.items()}

    pod = objects.pod("p", "", limits=asked(limits), **spec)
    (container,) = pod["spec"]["containers"]
    container["name"] = "main"
    container["env"] = list(env)
    if privileged:
        container["securityContext"] = {"privileged": True}
    if init is not None:
        limits = {"limits": asked(init)}
        pod["spec"]["initContainers"] = [{"name": "fetch", "image": "x", "resources": limits}]
    pod["metadata"]["labels"] = labels or {}
    return pod


class Admission:
    """Creates pods in a namespace with the policies, without storing them."""

    def __init__(self, client, namespace):
        self.client, self.namespace = client, namespace

    def admit(self, pod):
        """The pod as it would be stored, or why it is refused."""
        pod["metadata"]["namespace"] = self.namespace
        try:
            path = f"/api/v1/namespaces/{self.namespace}/pods"
            return self.client.raw("POST", path, pod, dryRun="All").json()
        except Refused as refused:
            return str(refused)

    def warnings(self, pod):
        """The warnings to who creates the pod, which is not refused."""
        pod["metadata"]["namespace"] = self.namespace
        path = f"/api/v1/namespaces/{self.namespace}/pods"
        answer = self.client.raw("POST", path, pod, dryRun="All")
        return ", ".join(answer.headers.getlist("warning"))


NUMBER = "add to resources.limits the line nvidia.com/gpu: 1"
CORES = "add to resources.limits the line nvidia.com/gpucores: 100"
REFUSED_BY_WEBHOOK = (
    (a_pod({"gpu": 1, "gpumem": 1024}, privileged=True), "container main is privileged"),
    (a_pod({}, init={"gpu": 1, "gpumem": 1}, privileged=True), "container main is privileged"),
    (a_pod({"gpu": 1, "gpumem": 1024}, nodeName="n1"), "remove the line nodeName"),
    (
        a_pod({"gpu": 1, "gpumem-percentage": 101}),
        "container main requests a percentage of memory outside 0 to 100",
    ),
    (
        a_pod({"gpu": 1, "gpumem": 7}, init={"gpu": 1, "gpumem-percentage": 400}),
        "container fetch requests a percentage",
    ),
)
REFUSED = (
    (
        a_pod({"gpumem": 1024}),
        f"container main requests a part of a GPU and no number of GPUs: {NUMBER}",
    ),
    (a_pod({"gpucores": 30}), NUMBER),
    (a_pod({"gpumem-percentage": 50}), NUMBER),
    (a_pod({"gpu": 1, "gpumem": 1}, init={"gpumem": 1}), "container fetch requests a part"),
    (a_pod({"gpu": 1}), f"container main requests all memory of its GPUs and no cores: {CORES}"),
    (a_pod({"gpu": 2, "gpumem-percentage": 100}), CORES),
    (
        a_pod({"gpu": 1, "gpumem": 1024, "priority": 1}),
        'add to env the line - {name: CUDA_TASK_PRIORITY, value: "1"}',
    ),
    *REFUSED_BY_WEBHOOK,
)
"""A pod, and the expected refusal."""

ENDS = (REFUSED[0], REFUSED[-1])
"""One of each policy."""

PRIORITY = {"name": "CUDA_TASK_PRIORITY", "value": "1"}
TAKEN = (
    a_pod({"gpu": 1, "gpumem": 1024, "priority": 1}, env=[PRIORITY]),
    a_pod({}, privileged=True, nodeName="n1"),
    a_pod({"gpu": 1, "gpumem": 1024}),
    a_pod({"gpu": 1, "gpumem-percentage": 50}),
    a_pod({"gpu": 1, "gpumem-percentage": 0}),
    a_pod({"gpu": 1, "gpucores": 100}),
    a_pod({"gpu": 0}),
    a_pod({"gpumem": 1024}, schedulerName="hami-scheduler"),
    a_pod({"gpumem": 1024}, labels={"hami.io/webhook": "ignore"}),
)


def test_a_pod_that_hamis_webhook_would_complete_is_refused_with_the_line_to_add(
    api, api_namespace, chart
):
    admission = Admission(api.client, api_namespace)
    made = install(api.client, policies(chart, api_namespace, validate=True))
    try:
        wait_until(
            lambda: all(text in str(admission.admit(pod)) for pod, text in ENDS),
            "the policies are in force",
        )
        for pod, text in REFUSED:
            assert text in str(admission.admit(pod)), text
        for pod in TAKEN:
            assert isinstance(admission.admit(pod), dict)
    finally:
        for each in made:
            api.client.delete(each)


def test_the_chart_warns_about_pods_that_hamis_webhook_refuses_and_denies_them_by_a_value(
    api, api_namespace, chart
):
    """Nothing is completed, and no line that is missing is a reason."""
    admission = Admission(api.client, api_namespace)
    enabled = {"enabled": True, "allowAnonymous": True}
    made = install(api.client, policies(chart, api_namespace, enabled))
    try:
        assert [each["kind"] for each in made] == [
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
        ]
        pod, text = REFUSED_BY_WEBHOOK[0]
        wait_until(lambda: text in admission.warnings(pod), "the policy is in force")
        for pod, text in REFUSED_BY_WEBHOOK:
            assert text in admission.warnings(pod), text
        for pod in (a_pod({"gpumem": 7}), a_pod({"gpu": 1}), *TAKEN):
            assert admission.warnings(pod) == ""
        install(api.client, policies(chart, api_namespace, enabled, refuse="deny"))
        pod, text = REFUSED_BY_WEBHOOK[0]
        wait_until(lambda: text in str(admission.admit(pod)), "it denies")
        for pod, text in REFUSED_BY_WEBHOOK:
            assert text in str(admission.admit(pod)), text
        for pod in (a_pod({"gpumem": 7}), a_pod({"gpu": 1}), *TAKEN):
            assert isinstance(admission.admit(pod), dict)
    finally:
        for each in made:
            api.client.delete(each)


def test_where_a_runtime_class_is_needed_it_is_asked_for(api, api_namespace, chart):
    admission = Admission(api.client, api_namespace)
    made = install(
        api.client, policies(chart, api_namespace, validate=True, runtimeClassName="nvidia")
    )
    api.client.apply(
        {
            "apiVersion": "node.k8s.io/v1",
            "kind": "RuntimeClass",
            "metadata": {"name": "nvidia"},
            "handler": "nvidia",
        }
    )
    try:
        good = {"gpu": 1, "gpumem": 1024}
        text = "add to spec the line runtimeClassName: nvidia"
        wait_until(lambda: text in str(admission.admit(a_pod(good))), "the policy is in force")
        assert isinstance(admission.admit(a_pod(good, runtimeClassName="nvidia")), dict)
    finally:
        for each in made:
            api.client.delete(each)


def test_the_type_check_of_kubernetes_finds_no_fault_with_the_expressions(control_plane, chart):
    """A controller makes it, and writes it into the policy's status."""
    client = control_plane.client
    made = install(client, policies(chart, "none", validate=True, runtimeClassName="nvidia"))
    checked = [each for each in made if each["kind"] == "ValidatingAdmissionPolicy"]

    def statuses():
        found = [client.get(each).get("status", {}) for each in checked]
        return found if all("typeChecking" in each for each in found) else None

    try:
        for status in wait_until(statuses, "the expressions were checked"):
            assert not status["typeChecking"].get("expressionWarnings")
    finally:
        for each in made:
            client.delete(each)


# ---------------------------------------------------------------- KubeShare 2's labels


def label_policies(chart, namespace, kind, **values):
    """The chart's policy for pods with KubeShare 2's labels, of one kind."""
    labels = {"enabled": True, "namespaceSelector": only(namespace), **values}
    rendered = chart.rendered({"kubeshare": {"enabled": True, "labels": labels}}, release=namespace)
    return [
        each
        for each in kinds(rendered, f"{kind}AdmissionPolicy", f"{kind}AdmissionPolicyBinding")
        if each["metadata"]["name"].endswith("-labels")
    ]


def mounting_library(pod, read_only):
    """The pod with the folder of KubeShare's library mounted, as its own documentation has it."""
    mount = {"name": "lib", "mountPath": "/kubeshare/library"}
    flag = {} if read_only is None else {"readOnly": read_only}
    pod["spec"]["containers"][0]["volumeMounts"] = [{**mount, **flag}]
    pod["spec"]["volumes"] = [{"name": "lib", "hostPath": {"path": "/kubeshare/library"}}]
    return pod


def test_a_pod_that_would_not_find_its_gpu_is_refused_with_what_to_add(api, api_namespace, chart):
    admission = Admission(api.client, api_namespace)
    made = install(api.client, label_policies(chart, api_namespace, "Validating"))
    blind = labelled_pod("p", "")
    blind["spec"]["containers"][0]["env"].pop()
    try:
        text = "container main would not find its GPU: add to env the variables"
        wait_until(lambda: text in str(admission.admit(blind)), "the policy is in force")
        assert "remove the line nodeName" in admission.admit(labelled_pod("p", "", nodeName="n1"))
        for read_only in (None, False, True):
            writer = mounting_library(labelled_pod("p", ""), read_only)
            answer = admission.admit(writer)
            assert ("container main could change the library" in str(answer)) is not read_only
        forged = labelled_pod("p", "", annotations={"sharedgpu/gpu_uuid": "GPU-of-another"})
        assert "written by KubeShare's controllers alone" in admission.admit(forged)
        pod = api.client.create(labelled_pod("real", api_namespace))
        for key in ("sharedgpu/gpu_manager_port", "vgpu.dev/virtual-gpu"):
            with pytest.raises(Refused, match="controllers alone"):
                api.client.patch(pod, {"metadata": {"annotations": {key: "50051"}}})
        api.client.patch(pod, {"metadata": {"annotations": {"mine": "yes"}}})
        api.client.delete(pod, grace_seconds=0)
        assert isinstance(admission.admit(labelled_pod("p", "")), dict)
        assert isinstance(
            admission.admit({**blind, "spec": {**blind["spec"], "schedulerName": "x"}}), dict
        )
    finally:
        for each in made:
            api.client.delete(each)


@pytest.fixture(scope="module")
def mutating(workplace, tools):
    """An API server that serves MutatingAdmissionPolicies, which Kubernetes 1.34 has off."""
    with start_cluster(
        workplace, tools, name="mutating", controllers=False, flags=SERVES_MUTATING
    ) as cluster:
        for document in (
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpus"}},
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": "default", "namespace": "gpus"},
            },
        ):
            cluster.client.apply(document)
        yield cluster


def test_a_pod_is_completed_as_hamis_webhook_does_and_then_not_refused(mutating, chart):
    admission = Admission(mutating.client, "gpus")
    runtime = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "nvidia"},
        "handler": "nvidia",
    }
    mutating.client.apply(runtime)
    install(
        mutating.client,
        policies(chart, "gpus", validate=True, mutate=True, runtimeClassName="nvidia"),
    )

    def completed(pod):
        """Limits and requests of the containers, init containers first, and the runtime class."""
        answer = admission.admit(pod)
        if isinstance(answer, str):
            return answer
        spec = answer["spec"]
        containers = [*spec.get("initContainers", ()), *spec["containers"]]
        resources = [each.get("resources", {}) for each in containers]
        for each in resources:
            assert each.get("limits") == each.get("requests")
        limits = [
            {
                name.removeprefix("nvidia.com/"): amount
                for name, amount in each.get("limits", {}).items()
            }
            for each in resources
        ]
        return limits, spec.get("runtimeClassName")

    def refused():
        return "is privileged" in completed(a_pod({"gpu": 1}, privileged=True))

    part = {"gpumem": "1k", "gpu": "1"}
    wait_until(
        lambda: completed(a_pod({"gpumem": 1000})) == ([part], "nvidia"),
        "the policy that completes is in force",
        context=lambda: str(completed(a_pod({"gpumem": 1000}))),
    )
    wait_until(refused, "the policy that refuses is in force")
    assert completed(a_pod({"gpu": 2})) == ([{"gpu": "2", "gpucores": "100"}], "nvidia")
    assert completed(a_pod({"gpucores": 30})) == ([{"gpu": "1", "gpucores": "30"}], "nvidia")
    half = {"gpu": "1", "gpumem-percentage": "50"}
    assert completed(a_pod({"gpu": 1, "gpumem-percentage": 50})) == ([half], "nvidia")
    whole = {"gpu": "1", "gpumem-percentage": "100", "gpucores": "100"}
    assert completed(a_pod({"gpumem-percentage": 100})) == ([whole], "nvidia")
    both = completed(a_pod({"gpu": 1, "gpumem": 7}, init={"gpumem": 3}))
    assert both == ([{"gpu": "1", "gpumem": "3"}, {"gpu": "1", "gpumem": "7"}], "nvidia")
    assert completed(a_pod({})) == ([{}], None)
    prioritized = a_pod({"gpu": 1, "gpumem": 7, "priority": 1}, env=[{"name": "A", "value": "b"}])
    (container,) = admission.admit(prioritized)["spec"]["containers"]
    assert container["env"] == [{"name": "A", "value": "b"}, PRIORITY]
    kept = a_pod({"gpu": 1, "gpumem": 7, "priority": 1}, env=[PRIORITY | {"value": "0"}])
    (container,) = admission.admit(kept)["spec"]["containers"]
    assert container["env"] == [PRIORITY | {"value": "0"}]


def test_a_pod_with_labels_is_completed_with_what_finds_its_gpu(mutating, chart):
    admission = Admission(mutating.client, "gpus")
    for kind in ("Mutating", "Validating"):
        install(mutating.client, label_policies(chart, "gpus", kind, mutate=True))
    pod = labelled_pod("p", "")
    wired = pod["spec"]["containers"][0]["env"]
    pod["spec"]["containers"][0]["env"] = [{"name": "A", "value": "b"}]

    def completed():
        """The spec, once the policy that completes is in force, and the other accepts it."""
        answer = admission.admit(pod)
        is_wired = isinstance(answer, dict) and len(answer["spec"]["containers"][0]["env"]) > 1
        return answer["spec"] if is_wired else None

    spec = wait_until(completed, "it is completed", context=lambda: str(admission.admit(pod)))
    (container,) = spec["containers"]
    env = {each["name"]: each for each in container["env"]}
    assert env["A"]["value"] == "b"
    for each in wired:
        found = env[each["name"]]["valueFrom"]["fieldRef"]["fieldPath"]
        assert found == each["valueFrom"]["fieldRef"]["fieldPath"]
    assert env["LD_PRELOAD"]["value"] == "/kubeshare/library/libgemhook.so.1"
    order = list(env)
    assert order.index("KUBESHARE_NAMESPACE") < order.index("POD_NAME")
    assert "kubeshare-lib" in {each["name"] for each in spec["volumes"]}
    library = {each["name"]: each for each in container["volumeMounts"]}["kubeshare-lib"]
    assert library["readOnly"] is True
