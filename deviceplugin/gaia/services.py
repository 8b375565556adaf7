"""All that gpu-manager needs on a node besides the answers to the kubelet, behind one object.

The plugin calls it in this order: :meth:`~GaiaServices.serve` for every admitted pod that it has
found at its start, :meth:`~GaiaServices.prune` once when it knows them all,
:meth:`~GaiaServices.bound` before a container is created, and :meth:`~GaiaServices.stop_serving`.
"""

import logging
import re
import threading
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

import msgspec

from deviceplugin.gaia.driver_layout import Flavour
from deviceplugin.gaia.driver_mirror import DriverMirror, DriverSource, Mirrored
from deviceplugin.gaia.limits_writer import ContainerNames, Driver, LimitsWriter, pids_of
from deviceplugin.gaia.vcuda_files import LimitsFolder
from deviceplugin.gaia.vcuda_server import VcudaServers
from deviceplugin.model import AdmittedPod
from vgpu.model.objects import Pod
from vgpu.model.reasons import Reason, SourceError
from vgpu.model.units import WHOLE_DEVICE_MILLI

log = logging.getLogger(__name__)

REFRESH_SECONDS: Final = 60.0
"""Interval between two looks at the host's driver and at the files of limits, in seconds."""

_ENDING_SECONDS: Final = 30.0
"""Maximum time to wait for the thread at the end, in seconds: it may be copying the driver."""

_VERSION: Final = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})(?:\.[0-9]{1,9})*")


class GaiaSettings(msgspec.Struct, frozen=True):
    """Paths of files and folders. ``driver`` is mirrored to ``driver_dir``."""

    limits_dir: str = "/etc/gpu-manager/vm"
    driver_dir: str = "/etc/gpu-manager/vdriver"
    driver: DriverSource = DriverSource()
    procfs: str = "/proc"
    cgroupfs: str = "/sys/fs/cgroup"
    log_dir: str = "/var/log/pods"
    boot_id: str = ""


class GaiaServices:
    """gpu-manager's :class:`deviceplugin.ports.SchemeServices`. Any thread may use it."""

    def __init__(
        self,
        settings: GaiaSettings,
        *,
        pod: Callable[[str], Pod | None],
        driver: Driver,
        mirrored: Callable[[], object] = lambda: None,
    ) -> None:
        """``pod`` finds a pod by its UID on the node, as far as the API server has shown it.

        ``driver`` returns its version, see :func:`driver_version`. ``mirrored`` is called when the
        driver's folders for containers have changed: pods that wait for them may start.
        """
        self._folder = LimitsFolder(settings.limits_dir)
        self._registrar = LimitsWriter(
            self._folder,
            processes=partial(pids_of, procfs=settings.procfs, cgroupfs=settings.cgroupfs),
            names=ContainerNames(settings.log_dir).of,
            pod=pod,
            driver=driver,
        )
        self._servers = VcudaServers(self._registrar.pod_files)
        self._informer = DriverMirror(settings.driver_dir, settings.driver, settings.boot_id)
        self._notify = mirrored
        self._mirrored: Mirrored | None = None
        self._problem = "the driver is not mirrored yet"
        self._stopping = threading.Event()
        self._refresher = threading.Thread(target=self._keep_fresh, name="mirror", daemon=True)

    def start(self) -> None:
        """Start; the driver is mirrored in the background, which may take seconds."""
        self._servers.start()
        self._refresher.start()

    def stop(self) -> None:
        """Stop; written files stay, since containers run on."""
        self._stopping.set()
        self._servers.stop()
        self._refresher.join(_ENDING_SECONDS)

    @property
    def problem(self) -> str:
        """Why some containers cannot get the driver; "" if all can."""
        return self._problem

    def serve(self, admitted_pod: AdmittedPod) -> None:
        """Serve the pod's containers from now on, by these shares. Raises OSError."""
        uid = admitted_pod.pod.uid
        self._folder.make(uid)
        self._registrar.serve(admitted_pod)
        self._servers.open(uid, self._folder.socket(uid))

    def bound(self, admitted_pod: AdmittedPod) -> None:
        """Like :meth:`serve`, before a container is created; raises OSError if the container has to
        wait.
        """
        self.serve(admitted_pod)
        self.require_driver(admitted_pod)

    def stop_serving(self, uid: str) -> None:
        """The pod's containers are gone: remove its socket and folder. Raises OSError."""
        self._servers.close(uid)
        self._registrar.stop_serving(uid)

    def prune(self, uids: Collection[str]) -> None:
        """Remove the folders of all other pods; to be called before any new one gets a share.

        ``uids`` are those of all pods that may have containers, admitted or not. Raises OSError.
        """
        for uid in self._folder.pods():
            if uid not in uids:
                log.info("limits of a deleted pod are removed", extra={"uid": uid})
                self.stop_serving(uid)

    def refresh(self) -> None:
        """Look at the host's driver now; :attr:`problem` has the result."""
        before, old_problem = self._mirrored, self._problem
        try:
            self._mirrored = self._informer.refresh()
            self._problem = self._mirrored.problem
        except (SourceError, OSError) as error:  # the mirrored driver may not be the loaded one
            self._mirrored, self._problem = None, str(error)
        if self._problem and self._problem != old_problem:
            log.warning("driver not available to some containers", extra={"reason": self._problem})
        if self._mirrored and self._mirrored != before:
            log.info("the driver is available to containers", extra=_fields(self._mirrored))
            self._notify()

    def repair(self) -> None:
        """Rewrite damaged files of limits now."""
        self._registrar.repair()

    def require_driver(self, admitted_pod: AdmittedPod) -> None:
        """Raises OSError while there is no folder of the driver for the pod."""
        flavours = {_flavour(share.cores_milli) for share in admitted_pod.shares}
        there = self._mirrored.folders.keys() if self._mirrored else frozenset()
        if not flavours <= there:
            raise OSError(self._problem or "no driver is mirrored for such a share")

    def _keep_fresh(self) -> None:
        """Refresh repeatedly: the driver may come late or be replaced, limits may be damaged."""
        while not self._stopping.is_set():
            for keep in (self.refresh, self.repair):
                try:
                    keep()
                except Exception:
                    log.exception("unexpected error while keeping gpu-manager's files")
            self._stopping.wait(REFRESH_SECONDS)


def driver_version(text: str) -> tuple[int, int]:
    """Major and minor of NVML's ``580.95.05``. Raises SourceError MALFORMED."""
    match = _VERSION.fullmatch(text)
    if match is None:
        raise SourceError(Reason.MALFORMED, "driver version", f"{text[:64]!r}")
    return int(match[1]), int(match[2])


def _flavour(cores_milli: int | None) -> Flavour:
    return Flavour.ORIGIN if cores_milli == WHOLE_DEVICE_MILLI else Flavour.SHARED


def _fields(mirrored: Mirrored) -> dict[str, str]:
    folders = ", ".join(sorted(mirrored.folders.values()))
    return {"version": mirrored.version, "folders": folders}
