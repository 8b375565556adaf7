"""What forges read: workflows, templates of issues, updates of dependencies.

The schemas are those that check-jsonschema brings, so that nothing is fetched.
"""

import re
from pathlib import Path

import pytest
import yaml
from check_jsonschema import main as check_jsonschema
from click.testing import CliRunner

from deploy.addressed import contact
from deploy.project import Project
from tests.support.defects import no_defects
from tests.support.environment import ROOT
from tests.support.schedule import Group

MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
GITLAB = ROOT / ".gitlab-ci.yml"
TEMPLATES = ROOT / ".github" / "ISSUE_TEMPLATE"
FORMS = sorted(path for path in TEMPLATES.glob("*.yml") if path.name != "config.yml")

CHECKED = {
    "vendor.github-workflows": WORKFLOWS,
    "custom.github-workflows-require-timeout": WORKFLOWS,
    "vendor.gitlab-ci": [GITLAB],
    "vendor.dependabot": [ROOT / ".github" / "dependabot.yml"],
    "vendor.github-issue-forms": FORMS,
    "vendor.github-issue-config": [TEMPLATES / "config.yml"],
}
GITLABS_OWN = ("default", "stages", "variables", "workflow", "include")


def load(path):
    return yaml.safe_load(path.read_text())


def jobs():
    """(name, the job) of all workflows of GitHub."""
    for path in WORKFLOWS:
        for name, job in load(path)["jobs"].items():
            yield f"{path.name}: {name}", job


def steps():
    for name, job in jobs():
        for step in job["steps"]:
            yield name, step


def commands():
    """(where, one line of a script) of both forges."""
    for name, step in steps():
        for line in step.get("run", "").splitlines():
            yield name, line
    config = load(GITLAB)
    for name, job in {"default": config["default"], **gitlab_jobs(config)}.items():
        for key in ("before_script", "script", "after_script"):
            for line in job.get(key, ()):
                yield f".gitlab-ci.yml: {name}", line


def gitlab_jobs(config):
    return {name: job for name, job in config.items() if name not in GITLABS_OWN}


@pytest.mark.parametrize("schema", CHECKED)
def test_a_file_is_what_its_forge_reads(schema):
    files = CHECKED[schema]
    assert files
    checked = CliRunner().invoke(
        check_jsonschema, ["--builtin-schema", schema, *map(str, files)], catch_exceptions=False
    )
    assert checked.exit_code == 0, checked.output


def test_a_broken_workflow_is_refused(tmp_path):
    broken = tmp_path / "broken.yml"
    broken.write_text("on: push\njobs: {test: {runs-on: debian, step: []}}\n")
    refused = CliRunner().invoke(
        check_jsonschema, ["--builtin-schema", "vendor.github-workflows", str(broken)]
    )
    assert refused.exit_code == 1


@no_defects
def test_a_script_calls_targets_of_the_makefile_and_nothing_else():
    found = list(commands())
    for name, line in found:
        words = line.split(" ", 2)
        if words[0] != "make" or words[1] not in TARGETS:
            yield f"{name}: {line}"
        if not re.fullmatch(r"|GROUP=(\$GROUP|\$\{\{ matrix\.group \}\})", " ".join(words[2:])):
            yield f"{name}: {line}"
    called = {line.split()[1] for _, line in found}
    for target in {"check", "release", "test", "test-thorough"} - called:
        yield f"no workflow calls make {target}"


def test_each_thorough_group_runs_each_night():
    (nightly,) = (job for name, job in jobs() if name.startswith("nightly.yml"))
    groups = [str(group) for group in Group]
    assert nightly["strategy"]["matrix"]["group"] == groups
    assert load(GITLAB)["thorough"]["parallel"]["matrix"] == [{"GROUP": groups}]
    assert re.findall(r"^GROUP +\?= (.*)$", MAKEFILE, re.MULTILINE) == [" ".join(groups)]


ACTION = re.compile(r"(actions/[a-z-]+)@([0-9a-f]{40}) # v\d+\.\d+\.\d+")


def test_actions_are_the_forges_own_and_have_a_commit():
    """A tag can be moved to another commit. The comment is for people and Dependabot."""
    lines = re.findall(
        r"^ *-? *uses: *(.*)$", "\n".join(map(Path.read_text, WORKFLOWS)), re.MULTILINE
    )
    assert len(lines) == sum("uses" in step for _, step in steps())
    assert lines
    assert [line for line in lines if not ACTION.fullmatch(line)] == []


def test_an_action_has_the_same_commit_in_all_workflows():
    texts = {match.groups() for path in WORKFLOWS for match in ACTION.finditer(path.read_text())}
    assert len(texts) == len({name for name, _ in texts})


def test_a_workflow_may_read_and_only_the_job_that_publishes_may_write():
    assert {str(load(path)["permissions"]) for path in WORKFLOWS} == {"{'contents': 'read'}"}
    more = {name: job["permissions"] for name, job in jobs() if "permissions" in job}
    assert more == {"release.yml: publish": {"contents": "write"}}


def test_what_is_published_was_built_by_a_tag():
    release = load(ROOT / ".github" / "workflows" / "release.yml")
    assert release[True] == {"push": {"tags": ["v*"]}}  # `on` is true in YAML 1.1
    assert release["jobs"]["publish"]["needs"] == "release"


def test_a_report_of_a_vulnerability_goes_to_the_address_in_the_projects_policy():
    text = contact(Project(security_contact="security@example.com"))
    assert "<security@example.com>" in text
    assert "<https://example.com/report>" in contact(
        Project(security_contact="https://example.com/report")
    )
    assert "publisher" in contact(Project())
    assert "@" not in contact(Project())
