"""The plugin's metrics and probes on its port."""

from collections import Counter
from collections.abc import Callable, Mapping

from deviceplugin.health.device_health import Health
from deviceplugin.kubelet.offers import gpu_statuses
from deviceplugin.metrics import TABLES, PluginMetrics, PluginView
from deviceplugin.service import Service
from vgpu.program.pages import Complaint, no_complaint, program_routes
from vgpu.web.metrics import LiveMetrics, metrics_page
from vgpu.web.routes import Routes

UNREGISTERED = "not registered with the kubelet yet"

Requests = Mapping[tuple[str, str], int]


class StatusView:
    """The data of the metrics page, also before there is a service."""

    def __init__(
        self,
        scheme: str,
        mode: str,
        node: str,
        numbers: PluginMetrics,
        *,
        requests: Callable[[], Requests],
        build: Mapping[str, str],
        own: Callable[[], Mapping[str, float]],
        token: Complaint = no_complaint,
    ) -> None:
        """The callables return numbers that are counted elsewhere."""
        self._scheme = scheme
        self._mode = mode
        self._node = node
        self._numbers = numbers
        self._requests = requests
        self._build = build
        self._own = own
        self._token = token
        self.service: Service | None = None
        self.health = Health.at_start()
        self.unready = UNREGISTERED
        """Why pods cannot be served yet."""

    @property
    def ready(self) -> bool:
        """Whether pods can be served."""
        return not self.complaint()

    def complaint(self) -> str:
        """Why pods cannot be served; "" if they can."""
        is_serving = self.service is not None and self.service.ready()
        return self._token() or ("" if is_serving else self.unready)

    def view(self) -> PluginView:
        """The present data."""
        service = self.service
        states = service.registrar.states() if service else ()
        state = service.state() if service else None
        admitted_pods = state.allocation_state.admitted_pods if state else {}
        foreign = sum(admitted_pod.foreign for admitted_pod in admitted_pods.values())
        return PluginView(
            scheme=self._scheme,
            mode=self._mode,
            node=self._node,
            ready=self.ready,
            recovered=state is not None,
            offers=service.offers.rows({state.resource: state.registered for state in states})
            if service
            else (),
            gpus=gpu_statuses(service.offers.devices(), self.health) if service else (),
            registrations={
                (state.resource, outcome.value): count
                for state in states
                for outcome, count in state.outcomes.items()
            },
            admitted_pods={
                "bound": len(admitted_pods) - foreign,
                "foreign": foreign,
                "unbooked": len(state.allocation_state.unbooked) if state else 0,
            },
            expecting=service.binder.expecting() if service else 0,
            unbound=service.unbound() if service else Counter(),
            health_events={
                (uuid, reason.value): count for (uuid, reason), count in self.health.events.items()
            },
            write_counts=service.status_manager.counts() if service else {},
            requests=self._requests(),
            build=self._build,
            own=self._own(),
            **self._numbers.counted(),
        )


def routes(window: StatusView) -> Routes:
    """The paths that are served."""
    metrics = metrics_page(LiveMetrics(TABLES, window.view).body)
    return program_routes(
        "device plugin",
        {"/metrics": metrics},
        ready=window.complaint,
    )
