"""What servers say while they serve."""

from __future__ import annotations

import logging

from ropewalk.cli.common.serving import log_to_stderr


def test_what_a_stranger_has_a_part_in_steers_no_terminal(capsys):
    name = "ropewalk.test.journal"
    journal = logging.getLogger(name)
    try:
        log_to_stderr(name)
        journal.info("%s: left", "\x1b[2Jsomebody\n\x07else")
    finally:
        for handler in journal.handlers[:]:
            journal.removeHandler(handler)
    said = capsys.readouterr().err
    assert "somebody" in said and ": left" in said
    assert all(each.isprintable() for each in said.rstrip("\n"))
