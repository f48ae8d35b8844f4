"""Facts that `shiplog run` records about a command: its arguments without secrets, and the commit of the work tree."""

from __future__ import annotations

import re
from collections.abc import Sequence

SCRUBBED = "[scrubbed]"
SECRET_NAME = re.compile(
    r"(?i)(pass(word|wd|phrase)?|secret|token|api[-_]?key|access[-_]?key|private[-_]?key|credentials?)$"
)
USER_INFO = re.compile(r"(?<=://)[^/@\s]+:[^/@\s]+(?=@)")
OBJECT_ID = re.compile(r"[0-9a-f]{40}")


def scrub(argv: Sequence[str]) -> list[str]:
    """Return arguments with secrets replaced: values of secret options and variables, passwords in URLs, known tokens.

    >>> scrub(["deploy", "--token", "abc", "--db-password=x", "API_KEY=y", "https://me:pw@example.org/", "--tokens"])
    ['deploy', '--token', '[scrubbed]', '--db-password=[scrubbed]', 'API_KEY=[scrubbed]', \
'https://[scrubbed]@example.org/', '--tokens']
    """
    from ropewalk.gitlog.privacy.secrets import scan_text

    out: list[str] = []
    hide = False
    for each in argv:
        name, given, _ = each.partition("=")
        if hide and not each.startswith("-"):
            out.append(SCRUBBED)
        elif given and SECRET_NAME.search(name):
            out.append(f"{name}={SCRUBBED}")
        else:
            text = USER_INFO.sub(SCRUBBED, each)
            out.append(SCRUBBED if scan_text(text) else text)
        hide = not given and each.startswith("--") and SECRET_NAME.search(each) is not None
    return out


def work_tree_head() -> str | None:
    """Return the commit that is checked out around the current directory; None without one."""
    from ropewalk.errors import Unavailable
    from ropewalk.gitlog.sharing.git_command import run_git

    try:
        done = run_git(None, "rev-parse", "--verify", "--quiet", "HEAD")
    except Unavailable:
        return None
    found = done.stdout.decode("ascii", "replace").strip()
    return found if OBJECT_ID.fullmatch(found) else None
