"""One file has the addresses where the project is published; no link uses another address."""

import json
import re
import tomllib

import click
import pytest
import yaml

from deploy import addressed
from deploy.chart_readme import chart_readme
from deploy.generate import CHART
from deploy.project import FILE, RIGHT, Project, ProjectError, load
from grafana.generate import dashboard_files, rule_files
from grafana.runbooks import charted, published
from tests.support.defects import no_defects
from tests.support.environment import ROOT
from vgpu.model import documentation
from vgpucli.main import main as cli

NOWHERE = Project()
SOMEWHERE = Project(
    address="https://forge.example.com/team/vgpu",
    site="https://docs.example.com/vgpu",
    image="registry.example.com:5000/team/vgpu",
    security_contact="security@example.com",
)
DOCS = ROOT / "docs"
OUTSIDE = {"changelog", "contributing", "index", "security"}
"""Pages of the site that are not in docs/."""


def is_page(address):
    """Whether an address is that of a page of the site, which has a page for each file of docs/."""
    name = address.removeprefix(f"{SOMEWHERE.site}/").removesuffix(".html")
    known = name in OUTSIDE or (DOCS / f"{name}.md").is_file()
    return known and address == f"{SOMEWHERE.site}/{name}.html"


# ---------------------------------------------------------------- the file


def test_the_file_of_the_repository_is_read():
    assert set(load().missing()) <= set(RIGHT)
    assert NOWHERE.missing() == tuple(RIGHT)


@no_defects
def test_a_comment_above_each_key_names_what_the_publisher_fills_in():
    lines = FILE.read_text().splitlines()
    for key in RIGHT:
        (place,) = (at for at, line in enumerate(lines) if line.startswith(f"{key} = "))
        above = " ".join(lines[:place][-2:]).replace("# ", "")
        if "The publisher fills it in." not in above:
            yield key


@pytest.fixture
def written(tmp_path):
    """Writes a file with the keys of SOMEWHERE, some of them changed or left out (None)."""

    def write(**changes):
        values = {key: getattr(SOMEWHERE, key) for key in RIGHT} | changes
        rows = [
            f"{key} = {json.dumps(value)}" for key, value in values.items() if value is not None
        ]
        path = tmp_path / "project.toml"
        path.write_text("\n".join(rows))
        return path

    return write


def test_what_is_filled_in_is_read(written):
    assert load(written()) == SOMEWHERE
    assert SOMEWHERE.missing() == ()
    assert load(written(site="")).missing() == ("site",)


WRONG = (
    ("address", "http://forge.example.com/vgpu"),
    ("address", "forge.example.com/vgpu"),
    ("address", "https://user@forge.example.com/vgpu"),
    ("site", "https://docs.example.com/vgpu/"),
    ("site", "https://docs.example.com/?vgpu"),
    ("site", "https://docs.example.com/vgpu\n"),
    ("image", "vgpu"),
    ("image", "team/vgpu"),
    ("image", "registry.example.com/vgpu:1"),
    ("image", "registry.example.com/vgpu@sha256:00"),
    ("image", "https://registry.example.com/vgpu"),
    ("security_contact", "a person"),
    ("security_contact", 1),
    ("security_contact", None),
    ("homepage", "https://example.com"),
)


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_a_wrong_value_is_refused_with_the_file_and_the_key(written, key, value):
    path = written(**{key: value})
    with pytest.raises(ProjectError, match=rf"^{re.escape(str(path))}: {key}: "):
        load(path)


def test_a_file_that_cannot_be_read_is_refused_by_its_name(tmp_path):
    (tmp_path / "broken.toml").write_text("site = ")
    for name in ("absent.toml", "broken.toml"):
        with pytest.raises(ProjectError, match=name):
            load(tmp_path / name)


# ---------------------------------------------------------------- what is generated from it


def alerts(project):
    text = rule_files(published(project))["vgpu-alerts.yaml"]
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


@no_defects
def test_an_alert_leads_to_its_page_or_names_it():
    for rule in alerts(SOMEWHERE):
        url = rule["annotations"]["runbook_url"]
        if not is_page(url) or not url.endswith(f"/{rule['alert']}.html"):
            yield f"{rule['alert']}: {url}"
    for rule in alerts(NOWHERE):
        if "runbook_url" in rule["annotations"]:
            yield f"{rule['alert']} has a link without a site"
        if not (DOCS / "runbooks" / "alerts" / rule["annotations"]["runbook"]).is_file():
            yield f"{rule['alert']} names no page"


RULES = re.compile(re.escape("${__field.labels.rule}"))


def runbook_links(text):
    """The links of a dashboard to runbooks, with the base that it has."""
    page = json.loads(text)
    base = [each["query"] for each in page["templating"]["list"] if each["name"] == "runbooks"]
    matches = re.findall(r'"url": "(\$\{runbooks\}[^"]*)"', text)
    return [RULES.sub("refused", url.replace("${runbooks}", *base)) for url in matches]


@no_defects
def test_a_dashboard_leads_to_runbooks_or_has_no_link_to_them():
    for name, text in dashboard_files(published(SOMEWHERE)).items():
        links = runbook_links(text)
        if not links:
            yield f"{name}: no link"
        yield from (f"{name}: {link}" for link in links if not is_page(link))
    for name, text in dashboard_files(published(NOWHERE)).items():
        if "runbook" in text.lower().replace("opens the rule's runbook", ""):
            yield f"{name} has links without a site"


def test_the_chart_has_an_address_only_where_the_project_has_one():
    named = yaml.safe_load(addressed.chart(SOMEWHERE))
    assert (named["home"], named["sources"]) == (SOMEWHERE.site, [SOMEWHERE.address])
    unnamed = yaml.safe_load(addressed.chart(NOWHERE))
    assert named | unnamed == named | {"annotations": unnamed["annotations"]}
    assert unnamed["annotations"].items() <= named["annotations"].items()
    links = yaml.safe_load(named["annotations"]["artifacthub.io/links"])
    assert {link["url"] for link in links} == set(addressed.links(SOMEWHERE).values())
    assert "https://" not in addressed.chart(NOWHERE)


def test_the_wheel_has_an_address_only_where_the_project_has_one():
    urls = tomllib.loads(addressed.urls(SOMEWHERE))["project"]["urls"]
    assert urls["Source"] == SOMEWHERE.address
    assert is_page(urls["Changelog"])
    assert urls["Homepage"] == urls["Documentation"] == SOMEWHERE.site
    assert addressed.urls(NOWHERE) == ""


def test_each_file_is_replaced_once_and_replacing_it_again_changes_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_text("a\n# BEGIN: address\nold\n# END: address\nb\n")
    _, text = addressed.replaced(path, "new")
    assert text == "a\n# BEGIN: address\nnew\n# END: address\nb\n"
    path.write_text(text)
    assert addressed.replaced(path, "new") == (path, text)
    path.write_text("without a mark")
    with pytest.raises(ValueError, match=str(path)):
        addressed.replaced(path, "new")


# ---------------------------------------------------------------- what the programs print


def commands(command, context):
    yield command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            yield from commands(inner, click.Context(inner, parent=context, info_name=name))


@no_defects
def test_no_help_names_a_file_of_the_source():
    for command in commands(cli, click.Context(cli)):
        text = command.get_help(click.Context(command))
        yield from (
            f"{command.name}: {found}" for found in re.findall(r"\S*(?:docs/|\.md\b)\S*", text)
        )


def test_the_readme_of_the_chart_names_no_file_of_the_source():
    values = (CHART / "values.yaml").read_text()
    for project in (NOWHERE, SOMEWHERE):
        text = chart_readme(project, values, "")
        links = re.findall(r"\]\(([^)]+)\)", text)
        assert all(is_page(link) for link in links)
        assert bool(links) is bool(project.site)
        assert re.findall(r"(?<!`)docs/\S+|\S+\.md\b(?!`)", text) == []


@no_defects
def test_pages_that_the_programs_name_are_there():
    named = set()
    for package in ("vgpu", "exporter", "reconciler", "deviceplugin"):
        for path in (ROOT / package).rglob("*.py"):
            named |= set(re.findall(r"[{ ]page\('([\w/-]+)'\)", path.read_text()))
    assert named
    yield from (name for name in named if not (DOCS / f"{name}.md").is_file())


def test_programs_name_a_page_by_its_address_if_there_is_one(monkeypatch):
    monkeypatch.setattr(documentation, "SITE", "")
    assert documentation.page("inspect") == "the page inspect of the documentation"
    monkeypatch.setattr(documentation, "SITE", SOMEWHERE.site)
    assert is_page(documentation.page("inspect"))


@pytest.mark.parametrize("project", [NOWHERE, SOMEWHERE])
def test_the_dashboards_in_the_chart_have_links_that_the_chart_can_replace(project):
    for text in dashboard_files(charted(published(project))).values():
        assert runbook_links(text)
