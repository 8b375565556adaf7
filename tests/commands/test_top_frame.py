"""The screen of `vgpu top`, from values: what it shows, and that it always fits."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from vgpu.model.reasons import NO_DRIVER
from vgpucli.top.frame import (
    HELP,
    LONGEST_TREND,
    ColumnLayout,
    ScreenState,
    Size,
    bar,
    body,
    fitted_name,
    frame,
    grown,
    middle,
    percent,
    short,
    spark,
)
from vgpucli.top.keys import Command, Move, Sort
from vgpucli.top.reading import PageDevice, PageProcess, PageReading, PageShare, PageToken
from vgpucli.top.session import Live

GIB = 2**30
GPU = PageDevice("GPU-aaaaaaaa-1", 0, "NVIDIA A10", up=True, used=6 * GIB, total=24 * GIB,
              utilization=0.5, celsius=41, watts=75, watts_limit=150)  # fmt: skip


def share(pod, **known):
    return PageShare("ml", pod, "main", f"uid-{pod}", GPU.uuid, "volcano", "assigned", **known)


def state(*shares, devices=(GPU,), **known):
    return ScreenState(
        "here", PageReading(1000.0, 15.0, devices, shares, **known), clock="12:00:00"
    )


def text(shown, columns=80, sort=Sort.NAME, **rest):
    return frame(shown, Size(columns, **rest), sort).plain


def row(shown, pod, columns=80):
    return next(line for line in text(shown, columns).split("\n") if pod in line)


def order(shown, sort):
    lines = text(shown, sort=sort).split("\n")
    return [line[5] for line in lines if line[2:5] == "ml/"]


# ---------------------------------------------------------------- what it shows


def test_a_gpu_shows_utilisation_memory_temperature_and_power():
    shown = text(state())
    assert " GPU 0  NVIDIA A10   GPU-aaaaaaaa   41 °C   75 of 150 W" in shown
    assert " 50% " in shown
    assert "6.0G of 24.0G" in shown
    assert "no container holds a share of this GPU" in shown


def test_a_container_shows_used_limit_accounted_and_utilisation():
    line = row(
        state(share("a", used=3 * GIB, limit=4 * GIB, accounted=GIB, utilization=0.25)), "/a/"
    )
    assert line.split() == ["ml/a/main", "volcano", "███████▌··", "3.0G", "4.0G", "1.0G", "25%"]


def test_what_is_not_known_is_a_dash_and_never_a_zero():
    line = row(state(share("a")), "/a/")
    assert line.split() == ["ml/a/main", "volcano", "··········", "–", "–", "–", "–"]
    assert row(state(share("a", used=0, accounted=0, utilization=0)), "/a/").split()[3:] == [
        "0", "–", "0", "0%"
    ]  # fmt: skip
    assert row(state(share("a", used=0, unlimited=True)), "/a/").split()[4] == "none"


@pytest.mark.parametrize(("used", "mark"), [(89, " "), (90, "!"), (105, "!"), (106, ">")])
def test_a_container_near_or_over_its_limit_is_marked_without_colour(used, mark):
    assert row(state(share("a", used=used * GIB, limit=100 * GIB)), "/a/")[0] == mark


def test_over_the_limit_is_counted_in_the_heading():
    shown = state(share("a", used=2, limit=1), share("b", used=1, limit=1))
    assert "1 GPU, 2 shares, 1 over the limit" in text(shown)


def test_an_unusual_state_is_shown_in_place_of_the_scheme_or_beside_it():
    blocked = state(share("a", blocked=True))
    assert "blocked" in row(blocked, "/a/")
    assert "volcano   blocked" in row(blocked, "/a/", columns=120)
    promised = PageShare("ml", "a", "main", "u", GPU.uuid, "gaia", "assumed")
    assert "assumed" in row(state(promised), "/a/")


def test_the_limits_part_of_the_gpu_has_a_bar_where_there_is_room():
    shown = state(share("a", used=3 * GIB, limit=12 * GIB))
    limit, used = row(shown, "/a/", columns=140).split()[2:4]
    assert limit == "█████▌·····"  # half of the GPU
    assert used == "██▊········"  # a quarter of the limit
    assert "of GPU      of limit" in text(shown, 140)


def test_containers_that_hold_no_gpu_come_last():
    ended = PageShare("ml", "gone", "main", "u", scheme="volcano", phase="released")
    lines = text(state(share("a"), idle=(ended,))).split("\n")
    assert lines[-2] == " on no GPU"
    assert lines[-1].split() == ["ml/gone/main", "released", "–", "–", "–", "–"]


def test_a_lost_gpu_and_one_known_from_its_containers_only_do_not_answer():
    lost = PageDevice("GPU-lost")
    shown = text(state(devices=(GPU, lost)))
    assert " GPU ?  GPU-lost   DOES NOT ANSWER" in shown
    assert "No GPU answers." in text(state(devices=()))


def test_a_gpu_cut_into_instances_shows_them():
    instance = PageDevice("MIG-1", 0, parent=GPU.uuid, profile="1g.6gb", up=True)
    shown = text(state(devices=(GPU, instance)))
    assert " MIG 1g.6gb  MIG-1" in shown
    assert shown.count("no container holds") == 1  # of the instance; the GPU has its instances


@pytest.mark.parametrize("columns", [40, 60, 80, 120, 200])
def test_the_explanation_of_keys_is_whole_in_any_width(columns):
    size = Size(columns, 24)
    for pattern in ("", "ml"):
        shown = msgspec.structs.replace(state(share("a")), pattern=pattern)
        drawn = frame(shown, size, Sort.NAME, help_lines=True).plain
        assert drawn.count("\n") == 23
        assert all(piece in drawn for piece in HELP)
    assert "/ml   / changes it" in drawn


# ---------------------------------------------------------------- trouble


def test_before_the_first_page_it_waits_or_shows_the_error():
    assert "waiting for the first page" in text(ScreenState("there"))
    assert " NO ANSWER: refused" in text(ScreenState("there", trouble="refused"))


def test_a_page_that_stands_still_is_called_stale():
    reading = PageReading(1000.0, 15.0, (GPU,))
    assert "STALE" not in text(ScreenState("there", reading, age=45.0))
    stale = text(ScreenState("there", reading, age=46.0))
    assert " STALE: the exporter has not sampled for 46 s" in stale
    trouble = text(ScreenState("there", reading, age=5.0, trouble="no answer within 5 s"))
    assert " NO ANSWER for 5 s: no answer within 5 s - below is the last page" in trouble


def test_a_collector_that_fails_and_a_driver_that_hangs_are_shown():
    shown = text(state(failing=("nvml (timeout)",), stuck_seconds=31.0))
    assert " the driver is overdue by 31 s; failing: nvml (timeout)" in shown


# ---------------------------------------------------------------- processes


def process(pid, pod, used, **known):
    return PageProcess(pid, GPU.uuid, "ml", pod, "main", f"uid-{pod}", used, **known)


def with_processes(*rows, shares=("a", "b"), **known):
    shown = state(*map(share, shares), processes=rows)
    return msgspec.structs.replace(shown, processes=True, **known)


def test_the_processes_of_a_container_stand_below_it_in_its_columns():
    shown = with_processes(
        process(4194304, "a", 3 * GIB, sm_utilization_ratio=0.25), process(7, "b", None)
    )
    for columns in range(40, 201, 8):
        lines = text(shown, columns).split("\n")
        at = next(number for number, line in enumerate(lines) if "ml/a" in line)
        assert lines[at + 1].split() == ["pid", "4194304", "3.0G", "25%"]
        assert lines[at + 3].split() == ["pid", "7", "–", "–"]
        assert lines[at + 1][: lines[2].index(" used") + 5].endswith("3.0G")
    assert "1 GPU, 2 shares, 2 processes" in text(shown)
    assert "pid" not in text(msgspec.structs.replace(shown, processes=False))


def test_processes_in_no_known_container_come_after_the_containers_of_their_gpu():
    lines = text(with_processes(process(1, "a", 1), PageProcess(2, GPU.uuid), shares="a"))
    header, row = lines.split("\n")[-2:]
    assert header.strip() == "in no known container"
    assert row.split() == ["pid", "2", "–", "–"]


def test_a_filter_hides_the_processes_of_the_containers_that_it_hides():
    shown = with_processes(process(1, "a", 1), process(2, "b", 1), pattern="ml/b")
    assert "pid 2" in text(shown)
    assert "pid 1" not in text(shown)
    assert "in no known container" not in text(shown)


# ---------------------------------------------------------------- order


def test_each_order_has_the_largest_first_and_the_unknown_last():
    shown = state(
        share("a", used=1, limit=30, utilization=0.2),
        share("b", used=3, unlimited=True, utilization=0.1),
        share("c", used=2, limit=20, utilization=0.3),
        share("d"),
    )
    assert order(shown, Sort.NAME) == list("abcd")
    assert order(shown, Sort.MEMORY) == list("bcad")
    assert order(shown, Sort.UTILIZATION) == list("cabd")
    assert order(shown, Sort.LIMIT) == list("bacd")


# ---------------------------------------------------------------- trends


def test_trends_grow_by_a_value_a_reading_and_forget_what_is_gone():
    first = PageReading(1.0, 15.0, (GPU,), (share("a", utilization=0.5),))
    second = PageReading(2.0, 15.0, (GPU,), (share("b"),))
    trends = grown(grown({}, first), second)
    assert trends["", GPU.uuid] == (0.5, 0.5)
    assert [line[1] for line in trends if len(line) > 2] == ["b"]
    for _ in range(LONGEST_TREND):
        trends = grown(trends, second)
    assert len(trends["", GPU.uuid]) == LONGEST_TREND


def test_sparks_stand_at_the_right_and_leave_gaps():
    assert spark((0.0, None, 0.5, 1.0, 7.0), 6) == " ▁ ▅██"
    assert spark((0.0, 1.0), 1) == "█"
    assert spark((1.0,), 0) == ""


# ---------------------------------------------------------------- it fits


NUMBERS = st.none() | st.floats(-1e15, 1e15)
TEXT = st.text(max_size=40).filter(str.isprintable)
UUIDS = st.sampled_from(["a", "b"])
SHARES = st.builds(
    PageShare,
    namespace=TEXT,
    pod=TEXT,
    container=TEXT,
    pod_uid=st.sampled_from(["u1", "u2"]),
    device=UUIDS,
    scheme=st.sampled_from(["volcano", "kubeshare"]),
    phase=st.sampled_from(["assigned", "released"]),
    blocked=st.booleans(),
    used=NUMBERS,
    limit=NUMBERS,
    unlimited=st.booleans(),
    accounted=NUMBERS,
    utilization=NUMBERS,
)
DEVICES = st.builds(
    PageDevice,
    uuid=UUIDS,
    index=st.none() | st.integers(0, 99),
    model=TEXT,
    up=st.booleans(),
    used=NUMBERS,
    total=NUMBERS,
    unattributed=NUMBERS,
    utilization=NUMBERS,
    celsius=NUMBERS,
    watts=NUMBERS,
    watts_limit=NUMBERS,
)
PROCESSES = st.builds(
    PageProcess,
    pid=st.integers(0, 2**22),
    uuid=UUIDS,
    container=TEXT,
    pod_uid=st.sampled_from(["u1", "u2"]),
    used_bytes=st.none() | st.integers(0, 2**60),
    sm_utilization_ratio=NUMBERS,
)
STATES = st.builds(
    lambda devices, shares, processes: msgspec.structs.replace(
        state(
            *shares,
            devices=tuple(devices),
            idle=tuple(shares),
            processes=None if processes is None else tuple(processes),
        ),
        processes=processes is not None,
    ),
    st.lists(DEVICES, max_size=3),
    st.lists(SHARES, max_size=5),
    st.none() | st.lists(PROCESSES, max_size=5),
)
SIZES = st.builds(Size, st.integers(1, 220), st.integers(1, 60))


@pytest.mark.slow
@given(STATES, SIZES, st.sampled_from(Sort), st.integers(0, 99), st.booleans())
def test_a_frame_is_exactly_as_large_as_the_terminal(shown, size, sort, offset, help_lines):
    drawn = frame(shown, size, sort, offset, help_lines=help_lines).plain
    assert [cell_len(line) for line in drawn.split("\n")] == [size.columns] * size.lines


@given(st.floats(-1e18, 1e18))
def test_a_size_never_takes_more_than_its_column(count):
    assert len(short(count)) <= (5 if 0 <= count < 1e15 else 12)


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (None, "–"), (0, "0"), (1, "<1M"), (2**20, "1M"), (999 * 2**20, "999M"), (GIB, "1.0G"),
        (79.6 * GIB, "79.6G"), (99.96 * GIB, "100G"), (999.6 * GIB, "1.0T"),
    ],
)  # fmt: skip
def test_sizes_are_shown_in_the_largest_unit(count, words):
    assert short(count) == words


@given(st.floats(0, 1) | st.none(), st.integers(0, 60))
def test_a_bar_has_its_width(filled, width):
    drawn = bar(filled, width, "green")
    assert drawn.cell_len == width
    assert drawn.plain.count("█") == (round((filled or 0) * width * 8) // 8)


def test_long_names_keep_their_end():
    assert middle("research/notebook-anna-0/jupyter", 20) == "resear…nna-0/jupyter"
    assert middle("short", 20) == "short"
    assert percent(123.0) == "999%"


def test_rows_that_have_gone_leave_no_empty_screen():
    shown = state(*(share(f"p{n}") for n in range(30)))
    size = Size(80, 14)
    assert "23–32 of 32" in frame(shown, size, Sort.NAME, 99).plain
    assert frame(shown, size, Sort.NAME, 99) == frame(shown, size, Sort.NAME, 22)


def test_rows_are_only_made_when_they_are_seen():
    rows = body(state(*(share(f"p{n}") for n in range(300))), ColumnLayout(80), Sort.NAME)
    assert len(rows) == 302
    assert rows[-1]().plain.startswith("  ml/p99/main")


# ---------------------------------------------------------------- narrow, filtered, hidden


@pytest.mark.parametrize("columns", range(40, 201, 8))
def test_no_column_runs_into_another_in_any_width(columns):
    shown = state(
        share("train-7f9d8c6b5d-vv2kx", used=150 * GIB, limit=200 * GIB, accounted=149 * GIB),
        share("b", used=1, limit=GIB, utilization=1.0),
    )
    lines = text(shown, columns=columns).splitlines()
    assert max(map(cell_len, lines)) <= columns
    line = next(line for line in lines if "vv2kx" in line or "5d-vv" in line)
    assert {"150G", "200G"} <= set(line.split())
    heading_line = next(line for line in lines if "used" in line and "limit" in line)
    for title, amount in (("used", "150G"), ("limit", "200G")):
        end = heading_line.index(title, heading_line.index("used")) + len(title)
        assert line[:end].endswith(amount)


@pytest.mark.parametrize("reason", sorted(NO_DRIVER))
def test_a_node_without_a_driver_names_the_command_that_finds_out_why(reason):
    shown = text(state(devices=(), failing=(f"nvml ({reason})",)))
    assert "\n No NVIDIA driver here: vgpu doctor node\n" in f"{shown}\n"
    assert "doctor" not in text(state(devices=(), failing=("nvml (timeout)",)))


LONG = ("notebook-anna-0", "whisper-6d5c7f9b8-4wq7n", "embeddings-29361600-q9vxz")


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_namespace_and_pod_are_readable_in_a_terminal_of_usual_width(columns):
    shown = text(state(*(share(pod, used=1.0, limit=2.0) for pod in LONG)), columns)
    for pod in LONG:
        assert f" ml/{pod}" in shown


def test_short_names_leave_room_for_bars_and_a_legend():
    shown = text(state(share("a", used=1.0, limit=2.0)))
    assert "of limit" in shown
    assert "> over it" in shown.splitlines()[1]
    assert "> over it" not in text(state(share("a")), columns=40)


def test_a_name_without_space_keeps_its_distinctive_end():
    long = share("train-7f9d8c6b5d-vv2kx")
    assert fitted_name(long, 40) == "ml/train-7f9d8c6b5d-vv2kx/main"
    assert fitted_name(long, 16) == "…f9d8c6b5d-vv2kx"
    assert fitted_name(share("a"), 8) == "a/main"


def test_a_filter_leaves_the_containers_with_the_text():
    shown = state(share("train"), share("chat"))
    filtered = msgspec.structs.replace(shown, pattern="CHA")
    assert "chat" in text(filtered)
    assert "train" not in text(filtered)
    assert "no such container" in text(msgspec.structs.replace(shown, pattern="none"))


@pytest.mark.parametrize("title", ["acct", "scheme", "sm"])
def test_a_column_can_be_hidden(title):
    shown = state(share("train"))
    assert title in text(shown)
    hidden = text(msgspec.structs.replace(shown, hidden=frozenset({title})))
    assert title not in next(line for line in hidden.splitlines() if "limit" in line)


def test_what_is_typed_behind_a_slash_is_the_filter_until_enter():
    live = Live("here", 2.0, ["acct"])
    size = Size(80, 24)
    assert live.typed(b"/q", size) == (Command.FILTER,)
    assert (live.state.pattern, live.state.typing) == ("q", True)
    assert " /q_" in text(live.state, lines=24)
    assert live.typed(b"\x7fml\rm\x1b[", size) == (Sort.MEMORY,)
    assert (live.state.pattern, live.state.typing) == ("ml", False)
    assert live.state.hidden == {"acct"}
    assert live.typed(b"B/x\x03", size) == (Move.DOWN, Command.FILTER)  # an arrow in two parts
    assert (live.state.pattern, live.state.typing) == ("", False)


# ---------------------------------------------------------------- NVIDIA's own sharing


def test_replicas_and_limits_of_processes_stand_where_they_hold():
    sliced = msgspec.structs.replace(GPU, sharing="time-slicing", replicas=10, replicas_held=3)
    mine = share("a", used=GIB, unlimited=True, sharing="time-slicing", held=2)
    shown = state(mine, devices=(sliced,))
    assert "time-sliced 3 of 10" in text(shown)
    assert "volcano   2 of 10" in row(shown, "/a/", columns=120)
    assert row(shown, "/a/").split()[4] == "none"
    mps = msgspec.structs.replace(sliced, sharing="mps")
    process = PageProcess(pid=7, uuid=GPU.uuid, pod_uid="uid-a", container="main", used_bytes=GIB)
    client = share("a", used=GIB, sharing="mps", held=1, process_limit=4 * GIB)
    shown = msgspec.structs.replace(
        state(client, devices=(mps,), processes=(process,)), processes=True
    )
    assert "MPS 3 of 10" in text(shown)
    assert row(shown, "/a/").split()[4] == "–"
    assert row(shown, "pid 7").split() == ["pid", "7", "1.0G", "4.0G", "–"]


@pytest.mark.parametrize(("sharing", "part"), [("exclusive", "whole"), ("mig", "instance")])
def test_a_whole_device_is_named_so(sharing, part):
    assert f"volcano   {part}" in row(state(share("a", sharing=sharing, held=1)), "/a/", 120)


# ---------------------------------------------------------------- tokens


def token(**known):
    values = {"request": 0.5, "limit": 0.8, "share": 0.31, "waited": 10.0, **known}
    return PageToken("ml", "train", "uid-train", GPU.uuid, **values)


def test_below_a_container_is_the_part_of_the_gpus_time_that_its_pod_has():
    lines = text(state(share("train"), share("other"), tokens=(token(),))).split("\n")
    (at,) = (number for number, line in enumerate(lines) if "ml/train" in line)
    assert lines[at + 1].strip() == "token 31%  request 50%  limit 80%  waits –"
    assert sum("token" in line for line in lines) == 1


def test_a_pod_of_several_containers_has_one_token():
    both = [
        PageShare("ml", "train", name, "uid-train", GPU.uuid, "kubeshare") for name in ("a", "b")
    ]
    assert text(state(*both, tokens=(token(),))).count("token") == 1


def test_waiting_is_what_was_waited_between_two_samples():
    live = Live("here", 2.0)
    for timestamp, waited in ((1000.0, 10.0), (1004.0, 12.0)):
        tokens = (token(waited=waited),)
        live.answered(PageReading(timestamp, 15.0, (GPU,), (share("train"),), tokens=tokens))
    assert "waits 50%" in text(live.state)
    again = PageReading(1006.0, 15.0, (GPU,), (share("train"),), tokens=(token(waited=0.5),))
    live.answered(again)  # the daemon was started again
    assert "waits –" in text(live.state)


def test_whether_a_container_is_limited_has_a_column_where_there_is_room():
    shown = state(share("a", limit_state="missing"), share("b", limit_state="in_place"))
    assert "LIMIT" in text(shown, 120)
    assert " missing " in row(shown, "/a", columns=120)
    assert " in place " in row(shown, "/b", columns=120)
    assert "LIMIT" not in text(shown, 80)
    assert " missing " in row(shown, "/a", columns=80)
    assert " in place " not in row(shown, "/b", columns=80)
    assert "LIMIT" not in text(state(share("a")), 120)
