"""The pods that live on this node, for a source that cannot read every entry."""

from collections.abc import Collection
from functools import partial

from vgpu.model.reasons import SourceError
from vgpu.sources.files import Living
from vgpu.sources.kubelet_names import read_pod_folders
from vgpu.sources.runtime import read_live_pods


def living_pods(cgroupfs: str, log_dir: str | None) -> Living:
    """The living pods by cgroups, else by the kubelet's log folders; none without both."""
    return partial(_living_pods, cgroupfs, log_dir)


def _living_pods(cgroupfs: str, log_dir: str | None) -> Collection[str]:
    try:
        if alive := read_live_pods(cgroupfs):
            return alive
    except SourceError:  # reported by the source that reads them in each sample
        pass
    try:
        return read_pod_folders(log_dir)[0].keys() if log_dir else ()
    except SourceError:
        return ()
