"""Run a function as a process that ends when its parent does, however the parent ended.

Usage: python -P _guard.py PARENT_PID module:function ARGUMENTS…
"""

import ctypes
import importlib
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent, then become the function."""
    parent, target, *arguments = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM))
    if os.getppid() != int(parent):
        sys.exit(1)
    module, _, function = target.partition(":")
    sys.argv = [target, *arguments]
    getattr(importlib.import_module(module), function)()


if __name__ == "__main__":
    main()
