"""`ropewalk explain`: what an error code or an exit code means, and what to do."""

from __future__ import annotations

import inspect
from http import HTTPStatus
from typing import Any

import click

from ropewalk.cli.common.command import command, emit
from ropewalk.cli.common.suggest import did_you_mean
from ropewalk.errors import HTTP_CODES, SPELLINGS, NotFound, RopewalkError

PAGE = "docs/reference/errors.md"


@command("explain", "ropewalk explain HeadMoved", "ropewalk explain 5")
@click.argument("code", required=False)
def explain(code: str | None) -> None:
    """Explain CODE, an error code such as AppendRejected or an exit code from 1 to 8; without CODE, list all codes."""
    rows = error_rows()
    if code is None:
        listed = [f"{each['class']:<24} {str(each['meaning']).partition(chr(10))[0]}" for each in rows]
        emit({"errors": rows}, listed)
        return
    found = [each for each in rows if code.lower() in _names(each)]
    # One spelling may cover several errors; the one whose own code was asked for comes first.
    found.sort(key=lambda each: code.lower() not in (each["code"].lower(), each["class"].lower()))
    if not found:
        names = sorted({each[name] for each in rows for name in ("code", "class")})
        raise NotFound(
            f"{code!r} is not an error code",
            name=code,
            advice=did_you_mean(code, names) or "`ropewalk explain` lists them all.",
        )
    emit({"errors": found}, lambda: "\n\n".join(map(_text, found)))


def error_rows() -> list[dict[str, Any]]:
    """Return every error with its code, exit code, HTTP status, cause and fix; then the codes of HTTP alone."""
    rows: list[dict[str, Any]] = [
        {
            "code": each.code,
            "class": each.__name__,
            "exit_code": each.exit_code,
            "status": each.status,
            "meaning": inspect.getdoc(each),
            "advice": each.advice,
            "see": f"{PAGE}#{_anchor(each)}",
        }
        for each in _classes(RopewalkError)
    ]
    known = {row["code"] for row in rows}
    for status, (code, advice) in sorted(HTTP_CODES.items()):
        if code not in known:
            phrase, see = HTTPStatus(status).phrase, f"{PAGE}#{code.lower()}"
            row = {"code": code, "class": code, "exit_code": None, "status": status}
            rows.append({**row, "meaning": f"HTTP only: {phrase}.", "advice": advice, "see": see})
    return rows


def _anchor(error: type[RopewalkError]) -> str:
    same = error.code == error.__name__
    return error.code.lower() if same else f"{error.code}-{error.__name__}".lower()


def _classes(base: type[RopewalkError]) -> list[type[RopewalkError]]:
    return [base, *(each for child in base.__subclasses__() for each in _classes(child))]


def _names(row: dict[str, Any]) -> set[str]:
    names = (row["code"], row["class"], str(row["exit_code"]), *(SPELLINGS.get(row["code"]) or ()))
    return {str(each).lower() for each in names}


def _text(row: dict[str, Any]) -> str:
    exit_code = f"exit code {row['exit_code']}, " if row["exit_code"] is not None else ""
    first = f"{row['code']}  ({exit_code}HTTP status {row['status']})"
    return "\n  ".join([first, str(row["meaning"]).partition("\n")[0], row["advice"], f"See {row['see']}"])
