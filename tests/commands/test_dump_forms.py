"""A dump has one meaning, whatever its form: files, standard input, lists in lists, YAML."""

import json
import os

import pytest
import yaml
from click.testing import CliRunner

from tests.explain.test_installation import pod_group, queue
from tests.support import sample_cluster as sample
from tests.support.installed import hami_plugin, hami_scheduler
from vgpucli.main import main

ITEMS = (
    sample.volcano_node("gpu-1", 1),
    sample.volcano_pod("runs", "gpu-1", 1, 8000),
    sample.pod("waits", "", sample.volcano_limits(8000), {"scheduling.k8s.io/group-name": "job-1"}),
    pod_group(),
    queue("2"),
    hami_plugin(),
    hami_scheduler(),
)
CUT = 3
"""The number of objects in the first of two files."""

COMMANDS = {
    "explain": ("explain", "pod", "ml/waits", "-o", "json"),
    "inspect": ("inspect", "-o", "json"),
    "fit": ("fit", "--pod", "ml/waits", "-o", "json"),
    "doctor": ("doctor", "-o", "json"),
    "plan": ("reconcile", "plan", "-o", "json"),
}


def lists(*parts):
    return [json.dumps(sample.dump(part)) for part in parts]


FORMS = {
    "several files": lists(ITEMS[:CUT], ITEMS[CUT:]),
    "lists in a list": [
        json.dumps({"kind": "List", "items": [sample.dump(ITEMS[:CUT]), sample.dump(ITEMS[CUT:])]})
    ],
    "one list after another": ["\n".join(lists(ITEMS[:CUT], ITEMS[CUT:]))],
    "a list in YAML": [yaml.safe_dump(sample.dump(ITEMS))],
    "documents in YAML": [yaml.safe_dump_all(ITEMS, explicit_start=True)],
}


def answers(*files, stdin=None):
    """What each command prints of the files, without the time and without their names."""
    flags = [word for file in files for word in ("--from", file)]
    found = {}
    for name, words in COMMANDS.items():
        moment = ("--at", "2026-11-21T03:00:00Z") if name == "plan" else ()
        result = CliRunner().invoke(main, [*words, *flags, *moment], input=stdin)
        assert result.exit_code in (0, 1, 3), result.output
        document = json.loads(result.stdout)
        document.pop("asOf", None)
        found[name] = document
    return found


@pytest.fixture(scope="module")
def of_one_file(tmp_path_factory):
    return answers(*written(tmp_path_factory.mktemp("one"), lists(ITEMS)))


def written(folder, texts):
    paths = []
    for number, text in enumerate(texts):
        path = folder / f"dump-{number}"
        path.write_text(text)
        os.utime(path, (sample.NOW, sample.NOW))
        paths.append(str(path))
    return paths


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_a_dump_has_the_same_answers(tmp_path, form, of_one_file):
    assert answers(*written(tmp_path, FORMS[form])) == of_one_file


def test_standard_input_shows_the_queue_and_the_components_too(of_one_file):
    (text,) = lists(ITEMS)
    of_input = answers("-", stdin=text)["explain"]
    (reserved,) = (step for step in of_input["steps"] if step["step"] == "reserved")
    assert [each["code"] for each in reserved["reasons"]] == ["queue_full"]
    assert of_input["conclusion"] == of_one_file["explain"]["conclusion"]


def test_text_that_is_no_dump_is_quoted():
    result = CliRunner().invoke(
        main, ["inspect", "--from", "-"], input="NAME   STATUS\ngpu-1  Ready\n"
    )
    assert result.exit_code == 1
    assert "it is not JSON, and begins with 'NAME STATUS" in " ".join(result.output.split())
