"""Families of pods that share the time of a GPU by tokens, beside what the driver reports."""

from exporter.families.containers import CONTAINER_LABELS
from vgpu.metrics.family import Family, FamilyTable, MetricType

GAUGE = MetricType.GAUGE

TOKENS = FamilyTable(
    title="Tokens: the time of a GPU that pods share",
    note=(
        "Only with --collector.tokens, of pods with a share of KubeShare. A pod has one token for"
        " all its containers: `container` is empty if several of them have a share of the GPU. What"
        " the driver reports of them is `vgpu_container_sm_utilization_ratio`."
    ),
    rows=lambda view: view.tokens,
    labels=(*CONTAINER_LABELS, "uuid"),
    key=lambda row: (
        row.tenant.namespace,
        row.tenant.pod,
        row.container,
        row.pod_uid,
        row.tenant.device,
    ),
    families=(
        Family(
            "vgpu_container_token_request_ratio",
            GAUGE,
            "The part of the GPU's time that the pod requests (token daemon).",
            lambda row: row.tenant.request_ratio,
            unit="ratio",
        ),
        Family(
            "vgpu_container_token_limit_ratio",
            GAUGE,
            "The part of the GPU's time that the pod gets at most (token daemon).",
            lambda row: row.tenant.limit_ratio,
            unit="ratio",
        ),
        Family(
            "vgpu_container_token_window_share_ratio",
            GAUGE,
            "The part of the daemon's last window for which the pod had the token (token daemon).",
            lambda row: row.tenant.window_share_ratio,
            unit="ratio",
        ),
        Family(
            "vgpu_container_token_wait_seconds_total",
            MetricType.COUNTER,
            "Time for which the pod waited for tokens that it got (token daemon).",
            lambda row: row.tenant.wait_seconds,
            unit="seconds",
        ),
    ),
)
