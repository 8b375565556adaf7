"""Binder and allocator of a plugin over real files, with a kubelet and an API server that a test
plays.

    parts = Parts(folder)                 # with CDI; Parts(folder, LateFiles) is without
    parts.start()
    pod = parts.create("a", share(A, 2))
    parts.admit(pod, ["id-0"])            # Allocate, and the kubelet writes down for whom
    parts.start_container(pod)            # PreStartContainer
    parts.stop(), parts.start()           # another plugin over the same files

The kubelet's checkpoint, our own one and what containers are made with are files in the folder.
"""

from functools import partial
from pathlib import Path
from threading import enumerate as enumerate_threads
from time import monotonic

from msgspec.structs import replace

from deviceplugin.adapters.volcano import VolcanoAdapter
from deviceplugin.allocate.allocation_state import AllocationState
from deviceplugin.allocate.allocator import PodAllocator
from deviceplugin.allocate.binder import CHECKING_SECONDS, LEAVING_SECONDS, Binder
from deviceplugin.allocate.binder_state import Recovered
from deviceplugin.allocate.binding_writer import AllocateContext
from deviceplugin.allocate.checkpoint import CheckpointFile
from deviceplugin.allocate.ended_pods import collectable
from deviceplugin.failpoints import noop
from deviceplugin.injection.cdi import CdiInjector
from deviceplugin.kubelet.container_devices import KubeletTable
from deviceplugin.kubelet.responses import answer
from deviceplugin.metrics import PluginMetrics
from tests.deviceplugin.admitting_kubelet import content
from tests.deviceplugin.allocation_values import GPUS, NODE, NUMBER, SLOTS, pod
from tests.support.waiting import WAIT_SECONDS, wait_until
from vgpu.model.names import Scheme
from vgpu.schemes.volcano.codec import Volcano
from vgpu.schemes.volcano.key_set import VOLCANO

BOOT = "this-boot"
LONG_AGO = 1_790_000_000.0
PATIENT, HASTY = WAIT_SECONDS, 0.3


class ApiServer:
    """This node's pods; those in ``unseen`` the watch has not reported yet."""

    def __init__(self):
        self.pods, self.unseen, self.heard = {}, set(), True
        self.asked = 0

    def known(self):
        pods = {uid: one for uid, one in self.pods.items() if uid not in self.unseen}
        return pods if self.heard else None

    def find(self, uid):
        return (self.known() or {}).get(uid)

    def ask(self):
        self.asked += 1
        return dict(self.pods) if self.heard else None


class Watcher:
    """Records the calls of the binder."""

    def __init__(self):
        self.calls = []
        self.failure = None

    def prepare(self, admitted_pod):
        if self.failure:
            raise self.failure

    def wait(self, word):
        """The arguments of the first call of this name."""
        wait_until(lambda: self.count(word), f"{word!r} is called", context=lambda: str(self.calls))
        return next(arguments for what, arguments in self.calls if what == word)

    def count(self, word):
        return sum(what == word for what, _ in self.calls)

    def __getattr__(self, word):
        def note(*arguments):
            self.calls.append((word, arguments))

        return note


class Parts:
    def __init__(self, folder, injector=CdiInjector, *, legacy=None, prestart_seconds=PATIENT):
        self.folder = Path(folder)
        self.make_injector = injector
        self.legacy, self.prestart_seconds = legacy, prestart_seconds
        paths = replace(VOLCANO.paths, containers=str(self.folder / "containers"))
        self.adapter = VolcanoAdapter(Volcano(paths=paths), split_count=SLOTS)
        self.api = ApiServer()
        self.alive = set()
        """UIDs of pods that have a cgroup."""
        self.table = {}
        self.kubelet_file = self.folder / "kubelet_internal_checkpoint"
        self.devices = GPUS
        self.binder = None
        self.looks = []
        """At each look for pods that have left: the pods of the kubelet's checkpoint."""
        self._skipped = 0.0

    # ------------------------------------------------------------ the plugin

    def start(self, at=noop, *, recovered=True):
        """A new plugin; ``at`` is called at every step."""
        self.injector = self.make_injector(str(self.folder / "handout"), Scheme.VOLCANO, BOOT)
        self.store = CheckpointFile(str(self.folder / "state"), Scheme.VOLCANO, NODE, BOOT)
        self.store.open(0)
        self.watcher = Watcher()
        self.numbers = PluginMetrics()
        context = AllocateContext(self.adapter, NODE, self.api, self.injector, at)
        table = KubeletTable(str(self.kubelet_file), NUMBER)
        self.binder = Binder(
            context, table, self.store, self.watcher, self._gone, monotonic=self._monotonic
        )
        self._make_allocator = partial(
            PodAllocator, context, self.binder, self.numbers, legacy=self.legacy
        )
        self.wait_at_most(self.prestart_seconds)
        if recovered:
            self.binder.start(partial(self.recover, self.store.load().admitted_pods))
            assert self.binder.recovered(PATIENT)

    def stop(self):
        if self.binder is not None:
            self.binder.stop()
            self.store.close()
            self.binder = None

    def _monotonic(self):
        return monotonic() + self._skipped

    def wait_at_most(self, seconds):
        """The kubelet's PreStartContainer waits so long from now on."""
        self.allocator = self._make_allocator(prestart_seconds=seconds)

    def look_at_all(self):
        """Rare looks are due now: at all written files, and for pods that have left."""
        self._skipped += max(CHECKING_SECONDS, LEAVING_SECONDS)
        self.binder.wake()

    def threads(self):
        """The binders' threads that are alive."""
        return [thread for thread in enumerate_threads() if thread.name == "binder"]

    def recover(self, admitted_pods, _known):
        allocation_state, conflicts = AllocationState.over(self.devices, admitted_pods)
        return Recovered(allocation_state, conflicts)

    def _gone(self, state, pods, _shown):
        self.looks.append(state.assigned_pods)
        known = None if pods is None else pods.values()
        return collectable(state.allocation_state, known, frozenset(self.alive), None, LONG_AGO * 2)

    # ------------------------------------------------------------ pods

    def create(self, name, *shares, seen=True, **fields):
        """A pod of one container, as the scheduler leaves it."""
        made = pod(name, *shares, **fields)
        return self.put(made, seen=seen)

    def put(self, made, *, seen=True):
        self.api.pods[made.kubelet_uid] = made
        if not seen:
            self.api.unseen.add(made.kubelet_uid)
        return made

    def remove(self, made):
        """The pod is gone: its object, its containers, and its entries at the kubelet."""
        uid = made.kubelet_uid
        del self.api.pods[uid]
        self.alive.discard(uid)
        self.write({key: held for key, held in self.table.items() if key[0] != uid})

    # ------------------------------------------------------------ the kubelet

    def admit(self, made, ids, container="main", *, guess=None, heard=True):
        """The name of the answer; without ``heard`` the kubelet dies before it writes it down."""
        name, edits = self.allocator.allocate(NUMBER, frozenset(ids))
        if heard:
            self.give(made, ids, name, edits, container)
        return name

    def give(self, made, ids, name, edits, container="main"):
        """The kubelet writes down that the answer was for this container."""
        response = answer(name, edits, cdi=not self.injector.guesses).SerializeToString()
        uid = made.kubelet_uid
        self.alive.add(uid)
        self.write({**self.table, (uid, container, NUMBER): (sorted(ids), response)})

    def write(self, table):
        self.table = table
        new = self.kubelet_file.with_suffix(".new")
        new.write_text(content(table))
        new.rename(self.kubelet_file)

    def start_container(self, made, container="main"):
        """Raises Refused."""
        ids, _ = self.table[made.kubelet_uid, container, NUMBER]
        self.allocator.prestart(NUMBER, frozenset(ids))

    # ------------------------------------------------------------ what can be seen

    def saved(self):
        """Our checkpoint, by pod."""
        kept = CheckpointFile(str(self.folder / "state"), Scheme.VOLCANO, NODE, BOOT).load()
        return {admitted_pod.pod.uid: admitted_pod for admitted_pod in kept.admitted_pods}

    def waits(self):
        """Step -> how often something was waited for."""
        return {wait.value: count for wait, (count, _) in self.numbers.counted()["waits"].items()}

    def refusals(self):
        """(step, reason) -> how often."""
        return dict(self.numbers.counted()["refusals"])
