"""The start of `vgpu`, which `python -m vgpu` is, too.

Importing it is starting it: from then on Ctrl-C prints no traceback, also while the rest is
imported. Before that Python itself starts, which prints its own.
"""

import os
import signal

EXIT_INTERRUPTED = 130
"""Exit status after Ctrl-C: 128 and the number of SIGINT."""

is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
if is_default:  # else the caller ignores it
    signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_INTERRUPTED))


def main(prog_name: str | None = None) -> None:
    """Run the command line, and end the process."""
    try:
        # Ctrl-C is handled from here on; no code of a foreign package runs.
        from vgpu.program.own_packages import require_own_packages  # noqa: PLC0415

        require_own_packages()
        from vgpucli.main import main as command_line  # noqa: PLC0415

        if is_default:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        command_line(prog_name=prog_name)
    except KeyboardInterrupt:  # no command has begun, which would end in its own way
        raise SystemExit(EXIT_INTERRUPTED) from None
    finally:
        if is_default:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


if __name__ == "__main__":
    main("vgpu")
