"""One tree of errors: the drawing, the classes, the codes and the spellings say the same."""

from __future__ import annotations

import json
import pickle
import re

from ropewalk import errors
from ropewalk.errors import SPELLINGS, HeadMoved, OutOfOrder, RopewalkError, Spelling


def all_classes() -> list[type[RopewalkError]]:
    found, queue = [], [RopewalkError]
    while queue:
        kind = queue.pop()
        # Layers may keep errors of their own; the tree is what errors.py defines.
        if kind.__module__ == errors.__name__:
            found.append(kind)
            queue += kind.__subclasses__()
    return found


CLASSES = sorted(all_classes(), key=lambda kind: kind.__name__)

# What the commands promise, apart from 0 and 130.
EXIT_CODES = {
    "RopewalkError": 1,
    "Usage": 2,
    "NotFound": 3,
    "Conflict": 4,
    "Unverified": 5,
    "Denied": 6,
    "Unavailable": 7,
    "Invalid": 8,
}
# S0's error taxonomy.
STATUSES = {
    "AppendRejected": 409,
    "TemporalOrder": 409,
    "DigestMismatch": 422,
    "SigInvalid": 401,
    "PolicyDenied": 403,
    "NotFound": 404,
    "CapabilityUnavailable": 503,
    "InvalidEnvelope": 400,
}


def drawn() -> dict[str, tuple[str | None, int]]:
    """Class → parent and exit code, as the docstring draws them; a line without a number has its parent's."""
    assert errors.__doc__
    tree: dict[str, tuple[str | None, int]] = {}
    above: list[str] = []
    for line in errors.__doc__.splitlines():
        found = re.fullmatch(r"    ((?:[│├└─]|  )[│├└─ ]*|)([A-Z]\w+) +(?:(\d+) +)?\S.*", line)
        if found:
            depth = len(found[1]) // 4
            parent = above[depth - 1] if depth else None
            del above[depth:]
            above.append(found[2])
            code = int(found[3]) if found[3] else tree[parent][1] if parent else -1
            tree[found[2]] = (parent, code)
    return tree


def test_the_drawn_tree_is_the_real_one():
    real = {
        kind.__name__: (None if kind is RopewalkError else kind.__bases__[0].__name__, kind.exit_code)
        for kind in CLASSES
    }
    assert drawn() == real


def test_exit_codes_are_those_of_the_commands():
    for kind in CLASSES:
        promised = next(
            EXIT_CODES[parent.__name__] for parent in kind.__mro__ if parent.__name__ in EXIT_CODES
        )
        assert kind.exit_code == promised, kind.__name__


def test_all_lists_every_error():
    assert {kind.__name__ for kind in CLASSES} <= set(errors.__all__)
    assert set(errors.__all__) - {kind.__name__ for kind in CLASSES} == {"SPELLINGS", "Spelling"}


def test_codes_are_spelt_for_every_surface():
    for kind in CLASSES:
        spelling = SPELLINGS[kind.code]
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", spelling.messages), kind
        assert re.fullmatch(r"[A-Z]+(_[A-Z]+)*", spelling.stream), kind
        assert re.fullmatch(r"([A-Z][a-z]+)+", spelling.compat), kind


def test_no_spelling_without_an_error():
    assert set(SPELLINGS) == {kind.code for kind in CLASSES}


def test_one_surface_never_spells_two_codes_alike():
    for surface in ("messages", "stream"):
        written = [getattr(spelling, surface) for spelling in SPELLINGS.values()]
        assert len(set(written)) == len(written), surface


def test_the_specifications_spellings_are_kept():
    assert SPELLINGS["AppendRejected"] == Spelling(
        "head_conflict", "APPEND_REJECTED", "AppendRejected", ("NotFastForward",)
    )
    assert SPELLINGS["TemporalOrder"].aliases == ("UlidOutOfOrder",)
    for code in ("InvalidJson", "InvalidName", "InvalidUlid"):
        assert SPELLINGS[code].aliases == ("InvalidEnvelope",)
    assert SPELLINGS["PolicyDenied"][:3] == ("policy_denied", "POLICY_DENIED", "PolicyFail")
    assert SPELLINGS["NotFound"].messages == "topic_not_found"
    assert SPELLINGS["InvalidUlid"].messages == "invalid_ulid"
    assert SPELLINGS["RangeExceeded"].messages == "range_exceeded"
    assert SPELLINGS["InvalidInput"].stream == "INVALID_SUB"


def test_statuses_are_those_of_the_taxonomy():
    for code, status in STATUSES.items():
        assert {kind.status for kind in CLASSES if kind.code == code} == {status}, code


def test_errors_have_advice():
    for kind in CLASSES:
        assert kind.__doc__, kind
        assert kind.advice.endswith("."), kind
        assert kind("a detail").advice_now == kind.advice
        assert kind("a detail", advice="Do this.").advice_now == "Do this."


def test_errors_can_be_pickled():
    for kind in CLASSES:
        error = kind("a detail", advice="Do this.", instance="urn:commit:8b1c1e4", position=12, reason="why")
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is kind
        assert copy.to_problem() == error.to_problem()
        assert (copy.detail, copy.advice_now, copy.instance, copy.fields) == (
            error.detail,
            error.advice_now,
            error.instance,
            error.fields,
        )
        assert str(copy) == "a detail"


def test_problems_have_the_members_of_rfc_9457():
    for kind in CLASSES:
        problem = json.loads(json.dumps(kind("a detail", where="/payload").to_problem()))
        assert problem["type"].startswith("https://gatos.dev/problems/")
        assert problem["title"] == problem["code"] == kind.code
        assert problem["status"] == kind.status
        assert problem["detail"] == "a detail"
        assert problem["where"] == "/payload"


def test_the_problem_of_a_lost_append_is_the_specifications_example():
    problem = HeadMoved("Not fast-forward (CAS failed)", instance="urn:commit:8b1c1e4").to_problem()
    example = {
        "type": "https://gatos.dev/problems/append-rejected",
        "title": "AppendRejected",
        "status": 409,
        "code": "AppendRejected",
        "detail": "Not fast-forward (CAS failed)",
        "instance": "urn:commit:8b1c1e4",
    }
    assert example.items() <= problem.items()
    assert set(problem) - set(example) == {"advice", "aliases"}
    assert problem["aliases"] == ["NotFastForward"]


def test_a_field_never_hides_a_member_of_the_problem():
    problem = OutOfOrder("a detail", status=200, code="Fine", topic="demo").to_problem()
    assert (problem["status"], problem["code"], problem["topic"]) == (409, "TemporalOrder", "demo")


def test_no_advice_and_no_instance_leave_no_member():
    problem = RopewalkError("a detail", advice="").to_problem()
    assert "advice" not in problem
    assert "instance" not in problem
