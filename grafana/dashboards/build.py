"""Draws dashboards: the values of ``model.py`` as the JSON that Grafana imports.

The JSON has the classic schema in its version 39, which Grafana reads from 11.4 on. For all panels:

- Numbers and bars query this moment only. Grafana's usual "last value that is not null" would still
  show values that are not measured any more.
- A panel without data shows "no data" and the meaning of that, in grey: an empty panel is never
  green, and gaps in lines stay gaps.
- Every query goes to the data source that is selected at the top.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Final

from grafana_foundation_sdk.builders import (
    bargauge,
    dashboard,
    prometheus,
    stat,
    table,
    timeseries,
)
from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from grafana.dashboards.model import (
    Colour,
    Column,
    Dashboard,
    Link,
    Panel,
    PanelKind,
    PanelRow,
    RunbookLink,
    Steps,
    TablePanel,
    Variable,
)
from grafana.runbooks import RunbookPages

SOURCE: Final = models.DataSourceRef("prometheus", "${datasource}")
TAG: Final = "vgpu"

UNKNOWN: Final = "no data"

Drawn = stat.Panel | bargauge.Panel | timeseries.Panel | table.Panel

_BUILDERS: Final[Mapping[PanelKind, Callable[[], Drawn]]] = {
    PanelKind.STAT: stat.Panel,
    PanelKind.BARS: bargauge.Panel,
    PanelKind.GRAPH: timeseries.Panel,
}


def dashboard_json(page: Dashboard, runbooks: RunbookPages) -> str:
    """The file to import; without pages of runbooks it has no links to them."""
    made = (
        dashboard.Dashboard(page.title)
        .uid(page.uid)
        .description(page.about)
        .tags([TAG])
        .time(f"now-{page.since}", "now")
        .refresh("1m")
        .timezone("browser")
        .readonly()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(
            dashboard.DashboardLink("vgpu")
            .type(models.DashboardLinkType.DASHBOARDS)
            .tags([TAG])
            .include_vars(include_vars=True)
            .keep_time(keep_time=True)
        )
        .variables(
            [
                dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"),
                *map(_variable, page.variables),
                *_runbooks(runbooks),
            ]
        )
    )
    for row in page.rows:
        _add(made, row, runbooks)
    drawn = made.build()
    for number, panel in enumerate(drawn.panels or (), start=1):
        panel.id_val = number
    return json.dumps(drawn, cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def _runbooks(runbooks: RunbookPages) -> Iterator[dashboard.ConstantVariable]:
    if runbooks.base:
        yield dashboard.ConstantVariable("runbooks").label("Runbooks").value(runbooks.base)


def _variable(variable: Variable) -> dashboard.QueryVariable:
    made = (
        dashboard.QueryVariable(variable.name)
        .label(variable.title)
        .datasource(SOURCE)
        .query({"query": variable.query, "refId": variable.name})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
    )
    if variable.shown_as:
        value, text = (f'"(?<{name}>[^"]+)"' for name in ("value", "text"))
        made.regex(f"/\\b{variable.label}={value}.*\\b{variable.shown_as}={text}/")
    elif variable.label:
        made.regex(f'/\\b{variable.label}="([^"]+)"/')
    if variable.several:
        everything = models.VariableOption(selected=True, text="All", value="$__all")
        made.multi(multi=True).include_all(include_all=True).all_value(".*").current(everything)
    return made


def _add(page: dashboard.Dashboard, row: PanelRow, runbooks: RunbookPages) -> None:
    page.with_row(dashboard.Row(row.title))
    for panel in row.panels:
        page.with_panel(_table(panel) if isinstance(panel, TablePanel) else _panel(panel, runbooks))


# ---------------------------------------------------------------- numbers, bars, lines


def _panel(panel: Panel, runbooks: RunbookPages) -> Drawn:
    made = _common(_BUILDERS[panel.kind](), panel.title, panel.about, panel.empty)
    made.unit(panel.unit.value).span(panel.width).height(panel.height)
    made.mappings(_mappings(panel.value_texts)).thresholds(_thresholds(panel.steps))
    if panel.most is not None:
        made.max(panel.most)
    if link := _address(panel.link, runbooks):
        made.data_links([_link(link)])
    for letter, query in zip("ABCDEFGH", panel.queries, strict=False):
        asked = _ask(letter, query.expr).legend_format(query.legend or "__auto")
        made.with_target(asked.range() if panel.kind is PanelKind.GRAPH else asked.instant())
    if isinstance(made, timeseries.Panel):
        _as_graph(made, panel)
    elif isinstance(made, stat.Panel):
        made.reduce_options(_now()).graph_mode(common.BigValueGraphMode.NONE)
        made.color_mode(common.BigValueColorMode.VALUE)
    elif isinstance(made, bargauge.Panel):
        made.reduce_options(_now()).orientation(common.VizOrientation.HORIZONTAL)
        made.display_mode(common.BarGaugeDisplayMode.BASIC).min(0)
    return made


def _as_graph(made: timeseries.Panel, panel: Panel) -> None:
    legend = (
        common_builders.VizLegendOptions()
        .show_legend(show_legend=True)
        .display_mode(common.LegendDisplayMode.TABLE)
        .placement(common.LegendPlacement.RIGHT)
        .calcs(["last", "max"])
        .sort_by("Last")
        .sort_desc(sort_desc=True)
    )
    stacking = common.StackingMode.NORMAL if panel.stacked else common.StackingMode.NONE
    made.legend(legend).stacking(common_builders.StackingConfig().mode(stacking))
    made.axis_soft_min(0)
    made.fill_opacity(30 if panel.stacked else 5).line_width(1)
    made.color_scheme(_colour(models.FieldColorModeId.PALETTE_CLASSIC))
    made.tooltip(
        common_builders.VizTooltipOptions()
        .mode(common.TooltipDisplayMode.MULTI)
        .sort(common.SortOrder.DESCENDING)
    )


def _now() -> common_builders.ReduceDataOptions:
    """The current value of every series."""
    return common_builders.ReduceDataOptions().calcs(["last"]).values(values=False)


# ---------------------------------------------------------------- tables


def _table(made_of: TablePanel) -> table.Panel:
    made = table.Panel()
    _common(made, made_of.title, made_of.about, made_of.empty)
    made.span(made_of.width).height(made_of.height).mappings(_mappings({}))
    made.sort_by(
        [common_builders.TableSortByFieldState().display_name(made_of.order).desc(desc=True)]
    )
    made.with_transformation(models.DataTransformerConfig("merge", options={}))
    made.with_transformation(models.DataTransformerConfig("organize", options=_columns(made_of)))
    for letter, column in zip("ABCDEFGHIJKLMNO", made_of.columns, strict=False):
        labels = ", ".join((*made_of.labels, *column.more))
        asked = _ask(letter, f"max by ({labels}) ({column.expr})")
        made.with_target(asked.format(PromQueryFormat.TABLE).instant())
        made.override_by_name(column.title, _overrides(column))
    for title, link in made_of.links.items():
        links = models.DynamicConfigValue("links", [{"title": link.title, "url": link.url}])
        made.override_by_name(title, [links])
    return made


def _columns(made_of: TablePanel) -> Mapping[str, object]:
    """The columns, their order and their names."""
    letters = dict(zip("ABCDEFGHIJKLMNO", made_of.columns, strict=False))
    brought = chain.from_iterable(column.more.items() for column in made_of.columns)
    names = {
        **made_of.labels,
        **dict(brought),
        **{f"Value #{letter}": column.title for letter, column in letters.items()},
    }
    return {
        "excludeByName": {
            "Time": True,
            **{name: True for name, title in names.items() if not title},
        },
        "indexByName": {name: place for place, name in enumerate(names)},
        "renameByName": {name: title for name, title in names.items() if title},
    }


def _overrides(column: Column) -> list[models.DynamicConfigValue]:
    look: dict[str, object] = {"unit": column.unit.value}
    if column.value_texts:
        look["mappings"] = _mappings(column.value_texts)
    if column.steps:
        look["thresholds"] = _thresholds(column.steps).build()
        look["custom.cellOptions"] = {"type": "color-text"}
    if column.bar:
        look |= {"min": 0, "max": 1, "custom.cellOptions": {"type": "gauge", "mode": "basic"}}
    return [models.DynamicConfigValue(name, value) for name, value in look.items()]


# ---------------------------------------------------------------- what all have


def _common(made: Drawn, title: str, about: str, empty: str) -> Drawn:
    made.title(title).datasource(SOURCE).no_value(f"{UNKNOWN}: {empty}")
    made.description(f"{about}\n\nEmpty: {empty}.")
    return made


def _ask(letter: str, expr: str) -> prometheus.Dataquery:
    return prometheus.Dataquery().ref_id(letter).expr(expr).datasource(SOURCE)


def _address(link: Link | RunbookLink | None, runbooks: RunbookPages) -> Link | None:
    if not isinstance(link, RunbookLink):
        return link
    return Link("Runbook", f"${{runbooks}}/{link.page}{runbooks.suffix}") if runbooks.base else None


def _link(link: Link) -> dashboard.DashboardLink:
    return dashboard.DashboardLink(link.title).url(link.url)


def _colour(mode: models.FieldColorModeId) -> dashboard.FieldColor:
    return dashboard.FieldColor().mode(mode)


def _thresholds(steps: Steps) -> dashboard.ThresholdsConfig:
    made = [models.Threshold(value, colour.value) for value, colour in steps]
    return dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(made)


def _mappings(value_texts: Mapping[float, str]) -> list[models.ValueMapping]:
    """Words for values; null and NaN are grey."""
    unknown = models.ValueMappingResult(text=UNKNOWN, color=Colour.UNKNOWN.value)
    texts = {
        f"{value:g}": models.ValueMappingResult(text=text, index=place)
        for place, (value, text) in enumerate(value_texts.items())
    }
    return [
        *([models.ValueMap(texts)] if texts else ()),
        models.SpecialValueMap(
            models.DashboardSpecialValueMapOptions(models.SpecialValueMatch.NULL_AND_NAN, unknown)
        ),
    ]
