"""The units of memory on the page: what was set, and whether this node's data contradicts it."""

from exporter.units import fitting, unit_rows
from tests.support.registers import volcano_register
from vgpu.inventory import short_notes
from vgpu.ledger import Holding
from vgpu.metrics.render import Format
from vgpu.model.allocation import Share
from vgpu.model.names import Phase, PodRef, Scheme, Source
from vgpu.model.objects import Node
from vgpu.model.units import MIB
from vgpu.sources.collector import Collector
from vgpu.sources.pods import pod_sample
from vgpu.sources.samples import with_node
from vgpucli.top.reading import read_page

UNITS = {"volcano": MIB, "gpushare": None}


def holding(size):
    return Holding(
        PodRef("u", "ml", "a"),
        "main",
        Share("GPU-1", size),
        Scheme.VOLCANO,
        Phase.ASSIGNED,
        Source.ANNOTATIONS,
        (Source.ANNOTATIONS,),
    )


def node(units):
    return Node("gpu-1", annotations=volcano_register("GPU-1", amount=units))


def test_only_units_that_are_set_have_a_row():
    (row,) = unit_rows(UNITS, "gpu-1", None, [])
    assert (row.scheme, row.unit_bytes, row.doubt) == ("volcano", MIB, None)
    assert fitting(row) == {}


def test_a_share_that_no_process_could_use_casts_doubt_on_the_unit():
    (row,) = unit_rows(UNITS, "gpu-1", None, [holding(8 * MIB), holding(None)])
    assert fitting(row) == {("least",): 8 * MIB}
    (row,) = unit_rows(UNITS, "gpu-1", node(4606), [holding(8 * MIB)])
    assert fitting(row) == {("least",): 8 * MIB, ("most",): 227 * MIB}


def test_what_the_node_registers_casts_doubt_on_the_unit():
    (row,) = unit_rows(UNITS, "gpu-1", node(45), [])
    assert row.doubt.doubt.problem == "a GPU has 45 MiB"
    (row,) = unit_rows(UNITS, "gpu-1", node(46068), [holding(4096 * MIB)])
    assert row.doubt is None


def test_the_page_has_the_unit_and_what_would_fit(make_bench):
    bench = make_bench(volcano_memory_factor=1)
    pods = with_node(pod_sample([], complete=True), node(45))
    bench.collectors.pods = Collector("api", lambda _: pods)
    page = bench.sampler.sample().exposition.body(Format.TEXT).decode()
    reading = read_page(page)
    assert 'vgpu_memory_unit_bytes{scheme="volcano"} 1048576\n' in page
    assert list(short_notes(reading.units)) == [
        "unit unconfirmed, 23 to 23301 would fit (--volcano.memory-factor 1)"
    ]
