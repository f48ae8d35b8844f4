"""One report type computes the verdict of every verification, and its exit code."""

from __future__ import annotations

import pytest

from ropewalk.kernel.report import Report, Step

PASSED, FAILED = Step("a", "passed"), Step("b", "failed")
UNASKED, NO_TRUST, MISSED = Step.optional("c", ""), Step.untrusted("d", ""), Step("e", "not_checked")


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [
        ([PASSED], "passed"),
        ([PASSED, UNASKED], "passed"),
        ([PASSED, NO_TRUST], "untrusted"),
        ([PASSED, MISSED], "partly"),
        ([], "partly"),
        ([NO_TRUST, MISSED, UNASKED], "untrusted"),
        ([NO_TRUST, MISSED, UNASKED, FAILED], "failed"),
    ],
)
def test_report_verdict_is_the_worst_step(steps, verdict):
    report = Report.of(steps, entries=1)
    assert (report.verdict, report.ok) == (verdict, verdict == "passed")
    assert report.exit_code == (0 if verdict == "passed" else 5)
    told = report.to_json()
    assert (told["verdict"], told["ok"], told["entries"]) == (verdict, verdict == "passed", 1)


def test_report_unchecked_step_is_required_by_default():
    """A step that is skipped without a reason is never counted as passed."""
    assert MISSED.need == "required" and not Report.of([MISSED]).ok


def test_report_step_says_what_it_needs():
    assert [step.to_json().get("need") for step in (PASSED, FAILED, UNASKED, NO_TRUST, MISSED)] == [
        None,
        None,
        "optional",
        "trust",
        "required",
    ]


@pytest.mark.parametrize(
    ("steps", "untrusted", "partly", "ok"),
    [
        ([NO_TRUST], True, False, True),
        ([NO_TRUST], False, True, False),
        ([MISSED], False, True, True),
        ([MISSED], True, False, False),
        ([NO_TRUST, MISSED], True, False, False),
        ([NO_TRUST, MISSED], True, True, True),
        ([FAILED], True, True, False),
        ([FAILED, NO_TRUST, MISSED], True, True, False),
    ],
)
def test_report_accepts_only_what_was_named(steps, untrusted, partly, ok):
    report = Report.of(steps)
    accepted = report.accept(untrusted=untrusted, partly=partly)
    assert accepted.ok is ok and accepted.exit_code == (0 if ok else 5)
    assert (
        accepted.verdict == report.verdict
    )  # accepting changes what it means for the caller, not what was found
