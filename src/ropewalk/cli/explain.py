"""`ropewalk explain`: what an error code or an exit code means, and what to do."""

from __future__ import annotations

import inspect

import click

from ropewalk.cli.common.command import Command, emit
from ropewalk.cli.common.suggest import did_you_mean
from ropewalk.errors import SPELLINGS, NotFound, RopewalkError


@click.command(
    "explain", cls=Command, epilog="Examples:\n  ropewalk explain HeadMoved\n  ropewalk explain 5\n"
)
@click.argument("code")
def explain(code: str) -> None:
    """Explain CODE, an error code such as AppendRejected or an exit code from 1 to 8: meaning, exit code, advice."""
    known = _classes(RopewalkError)
    found = [each for each in known if code.lower() in _names(each)]
    # One spelling may cover several errors; the one whose own code was asked for comes first.
    found.sort(key=lambda each: code.lower() not in (each.code.lower(), each.__name__.lower()))
    if not found:
        names = sorted({each.code for each in known} | {each.__name__ for each in known})
        raise NotFound(
            f"{code!r} is not an error code",
            name=code,
            advice=did_you_mean(code, names) or "`ropewalk --help` lists the exit codes.",
        )
    rows = [
        {
            "code": each.code,
            "exit_code": each.exit_code,
            "status": each.status,
            "meaning": inspect.getdoc(each),
            "advice": each.advice,
        }
        for each in found
    ]
    emit({"errors": rows}, lambda: "\n\n".join(map(_text, found)))


def _classes(base: type[RopewalkError]) -> list[type[RopewalkError]]:
    return [base, *(each for child in base.__subclasses__() for each in _classes(child))]


def _names(error: type[RopewalkError]) -> set[str]:
    spelling = SPELLINGS.get(error.code)
    names = {error.code, error.__name__, str(error.exit_code), *(spelling or ())}
    return {str(each).lower() for each in names}


def _text(error: type[RopewalkError]) -> str:
    meaning = (inspect.getdoc(error) or "").partition("\n")[0]
    first = f"{error.code}  (exit code {error.exit_code}, HTTP status {error.status})"
    return "\n  ".join([first, meaning, error.advice])
