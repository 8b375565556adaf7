"""The alerts of KubeShare's controllers, one of which leads, and of their node component."""

from typing import Final

from grafana.promql import Alert, AlertSeverity, RuleGroup, failed_part
from grafana.settings import (
    ABSENT_REMEMBERED,
    API_ERROR_RATIO,
    API_ERRORS,
    KUBESHARE,
    KUBESHARE_CONTROLLERS,
    STEP_ERROR_RATIO,
)
from grafana.templates import COUNT, RATIO, THE_NODE
from kubeshare.metrics import SharePodState, StepOutcome, VirtualGpuPhase

CRITICAL, WARNING, INFO = AlertSeverity.CRITICAL, AlertSeverity.WARNING, AlertSeverity.INFO

OF_CLUSTER: Final = "cluster, job"
"""Labels of what each replica of a cluster knows alike."""

STEPS: Final = "vgpu_kubeshare_steps_total"
_ERRORS: Final = f'{{result="{StepOutcome.ERROR}"}}'


def _gpus(phase: VirtualGpuPhase) -> str:
    """The virtual GPUs of each node in this state."""
    return f'max by ({OF_CLUSTER}, node) (vgpu_kubeshare_virtual_gpus{{state="{phase}"}})'


def _steps(which: str = "") -> str:
    return f"sum without (result) (rate({STEPS}{which}[15m]))"


def _api(counter: str) -> str:
    return f"{failed_part(counter, API_ERRORS)} > {API_ERROR_RATIO}"


KUBESHARE_CONTROL: Final = RuleGroup(
    "vgpu-kubeshare",
    (
        Alert(
            "VgpuKubeShareDown",
            WARNING,
            f"up{{{KUBESHARE}}} == 0",
            "10m",
            f"{{{{ $labels.job }}}} {THE_NODE} cannot be scraped",
            "Without controllers no SharePod starts; without the node component none starts on its"
            " node. First: check whether its pod runs, and read the end of its log.",
        ),
        Alert(
            "VgpuKubeShareControllersAbsent",
            WARNING,
            f"last_over_time(cluster:vgpu_kubeshare_controllers:count[{ABSENT_REMEMBERED}])"
            f" unless on (cluster) up{{{KUBESHARE_CONTROLLERS}}}",
            "15m",
            "Prometheus scrapes no controller of KubeShare",
            f"{COUNT} ran within the last week. First: look for the Deployment, and for the scrape"
            " job and its ServiceMonitor or PodMonitor.",
        ),
        Alert(
            "VgpuKubeShareNoLeader",
            CRITICAL,
            f"max by ({OF_CLUSTER}) (vgpu_kubeshare_leader) == 0",
            "5m",
            "No controller of KubeShare is the leader: no SharePod starts",
            "All of {{ $labels.job }} wait. First: kubectl get lease vgpu-kubeshare-controller"
            " -o yaml shows the holder; the log has the reason.",
        ),
        Alert(
            "VgpuKubeShareNotReady",
            WARNING,
            "vgpu_kubeshare_ready == 0 or vgpu_kubeshare_node_ready == 0",
            "10m",
            f"{{{{ $labels.job }}}} {THE_NODE} is not ready",
            "It has not read the cluster, events do not arrive, or a part of its work fails. First:"
            " its log has the reason; look for a missing permission.",
        ),
        Alert(
            "VgpuKubeShareNodeSilent",
            WARNING,
            f"max by ({OF_CLUSTER}, node) (vgpu_kubeshare_node_connected) == 0",
            "10m",
            "The node component of {{ $labels.node }} does not report GPUs",
            "SharePods wait there. First: check whether the pod of the DaemonSet runs on the node,"
            " and read its log.",
        ),
        Alert(
            "VgpuKubeShareGpuConflict",
            WARNING,
            f"{_gpus(VirtualGpuPhase.CONFLICT)} > 0",
            "10m",
            "Pods of SharePods on {{ $labels.node }} use another GPU than is held for them",
            f"{COUNT} virtual GPUs: the holder pod was lost, and another pod may have got the GPU."
            " Their pods are evicted; a disruption budget may forbid it. First: kubectl get events"
            " --field-selector reason=GpuChanged.",
        ),
        Alert(
            "VgpuKubeShareHolderPending",
            WARNING,
            f"{_gpus(VirtualGpuPhase.PENDING)} > 0",
            "15m",
            "Virtual GPUs on {{ $labels.node }} get no GPU",
            f"{COUNT} of them, and their SharePods wait. First: kubectl -n kube-system describe pod"
            " of the holder pod (label kubeshare/role=dummyPod).",
        ),
        Alert(
            "VgpuKubeShareStepsFail",
            WARNING,
            f"{_steps(_ERRORS)} / {_steps()} > {STEP_ERROR_RATIO}",
            "15m",
            f"Writes of KubeShare's controllers {THE_NODE} fail: {{{{ $labels.step }}}}",
            f"{RATIO} of these writes. First: the log has each error; kubectl get events"
            " --field-selector reason=FailedCreate has those of pods.",
        ),
        Alert(
            "VgpuKubeShareApiErrors",
            WARNING,
            f"{_api('vgpu_kubeshare_api_requests_total')}"
            f" or {_api('vgpu_kubeshare_node_api_requests_total')}",
            "15m",
            f"Requests of {{{{ $labels.job }}}} {THE_NODE} fail",
            f"{RATIO} of its requests to the API server. First: by code: 0 is the network, 401 and"
            " 403 are rights, 5xx the API server itself.",
        ),
        Alert(
            "VgpuSharePodsWait",
            INFO,
            f"max by ({OF_CLUSTER})"
            f' (vgpu_kubeshare_sharepods{{state="{SharePodState.WAITING}"}}) > 0',
            "1h",
            "SharePods wait for a node",
            f"For an hour no node has taken {COUNT} SharePods. First: kubectl get events"
            " --field-selector reason=FailedScheduling shows what is missing.",
        ),
    ),
)
