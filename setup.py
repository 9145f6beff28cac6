"""Build the optional kernel; where there is no compiler, trimtab installs and runs without it."""

from pathlib import Path

from setuptools import Extension, setup

FOLDER = Path("src/trimtab/compute/kernel")

setup(
    ext_modules=[
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
