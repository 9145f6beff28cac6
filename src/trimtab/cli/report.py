"""`trimtab report`."""

from pathlib import Path

import click

from trimtab.cli.output import show
from trimtab.cli.starting import needs


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@needs("report")
def report(folder: Path) -> None:
    """Write the page of a finished comparison or run anew."""
    from trimtab.report import write_page
    from trimtab.studies.comparison import read_comparison

    result = read_comparison(folder)
    result.page = write_page(result, folder / "report.html")
    show(result)
