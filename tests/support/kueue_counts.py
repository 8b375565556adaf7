"""What Kueue itself counts of its queues, by their status, compared with our document."""

from vgpu.kube.quantities import whole

SERIES = tuple(
    f"kueue_cluster_queue_{name}"
    for name in ("resource_reservation", "nominal_quota", "borrowing_limit", "lending_limit")
)
"""Its metrics that are compared."""

Counted = dict[tuple[str, str, str, str], tuple[int, int | None]]
"""(kind, name, flavor, resource) -> what is reserved, and what of it is borrowed."""


def counted_by_kueue(objects) -> tuple[Counted, dict[tuple[str, str], int]]:
    """What its status has of each queue, and the number of workloads that wait in ClusterQueues.

    Kueue does not count those of LocalQueues again when a workload comes back from an attempt to
    admit it: their number can stay too small.
    """
    counted: Counted = {}
    pending = {}
    for obj in objects:
        kind = obj["kind"]
        if kind not in ("ClusterQueue", "LocalQueue"):
            continue
        meta, status = obj["metadata"], obj.get("status", {})
        name = "/".join(filter(None, (meta.get("namespace"), meta["name"])))
        if kind == "ClusterQueue":
            pending[kind, name] = status.get("pendingWorkloads", 0)
        for flavor in status.get("flavorsReservation", ()):
            for each in flavor["resources"]:
                borrowed = whole(str(each["borrowed"])) if "borrowed" in each else None
                key = (kind, name, flavor["name"], each["name"])
                counted[key] = whole(str(each["total"])), borrowed
    return counted, pending


def differences(document, counts) -> list[str]:
    """Where a document of `inspect --by queue` differs from what Kueue counts."""
    counted, pending = counts
    shown, waiting = {}, {}
    for queue in document["queues"]:
        if queue["kind"] == "Cohort":
            continue
        waiting[queue["kind"], queue["name"]] = queue["waitingWorkloads"]
        for quota in queue["quotas"]:
            if quota["flavor"]:
                key = (queue["kind"], queue["name"], quota["flavor"], quota["resource"])
                borrowed = quota["borrowed"]["value"]
                is_whole = queue["kind"] == "ClusterQueue"
                shown[key] = quota["used"]["value"], borrowed if is_whole else None
    found = [
        f"{key}: Kueue {counted[key]}, shown {shown.get(key)}"
        for key in counted
        if shown.get(key) != counted[key]
    ]
    found += [
        f"{key}: {number} wait by Kueue, {waiting.get(key)} are shown"
        for key, number in pending.items()
        if waiting.get(key) != number
    ]
    return found
