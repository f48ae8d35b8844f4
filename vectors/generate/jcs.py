"""Cases for canonical JSON: what is written, what is refused, and where the fault is.

Texts and verdicts are stated by hand, from RFC 8785, RFC 8259 and the bounds of the ledger. Number texts come from a
formatter of the ECMAScript algorithm that shares no code with the product; `tests/interop` compares them with Node.
"""

from __future__ import annotations

import random
import struct
from typing import Any

Case = dict[str, Any]

DEPTH = 128
SAFE = 2**53 - 1


def source(raw: str | bytes) -> dict[str, str]:
    """Text where a reader can see it, hex where the bytes themselves are the point."""
    if isinstance(raw, str):
        return {"text": raw}
    return {"hex": raw.hex()}


def good(name: str, raw: str | bytes, canonical: str) -> Case:
    return {"name": name, "input": source(raw), "expect": {"text": canonical}}


def bad(name: str, raw: str | bytes, reason: str, position: int) -> Case:
    return {"name": name, "input": source(raw), "error": {"reason": reason, "position": position}}


def file(name: str, why: str, *cases: Case) -> dict[str, Any]:
    return {"name": name, "why": why, "cases": list(cases)}


def duplicate_keys() -> dict[str, Any]:
    why = "Readers keep the first or the last of two equal keys, so one text would have two meanings."
    reason = "duplicate key"
    return file(
        "duplicate_keys",
        why,
        bad("plain", '{"a":1,"a":2}', reason, 7),
        bad("same_value", '{"a":1,"a":1}', reason, 7),
        bad("one_of_them_escaped", '{"a":1,"\\u0061":2}', reason, 7),
        bad("nested", '[{"x":{"k":1,"j":2,"k":3}}]', reason, 19),
        bad("inside_a_value_that_is_itself_dropped", '{"a":{"b":1,"b":2},"a":3}', reason, 12),
        bad("empty_key", '{"":1,"":2}', reason, 6),
        bad("beyond_the_basic_plane", '{"\U0001f600":1,"\\ud83d\\ude00":2}', reason, 10),
        bad("with_colons_in_strings", '{"a:b":"::","a:b":":"}', reason, 12),
        bad("hidden_by_an_escaped_colon", '{"a":"\\u003a","a":"\\u003a"}', reason, 14),
        bad("escaped_colon_makes_up_for_the_dropped_one", '{"a":1,"b":"\\u003a","a":2}', reason, 20),
        bad("three_times", '{"a":1,"b":2,"a":3,"a":4}', reason, 13),
        good("same_key_in_two_objects", '[{"a":1},{"a":2}]', '[{"a":1},{"a":2}]'),
        good("same_key_at_two_depths", '{"a":{"a":1}}', '{"a":{"a":1}}'),
        good("keys_that_differ_in_case", '{"a":1,"A":2}', '{"A":2,"a":1}'),
        good("composed_and_decomposed_differ", '{"\u00e9":1,"e\u0301":2}', '{"e\u0301":2,"\u00e9":1}'),
        good("escaped_colons_alone", '{"a\\u003a":"\\u003A"}', '{"a:":":"}'),
    )


def lone_surrogates() -> dict[str, Any]:
    why = "Half a surrogate pair is no character: it has no UTF-8 form, hence no canonical bytes."
    reason = "lone surrogate"
    return file(
        "lone_surrogates",
        why,
        bad("high", '"\\ud800"', reason, 1),
        bad("low", '"\\udc00"', reason, 1),
        bad("low_then_high", '"\\udc00\\ud800"', reason, 1),
        bad("two_high", '"\\ud83d\\ud83d\\ude00"', reason, 1),
        bad("pair_interrupted", '"\\ud83dx\\ude00"', reason, 1),
        bad("pair_interrupted_by_an_escape", '"\\ud83d\\n\\ude00"', reason, 1),
        bad("low_after_a_pair", '"\\ud83d\\ude00\\ude00"', reason, 13),
        bad("in_a_key", '{"a":1,"\\ud800":2}', reason, 8),
        bad("at_the_end_of_the_range", '"\\uDFFF"', reason, 1),
        bad("as_utf8_bytes", b'"\xed\xa0\x80"', "bad UTF-8", 1),
        bad("pair_as_utf8_bytes", b'"\xed\xa0\xbd\xed\xb8\x80"', "bad UTF-8", 1),
        good("pair", '"\\ud83d\\ude00"', '"\U0001f600"'),
        good("pair_in_capitals", '"\\uD83D\\uDE00"', '"\U0001f600"'),
        good("escaped_backslash_before_ud800", '"\\\\ud800"', '"\\\\ud800"'),
        good("just_below_the_range", '"\\ud7ff"', '"\ud7ff"'),
        good("just_above_the_range", '"\\ue000"', '"\ue000"'),
    )


def big_integers() -> dict[str, Any]:
    why = "Beyond 2^53−1 two integers share one double. Below 1e21 the canonical form would hide that."
    reason = "big integer"
    refused = {
        "two_to_the_53": "9007199254740992",
        "two_to_the_53_plus_1": "9007199254740993",
        "negative": "-9007199254740992",
        "with_a_fraction": "9007199254740993.0",
        "with_an_exponent": "9.007199254740992e15",
        "rounds_up_to_the_bound": "9007199254740991.5",
        "int64": "9223372036854775807",
        "uint64": "18446744073709551615",
        "beyond_uint64": "18446744073709551616",
        "nanoseconds": "1730462400000000000",
        "1e20": "1e20",
        "1e20_in_digits": "100000000000000000000",
        "1e20_as_a_fraction": "0.1E21",
        "last_below_1e21": "999999999999999868928",
        "digits_that_round_up_to_1e21": "999999999999999999999",
        "30_digits_no_double_holds": "123456789012345678901234567890",
        "1e23_in_digits_is_no_double": "100000000000000000000000",
    }
    accepted = {
        "largest": ("9007199254740991", "9007199254740991"),
        "smallest": ("-9007199254740991", "-9007199254740991"),
        "largest_with_a_fraction": ("9007199254740991.0", "9007199254740991"),
        "largest_with_an_exponent": ("9.007199254740991e15", "9007199254740991"),
        "rounds_down_to_the_bound": ("9007199254740991.25", "9007199254740991"),
        "1e21": ("1e21", "1e+21"),
        "1e21_in_digits": ("1000000000000000000000", "1e+21"),
        "negative_1e21": ("-1e21", "-1e+21"),
        "two_to_the_100_in_digits": ("-1267650600228229401496703205376", "-1.2676506002282294e+30"),
        "1e23": ("1e23", "1e+23"),
        "22_digits_in_a_fraction": ("[0.1234567890123456789012]", "[0.12345678901234568]"),
        "22_digits_in_a_string": ('["1234567890123456789012",1.0]', '["1234567890123456789012",1]'),
        "largest_double": ("1.7976931348623157e308", "1.7976931348623157e+308"),
    }
    return file(
        "big_integers",
        why,
        *(bad(name, text, reason, 0) for name, text in refused.items()),
        bad("in_an_array", "[1, 9007199254740992]", reason, 4),
        bad("in_an_object", '{"a":{"b":1e17}}', reason, 10),
        *(good(name, text, canonical) for name, (text, canonical) in accepted.items()),
        good("as_a_string", '"9007199254740993"', '"9007199254740993"'),
    )


def not_finite() -> dict[str, Any]:
    why = "JSON has no word for what is not a finite number."
    return file(
        "not_finite",
        why,
        bad("nan", "NaN", "not finite", 0),
        bad("infinity", "[Infinity]", "not finite", 1),
        bad("negative_infinity", '{"a":-Infinity}', "not finite", 5),
        bad("1e400", "1e400", "not finite", 0),
        bad("negative_1e400", "[0,-1e400]", "not finite", 3),
        bad("first_beyond_the_largest", "1.7976931348623159e308", "not finite", 0),
        bad("400_digits", "1" * 400, "not finite", 0),
        good("underflow_is_zero", "1e-400", "0"),
        good("negative_underflow_is_zero", "-1e-400", "0"),
        good("smallest_subnormal", "5e-324", "5e-324"),
    )


def nesting() -> dict[str, Any]:
    why = "A bound that every reader can meet, so that depth is never what two readers differ about."
    reason = "nested too deep"
    arrays = "[" * DEPTH + "]" * DEPTH
    objects = '{"a":' * DEPTH + "1" + "}" * DEPTH
    return file(
        "nesting",
        why,
        good("arrays_128", arrays, arrays),
        good("objects_128", objects, objects),
        good("60", "[" * 60 + "]" * 60, "[" * 60 + "]" * 60),
        good("128_twice_beside", f"[{arrays[1:-1]},{arrays[1:-1]}]", f"[{arrays[1:-1]},{arrays[1:-1]}]"),
        bad("arrays_129", "[" * (DEPTH + 1) + "]" * (DEPTH + 1), reason, DEPTH),
        bad("objects_129", '{"a":' * (DEPTH + 1) + "1" + "}" * (DEPTH + 1), reason, 5 * DEPTH),
        bad("mixed_130", '{"a":[' * 65 + "]}" * 65, reason, 6 * 64),
        bad("unclosed_2000", "[" * 2000, reason, DEPTH),
        bad(
            "brackets_in_strings_count_for_nothing",
            '["' + "[" * 300 + '",' + "[" * DEPTH,
            reason,
            304 + DEPTH - 1,
        ),
        good(
            "many_containers_side_by_side",
            "[" + ",".join(["[]"] * 300) + "]",
            "[" + ",".join(["[]"] * 300) + "]",
        ),
    )


def byte_order_mark() -> dict[str, Any]:
    why = "RFC 8259 §8.1 forbids writing one; taking it would give one value two names."
    return file(
        "byte_order_mark",
        why,
        bad("before_a_value", b"\xef\xbb\xbf{}", "byte order mark", 0),
        bad("alone", b"\xef\xbb\xbf", "byte order mark", 0),
        bad("after_a_space", b" \xef\xbb\xbf{}", "unexpected character", 1),
        bad("utf16", b"\xff\xfe{\x00}\x00", "bad UTF-8", 0),
        good("inside_a_string", '"\ufeff"', '"\ufeff"'),
    )


def bad_utf8() -> dict[str, Any]:
    why = "The text is UTF-8 or it is nothing."
    return file(
        "bad_utf8",
        why,
        bad("continuation_alone", b'"\x80"', "bad UTF-8", 1),
        bad("overlong_slash", b'"\xc0\xaf"', "bad UTF-8", 1),
        bad("overlong_nul", b'"\xe0\x80\x80"', "bad UTF-8", 1),
        bad("cut_short", b'"ab\xe2\x82"', "bad UTF-8", 3),
        bad("beyond_unicode", b'"\xf4\x90\x80\x80"', "bad UTF-8", 1),
        bad("latin_1", b'{"a":"\xe9"}', "bad UTF-8", 6),
        bad("in_a_key", b'{"\xff":1}', "bad UTF-8", 2),
        bad("after_the_value", b"1 \xff", "bad UTF-8", 2),
    )


def trailing_bytes() -> dict[str, Any]:
    why = "One text, one value: what follows it would be stored but not hashed."
    reason = "trailing bytes"
    return file(
        "trailing_bytes",
        why,
        bad("second_value", "1 2", reason, 2),
        bad("second_object", "{}{}", reason, 2),
        bad("comma", "[],", reason, 2),
        bad("nul", b"{}\x00", reason, 2),
        bad("two_lines", '{"a":1}\n{"a":2}\n', reason, 8),
        bad("comment", "{} // end", reason, 3),
        good("spaces_and_newlines_are_none", ' \t\r\n{"a":1} \t\r\n', '{"a":1}'),
        bad("form_feed_is_no_space", "{}\f", reason, 2),
        bad("no_break_space_is_no_space", "{}\u00a0", reason, 2),
    )


def key_order_utf16() -> dict[str, Any]:
    why = "Keys sort by UTF-16 units, where U+10000 stands below U+E000; by bytes it would stand above."
    emoji, hebrew, last = "\U0001f600", "\ufb33", "\uffff"
    example = {"\u20ac": 1, "\r": 2, hebrew: 3, "1": 4, emoji: 5, "\u0080": 6, "\u00f6": 7}
    spelt = {"\r": "\\r"}
    given = ",".join(f'"{spelt.get(key, key)}":{value}' for key, value in example.items())
    return file(
        "key_order_utf16",
        why,
        good(
            "rfc8785_3_2_3",
            f"{{{given}}}",
            f'{{"\\r":2,"1":4,"\u0080":6,"\u00f6":7,"\u20ac":1,"{emoji}":5,"{hebrew}":3}}',
        ),
        good("astral_before_private_use", f'{{"\ue000":1,"{emoji}":2}}', f'{{"{emoji}":2,"\ue000":1}}'),
        good(
            "astral_before_the_last_of_the_plane",
            f'{{"{last}":1,"\U0010ffff":2}}',
            f'{{"\U0010ffff":2,"{last}":1}}',
        ),
        good("astral_after_d7ff", '{"\U00010000":1,"\ud7ff":2}', '{"\ud7ff":2,"\U00010000":1}'),
        good(
            "difference_after_a_common_start",
            f'{{"a{last}":1,"a{emoji}":2}}',
            f'{{"a{emoji}":2,"a{last}":1}}',
        ),
        good(
            "nested",
            f'[{{"{last}":{{"{last}":1,"{emoji}":2}}}}]',
            f'[{{"{last}":{{"{emoji}":2,"{last}":1}}}}]',
        ),
        good(
            "in_values_it_does_not_matter",
            f'{{"b":"{emoji}","a":"{last}"}}',
            f'{{"a":"{last}","b":"{emoji}"}}',
        ),
        good("prefix_first", '{"ab":1,"a":2,"":3}', '{"":3,"a":2,"ab":1}'),
        good("digits_as_text", '{"10":1,"9":2,"1":3}', '{"1":3,"10":1,"9":2}'),
        good("capitals_first", '{"a":1,"B":2,"_":3}', '{"B":2,"_":3,"a":1}'),
        good("control_characters_first", '{" ":1,"\\u0000":2,"\\n":3}', '{"\\u0000":2,"\\n":3," ":1}'),
        good("escaped_keys_sort_by_what_they_mean", '{"\\u0062":1,"a":2}', '{"a":2,"b":1}'),
    )


def strings() -> dict[str, Any]:
    why = "Only the quote, the backslash and control characters are escaped, and each in one way."
    short = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}
    controls = "".join(f"\\u{code:04X}" for code in range(0x20))
    written = "".join(short.get(code, f"\\u{code:04x}") for code in range(0x20))
    return file(
        "strings",
        why,
        good("all_controls", f'"{controls}"', f'"{written}"'),
        good("solidus_is_bare", '"\\/"', '"/"'),
        good("quote_and_backslash", '"\\"\\\\"', '"\\"\\\\"'),
        good("quote_and_backslash_as_hex", '"\\u0022\\u005c"', '"\\"\\\\"'),
        good("delete_is_bare", '"\\u007f"', '"\x7f"'),
        good("c1_controls_are_bare", '"\\u0080\\u009f"', '"\u0080\u009f"'),
        good("line_separators_are_bare", '"\\u2028\\u2029"', '"\u2028\u2029"'),
        good("html_signs_are_bare", '"\\u003c\\u003e\\u0026"', '"<>&"'),
        good("no_normalisation", '"\\u0065\\u0301\\u00e9"', '"e\u0301\u00e9"'),
        good("noncharacters_stay", '"\\uffff\\ufffe"', '"\uffff\ufffe"'),
        good("empty", '""', '""'),
        good(
            "rfc8785_3_2_2_2",
            '"\\u20ac$\\u000F\\u000aA\'\\u0042\\u0022\\u005c\\\\\\"\\/"',
            '"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"',
        ),
        bad("control_character", b'"a\x01"', "control character", 2),
        bad("newline", b'"a\n"', "control character", 2),
        bad("nul", b'{"a\x00":1}', "control character", 3),
        bad("unknown_escape", '"\\x41"', "bad escape", 1),
        bad("short_hex", '"\\u12"', "bad escape", 1),
        bad("capital_u", '"\\U0041"', "bad escape", 1),
        bad("single_quotes", "'a'", "unexpected character", 0),
        bad("open", '["a', "unexpected end", 3),
        bad("open_after_a_backslash", '"a\\', "bad escape", 2),
        bad("open_after_an_escaped_quote", '"a\\"', "unexpected end", 4),
    )


def grammar() -> dict[str, Any]:
    why = "RFC 8259 and nothing beside it."
    odd, end = "unexpected character", "unexpected end"
    number = "bad number"
    return file(
        "grammar",
        why,
        bad("empty", "", end, 0),
        bad("only_spaces", " \n", end, 2),
        bad("comma_before_the_end_of_an_array", "[1,]", odd, 3),
        bad("comma_before_the_end_of_an_object", '{"a":1,}', odd, 7),
        bad("comma_first", "[,1]", odd, 1),
        bad("two_commas", "[1,,2]", odd, 3),
        bad("no_comma", "[1 2]", odd, 3),
        bad("no_colon", '{"a" 1}', odd, 5),
        bad("two_colons", '{"a"::1}', odd, 5),
        bad("no_value", '{"a":}', odd, 5),
        bad("bare_key", "{a:1}", odd, 1),
        bad("number_as_key", "{1:2}", odd, 1),
        bad("crossed_brackets", '{"a": [1, 2}', odd, 11),
        bad("open_array", "[1", end, 2),
        bad("open_object", '{"a":1', end, 6),
        bad("key_without_value", '{"a"', end, 4),
        bad("closing_only", "]", odd, 0),
        bad("capital_true", "True", odd, 0),
        bad("cut_word", "[tru]", odd, 1),
        bad("word_that_goes_on", "[nulls]", odd, 5),
        bad("undefined", "undefined", odd, 0),
        bad("comment", "/* */ 1", odd, 0),
        bad("leading_zero", "[01]", number, 1),
        bad("negative_leading_zero", "-01", number, 0),
        bad("plus", "+1", number, 0),
        bad("minus_alone", "-", number, 0),
        bad("no_digits_before_the_point", ".5", number, 0),
        bad("no_digits_after_the_point", "1.", number, 0),
        bad("no_digits_in_the_exponent", "1e", number, 0),
        bad("two_points", "1.2.3", number, 0),
        bad("hexadecimal", "0x10", "trailing bytes", 1),
        bad("arabic_digits", "\u0661", odd, 0),
        good("every_word", "[true,false,null]", "[true,false,null]"),
        good("empty_containers", "[ ] ".strip(), "[]"),
        good("spaces_everywhere", '\n{ "a"\t:\r[ 1 , { } , [ ] ] }\n', '{"a":[1,{},[]]}'),
        good("a_bare_string_is_a_text", ' "a" ', '"a"'),
    )


def number_texts() -> dict[str, Any]:
    why = "However a number is written, its value decides how it is written again."
    spellings = {
        "zero": ("0", "0"),
        "negative_zero": ("-0", "0"),
        "negative_zero_as_a_fraction": ("-0.0", "0"),
        "negative_zero_with_an_exponent": ("-0e5", "0"),
        "one_as_a_fraction": ("1.0", "1"),
        "one_with_an_exponent": ("0.1e1", "1"),
        "hundred": ("1E+2", "100"),
        "trailing_zeros": ("1.50", "1.5"),
        "point_two": ("2e-1", "0.2"),
        "shortest_digits": ("0.30000000000000004", "0.30000000000000004"),
        "excess_digits": ("0.1000000000000000055511151231257827", "0.1"),
        "smallest_without_exponent": ("0.000001", "0.000001"),
        "largest_small_with_exponent": ("0.0000001", "1e-7"),
        "nine_point_five_millionths": ("9.5e-6", "0.0000095"),
        "one_thousandth": ("1e-3", "0.001"),
        "half_way_rounds_to_even": ("9007199254740992.5e-1", "900719925474099.2"),
        "large": ("1.5e300", "1.5e+300"),
        "large_negative": ("-1.5E300", "-1.5e+300"),
        "small": ("1.5e-300", "1.5e-300"),
        "rfc8785_3_2_2": (
            "[333333333.33333329,1E30,4.50,2e-3,0.000000000000000000000000001]",
            "[333333333.3333333,1e+30,4.5,0.002,1e-27]",
        ),
    }
    return file("number_texts", why, *(good(name, raw, text) for name, (raw, text) in spellings.items()))


def not_canonical() -> dict[str, Any]:
    why = "Inside a log, bytes that mean the same but are written otherwise are refused: they would hash otherwise."
    reason = "not canonical"
    return file(
        "not_canonical",
        why,
        bad("space", '{"a": 1}', reason, 5),
        bad("newline_at_the_end", "{}\n", reason, 2),
        bad("order", '{"b":1,"a":2}', reason, 2),
        bad("order_by_bytes", '{"\ue000":1,"\U0001f600":2}', reason, 2),
        bad("fraction_of_an_integer", "1.0", reason, 1),
        bad("exponent", "1e2", reason, 1),
        bad("exponent_without_sign", "1e21", reason, 2),
        bad("negative_zero", "-0", reason, 0),
        bad("needless_escape", '"\\u0061"', reason, 1),
        bad("escaped_solidus", '"\\/"', reason, 1),
        bad("capital_hex", '"\\u001F"', reason, 6),
        bad("long_form_of_newline", '"\\u000a"', reason, 2),
        good("as_it_should_be", '{"a":[1,0.5,1e+21,"\\n"]}', '{"a":[1,0.5,1e+21,"\\n"]}'),
    )


def foreign_numbers() -> dict[str, Any]:
    why = (
        "Journals written elsewhere hold doubles, as ECMAScript reads and prints them; all else stays strict."
    )
    return file(
        "foreign_numbers",
        why,
        good("two_to_the_53_plus_1", "9007199254740993", "9007199254740992"),
        good("int64", "9223372036854775807", "9223372036854776000"),
        good("uint64", "18446744073709551615", "18446744073709552000"),
        good("1e20", "1e20", "100000000000000000000"),
        good("nanoseconds", '{"ts":1730462400000000001}', '{"ts":1730462400000000000}'),
        good("30_digits", "123456789012345678901234567890", "1.2345678901234568e+29"),
        good("one_as_a_fraction", "1.0", "1"),
        good("negative_zero", "-0.0", "0"),
        bad("1e400", "1e400", "not finite", 0),
        bad("duplicate_key", '{"a":1e20,"a":1}', "duplicate key", 10),
        bad("lone_surrogate", '["\\ud800"]', "lone surrogate", 2),
    )


def ecmascript(value: float) -> str:
    """Number::toString of ECMA-262, from the shortest digits that Python's repr finds."""
    if value == 0:
        return "0"
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    count = len(digits)
    if count <= point <= 21:
        text = digits + "0" * (point - count)
    elif 0 < point <= 21:
        text = digits[:point] + "." + digits[point:]
    elif -6 < point <= 0:
        text = "0." + "0" * -point + digits
    else:
        shown = digits[0] + ("." + digits[1:] if count > 1 else "")
        text = f"{shown}e{'+' if point > 0 else '-'}{abs(point - 1)}"
    return sign + text


def double(bits: int) -> float:
    value: float = struct.unpack(">d", bits.to_bytes(8, "big"))[0]
    return value


def bits_of(value: float) -> int:
    return int.from_bytes(struct.pack(">d", value), "big")


def is_finite(bits: int) -> bool:
    return (bits >> 52) & 0x7FF != 0x7FF


def sample(seed: int, each: int) -> dict[str, list[int]]:
    """Bit patterns of finite doubles, grouped by what makes them hard; the same for the same seed everywhere."""
    chance = random.Random(seed)  # noqa: S311 — a fixed sample, not a secret
    tens = [bits_of(float(f"1e{power}")) for power in range(-323, 309)]
    twos = [bits_of(2.0**power) for power in range(-1074, 1024, 3)]
    return {
        "edges": [
            *(bits_of(float(text)) for text in ("0", "-0.0", "5e-324", "-5e-324", "2.2250738585072014e-308")),
            *(
                bits_of(float(text))
                for text in ("1.7976931348623157e308", "9007199254740991", "9007199254740992")
            ),
            *(
                bits_of(float(text))
                for text in ("295147905179352830000", "999999999999999700000", "1e21", "1e-6")
            ),
            *(
                bits_of(float(text))
                for text in ("9.999999999999997e22", "1e23", "1.0000000000000001e23", "1e-7")
            ),
            *(
                bits_of(float(text))
                for text in ("333333333.3333332", "333333333.33333325", "333333333.3333333")
            ),
        ],
        "powers_of_ten_and_neighbours": [near for ten in tens for near in (ten - 1, ten, ten + 1)],
        "powers_of_two": twos,
        "random_bits": [bits for bits in (chance.getrandbits(64) for _ in range(each)) if is_finite(bits)],
        "decimals": [
            bits_of(chance.randrange(-(10**9), 10**9) / 10 ** chance.randrange(1, 7)) for _ in range(each)
        ],
        "integers": [bits_of(float(chance.getrandbits(chance.randrange(1, 75)))) for _ in range(each)],
        "around_the_exponent_bounds": [
            bits_of(chance.uniform(1, 10) * 10.0 ** chance.choice((-8, -7, -6, -5, 15, 16, 20, 21, 22)))
            for _ in range(each)
        ],
    }


def numbers() -> dict[str, Any]:
    groups = sample(8785, 500)
    return {
        "name": "numbers",
        "why": "Doubles, as the 16 hex digits of their bits, and what ECMAScript prints for each.",
        "cases": [
            {
                "name": name,
                "input": {"bits": [f"{bits:016x}" for bits in group]},
                "expect": {"text": [ecmascript(double(bits)) for bits in group]},
            }
            for name, group in groups.items()
        ],
    }


def generate() -> dict[str, object]:
    files = (
        duplicate_keys,
        lone_surrogates,
        big_integers,
        not_finite,
        nesting,
        byte_order_mark,
        bad_utf8,
        trailing_bytes,
        key_order_utf16,
        strings,
        grammar,
        number_texts,
        not_canonical,
        foreign_numbers,
        numbers,
    )
    return {f"jcs/{make.__name__}.json": make() for make in files}
