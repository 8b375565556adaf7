"""The part of docs/language.md that a program can check: old words, and class names used twice.

Run ``python -m tests.docs.language`` to lower the numbers of old uses after a repair.
``--names``, ``--told`` and ``--words`` list places in the tests, for example
``python -m tests.docs.language --names tests/commands``.
"""

import argparse
import ast
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from tests.support import product
from tests.support.environment import ROOT
from vgpu.program.own_packages import PACKAGES as OWN_PACKAGES

EXCEPTIONS: Final = Path(__file__).with_name("language_exceptions.toml")

PACKAGES: Final = (
    *OWN_PACKAGES,
    *("grafana", "deploy"),
)
PAGES: Final = (
    "docs/**/*.md",
    "deploy/**/*.md",
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "deploy/chart/vgpu/templates/NOTES.txt",
)
TESTS: Final = ("tests", "benchmarks")
EXPLAINED: Final = (
    "docs/language.md",
    "tests/docs/language.py",
    "tests/docs/test_language.py",
)
"""Pages and modules that name the old words."""

TOLD_LIMIT: Final = 60
"""Maximum number of places in the tests with "told", "tell", "tells" or "telling"."""

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

ANY_WORD: Final = re.compile(
    "|".join(f"(?:{word.pattern})" for word in WORDS.values()), re.IGNORECASE
)

NAMES: Final = re.compile(
    r"(?:^|_)(?:cards?|told|tells?|subjects?|books|rooms|desk|clerk|tidings|whereabouts|luck)(?:$|_)"
    r"|(?:Card|Desk|Clerk|Subject|Books|Room|Tidings|Teller|Whereabouts)s?(?![a-z])",
)
"""Old words in public names of modules, classes, functions, fields, parameters and constants."""

TOLD: Final = re.compile(r"(?<![a-z])(?:told|tell(?:s|ing)?)(?![a-z])", re.IGNORECASE)
"""The word in texts and in parts of identifiers."""

TITLES: Final = frozenset({"Card", "Cards", "Given", "Told", "Books", "Subject", "Subjects"})
"""Titles of one word, which are messages though there is no space in them."""

_TEST: Final = re.compile(r"\s*(?:async )?def (test_\w+)")
_TOKEN: Final = re.compile(
    r"""(?P<comment>\#[^\n]*)
    | (?:\b[bfru]{1,2})?
      (?: \"{3}(?:[^\\]|\\.)*?\"{3} | '{3}(?:[^\\]|\\.)*?'{3}
        | \"(?:[^\"\\]|\\.)*\" | '(?:[^'\\]|\\.)*' )
    """,
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)
"""A comment or a string of a Python file: tokenize takes ten times as long."""
_IDENTIFIER: Final = re.compile(r"\b[^\W\d]\w*")
_BEGINS_LINE: Final = re.compile(r"(?<!\\\n)(?:^|(?<=\n))[ \t]*\Z")
_CODE: Final = re.compile(r"`+[^`]*`+|\]\([^)]*\)|<!--.*?-->", re.DOTALL)
_FENCE: Final = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


class Text(NamedTuple):
    """One text for people: ``kind`` is docs, messages, docstrings, comments (of tests) or
    identifiers (of tests); ``line`` where it begins.
    """

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


def module_texts(path: str, nodes: Iterable[ast.AST]) -> Iterator[Text]:
    """Docstrings, and the string literals with a space in them; a docstring's node comes later."""
    docstrings = set()
    for node in nodes:
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str() as text) as constant):
                    docstrings.add(constant)
                    yield Text("docstrings", path, constant.lineno, _CODE.sub("", text))
        match node:
            case ast.Constant(value=str() as text) if " " in text or text in TITLES:
                if node not in docstrings:
                    yield Text("messages", path, node.lineno, _CODE.sub("", text))


@cache
def modules() -> tuple[Module, ...]:
    """The product's modules, without generated ones; each is read once."""
    found = []
    for file in product.files(PACKAGES):
        if not file.name.endswith(("_pb2.py", "_pb2_grpc.py")):
            path, nodes = str(file.relative_to(ROOT)), product.nodes(file)
            body = product.tree(file).body
            classes = [node.name for node in body if isinstance(node, ast.ClassDef)]
            names = [file.stem, *_names(nodes)]
            found.append(Module(path, list(module_texts(path, nodes)), classes, names))
    return tuple(found)


def _names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Each name that a module defines; constants in lower case."""
    for node in nodes:
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


@cache
def sources_of_tests() -> Mapping[str, str]:
    """The Python files of the tests by path, without those that name the old words."""
    sources = {}
    for folder in TESTS:
        for file in sorted((ROOT / folder).rglob("*.py")):
            path = str(file.relative_to(ROOT))
            if path not in EXPLAINED:
                sources[path] = file.read_text()
    return sources


def texts_of_test(path: str, content: str) -> Iterator[Text]:
    """Docstrings, comments and identifiers of a test, in their order.

    A string is a docstring if it is the first of a logical line. What is between two comments or
    strings has the identifiers.
    """
    line, end, depth, code = 1, 0, 0, "\n"
    for token in (*_TOKEN.finditer(content), None):
        code = content[end : token.start()] if token else content[end:]
        for row, text in enumerate(code.split("\n"), line):
            for name in _IDENTIFIER.findall(text):
                yield Text("identifiers", path, row, name)
        line += code.count("\n")
        depth += sum(map(code.count, "([{")) - sum(map(code.count, ")]}"))
        if token is None:
            return
        if token["comment"]:
            yield Text("comments", path, line, _CODE.sub("", token[0]))
        elif depth == 0 and (end == 0 or "\n" in code) and _BEGINS_LINE.search(code):
            yield Text("docstrings", path, line, _CODE.sub("", token[0].strip('"')))
        line += token[0].count("\n")
        end = token.end()


@cache
def texts_of_tests() -> tuple[Text, ...]:
    """Every docstring, comment and identifier of the tests."""
    sources = sources_of_tests().items()
    return tuple(text for path, content in sources for text in texts_of_test(path, content))


def uses_in_tests() -> list[Use]:
    """Old words in docstrings, comments and identifiers of the tests."""
    found = []
    for text in texts_of_tests():
        if text.kind == "identifiers":
            found += [Use(old[0].strip("_").lower(), text) for old in NAMES.finditer(text.text)]
        else:
            found += old_words(text)
    return found


def old_words(text: Text) -> list[Use]:
    """Each use of an old word in a text; nearly all texts have none."""
    if not ANY_WORD.search(text.text):
        return []
    return [Use(word, text) for word, old in WORDS.items() for _ in old.finditer(text.text)]


def old_test_names() -> list[str]:
    """Names of test functions with an old word, each as "path:line: name"."""
    found = []
    for path, content in sources_of_tests().items():
        for line, text in enumerate(content.splitlines(), 1):
            if (match := _TEST.match(text)) and is_old_test_name(match[1]):
                found.append(f"{path}:{line}: {match[1]}")
    return found


def is_old_test_name(name: str) -> bool:
    """Whether the name of a test function has an old word."""
    words = name.replace("_", " ")
    return bool(NAMES.search(name) or ANY_WORD.search(words))


def told_places() -> list[str]:
    """Places in the tests with the word "told", in any text or identifier: "path:line: line"."""
    return [
        f"{path}:{line}: {text.strip()}"
        for path, content in sources_of_tests().items()
        for line, text in enumerate(content.splitlines(), 1)
        for _ in TOLD.finditer(text)
    ]


def uses(kept: list[dict[str, str]]) -> list[Use]:
    """Every old word in a text, but for the texts that may keep it."""
    found = []
    for text in texts():
        if not any(row["path"] == text.path and row["text"] in text.text for row in kept):
            found += old_words(text)
    return found


def counted(found: list[Use]) -> dict[str, dict[str, int]]:
    """How often each word is used, by "kind.package"."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for use in found:
        package = _package(use.text.path)
        counts[f"{use.text.kind}.{package}"][use.word] += 1
    return {name: dict(sorted(words.items())) for name, words in sorted(counts.items())}


def _package(path: str) -> str:
    """The package of a file; in tests/ the folder below it, too."""
    first, *rest = path.split("/")
    if first == "tests" and len(rest) > 1:
        return f"{first}/{rest[0]}"
    return first.removesuffix(".md")


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
    """Write the numbers of old uses, where they have fallen, or list places in the tests."""
    parser = argparse.ArgumentParser(prog="tests.docs.language", description=__doc__)
    parser.add_argument(
        "--as-found",
        action="store_true",
        help="write the numbers whatever they are, for a merge with branches older than the check",
    )
    for option, what in (
        ("names", "names of test functions with an old word"),
        ("told", 'places with "told"'),
        ("words", "old words in docstrings, comments and identifiers"),
    ):
        parser.add_argument(f"--{option}", metavar="FOLDER", help=f"list {what}")
    options = parser.parse_args()
    lists = (
        (options.names, old_test_names),
        (options.told, told_places),
        (options.words, lambda: [str(use) for use in uses_in_tests()]),
    )
    if any(folder for folder, _ in lists):
        for folder, places in lists:
            if folder is not None:
                print(*(place for place in places() if place.startswith(folder)), sep="\n")
    else:
        _write_exceptions(options.as_found)


def _write_exceptions(as_found: bool) -> None:
    before = exceptions()
    head, mark, _ = EXCEPTIONS.read_text().partition("# --- old uses")
    rows = [
        f"{mark}, for each package and word; they may only fall (python -m tests.docs.language)"
    ]
    for name, words in counted([*uses(before["kept"]), *uses_in_tests()]).items():
        limits = words if as_found else before["left"].get(name, {})
        lowered = {word: min(count, limits.get(word, 0)) for word, count in words.items()}
        if any(lowered.values()):
            rows += [f'\n[left."{name}"]', *(f'"{word}" = {n}' for word, n in lowered.items() if n)]
    EXCEPTIONS.write_text(head + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
