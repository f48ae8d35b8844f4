"""Cases for ULIDs, computed on the number of 128 bits that a ULID is."""

from __future__ import annotations

from typing import Any

Case = dict[str, Any]

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
TIME = 1469922850259  # 01ARZ3NDEK, the moment the ULID specification uses
ENTROPY = bytes.fromhex("0123456789abcdef0123")
FULL = 2**80 - 1


def ulid(time_ms: int, randomness: int) -> str:
    number = time_ms << 80 | randomness
    return "".join(ALPHABET[number >> 5 * place & 31] for place in range(25, -1, -1))


def parse() -> Case:
    good = ulid(TIME, int.from_bytes(ENTROPY, "big"))
    bad = {
        "lower_case": ("one spelling only", good.lower()),
        "25_characters": ("too short", good[:-1]),
        "27_characters": ("too long", good + "0"),
        "empty": ("nothing", ""),
        "letter_i": ("I is not in the alphabet", good[:-1] + "I"),
        "letter_l": ("L is not in the alphabet; an older check let it through", good[:-1] + "L"),
        "letter_o": ("O is not in the alphabet", good[:-1] + "O"),
        "letter_u": ("U is not in the alphabet", good[:-1] + "U"),
        "first_is_8": ("more than 128 bits; the specification's pattern lets it through", "8" + good[1:]),
        "first_is_z": ("more than 128 bits", "Z" * 26),
        "newline": ("a line is not a ULID", good + "\n"),
        "inner_newline": ("26 characters, one of them a newline", good[:-1] + "\n"),
        "space": ("no white space", " " + good[1:]),
        "hyphen": ("no hyphen", good[:10] + "-" + good[11:]),
        "other_digits": ("digits of another script", "٠" * 26),
        "nul": ("no control characters", good[:-1] + "\0"),
    }
    cases: list[Case] = [
        {"name": name, "input": text, "expect": {"time_ms": time_ms, "randomness": f"{randomness:020x}"}}
        for name, text, time_ms, randomness in (
            ("ordinary", good, TIME, int.from_bytes(ENTROPY, "big")),
            ("lowest", "0" * 26, 0, 0),
            ("highest", "7" + "Z" * 25, 2**48 - 1, FULL),
            ("shiplog_example", "01HF4Y9Q1SM8Q7K9DK2R4V5CXD", *parts("01HF4Y9Q1SM8Q7K9DK2R4V5CXD")),
        )
    ]
    cases += [
        {"name": name, "why": why, "input": text, "error": "InvalidUlid"} for name, (why, text) in bad.items()
    ]
    return {
        "name": "parse",
        "why": "26 characters of Crockford's alphabet in upper case, the first at most 7. Randomness in hex.",
        "cases": cases,
    }


def parts(text: str) -> tuple[int, int]:
    number = 0
    for char in text:
        number = number * 32 + ALPHABET.index(char)
    return number >> 80, number & FULL


def following() -> Case:
    chance = int.from_bytes(ENTROPY, "big")

    def case(
        name: str, why: str, last: tuple[int, int] | None, now_ms: int, expect: tuple[int, int] | str
    ) -> Case:
        given = {"last": ulid(*last) if last else None, "now_ms": now_ms, "entropy": ENTROPY.hex()}
        outcome = {"error": expect} if isinstance(expect, str) else {"expect": ulid(*expect)}
        return {"name": name, "why": why, "input": given, **outcome}

    return {
        "name": "next",
        "why": "Strictly increasing whatever the clock does (S0 §5): a later clock takes the entropy, any other keeps "
        "the last millisecond and adds one. A full randomness is OutOfOrder (TemporalOrder on the wire).",
        "cases": [
            case("first", "no ULID before", None, TIME, (TIME, chance)),
            case("later", "the clock moved on", (TIME, FULL), TIME + 1, (TIME + 1, chance)),
            case("much_later", "the highest millisecond", (TIME, 0), 2**48 - 1, (2**48 - 1, chance)),
            case("same_millisecond", "one higher, entropy unused", (TIME, 5), TIME, (TIME, 6)),
            case("clock_back_1", "keeps the last millisecond", (TIME, 5), TIME - 1, (TIME, 6)),
            case("clock_back_to_0", "keeps the last millisecond", (TIME, 5), 0, (TIME, 6)),
            case("clock_before_1970", "only a clock that is very wrong", (TIME, 5), -1, (TIME, 6)),
            case("carry_one_character", "Z turns to 0", (TIME, 31), TIME, (TIME, 32)),
            case("carry_many_characters", "…0ZZZ turns to …1000", (TIME, 2**79 - 1), TIME, (TIME, 2**79)),
            case("last_free", "the highest randomness", (TIME, FULL - 1), TIME, (TIME, FULL)),
            case("overflow", "nothing above it in this millisecond", (TIME, FULL), TIME, "OutOfOrder"),
            case("overflow_clock_back", "nor by going back", (TIME, FULL), TIME - 1, "OutOfOrder"),
            case("end_of_time", "the very last ULID", (2**48 - 1, FULL), 2**48 - 1, "OutOfOrder"),
            case("clock_too_far", "49 bits of time", (TIME, 0), 2**48, "InvalidUlid"),
            case("first_clock_too_far", "49 bits of time", None, 2**48, "InvalidUlid"),
            case("first_before_1970", "no ULID before 1970", None, -1, "InvalidUlid"),
        ],
    }


def generate() -> dict[str, object]:
    return {"ulid/next.json": following(), "ulid/parse.json": parse()}
