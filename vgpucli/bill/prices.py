"""The price table: YAML that is read strictly. Pure but for :func:`read_prices`.

currency: EUR
issuer: Example GmbH
account: {id: ml-platform}
prices:
- {model: NVIDIA A100-SXM4-80GB, per_gpu_hour: "2.10"}
- {model: NVIDIA A100-SXM4-80GB, mig_profile: 1g.10gb, per_gpu_hour: "0.31"}
- {model: NVIDIA A100-SXM4-80GB, node_labels: {pool: spot}, from: 2026-12-01, per_gpu_hour: 1}
inventory:
- {node: gpu-7, model: NVIDIA A100-SXM4-80GB, gpus: 8, from: 2026-01-01}
"""

import datetime as dt
import os
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Final

import msgspec

from vgpu.io.unique_keys import UniqueKeyLoader
from vgpu.io.yaml_documents import NotYamlError, yaml_document
from vgpu.model.printable_text import printable
from vgpu.model.reasons import SourceError
from vgpu.sources.files import read_file
from vgpucli.bill.currencies import DECIMALS

_LIMIT: Final = 4 * 1024 * 1024
_OTHERS: Final = 0o007
"""Permissions of users who are neither the owner nor in its group."""

_MOST: Final = Decimal(1_000_000)
_FINEST: Final = -9
FIRST_DAY: Final = dt.date(1970, 1, 1)
"""Of a row without `from`."""


class BadPrices(Exception):  # noqa: N818  # it names what a person wrote
    """The file cannot be used; the message has its name and the field."""


class Account(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who is charged: FOCUS' BillingAccountId and BillingAccountName."""

    id: Annotated[str, msgspec.Meta(min_length=1)]
    name: str = ""


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"since": "from"}):
    """The price of an hour of a whole device; ``since`` is the first day."""

    model: Annotated[str, msgspec.Meta(min_length=1)]
    per_gpu_hour: Decimal | int | float
    mig_profile: str = ""
    node_labels: dict[str, str] = {}
    since: dt.date = FIRST_DAY

    @property
    def amount(self) -> Decimal:
        """The price as it was written."""
        price = self.per_gpu_hour
        return Decimal(price) if isinstance(price, int) else Decimal(str(price))

    @property
    def identity(self) -> tuple[object, ...]:
        """What no two rows may have in common."""
        return self.model, self.mig_profile, (*sorted(self.node_labels.items()),), self.since


class Owned(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"since": "from"}):
    """GPUs that count on each day, measured or not; ``to`` is the first day on which they do not.

    For GPUs that are not split by MIG.
    """

    node: Annotated[str, msgspec.Meta(min_length=1)]
    model: Annotated[str, msgspec.Meta(min_length=1)]
    gpus: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    cluster: str = ""
    since: dt.date = FIRST_DAY
    to: dt.date = dt.date.max


class PriceTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file. ``billed``: the amounts are payable, and no cloud's own file has them."""

    currency: str
    prices: tuple[Price, ...]
    issuer: Annotated[str, msgspec.Meta(min_length=1)] = "vgpu"
    account: Account = Account("vgpu")
    billed: bool = False
    inventory: tuple[Owned, ...] = ()

    @property
    def decimals(self) -> int:
        """Decimals in which the currency's amounts are shown."""
        return DECIMALS[self.currency]

    def price(
        self, day: str, model: str, mig_profile: str, labels: Mapping[str, str]
    ) -> Decimal | None:
        """The price of the device on a day; None where no row has its model and MIG profile.

        Of the rows that fit and have begun, the one with the most node labels decides, and of
        these the latest.
        """
        date = dt.date.fromisoformat(day)
        fitting = [
            row
            for row in self.prices
            if (row.model, row.mig_profile) == (model, mig_profile)
            and row.since <= date
            and row.node_labels.items() <= labels.items()
        ]
        best = max(
            fitting,
            key=lambda row: (len(row.node_labels), row.since, (*sorted(row.node_labels.items()),)),
            default=None,
        )
        return best.amount if best else None


def parse_prices(content: bytes) -> PriceTable:
    """The table of a file's content. Raises BadPrices without the file's name."""
    try:
        document = yaml_document(content, _Loader)
    except NotYamlError as error:
        where = f"line {error.line}: " if error.line else "not YAML: "
        raise BadPrices(f"{where}{printable(error.problem)}") from error
    try:
        table = msgspec.convert(document, PriceTable)
    except msgspec.ValidationError as error:
        raise BadPrices(printable(str(error))) from error
    _check(table)
    return table


def _check(table: PriceTable) -> None:
    if table.currency not in DECIMALS:
        raise BadPrices(f"currency {printable(table.currency)!r} is no code of ISO 4217, as EUR is")
    seen = set()
    for index, row in enumerate(table.prices):
        where = f"prices[{index}]"
        amount = row.amount
        if isinstance(row.per_gpu_hour, bool) or not (amount.is_finite() and 0 <= amount <= _MOST):
            raise BadPrices(f"{where}.per_gpu_hour is a number from 0 to {_MOST}")
        exponent = amount.normalize().as_tuple().exponent
        if isinstance(exponent, int) and exponent < _FINEST:
            raise BadPrices(f"{where}.per_gpu_hour has more than {-_FINEST} decimals")
        if row.identity in seen:
            raise BadPrices(f"{where} has the model, profile, labels and day of an earlier row")
        seen.add(row.identity)
    for index, owned in enumerate(table.inventory):
        if owned.to <= owned.since:
            raise BadPrices(f"inventory[{index}].to is not after its from")


class _Loader(UniqueKeyLoader):
    """Numbers keep their digits: 2.10 is the text "2.10", which is a decimal without rounding."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:float"]
    for first, resolvers in UniqueKeyLoader.yaml_implicit_resolvers.items()
}


def read_prices(path: str) -> PriceTable:
    """The table of a file that others cannot read. Raises BadPrices."""
    try:
        content = read_file(path, _LIMIT, follow=True)
        mode = os.stat(path).st_mode  # noqa: PTH116  # as read_file takes it
    except SourceError as error:
        raise BadPrices(str(error)) from error
    except OSError as error:
        raise BadPrices(f"{printable(path)}: {error.strerror}") from error
    if mode & _OTHERS:
        raise BadPrices(f"{printable(path)}: other users may read it; chmod 600 it first")
    try:
        return parse_prices(content)
    except BadPrices as error:
        raise BadPrices(f"{printable(path)}: {error}") from error
