"""The end of a process although a thread of it is stuck."""

import contextlib
import logging
import os
import sys
import threading
import time
from collections.abc import Iterable
from typing import Final, NoReturn

EXIT_FAILURE: Final = 1


def exit_now(status: int) -> NoReturn:
    """End the process without its threads: nothing would bring back a call that hangs."""
    with contextlib.suppress(OSError, ValueError):  # nobody reads it, or it is closed
        sys.stdout.flush()
    logging.shutdown()
    os._exit(status)


def outlasting(threads: Iterable[threading.Thread], seconds: float) -> list[threading.Thread]:
    """The threads that would keep the process and have not ended within ``seconds`` together."""
    until = time.monotonic() + seconds
    keeping = [
        thread
        for thread in threads
        if not thread.daemon and thread is not threading.current_thread()
    ]
    for thread in keeping:
        thread.join(max(0.0, until - time.monotonic()))
    return [thread for thread in keeping if thread.is_alive()]
