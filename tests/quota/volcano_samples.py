"""Objects of Volcano as the API server has them: queues, PodGroups, pods, the scheduler."""

from tests.support import sample_cluster as sample
from tests.support.installed import workload

VERSION = "scheduling.volcano.sh/v1beta1"
NUMBER, MEMORY = "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory"
PERCENTAGE = "volcano.sh/vgpu-memory-percentage"
GROUP = "scheduling.k8s.io/group-name"


def queue(name, parent="", *, state="Open", capability=None, allocated=None, **spec):
    """A Queue; ``guarantee`` is its amounts."""
    if "guarantee" in spec:
        spec["guarantee"] = {"resource": spec["guarantee"]}
    return {
        "kind": "Queue",
        "apiVersion": VERSION,
        "metadata": {"name": name},
        "spec": {"capability": capability or {}, **({"parent": parent} if parent else {}), **spec},
        "status": {"state": state, "allocated": allocated or {}},
    }


def group(name, queue_name, phase="Pending", message="", least=1, **requests):
    """A PodGroup; ``requests`` are its minResources: number and memory."""
    names = {"number": NUMBER, "memory": MEMORY}
    conditions = [{"type": "Unschedulable", "status": "True", "message": message}]
    wanted = {names[each]: str(amount) for each, amount in requests.items()}
    return {
        "kind": "PodGroup",
        "apiVersion": VERSION,
        "metadata": {"name": name, "namespace": "ml"},
        "spec": {
            "minMember": least,
            "queue": queue_name,
            **({"minResources": wanted} if wanted else {}),
        },
        "status": {"phase": phase, "conditions": conditions if message else None},
    }


def held(name, group_name, gpus, memory, limits=None):
    """A running pod that holds ``memory`` of each of these GPUs; it requests it once."""
    made = sample.volcano_pod(name, "gpu-1", gpus[0], memory)
    devices = "".join(f"{sample.uuid(gpu)},NVIDIA,{memory},0:" for gpu in gpus)
    made["metadata"]["annotations"] |= {"volcano.sh/vgpu-ids-new": devices, GROUP: group_name}
    limits = limits or sample.volcano_limits(memory, number=len(gpus))
    quantities = {each: str(amount) for each, amount in limits.items()}
    made["spec"]["containers"][0]["resources"]["limits"] = quantities
    return made


def waiting(name, group_name, limits):
    """A pod that no scheduler has tried to place."""
    return sample.pod(name, "", limits, {GROUP: group_name})


def scheduler(version="v1.14.1", *plugins, hierarchy=False):
    """Volcano's Deployment with its ConfigMap."""
    lines = [f"  - name: {name}\n" for name in plugins]
    if hierarchy:
        lines = [line + "    enableHierarchy: true\n" for line in lines]
    lines.append("  - {name: deviceshare, arguments: {deviceshare.VGPUEnable: true}}\n")
    text = 'actions: "enqueue, allocate"\ntiers:\n- plugins:\n' + "".join(lines)
    deployment = workload(
        "Deployment",
        "volcano-scheduler",
        ("scheduler", f"docker.io/volcanosh/vc-scheduler:{version}", "/vc-scheduler"),
        namespace="volcano-system",
        config_maps=("volcano-scheduler-configmap",),
    )
    config = {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": "volcano-scheduler-configmap", "namespace": "volcano-system"},
        "data": {"volcano-scheduler.conf": text},
    }
    return deployment, config
