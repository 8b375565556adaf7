"""The list of processes: each with its container, as the metrics count them."""

from collections import Counter

import msgspec

from exporter.processes import ProcessList, process_list


def test_the_processes_of_a_container_use_what_the_container_uses(bench):
    view = bench.sampler.sample().view
    rows = process_list(view).processes
    used, count = Counter(), Counter()
    for row in rows:
        used[row.pod_uid, row.container, row.uuid] += row.used_bytes or 0
        count[row.pod_uid, row.container, row.uuid] += 1
    for share in view.usage.shares:
        if share.processes is not None:
            place = share.pod.uid, share.container, share.device
            assert (used[place], count[place]) == (share.used_bytes, share.processes)
    (stranger,) = (row for row in rows if not row.pod_uid)
    assert (stranger.namespace, stranger.pod, stranger.container) == ("", "", "")
    assert {row.pod for row in rows} > {"finetune-0"}
    assert [row.used_bytes for row in rows] == sorted((r.used_bytes for r in rows), reverse=True)


def test_without_the_driver_there_are_none(bench):
    view = bench.sampler.sample().view
    without = msgspec.structs.replace(view, driver=None)
    assert process_list(without) == ProcessList(view.timestamp)


def test_without_the_kernels_processes_their_containers_are_unknown(make_bench):
    view = make_bench(collectors=frozenset({"nvml", "shim"})).sampler.sample().view
    rows = process_list(view).processes
    assert rows
    assert {row.pod for row in rows} == {""}


def test_a_device_that_hides_the_use_of_processes_has_none_of_it(bench):
    view = bench.sampler.sample().view
    sample = view.driver
    hidden = tuple(
        msgspec.structs.replace(process, used_bytes=None) for process in sample.processes
    )
    blind = msgspec.structs.replace(
        sample, processes=hidden, utilization={}, utilization_known=frozenset()
    )
    rows = process_list(msgspec.structs.replace(view, driver=blind)).processes
    assert {(row.used_bytes, row.sm_utilization_ratio) for row in rows} == {(None, None)}
