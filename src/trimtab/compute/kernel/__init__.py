"""Compiled kernels, loaded where they were built; everything works without them.

A kernel runs a program, that is gradients at linear combinations of vectors, and knows no
algorithm. It is used only if it passes a self-check against PyTorch when it is loaded. It trusts no
index: labels, rows and programs are looked at where they are used, since data may have changed.

The kernels come for three instruction sets. The environment variable TRIMTAB_NATIVE chooses another
than the widest one that the processor has: `any` (no wide instructions), `avx2`, `avx512`; `0` does
without kernels.

Imports core.streams and core.threads alone.
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
