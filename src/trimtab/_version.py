"""The version, the number of the results format, and the versions that a run depends on."""

import platform
from importlib.metadata import version

__version__ = "0.2.0"

# Changes whenever the same settings give other numbers; 0.1.0 wrote none and was 1. With 3, losses
# other than cross-entropy and activations other than ReLU come from the kernel, and gradients of
# other small modules from captured graphs.
RESULTS = 3


def environment() -> dict[str, str]:
    """Return the versions that a run depends on."""
    return {
        "trimtab": __version__,
        "python": platform.python_version(),
        "torch": version("torch"),
        "numpy": version("numpy"),
        "platform": platform.platform(),
    }
