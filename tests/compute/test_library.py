"""A library of kernels is used only if it was built from these sources."""

import ctypes
import os
import subprocess
from pathlib import Path

import pytest

from trimtab.compute import kernel
from trimtab.compute.kernel import library, program

HERE = Path(library.__file__).parent
MIRRORS = [
    program.ModelStruct,
    program.ProgramStruct,
    program.ClientsStruct,
    program.DrawsStruct,
    program.TroubleStruct,
]

needs_kernel = pytest.mark.skipif(
    kernel.simd_level() is None, reason="no compiler was there at the installation"
)


@needs_kernel
def test_what_was_built_from_these_sources_is_used():
    assert library.why_not() is None


@pytest.mark.skipif("TRIMTAB_SANITISED" not in os.environ, reason="only in make test-kernel")
def test_the_library_under_test_is_the_one_with_sanitisers():
    assert HERE.is_relative_to(Path(os.environ["TRIMTAB_SANITISED"]).resolve())
    assert kernel.simd_level() is not None
    loaded = subprocess.run(["nm", HERE / "_kernels.so"], capture_output=True, check=True).stdout
    assert b"__asan_" in loaded
    assert b"__ubsan_" in loaded


@needs_kernel
@pytest.mark.parametrize("mirror", MIRRORS, ids=lambda mirror: mirror.__name__)
def test_a_structure_of_another_size_is_named(monkeypatch, mirror):
    class Longer(ctypes.Structure):
        _fields_ = (*mirror._fields_, ("more", ctypes.c_long))

    Longer.__name__ = mirror.__name__
    monkeypatch.setattr(library, mirror.__name__, Longer)
    here = ctypes.sizeof(Longer)
    name = mirror.__name__.removesuffix("Struct")
    expected = f"{name} has {here - 8} bytes there and {here} here"
    assert library.differences(library._loaded()) == expected


def test_a_library_that_is_no_kernel_is_refused():
    assert library.differences(ctypes.CDLL(None)) == "it has no size of Model"


def test_without_a_library_there_is_a_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(library, "__file__", str(tmp_path / "library.py"))
    library._found.cache_clear()
    try:
        assert library.why_not() == (
            "the kernels were not compiled; run `make kernel`, which needs a C compiler."
        )
        (tmp_path / "_kernels.so").write_text("no library")
        library._found.cache_clear()
        assert "_kernels.so cannot be loaded (" in library.why_not()
    finally:
        library._found.cache_clear()
