"""What becomes of a fleet's pods: each life is a line of LIVES, and kwok makes it so.

A pod chooses by its label LABEL; without one it runs. A pod has one life: once kwok has said
how it is, only its deletion is looked at. So a test may say more by patching the status. Nodes are
made Ready once, when they are new, and then are the test's as well.

The texts are the kubelet's (1.34), with what the plugins of their days said. Pods have no
addresses: kwok may play a stage twice, and would give two.
"""

import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

LABEL = "vgpu.test/life"
MANAGED, PLAYED = "kwok.x-k8s.io/node", "fake"
"""The annotation of the nodes that kwok plays, and its value."""


class Life(StrEnum):
    """The values of LABEL."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    UNEXPECTED_ADMISSION_ERROR = "unexpected-admission-error"
    OUT_OF_RESOURCE = "out-of-resource"
    PRESTART_FAILED = "prestart-failed"
    NO_GPU_TO_RUN = "no-gpu-to-run"
    STUCK_TERMINATING = "stuck-terminating"


NOW = "{{ Now }}"
CONTAINER_ID = "containerd://{{ sha256sum (print $uid .name) }}"
NOT_READY = {
    "Pending": {"reason": "ContainersNotReady"},
    "Succeeded": {"reason": "PodCompleted"},
}
RUNNING = {"running": {"startedAt": NOW}}


Selector = Sequence[tuple[str, str, Sequence[str]]]
"""A jq query, an operator of label selectors, and the values that it takes; all must hold."""


class Story(NamedTuple):
    """How a pod's status is to be; ``state`` is that of each of its containers, None for none."""

    phase: str
    state: Mapping[str, Any] | None = None
    reason: str = ""
    message: str = ""


def waiting(reason: str, message: str) -> Story:
    """Pending, because its containers do not start."""
    return Story("Pending", {"waiting": {"reason": reason, "message": message}})


def rejected(reason: str, message: str) -> Story:
    """Failed before it had containers, because the kubelet did not admit it."""
    return Story("Failed", None, reason, f"Pod was rejected: {message}")


LIVES = {
    Life.RUNNING: Story("Running", RUNNING),
    Life.STUCK_TERMINATING: Story("Running", RUNNING),
    Life.SUCCEEDED: Story(
        "Succeeded",
        {
            "terminated": {
                "exitCode": 0,
                "reason": "Completed",
                "startedAt": NOW,
                "finishedAt": NOW,
                "containerID": CONTAINER_ID,
            }
        },
    ),
    Life.UNEXPECTED_ADMISSION_ERROR: rejected(
        "UnexpectedAdmissionError",
        "Allocate failed due to no healthy devices present; cannot allocate unhealthy devices"
        " {{ $resource }}, which is unexpected",
    ),
    Life.OUT_OF_RESOURCE: rejected(
        "OutOf{{ $resource }}",
        "Node didn't have enough resource: {{ $resource }},"
        " requested: {{ $asked }}, used: 0, capacity: 0",
    ),
    Life.PRESTART_FAILED: waiting(
        "CreateContainerConfigError",
        "device plugin PreStartContainer rpc failed with err: rpc error: code = Unknown desc ="
        " PreStartContainer check failed, failed to get GPU",
    ),
    Life.NO_GPU_TO_RUN: waiting(
        "RunContainerError",
        "failed to create containerd task: failed to create shim task: OCI runtime create failed:"
        " nvidia-container-cli: device error: no-gpu-has-8138MiB-to-run: unknown device",
    ),
}

PREAMBLE = """
{{ $resource := "" }}{{ $asked := "" }}
{{ range $name, $number := (index .spec.containers 0).resources.limits }}
{{ $resource = $name }}{{ $asked = $number }}
{{ end }}
{{ $uid := .metadata.uid }}
"""
"""What the pod asks for, which is the last of its limits, for the texts; and who it is."""


def write(file: Path) -> None:
    """Write kwok's configuration."""
    file.write_text("\n---\n".join(map(json.dumps, [NODE_READY, DELETED, *map(_life, LIVES)])))


def _life(life: Life) -> dict[str, Any]:
    """How a new pod with this label comes to be."""
    new: Selector = [(".status.startTime", "DoesNotExist", []), (DELETION, "DoesNotExist", [])]
    then = {"statusTemplate": _status(life)}
    if life is Life.RUNNING:
        others = [other for other in Life if other is not life]
        return _stage(f"pod-{life}", "Pod", [*new, (LABEL_KEY, "NotIn", others)], then)
    return _stage(f"pod-{life}", "Pod", new, then, labels={LABEL: life})


def _status(life: Life) -> str:
    """A status as a template; its YAML lines are JSON."""
    story = LIVES[life]
    status: dict[str, Any] = {"phase": story.phase, "startTime": NOW}
    if story.reason:
        status |= {"reason": story.reason, "message": story.message}
    if story.state is not None:
        status["conditions"] = _conditions(story.phase)
    lines = [PREAMBLE, *(f"{key}: {json.dumps(value)}" for key, value in status.items())]
    if story.state is not None:
        each = json.dumps(_container(story.state))
        lines += ["containerStatuses:", "{{ range .spec.containers }}", f"- {each}", "{{ end }}"]
    return "\n".join(lines)


def _conditions(phase: str) -> list[dict[str, str]]:
    ready = {"status": "True"} if phase == "Running" else {"status": "False"} | NOT_READY[phase]
    conditions = {
        "PodReadyToStartContainers": {"status": str(phase != "Succeeded")},
        "Initialized": {"status": "True"},
        "Ready": ready,
        "ContainersReady": ready,
        "PodScheduled": {"status": "True"},
    }
    return [
        {"type": kind, "lastTransitionTime": NOW, **condition}
        for kind, condition in conditions.items()
    ]


def _container(state: Mapping[str, Any]) -> dict[str, Any]:
    """The status of a container that is in a state; it has IDs if it was ever made."""
    was_made = "waiting" not in state
    return {
        "name": "{{ .name }}",
        "image": "{{ .image }}",
        "imageID": "sha256:{{ sha256sum .image }}" if was_made else "",
        **({"containerID": CONTAINER_ID} if was_made else {}),
        "restartCount": 0,
        "ready": "running" in state,
        "started": "running" in state,
        "state": state,
        "lastState": {},
    }


LABEL_KEY, DELETION = f'.metadata.labels["{LABEL}"]', ".metadata.deletionTimestamp"


def _stage(
    name: str,
    kind: str,
    selector: Selector,
    then: Mapping[str, Any],
    *,
    labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """A Stage of kwok's for what has the labels, which is quickly seen, and fits the selector."""
    expressions = [
        {"key": key, "operator": operator, **({"values": values} if values else {})}
        for key, operator, values in selector
    ]
    return {
        "apiVersion": "kwok.x-k8s.io/v1alpha1",
        "kind": "Stage",
        "metadata": {"name": name},
        "spec": {
            "resourceRef": {"apiGroup": "v1", "kind": kind},
            "selector": {"matchLabels": labels or {}, "matchExpressions": expressions},
            "next": then,
        },
    }


DELETED = _stage(
    "pod-deleted",
    "Pod",
    [
        (DELETION, "Exists", []),
        (LABEL_KEY, "NotIn", [Life.STUCK_TERMINATING]),
    ],
    {"delete": True},
)

NODE_READY = _stage(
    "node-ready",
    "Node",
    [('.status.conditions.[] | select(.type == "Ready") | .status', "DoesNotExist", [])],
    {
        "statusTemplate": """
conditions:
{{ range NodeConditions }}
- type: {{ .type | Quote }}
  status: {{ .status | Quote }}
  reason: {{ .reason | Quote }}
  message: {{ .message | Quote }}
  lastHeartbeatTime: {{ Now | Quote }}
  lastTransitionTime: {{ Now | Quote }}
{{ end }}
"""
    },
)
