"""The renderer: what Prometheus' own parsers read back is what the rows held."""

import gzip
import threading
import zlib
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tests.support.waiting import WAIT_SECONDS, wait_ended
from vgpu.metrics import gzip_parts
from vgpu.metrics.family import Family, FamilyTable, HistogramCounts, MetricType
from vgpu.metrics.render import Exposition, Format, Renderer, TableLines


def table(**changes):
    given = {
        "title": "t",
        "rows": lambda view: view,
        "labels": ("a", "b"),
        "key": lambda row: row[0],
        "families": (Family("x_bytes", MetricType.GAUGE, "Some bytes.", lambda row: row[1]),),
    }
    return FamilyTable(**{**given, **changes})


def samples(text, parse=parse_text):
    return [
        (s.name, tuple(sorted(s.labels.items())), s.value)
        for family in parse(text)
        for s in family.samples
    ]


def page(rows, *tables, fmt=Format.TEXT):
    return Renderer(tables or (table(),)).render(rows).body(fmt).decode()


@given(
    st.dictionaries(
        st.tuples(st.text(), st.text(min_size=1)),
        st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False)),
    )
)
def test_any_label_values_and_numbers_are_read_back_by_prometheus_client(rows):
    expected = [
        ("x_bytes", tuple(pair for pair in (("a", a), ("b", b)) if pair[1]), number)
        for (a, b), number in rows.items()
    ]
    assert samples(page(list(rows.items()))) == expected
    openmetrics = page(list(rows.items()), fmt=Format.OPENMETRICS)
    assert samples(openmetrics, parse_openmetrics) == expected


def test_a_counter_is_declared_as_each_format_wants_it():
    family = Family("x_total", MetricType.COUNTER, 'Says "hi".', lambda row: row[1])
    counter = table(labels=(), key=lambda row: (), families=(family,))
    assert (
        page([((), 3)], counter) == '# HELP x_total Says "hi".\n# TYPE x_total counter\nx_total 3\n'
    )
    assert page([((), 3)], counter, fmt=Format.OPENMETRICS) == (
        '# HELP x Says \\"hi\\".\n# TYPE x counter\nx_total 3\n# EOF\n'
    )


def test_what_is_not_known_is_absent_and_so_is_an_empty_family():
    assert page([(("1", "2"), None)]) == ""
    rows = [(("1", "2"), None), (("3", "4"), float("nan")), (("5", "6"), 0)]
    assert page(rows).splitlines()[2:] == ['x_bytes{a="5",b="6"} 0']


def test_extra_labels_follow_the_tables_own():
    family = Family("x", MetricType.GAUGE, "Kinds.", lambda row: row[1], ("kind",))
    labelled = table(families=(family,))
    rows = [(("1", ""), {("k",): 1, ("m",): 2.5})]
    assert page(rows, labelled).splitlines()[2:] == ['x{a="1",kind="k"} 1', 'x{a="1",kind="m"} 2.5']


@given(st.dictionaries(st.text(), st.lists(st.floats(0, 20)), min_size=1))
def test_a_histogram_is_read_back_with_all_amounts_up_to_each_bound(amounts):
    def observed(values):
        counts = HistogramCounts((0.005, 1.0))
        for value in values:
            counts.add(value)
        return counts.histogram()

    family = Family("x_seconds", MetricType.HISTOGRAM, "Times.", lambda row: row, ("verb",))
    histograms = table(labels=(), key=lambda row: (), families=(family,))
    view = [{(verb,): observed(values) for verb, values in amounts.items()}]
    expected = {}
    for verb, values in amounts.items():
        labels = (("verb", verb),) if verb else ()
        for bound, up_to in (("0.005", 0.005), ("1.0", 1), ("+Inf", inf)):
            within = sum(value <= up_to for value in values)
            expected["x_seconds_bucket", (("le", bound), *labels)] = within
        expected["x_seconds_sum", labels] = pytest.approx(sum(values))
        expected["x_seconds_count", labels] = len(values)
    for fmt, parse in ((Format.TEXT, parse_text), (Format.OPENMETRICS, parse_openmetrics)):
        read = samples(page(view, histograms, fmt=fmt), parse)
        assert {(name, labels): number for name, labels, number in read} == expected


def test_a_histogram_without_labels_has_none():
    counts = HistogramCounts((1.0,))
    counts.add(0.5)
    family = Family("x_seconds", MetricType.HISTOGRAM, "Times.", lambda row: {(): row})
    histograms = table(labels=(), key=lambda row: (), families=(family,))
    assert page([counts.histogram()], histograms).splitlines()[2:] == [
        'x_seconds_bucket{le="1.0"} 1',
        'x_seconds_bucket{le="+Inf"} 1',
        "x_seconds_sum 0.5",
        "x_seconds_count 1",
    ]


def test_a_second_row_with_the_same_labels_is_dropped_and_counted():
    exposition = Renderer((table(),)).render([(("1", "2"), 3), (("1", "2"), 4)])
    assert exposition.dropped == 1
    assert b"3\n" in exposition.body(Format.TEXT)
    assert b"4\n" not in exposition.body(Format.TEXT)


def test_a_label_that_is_no_unicode_cannot_fail_the_page():
    assert 'a="?"' in page([(("\udcff", "x"), 1)])


def test_label_strings_of_vanished_rows_are_forgotten():
    lines = TableLines(table(), values=False)
    lines.update([((str(i), "x"), i) for i in range(1000)])
    lines.update([(("1", "x"), 1)])
    assert len(lines.rows) == 1


def test_gzip_holds_the_same_bytes():
    exposition = Renderer((table(),)).render([(("1", "2"), 3)])
    assert gzip.decompress(exposition.body(Format.TEXT, gzip=True)) == exposition.body(Format.TEXT)


def test_twenty_readers_at_once_cost_one_rendering(monkeypatch):
    made = []
    original = zlib.compressobj

    def counted(*args):
        made.append(1)
        return original(*args)

    monkeypatch.setattr(gzip_parts.zlib, "compressobj", counted)
    exposition: Exposition = Renderer((table(),)).render([((str(i), "x"), i) for i in range(5000)])
    start = threading.Barrier(20, timeout=WAIT_SECONDS)
    bodies = []

    def read():
        start.wait()
        bodies.append(exposition.body(Format.OPENMETRICS, gzip=True))

    threads = [threading.Thread(target=read) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        wait_ended(thread, "a reader has its page")
    assert len(made) == 1
    assert len(set(map(id, bodies))) == 1


numbers = st.one_of(st.none(), st.integers(-9, 9), st.floats(-1, 1))
views = st.lists(st.tuples(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz")), numbers))


@given(st.lists(views, min_size=2, max_size=6), st.booleans())
def test_lines_that_are_kept_are_those_of_a_new_renderer(pages, values):
    family = Family(
        "x_kinds", MetricType.GAUGE, "Kinds.", lambda row: {("k",): row[1] or 0}, ("k",)
    )
    plain = Family("x_bytes", MetricType.GAUGE, "Some bytes.", lambda row: row[1])
    kept = Renderer((table(families=(plain, family)),), values=values)
    for rows in pages:
        fresh = Renderer((table(families=(plain, family)),)).render(rows)
        page = kept.render(rows)
        assert samples(page.body(Format.TEXT).decode()) == samples(fresh.body(Format.TEXT).decode())
        assert (page.series, page.dropped) == (fresh.series, fresh.dropped)
        assert gzip.decompress(page.body(Format.TEXT, gzip=True)) == page.body(Format.TEXT)


@pytest.mark.parametrize("values", [False, True])
def test_a_page_after_a_failed_one_has_no_old_number(values):
    def second(row):
        return row[1] / row[2]

    families = (
        Family("x_bytes", MetricType.GAUGE, "Some bytes.", lambda row: row[1]),
        Family("x_ratio", MetricType.GAUGE, "A ratio.", second),
    )
    renderer = Renderer((table(families=families),), values=values)
    key = ("one", "two")
    renderer.render([(key, 1, 1)])
    for after in ([(key, 2, 1)], []):
        with pytest.raises(ZeroDivisionError):
            renderer.render([(key, 2, 0)])
        new = Renderer((table(families=families),)).render(after)
        assert renderer.render(after).body(Format.TEXT) == new.body(Format.TEXT)
