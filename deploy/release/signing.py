"""Signs SHA256SUMS, and with it every artefact, by the keys that the environment names.

COSIGN_KEY   key of cosign: a file or a key service's address   ->  SHA256SUMS.cosign.bundle
GPG_KEY      key of gpg: an identity or a fingerprint           ->  SHA256SUMS.asc
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from deploy.release.commands import run


class Signer(msgspec.Struct, frozen=True):
    """A program that signs: the variable of its key, its signature's suffix, its command."""

    variable: str
    suffix: str
    command: tuple[str, ...]


SIGNERS: Final = (
    Signer(
        "COSIGN_KEY",
        ".cosign.bundle",
        ("cosign", "sign-blob", "--yes", "--key", "{key}", "--bundle", "{signature}", "{file}"),
    ),
    Signer(
        "GPG_KEY",
        ".asc",
        (
            *("gpg", "--batch", "--yes", "--armor", "--local-user", "{key}"),
            *("--output", "{signature}", "--detach-sign", "{file}"),
        ),
    ),
)


def sign(file: Path, env: Mapping[str, str]) -> Iterator[str]:
    """Sign by each key that is there; one line for each signer.

    Raises:
        ReleaseError: a signer is missing or failed.
    """
    for signer in SIGNERS:
        key = env.get(signer.variable)
        signature = file.with_name(file.name + signer.suffix)
        if not key:
            yield f"not signed by {signer.command[0]}: {signer.variable} is not set"
            continue
        words = {"key": key, "signature": signature, "file": file}
        run(*(word.format(**words) for word in signer.command))
        yield f"signed by {signer.command[0]}: {signature.name}"
