"""Objects of installed sharing systems, as the API server has them, for tests of the doctor."""

from tests.support import sample_cluster as sample

NOW = sample.NOW


def workload(
    kind,
    name,
    *containers,
    namespace="kube-system",
    desired=1,
    ready=None,
    account="",
    selector=None,
    config_maps=(),
    affinity=None,
):
    """A Deployment or DaemonSet; a container is (name, image, *command line)."""
    ready = desired if ready is None else ready
    spec = {
        "containers": [
            {"name": container, "image": image, "command": list(words[:1]), "args": list(words[1:])}
            for container, image, *words in containers
        ],
        "volumes": [{"name": "any", "emptyDir": {}}]
        + [{"name": each, "configMap": {"name": each}} for each in config_maps],
        **({"serviceAccountName": account} if account else {}),
        **({"nodeSelector": selector} if selector else {}),
        **({"affinity": affinity} if affinity else {}),
    }
    if kind == "DaemonSet":
        status, own = {"desiredNumberScheduled": desired, "numberReady": ready}, {}
    else:
        status, own = {"readyReplicas": ready}, {"replicas": desired}
    labels = {"app": name}
    return {
        "kind": kind,
        "apiVersion": "apps/v1",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            **own,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
        "status": status,
    }


def bare_pod(name, *containers, namespace="kube-system", ready=True, owner="", **labels):
    """A pod with these containers, as in :func:`workload`; ``owner`` is the kind of its owner."""
    template = workload("Deployment", name, *containers)["spec"]["template"]["spec"]
    reference = {"kind": owner, "name": owner, "uid": owner, "controller": True}
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": name,
            "labels": labels,
            "ownerReferences": [reference] if owner else [],
        },
        "spec": template,
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
        },
    }


def with_software(node, kubelet="v1.34.4", runtime="containerd://2.1.0", labels=None):
    """A node of the sample cluster with its software."""
    info = {"kubeletVersion": kubelet, "containerRuntimeVersion": runtime}
    meta = node["metadata"] | {"labels": labels or {}}
    return node | {"metadata": meta, "status": node["status"] | {"nodeInfo": info}}


def heartbeat(node, renewed=0.0, written=0.0):
    """The Lease of a node; both times are seconds after NOW."""
    return {
        "kind": "Lease",
        "apiVersion": "coordination.k8s.io/v1",
        "metadata": {
            "name": node,
            "namespace": "kube-node-lease",
            "managedFields": [{"manager": "kubelet", "time": sample.stamp(NOW + written)}],
        },
        "spec": {"renewTime": sample.stamp(NOW + renewed), "leaseDurationSeconds": 40},
    }


def hami_scheduler(*flags, **options):
    return workload(
        "Deployment",
        "hami-scheduler",
        ("kube-scheduler", "registry.k8s.io/kube-scheduler:v1.34.4", "kube-scheduler"),
        ("vgpu-scheduler-extender", "docker.io/projecthami/hami:v2.8.0", "scheduler", *flags),
        **options,
    )


def hami_plugin(version="v2.8.0", **options):
    image = f"mirror.example:5000/projecthami/hami:{version}"
    return workload(
        "DaemonSet",
        "hami-device-plugin",
        ("device-plugin", image, "nvidia-device-plugin", "--config-file=/device-config.yaml"),
        ("vgpu-monitor", image, "vGPUmonitor"),
        **options,
    )


def nvidia_plugin(**options):
    image = "nvcr.io/nvidia/k8s-device-plugin:v0.17.0"
    container = ("nvidia-device-plugin-ctr", image, "nvidia-device-plugin")
    return workload("DaemonSet", "nvidia-device-plugin-daemonset", container, **options)


def gke_plugin(kind_of_nodes, **options):
    image = (
        "gke.gcr.io/nvidia-gpu-device-plugin@sha256:6b25281cd0fa3ca55f3e837a18be4a14b44952105568"
    )
    container = ("nvidia-gpu-device-plugin", image, "/usr/bin/nvidia-gpu-device-plugin")
    name = f"nvidia-gpu-device-plugin-{kind_of_nodes}"
    return workload("DaemonSet", name, container, namespace="kube-system", **options)


def ours(kind, component, *words, namespace="vgpu-system", **options):
    container = (component, "registry.example/vgpu:0.1.0", "vgpu", *words)
    account = f"vgpu-{component}"
    return workload(
        kind, f"vgpu-{component}", container, namespace=namespace, account=account, **options
    )


def our_plugin(*words, scheme="volcano", **options):
    return ours(
        "DaemonSet", "device-plugin", "device-plugin", f"--scheme={scheme}", *words, **options
    )


def our_scheduler(*words, **options):
    return ours("Deployment", "scheduler", "scheduler", *words, **options)
