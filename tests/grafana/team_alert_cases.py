"""When the alerts of namespaces fire, and when they must not."""

from tests.grafana.alert_case import Case, Quiet
from vgpu.model.units import GIB

SCHEDULER, RECONCILER = "vgpu-scheduler", "vgpu-reconciler"
QUOTA = {"namespace": "ml", "resource": "memory"}
OF_NAMESPACE = ("job", "instance")
TEAM = 'vgpu_reconcile_namespace_info{namespace="ml",team="vision"}'
DAY = 1500
"""A day and an hour, in minutes."""


def quota(used, limit, program="extender"):
    labels = '{namespace="ml",resource="memory"}'
    return {
        f"vgpu_{program}_quota_used{labels}": f"{used}x120",
        f"vgpu_{program}_quota_limit{labels}": f"{limit}x120",
    }


def memory(allocated, used):
    labels = '{namespace="ml",pod="a",container="main",pod_uid="a",uuid="GPU-1"}'
    return {
        f"vgpu_container_memory_allocated_bytes{labels}": f"{allocated * GIB}x{DAY}",
        f"vgpu_container_memory_used_bytes{labels}": f"{used * GIB}x{DAY}",
    }


def unreadable(program, number):
    return {f'vgpu_{program}_quota_unreadable{{namespace="ml"}}': f"{number}x120"}


CASES = (
    *(
        Case(
            "VgpuQuotaUnreadable",
            {**unreadable(program, 2), TEAM: "1x120"},
            {**unreadable(program, 0), TEAM: "1x120"},
            labels={"namespace": "ml", "team": "vision"},
            lacks=OF_NAMESPACE,
            value="2",
            job=job,
        )
        for program, job in (("extender", SCHEDULER), ("reconcile", RECONCILER))
    ),
    *(
        Case("VgpuQuotaExceeded", sick, quota(8, 8), labels=QUOTA, lacks=OF_NAMESPACE, job=job)
        for sick, job in (
            (quota(9, 8), SCHEDULER),
            (quota(9, 8, "reconcile"), RECONCILER),
            (quota(1, 0), SCHEDULER),
        )
    ),
    Case(
        "VgpuQuotaExceeded",
        {**quota(9, 8), TEAM: "1x120"},
        {**quota(8, 8), TEAM: "1x120"},
        labels={**QUOTA, "team": "vision"},
        lacks=OF_NAMESPACE,
        job=RECONCILER,
    ),
    Case(
        "VgpuMemoryUnused",
        {**memory(100, 5), TEAM: f"1x{DAY}"},
        {},
        labels={"namespace": "ml", "team": "vision"},
        lacks=OF_NAMESPACE,
        value="95%",
    ),
    Case(
        "VgpuQuotaNearLimit",
        quota(95, 100),
        quota(90, 100),
        labels=QUOTA,
        lacks=OF_NAMESPACE,
        value="95%",
        job=SCHEDULER,
    ),
    Case(
        "VgpuMemoryUnused",
        memory(100, 5),
        memory(100, 20),
        labels={"namespace": "ml"},
        lacks=OF_NAMESPACE,
        value="95%",
    ),
)

QUIET = (
    Quiet("VgpuQuotaNearLimit", "it is exceeded, which has its own alert", quota(9, 8), SCHEDULER),
    Quiet("VgpuQuotaNearLimit", "nothing may be used", quota(0, 0), SCHEDULER),
    Quiet(
        "VgpuQuotaExceeded",
        "the scheduler, which counts reservations, knows better",
        {**quota(8, 8), **quota(9, 8, "reconcile")},
        SCHEDULER,
    ),
    Quiet("VgpuMemoryUnused", "it is little", memory(10, 0)),
)
