"""`trimtab doctor`: the parts that trimtab can use here, and how to get the missing ones."""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from trimtab.cli.group import requires

if TYPE_CHECKING:
    from trimtab.problems.data.files import Source


@dataclass(frozen=True)
class Finding:
    """One item that was checked.

    part: the title of its group.
    name, value: the item, and its version, place or state.
    missing: how to get it; empty if it is available.
    """

    part: str
    name: str
    value: str
    missing: str = ""


@click.command()
@click.option("--data", type=click.Path(path_type=Path), help="Folder of data files.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")
@requires("compute.kernel", "problems.data.files")
def doctor(data: Path | None, as_json: bool) -> None:
    """Show versions, cores, kernel, devices and data, and how to get missing parts."""
    findings = [*_versions(), *_machine(), *_kernel(), *_devices(), *_data(data), *_extras()]
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
        return
    part = ""
    for finding in findings:
        if finding.part != part:
            part = finding.part
            click.echo(part)
        # Both marks have the same width, so that the names are aligned.
        mark = "missing  " if finding.missing else "ok       "
        click.echo(f"  {mark}{finding.name}: {finding.value}")
        if finding.missing:
            click.echo(f"           {finding.missing}")
    lacks = [finding.name for finding in findings if finding.missing]
    if lacks:
        click.echo(f"{len(lacks)} of {len(findings)} are missing; trimtab works without them.")
    else:
        click.echo("All optional parts are available.")


def _versions() -> Iterator[Finding]:
    from trimtab._version import environment

    for name, version in environment().items():
        yield Finding("versions", name, version)


def _machine() -> Iterator[Finding]:
    import torch

    from trimtab._version import processor
    from trimtab.compute import kernel

    yield Finding("machine", "processor", processor() or "unknown")
    yield Finding("machine", "cores", str(kernel.cores()))
    yield Finding("machine", "torch's threads", str(torch.get_num_threads()))


def _kernel() -> Iterator[Finding]:
    import torch

    from trimtab.compute import kernel

    level = kernel.simd_level()  # None if the kernel is not built, or switched off
    if level is not None:
        right = [
            str(t).removeprefix("torch.") for t in (torch.float32, torch.float64) if kernel.works(t)
        ]
        checked = " and ".join(right) or "nothing"
        value = f"{kernel.SIMD_LEVELS[level]}, passes its self-check in {checked}"
        yield Finding("machine", "kernel", value)
    elif os.environ.get("TRIMTAB_NATIVE") == "0":
        yield Finding("machine", "kernel", "switched off by TRIMTAB_NATIVE=0")
    else:
        how = (
            "Install a C compiler (apt-get install gcc), then trimtab again; it is faster with it."
        )
        yield Finding("machine", "kernel", "not built", how)


def _devices() -> Iterator[Finding]:
    import torch

    if torch.cuda.is_available():
        for j in range(torch.cuda.device_count()):
            yield Finding("machine", f"cuda:{j}", torch.cuda.get_device_name(j))
    elif torch.backends.mps.is_available():
        yield Finding("machine", "mps", "available")
    else:
        yield Finding("machine", "devices", "CPU only")


def _data(data: Path | None) -> Iterator[Finding]:
    from trimtab.problems.data.files import search_folders

    yield Finding("data", "looked for in", ", ".join(map(str, search_folders(data))))
    yield Finding("data", "digits", "comes with scikit-learn")
    for name, sources in _sources().items():
        yield _data_set(name, sources, data)


def _sources() -> "dict[str, tuple[Source, ...]]":
    """Return the files of each data set; digits, which comes with scikit-learn, has none."""
    from trimtab.problems.data.emnist import EMNIST
    from trimtab.problems.data.images import CIFAR10, CIFAR100
    from trimtab.problems.data.shakespeare import SHAKESPEARE
    from trimtab.problems.data.tables import A9A_TEST, A9A_TRAIN, CONCRETE, HOSPITALS

    return {
        "emnist": (EMNIST,),
        "cifar10": (CIFAR10,),
        "cifar100": (CIFAR100,),
        "a9a": (A9A_TRAIN, A9A_TEST),
        "heart": tuple(HOSPITALS.values()),
        "concrete": (CONCRETE,),
        "shakespeare": (SHAKESPEARE,),
    }


def _data_set(name: str, sources: "tuple[Source, ...]", data: Path | None) -> Finding:
    from trimtab.problems.data.files import find, search_folders

    found = [path for s in sources for file in s.files if (path := find(s, file, data))]
    folders = [f for s in sources for p in search_folders(data) if (f := p / s.folder).is_dir()]
    if found:
        return Finding("data", name, f"in {found[0].parent}")
    # Users who downloaded a data set by hand may have renamed its files.
    if any(any(folder.iterdir()) for folder in folders):
        return Finding("data", name, f"files under other names in {folders[0]}")
    how = f"It is downloaded on first use, or by hand from {sources[0].url}."
    return Finding("data", name, "not here yet", how)


_EXTRAS = {  # The modules that each extra brings, and what it is for.
    "papers": (("trimtab_papers",), "`trimtab reproduce` and `trimtab bench`"),
    "federation": (("flwr", "cryptography"), "`trimtab federate`, over Flower"),
    "flower": (("flwr",), "trimtab.flower, in an app of Flower"),
    "cluster": (("ray",), "--cluster, on Ray"),
    "pandas": (("pandas",), "tables as clients, and Comparison.to_pandas"),
    "datasets": (("datasets",), "clients from Hugging Face's datasets"),
    "lora": (("transformers", "peft"), "adapters, and ControlledTrainer"),
    "lightning": (("lightning",), "LightningControls"),
    "tensorboard": (("tensorboard",), "--log and export"),
    "mlflow": (("mlflow",), "export"),
    "onnx": (("onnx", "onnxscript", "onnxruntime"), "`trimtab export --to onnx`"),
    "docs": (("mkdocs", "mkdocstrings", "latex2mathml"), "`make docs`"),
    "dev": (("pytest", "ruff", "mypy"), "`make test`"),
}


def _extras() -> Iterator[Finding]:
    for extra, (modules, what) in _EXTRAS.items():
        # find_spec finds a module without importing it.
        absent = [module for module in modules if find_spec(module) is None]
        value = f"not installed ({', '.join(absent)})" if absent else "installed"
        how = f"pip install 'trimtab[{extra}]'." if absent else ""
        yield Finding("extras", f"{extra}, for {what}", value, how)
    browser = shutil.which("chromium")
    yield Finding(
        "extras",
        "Chromium, for the tests of the report page",
        browser or "not found",
        "" if browser else "apt-get install chromium.",
    )
