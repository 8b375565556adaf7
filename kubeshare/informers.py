"""The informers of SharePods, pods and nodes, which feed the controllers."""

import threading
from collections.abc import Mapping
from typing import Any, Final

from kubeshare.controller import SharePodControllers
from kubeshare.decoders import CLUSTER_NODES, CLUSTER_PODS, SHARE_POD_OBJECTS
from kubeshare.model import ClusterNode, ClusterPod, SharePod
from vgpu.apiserver.informer import Informer
from vgpu.apiserver.list_watch import ListWatch
from vgpu.apiserver.reader import Reader
from vgpu.model.objects import MalformedObject

STALE_SECONDS: Final = 180.0
"""Maximum age of the last event while the server fails, in seconds."""


class ControllerInformers:
    """Follows the three kinds, from :meth:`start` to :meth:`close`.

    Nothing is fed before each kind was listed once: a SharePod that is unknown would look like
    none, and its holder like an idle one.
    """

    def __init__(self, server: Reader, controllers: SharePodControllers) -> None:
        self._controllers = controllers
        self._lock = threading.Lock()
        self._fed = False
        self._listed: set[str] = set()
        self._waiting: dict[str, list[str]] = {"nodes": [], "pods": [], "sharepods": []}
        self.nodes = Informer[ClusterNode](
            ListWatch(server, CLUSTER_NODES),
            "nodes",
            key=lambda node: node.name,
            enqueue=lambda key: self._feed("nodes", key),
            changed=lambda: self._release("nodes"),
        )
        self.pods = Informer[ClusterPod](
            ListWatch(server, CLUSTER_PODS),
            "pods",
            key=_key,
            enqueue=lambda key: self._feed("pods", key),
            changed=lambda: self._release("pods"),
        )
        self.share_pods = Informer[SharePod](
            ListWatch(server, SHARE_POD_OBJECTS),
            "sharepods",
            key=_key,
            enqueue=lambda key: self._feed("sharepods", key),
            changed=lambda: self._release("sharepods"),
        )

    @property
    def _all(self) -> Mapping[str, Informer[Any]]:
        return {"nodes": self.nodes, "pods": self.pods, "sharepods": self.share_pods}

    def start(self) -> None:
        """Begin to follow."""
        for informer in self._all.values():
            informer.start()

    def close(self) -> None:
        """Stop following."""
        for informer in self._all.values():
            informer.close()

    def complaint(self) -> str:
        """Why nothing can be decided; "" if the cluster is known and new enough."""
        if not self._fed:
            failures = [informer.state().failure for informer in self._all.values()]
            failure = next((str(each) for each in failures if each), "")
            text = "the cluster has not been read completely yet"
            return f"{text}: {failure}" if failure else text
        for name, informer in self._all.items():
            state = informer.state()
            if not state.synced or (state.failure and (state.silent or 0.0) > STALE_SECONDS):
                age = "never" if state.silent is None else f"{state.silent:.0f} s ago"
                return f"the last event about {name} came {age}: {state.failure or 'silence'}"
        return ""

    def ages(self) -> Mapping[str, float]:
        """Seconds since the last event about each kind."""
        states = {name: informer.state() for name, informer in self._all.items()}
        return {name: state.silent for name, state in states.items() if state.silent is not None}

    # ------------------------------------------------------------ on the informers' threads

    def _feed(self, kind: str, key: str) -> None:
        with self._lock:
            if not self._fed:
                self._waiting[kind].append(key)
                return
        self._set(kind, key)

    def _release(self, kind: str) -> None:
        """Feed everything once each kind was listed; this is called after a list was queued."""
        with self._lock:
            if self._fed or self._all[kind].state().silent is None:
                return
            self._listed.add(kind)
            if len(self._listed) < len(self._all):
                return
            for each, keys in self._waiting.items():
                for key in keys:
                    self._set(each, key)
                keys.clear()
            self._fed = True

    def _set(self, kind: str, key: str) -> None:
        if kind == "nodes":
            self._controllers.set_node(key, self.nodes.get(key))
        elif kind == "pods":
            self._controllers.set_pod(key, self.pods.get(key))
        else:
            self._controllers.set_share_pod(key, self.share_pods.get(key))


def _key(found: ClusterPod | SharePod | MalformedObject) -> str:
    return f"{found.ref.namespace}/{found.ref.name}"
