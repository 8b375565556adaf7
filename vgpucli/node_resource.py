"""`vgpu node-resource`: advertise an extended resource on a node by hand, or withdraw it.

The command replaces curl on the node's status. It checks the name, shows the current value, and has
a guard: the patch succeeds only while the value is the one that was shown.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from vgpu.program import cluster_names
from vgpu.program.kube_flags import connected, kubeconfig_flags
from vgpu.program.output import expect_terminal, is_confirmed, say, yes_flag

_PART: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_DOMAIN: Final = re.compile(rf"{_PART}(\.{_PART})*")
_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LONGEST_DOMAIN: Final = 253
_NATIVE: Final = "kubernetes.io"
_REQUESTS: Final = "requests."
"""Prefix of the quotas of resources, which a resource's name must not have."""

_MOST: Final = 2**31 - 1
"""Maximum count, above any number of devices; the API server itself would accept 64 bits."""

_UNPROCESSABLE: Final = 422
"""HTTP status of a refused JSON patch whose test failed."""

Operation = Mapping[str, Any]

EPILOG: Final = """\
\b
Examples:
  vgpu node-resource set node-7 example.com/fpga=4
  vgpu node-resource set node-7 example.com/fpga=4 --dry-run
  vgpu node-resource unset node-7 example.com/fpga --yes

\b
A resource that a device plugin advertises is the kubelet's: it sets the count back by itself
within seconds. Allocatable follows capacity, by the kubelet too.
"""


# ---------------------------------------------------------------- pure


def name_error(name: str) -> str:
    """Why a name is not an extended resource's, "" if it is one.

    The rules are those of Kubernetes: qualified with a domain that is not its own.
    """
    domain, slash, rest = name.partition("/")
    if not slash:
        return "it has no domain, as in example.com/fpga"
    if domain.endswith(_NATIVE):
        return f"resources of {_NATIVE} are Kubernetes' own"
    if len(domain) > _LONGEST_DOMAIN or not _DOMAIN.fullmatch(domain):
        return f"{domain!r} is not a domain in lower case"
    if name.startswith(_REQUESTS):
        return f"names that begin with {_REQUESTS!r} are those of quotas"
    if not _NAME.fullmatch(rest):
        return f"{rest!r} is not 1 to 63 letters, digits and -_. between letters or digits"
    return ""


def operations(name: str, capacity: Mapping[str, str], count: int | None) -> list[Operation]:
    """The JSON patch (RFC 6902) of a node that sets a resource to ``count``; None removes it.

    ``capacity`` is the node's capacity as it was read. The patch succeeds only while the resource
    is unchanged: a ``test`` for null matches a missing one. Empty if there is nothing to do.
    """
    current = capacity.get(name)
    is_there = count is not None and current is not None and _is(count, current)
    if is_there or (current is None and count is None):
        return []
    if not capacity:  # then the node's status does not have the field
        path = "/status/capacity"
        added = {"op": "add", "path": path, "value": {name: str(count)}}
        return [{"op": "test", "path": path, "value": None}, added]
    path = "/status/capacity/" + name.replace("~", "~0").replace("/", "~1")
    guard = {"op": "test", "path": path, "value": current}
    if count is None:
        return [guard, {"op": "remove", "path": path}]
    return [guard, {"op": "add", "path": path, "value": str(count)}]


def _is(count: int, quantity: str) -> bool:
    """Whether a quantity is this count: the API server spells 1000 as ``1k``."""
    from vgpu.kube.quantities import whole  # noqa: PLC0415  # msgspec is slow to import

    return whole(quantity) == count


# ---------------------------------------------------------------- the commands


def _validated(_: click.Context, __: click.Parameter, name: str) -> str:
    if error := name_error(name):
        raise click.BadParameter(f"{name!r} is not an extended resource: {error}")
    return name


def _node(_: click.Context, __: click.Parameter, name: str) -> str:
    """The name; an empty one, as of an unset variable, would request the list of all nodes."""
    if len(name) > _LONGEST_DOMAIN or not _DOMAIN.fullmatch(name):
        raise click.BadParameter(f"{name!r} is no node's name")
    return name


def _setting(ctx: click.Context, param: click.Parameter, value: str) -> tuple[str, int]:
    name, equals, count = value.rpartition("=")
    if not equals or not re.fullmatch(r"[0-9]{1,10}", count) or int(count) > _MOST:
        raise click.BadParameter(f"{value!r} is not NAME=COUNT with a count of 0 to {_MOST}")
    return _validated(ctx, param, name), int(count)


def _change(
    node: str,
    name: str,
    count: int | None,
    *,
    yes: bool,
    dry: bool,
    **api: Any,
) -> None:
    """Show the change, ask for confirmation, and make it."""
    if not (yes or dry):
        expect_terminal()
    with connected(**api) as cluster:
        from vgpu.apiserver.connection import ClusterError  # noqa: PLC0415  # slow to import, see connection.py

        capacity = cluster.capacity(node)
        current = capacity.get(name, "none")
        patch = operations(name, capacity, count)
        if not patch:
            say(f"{node}: {name} is {current} already")
            return
        change = f"{node}: {name} {current} -> {'none' if count is None else count}"
        if dry:
            cluster.patch_node_status(node, patch, dry_run=True)
            say(f"{change} (dry run: the server would take it, nothing was changed)")
            return
        say(change)
        if not yes and not is_confirmed(f"Change it at {cluster.server}?"):
            raise click.Abort
        try:
            cluster.patch_node_status(node, patch)
        except ClusterError as error:
            if error.status != _UNPROCESSABLE:
                raise
            raise click.ClickException(
                f"not changed: {name} was changed by another client, or the server refuses the"
                f" value ({error.message}). Run the command again to see what it is now."
            ) from error
        say("changed")


def _flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags that both commands have."""
    dry = click.option(
        "--dry-run", "dry", is_flag=True, help="Let the server check it, and change nothing."
    )
    return yes_flag(dry(kubeconfig_flags(command)))


@click.group("node-resource", epilog=EPILOG, context_settings={"max_content_width": 100})
def command() -> None:
    """Advertise an extended resource on a node by hand, or withdraw it.

    The capacity in the node's status is changed, which kubectl cannot do. The current value is
    shown, and the change is refused if it is no longer that when the change arrives.
    """


@command.command("set", epilog=EPILOG, context_settings={"max_content_width": 100})
@click.argument("node", callback=_node, shell_complete=cluster_names.nodes)
@click.argument("setting", metavar="NAME=COUNT", callback=_setting)
@_flags
def set_(node: str, setting: tuple[str, int], **flags: Any) -> None:
    """Let NODE have COUNT of the extended resource NAME."""
    _change(node, *setting, **flags)


@command.command("unset", epilog=EPILOG, context_settings={"max_content_width": 100})
@click.argument("node", callback=_node, shell_complete=cluster_names.nodes)
@click.argument("name", callback=_validated)
@_flags
def unset(node: str, name: str, **flags: Any) -> None:
    """Let NODE have no extended resource NAME any more."""
    _change(node, name, None, **flags)
