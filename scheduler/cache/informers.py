"""The informers that keep the scheduler's cache up to date: pods, nodes, and unhealthy GPUs."""

import math
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from scheduler.cache.scheduler_cache import SchedulerCache
from scheduler.cluster.cached_node import pod_key
from vgpu.apiserver import list_watch
from vgpu.apiserver.informer import Informer
from vgpu.apiserver.list_watch import ListWatch
from vgpu.apiserver.reader import Reader
from vgpu.kube.dump import GPU_QUOTA, GPU_QUOTA_NAMESPACE
from vgpu.kube.kept_keys import shares_gpus
from vgpu.kube.kinds import NAMED_CONFIG_MAPS
from vgpu.model.objects import MalformedObject, Namespace, Node, Pod, ResourceQuota
from vgpu.model.reasons import Reason, SourceError
from vgpu.quota.declarations import GPU_QUOTA_KEY, declares_quota
from vgpu.schemes.row import UnhealthyMap

STALE_SECONDS: Final = 60.0
"""Maximum age of the last event while the API server does not answer, in seconds. After that the
cluster is read again."""

_OF_QUOTAS: Final = frozenset({"namespaces", "resourcequotas"})
"""Kinds that are read for quotas alone."""

LONGEST_PAUSE_SECONDS: Final = 5.0
"""Maximum interval between two tries to reach the API server, in seconds: pods wait meanwhile."""

_Object = TypeVar("_Object")

NamedConfigMap = tuple[str, Mapping[str, str]]
"""A ConfigMap's name and data."""


class ClusterInformers:
    """Follows the cluster from :meth:`start` on. Any thread may ask for :meth:`complaint`."""

    def __init__(
        self,
        server: Reader,
        cache: SchedulerCache,
        clock: Callable[[], float] = time.monotonic,
        *,
        quotas: bool = True,
        node_seen: Callable[[str, Node | None], object] = lambda *_: None,
    ) -> None:
        """``clock`` returns seconds that never go back.

        ``node_seen`` is called with the name of a node and the node after each event, None if it is
        gone or cannot be read.

        Without ``quotas`` neither Namespaces nor ResourceQuotas are read, and no quota is known.
        """
        self._reads_quotas = quotas
        self._node_seen = node_seen
        self._clock = clock
        self._cache = cache
        self._fed: set[str] = set()
        self._gpu_admission: Mapping[str, str] | None = None
        self._changed = threading.Condition()
        self._fresh_until = -math.inf
        """Time until which no kind can be stale, so that a request does not ask each informer."""
        self.pods: Informer[Pod] = self._informer(
            list_watch.pods(server),
            "pods",
            key=_pod_key,
            keep=shares_gpus,
            enqueue=self._pod,
        )
        self.nodes: Informer[Node] = self._informer(
            list_watch.nodes(server),
            "nodes",
            key=_name,
            enqueue=self._node,
        )
        maps = {
            scheme.row.unhealthy_map.namespace: scheme.row.unhealthy_map
            for scheme in cache.schemes
            if scheme.row.unhealthy_map
        }
        self._namespaces: Informer[Namespace] = self._informer(
            list_watch.namespaces(server),
            "namespaces",
            key=_name,
            keep=declares_quota,
            enqueue=lambda name: cache.set_namespace(name, self._namespaces.get(name)),
        )
        self._quotas: Informer[ResourceQuota] = self._informer(
            list_watch.resource_quotas(server),
            "resourcequotas",
            key=_quota_key,
            keep=lambda quota: bool(quota.hard),
            enqueue=self._quota,
        )
        self._all: dict[str, Informer[Any]] = {"pods": self.pods, "nodes": self.nodes}
        if quotas:
            self._all |= {"namespaces": self._namespaces, "resourcequotas": self._quotas}
        for namespace, row in maps.items():
            informer = self._health_informer(server, namespace, row)
            self._all[f"configmaps of {namespace}"] = informer

    def _health_informer(
        self, server: Reader, namespace: str, row: UnhealthyMap
    ) -> Informer[NamedConfigMap]:
        prefix = row.name("")
        name = f"configmaps of {namespace}"

        def changed() -> None:
            objects = informer.state().objects.items()
            self._cache.set_unhealthy({key: data.get(row.key, "") for key, (_, data) in objects})
            if namespace == GPU_QUOTA_NAMESPACE and self._reads_quotas:
                self._set_gpu_admission(informer.get(GPU_QUOTA))
            self._feed(name)

        informer: Informer[NamedConfigMap] = self._informer(
            ListWatch(server, NAMED_CONFIG_MAPS, namespace=namespace),
            name,
            key=lambda config: config.name if isinstance(config, MalformedObject) else config[0],
            keep=lambda config: config[0].startswith(prefix) or config[0] == GPU_QUOTA,
            changed=changed,
        )
        return informer

    def _informer(
        self,
        objects: ListWatch[_Object],
        name: str,
        *,
        key: Callable[[_Object | MalformedObject], str],
        keep: Callable[[_Object], bool] = lambda _: True,
        enqueue: Callable[[str], object] = lambda _: None,
        changed: Callable[[], object] | None = None,
    ) -> Informer[_Object]:
        """An informer of the cache; without ``changed`` each change feeds its kind."""
        return Informer(
            objects,
            name,
            key=key,
            keep=keep,
            enqueue=enqueue,
            changed=changed or (lambda: self._feed(name)),
            longest_pause=LONGEST_PAUSE_SECONDS,
            list_after=STALE_SECONDS,
            clock=self._clock,
        )

    def start(self) -> None:
        """Begin to follow."""
        for informer in self._all.values():
            informer.start()

    def close(self) -> None:
        """Stop following."""
        for informer in self._all.values():
            informer.close()

    def wait(self, seconds: float) -> bool:
        """Wait until the cache has everything; returns whether it came in time."""
        with self._changed:
            return self._changed.wait_for(lambda: len(self._fed) == len(self._all), seconds)

    def complaint(self) -> str:
        """Why no request can be answered; "" if the cache is complete and new enough."""
        now = self._clock()
        if now < self._fresh_until:
            return ""
        if len(self._fed) < len(self._all):
            missing = ((name, self._all[name].health().failure) for name in self._all)
            failures = [f"{failure}{_hint(name, failure)}" for name, failure in missing if failure]
            return ": ".join(("the cluster has not been read completely yet", *failures[:1]))
        for name, informer in self._all.items():
            health = informer.health()
            if not health.synced or (health.failure and (health.silent or 0.0) > STALE_SECONDS):
                age = "never" if health.silent is None else f"{health.silent:.0f} s ago"
                return f"the last event about {name} came {age}: {health.failure or 'silence'}"
        self._fresh_until = now + STALE_SECONDS - max(self.ages().values())
        return ""

    def ages(self) -> Mapping[str, float]:
        """Seconds since the last event about each kind."""
        ages = {name: informer.silent for name, informer in self._all.items()}
        return {name: age for name, age in ages.items() if age is not None}

    # ------------------------------------------------------------ on the informers' threads

    def _pod(self, key: str) -> None:
        pod = self.pods.get(key)
        if isinstance(pod, MalformedObject):
            self._cache.set_malformed(key, pod)
        else:
            self._cache.set_pod(key, pod)

    def _node(self, key: str) -> None:
        seen = self.nodes.get(key)
        node = None if isinstance(seen, MalformedObject) else seen
        self._cache.set_node(key, node)
        self._node_seen(key, node)

    def _quota(self, key: str) -> None:
        namespace, _, name = key.partition("/")
        self._cache.set_resource_quota(namespace, name, self._quotas.get(key))

    def _set_gpu_admission(self, config: NamedConfigMap | MalformedObject | None) -> None:
        if isinstance(config, MalformedObject):
            data: Mapping[str, str] | None = {GPU_QUOTA_KEY: str(config)}  # unreadable
        else:
            data = config[1] if config is not None else None
        if data != self._gpu_admission:
            self._gpu_admission = data
            self._cache.set_gpu_admission(data)

    def _feed(self, name: str) -> None:
        if name not in self._fed and self._all[name].health().silent is not None:
            with self._changed:
                self._fed.add(name)
                self._changed.notify_all()


def _hint(name: str, failure: SourceError) -> str:
    """What to do about a failure, if only quotas need what could not be read."""
    if name not in _OF_QUOTAS or failure.reason is not Reason.FORBIDDEN:
        return ""
    return "; add the right to list and watch them, or pass --no-quotas"


def _pod_key(pod: Pod | MalformedObject) -> str:
    return pod_key(pod.ref.namespace, pod.ref.name)


def _name(object_: Node | Namespace | MalformedObject) -> str:
    return object_.name


def _quota_key(quota: ResourceQuota | MalformedObject) -> str:
    namespace = quota.ref.namespace if isinstance(quota, MalformedObject) else quota.namespace
    return pod_key(namespace, quota.name)
