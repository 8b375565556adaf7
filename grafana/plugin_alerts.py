"""The alerts of the device plugin, of which a node has one for each sharing system."""

from typing import Final

from deviceplugin.apiserver.writes import WriteResult
from deviceplugin.metrics import Wait
from deviceplugin.reasons import BindRefusal
from grafana.promql import (
    PLUGIN_TARGET,
    Alert,
    AlertSeverity,
    RuleGroup,
    any_of,
    failed_part,
    gained,
)
from grafana.settings import (
    ABSENT_REMEMBERED,
    API_ERROR_RATIO,
    API_ERRORS,
    PLUGIN,
    REFUSED_PODS,
    SLOW_SECONDS,
    SLOW_STEPS,
)
from grafana.templates import COUNT, RATIO, THE_GPU, THE_NODE, THE_RESOURCE, TIME

CRITICAL, WARNING, INFO = AlertSeverity.CRITICAL, AlertSeverity.WARNING, AlertSeverity.INFO


def _refusals(step: Wait, *reasons: BindRefusal) -> str:
    which = f', reason=~"{any_of(reasons)}"' if reasons else ""
    return gained(f'vgpu_plugin_refusals_total{{step="{step}"{which}}}', "1h")


WRITES_FAILED: Final = gained(f'vgpu_plugin_told_total{{result="{WriteResult.FAILED}"}}', "10m")
SLOW: Final = f'{{step=~"{any_of(SLOW_STEPS)}"}}[15m]'

DEVICE_PLUGINS: Final = RuleGroup(
    "vgpu-device-plugins",
    (
        Alert(
            "VgpuPluginDown",
            WARNING,
            f"up{{{PLUGIN}}} == 0",
            "10m",
            f"The device plugin on {THE_NODE} cannot be scraped",
            "If it does not run, no container with a share of a GPU starts there. First: check"
            " whether its pod runs there, and read the end of its log.",
        ),
        Alert(
            "VgpuPluginsAbsent",
            CRITICAL,
            f"last_over_time(cluster:vgpu_plugins:count[{ABSENT_REMEMBERED}])"
            f" unless on (cluster) up{{{PLUGIN}}}",
            "15m",
            "Prometheus scrapes no device plugin",
            f"{COUNT} ran within the last week. First: look for their DaemonSets, and for the"
            " scrape job and its ServiceMonitor or PodMonitor.",
        ),
        Alert(
            "VgpuPluginNotReady",
            WARNING,
            "vgpu_plugin_recovered == 0 or vgpu_plugin_ready == 0"
            f" unless on ({PLUGIN_TARGET}) vgpu_plugin_resource_registered == 0",
            "10m",
            f"The device plugin on {THE_NODE} serves no pods",
            "It has found no GPUs that it can advertise, or has not recovered allocations yet."
            " First:"
            " see its log, and whether nvidia-smi and the API server answer on that node.",
        ),
        Alert(
            "VgpuPluginNotRegistered",
            WARNING,
            "vgpu_plugin_resource_registered == 0"
            f" unless on ({PLUGIN_TARGET}, resource) vgpu_plugin_resource_smallest_unit_bytes",
            "10m",
            f"The kubelet of {THE_NODE} does not accept {THE_RESOURCE}",
            "The node advertises none, or an old number. First: the plugin's log has the kubelet's"
            ' error ("not registered"); check for another plugin of the same resource.',
        ),
        Alert(
            "VgpuPluginUnitTooSmall",
            WARNING,
            "vgpu_plugin_resource_smallest_unit_bytes > 0",
            "5m",
            f"{THE_RESOURCE} is not registered on {THE_NODE}: its unit is too small",
            "The list of its units is longer than the kubelet accepts; a unit of {{ $value |"
            " humanize1024 }}B is large enough. First: choose a unit for the whole cluster,"
            " since it is part of every pod's request.",
        ),
        Alert(
            "VgpuPluginCardUnhealthy",
            WARNING,
            "vgpu_plugin_device_unhealthy_info == 1",
            "5m",
            f"{THE_GPU} is unhealthy: {{{{ $labels.reason }}}}",
            "Running containers stay, and no new shares of it are allocated. First: see which"
            " containers use it, and read the GPU's own alerts and dmesg.",
        ),
        Alert(
            "VgpuPluginRefusing",
            WARNING,
            f"{_refusals(Wait.ALLOCATE)} > {REFUSED_PODS}",
            "",
            f"Pods fail on {THE_NODE}, refused for {{{{ $labels.reason }}}}",
            f"The device plugin refused {COUNT} times within an hour. First: kubectl describe one"
            " of the failed pods: its message names what was asked and what stands against it.",
        ),
        Alert(
            "VgpuPluginUnbound",
            WARNING,
            "vgpu_plugin_unbound_containers > 0",
            "15m",
            f"Containers on {THE_NODE} cannot start: {{{{ $labels.reason }}}}",
            f"{COUNT} have devices from the kubelet, and no share is bound to them. First: the"
            " plugin's log (\"not bound\") and the pods' events name them and the reason.",
        ),
        Alert(
            "VgpuPluginCrossed",
            INFO,
            f"{_refusals(Wait.BIND, BindRefusal.CROSSED)} > 0",
            "",
            f"Pods on {THE_NODE} got each other's answer and were not started",
            f"{COUNT} within an hour; it cannot happen with CDI. First: check whether the"
            " reconciler evicts them (prestart_failed), then move the node to a runtime with CDI.",
        ),
        Alert(
            "VgpuPluginConflicts",
            WARNING,
            "vgpu_plugin_conflicts > 0",
            "5m",
            f"Containers hold more than {THE_NODE} has, or its sources differ",
            f"{COUNT} contradictions about pods that hold something now. First: the plugin's log"
            ' ("conflict") has each of them, with the pod and what the sources report.',
        ),
        Alert(
            "VgpuPluginCheckpointFailing",
            WARNING,
            "increase(vgpu_plugin_checkpoint_write_failures_total[5m]) > 0",
            "10m",
            f"The device plugin on {THE_NODE} cannot write its checkpoint",
            f"{COUNT} attempts failed in 5 minutes; no new container is bound meanwhile. First: is"
            " the disk with its state folder (/var/lib/vgpu) full or read-only?",
        ),
        Alert(
            "VgpuPluginCheckpointDamaged",
            INFO,
            "vgpu_plugin_checkpoint_problem_info == 1",
            "",
            f"The device plugin on {THE_NODE} found its checkpoint broken: "
            "{{ $labels.problem }}",
            "It continued with the previous checkpoint, or rebuilt it from the other sources."
            " First: look at the file that was moved aside (.damaged-…), and at the disk.",
        ),
        Alert(
            "VgpuPluginSlow",
            WARNING,
            f"rate(vgpu_plugin_wait_seconds_total{SLOW}) / rate(vgpu_plugin_waits_total{SLOW})"
            f" > {SLOW_SECONDS}",
            "5m",
            f"The device plugin on {THE_NODE} is slow: {{{{ $labels.step }}}}",
            f"It takes {TIME} on average. First: look at the node's load and disk, and whether the"
            " kubelet's checkpoint and the API server come late.",
        ),
        Alert(
            "VgpuPluginNotTelling",
            WARNING,
            f"{WRITES_FAILED} > 0",
            "15m",
            f"The device plugin on {THE_NODE} cannot write to the API server: "
            "{{ $labels.subject }}",
            f"{COUNT} attempts failed in 10 minutes; schedulers use outdated data. First: its log"
            ' ("not written to the API server") has the error; look for a missing permission.',
        ),
        Alert(
            "VgpuPluginApiErrors",
            WARNING,
            f"{failed_part('vgpu_plugin_api_requests_total', API_ERRORS)} > {API_ERROR_RATIO}",
            "15m",
            f"Requests of the device plugin on {THE_NODE} fail",
            f"{RATIO} of its requests to the API server. First: by code: 0 is the network, 401 and"
            " 403 are rights, 5xx the API server itself.",
        ),
    ),
)
