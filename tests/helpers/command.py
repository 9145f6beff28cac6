"""The command line, run in this process."""

from trimtab.cli import main


def trimtab(capsys, *arguments):
    """Run the program; return its exit code, standard output and standard error."""
    code = 0
    try:
        main([str(a) for a in arguments])
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    return code, out, err
