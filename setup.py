"""Build the optional kernel; where there is no compiler, trimtab installs and runs without it.

With TRIMTAB_NATIVE=0, and on Windows, whose compiler does not know the kernel's C, the wheel is of
pure Python: py3-none-any.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("src/trimtab/compute/kernel")
PURE = os.environ.get("TRIMTAB_NATIVE") == "0" or sys.platform == "win32"

setup(
    ext_modules=[]
    if PURE
    else [
        Extension(
            "trimtab.compute.kernel._kernels",
            sources=[str(FOLDER / "kernels.c")],
            depends=[str(path) for path in sorted(FOLDER.glob("*.h"))],
            # Only when compiling: linked with -ffast-math, a library would change the rounding of
            # the whole process.
            extra_compile_args=["-O3", "-ffast-math", "-pthread"],
            extra_link_args=["-pthread"],
            libraries=["m"],
            optional=True,
        )
    ]
)
