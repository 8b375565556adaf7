"""What Volcano itself counts of its queues, by their status, to compare with our document."""

from vgpu.kube.quantities import whole


def counted_by_volcano(objects) -> dict[tuple[str, str], int]:
    """What the status has of each queue: (queue, resource) -> the amount, of vGPUs alone."""
    return {
        (obj["metadata"]["name"], resource): whole(str(amount)) or 0
        for obj in objects
        if obj["kind"] == "Queue"
        for resource, amount in (obj.get("status", {}).get("allocated") or {}).items()
        if resource.startswith("volcano.sh/")
    }
