"""The part of docs/language.md that a program can check: old words, and class names used twice.

Run ``python -m tests.docs.language`` to lower the numbers of old uses after a repair.
"""

import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.environment import ROOT
from vgpu.program.own_packages import PACKAGES as OWN_PACKAGES

EXCEPTIONS: Final = Path(__file__).with_name("language_exceptions.toml")

PACKAGES: Final = (
    *OWN_PACKAGES,
    *("grafana", "deploy"),
)
PAGES: Final = ("docs/**/*.md", "deploy/**/*.md", "README.md", "CONTRIBUTING.md", "SECURITY.md")
EXPLAINED: Final = ("docs/language.md",)
"""Pages that name the old words."""

COMMENTED: Final = ("deploy/chart/vgpu/values.yaml",)
"""Files whose comments are a page of the documentation."""

WORDS: Final[Mapping[str, re.Pattern[str]]] = {
    word: re.compile(pattern, re.IGNORECASE)
    for word, pattern in {
        "card": r"\bcards?\b",
        "given": r"\bgiven\b|\bg(?:ives?|ave|iving) (?:\w+ )?out\b",
        "handed out": r"\bhand(?:s|ed|ing)? (?:\w+ )?out\b",
        "told": r"\btold\b|\btell(?:s|ing)?\b",
        "says": r"\bsa(?:ys|id)\b",
        "left alone": r"\b(?:left|leaves?) (?:\w+ )?alone\b",
        "subject": r"\bsubjects?\b",
        "books": r"\bbooks\b",
        "in pieces": r"\bin pieces\b",
        "anew": r"\banew\b|\bmade again\b",
        "its words": r"(?:\bits|'s|s') words?\b",
        "believe": r"\bbelieve[ds]?\b",
        "so long": r"\A\W*so (?:long|many|much|often)\b",
        "gaia": r"(?<![\w`.:/=-])gaia(?![\w`.:/=-])",
        "somebody": r"\bsomebody (?:works|else)\b|\bmend(?:s|ed|ing)?\b|\bfares?\b",
    }.items()
}
"""Old words by the name that docs/language.md lists them under."""

NAMES: Final = re.compile(
    r"(?:^|_)(?:cards?|told|tells?|subjects?|books|rooms|desk|clerk|tidings|whereabouts|luck)(?:$|_)"
    r"|(?:Card|Desk|Clerk|Subject|Books|Room|Tidings|Teller|Whereabouts)s?(?![a-z])",
)
"""Old words in public names of modules, classes, functions, fields, parameters and constants."""

TITLES: Final = frozenset({"Card", "Cards", "Given", "Told", "Books", "Subject", "Subjects"})
"""Titles of one word, which are messages though there is no space in them."""

_CODE: Final = re.compile(r"`+[^`]*`+|\]\([^)]*\)|<!--.*?-->", re.DOTALL)
_FENCE: Final = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


class Text(NamedTuple):
    """One text for people: ``kind`` is docs, messages or docstrings, ``line`` where it begins."""

    kind: str
    path: str
    line: int
    text: str


class Module(NamedTuple):
    """What is read of a module: its texts for people, its top-level classes, its public names."""

    path: str
    texts: list[Text]
    classes: list[str]
    names: list[str]


class Use(NamedTuple):
    """One use of an old word."""

    word: str
    text: Text

    def __str__(self) -> str:
        return f'{self.text.path}:{self.text.line}: "{self.word}" in {self.text.text.strip()!r}'


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def page_texts(path: str, content: str) -> Iterator[Text]:
    """The lines of a page, without its code."""
    prose = _CODE.sub(_blank, _FENCE.sub(_blank, content))
    for line, text in enumerate(prose.splitlines(), 1):
        yield Text("docs", path, line, text)


def comment_texts(path: str, content: str) -> Iterator[Text]:
    """The comments of a YAML file."""
    for line, text in enumerate(content.splitlines(), 1):
        yield Text("docs", path, line, _CODE.sub("", text.partition("#")[2]))


def module_texts(path: str, tree: ast.Module) -> Iterator[Text]:
    """Docstrings, and the string literals with a space in them."""
    docstrings = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str() as text) as constant):
                    docstrings.add(constant)
                    yield Text("docstrings", path, constant.lineno, _CODE.sub("", text))
    for node in ast.walk(tree):
        if node in docstrings:
            continue
        match node:
            case ast.Constant(value=str() as text) if " " in text or text in TITLES:
                yield Text("messages", path, node.lineno, _CODE.sub("", text))


@cache
def modules() -> tuple[Module, ...]:
    """The product's modules, without generated ones; each is read once."""
    found = []
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            if not file.name.endswith(("_pb2.py", "_pb2_grpc.py")):
                path, tree = str(file.relative_to(ROOT)), ast.parse(file.read_bytes())
                classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
                names = [file.stem, *_names(tree)]
                found.append(Module(path, list(module_texts(path, tree)), classes, names))
    return tuple(found)


def _names(tree: ast.Module) -> Iterator[str]:
    """Each name that a module defines; constants in lower case."""
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) if name.isupper():
                yield name.lower()
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def texts() -> Iterator[Text]:
    """Every text for people."""
    for pattern in PAGES:
        for file in sorted(ROOT.glob(pattern)):
            path, content = str(file.relative_to(ROOT)), file.read_text()
            if path not in EXPLAINED and "<!-- Generated" not in content[:20]:
                yield from page_texts(path, content)
    for path in COMMENTED:
        yield from comment_texts(path, (ROOT / path).read_text())
    for module in modules():
        yield from module.texts


def uses(kept: list[dict[str, str]]) -> list[Use]:
    """Every old word in a text, but for the texts that may keep it."""
    found = []
    for text in texts():
        if any(row["path"] == text.path and row["text"] in text.text for row in kept):
            continue
        found += [Use(word, text) for word, old in WORDS.items() for _ in old.finditer(text.text)]
    return found


def counted(found: list[Use]) -> dict[str, dict[str, int]]:
    """How often each word is used, by "kind.package"."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for use in found:
        package = use.text.path.partition("/")[0].removesuffix(".md")
        counts[f"{use.text.kind}.{package}"][use.word] += 1
    return {name: dict(sorted(words.items())) for name, words in sorted(counts.items())}


def public_classes() -> dict[str, list[str]]:
    """The modules that define each public class at their top level."""
    places = defaultdict(list)
    for module in modules():
        for name in module.classes:
            if not name.startswith("_"):
                places[name].append(module.path)
    return places


def public_names() -> Iterator[tuple[str, str]]:
    """The module and each public name that it defines; constants in lower case."""
    for module in modules():
        yield from ((module.path, name) for name in module.names)


def old_names(kept: Mapping[str, str]) -> list[str]:
    """Public names with an old word, each as "path: name", without those that are kept."""
    return sorted(
        {
            f"{path}: {name}"
            for path, name in public_names()
            if not name.startswith("_") and NAMES.search(name) and name not in kept
        }
    )


def exceptions() -> dict[str, dict[str, dict[str, int]]]:
    """The file of exceptions."""
    return tomllib.loads(EXCEPTIONS.read_text())


def main() -> None:
    """Write the numbers of old uses, where they have fallen; with --as-found whatever they are,
    for a merge with branches that are older than the check.
    """
    before = exceptions()
    as_found = "--as-found" in sys.argv[1:]
    head, mark, _ = EXCEPTIONS.read_text().partition("# --- old uses")
    rows = [
        f"{mark}, for each package and word; they may only fall (python -m tests.docs.language)"
    ]
    for name, words in counted(uses(before["kept"])).items():
        limits = words if as_found else before["left"].get(name, {})
        lowered = {word: min(count, limits.get(word, 0)) for word, count in words.items()}
        rows += [f'\n[left."{name}"]', *(f'"{word}" = {n}' for word, n in lowered.items() if n)]
    EXCEPTIONS.write_text(head + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
