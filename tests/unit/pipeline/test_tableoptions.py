"""Options that travel through Spark's catalog, and errors that travel through Spark's texts; no Spark is started."""

from __future__ import annotations

import pytest

from ropewalk.errors import Invalid, SigInvalid
from ropewalk.pipeline.source.refusals import MARK, find_refusal, marked
from ropewalk.pipeline.source.table_options import parse_options, pick_options, schema_with_options

# As Spark 4.3 hands them over for CREATE TABLE t USING ropewalk OPTIONS (repository ..., Topics ...) TBLPROPERTIES ...
GIVEN = {
    "owner": "root",
    "provider": "ropewalk",
    "comment": "deployments",
    "team": "web",
    "repository": "/data/it's.git",
    "topics": "prod",
    "option.repository": "/data/it's.git",
    "option.topics": "prod",
    "option.serialization.format": "1",
}


def test_options_of_the_user_are_kept_alone():
    assert pick_options(GIVEN) == {"repository": "/data/it's.git", "topics": "prod"}
    assert pick_options({**GIVEN, "option.topcs": "x"})["topcs"] == "x"
    placed = {"provider": "ropewalk", "location": "file:/data/a%20b.git", "path": "file:/data/a%20b.git"}
    assert pick_options(placed) == {"path": "/data/a b.git"}


@pytest.mark.parametrize("name", ["owner", "comment", "team", "option.repository"])
def test_options_of_a_plain_read_are_all_the_users(name: str):
    assert pick_options({"repository": "/r", name: "x"}) == {"repository": "/r", name: "x"}


def test_options_survive_in_a_comment():
    options = {"repository": 'C:\\it\'s "here"\n.git', "topics": "prod,ä"}
    first, rest = schema_with_options("`engine` string, `topic` string", options).rsplit(", ", 1)
    assert rest == "`topic` string" and first.startswith("`engine` string COMMENT 'ropewalk options: ")
    text = first.split("COMMENT ", 1)[1][1:-1].replace("\\'", "'").replace("\\\\", "\\")
    assert parse_options(text) == options
    for other in (None, 7, "", "a comment of mine", "ropewalk options: [1]", "ropewalk options: {"):
        assert parse_options(other) == {}


def test_refusal_text_shows_its_advice():
    text = str(marked(SigInvalid("bad seal in “ä”", height=7, advice="Ask the sender.")))
    assert text.splitlines()[:2] == ["SigInvalid: bad seal in “ä”", "Ask the sender."]
    found = find_refusal(f"Traceback: RuntimeError: {text}\n SQLSTATE: 38000\n at org.apache")
    assert isinstance(found, SigInvalid)
    assert (found.detail, found.advice_now) == ("bad seal in “ä”", "Ask the sender.")
    assert found.fields["height"] == 7


def test_refusal_is_found_behind_a_cut_one():
    text = str(marked(Invalid("no repository is named")))
    assert find_refusal(text[:-20]) is None
    assert find_refusal("nothing of ours") is None
    assert find_refusal(f"{MARK}[1] {MARK}{{}} {text}").detail == "no repository is named"  # type: ignore[union-attr]
