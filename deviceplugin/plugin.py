"""Opens the program's parts in order, runs the service, and closes the parts.

On a node without a driver only the web server runs. The service starts when the driver has shown
its GPUs.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Final, Self

from deviceplugin.adapters.memory_factor import FactorError
from deviceplugin.allocate.checkpoint import CheckpointFile, Loaded, LockHeld
from deviceplugin.apiserver.pods import ASKING_SECONDS, Pods
from deviceplugin.builders.registry import AdapterInputs, builder_of
from deviceplugin.builders.shim_files import ShimError
from deviceplugin.failpoints import Failpoint
from deviceplugin.flags import PluginOptions
from deviceplugin.health.device_health import Health
from deviceplugin.health.rules import HealthRules
from deviceplugin.health.watch import HealthWatch, TopologyDriver
from deviceplugin.injection.cdi import CdiInjector
from deviceplugin.injection.files import FileInjector
from deviceplugin.metrics import PluginMetrics
from deviceplugin.ports import Injector
from deviceplugin.recovery.startup import CheckpointContent
from deviceplugin.scheme_adapter import SchemeAdapter
from deviceplugin.service import PluginConnections, Service
from deviceplugin.status_server import UNREGISTERED, StatusView, routes
from vgpu.apiserver import list_watch
from vgpu.apiserver.client import ApiClient
from vgpu.apiserver.connection import ClusterError
from vgpu.apiserver.informer import Informer
from vgpu.model.allocation import Device
from vgpu.model.objects import Node
from vgpu.program.host import ProgramHost
from vgpu.program.node_token import NodeToken
from vgpu.sources.own_checkpoint import boot_id
from vgpu.web.routes import Routes

log = logging.getLogger(__name__)

LISTENING_SECONDS: Final = 5.0
"""Maximum time that the start waits for the API server, in seconds; annotations then come later."""

STEP_SECONDS: Final = 0.2


class Failure(Exception):  # noqa: N818  # a message for the operator
    """The plugin cannot run; the message has the reason, and names the flag or file."""


class Plugin:
    """The program, see the module. A context manager: it closes what it has opened."""

    def __init__(
        self,
        options: PluginOptions,
        judged: HealthRules,
        driver: TopologyDriver,
        host: ProgramHost,
        failpoint: Failpoint,
    ) -> None:
        """Calls ``host.fail`` when only a new process can go on. Raises Failure, SourceError."""
        self._options = options
        self._builder = builder_of(options.scheme)
        self._host = host
        self._failpoint = failpoint
        self._numbers = PluginMetrics()
        self._boot_id = boot_id(options.path_procfs)
        self._open = ExitStack()
        self.stuck = False
        try:
            self._cluster = ApiClient.connect(options.kubeconfig, gather=0)
            self._open.callback(self._cluster.close)
            self._asked = ApiClient.connect(options.kubeconfig, patience=ASKING_SECONDS)
            self._open.callback(self._asked.close)
            self._token = NodeToken(
                self._asked, options.node_name, is_required=options.require_node_token
            )
            self._window = StatusView(
                options.scheme.value,
                "cdi" if options.cdi else "files",
                options.node_name,
                self._numbers,
                requests=lambda: self._cluster.requests,
                build=host.build,
                own=self._token.numbers(host.process_numbers),
                token=self._token.complaint,
            )
        except ClusterError as error:
            raise Failure(str(error)) from error
        self._relay = HealthRelay(self._window, lambda: self._watch.health)
        links = driver.links if self._builder.needs_links else None
        self._watch = HealthWatch(
            driver, judged, options.health_interval, self._relay.changed, links=links
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._open.close()

    def routes(self) -> Routes:
        """The paths that are served from the start: metrics and probes."""
        return routes(self._window)

    def serve(self, ended: Callable[[], bool]) -> None:
        """Start; returns when pods can be served, or ``ended``. Raises Failure."""
        options = self._options
        checkpoint = CheckpointFile(
            options.state_dir, options.scheme, options.node_name, self._boot_id
        )
        try:
            self._open.enter_context(checkpoint.open(ended=ended))
        except LockHeld as error:
            if ended():
                return
            raise Failure(str(error)) from error
        except OSError as error:
            raise Failure(str(error)) from error
        self._token.complaint()  # the log has it before anything is served
        pods = Pods(self._cluster, self._asked, options.node_name, self._look, time.monotonic)
        node = self._follow_node()
        self._open.callback(pods.close)
        self._open.callback(node.close)
        pods.start()
        _wait(pods.wait, LISTENING_SECONDS, ended)
        _wait(node.wait, LISTENING_SECONDS, ended)
        if ended():
            return
        if pods.known() is None:
            log.warning("no answer from the API server yet", extra={"server": self._cluster.server})
        self._watch.start(lambda: self._host.fail(self._watch.fatal or ""))
        self._open.callback(self._stop_watching)
        while not self._watch.wait_first(STEP_SECONDS):
            if ended():
                return
        seen = self._seen(node, ended)
        if not ended():
            self._begin(checkpoint, pods, node, seen)

    def _seen(self, node: Informer[Node], ended: Callable[[], bool]) -> Node | None:
        """The node's object; waits for it if the scheme needs it."""
        name = self._options.node_name
        seen = node.state().objects.get(name)
        if seen is None and self._builder.needs_node:
            self._window.unready = f"the API server has not shown node {name} yet: its labels count"
            fields = {"node": name, "reason": self._window.unready}
            log.warning("waiting for the Node object", extra=fields)
            while seen is None and not ended():
                time.sleep(STEP_SECONDS)
                seen = node.state().objects.get(name)
            self._window.unready = UNREGISTERED
        return seen

    def _begin(
        self, checkpoint: CheckpointFile, pods: Pods, node: Informer[Node], seen: Node | None
    ) -> None:
        """``seen`` is the node's object, as far as the API server has shown it."""
        options, health = self._options, self._watch.health
        adapter = self._adapter(health, seen)
        loaded = checkpoint.load()
        if loaded.problem is not None:
            log.warning("own checkpoint has a problem", extra={"err": str(loaded.problem)})
            self._numbers.checkpoint_read(loaded.problem.reason.value)
        connections = PluginConnections(
            cluster=self._cluster,
            pods=pods,
            node=node,
            injector=_injector(options, self._boot_id),
            checkpoint=checkpoint,
            content=self._content(loaded, adapter.devices(health.devices)),
            services=self._builder.services(
                options, self._boot_id, pods.find, lambda: self._watch.health, self._look
            ),
            repair=partial(self._builder.repair, options),
        )
        service = Service(
            options,
            adapter,
            connections,
            self._numbers,
            legacy=self._builder.refusal(adapter) if options.legacy_refusal else None,
            failpoint=self._failpoint,
        )
        service.start(health)
        self._open.callback(service.stop)
        self._window.service = service
        self._relay.changed(self._watch.health)  # the changes since the first look

    def _content(self, loaded: Loaded, devices: Iterable[Device]) -> CheckpointContent:
        """The content of our checkpoint; before there is one, of the original plugin's."""
        migrated = None
        if loaded == Loaded():
            migrated = self._builder.predecessor(self._options, devices)
        if migrated is None:
            return CheckpointContent(loaded.admitted_pods, loaded.this_boot)
        for problem in migrated.problems:
            log.warning("gpu-manager's checkpoint has a problem", extra={"err": str(problem)})
        if migrated.admitted_pods:
            log.info(
                "gpu-manager's checkpoint was read", extra={"pods": len(migrated.admitted_pods)}
            )
        return CheckpointContent(migrated.admitted_pods)

    def _adapter(self, health: Health, node: Node | None) -> SchemeAdapter:
        """The scheme's adapter. Raises Failure."""
        options = self._options
        try:
            nodes = (
                tuple(other for page in self._cluster.node_pages() for other in page.objects)
                if self._builder.needs_nodes(options)
                else ()
            )
            inputs = AdapterInputs(tuple(health.devices), node, nodes, self._watch.links)
            return self._builder.make(options, inputs)
        except (ClusterError, FactorError, ShimError) as error:
            raise Failure(str(error)) from error

    def _follow_node(self) -> Informer[Node]:
        name = self._options.node_name
        api = list_watch.node(self._cluster, name)
        informer = Informer(
            api, self._cluster.server, key=lambda node: node.name, changed=self._look
        )
        informer.start()
        return informer

    def _look(self) -> None:
        """The watch of the API server has shown a change."""
        service = self._window.service
        if service is not None:
            service.binder.wake()
            service.status_manager.wake()

    def _stop_watching(self) -> None:
        self.stuck = not self._watch.stop()


class HealthRelay:
    """Reports the newest health to the pages and to the service. Any thread may call it."""

    def __init__(self, window: StatusView, newest: Callable[[], Health]) -> None:
        self._window = window
        self._newest = newest
        self._changing = threading.Lock()

    def changed(self, _: Health) -> None:
        """The driver has reported a change. Of two threads the last one has the newest health."""
        with self._changing:
            health = self._window.health = self._newest()
            service = self._window.service
            if service is not None:
                service.changed(health)


def _wait(there: Callable[[float], bool], seconds: float, ended: Callable[[], bool]) -> None:
    """Wait until ``there`` is true or the program ends, for at most ``seconds``."""
    until = time.monotonic() + seconds
    while not ended() and time.monotonic() < until and not there(STEP_SECONDS):
        pass


def _injector(options: PluginOptions, boot_id: str) -> Injector:
    """The injector: by CDI, or by files without CDI."""
    if options.cdi:
        return CdiInjector(options.cdi_spec_dir, options.scheme, boot_id)
    return FileInjector(options.run_dir, options.scheme, boot_id)
