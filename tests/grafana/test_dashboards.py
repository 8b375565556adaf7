"""What every dashboard and every panel of it keeps to, read from the JSON that people import."""

import json
import re

import pytest

from deviceplugin.metrics import TABLES as PLUGIN_TABLES
from exporter.compat import SETS
from exporter.families import OWN_TABLES
from grafana import recording
from grafana.dashboards import DASHBOARDS
from grafana.dashboards.build import UNKNOWN
from grafana.reading import FOLDER, VARIABLE, load, panels
from reconciler.metrics import TABLES as RECONCILER_TABLES
from tests.support.environment import ROOT

FILES = sorted(FOLDER.glob("*.json"))
PAGES = {file.stem: load(file) for file in FILES}
ROW = "row"
PANELS = [(uid, each) for uid, page in PAGES.items() for each in panels(page) if each.kind != ROW]
TARGETS = [(uid, panel, target) for uid, panel in PANELS for target in panel.targets]
BUILT_IN = {"__rate_interval", "__data", "__field", "__url_time_range"}

LABELS = {
    family.name: {*table.labels, *family.extra}
    for tables in (
        OWN_TABLES,
        RECONCILER_TABLES,
        PLUGIN_TABLES,
        *(make(False) for make in SETS.values()),
    )
    for table in tables
    for family in table.families
}
RECORDED = {rule.name for group in recording.GROUPS for rule in group.rules}
OF_TARGETS = {"cluster", "job", "instance", "node"}
"""Labels that the scrape job gives."""

NAME = re.compile(r"(?<![\w:\"$])(vgpu_\w+|\w+:vgpu_\w+:\w+)\s*(?:\{([^}]*)\})?")
GROUPED = re.compile(r"\b(?:by|on|group_left) \(([^)]*)\)")
MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")

panel_of = pytest.mark.parametrize(
    ("uid", "panel"), PANELS, ids=[f"{uid}: {panel.title}" for uid, panel in PANELS]
)


def test_there_is_a_file_for_each_dashboard():
    assert set(PAGES) == {page.uid for page in DASHBOARDS}


@pytest.mark.parametrize("uid", PAGES)
def test_a_dashboard_can_be_imported_as_it_is(uid):
    page = PAGES[uid]
    assert page["uid"] == uid
    assert page["schemaVersion"] <= 39
    assert page["description"]
    assert not page["editable"]
    assert page.get("id") is None
    ids = [panel["id"] for panel in page["panels"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("uid", PAGES)
def test_titles_are_unique_on_a_dashboard(uid):
    titles = [panel.title for of, panel in PANELS if of == uid]
    assert len(set(titles)) == len(titles)


@pytest.mark.parametrize("uid", PAGES)
def test_panels_are_within_the_grid_and_do_not_overlap(uid):
    taken = set()
    for x, y, width, height in (panel.place for panel in panels(PAGES[uid])):
        cells = {(x + i, y + j) for i in range(width) for j in range(height)}
        assert x + width <= 24
        assert not cells & taken
        taken |= cells
    lowest = max(y for _, y in taken)
    assert {y for _, y in taken} == set(range(lowest + 1))


@pytest.mark.parametrize("uid", PAGES)
def test_the_data_source_is_the_first_choice(uid):
    first, *others = PAGES[uid]["templating"]["list"]
    assert (first["type"], first["name"]) == ("datasource", "datasource")
    assert all(
        variable["datasource"]["uid"] == "${datasource}"
        for variable in others
        if variable["type"] == "query"
    )


@panel_of
def test_a_panel_says_what_it_is_and_what_it_means_when_it_is_empty(uid, panel):
    description = panel.raw["description"]
    about, empty = description.split("\n\nEmpty: ")
    assert about.endswith(".")
    assert panel.raw["fieldConfig"]["defaults"]["noValue"] == f"{UNKNOWN}: {empty.rstrip('.')}"


@panel_of
def test_a_panel_asks_the_chosen_data_source_and_no_other(uid, panel):
    assert panel.targets
    told = [panel.raw["datasource"], *(target["datasource"] for target in panel.raw["targets"])]
    assert all(each == {"type": "prometheus", "uid": "${datasource}"} for each in told)
    letters = [target.letter for target in panel.targets]
    assert len(set(letters)) == len(letters)


@panel_of
def test_every_number_has_a_unit(uid, panel):
    if panel.kind == "table":
        columns = [
            {entry["id"]: entry["value"] for entry in override["properties"]}
            for override in panel.raw["fieldConfig"]["overrides"]
        ]
        assert sum("unit" in column for column in columns) == len(panel.targets)
    else:
        assert panel.raw["fieldConfig"]["defaults"]["unit"]


@panel_of
def test_what_is_not_known_is_never_shown_as_the_last_that_was(uid, panel):
    """Only lines look back; and where they have nothing they have a gap."""
    custom = panel.raw["fieldConfig"]["defaults"].get("custom", {})
    if panel.kind == "timeseries":
        assert not custom.get("spanNulls")
    else:
        assert all(target.instant for target in panel.targets)
        if panel.kind != "table":
            assert panel.raw["options"]["reduceOptions"]["calcs"] == ["last"]


@panel_of
def test_what_is_not_known_is_grey(uid, panel):
    *_, last = panel.raw["fieldConfig"]["defaults"]["mappings"]
    assert last["type"] == "special"
    assert last["options"]["match"] == "null+nan"
    assert last["options"]["result"]["text"] == UNKNOWN
    assert last["options"]["result"]["color"] == "#808080"


@panel_of
def test_no_expression_makes_data_where_there_is_none(uid, panel):
    """A zero comes from what is there whenever somebody looked."""
    for target in panel.targets:
        assert "vector(" not in target.expr
        assert "absent" not in target.expr


@pytest.mark.parametrize("uid", PAGES)
def test_every_variable_that_is_asked_for_can_be_chosen(uid):
    page = PAGES[uid]
    known = {variable["name"] for variable in page["templating"]["list"]} | BUILT_IN
    texts = [target.expr for of, _, target in TARGETS if of == uid]
    texts += [
        variable["query"]["query"]
        for variable in page["templating"]["list"]
        if variable["type"] == "query"
    ]
    asked = {found[1] or found[2] for text in texts for found in VARIABLE.finditer(text)}
    assert asked <= known
    assert known - BUILT_IN - asked <= {"datasource", "runbooks"}, "chosen, and nothing changes"


@pytest.mark.parametrize(("uid", "panel", "target"), TARGETS)
def test_metrics_and_their_labels_are_those_of_our_tables(uid, panel, target):
    told = NAME.findall(target.expr)
    assert told or "up{" in target.expr
    for name, matchers in told:
        assert name in RECORDED or name in LABELS, name
        for label in MATCHER.findall(matchers):
            own = LABELS.get(name, OF_TARGETS)
            assert label.removeprefix("exported_") in own | OF_TARGETS, (name, label)


@pytest.mark.parametrize(("uid", "panel", "target"), TARGETS)
def test_what_is_joined_and_added_up_are_labels_that_there_are(uid, panel, target):
    known = set().union(*LABELS.values()) | OF_TARGETS
    for labels in GROUPED.findall(target.expr):
        names = set(filter(None, labels.split(", ")))
        assert {name.removeprefix("exported_") for name in names} <= known


@panel_of
def test_links_lead_to_dashboards_and_runbooks_that_exist(uid, panel):
    for url in re.findall(r'"url": "([^"]+)"', json.dumps(panel.raw)):
        if url.startswith("/d/"):
            target, _, query = url.removeprefix("/d/").partition("?")
            names = {variable["name"] for variable in PAGES[target]["templating"]["list"]}
            assert set(re.findall(r"var-(\w+)=", query)) <= names
        else:
            page = url.removeprefix("${runbooks}/").replace("${__field.labels.rule}", "refused")
            assert (ROOT / "docs" / "runbooks" / page).is_file()


@panel_of
def test_a_link_takes_its_names_from_columns_that_there_are(uid, panel):
    """The name of a node, or of a namespace, goes with its cluster's: several may have it."""
    for override in panel.raw["fieldConfig"]["overrides"]:
        for url in re.findall(r'"url": "([^"]+)"', json.dumps(override)):
            (organize,) = (
                each["options"] for each in panel.raw["transformations"] if each["id"] == "organize"
            )
            columns = set(organize["renameByName"].values())
            assert set(re.findall(r"\$\{__data\.fields\.(\w+)\}", url)) <= columns
            assert "Cluster" not in columns or "var-cluster=" in url or "cluster:" in url


@panel_of
def test_lines_that_come_and_go_are_not_stacked(uid, panel):
    """Of the largest only, a stack's height is the sum of nothing."""
    if any("topk" in target.expr for target in panel.targets) and panel.kind == "timeseries":
        stacking = panel.raw["fieldConfig"]["defaults"]["custom"]["stacking"]
        assert stacking["mode"] == "none"


@panel_of
def test_a_legend_begins_with_the_largest_of_now(uid, panel):
    if panel.kind == "timeseries":
        legend = panel.raw["options"]["legend"]
        assert (legend["sortBy"], legend["sortDesc"]) == ("Last", True)


@pytest.mark.parametrize("uid", PAGES)
def test_dashboards_lead_to_each_other_with_what_is_chosen(uid):
    (link,) = PAGES[uid]["links"]
    assert link["type"] == "dashboards"
    assert set(link["tags"]) <= set(PAGES[uid]["tags"])
    assert link["includeVars"]
    assert link["keepTime"]


@pytest.mark.parametrize("uid", PAGES)
def test_there_is_a_small_picture_of_each_dashboard(uid):
    picture = ROOT / "docs" / "dashboards" / f"{uid}.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 250_000
