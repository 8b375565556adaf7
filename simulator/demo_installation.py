"""What is installed in the cluster of ``make demo``: components of the systems, with mistakes.

HAMi's scheduler was upgraded and its device plugin was not; kube-scheduler's configuration ignores
an extender that is away; gpu-admission is missing; the node that is not ready has no plugin.
"""

from typing import Any, Final

from simulator.store import Json

_SYSTEM: Final = "kube-system"

_CONFIG: Final = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
percentageOfNodesToScore: 100
extenders:
  - urlPrefix: http://127.0.0.1:32766/gpushare-scheduler
    filterVerb: filter
    bindVerb: bind
    nodeCacheCapable: true
    ignorable: true
    managedResources:
      - name: aliyun.com/gpu-mem
"""


def _workload(
    kind: str, name: str, *containers: tuple[str, str, list[str]], desired: int = 1, ready: int = 1
) -> Json:
    """A workload; a container is its name, image and command line."""
    spec: Json = {
        "containers": [
            {"name": container, "image": image, "command": words}
            for container, image, words in containers
        ]
    }
    is_daemon = kind == "DaemonSet"
    counts: dict[str, Any] = {"desiredNumberScheduled": desired, "numberReady": ready}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": _SYSTEM},
        "spec": {**({} if is_daemon else {"replicas": desired}), "template": {"spec": spec}},
        "status": counts if is_daemon else {"readyReplicas": ready},
    }


def _with_config(workload: Json, name: str) -> Json:
    workload["spec"]["template"]["spec"]["volumes"] = [
        {"name": "config", "configMap": {"name": name}}
    ]
    return workload


def demo_installation() -> tuple[Json, ...]:
    """The objects."""
    hami = "docker.io/projecthami/hami"
    acs = "registry.cn-hangzhou.aliyuncs.com/acs"
    volcano = "docker.io/volcanosh/vc-scheduler:v1.14.1"
    vgpu_plugin = "docker.io/projecthami/volcano-vgpu-device-plugin:v1.12.0"
    kube_scheduler = (
        "kube-scheduler",
        "registry.k8s.io/kube-scheduler:v1.34.4",
        ["kube-scheduler"],
    )
    return (
        _workload(
            "DaemonSet",
            "hami-device-plugin",
            ("device-plugin", f"{hami}:v2.6.1", ["nvidia-device-plugin"]),
            ("vgpu-monitor", f"{hami}:v2.6.1", ["vGPUmonitor"]),
            desired=2,
            ready=2,
        ),
        _workload(
            "Deployment",
            "hami-scheduler",
            kube_scheduler,
            ("vgpu-scheduler-extender", f"{hami}:v2.8.0", ["scheduler"]),
        ),
        _workload(
            "DaemonSet",
            "gpushare-device-plugin-ds",
            (
                "gpushare",
                f"{acs}/k8s-gpushare-plugin:v2-1.11-aff8a23",
                ["gpushare-device-plugin-v2", "-logtostderr", "--memory-unit=GiB"],
            ),
            desired=2,
        ),
        _with_config(
            _workload(
                "Deployment",
                "gpushare-schd-extender",
                kube_scheduler,
                ("extender", f"{acs}/k8s-gpushare-schd-extender:1.11-d170d8a", []),
            ),
            "gpushare-scheduler-config",
        ),
        _workload(
            "DaemonSet",
            "gpu-manager-daemonset",
            ("gpu-manager", "docker.io/tkestack/gpu-manager:v1.1.5", []),
            desired=2,
            ready=2,
        ),
        _workload(
            "DaemonSet",
            "volcano-device-plugin",
            ("volcano-device-plugin", vgpu_plugin, ["/plugin", "--gpu-memory-factor=1024"]),
            desired=2,
            ready=2,
        ),
        _workload("Deployment", "volcano-scheduler", ("scheduler", volcano, ["/vc-scheduler"])),
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "gpushare-scheduler-config", "namespace": _SYSTEM},
            "data": {"kube-scheduler.yaml": _CONFIG},
        },
    )
