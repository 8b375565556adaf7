"""The sampler over a whole simulated node: what is published, and what faults cost."""

import threading
import time
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest

from exporter import sampler as sampler_module
from exporter import statuspage
from exporter.sample_timer import SampleTimer
from exporter.sampler import STALE_INTERVALS
from simulator.state import regions_at
from tests.exporter.passing_time import PassingTime
from tests.support import own_state
from tests.support.descriptors import no_descriptors
from tests.support.live import parse
from tests.support.waiting import WAIT_SECONDS, wait_until
from vgpu.metrics.render import Format
from vgpu.model.facts import RegionDevice
from vgpu.model.names import Scheme, Source
from vgpu.model.reasons import Reason
from vgpu.schemes.volcano import hami_core

HANG_SECONDS = 3600.0
"""How long a driver hangs, in seconds: for ever, as far as a test goes."""


def page_text(page):
    return page.exposition.body(Format.TEXT).decode()


def series(page):
    return parse(page_text(page))


def starting(exported, prefix):
    return {name: value for name, value in exported.items() if name.startswith(prefix)}


def until_series(bench, condition, what):
    """The first sample's series for which the condition holds."""
    found = {}

    def sampled():
        found.clear()
        found.update(series(bench.sampler.sample()))
        return condition(found)

    wait_until(sampled, what, context=lambda: str(found))
    return found


def works(exported):
    return exported.get('vgpu_collector_success{collector="nvml"}') == 1


def first_page(bench):
    """The first one with a sample, of a sampler that runs."""
    deadline = time.monotonic() + WAIT_SECONDS
    page = bench.sampler.wait_until_ready(lambda: time.monotonic() > deadline)
    assert page is not None, "never a first sample"
    return page


def test_all_four_schemes_are_attributed_with_their_limits(bench):
    view = bench.sampler.sample().view
    schemes = {c.scheme for c in view.usage.containers}
    assert schemes >= {Scheme.VOLCANO, Scheme.GPUSHARE, Scheme.GAIA, Scheme.KUBESHARE}
    for scheme in (Scheme.VOLCANO, Scheme.GPUSHARE, Scheme.GAIA, Scheme.KUBESHARE):
        shares = [s for s in view.usage.shares if s.scheme is scheme]
        assert all(s.limit_bytes or s.unlimited for s in shares), scheme
        assert all(s.used_bytes is not None for s in shares), scheme
    assert all(row.success for row in view.collectors)


def test_used_memory_is_exactly_the_scenarios_and_the_gap_is_the_rest(bench):
    view = bench.sampler.sample().view
    driver = bench.driver.sample(0.0)
    for row in view.gpus:
        process_bytes = sum(p.used_bytes for p in driver.processes if p.device == row.gpu.uuid)
        attributed = sum(s.used_bytes for s in view.usage.shares if s.device == row.gpu.uuid)
        used = row.gpu.readings[("memory_used_bytes",)]
        assert row.use.attributed_bytes == attributed <= process_bytes
        assert row.use.unattributed_bytes == used - attributed
    assert sum(row.use.unattributed_processes for row in view.gpus) == 1


def test_all_troubles_of_the_demo_are_reported(bench):
    view = bench.sampler.sample().view
    over = bench.share(view, "finetune")
    assert over.used_bytes > over.limit_bytes
    assert over.accounted.total <= over.limit_bytes
    assert bench.share(view, "notebook-bao").accounted.phantom > 0
    assert any(c.blocked for c in view.usage.containers)
    assert len(view.usage.orphans) == 1
    assert len(view.usage.released) == 1
    page = bench.sampler.sample()
    assert 'vgpu_pods{phase="Failed",reason="UnexpectedAdmissionError"} 1' in page_text(page)


def test_what_our_own_plugin_has_bound_is_a_source_of_this_boot(bench):
    ledger = bench.sampler.sample().view.allocations.ledger
    exported = series(bench.sampler.sample())
    assert exported['vgpu_collector_success{collector="plugin"}'] == 1
    (before,) = (one for one in ledger.holdings if one.pod.name.startswith("detector"))
    path = own_state.keep(bench.node.paths, before)
    holdings = bench.sampler.sample().view.allocations.ledger.holdings
    of_plugin = [one for one in holdings if Source.OWN_CHECKPOINT in one.sources]
    assert [(one.pod, one.container) for one in of_plugin] == [(before.pod, before.container)]
    path.write_bytes(b"damaged")
    exported = series(bench.sampler.sample())
    assert exported['vgpu_collector_failures_total{collector="plugin",reason="malformed"}'] == 1
    assert exported['vgpu_allocation_source_read{source="own-checkpoint"}'] == 0
    assert exported['vgpu_collector_success{collector="kubelet"}'] == 1
    own_state.keep(bench.node.paths, before, boot_id="before")
    view = bench.sampler.sample().view
    assert all(row.success for row in view.collectors)
    of_plugin = [
        one for one in view.allocations.ledger.holdings if Source.OWN_CHECKPOINT in one.sources
    ]
    assert of_plugin == []


def test_a_new_sample_is_a_new_page_and_the_old_one_stays_whole(bench):
    first = bench.sampler.sample()
    before = page_text(first)
    bench.move(12.0)
    second = bench.sampler.sample()
    assert page_text(second) != before
    assert page_text(first) == before


def test_with_a_failing_driver_its_series_go_and_the_others_stay(bench):
    bench.sampler.sample()
    bench.driver.fail(Reason.DRIVER_NOT_LOADED)
    exported = series(bench.sampler.sample())
    assert not starting(exported, "vgpu_gpu_memory")
    assert not starting(exported, "vgpu_container_memory_used")
    assert starting(exported, "vgpu_container_memory_accounted_bytes")
    assert exported['vgpu_collector_success{collector="nvml"}'] == 0
    assert exported['vgpu_collector_success{collector="shim"}'] == 1
    name = 'vgpu_collector_failures_total{collector="nvml",reason="driver_not_loaded"}'
    assert exported[name] == 1
    bench.driver.recover()
    assert starting(series(bench.sampler.sample()), "vgpu_container_memory_used")


def test_a_broken_dump_of_the_pods_costs_only_what_no_other_source_has(bench):
    dump = Path(bench.node.paths.pods_file)
    whole = dump.read_bytes()
    dump.write_bytes(whole[:-1])
    exported = series(bench.sampler.sample())
    assert exported['vgpu_collector_failures_total{collector="pods",reason="malformed"}'] == 1
    assert exported['vgpu_collector_success{collector="kubelet"}'] == 1
    assert not starting(exported, "vgpu_pods{")
    used = starting(exported, "vgpu_container_memory_used_bytes")
    assert used
    dump.write_bytes(whole)
    repaired = series(bench.sampler.sample())
    assert repaired['vgpu_collector_success{collector="pods"}'] == 1
    assert starting(repaired, "vgpu_pods{")
    assert starting(repaired, "vgpu_container_memory_used_bytes") == used


@pytest.mark.slow
def test_a_hung_driver_is_reported_withdrawn_when_stale_and_never_called_twice(make_bench):
    interval = 0.5
    bench = make_bench(sample_interval=interval)
    late = 'vgpu_collector_failures_total{collector="nvml",reason="timeout"}'
    before = until_series(bench, works, "the driver works").get(late, 0)
    calls = bench.driver.calls()["sample"].count
    bench.driver.hang(HANG_SECONDS)
    bench.restart(timeout=2 * interval)
    exported = series(bench.sampler.sample())
    assert exported['vgpu_collector_success{collector="nvml"}'] == 0
    exported = until_series(
        bench,
        lambda exported: (
            not starting(exported, "vgpu_gpu_memory")
            and starting(exported, "vgpu_container_memory_accounted_bytes")
        ),
        f"only the driver's series withdrawn, after {STALE_INTERVALS} intervals",
    )
    assert exported["vgpu_driver_call_stuck_seconds"] > 0
    assert exported[late] == before + 1
    assert bench.driver.calls()["sample"].count == calls
    assert not bench.sampler.stop(grace=0.1)
    bench.driver.recover()
    exported = until_series(bench, works, "the driver works again")
    assert exported["vgpu_driver_call_stuck_seconds"] == 0


def short_of_descriptors(collectors, name):
    """From now on passes of this collector are, until the event that is returned is set.

    The limit is the process's: no other collector's pass runs at the same time.
    """
    over, alone = threading.Event(), threading.Lock()

    def one_at_a_time(collect, short):
        def passing(argument):
            with alone, no_descriptors() if short and not over.is_set() else nullcontext():
                return collect(argument)

        return passing

    for collector in collectors.all():
        short = collector is getattr(collectors, name)
        collector.collect = one_at_a_time(collector.collect, short)
    return over


@pytest.mark.parametrize("name", ["shim", "kubelet", "limits"])
def test_a_collector_without_free_descriptors_reports_it_and_no_conflict_is_found(bench, name):
    bench.sampler.sample()  # a use over the limit counts from the second sample on
    before = series(bench.sampler.sample())
    over = short_of_descriptors(bench.collectors, name)
    Path(bench.node.paths.log_dir, "ml_new_99999999-0000-0000-0000-000000000000").mkdir()
    exported = series(bench.sampler.sample())
    assert exported[f'vgpu_collector_success{{collector="{name}"}}'] == 0
    total = f'vgpu_collector_failures_total{{collector="{name}",reason="exhausted"}}'
    assert exported[total] == 1
    kind = 'vgpu_allocation_conflicts{type="process_without_allocation"}'
    assert exported[kind] == before[kind] == 1  # the host's process, which is in no container
    assert exported.get("vgpu_orphaned_regions", 1) == before["vgpu_orphaned_regions"] == 1
    over.set()
    repaired = series(bench.sampler.sample())
    assert repaired[f'vgpu_collector_success{{collector="{name}"}}'] == 1
    for family in ("vgpu_container_info", "vgpu_container_memory_limit_bytes"):
        assert starting(repaired, family) == starting(before, family)


def test_a_lost_gpu_is_reported_and_the_other_stays_right(bench):
    first, second = bench.node.scenario.gpus
    before = series(bench.sampler.sample())
    bench.driver.lose(first.uuid)
    after = series(bench.sampler.sample())
    assert after[f'vgpu_gpu_up{{uuid="{first.uuid}"}}'] == 0
    assert after["vgpu_gpus"] == 1
    assert after["vgpu_gpus_expected"] == 2
    mine = f'uuid="{second.uuid}"'
    used = {
        k: v for k, v in before.items() if k.startswith("vgpu_container_memory_used") and mine in k
    }
    assert used
    assert {k: after[k] for k in used} == used
    assert not [k for k in after if k.startswith("vgpu_container_memory_used") and first.uuid in k]


def test_an_xid_is_counted_with_its_time(make_bench):
    bench = make_bench()
    bench.sampler.sample()
    event = bench.node.scenario.xids[0]
    bench.move(event.at + 1)
    bench.driver.wait_xids(0.01)
    exported = series(bench.sampler.sample())
    gpu = bench.node.scenario.gpus[event.gpu].uuid
    labels = f'uuid="{gpu}",xid="{event.xid}"'
    assert exported[f"vgpu_gpu_xid_errors_total{{{labels}}}"] == 1
    assert exported[f"vgpu_gpu_xid_last_timestamp_seconds{{{labels}}}"] == pytest.approx(
        bench.node.start + event.at
    )


def test_a_form_in_use_is_made_before_the_page_is_published(bench, monkeypatch):
    bench.sampler.sample()
    bench.sampler.body(Format.OPENMETRICS, gzip=True)
    page = bench.sampler.sample()
    made = []
    for make in ("_text", "_parts"):
        monkeypatch.setattr(type(page.exposition), make, lambda *_: made.append(1))
    assert bench.sampler.body(Format.OPENMETRICS, gzip=True)
    assert made == []


def test_it_samples_every_interval_until_it_is_stopped(make_bench):
    bench, others = make_bench(sample_interval=0.1), set(threading.enumerate())
    bench.sampler.start(on_fatal=lambda: None)
    bench.sampler.watch_xids()
    page = first_page(bench)
    wait_until(lambda: bench.sampler.page is not page, "another page")
    assert bench.sampler.stop(grace=WAIT_SECONDS)
    left = {thread.name for thread in set(threading.enumerate()) - others}
    assert "sampler" not in left  # nobody is left who could sample


def test_a_replaced_driver_ends_the_process(bench):
    ended = threading.Event()
    bench.driver.fail(Reason.VERSION_MISMATCH)
    bench.sampler.start(on_fatal=ended.set)
    wait_until(ended.is_set, "the sampler ends the process")
    assert "driver was replaced" in bench.sampler.fatal or bench.sampler.fatal
    assert bench.sampler.page is not None


def test_the_join_refuses_under_the_shims_name(bench):
    victim = bench.node.scenario.gpus[0].uuid.encode()
    for root in bench.node.paths.shim_roots:
        for cache in Path(root).glob("*/*.cache"):
            data = cache.read_bytes()
            cache.write_bytes(data.replace(victim, victim[:-4] + b"dead"))
    exported = series(bench.sampler.sample())
    assert exported['vgpu_collector_rejected{collector="shim",reason="unknown_device"}'] > 0


def test_regions_inside_containers_are_read_when_asked_for(make_bench):
    on = frozenset({"nvml", "shim", "kubelet", "process", "bare"})
    bench = make_bench(collectors=on)
    view = bench.sampler.sample().view
    plain = bench.share(view, "whisper")
    assert plain.accounted is None
    process = next(
        p.pid
        for pod, container in bench.node.scenario.containers()
        for p in container.processes
        if pod.ref.name == plain.pod.name
    )
    cache = Path(bench.node.paths.procfs, str(process), "root/tmp/cudevshr.cache")
    cache.parent.mkdir(parents=True)
    region = msgspec.structs.replace(
        next(iter(regions_at(bench.node.scenario, bench.t, bench.node.start).values())),
        devices=(RegionDevice(plain.device, 3 * 2**30, 40),),
        processes=(),
        proc_num=0,
    )
    cache.write_bytes(hami_core.encode(region, "v1.2"))
    whisper = bench.share(bench.sampler.sample().view, "whisper")
    assert whisper.accounted is not None
    assert whisper.core_limit_percent == 40


def test_a_defect_in_the_join_costs_the_data_and_not_the_page(bench, monkeypatch):
    bench.sampler.sample()
    monkeypatch.setattr(sampler_module.LedgerBuilder, "usage", lambda *_: 1 // 0)
    exported = series(bench.sampler.sample())
    assert exported["vgpu_join_failures_total"] == 1
    assert exported['vgpu_collector_success{collector="nvml"}'] == 1
    assert not starting(exported, "vgpu_container_info")
    assert "vgpu_gpus" not in exported
    assert starting(exported, "vgpu_container_memory_allocated_bytes")
    monkeypatch.undo()
    assert starting(series(bench.sampler.sample()), "vgpu_container_info")


def test_a_defect_in_the_ledger_costs_the_ledger_and_nothing_else(bench, monkeypatch):
    whole = series(bench.sampler.sample())
    monkeypatch.setattr(sampler_module, "allocation_totals", lambda *_: 1 // 0)
    bench.restart()  # as with a new ledger
    exported = series(bench.sampler.sample())
    assert exported["vgpu_join_failures_total"] == 1
    assert not starting(exported, "vgpu_allocation_")
    assert not starting(exported, "vgpu_gpu_memory_allocated_bytes")
    names = ("vgpu_container_info", "vgpu_container_memory_used_bytes")
    for name in names:
        assert starting(exported, name).keys() == starting(whole, name).keys() != set()


def test_owners_of_an_earlier_pass_are_never_joined_with_new_pids(make_bench):
    bench = make_bench()
    assert bench.share(bench.sampler.sample().view, "chat").used_bytes
    bench.restart(timeout=0.2)
    release = threading.Event()
    bench.collectors.process.collect = lambda _: release.wait(HANG_SECONDS)
    view = bench.sampler.sample().view
    release.set()
    chat = bench.share(view, "chat")
    assert chat.used_bytes is None
    assert (chat.accounted.total, chat.accounted.phantom) == (None, None)
    assert all(row.use is None for row in view.gpus)


def test_a_stale_drivers_pids_are_not_joined_either(make_bench):
    bench = make_bench()
    bench.sampler.sample()
    bench.restart(timeout=0.2)
    bench.driver.hang(HANG_SECONDS)
    view = bench.sampler.sample().view
    assert view.gpus  # not stale yet
    assert bench.share(view, "chat").used_bytes is None
    assert all(row.use is None for row in view.gpus)


def fail_rendering(monkeypatch, times):
    """No memory is left for the next pages, of which there are ``times``."""
    render, left = sampler_module.Renderer.render, [MemoryError] * times

    def failing(renderer, view):
        if left:
            raise left.pop()
        return render(renderer, view)

    monkeypatch.setattr(sampler_module.Renderer, "render", failing)


class StepTimer(SampleTimer):
    """Lets a sampler take its next sample when the test asks for one."""

    def __init__(self):
        super().__init__(interval=600.0)
        self.go, self.done = threading.Semaphore(0), threading.Semaphore(0)

    def wait(self):
        self.done.release()
        self.go.acquire()

    def end(self):
        super().end()
        self.go.release()


@pytest.fixture
def step(bench):
    """Runs a sampler whose samples are taken one by one, when the test asks for one."""
    timer = StepTimer()
    bench.restart(timer)
    bench.sampler.start(on_fatal=lambda: pytest.fail("it ends"))
    assert timer.done.acquire(timeout=WAIT_SECONDS)

    def stepped():
        timer.go.release()
        assert timer.done.acquire(timeout=WAIT_SECONDS)
        return bench.sampler.page

    return bench.sampler, stepped


def test_a_sample_that_fails_withdraws_its_data_and_the_next_one_has_all_again(step, monkeypatch):
    sampler, stepped = step
    before = series(sampler.page)
    assert starting(before, "vgpu_container_memory_used_bytes")
    fail_rendering(monkeypatch, times=1)
    page = stepped()
    exported = series(page)
    assert exported["vgpu_join_failures_total"] == 1
    assert not starting(exported, "vgpu_container_")
    assert not starting(exported, "vgpu_allocation")
    assert not starting(exported, "vgpu_gpu_")
    assert "vgpu_gpus" not in exported  # and not 0, which would be a missing GPU
    assert exported["vgpu_gpus_expected"] == before["vgpu_gpus_expected"]
    assert exported['vgpu_collector_success{collector="nvml"}'] == 1
    assert "The last sample failed" in statuspage.render(page.view, 0.0, "/metrics").decode()
    after = series(stepped())
    assert after.keys() == before.keys()
    assert after["vgpu_join_failures_total"] == 1
    assert sampler.fatal is None


def test_without_a_page_scrapes_fail_instead_of_serving_an_old_one(step, monkeypatch):
    sampler, stepped = step
    before = series(sampler.page)
    fail_rendering(monkeypatch, times=2)
    assert stepped() is None
    assert sampler.body(Format.TEXT, gzip=False) is None
    assert series(stepped()).keys() == before.keys()


def test_own_numbers_that_cannot_be_read_cost_themselves_only(bench):
    bench.sampler.sample()
    before = series(bench.sampler.sample())
    bench.read_own = lambda: 1 // 0
    after = series(bench.sampler.sample())
    gone = before.keys() - after.keys()
    assert "process_open_fds" in gone
    assert all(name.startswith("process_") for name in gone)


def test_a_collector_without_a_thread_reports_it_and_works_when_there_is_one(bench, monkeypatch):
    start = threading.Thread.start

    def refused(thread):
        if thread.name == "collector-shim":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    exported = series(bench.sampler.sample())
    assert exported['vgpu_collector_success{collector="shim"}'] == 0
    assert exported['vgpu_collector_failures_total{collector="shim",reason="exhausted"}'] == 1
    assert starting(exported, "vgpu_container_memory_used_bytes")
    monkeypatch.undo()
    assert series(bench.sampler.sample())['vgpu_collector_success{collector="shim"}'] == 1


def test_before_the_first_sample_the_page_has_only_the_exporters_own_metrics(bench):
    bench.driver.hang(HANG_SECONDS)
    bench.sampler.start(on_fatal=lambda: None)
    exported = series(bench.sampler.page)
    assert starting(exported, "vgpu_build_info")
    assert not starting(exported, "vgpu_collector_success")
    assert not bench.sampler.ready


def test_a_node_that_lost_all_gpus_has_zero_of_them(bench):
    bench.sampler.sample()
    for gpu in bench.node.scenario.gpus:
        bench.driver.lose(gpu.uuid)
    exported = series(bench.sampler.sample())
    assert (exported["vgpu_gpus"], exported["vgpu_gpus_expected"]) == (0, 2)


def test_the_number_of_gpus_that_was_asked_for_is_the_one_expected(make_bench):
    exported = series(make_bench(nvml_expected_gpus=1).sampler.sample())
    assert (exported["vgpu_gpus"], exported["vgpu_gpus_expected"]) == (2, 1)


def test_a_driver_that_hangs_while_it_is_closed_does_not_hold_up_the_end(bench, monkeypatch):
    monkeypatch.setattr(sampler_module, "CLOSING_SECONDS", 0.1)
    bench.sampler.sample()
    release = threading.Event()
    bench.driver.close = lambda: release.wait(HANG_SECONDS)
    assert not bench.sampler.stop(grace=0.1)
    release.set()


def test_a_wait_for_xids_in_the_driver_does_not_use_the_time_for_the_last_sample(
    bench, monkeypatch
):
    monkeypatch.setattr(sampler_module, "WAITING_SECONDS", 0.05)
    waiting, release, clean = threading.Event(), threading.Event(), []

    def wait_xids(_):
        waiting.set()
        release.wait(HANG_SECONDS)

    bench.driver.wait_xids = wait_xids
    bench.driver.close = lambda: release.wait(HANG_SECONDS)
    bench.sampler.sample()
    bench.sampler.watch_xids()
    assert waiting.wait(WAIT_SECONDS)
    stopping = threading.Thread(
        target=lambda: clean.append(bench.sampler.stop(grace=HANG_SECONDS)), daemon=True
    )
    stopping.start()
    stopping.join(WAIT_SECONDS)
    release.set()
    assert clean == [False]


def test_a_refusal_of_the_join_is_logged_once_while_it_lasts(bench, caplog):
    victim = bench.node.scenario.gpus[0].uuid.encode()
    changed = 0
    for root in bench.node.paths.shim_roots:
        for path in Path(root).glob("*/*.cache"):
            data = path.read_bytes()
            changed += victim in data
            path.write_bytes(data.replace(victim, victim[:-4] + b"dead"))
    for _ in range(3):
        bench.sampler.sample()
    refusals = [vars(record) for record in caplog.records if record.msg == "input refused"]
    objects = [each["object"] for each in refusals if each["reason"] == Reason.UNKNOWN_DEVICE]
    assert 0 < len(objects) <= changed
    assert len({*objects}) == len(objects)


def test_the_request_of_a_page_is_a_scrape_for_the_plan_of_samples(bench):
    now, scrapes = [1000.0], (1002.0, 1017.0, 1032.0)
    timer = SampleTimer(15.0, monotonic=lambda: now[0], changed=PassingTime(now))
    bench.restart(timer)
    bench.sampler.sample()
    for now[0] in scrapes:
        bench.sampler.body(Format.TEXT, gzip=False)
    timer.sampled(begun=1032.0)
    timer.wait()
    assert 1045.0 <= now[0] < 1047.0


def test_a_change_makes_new_rows_of_the_containers_that_it_concerns(bench):
    before = {id(row): row for row in bench.sampler.sample().view.usage.shares}
    bench.move(6.0)
    rows = bench.sampler.sample().view.usage.shares
    kept = [row for row in rows if id(row) in before]
    assert 0 < len(kept) < len(rows)
    equal = [row for row in rows if row in before.values()]
    assert kept == equal
