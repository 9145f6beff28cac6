"""Build the optional kernel; where there is no compiler, trimtab installs and runs without it."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "trimtab.compute.kernel._kernels",
            sources=["src/trimtab/compute/kernel/kernels.c"],
            depends=[
                "src/trimtab/compute/kernel/variant.h",
                "src/trimtab/compute/kernel/classifier.h",
                "src/trimtab/compute/kernel/program.h",
            ],
            # Only when compiling: linked with -ffast-math, a library would change the rounding of
            # the whole process.
            extra_compile_args=["-O3", "-ffast-math", "-pthread"],
            extra_link_args=["-pthread"],
            libraries=["m"],
            optional=True,
        )
    ]
)
