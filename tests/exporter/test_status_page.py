"""The status page: which share has a row, its colour, and problems of any length."""

import html
import re
from urllib.parse import unquote

import pytest
from msgspec import structs

from exporter import statuspage
from exporter.allocations import AllocationTotals
from exporter.problems import (
    COLLECTORS,
    CONFLICT_RUNBOOKS,
    Problem,
    ProblemSeverity,
    conflict_text,
    problems,
)
from exporter.view import ExporterView, GpuRow
from tests.support.environment import ROOT
from tests.support.long_conflicts import LONGEST_TEXT, long_conflicts
from tests.support.usage import usage_of
from vgpu.ledger import Conflict, ConflictKind, Holding, Ledger
from vgpu.ledger.container_usage import ContainerUsage, NodeUsage, ShareUsage
from vgpu.ledger.regions import Accounted
from vgpu.model.allocation import Share
from vgpu.model.facts import Gpu, PodSummary, Region, RegionFile, XidCount
from vgpu.model.names import Phase, PodRef, Scheme, Source
from vgpu.model.reasons import Reason
from vgpu.model.units import GIB
from vgpu.model.xids import RECENT_SECONDS
from vgpu.sources.samples import CollectorRow

RUNBOOKS = set(CONFLICT_RUNBOOKS.values())
REGION = Region("", (), (), 0, 0, 0, 0, None, None, None)
PHANTOM = Accounted(0, 0, 0, 0, total=0, phantom=1, processes=0, sm_utilization=None)
SHARES = (
    ("anna", "GPU-0"),
    ("bao", "GPU-0"),
    ("bao", "GPU-1"),
    ("chen", "GPU-1"),
    ("dilek", "GPU-1"),
)
KEY = re.compile(r'<span class="key [a-z]*" style="background:([^"]+)"></span>([^<]+)')
PIECE = re.compile(r'<i class="" style="width:[^;]+;background:([^"]+)" title="([^"]+)"')
NOTHING = ExporterView(
    timestamp=0.0,
    node="n",
    interval=15.0,
    usage=NodeUsage(),
    collectors=(),
    calls={},
    xids=(),
    build={},
    own={},
)


def share_row(pod, device):
    return ShareUsage(device, PodRef(f"uid-{pod}", "team", pod), "main", limit_bytes=GIB)


def view_of(shares, *holdings):
    gpus = tuple(
        GpuRow(Gpu(uuid, place, {"name": "NVIDIA A10"}, {("memory_total_bytes",): 24.0 * GIB}))
        for place, uuid in enumerate(("GPU-0", "GPU-1"))
    )
    rows = tuple(share_row(*share) for share in shares)
    totals = AllocationTotals(Ledger("n", ()), holdings=holdings)
    return structs.replace(NOTHING, gpus=gpus, usage=usage_of(*rows), allocations=totals)


def reserved(pod, device, phase=Phase.ASSUMED, container="main"):
    share = Share(device, 2 * GIB)
    ref = PodRef(f"uid-{pod}", "team", pod)
    source = Source.ANNOTATIONS
    return Holding(ref, container, share, Scheme.GPUSHARE, phase, source, (source,))


def sections(view):
    """The text of each GPU's table, tags included."""
    page = html.unescape(statuspage.render(view, 0.0, "/metrics").decode())
    return {
        uuid: next(part for part in re.split("<section[^>]*>", page) if f">{uuid}<" in part)
        for uuid in ("GPU-0", "GPU-1")
    }


def colours(section):
    found = re.findall(
        r'<span class="key [a-z]*" style="background:([^"]+)"></span>([^<]+)', section
    )
    return {name: colour for colour, name in found}


def test_a_container_has_one_colour_on_all_its_gpus_and_its_neighbours_have_others():
    first, second = map(colours, sections(view_of(SHARES)).values())
    assert first.keys() == {"team/anna/main", "team/bao/main"}
    assert second.keys() == {"team/bao/main", "team/chen/main", "team/dilek/main"}
    assert first["team/bao/main"] == second["team/bao/main"]
    assert all(len(set(each.values())) == len(each) for each in (first, second))


def test_a_bar_and_its_table_have_the_same_colours():
    for section in sections(view_of(SHARES)).values():
        bar = re.findall(
            r'<i class="" style="width:[^;]+;background:([^"]+)" title="([^"]+)"', section
        )
        assert {name: colour for colour, name in bar} == colours(section)


def test_a_share_that_waits_for_its_container_has_a_row_and_a_piece():
    view = view_of(SHARES, reserved("eva", "GPU-0"), reserved("fay", "GPU-1", Phase.ASSIGNED))
    first, second = sections(view).values()
    assert "team/eva/main" in colours(first)
    assert "2.0 GiB reserved" in first
    assert 'title="team/eva/main, reserved"' in first
    assert "2.0 GiB allocated" in second


def test_a_share_that_the_node_reports_has_one_row():
    held = [reserved(pod, device) for pod, device in SHARES]
    whole_pods = [structs.replace(holding, container="") for holding in held]
    assert sections(view_of(SHARES, *held, *whole_pods)) == sections(view_of(SHARES))


def test_a_conflict_of_any_size_is_a_sentence_that_fits_a_phone():
    conflicts = long_conflicts()
    assert {conflict.kind for conflict in conflicts} == set(ConflictKind)
    texts = [conflict_text(conflict, {}, {}) for conflict in conflicts]
    assert [text for text in texts if len(text) > LONGEST_TEXT] == []
    assert all(" more" in text for text in texts)


@pytest.mark.parametrize(
    ("xid", "severity", "name"),
    [
        (79, ProblemSeverity.ERROR, "XID 79 (GPU has fallen off the bus)"),
        (154, ProblemSeverity.WARNING, "XID 154 (GPU recovery action changed)"),
        (31, ProblemSeverity.NOTE, "XID 31 (GPU memory page fault)"),
        (999, ProblemSeverity.NOTE, "XID 999"),
    ],
)
def test_an_xid_has_its_name_and_is_as_severe_as_its_alert(xid, severity, name):
    view = structs.replace(view_of(()), timestamp=5.0, xids=(XidCount("GPU-1", xid, 1, 2.0),))
    (problem,) = problems(view)
    text = f"{name} on GPU 1 (NVIDIA A10, GPU-1), 3 s ago."
    assert problem == Problem(severity, text, "GPU-1")


def test_a_problem_has_its_severity_as_a_word_and_leads_to_the_part_of_the_page_with_more():
    view = structs.replace(view_of(()), timestamp=5.0, xids=(XidCount("GPU-1", 79, 1, 2.0),))
    page = statuspage.render(view, 5.0, "/metrics").decode()
    (fragment,) = re.findall(r'<li class="error"><b>error</b> <a href="#([^"]+)">XID 79 ', page)
    assert page.count(f' id="{fragment}"') == 1
    text = 'Collector "x" fails: <b>.'
    collectors = statuspage.problem_list([Problem(ProblemSeverity.WARNING, text, COLLECTORS)])
    assert "<b>warning</b> <a href=" in collectors
    assert html.escape(text) in collectors
    assert f' id="{COLLECTORS}"' in page


def every_problem():
    """A view for each kind of problem, with the GPU that it is about, without it, and unnamed."""
    nobody, pod = PodRef("uid-gus", "", ""), PodRef("uid-gus", "team", "gus")
    blocked = ContainerUsage(pod, "main", Scheme.VOLCANO, Source.SHIM, blocked=True)
    row = CollectorRow("nvml", False, 0.1, None, 0.0, {Reason.TIMEOUT: 1}, {}, {})
    yield "withdrawn", structs.replace(NOTHING, is_withdrawn=True)
    yield "collector", structs.replace(NOTHING, collectors=(row,))
    yield "stuck", structs.replace(NOTHING, collectors=(structs.replace(row, stuck_seconds=9.0),))
    yield "missing GPUs", structs.replace(NOTHING, driver="580", gpus_expected=1)
    gone = tuple(structs.replace(gpu, answers=False) for gpu in view_of(()).gpus)
    yield "silent GPUs", structs.replace(view_of(()), gpus=gone)
    yield (
        "failed pod",
        structs.replace(NOTHING, statuses=(PodSummary(pod, "Failed", "OutOfcpu", wants_gpu=True),)),
    )
    region = RegionFile("/regions/uid-hal_main/x.cache", "uid-hal", "main", REGION)
    yield (
        "regions",
        structs.replace(NOTHING, usage=NodeUsage(orphans=(region,), released=(blocked,))),
    )
    for device in ("GPU-1", "GPU-9", ""):
        yield f"XID on {device}", structs.replace(view_of(()), xids=(XidCount(device, 79, 1, 0.0),))
        over = ShareUsage(device, pod, "main", limit_bytes=1, used_bytes=3, accounted=PHANTOM)
        yield f"share of {device}", structs.replace(view_of(()), usage=usage_of(over))
        yield (
            f"blocked on {device}",
            structs.replace(NOTHING, usage=NodeUsage(containers=(blocked,))),
        )
        for kind in ConflictKind:
            conflicts = tuple(
                Conflict(kind, device, ref, "main" if ref else "") for ref in (pod, nobody, None)
            )
            totals = AllocationTotals(Ledger("n", (), conflicts=conflicts))
            yield f"{kind} of {device}", structs.replace(view_of(()), allocations=totals)


@pytest.mark.parametrize(("kind", "view"), list(every_problem()))
def test_each_problem_is_a_link_to_one_place_on_the_page(kind, view):
    page = statuspage.render(view, 0.0, "/metrics").decode()
    items = re.findall("<li [^>]*>(.*?)</li>", page)
    assert len(items) == len(problems(view)) > 0, kind
    ids = [html.unescape(each) for each in re.findall(r' id="([^"]*)"', page)]
    for item in items:
        (fragment,) = re.findall(r'</b> <a href="#([^"]+)">', item)
        assert ids.count(unquote(fragment)) == 1, item


def test_an_object_that_is_no_gpu_has_the_command_and_the_documentation_of_its_problem():
    view = dict(every_problem())["failed pod"]
    page = statuspage.render(view, 0.0, "/metrics").decode()
    assert "<code>vgpu explain pod team/gus</code>" in page
    assert "docs/runbooks/alerts/VgpuStuckPods.md" in page


def test_the_documentation_has_a_page_for_each_problem():
    found = [each for _, view in every_problem() for each in problems(view) if each.detail]
    assert {each.detail.page for each in found} >= {f"runbooks/{page}" for page in RUNBOOKS}
    for each in found:
        assert (ROOT / "docs" / f"{each.detail.page}.md").exists(), each


@pytest.mark.parametrize(("expected", "words"), [(3, "1 of 3 GPUs that"), (2, None), (1, None)])
def test_missing_gpus_are_counted(expected, words):
    view = structs.replace(view_of(()), driver="580.95.05", gpus_expected=expected)
    texts = [problem.text for problem in problems(view)]
    assert any(text.startswith(words or "") for text in texts) == bool(words)


def test_one_missing_gpu_is_no_plural():
    view = structs.replace(view_of(()), gpus=(), driver="580.95.05", gpus_expected=1)
    (problem,) = problems(view)
    assert problem.text.startswith("1 of 1 GPU that this node should have: ")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (Reason.LIBRARY_NOT_FOUND, "No NVIDIA driver here: vgpu doctor node"),
        (Reason.DRIVER_NOT_LOADED, "No NVIDIA driver here: vgpu doctor node"),
        (Reason.TIMEOUT, "No data of the GPUs."),
    ],
)
def test_a_node_without_a_driver_names_the_command_that_finds_out_why(reason, words):
    row = CollectorRow("nvml", False, 0.1, None, 0.0, {reason: 1}, {}, {})
    view = structs.replace(NOTHING, collectors=(row,))
    assert f"<section>{words}</section>" in statuspage.render(view, 0.0, "/metrics").decode()


def test_an_xid_is_as_long_a_problem_as_it_is_an_alert():
    view = structs.replace(view_of(()), timestamp=5.0, xids=(XidCount("GPU-1", 79, 1, 5.0),))
    assert problems(view)
    assert not problems(structs.replace(view, timestamp=5.0 + RECENT_SECONDS))
