"""Compiled kernels for networks of linear layers; everything also works without them.

A kernel runs a program, that is gradients at linear combinations of vectors, and knows no
algorithm. It is used only after a self-check against PyTorch. It trusts no index: labels, rows and
programs are checked where they are used, because users may change data after construction.

There are kernels for three instruction sets, and the widest one of the processor is used. The
environment variable TRIMTAB_NATIVE chooses another: `any` (no wide instructions), `avx2`, `avx512`,
or `0` for no kernel.

Imports core.streams and core.threads only.
"""

from trimtab.compute.kernel.calls import (
    ClientVectors,
    KernelResult,
    combine,
    gradients,
    outputs,
    outputs_of_each,
    run,
    works,
)
from trimtab.compute.kernel.draws import BatchPlan, DrawnBatches
from trimtab.compute.kernel.library import SIMD_LEVELS, cores, simd_level
from trimtab.compute.kernel.program import ACTIVATIONS, LOSSES, Batch, EncodedProgram, Layers, Terms
from trimtab.compute.kernel.samples import (
    BadDataError,
    ClientSamples,
    SampleCache,
    Samples,
    readable,
)

__all__ = [
    "ACTIVATIONS",
    "LOSSES",
    "SIMD_LEVELS",
    "BadDataError",
    "Batch",
    "BatchPlan",
    "ClientSamples",
    "ClientVectors",
    "DrawnBatches",
    "EncodedProgram",
    "KernelResult",
    "Layers",
    "SampleCache",
    "Samples",
    "Terms",
    "combine",
    "cores",
    "gradients",
    "outputs",
    "outputs_of_each",
    "readable",
    "run",
    "simd_level",
    "works",
]
