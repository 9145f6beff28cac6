"""The version, the number of the results format, and the versions that a run depends on."""

import platform
from functools import cache
from importlib.metadata import version

__version__ = "0.3.0"

# Changes whenever the same settings give other numbers. With 4, networks with LayerNorm come from
# the kernel, and sums over more than 128 clients are added in another order.
RESULTS = 4

# Server and sites of a federation work together if they have the same number. It changes whenever
# messages, states or archives change in a way that an older version cannot read.
PROTOCOL = 3


@cache
def environment() -> dict[str, str]:
    """Return the versions that a run depends on; read once, since a comparison has many runs."""
    return {
        "trimtab": __version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "numpy": version("numpy"),
        "platform": platform.platform(),
    }


def processor() -> str:
    """Return the name of the processor; empty if the system does not report one."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            lines = [line for line in file if line.startswith("model name")]
        return lines[0].split(":", 1)[1].strip()
    except (OSError, IndexError):
        return platform.processor()
