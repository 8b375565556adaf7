"""When each alert of KubeShare's controllers fires, and when it must not."""

from tests.grafana.alert_case import Case, Quiet, level

JOB = "vgpu-kubeshare-controller"
NODE_JOB = "vgpu-kubeshare-node"
LEADER = "vgpu_kubeshare_leader"
READY = "vgpu_kubeshare_ready"
CONNECTED = 'vgpu_kubeshare_node_connected{node="gpu-1"}'
ON_NODE = {"node": "gpu-1"}
NO_REPLICA = ("instance",)


def controllers(alert, series, sick, well, **rest):
    return level(alert, series, sick, well, job=JOB, **rest)


def steps(result):
    return f'vgpu_kubeshare_steps_total{{step="CreateHolder",result="{result}"}}'


def gpus(state):
    return f'vgpu_kubeshare_virtual_gpus{{node="gpu-1",state="{state}"}}'


def share_pods(state):
    return f'vgpu_kubeshare_sharepods{{state="{state}"}}'


def api_errors(part, job):
    """One request of five fails, or none."""
    name = f"vgpu_kubeshare{part}_api_requests_total"
    failed = {f'{name}{{verb="patch",code="{code}"}}': "0+1x120" for code in (0, 401, 403, 503)}
    good = f'{name}{{verb="list",code="200"}}'
    conflict = f'{name}{{verb="patch",code="409"}}'
    return Case(
        "VgpuKubeShareApiErrors",
        {good: "0+16x120", **failed},
        {good: "0+1x120", conflict: "0+1x120"},
        value="20%",
        onset=1,
        job=job,
    )


CASES = (
    controllers("VgpuKubeShareDown", "up", 0, 1),
    level("VgpuKubeShareDown", "up", 0, 1, job=NODE_JOB),
    Case(
        "VgpuKubeShareControllersAbsent",
        {"up": "1x10 stale", READY: "1x10 stale"},
        {"up": "1x120", READY: "1x120"},
        value="1",
        onset=11,
        job=JOB,
        lacks=("job", "instance"),
    ),
    controllers("VgpuKubeShareNoLeader", LEADER, 0, 1, lacks=NO_REPLICA),
    controllers("VgpuKubeShareNotReady", READY, 0, 1),
    level("VgpuKubeShareNotReady", "vgpu_kubeshare_node_ready", 0, 1, job=NODE_JOB),
    controllers("VgpuKubeShareNodeSilent", CONNECTED, 0, 1, labels=ON_NODE, lacks=NO_REPLICA),
    *(
        controllers(alert, gpus(state), 2, 0, labels=ON_NODE, lacks=NO_REPLICA, value="2")
        for alert, state in (
            ("VgpuKubeShareGpuConflict", "conflict"),
            ("VgpuKubeShareHolderPending", "pending"),
        )
    ),
    Case(
        "VgpuKubeShareStepsFail",
        {steps("error"): "0+1x120", steps("success"): "0+4x120"},
        {steps("error"): "0+1x120", steps("success"): "0+19x120"},
        labels={"step": "CreateHolder"},
        value="20%",
        onset=1,
        job=JOB,
    ),
    api_errors("", JOB),
    api_errors("_node", NODE_JOB),
    controllers("VgpuSharePodsWait", share_pods("waiting"), 3, 0, lacks=NO_REPLICA, value="3"),
)

QUIET = (
    Quiet("VgpuKubeShareControllersAbsent", "there never was one", {"up": "1x120"}, JOB),
    Quiet(
        "VgpuKubeShareNoLeader",
        "another replica leads",
        {f'{LEADER}{{pod="a"}}': "0x120", f'{LEADER}{{pod="b"}}': "1x120"},
        JOB,
    ),
    Quiet("VgpuKubeShareNotReady", "it starts", {READY: "0x5 1x115"}, JOB),
    Quiet(
        "VgpuKubeShareStepsFail",
        "a conflict is repeated with the newer object",
        {steps("conflict"): "0+9x120", steps("success"): "0+1x120"},
        JOB,
    ),
    Quiet("VgpuKubeShareHolderPending", "they get GPUs", {gpus("pending"): "1x9 0 1x9 0 1x9"}, JOB),
    Quiet("VgpuSharePodsWait", "they were placed", {share_pods("waiting"): "5x50 0x70"}, JOB),
)
