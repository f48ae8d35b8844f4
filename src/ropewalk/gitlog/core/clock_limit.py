"""How far ahead of the clock a new ULID may be dated.

ULIDs must rise, so one that is dated far ahead drags every later one along, and the highest of all closes its log. What
is recorded anew is therefore dated at most a little after the clock of its writer (docs/design/decisions).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ropewalk.errors import OutOfOrder
from ropewalk.gitlog.core.commit import rfc3339
from ropewalk.kernel.ulid import Ulid, time_ms

SKEW_MS_DEFAULT = 10 * 60_000  # clocks of unattended machines are minutes apart, not hours
YEAR_10000_MS = 253_402_300_800_000
UNITS_MS = (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("seconds", 1_000))


@dataclass(frozen=True, slots=True)
class ClockLimit:
    """A reading of the clock, and how far ahead of it a ULID may be; the latter is asked for only where it matters."""

    now_ms: int
    skew_ms: Callable[[], int] = lambda: SKEW_MS_DEFAULT

    def is_ahead(self, ulid: Ulid) -> bool:
        """Return whether a ULID is dated later than the limit.

        >>> limit = ClockLimit(1469922850259)
        >>> limit.is_ahead(Ulid("01ARZ3NDEK0000000000000000")), limit.is_ahead(Ulid("7ZZZZZZZZZZZZZZZZZZZZZZZZZ"))
        (False, True)
        """
        ahead_ms = time_ms(ulid) - self.now_ms
        return ahead_ms > 0 and ahead_ms > self.skew_ms()

    def check(self, log: str, ulid: Ulid, head: Ulid | None) -> None:
        """Refuse a ULID that is dated later than the limit, or that has to be because the head of its log is.

        `log` is the command line's name of the log, as in `--ns prod`.
        """
        if not self.is_ahead(ulid):
            return
        if head is not None and self.is_ahead(head):
            raise OutOfOrder(
                f"the head of the log ({log}), {head}, is {self.dated(head)}; ULIDs must rise, "
                "so a new event would be too",
                ulid=head,
                head=head,
                advice=self.advice(log, head),
            )
        raise OutOfOrder(
            f"ULID {ulid} is {self.dated(ulid)}; at most {_span(self.skew_ms())} ahead are allowed",
            ulid=ulid,
            advice="Leave the ULID out, or correct the clock that made it. To allow more: "
            "`git config ropewalk.maxClockSkew 2h`.",
        )

    def dated(self, ulid: Ulid) -> str:
        """Say when a ULID is dated, and how far ahead of the clock that is."""
        when = time_ms(ulid)
        date = rfc3339(when) if when < YEAR_10000_MS else "after the year 9999"
        return f"dated {date}, {_span(when - self.now_ms)} ahead of this clock"

    def advice(self, log: str, head: Ulid) -> str:
        """Say what to do about a log whose head is dated ahead."""
        days = (time_ms(head) - self.now_ms) // UNITS_MS[0][1] + 1
        return (
            "If this clock is slow, set it. If the entry is dated wrongly: `ropewalk verify` names the first one; "
            "put the head ref back to the commit before it with `git update-ref`. Then "
            f"`ropewalk heads accept {log}` and `ropewalk heads rescue {log}` record that entry and all after it "
            "again, dated now. To go on as it is: "
            f"`git config ropewalk.maxClockSkew {days}d`."
        )


def _span(ms: int) -> str:
    """Return a span of time in the largest unit that gives at least two.

    >>> _span(600_000), _span(7_200_000), _span(500)
    ('10 minutes', '2 hours', '500 ms')
    """
    return next((f"{ms // unit} {name}" for name, unit in UNITS_MS if ms >= 2 * unit), f"{ms} ms")
