"""Processes with Gemini's hook, and one that lies, before the daemon's code on a virtual clock.

The hook is modelled from its source, github.com/NTHU-LSALAB/Gemini: v1.0 is tag v1.0, v1.1 branch
v1.1-kubeshare, head is master; files are under ``src/``. Only what concerns time is here; all times
are whole microseconds. A GPU runs one kernel at a time, in the order of their launches.

A program is a generator. It yields the time until which it sleeps, or a :class:`QuotaRequest` for
which it receives the quota.
"""

import heapq
import itertools
import struct
from bisect import bisect_left

from kubeshare.tenant_identity import TenantEntry
from kubeshare.tokens.frames import QuotaRequest
from kubeshare.tokens.gpu_tokens import NEVER, GpuTokens
from kubeshare.tokens.scheduler import DEFAULT_RULES, GRACE_PARTS
from tests.kubeshare.tokens.gemini_process import UUID, pod

MS = 1_000
SECOND = 1_000_000
KEPT = 3 * SECOND  # predictor.h:27
OVERHEAD = 2 * MS  # hook.cpp v1.0:160, v1.1:185


class Predictor:
    """The longest burst, or the longest idle window, of the last 3 s (predictor.cpp)."""

    def __init__(self, merges_within=0):
        self.merges_within = merges_within
        self.spans, self.merged = [], []
        self.began = self.long_began = self.ended = None

    def start(self, now):  # record_start, :105-124
        if self.began is None:
            self.began = now
            is_new = self.ended is None or now - self.ended > self.merges_within
            if self.long_began is None or is_new:
                self.long_began, self.ended = now, None

    def stop(self, now):  # record_stop, :83-102
        if self.began is not None:
            self.spans.append((now, now - self.began))
            self.merged.append((now, now - self.long_began))
            self.ended, self.began = now, None

    def interrupt(self):  # :127-136
        self.began = self.long_began = self.ended = None

    def predicted(self, now, *, merged=False):  # :139-163
        spans = self.merged if merged else self.spans
        while spans and now - spans[0][0] > KEPT:
            spans.pop(0)
        return max((time for _, time in spans), default=0)


class Hook:
    """The kernels of one process, v1.0, v1.1 or head."""

    def __init__(self, simulation, version):
        self.simulation, self.version = simulation, version
        self.bursts, self.windows = Predictor(OVERHEAD), Predictor()
        self.messages = 0
        self.quota = 0  # quota_time: that of the first token is not stored (v1.0:706)
        self.token_at = None  # request_start and cuevent_start
        self.overuse = 0
        self.finish = 0  # when the kernels of this process are done
        self.tracked_at = None  # when the tracking thread is done with this token, if it is known
        self.waits = []

    def begin(self):
        """The first intercepted call asks for a token (v1.0:706), in v1.1 for two (:845)."""
        for _ in range(2 if self.version == "v1.1" else 1):
            yield from self._token(0, 0)

    def launch(self, length):
        """The gate of cuLaunchKernel (v1.0:441-497, v1.1:572-629)."""
        simulation = self.simulation
        self._track(simulation.now)
        now = simulation.now
        self.windows.stop(now)
        elapsed = NEVER if self.token_at is None else now - self.token_at
        # within a burst nothing is asked (v1.0:457)
        if self.bursts.began is None and elapsed + self.bursts.predicted(now) >= self.quota:
            window = self.windows.predicted(now, merged=True)
            burst = self.bursts.predicted(now, merged=True)
            if window < OVERHEAD:  # estimate_full_burst (v1.0:340-358)
                burst *= 2
            if self.token_at is not None and self.tracked_at is None:
                yield self.finish  # the tracking thread waits for the kernels (v1.0:470)
                self._tracked(max(simulation.now, self.finish))
            self.windows.interrupt()  # v1.0:473
            asked = simulation.now
            self.quota = yield from self._token(burst, window)
            if self.version == "head":
                self.quota = 6 * SECOND  # whatever the answer is (head:457-458)
            self.waits.append((asked, simulation.now))
            self.token_at, self.tracked_at = simulation.now, None
        self.bursts.start(simulation.now)  # v1.0:491
        self.finish = simulation.run_kernel(self, length)

    def synchronise(self):
        """cuCtxSynchronize, and host_sync_call (v1.0:272-278)."""
        if self.finish > self.simulation.now:
            yield self.finish
        self._track(self.simulation.now)
        self.bursts.stop(self.simulation.now)
        self.windows.start(self.simulation.now)

    def _track(self, now):
        """What wait_cuda_kernels has done until now: it wakes at the quota's end (v1.0:394-437)."""
        if self.token_at is None or self.tracked_at is not None:
            return
        done = max(self.token_at + self.quota, self.finish)
        if done <= now:
            self._tracked(done)

    def _tracked(self, done):
        self.tracked_at = done
        self.bursts.stop(done)
        self.windows.start(done)
        self.overuse = max(0, done - self.token_at - self.quota)  # v1.0:427-428

    def _token(self, burst, window):
        """get_token_from_scheduler (v1.0:361); later ones send other times (v1.1:501, :595)."""
        times = (self.overuse, burst) if self.version == "v1.0" else (burst, window)
        request = QuotaRequest(b"", self.messages, *(each / MS for each in times))
        self.messages += 1
        quota = yield request
        return quota


class Liar:
    """Keeps each token until just before quota and grace have passed, and reports no overuse."""

    version = "v1.0"

    def __init__(self, simulation, margin=12 * MS):
        self.simulation, self.margin = simulation, margin
        self.waits = []

    def keeps(self, every=1):
        """The program; it keeps so many tokens too long, one of ``every``."""
        for number in itertools.count():
            asked = self.simulation.now
            quota = yield QuotaRequest(b"", number, 0.0, 1500.0)
            self.waits.append((asked, self.simulation.now))
            grace = 2 * max(0, 1500 * MS - quota) + quota // GRACE_PARTS
            if number == 0:  # its burst is not known yet
                grace = quota
            grace = min(grace, self.simulation.rules.max_grace) if number % every == 0 else 0
            end = self.simulation.now + max(quota + grace - self.margin, quota // 2)
            self.simulation.hold(self, end)
            yield end


def busy(hook, length, number=1, since=0):
    """Always: ``number`` kernels, and a synchronisation."""
    yield since
    yield from hook.begin()
    while True:
        for _ in range(number):
            yield from hook.launch(length)
        yield from hook.synchronise()


def bursty(hook, length, every, since=0):
    """A kernel and a synchronisation at each time; those that are missed are not made up for."""
    yield since
    yield from hook.begin()
    at = hook.simulation.now
    while True:
        yield from hook.launch(length)
        yield from hook.synchronise()
        at = max(at + every, hook.simulation.now)
        yield at


class HookSimulation:
    """Pods with one process each on one GPU; ``latency`` is that of an answer."""

    def __init__(self, shares, rules=DEFAULT_RULES, latency=MS):
        self.rules, self.latency, self.now = rules, latency, 0
        self.tokens = GpuTokens(rules, 0)
        self.entries = {
            name: TenantEntry(UUID, "ns", name, 50051 + number, pod(name, *share))
            for number, (name, share) in enumerate(shares.items())
        }
        self.tokens.configure(self.entries.values(), 0)
        self.kernels = {name: [] for name in shares}  # begin, end
        self._sums, self._times = ({name: [] for name in shares} for _ in range(2))
        self._names, self._programs, self._keys, self._waiting = {}, {}, {}, {}
        self._order = itertools.count()
        self._events = []
        self._free_at = 0

    def hook(self, name, version="v1.0"):
        """A process of a pod with a hook."""
        return self._named(name, Hook(self, version))

    def liar(self, name, **options):
        """A process of a pod that keeps its tokens."""
        return self._named(name, Liar(self, **options))

    def _named(self, name, process):
        self._names[process] = name
        return process

    def start(self, process, program):
        """Run its program from now on."""
        self._programs[process] = program
        self._push(self.now, process, None)

    def end(self, process):
        """It ends now, and with it all its connections."""
        self._programs.pop(process)
        for key in [key for key, (who, _) in self._keys.items() if who is process]:
            del self._keys[key]
            self._deliver(self.tokens.disconnect(key, self.now))

    def run(self, until):
        while True:
            time = self._events[0][0] if self._events else NEVER
            wake_at = self.tokens.wake_at
            if min(time, wake_at) > until:
                break
            if wake_at <= time:
                self.now = wake_at
                self._deliver(self.tokens.tick(self.now))
                assert self.tokens.wake_at > self.now, "the daemon asks to be called at once"
                continue
            self.now, _, process, value = heapq.heappop(self._events)
            if process in self._programs:
                self._resume(process, value)
        self.now = until

    def run_kernel(self, process, length):
        """When a kernel that is launched now ends."""
        begin = max(self.now, self._free_at)
        self._free_at = begin + length
        self.kernels[self._names[process]].append((begin, self._free_at))
        return self._free_at

    def hold(self, process, end):
        """A process uses the GPU until then, whoever else does."""
        self.kernels[self._names[process]].append((self.now, end))

    def share(self, name, since, until):
        """The part of a time for which the kernels of a pod ran."""
        return (self._time(name, until) - self._time(name, since)) / (until - since)

    def _time(self, name, until):
        """For how long they ran until then."""
        ends, times = self._sums[name], self._times[name]
        for begin, end in self.kernels[name][len(ends) :]:
            ends.append(end)
            times.append((times[-1] if times else 0) + end - begin)
        number = bisect_left(ends, until)
        time = times[number - 1] if number else 0
        if number < len(ends):
            time += max(0, until - self.kernels[name][number][0])
        return time

    def windows(self, name, since):
        """The parts of all windows that end with a kernel, from ``since`` on."""
        length = self.rules.window.length
        ends = {end for _, end in self.kernels[name] if since + length <= end <= self.now}
        return [self.share(name, end - length, end) for end in sorted(ends)]

    def view(self, name):
        """What the page of metrics has of a pod."""
        return next(view for view in self.tokens.views(self.now) if view.entry.pod == name)

    def _push(self, time, process, value):
        heapq.heappush(self._events, (max(time, self.now), next(self._order), process, value))

    def _resume(self, process, value):
        step = self._programs[process].send(value)
        if not isinstance(step, QuotaRequest):
            self._push(step, process, None)
            return
        entry = self.entries[self._names[process]]
        key = (id(process), 0 if process.version == "v1.0" else step.id)
        if key not in self._keys:
            self.tokens.connect(entry, key, "10.0.0.1")
        self._keys[key] = process, step.id
        self._deliver(self.tokens.request(key, step, self.now))

    def _deliver(self, answers):
        for key, response, _ in answers:
            id_, milliseconds = struct.unpack_from("<id", response)
            process, asked = self._keys[key]
            assert id_ == asked
            self._push(self.now + self.latency, process, round(milliseconds * MS))
