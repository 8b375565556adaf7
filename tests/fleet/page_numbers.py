"""The numbers of a page, each with its owner, and the texts that have digits outside of numbers."""

import json
import re
from html.parser import HTMLParser
from urllib.parse import unquote

OF_ELEMENTS = ("a", "code", "time", "title", "option", "h1", "h3")
"""Elements with names, commands and times, whose digits are no numbers of ours."""


class PageNumbers(HTMLParser):
    """What a page shows: ``numbers`` are (owner, path, value), ``loose`` texts with digits."""

    def __init__(self, page):
        super().__init__()
        self.numbers, self.ids, self.loose, self._open = [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag in ("meta", "link", "br", "input", "rect"):
            return
        self._open.append(tag)
        if tag == "data":
            fields = dict(attrs)
            owner, _, path = fields["id"].partition(":")
            self.ids.append(fields["id"])
            self.numbers.append((owner, tuple(map(unquote, path.split("/"))), fields["value"]))

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        text = " ".join(data.split())
        inside = {"data", *OF_ELEMENTS} & set(self._open)
        if re.search(r"\d", text) and not inside:
            self.loose.append(text)


KEYS = {
    "nodes": ("name",),
    "rows": ("node.name",),
    "devices": ("uuid",),
    "groups": ("name",),
    "quota": ("resource", "model"),
    "quotas": ("flavor", "resource"),
    "queues": ("kind", "name"),
    "nvidia": ("node", "resource"),
    "tabs": ("name",),
    "models": ("model",),
    "nvidiaSums": ("resource", "model"),
    "nvidiaUnits": ("node", "resource", "container"),
    "holders": ("pod.uid", "container"),
    "holdings": ("pod.uid", "container", "device", "phase"),
    "events": ("kind", "namespace", "name", "reason", "message"),
    "similarPods": ("tab", "owner", "request", "reason"),
}
"""The fields that name an element of a list, by the list."""


def field(document, name):
    """A field, or a field of a field."""
    for part in name.split("."):
        document = document[part]
    return document


def resolved(document, path):
    """The value at a path; elements of lists are named by :data:`KEYS`."""
    parts, name = list(path), ""
    while parts:
        if isinstance(document, list):
            keys = KEYS[name]
            wanted, parts = parts[: len(keys)], parts[len(keys) :]
            (document, *_) = [
                each
                for each in document
                if [str(field(each, key)) for key in keys] == wanted
                or (name == "devices" and [each["name"]] == wanted)
            ]
        else:
            name = parts.pop(0)
            document = document[name]
    return document


def with_holdings(inspect):
    """The document of ``vgpu inspect`` with a list of all holdings."""
    nodes = inspect["nodes"]
    lists = [each["unplaced"] for each in nodes]
    lists += [device["holdings"] for each in nodes for device in each["devices"]]
    return {**inspect, "holdings": [held for held_list in lists for held in held_list]}


def texts(document):
    """All texts of a document, one after the other."""
    if isinstance(document, dict):
        return " ".join(texts(each) for each in document.values())
    if isinstance(document, list):
        return " ".join(map(texts, document))
    return " ".join(str(document).split())


def as_json(body):
    """A document of bytes or text."""
    return json.loads(body)
