"""Where links of alerts and dashboards find the runbooks, if these can be read anywhere."""

from typing import Final

import msgspec

from deploy.project import Project, load


class RunbookPages(msgspec.Struct, frozen=True):
    """Where the pages of docs/runbooks are.

    Attributes:
        base: the folder's address, without a slash at its end; "" if the pages are nowhere.
        suffix: the end of each page's name: ``.html`` on the site, ``.md`` on a forge.
    """

    base: str
    suffix: str

    def alert(self, name: str) -> dict[str, str]:
        """The annotation of an alert that leads to its runbook, or only names it."""
        if self.base:
            return {"runbook_url": f"{self.base}/alerts/{name}{self.suffix}"}
        return {"runbook": f"{name}.md"}


def published(project: Project) -> RunbookPages:
    """The pages of the project's site."""
    return RunbookPages(f"{project.site}/runbooks" if project.site else "", ".html")


def charted(runbooks: RunbookPages) -> RunbookPages:
    """As the dashboards in the chart have them: always with an address. The chart replaces it by
    ``rules.runbooks``, and removes the links where neither the project nor that value has one.
    """
    return msgspec.structs.replace(runbooks, base=runbooks.base or "https://runbooks.invalid")


PUBLISHED: Final = published(load())
