"""The panel that the dashboard of each program with an API client has: what it asks the server."""

from grafana.dashboards import links
from grafana.dashboards.model import GrafanaUnit, Panel, PanelQuery, graph
from grafana.settings import API_ERRORS


def api_requests(series: str, program: str, alert: str, **more: object) -> Panel:
    """Requests a second by verb and code.

    ``series`` are the selected ones of the program's counter, ``alert`` names the alert about
    errors, and ``more`` are fields of the panel.
    """
    return graph(
        "Requests to the API server",
        "By answer; code 0 means that no answer came. Errors that need a person are"
        f" {API_ERRORS.replace('|', ', ')}.",
        GrafanaUnit.PER_SECOND,
        (
            PanelQuery(
                f"sum by (verb, code) (rate({series}[$__rate_interval]))", "{{verb}} {{code}}"
            ),
        ),
        f"no {program} is scraped, or none has asked yet",
        stacked=True,
        link=links.runbook(alert),
        **more,
    )
