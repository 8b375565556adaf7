"""What the tests ask of objects that are to be installed."""

from collections.abc import Iterable, Iterator
from typing import Any

import click

import deviceplugin.flags
import exporter.flags
from vgpucli.main import main

Object = dict[str, Any]

OWN = (
    "exporter",
    "device-plugin",
    "reconcile",
    "scheduler",
    "kubeshare",
    "feedback",
    "tokens",
    "bill",
    "fleet",
)
"""First words of our programs' command lines."""


def pod_templates(documents: Iterable[Object]) -> Iterator[tuple[str, Object]]:
    """(name of the workload, its pod's template)."""
    for document in documents:
        spec = document.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if "template" in spec:
            yield document["metadata"]["name"], spec["template"]


def containers(documents: Iterable[Object]) -> Iterator[tuple[str, Object, Object]]:
    """(name of the workload, its pod's spec, a container of ours)."""
    for name, template in pod_templates(documents):
        for container in template["spec"]["containers"]:
            yield name, template["spec"], container


def kinds(documents: Iterable[Object], *wanted: str) -> list[Object]:
    """The documents of these kinds."""
    return [document for document in documents if document["kind"] in wanted]


def granted(documents: Iterable[Object]) -> set[tuple[str, str]]:
    """(verb, resource) that roles give."""
    return {
        (verb, resource)
        for adapter in kinds(documents, "Role", "ClusterRole")
        for rule in adapter["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def parse(args: list[str]) -> click.Context:
    """Parse a command line as the program does, with variables as the kubelet fills them in.

    Raises click.UsageError.
    """
    args = [each.replace("$(NODE_ADDRESS)", "10.0.0.7") for each in args]
    name, rest = args[0], args[1:]
    if name == "device-plugin":
        command = click.command(name)(deviceplugin.flags.all_flags(lambda **_: None))
        context = command.make_context(name, list(rest))
        deviceplugin.flags.options_from(context)
        return context
    command = main.get_command(click.Context(main), name)
    while isinstance(command, click.Group):
        within = command.get_command(click.Context(command), rest[0]) if rest else None
        if within is None:
            break
        command, name, rest = within, rest[0], rest[1:]
    context = command.make_context(name, list(rest))
    if args[0] == "exporter":
        exporter.flags.options_from(context)
    return context
