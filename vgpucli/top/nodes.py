"""Several exporters on one screen: their pages side by side, one node below the other."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from urllib.parse import urlsplit

from msgspec.structs import replace

from vgpucli.top.reading import PageProcess, PageReading, PageShare
from vgpucli.top.source import Exporter

Answer = PageReading | str
"""A page as values, or the reason why there is none."""


class SeveralExporters:
    """Exporters that are asked at the same time; one without an answer is named, not waited for."""

    def __init__(self, urls: Sequence[str], make: Callable[[str], Exporter]) -> None:
        """``make`` raises BadOption for a URL that cannot be used."""
        self.name = f"{len(urls)} exporters"
        made = [(url, make(url)) for url in urls]  # which refuses what _node cannot read
        self._exporters = {_node(url): exporter for url, exporter in made}
        self._pool = ThreadPoolExecutor(len(self._exporters), "top")

    def page(self) -> str:
        """The pages one after another, which is no page: :meth:`read` keeps them apart."""
        return "\n".join(exporter.page() for exporter in self._exporters.values())

    def processes(self) -> str:
        """Nothing: :meth:`read` asks each exporter."""
        return ""

    def read(self, ask: Callable[[Exporter], Answer]) -> Answer:
        """The pages of all that answer, as one; the reasons if none does."""
        answers = dict(
            zip(self._exporters, self._pool.map(ask, self._exporters.values()), strict=True)
        )
        return merged(answers)

    def leave(self, status: int) -> int:
        """The status; nothing is waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        return status


def merged(answers: dict[str, Answer]) -> Answer:
    """The pages by node as one page: GPUs have their node, and silent exporters are problems."""
    readings = {name: page for name, page in answers.items() if isinstance(page, PageReading)}
    silent = [f"{name}: {reason}" for name, reason in answers.items() if isinstance(reason, str)]
    if not readings:
        return "; ".join(silent)

    def failing() -> Iterator[str]:
        yield from silent
        for name, page in readings.items():
            yield from (f"{collector} on {name}" for collector in page.failing)

    pages = readings.values()

    def shares(kind: Callable[[PageReading], Iterable[PageShare]]) -> tuple[PageShare, ...]:
        return tuple(
            replace(share, node=name) for name, page in readings.items() for share in kind(page)
        )

    return PageReading(
        timestamp=max(page.timestamp for page in pages),
        interval=max(page.interval for page in pages),
        devices=tuple(
            replace(device, node=name) for name, page in readings.items() for device in page.devices
        ),
        shares=shares(lambda page: page.shares),
        idle=shares(lambda page: page.idle),
        failing=tuple(failing()),
        stuck_seconds=max(page.stuck_seconds for page in pages),
        units=tuple(chain.from_iterable(page.units for page in pages)),
        processes=_all_processes(readings),
        tokens=tuple(
            replace(token, node=name) for name, page in readings.items() for token in page.tokens
        ),
    )


def _all_processes(readings: Mapping[str, PageReading]) -> tuple[PageProcess, ...] | None:
    """The processes of all pages that have them; None if none has."""
    if all(page.processes is None for page in readings.values()):
        return None
    return tuple(
        replace(row, node=name) for name, page in readings.items() for row in page.processes or ()
    )


def _node(url: str) -> str:
    parts = urlsplit(url if "//" in url else f"//{url}")
    return parts.netloc.rpartition("@")[2] or url
