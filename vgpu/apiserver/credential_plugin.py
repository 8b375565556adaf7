"""The programs that a kubeconfig names for its user's credentials, which end in time.

    seconds of a program <= ATTENDED_SECONDS where a person is at a terminal, else ALONE_SECONDS
    bytes of its output <= LONGEST_OUTPUT

kubectl waits for such a program for ever, and so does the official client. Without a terminal the
program is the leader of its session, and all of the session ends with it; at a terminal it may ask
there, and a login by browser prints there where to go on.
"""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import IO, Any, Final

ATTENDED_SECONDS: Final = 300.0
"""Maximum time for a program while a person may log in, in seconds."""

ALONE_SECONDS: Final = 30.0
"""Maximum time for a program without a terminal, in seconds."""

LONGEST_OUTPUT: Final = 1024 * 1024
"""Maximum size of a program's output, in bytes; a token or a certificate is some KiB."""

_READ_BYTES: Final = 64 * 1024
_STANDARD_FILES: Final = (0, 1, 2)


class PluginError(Exception):
    """A program was ended; the message names it, without its arguments, which may be secrets."""


def is_attended(files: Iterable[int] = _STANDARD_FILES) -> bool:
    """Whether one of these files, the standard ones, is a terminal."""
    return any(map(os.isatty, files))


def seconds() -> float:
    """Maximum time for a program now, in seconds."""
    return ATTENDED_SECONDS if is_attended() else ALONE_SECONDS


class CredentialPlugin(subprocess.Popen[str]):
    """A program as the official client starts it."""

    def __init__(self, args: list[str], **options: Any) -> None:
        self._is_alone = not is_attended()
        if self._is_alone:
            options |= {"stdin": subprocess.DEVNULL, "start_new_session": True}
        elif os.isatty(2):
            options["stderr"] = None  # where to log in is printed there
        self._deadline = time.monotonic() + seconds()
        super().__init__(args, **options)

    def communicate(self, *_: Any, **__: Any) -> tuple[str, Any]:
        """The output and the errors once the program has ended. Raises PluginError."""
        texts = {file: bytearray() for file in (self.stdout, self.stderr) if file is not None}
        try:
            self._read(texts)
            self.wait(self._left())
        except subprocess.TimeoutExpired:
            self._kill()
            raise self._too_slow() from None
        except BaseException:
            self._kill()
            raise
        finally:
            for file in texts:
                file.close()
        output, errors = (
            None if file is None else texts[file].decode(errors="replace")
            for file in (self.stdout, self.stderr)
        )
        return output or "", errors

    def _read(self, texts: Mapping[IO[str], bytearray]) -> None:
        """Read each file to its end."""
        with selectors.DefaultSelector() as selector:
            for file, text in texts.items():
                selector.register(file, selectors.EVENT_READ, text)
            while selector.get_map():
                for key, _ in selector.select(self._left()):
                    data = os.read(key.fd, _READ_BYTES)
                    if not data:
                        selector.unregister(key.fileobj)
                    key.data.extend(data)
                    if len(key.data) > LONGEST_OUTPUT:
                        raise PluginError(f"{self._command} prints more than a credential")

    @property
    def _command(self) -> str:
        args: Any = self.args
        return f"the command {str(args[0])!r}"

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise self._too_slow()
        return left

    def _too_slow(self) -> PluginError:
        return PluginError(f"{self._command} has not ended within {seconds():g} s")

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            if self._is_alone:
                os.killpg(self.pid, signal.SIGKILL)
            else:
                self.kill()
        self.wait()
