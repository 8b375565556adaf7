"""What stands in the documentation's pages: commands, flags, metrics, headings and links."""

import re

import click
import yaml

from vgpucli.main import COMMANDS, main

BLOCK = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`]+)`")
FLAG = re.compile(r"(?<!\S)(--[a-z][a-z.-]*)(?:=(\S+)| (\S+=\S+))?")
METRIC = re.compile(r"\bvgpu_[a-z_]+[a-z]")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
LINK = re.compile(r"\]\((?![a-z]+:)([^)\s]+)\)")

_OF_A_SLUG = re.compile(r"[^\w\- ]")
_LINKED = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def spans(text):
    """What stands in `backquotes`, a line of it each."""
    return [" ".join(span.split()) for span in CODE.findall(BLOCK.sub("", text))]


def commands(text):
    """Command lines that begin with `vgpu`, in the text and in its console blocks."""
    lines = [line for block in BLOCK.findall(text) for line in block.splitlines()]
    lines = [line.strip().removeprefix("$ ").partition("  #")[0] for line in lines] + spans(text)
    return [part.strip() for line in lines for part in line.split("|") if "vgpu " in part[:6]]


def command(words):
    """The command that the words of a command line name, and the rest of them."""
    found: click.Command = main
    rest = list(words)
    while isinstance(found, click.Group) and rest:
        inner = found.get_command(click.Context(found), rest[0])
        if inner is None:
            break
        found, rest = inner, rest[1:]
    return found, rest


def wrong_words(text, *, help_is_a_flag):
    """What command lines of ours name that there is not: a command, or a flag of theirs."""
    for line in commands(text):
        found, rest = command(line.split()[1:])
        flag_first = help_is_a_flag and rest and rest[0].startswith("-")
        if isinstance(found, click.Group) and rest and not flag_first:
            yield f"no command {rest[0]}: {line}"
        known = flags(found) | ({"--help"} if help_is_a_flag else set())
        for flag in {flag for flag, *_ in FLAG.findall(" ".join(rest))} - known:
            yield f"no flag {flag}: {line}"


def flags(found):
    return {option for param in found.params for option in (*param.opts, *param.secondary_opts)}


def all_flags():
    """Those of every command."""
    waiting = [command([name])[0] for name in COMMANDS]
    known = set()
    for found in waiting:
        known |= flags(found)
        waiting += found.commands.values() if isinstance(found, click.Group) else ()
    return known


def anchors(text):
    """Of the headings of a page, as a forge and the site make them."""
    seen = {}
    for heading in HEADING.findall(BLOCK.sub("", text)):
        words = _LINKED.sub(r"\1", heading).replace("`", "").replace("*", "")
        slug = _OF_A_SLUG.sub("", words.strip().lower()).replace(" ", "-")
        count = seen[slug] = seen.get(slug, 0) + 1
        yield slug if count == 1 else f"{slug}-{count - 1}"


def links(text):
    """Links to places in the repository, without those in code."""
    return LINK.findall(CODE.sub("", BLOCK.sub("", text)))


def values_files(text):
    """Whole files of values of the chart: the YAML blocks of a page that name an image."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [values for values in map(yaml.safe_load, blocks) if "image" in values]
