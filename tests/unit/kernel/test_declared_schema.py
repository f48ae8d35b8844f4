"""Schemas that others declare: what is refused before it is compiled, what they find, and what that may cost."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.errors import Invalid
from ropewalk.kernel import jcs
from ropewalk.kernel.schema.declared import COST_MAX, DIALECT, FORMATS, PARTS_MAX, declare


def refusal(schema: Any) -> str:
    with pytest.raises(Invalid) as caught:
        declare(jcs.encode(schema))
    assert caught.value.exit_code == 8
    return caught.value.detail


def told(schema: Any, value: Any) -> str | None:
    fault = declare(jcs.encode(schema)).fault(value)
    return None if fault is None else str(fault)


# --- what is refused ---


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"requierd": ["a"]}, 'schema: keyword "requierd" is not known'),
        ({"properties": {"a/b": {"minimun": 1}}}, 'schema /properties/a~1b: keyword "minimun" is not known'),
        ({"dependencies": {}}, "not known"),
        ({"$dynamicRef": "#a"}, "not known"),
        ({"$anchor": "a"}, "not known"),
        ({"type": "text"}, 'schema /type: "text" is not one of "array"'),
        ({"minimum": "1"}, 'schema /minimum: "1" is not of type \"number\"'),
        ({"items": 5}, "schema /items: a schema is an object, true or false"),
        ({"items": [{}]}, "schema /items: a schema is an object, true or false"),
        ({"allOf": {}}, "schema /allOf: a list of schemas is expected"),
        ({"properties": []}, "schema /properties: an object of schemas is expected"),
        ({"format": "colour"}, 'schema: format "colour" is not known'),
        ({"format": ["date"]}, "is not known"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "dialect"),
        ({"items": {"$schema": 5}}, "schema /items: dialect 5 is not known"),
        ({"$defs": {"a": {"$id": "urn:a"}}}, "schema /$defs/a: only the whole schema may have an $id"),
        (5, "schema: a schema is an object, true or false"),
    ],
)  # fmt: skip
def test_what_would_be_skipped_or_misread_is_refused_with_its_place(schema, words):
    assert words in refusal(schema)


def test_words_that_only_describe_are_let_pass():
    describing = {
        "title": "T",
        "description": "D",
        "$comment": "C",
        "examples": [1],
        "default": 1,
        "x-owner": {},
    }
    assert (
        told({"$schema": DIALECT, "$id": "https://example.org/a", **describing, "type": "integer"}, 1) is None
    )
    assert told({"$schema": DIALECT + "#", "properties": {"requierd": {"const": 1}}}, {"requierd": 1}) is None


@pytest.mark.parametrize("keyword", ["pattern", "patternProperties"])
@pytest.mark.parametrize("pattern", ["(", "(?=a)", "(?<!a)b", "(a)\\1", "((a{1000}){1000}){1000}"])
def test_patterns_that_could_not_be_matched_in_linear_time_are_refused(keyword, pattern):
    schema = {keyword: pattern if keyword == "pattern" else {pattern: {}}}
    assert "is no pattern, or one with look-around" in refusal(schema)


def test_a_pattern_meant_to_explode_is_matched_like_any_other():
    assert told({"pattern": "^(a+)+$"}, "a" * 200_000 + "b") is not None
    assert told({"pattern": "^(a|a)*$"}, "a" * 200_000) is None


@pytest.mark.parametrize(
    "reference",
    [
        "https://example.org/x", "file:///etc/passwd", "other.json", "other#/$defs/a", DIALECT, "urn:x", "",
        "#/%24defs/a", 5,
    ],
)  # fmt: skip
def test_outside_references_are_refused(reference, monkeypatch):
    def asked(*_: object) -> None:
        raise AssertionError("somebody was asked")

    monkeypatch.setattr(socket, "getaddrinfo", asked)
    schema = {"$id": "https://example.org/x", "properties": {"a": {"$ref": reference}}, "$defs": {"a": {}}}
    assert "leaves the schema" in refusal(schema)


@pytest.mark.parametrize(
    "reference", ["#/$defs/none", "#/$defs", "#/enum/0", "#none", "#/$defs/a/", "#/$defs/~"]
)
def test_references_that_lead_to_no_schema_are_refused(reference):
    assert "leads to no schema" in refusal({"enum": [{}], "items": {"$ref": reference}, "$defs": {"a": {}}})


@pytest.mark.parametrize("name", ["é", "two words", "a#b", 'a"b', "a\nb", "a[0]", "a|b"])
def test_references_in_characters_that_no_uri_has_are_refused_as_such(name):
    schema = {"properties": {"a": {"$ref": f"#/$defs/{name}"}}, "$defs": {name: {}}}
    found = refusal(schema)
    assert (
        found.startswith("schema /properties/a: reference") and "no URI has" in found and found.isprintable()
    )


def test_the_name_of_a_schema_is_not_looked_up_either():
    named = {"$id": DIALECT, "$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}}
    assert told(named, 1) is None
    assert told(named, "x") == '"x" is not of type "integer"'


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"not": {"$ref": "#"}},
        {"properties": {"a": {"$ref": "#"}}},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"items": {"$ref": "#/$defs/a"}}}},
    ],
)
def test_a_schema_that_leads_back_to_itself_is_refused(schema):
    assert "leads back to itself" in refusal(schema)


def doubling(times: int, keyword: str) -> dict[str, Any]:
    defs: dict[str, Any] = {f"a{i}": {keyword: [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(times)}
    return {"$ref": "#/$defs/a0", "$defs": {**defs, f"a{times}": {"type": "string"}}}


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf", "prefixItems"])
def test_what_doubles_with_every_reference_is_counted_as_written_out(keyword):
    assert f"more than {PARTS_MAX} parts" in refusal(doubling(40, keyword))
    declare(jcs.encode(doubling(10, keyword)))


def test_unevaluated_members_count_as_work():
    def nested(times: int) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": "object"}
        for number in range(times):
            named: dict[str, Any] = {"properties": {f"p{number}": True}}
            schema = {"unevaluatedProperties": False, "allOf": [schema, named]}
        return schema

    assert "parts when its references are written out" in refusal(nested(20))
    assert told(nested(2), {"p1": 1, "q": 1}) is not None


def test_long_ways_of_references_end_before_the_stack_does():
    def chain(length: int) -> dict[str, Any]:
        defs: dict[str, Any] = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(length)}
        return {"$ref": "#/$defs/a0", "$defs": {**defs, f"a{length}": {"type": "null"}}}

    assert told(chain(100), 1) == '1 is not of type "null"'
    assert "deeper than 128" in refusal(chain(5_000))
    # A part that was weighed before counts in full where it is reached by a longer way.
    longer: dict[str, Any] = {f"b{i}": {"$ref": f"#/$defs/b{i + 1}"} for i in range(60)}
    defs = {**chain(100)["$defs"], **longer, "b60": {"$ref": "#/$defs/a0"}}
    assert "deeper than 128" in refusal(
        {"allOf": [{"$ref": "#/$defs/a0"}, {"$ref": "#/$defs/b0"}], "$defs": defs}
    )


def test_too_many_parts_are_refused():
    assert "more than" in refusal({"anyOf": [{"const": n} for n in range(PARTS_MAX)]})
    assert told({"enum": list(range(PARTS_MAX))}, -1) is not None
    assert "more than" in refusal({"const": ["x" * 300] * PARTS_MAX})


# --- what is found ---


@pytest.mark.parametrize(
    ("schema", "value", "words"),
    [
        ({"properties": {"a": {"items": {"minimum": 1}}}}, {"a": [1, 0]}, "/a/1: 0 is less than the minimum of 1"),
        ({"enum": ["a", "b"]}, 0, '0 is not one of "a" or "b"'),
        ({"enum": []}, 0, "0 is not one of "),
        ({"enum": [None, True, {"a": None}]}, 0, '0 is not one of null, true or {"a":null}'),
        ({"const": False}, 0, "found 0, false was expected"),
        ({"const": ["x" * 99]}, 0, f'found 0, ["{"x" * 99}"] was expected'),
        ({"enum": list(range(100))}, -1, "-1 is not one of 0, 1 or 98 other candidates"),
        ({"exclusiveMinimum": 0}, 0, "0 is less than or equal to the minimum of 0"),
        ({"exclusiveMaximum": 5}, 5, "5 is greater than or equal to the maximum of 5"),
        ({"multipleOf": 5}, 7, "7 is not a multiple of 5"),
        ({"minProperties": 1}, {}, "an empty object has less than 1 property"),
        ({"maxProperties": 1}, {"a": 1, "b": 2}, "an object has more than 1 property"),
        ({"uniqueItems": True}, [1, 1], "an array has non-unique elements"),
        ({"contains": {"const": 1}}, [2], "None of an array are valid under the given schema"),
        ({"not": {"type": "null"}}, None, '{"type":"null"} is not allowed for null'),
        (
            {"oneOf": [True, {"minimum": 0}]},
            1,
            "1 is valid under more than one of the schemas listed in the 'oneOf' keyword",
        ),
        ({"oneOf": [{"type": "null"}, {"minimum": 3}]}, 1, "1 is less than the minimum of 3"),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, '"b" is missing'),
        ({"propertyNames": {"maxLength": 2}}, {"abc": 1}, 'key "abc": "abc" is longer than 2 characters'),
        ({"propertyNames": False}, {"abc": 1}, "has no place here"),
        ({"unevaluatedProperties": False, "allOf": [{"required": ["b"]}]}, {"b": 1}, '/b: "b" has no place here'),
        ({"unevaluatedItems": False}, [1], "found an array, Unevaluated items are not allowed (1 item)"),
        ({"prefixItems": [True], "items": False}, [1, 2], "/1: has no place here"),
        ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, {"a": 1}, '"b" is missing'),
        ({"properties": {"a": {"title": "Count", "minimum": 1}}}, {"a": 0}, "/a: 0 is less than the minimum of 1"),
    ],
)  # fmt: skip
def test_faults_are_told_with_their_place(schema, value, words):
    assert told(schema, value) == words


SAMPLES = {
    "date": ("2024-02-29", "2023-02-29"),
    "date-time": ("2024-11-01T12:00:00Z", "2024-11-01"),
    "duration": ("P1D", "1D"),
    "email": ("a@b.example", "a b"),
    "hostname": ("a.example", "-a"),
    "idn-email": ("é@b.example", "@"),
    "idn-hostname": ("é.example", "-é"),
    "ipv4": ("127.0.0.1", "127.0.0.256"),
    "ipv6": ("::1", "::g"),
    "iri": ("https://é.example/", "é"),
    "iri-reference": ("é", "\\"),
    "json-pointer": ("/a~1b", "a"),
    "regex": ("a+", "("),
    "relative-json-pointer": ("1/a", "/a"),
    "time": ("12:00:00Z", "25:00:00Z"),
    "uri": ("https://a.example/", "a"),
    "uri-reference": ("a", "\\"),
    "uri-template": ("/{a}", "/{a"),
    "uuid": ("00000000-0000-0000-0000-000000000000", "0"),
}


def test_every_format_that_is_let_in_is_asserted():
    assert SAMPLES.keys() == FORMATS
    for name, (good, bad) in SAMPLES.items():
        assert told({"format": name}, good) is None, name
        assert told({"format": name}, bad) is not None, name


def test_large_choice_error_omits_the_place():
    schema = {"anyOf": [{"type": "string", "minLength": n} for n in range(100)]}
    assert told(schema, [1] * 100) == 'an array is not of type "string"'
    assert told(schema, [1] * 100_000) == "does not fit, and is too large to say where"
    assert told(schema, ["x" * 1_000_000]) == "does not fit, and is too large to say where"
    choice = {"items": {"enum": [f"code-{number}" for number in range(5_000)]}}
    assert declare(jcs.encode(choice)).parts > 100  # every fault would hold a copy of them
    assert told(choice, ["x"] * 100_000) == "does not fit, and is too large to say where"
    assert told({"items": {"type": "string"}}, [1] * 100_000) == '/0: 1 is not of type "string"'


def test_slow_schema_refused_before_validation():
    choice = declare(jcs.encode({"items": {"oneOf": [{"const": number} for number in range(2_000)]}}))
    most = COST_MAX // choice.parts
    payloads: list[jcs.Json] = [[7] * (most + 1), [{"a": 7}] * (most // 2 + 1), ["x" * 16 * most]]
    for payload in payloads:
        assert "too large" in str(choice.fault(payload)) and "too large" in str(choice.fault(payload, 10**9))
    assert choice.fault([7] * 100) is None and choice.fault([7] * 100, 10**9) is None
    small = declare(b'{"items":{"type":"integer"}}')
    assert small.fault([7] * (most + 1)) is None


def test_a_compiled_schema_travels_as_its_text_and_is_compiled_once():
    raw = jcs.encode({"type": "null"})
    one = declare(raw)
    assert declare(bytes(bytearray(raw))) is one
    assert pickle.loads(pickle.dumps(one)) is one


def test_importing_loads_no_validator():
    script = "import sys, ropewalk.ledger.rules.policy; assert 'jsonschema_rs' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


# --- the same as another implementation ---

NAMES = st.sampled_from(["a", "b", "c"])
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "ab", "abc", 0.5, 1.5])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
TYPES = st.sampled_from(["array", "boolean", "integer", "null", "number", "object", "string"])


def _keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    small, several = st.integers(0, 3), st.lists(inner, min_size=1, max_size=2)
    named = st.dictionaries(NAMES, inner, max_size=2)
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "type": TYPES | st.lists(TYPES, min_size=1, unique=True),
        "enum": st.lists(SCALARS, min_size=1, max_size=3),
        "const": SCALARS,
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), st.integers(-3, 3)),
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), small),
        "required": st.lists(NAMES, unique=True, max_size=2),
        "uniqueItems": st.booleans(),
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, unique=True, max_size=1), max_size=1),
        **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), named),
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), several),
        **dict.fromkeys(("items", "additionalProperties", "contains", "propertyNames"), inner),
        **dict.fromkeys(("not", "if", "then", "else", "unevaluatedProperties", "unevaluatedItems"), inner),
        "$ref": st.sampled_from(["#/$defs/a", "#/$defs/b"]),
    }  # fmt: skip
    return st.fixed_dictionaries({}, optional=kinds) | st.booleans()


LEAVES = st.fixed_dictionaries({}, optional={"type": TYPES, "minimum": st.integers(-1, 1)}) | st.booleans()
SCHEMAS = st.fixed_dictionaries(
    {
        "$defs": st.fixed_dictionaries({"a": LEAVES, "b": LEAVES}),
        "allOf": st.lists(_keywords(_keywords(LEAVES)), min_size=1, max_size=2),
    }
)


def found_at(value: Any, where: str) -> Any:
    for step in where.split("/")[1:]:
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


@settings(deadline=None, max_examples=60)
@given(schema=SCHEMAS, values=st.lists(VALUES, min_size=1, max_size=4))
def test_verdicts_match_another_implementation(schema, values):
    ours, theirs = declare(jcs.encode(schema)), jsonschema.Draft202012Validator(schema)
    for value in values:
        fault = ours.fault(value)
        assert (fault is None) == theirs.is_valid(value)
        if fault is not None:
            found_at(value, fault.where)
            assert fault.detail and "\n" not in fault.detail


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.sampled_from(["#", "#/$defs/a", "^a", "(", "date", "object"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["$ref", "$defs", "a", "items", "properties", "allOf", "type", "pattern", "format", "enum"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=100)
@given(schema=JSON, value=VALUES)
def test_anything_is_a_schema_or_is_refused_as_input(schema, value):
    try:
        compiled = declare(jcs.encode(schema))
    except Invalid as error:
        assert error.detail.startswith("schema")
    else:
        compiled.fault(value)
