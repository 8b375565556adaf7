"""A day of the exporter in minutes: its memory and its descriptors must stay level.

    python benchmarks/soak.py [--samples 5760] [--warm-up 2500]

5,760 samples are a day at 15 s. The real process samples a node every few milliseconds: its regions
move 15 s a step, its pods come and go (each with a new name, UID and pid), hostile files appear
under new names, and its driver is lost and returns. Meanwhile the process is scraped in both
formats, with and without gzip, over kept and over new connections. Its memory and descriptors are
measured after the warm-up and after each third of the run; the exit status is 1 if they have grown.

A leak grows in every third. A heap settles: it grows by a MiB now and then for hours, and then no
more. So memory has grown if each third added to it, or if all three together added too much.
"""

import argparse
import gzip
import http.client
import itertools
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

from simulator import tree  # noqa: E402
from simulator.demo import demo  # noqa: E402
from simulator.node import SimulatedDriver, region_path  # noqa: E402
from simulator.scenario import (  # noqa: E402
    HAMI_ROOT,
    Process,
    Shim,
    SimulatedContainer,
    SimulatedPod,
    constant,
    container_id,
    identity,
)
from simulator.state import alive_at, regions_at  # noqa: E402
from tests.support.live import LiveExporter  # noqa: E402
from tests.support.regions import write as write_region  # noqa: E402
from vgpu.model.allocation import Share  # noqa: E402
from vgpu.model.names import PodRef, Scheme  # noqa: E402
from vgpu.model.units import GIB  # noqa: E402

INTERVAL = "5ms"
STEP_SECONDS = 15.0
GUESTS, GUEST_STEPS = 12, 25
"""Number of guests at a time, and number of steps after which one is replaced: each stays for some
seconds, so that caches of settled files have it too."""
JUNK_STEPS, DRIVER_STEPS, LOST_STEPS = 7, 200, 20
PAUSE_SECONDS = 0.004
"""Pause after a scrape without a new sample, in seconds."""
STALL_SECONDS = 60
REST_SECONDS, READINGS, READING_SECONDS = 0.5, 41, 0.05
THIRD_KIB, ALL_KIB = 256, 2560
"""Maximum growth of memory in each third, and in all together, in KiB."""
OPENMETRICS = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"
FORMS = tuple(itertools.product(("*/*", OPENMETRICS), ("identity", "gzip"), (True, False)))
"""Accept, Accept-Encoding, and whether the connection is kept."""


class ProcessLevel(msgspec.Struct, frozen=True):
    """The process's KiB, descriptors and threads, after this number of samples and scrapes."""

    samples: int
    scrapes: int
    rss: int
    descriptors: int
    threads: int


def guest(number):
    """A new pod."""
    name = f"guest-{number}"
    process = Process(pid=3_000_000 + number, gpu=1, data=constant(GIB), sm=constant(0.1))
    container = SimulatedContainer(
        name="main",
        id=container_id(name),
        scheme=Scheme.VOLCANO,
        shares=(Share(device=demo().gpus[1].uuid, memory_bytes=2 * GIB, cores_milli=50),),
        processes=(process,),
        shim=Shim(layout="v1.2", root=HAMI_ROOT, cache=identity(f"region of {name}")),
    )
    return SimulatedPod(ref=PodRef(identity(name), "guests", name), containers=(container,))


class World:
    """The node of the exporter; ``step`` changes it."""

    def __init__(self, exporter):
        self.exporter, self.node = exporter, exporter.node
        self.steps = 0
        self._guests = deque()
        self._tree = self._tree_of(self.node.scenario, 0.0)
        self._junk = None
        self._epoch = 0

    def step(self):
        self.steps += 1
        t = self.steps * STEP_SECONDS
        self.node.write(t)
        if self.steps % GUEST_STEPS == 0:
            self._swap_guests(t)
        if self.steps % JUNK_STEPS == 0:
            self._litter()
        phase = self.steps % DRIVER_STEPS
        if phase == DRIVER_STEPS - LOST_STEPS:
            self.exporter.driver.unload()
            self._epoch += 1
        elif phase < DRIVER_STEPS - LOST_STEPS and self.steps % 5 == 0:
            self.exporter.write_driver(epoch=self._epoch)

    def rest(self):
        """Write the driver's files, and wait until the exporter has read them."""
        self.exporter.write_driver(epoch=self._epoch)
        time.sleep(REST_SECONDS)

    def _swap_guests(self, t):
        """Add one pod with all its files, and remove the oldest pod with its files."""
        new = guest(self.steps)
        self._guests.append(new)
        if len(self._guests) > GUESTS:
            shutil.rmtree(self._region(self._guests.popleft()).parent)
        base, start = self.node.scenario, self.node.start
        scenario = msgspec.structs.replace(base, pods=(*base.pods, *self._guests))
        self._become(self._tree_of(scenario, t))
        region = self._region(new)
        region.parent.mkdir(parents=True)
        write_region(region, regions_at(scenario, t, start)[new.containers[0].id])
        self.exporter.sample = SimulatedDriver(scenario, start, lambda: t).sample(0.0)

    def _tree_of(self, scenario, t):
        return tree.tree(scenario, alive_at(scenario, t), self.node.start)

    def _region(self, pod):
        return self.node.folder / region_path(pod, pod.containers[0])

    def _become(self, new):
        """Replace the files by those of ``new``, as SimulatedNode does within one scenario."""
        old, self._tree = self._tree, new
        for path, content in new.files.items():
            if old.files.get(path) != content:
                target = self.node.folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
        for path in new.links.keys() - old.links.keys():
            (self.node.folder / path).symlink_to(new.links[path])
        for path in (old.files | old.links).keys() - (new.files | new.links).keys():
            gone = self.node.folder / path
            gone.unlink()
            with suppress(OSError):  # not empty: others are still there
                gone.parent.rmdir()
                gone.parent.parent.rmdir()

    def _litter(self):
        """Write one hostile entry under a new name, in place of the last one."""
        if self._junk is not None:
            shutil.rmtree(self._junk)
        root = Path(self.node.paths.shim_roots[0])
        self._junk = root / f"{identity(f'junk {self.steps}')}_tenant"
        self._junk.mkdir()
        file = self._junk / f"{self.steps}.cache"
        kind = self.steps // JUNK_STEPS % 5
        if kind == 0:
            file.write_bytes(b"short")
        elif kind == 1:
            file.symlink_to("/etc/passwd")
        elif kind == 2:
            os.mkfifo(file)
        elif kind == 3:
            file.mkdir()
        else:
            file.with_name(f"{self.steps}\n\udcff.cache").write_bytes(os.urandom(2000))


class Scraper:
    """Scrapes the exporter in each form in turn, and counts the samples that it saw."""

    def __init__(self, exporter):
        self._port = exporter.port
        self._kept = None
        self._newest, self._seen = "", time.monotonic()
        self.scrapes = self.samples = 0

    def _fetch(self, path, headers, keep):
        connection = self._kept if keep else None
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
            self._kept = connection if keep else self._kept
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        body = response.read()
        if not keep:
            connection.close()
        return response, body

    def scrape(self):
        accept, encoding, keep = FORMS[self.scrapes % len(FORMS)]
        headers = {"Accept": accept, "Accept-Encoding": encoding}
        response, body = self._fetch("/metrics", headers, keep)
        assert response.status == 200, response.status
        self.scrapes += 1
        self._note(gzip.decompress(body) if encoding == "gzip" else body)
        if self.scrapes % 20 == 0:
            assert self._fetch("/", {}, keep=True)[0].status == 200
            assert self._fetch(f"/{self.scrapes}", {}, keep=False)[0].status == 404

    def _note(self, body):
        at = body.index(b"\nvgpu_snapshot_timestamp_seconds ")
        newest = body[at + 1 : body.index(b"\n", at + 1)]
        if newest == self._newest:
            assert time.monotonic() < self._seen + STALL_SECONDS, "no new sample"
            time.sleep(PAUSE_SECONDS)
        else:
            self._newest, self._seen = newest, time.monotonic()
            self.samples += 1

    def hang_up(self):
        if self._kept is not None:
            self._kept.close()
            self._kept = None


def status_of(pid):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def descriptors_of(pid):
    """Number of open descriptors, without the one with which the fake driver waits for events."""
    count = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since it was listed
            count += link.readlink() != Path("anon_inode:inotify")
    return count


def level(world, scraper):
    """The process's level while it goes on sampling, without open connections."""
    scraper.hang_up()
    world.rest()
    memory, descriptors, threads = [], [], []
    for _ in range(READINGS):
        time.sleep(READING_SECONDS)
        pid = world.exporter.process.pid
        status = status_of(pid)
        memory.append(int(status["VmRSS"].split()[0]))
        threads.append(int(status["Threads"]))
        descriptors.append(descriptors_of(pid))
    return ProcessLevel(
        scraper.samples,
        scraper.scrapes,
        statistics.median(memory),
        min(descriptors),  # more are open while a file is being read
        min(threads),
    )


def soak(folder, samples, warm_up):
    """The levels after ``warm_up`` samples and scrapes, and after each third of ``samples``."""
    with LiveExporter(folder, demo(), f"--sample.interval={INTERVAL}") as exporter:
        world, scraper = World(exporter), Scraper(exporter)
        levels = []
        for part in range(4):
            while min(scraper.samples, scraper.scrapes) < warm_up + samples * part // 3:
                world.step()
                scraper.scrape()
            levels.append(level(world, scraper))
        assert exporter.metrics()["vgpu_join_failures_total"] == 0
        assert exporter.stop() == 0, exporter.log()
        assert "defect" not in exporter.log(), exporter.log()
    return levels


def growth(levels):
    """The levels that have grown, in words."""
    first, last = levels[0], levels[-1]
    thirds = [after.rss - before.rss for before, after in itertools.pairwise(levels)]
    grown = []
    if min(thirds) > THIRD_KIB or sum(thirds) > ALL_KIB:
        grown.append(f"memory by {', '.join(map(str, thirds))} KiB")
    for what in ("descriptors", "threads"):
        before, after = getattr(first, what), getattr(last, what)
        if after > before:
            grown.append(f"{what} from {before} to {after}")
    return grown


def show(levels):
    print(f"{'samples':>8}{'scrapes':>9}{'RSS MiB':>10}{'descriptors':>13}{'threads':>9}")
    for one in levels:
        print(
            f"{one.samples:>8}{one.scrapes:>9}{one.rss / 1024:>10.2f}"
            f"{one.descriptors:>13}{one.threads:>9}"
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=5760)
    parser.add_argument("--warm-up", type=int, default=2500)
    args = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vgpu-soak-") as folder:
        levels = soak(Path(folder), args.samples, args.warm_up)
    show(levels)
    print(f"{time.monotonic() - started:.0f} s")
    grown = growth(levels)
    print("grown: " + "; ".join(grown) if grown else "level")
    return bool(grown)


if __name__ == "__main__":
    sys.exit(main())
