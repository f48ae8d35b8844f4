"""Options of the data source where Spark keeps them for a table: `CREATE TABLE t USING ropewalk OPTIONS (...)`.

Spark hands over the user's options mixed with its own properties when the table is made, and no options at all when
it is read. So the options travel in the comment of the first column, which Spark keeps with the schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import urlsplit
from urllib.request import url2pathname

FORMAT = "ropewalk"
MARK = "ropewalk options: "
_PREFIX = "option."  # before each option of the user among the properties of a table


def pick_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return what the user wrote, without what Spark adds to the properties of a table; names in lower case.

    >>> pick_options({"owner": "ada", "provider": "ropewalk", "repository": "/r", "option.repository": "/r"})
    {'repository': '/r'}
    >>> pick_options({"repository": "/r", "owner": "ada"})
    {'repository': '/r', 'owner': 'ada'}
    """
    options = {name.lower(): value for name, value in given.items()}
    if not is_table(options):
        return options
    found = {
        name.removeprefix(_PREFIX): value
        for name, value in options.items()
        if name.startswith(_PREFIX) and not name.startswith(f"{_PREFIX}serialization.")
    }
    if "location" in options:  # LOCATION names a repository, too; Spark makes a URL of it
        found.setdefault("path", url2pathname(urlsplit(options["location"]).path))
    return found


def is_table(options: Mapping[str, str]) -> bool:
    """Return whether Spark asks for a table of its catalog."""
    return options.get("provider", "").lower() == FORMAT


def schema_with_options(schema: str, options: Mapping[str, str]) -> str:
    """Return a schema whose first column keeps the options in its comment.

    >>> schema_with_options("`engine` string, `topic` string", {"repository": "/r"})
    '`engine` string COMMENT \\'ropewalk options: {"repository": "/r"}\\', `topic` string'
    """
    text = (MARK + json.dumps(dict(options), sort_keys=True)).replace("\\", "\\\\").replace("'", "\\'")
    first, *rest = schema.split(", ")
    return ", ".join([f"{first} COMMENT '{text}'", *rest])


def parse_options(comment: object) -> dict[str, str]:
    """Return the options that a comment keeps, none if it keeps none.

    >>> parse_options('ropewalk options: {"repository": "/r"}')
    {'repository': '/r'}
    """
    if not isinstance(comment, str) or not comment.startswith(MARK):
        return {}
    try:
        found = json.loads(comment.removeprefix(MARK))
    except ValueError:
        return {}
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}
