"""Dumps of what a real KAI Scheduler wrote, changed where a test needs it, read by the commands."""

import copy
import json
from functools import cache

from click.testing import CliRunner

from tests.support import kai_player
from vgpu.kube.dump import decode_dump
from vgpucli.main import main

STEP = "two_fractions_on_two_gpus"
KINDS = ("Node", "Pod", "Namespace", "ConfigMap", "BindRequest")
RESERVATIONS = "kai-resource-reservation"


def objects_of(step=STEP, record=kai_player.STORY, kinds=KINDS):
    """The objects of these kinds at the end of a step, to be changed."""
    objects = kai_player.after(step, record=record)
    return copy.deepcopy([each for each in objects if each["kind"] in kinds])


def is_reservation(each):
    return each["kind"] == "Pod" and each["metadata"].get("namespace") == RESERVATIONS


def is_tenant(each):
    return each["kind"] == "Pod" and each["metadata"].get("namespace", "").startswith("team-")


def content_of(objects):
    return json.dumps({"kind": "List", "apiVersion": "v1", "items": objects}).encode()


@cache
def _printed(content, words, folder):
    path = folder / f"{hash(content)}.json"
    path.write_bytes(content)
    result = CliRunner().invoke(main, [*words, "--from", str(path)])
    assert not result.exception or isinstance(result.exception, SystemExit), result.exception
    return result


def printed(objects, folder, *words):
    """What a command prints about the objects."""
    return _printed(content_of(objects), words, folder).output


def document(objects, folder, *words):
    """The JSON document of a command."""
    result = _printed(content_of(objects), (*words, "-o", "json"), folder)
    assert result.stdout, result.output
    return json.loads(result.stdout)


def lists_all(objects):
    return decode_dump(content_of(objects)).lists_all
