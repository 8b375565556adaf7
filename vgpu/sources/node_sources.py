"""The sources of one node, opened together: for exporter, device plugin and the node's reconciler.

The programs differ in the sources that they open, and in the origin of the driver's sample and of
the pods.
"""

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from vgpu.model.reasons import SourceError
from vgpu.schemes.registry import registry
from vgpu.sources.collector import Collector
from vgpu.sources.files import Living
from vgpu.sources.http_access import ClientOptions
from vgpu.sources.kubelet import (
    DEFAULT_CHECKPOINT,
    DEFAULT_DRA_STATE,
    DEFAULT_LOG_DIR,
    KubeletSource,
)
from vgpu.sources.kubelet_names import read_pod_folders
from vgpu.sources.limits import LimitSource
from vgpu.sources.mps import DEFAULT_MPS_DIR
from vgpu.sources.observation import Collectors
from vgpu.sources.own_checkpoint import DEFAULT_STATE_DIR, OwnCheckpointSource
from vgpu.sources.runtime import ProcessSource, read_live_pods
from vgpu.sources.shim import ShimSource


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


if TYPE_CHECKING:
    from vgpu.sources.token_page import TokenPage

SHIM: Final = "shim"
KUBELET: Final = "kubelet"
LIMITS: Final = "limits"
PLUGIN: Final = "plugin"
PROCESS: Final = "process"
TOKENS: Final = "tokens"
ALL: Final = frozenset({SHIM, KUBELET, LIMITS, PLUGIN, PROCESS})
"""The sources of allocations, by the names of their collectors."""

Sample = Callable[[float], Any]
"""Brings a sample; the argument is unix seconds. Raises SourceError."""


class NodePaths(msgspec.Struct, frozen=True):
    """The paths of a node's sources.

    Attributes:
        shim_roots: folders of shims' folders; with none, those of the sharing systems.
        procfs, cgroupfs: the host's.
        log_dir: the kubelet's folder of log folders; None is not read.
        checkpoint: the kubelet's, of devices; None is not read.
        pod_resources: the kubelet's socket; None is not read.
        dra_state: the kubelet's, of dynamic resource allocation; None is not read.
        cdi_dirs: folders of CDI specs; with none, what DRA drivers have written is not checked.
        limit_dirs: folders of limit files by the name of the registry's row; a missing
            row has its default.
        state_dir: our own device plugins' checkpoints.
        mps_dir: the files of the MPS daemons of NVIDIA's device plugin.
        tokens_url, tokens_access: the page of metrics of the token daemon, and its credentials.
    """

    shim_roots: tuple[str, ...] = ()
    procfs: str = "/proc"
    cgroupfs: str = "/sys/fs/cgroup"
    log_dir: str | None = DEFAULT_LOG_DIR
    checkpoint: str | None = DEFAULT_CHECKPOINT
    pod_resources: str | None = None
    dra_state: str | None = DEFAULT_DRA_STATE
    cdi_dirs: tuple[str, ...] = ()
    limit_dirs: Mapping[str, str] = {}
    state_dir: str = DEFAULT_STATE_DIR
    mps_dir: str | None = DEFAULT_MPS_DIR
    tokens_url: str = ""
    tokens_access: ClientOptions = ClientOptions()


class NodeSources(msgspec.Struct, frozen=True):
    """The configured sources, open; None is not configured."""

    shim: ShimSource | None = None
    kubelet: KubeletSource | None = None
    limits: LimitSource | None = None
    own: OwnCheckpointSource | None = None
    process: ProcessSource | None = None
    tokens: "TokenPage | None" = None

    @classmethod
    def open(
        cls,
        paths: NodePaths,
        names: Collection[str] = ALL,
        *,
        roots_required: bool = False,
        bare: bool = False,
        verify_seconds: float = 0.0,
        watch: bool = False,
    ) -> "NodeSources":
        """Open the sources of these ``names``.

        With ``roots_required`` it is a failure if none of the shims' roots exists. ``bare`` also
        reads the regions inside containers. The kubelet's checkpoint is verified at most once in
        ``verify_seconds``. With ``watch`` the container of a process is not read in each sample:
        only for a program that acts on no pod. Raises SourceError NOT_INSTALLED if pod-resources is
        to be asked and cannot be, ValueError for a URL of tokens that is none, and BadOption for
        its credentials.
        """
        living = living_pods(paths.cgroupfs, paths.log_dir)
        roots = paths.shim_roots or registry().region_roots
        resource_claim_roots = () if paths.shim_roots else registry().resource_claim_roots
        kubelet = (
            paths.log_dir,
            paths.checkpoint,
            paths.pod_resources,
            verify_seconds,
            paths.dra_state,
        )
        return cls(
            ShimSource(
                roots,
                required=roots_required,
                living=living,
                resource_claim_roots=resource_claim_roots,
            )
            if SHIM in names
            else None,
            KubeletSource(*kubelet, cdi_dirs=paths.cdi_dirs) if KUBELET in names else None,
            LimitSource(paths.limit_dirs, living=living, mps=paths.mps_dir)
            if LIMITS in names
            else None,
            OwnCheckpointSource(paths.state_dir, paths.procfs) if PLUGIN in names else None,
            ProcessSource(paths.procfs, paths.cgroupfs, bare=bare, watch=watch)
            if PROCESS in names
            else None,
            _token_page(paths) if TOKENS in names else None,
        )

    def collectors(
        self, gpu: Sample | None = None, pods: Sample | None = None, *, pods_name: str = "api"
    ) -> Collectors:
        """A collector for each source; ``gpu`` brings the driver's sample, ``pods`` the pods.

        ``pods_name`` is the name of the collector of the pods.
        """
        shim, limits, process, tokens = self.shim, self.limits, self.process, self.tokens
        return Collectors(
            nvml=Collector("nvml", gpu) if gpu else None,
            shim=Collector(SHIM, lambda _: shim.sample()) if shim else None,
            kubelet=Collector(KUBELET, self.kubelet.sample) if self.kubelet else None,
            limits=Collector(LIMITS, lambda _: limits.sample()) if limits else None,
            own=Collector(PLUGIN, self.own.sample) if self.own else None,
            pods=Collector(pods_name, pods) if pods else None,
            process=Collector(PROCESS, lambda asked: process.sample(*asked)) if process else None,
            tokens=Collector(TOKENS, lambda _: tokens.sample()) if tokens else None,
        )


def _token_page(paths: NodePaths) -> "TokenPage":
    from vgpu.sources.token_page import TokenPage  # noqa: PLC0415  # ssl only if it is asked

    return TokenPage(paths.tokens_url, paths.tokens_access)
