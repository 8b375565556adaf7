"""One observation of a node: all its collectors side by side, and their data.

The collectors run at the same time and share a deadline. The kernel is asked last, for the pids
that the driver and the shims have named, and the API server for the ResourceClaims that the kubelet
has named.
"""

import time
from collections.abc import Iterator
from typing import Any

import msgspec

from vgpu.model.facts import GpuSample, ShimSample
from vgpu.sources.collector import Collector
from vgpu.sources.samples import (
    Observation,
    with_names,
    with_resource_claim_users,
    with_whole_names,
)


class Collectors(msgspec.Struct):
    """The collectors that are switched on; their names are the label ``collector``."""

    nvml: Collector[Any] | None = None
    shim: Collector[Any] | None = None
    kubelet: Collector[Any] | None = None
    limits: Collector[Any] | None = None
    own: Collector[Any] | None = None
    pods: Collector[Any] | None = None
    resource_claims: Collector[Any] | None = None
    process: Collector[Any] | None = None
    tokens: Collector[Any] | None = None

    def all(self) -> list[Collector[Any]]:
        """The collectors that are on, in the order of the page."""
        return [collector for _, collector in self.named()]

    def named(self) -> Iterator[tuple[str, Collector[Any]]]:
        """The collectors that are on, with the names of their fields."""
        for name in self.__struct_fields__:
            collector: Collector[Any] | None = getattr(self, name)
            if collector is not None:
                yield name, collector


def observe(on: Collectors, now: float, timeout: float, stale: float) -> Observation:
    """Let the collectors run; ``now`` is unix seconds.

    Each collector may take ``timeout`` seconds. Data of a late collector counts while it is younger
    than ``stale`` seconds, but without its pids. Data of this observation always counts.
    """
    first = [each for each in on.all() if each not in (on.process, on.resource_claims)]
    begun = time.monotonic()
    deadline = begun + timeout
    for collector in first:
        collector.begin(now)
    for collector in first:
        collector.finish(deadline)
    oldest = min(begun, time.monotonic() - stale)
    gpu = on.nvml.data(oldest) if on.nvml else None
    if gpu is not None and on.nvml is not None and not on.nvml.ok:
        gpu = without_processes(gpu)
    pods = on.pods.data(oldest) if on.pods else None
    kubelet = with_names(on.kubelet.data(oldest) if on.kubelet else None, pods)
    shim = on.shim.data(oldest) if on.shim else None
    process = None
    deadline = time.monotonic() + timeout
    if on.resource_claims is not None:
        on.resource_claims.begin(now)
    if on.process is not None:
        claims = on.resource_claims.data(oldest) if on.resource_claims else None
        regions = with_resource_claim_users(shim, kubelet, claims)
        on.process.begin((pids_of_interest(gpu, shim), regions.files if regions else ()))
        on.process.finish(deadline)
        process = on.process.data(oldest) if on.process.ok else None
        kubelet = with_whole_names(kubelet, process)
    if on.resource_claims is not None:
        on.resource_claims.finish(deadline)
    resource_claims = on.resource_claims.data(oldest) if on.resource_claims else None
    return Observation(
        gpu=gpu,
        shim=with_resource_claim_users(shim, kubelet, resource_claims),
        kubelet=kubelet,
        limits=on.limits.data(oldest) if on.limits else None,
        own=on.own.data(oldest) if on.own else None,
        process=process,
        pods=pods,
        resource_claims=resource_claims,
        tokens=on.tokens.data(oldest) if on.tokens else None,
        at=now,
        incomplete=frozenset(name for name, collector in on.named() if not collector.ok),
    )


def pids_of_interest(gpu: GpuSample | None, shim: ShimSample | None) -> set[int]:
    """The host pids whose owners the join will ask for."""
    of_driver = {process.pid for process in (*gpu.processes, *gpu.unplaced)} if gpu else set[int]()
    return of_driver | shim.host_pids if shim else of_driver


def without_processes(sample: GpuSample) -> GpuSample:
    """A stale sample without processes: its devices still count, its pids may be reused by now."""
    nobody: frozenset[str] = frozenset()
    return msgspec.structs.replace(
        sample,
        processes=(),
        processes_known=nobody,
        unplaced=(),
        utilization={},
        utilization_known=nobody,
    )
