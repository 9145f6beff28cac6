"""What the federation says: in a file, to whoever follows, and nowhere else."""

import logging
import re

from trimtab.federation.log import LOGGER, attached

ROOM = logging.getLogger("trimtab.federation.processes")


def test_lines_have_their_time_in_the_file_and_none_for_those_who_follow(tmp_path):
    lines = []
    with attached(tmp_path / "logs" / "server.log", lines.append):
        ROOM.info("site %s has joined.", "oslo")
        ROOM.warning("100% of the disk is full.")
        ROOM.error("nothing works.")
    assert lines == [
        "site oslo has joined.",
        "warning: 100% of the disk is full.",
        "warning: nothing works.",
    ]
    kept = (tmp_path / "logs" / "server.log").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line) for line in kept)
    assert [line[21:] for line in kept] == lines


def test_the_users_logging_stays_as_it_is():
    root, level = list(logging.root.handlers), logging.root.level
    with attached(follow=print):
        assert (logging.root.handlers, logging.root.level) == (root, level)
    assert LOGGER.handlers == []
    assert LOGGER.level == logging.NOTSET


def test_a_line_is_written_once_where_the_user_logs_as_well(tmp_path, capsys):
    mine = logging.StreamHandler()
    logging.root.addHandler(mine)
    try:
        with attached(tmp_path / "server.log"):
            ROOM.info("a line.")
    finally:
        logging.root.removeHandler(mine)
    assert capsys.readouterr().err.count("a line.") == 1
    assert (tmp_path / "server.log").read_text().count("a line.") == 1


def test_a_log_that_cannot_be_written_stops_nothing(tmp_path, capsys):
    (tmp_path / "logs").write_text("a file in the way")
    with attached(tmp_path / "logs" / "server.log"):
        ROOM.info("a line.")
    assert "server.log cannot be written" in capsys.readouterr().err
