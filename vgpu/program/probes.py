"""Where a program of ours is asked whether it lives, and whether it is ready."""

from vgpu.web.message import Handler


def probes(healthy: Handler, ready: Handler) -> dict[str, Handler]:
    """The paths of both, in both spellings."""
    return {
        "/-/healthy": healthy,
        "/healthz": healthy,
        "/-/ready": ready,
        "/readyz": ready,
    }
