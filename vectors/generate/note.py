"""Cases for signed notes, their keys and signed heads.

What others published stands here as they published it. The rest is put together by hand, with libsodium and the
words of the C2SP specifications, not with the product.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from nacl.signing import SigningKey

DASH = "\u2014"
ROOT = "CsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I="
PETER = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
PETER_TEXT = (
    "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
)
PETER_LINE = (
    f"{DASH} PeterNeumann "
    "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)
ENOCH = "EnochRoot+af0cfe78+ATtqJ7zOtqQtYqOo0CpvDXNlMhV3HeJDpjrASKGLWdop"
ENOCH_LINE = (
    f"{DASH} EnochRoot "
    "rwz+eBzmZa0SO3NbfRGzPCpDckykFXSdeX+MNtCOXm2/5n2tiOHp+vAF1aGrQ5ovTG01oOTGwnWLox33WWd1RvMc+QQ=\n"
)
C2SP = "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k"
C2SP_NOTE = (
    "This is an example message.\n\n"
    f"{DASH} example.com/foo "
    "Uw2QOkn8srV1yJGh2VYRlL1Tnagv1YEq6TfXppzi2ONncAlTgK7Ztg1ERYNZXsYjOBH3mFXmRKuwHjG1Yu72IneyaQM=\n"
)
ARCHE = "arche2025h1.staging.ct.transparency.dev"
ARCHE_KEY = f"{ARCHE}+ba2f06c0+AU0vHmlGCS/PdN8b2OaGmKprLI8HKM+dJ472xgFYh15f"
REMORA = "remora.n621.de+da77ade7+BOvN63jn/bLvkieywe8R6UYAtVtNbZpXh34x7onlmtw2"
GARDEN = "transparency.dev/DEV:witness-little-garden+d8042a87+BCtusOxINQNUTN5Oj8HObRkh2yHf/MwYaGX4CPdiVEPM"
SMARTIT = "witness1.smartit.nu/witness1+a48c820f+BPSFWg9G6KPiO7QPryYO5Xq4oYJJ+kAvLKLSimDhoxMO"
ARCHE_NOTE = (
    f"{ARCHE}\n1432088532\nU7WM79jrzyhGZ5/GUBTpM7NzwdyfFx61t3RovgcC4Ro=\n\n"
    f"{DASH} {ARCHE} "
    "zTM8sQAAAZ5W0WdjBAMARjBEAiBjW5IQf9pvsYLfQFX6hoGREPMHbdQ3urbllzalApkptQIgIpwtEroeW2BXaHAI4kJXFbon5Ch9"
    "MNL5zRNZ55lvGt0=\n"
    f"{DASH} {ARCHE} ui8GwCF1+kWqZrxGdhj4aX3gcw7XUlXQQabg/27lefwhUkzbC3NygNI75MdhL1bfTW9g8Ei59RA23oHP7Ry1k3ZFWwQ=\n"
    f"{DASH} transparency.dev/DEV:witness-little-garden "
    "2AQqhwAAAABqEiEgzgFIqqhbUoDwjMWE6UP8nd8/KYTzwZ2rhIgcqoXHAwVkjZr4AscylP3v7sEodkRAErumC2q44vdgJY096st5BQ==\n"
    f"{DASH} witness1.smartit.nu/witness1 "
    "pIyCDwAAAABqEiEghIp82KWebrw7/oHQwlTAm3g2RKS4+eebl8eO0WH+/iEcxZ75W3u5hNI7TOQtmJbqmNWVuE0tgh0XwzdZsDsUAQ==\n"
    f"{DASH} remora.n621.de "
    "2net5wAAAABqEiEgPlfF3V06o0Y+fHM+J5J9s27wgxxcOVSpZ/2g/KSiXCg9DEZI+aVCIobWX9sXTynk5XeU/zZ0WBxtqB0DrAWfBw==\n"
    f"{DASH} witness.stagemole.eu "
    "Z/euoAAAAABqEiEgw0i+7g2ENfDAWHmtRzCfKTHSDwYDJA2NmKeGi9Y8FtEyOUvVr+AJmIY/2TUFucgKi7lI7cUiOvKFYe/TmN9DAg==\n"
)

Case = dict[str, Any]


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


class Party:
    """Somebody with a key: what C2SP says, spelt out."""

    def __init__(self, name: str, seed: int, kind: int = 1) -> None:
        self.name, self.kind = name, kind
        self.key = SigningKey(bytes([seed]) * 32)
        self.public = bytes([kind]) + bytes(self.key.verify_key)
        self.id = hashlib.sha256(name.encode() + b"\n" + self.public).digest()[:4]
        self.vkey = f"{name}+{self.id.hex()}+{b64(self.public)}"
        self.skey = f"PRIVATE+KEY+{name}+{self.id.hex()}+{b64(bytes([kind]) + bytes(self.key))}"

    def raw(self, text: str) -> bytes:
        return bytes(self.key.sign(text.encode()).signature)

    def line(self, text: str) -> str:
        return self.written(self.raw(text))

    def written(self, signature: bytes) -> str:
        return f"{DASH} {self.name} {b64(self.id + signature)}\n"

    def cosigned(self, text: str, time_s: int) -> str:
        return self.written(time_s.to_bytes(8, "big") + self.raw(f"cosignature/v1\ntime {time_s}\n{text}"))


LOG = Party("example.com/log", 1)
OTHER = Party("example.com/other", 2)
WITNESS = Party("witness.example/w1", 3, 4)
SAME_KEY_AS_LOG = Party("example.com/log", 1, 4)
HEAD = f"example.com/log\n20852163\n{ROOT}\n"
TEXT = "The rope is laid.\n"


def opened(
    text: str, verified: list[str], unverified: list[str], times: dict[str, int] | None = None
) -> Case:
    return {
        "expect": {"text": text, "verified": verified, "unverified": unverified, "times": times or {}},
    }


def case(name: str, note: str, keys: list[str], verdict: Case, why: str = "") -> Case:
    return {"name": name, **({"why": why} if why else {}), "input": {"note": note, "keys": keys}, **verdict}


def error(code: str) -> Case:
    return {"error": {"code": code}}


def published() -> Case:
    peter_note = f"{PETER_TEXT}\n{PETER_LINE}"
    seen = 1779573024  # the three witnesses answered within the same second
    return {
        "name": "published",
        "why": "Notes that others made: the C2SP example, the Go reference's, and a real head of a public log.",
        "cases": [
            case(
                "c2sp_example",
                C2SP_NOTE,
                [C2SP],
                opened("This is an example message.\n", ["example.com/foo"], []),
            ),
            case("go_example", peter_note, [PETER], opened(PETER_TEXT, ["PeterNeumann"], [])),
            case(
                "go_example_two_signers",
                peter_note + ENOCH_LINE,
                [PETER, ENOCH],
                opened(PETER_TEXT, ["PeterNeumann", "EnochRoot"], []),
            ),
            case(
                "go_example_second_signer_unknown",
                peter_note + ENOCH_LINE,
                [PETER],
                opened(PETER_TEXT, ["PeterNeumann"], ["EnochRoot"]),
            ),
            case(
                "public_log_with_witnesses",
                ARCHE_NOTE,
                [ARCHE_KEY, REMORA, GARDEN, SMARTIT],
                opened(
                    ARCHE_NOTE.partition("\n\n")[0] + "\n",
                    [ARCHE, GARDEN.partition("+")[0], SMARTIT.partition("+")[0], "remora.n621.de"],
                    [ARCHE, "witness.stagemole.eu"],
                    dict.fromkeys((each.partition("+")[0] for each in (GARDEN, SMARTIT, REMORA)), seen),
                ),
                "the first line is an ECDSA signature under the log's name: other key id, so unknown",
            ),
            case(
                "public_log_other_size",
                ARCHE_NOTE.replace("1432088532", "1432088533"),
                [ARCHE_KEY],
                error("SigInvalid"),
            ),
            case(
                "public_log_other_size_witness",
                ARCHE_NOTE.replace("1432088532", "1432088533"),
                [REMORA],
                error("SigInvalid"),
            ),
        ],
    }


def notes() -> Case:
    good = f"{TEXT}\n{LOG.line(TEXT)}"
    line = LOG.line(TEXT)
    bad_signature = LOG.written(bytes([LOG.raw(TEXT)[0] ^ 1]) + LOG.raw(TEXT)[1:])
    blank_lines = "one\n\n\ntwo\n\n"
    dashes = f"quoted:\n\n{DASH} example.com/log AAAA\n"
    refused = error("InvalidNote")
    unsigned = error("SigInvalid")
    keys = [LOG.vkey]
    cases = [
        case("one_signature", good, keys, opened(TEXT, [LOG.name], [])),
        case(
            "two_signatures",
            good + OTHER.line(TEXT),
            [OTHER.vkey, LOG.vkey],
            opened(TEXT, [LOG.name, OTHER.name], []),
        ),
        case(
            "unknown_signature_is_kept", good + OTHER.line(TEXT), keys, opened(TEXT, [LOG.name], [OTHER.name])
        ),
        case(
            "unknown_key_id_of_known_name",
            good + SAME_KEY_AS_LOG.written(b"anything"),
            keys,
            opened(TEXT, [LOG.name], [LOG.name]),
            "name and key id together are the key",
        ),
        case(
            "same_key_id_of_other_name",
            good + f"{DASH} example.com/lag {b64(LOG.id + bytes(64))}\n",
            keys,
            opened(TEXT, [LOG.name], ["example.com/lag"]),
        ),
        case("same_signature_twice_counts_once", good + line, keys, opened(TEXT, [LOG.name], [])),
        case(
            "empty_lines_in_text",
            f"{blank_lines}\n{LOG.line(blank_lines)}",
            keys,
            opened(blank_lines, [LOG.name], []),
        ),
        case(
            "text_that_looks_like_a_signature",
            f"{dashes}\n{LOG.line(dashes)}",
            keys,
            opened(dashes, [LOG.name], []),
            "the last empty line is the border",
        ),
        case("text_is_an_empty_line", f"\n\n{LOG.line(chr(10))}", keys, opened("\n", [LOG.name], [])),
        case(
            "line_separators_are_not_newlines",
            f"a\u2028b\u0085c\n\n{LOG.line(f'a{chr(0x2028)}b{chr(0x85)}c{chr(10)}')}",
            keys,
            opened("a\u2028b\u0085c\n", [LOG.name], []),
        ),
        case("no_known_key", good, [OTHER.vkey], unsigned, "nobody we know signed"),
        case("no_keys_at_all", good, [], unsigned),
        case("changed_text", good.replace("laid", "paid"), keys, unsigned),
        case("changed_signature", f"{TEXT}\n{bad_signature}", keys, unsigned),
        case(
            "bad_signature_of_one_known_key",
            good + OTHER.written(bytes(64)),
            [LOG.vkey, OTHER.vkey],
            unsigned,
            "one good signature does not excuse a bad one",
        ),
        case("bad_second_signature_of_same_key", good + LOG.written(bytes(64)), keys, unsigned),
        case("signature_cut_short", f"{TEXT}\n{LOG.written(LOG.raw(TEXT)[:-1])}", keys, unsigned),
        case(
            "signature_with_a_byte_too_many",
            f"{TEXT}\n{LOG.written(LOG.raw(TEXT) + bytes(1))}",
            keys,
            unsigned,
        ),
        case(
            "cosignature_under_plain_key",
            f"{HEAD}\n{LOG.cosigned(HEAD, 1)}",
            keys,
            unsigned,
            "72 bytes where the key makes 64",
        ),
        case("no_newline_at_the_end", good[:-1], keys, refused),
        case("no_signatures", TEXT, keys, refused),
        case("no_signature_after_the_border", TEXT + "\n", keys, refused),
        case("empty_line_after_the_signatures", good + "\n", keys, refused),
        case("no_empty_line", TEXT + line, keys, refused),
        case("nothing", "", keys, refused),
        case("only_newlines", "\n\n\n", keys, refused),
        case("no_text", "\n" + line, keys, refused),
        case("hyphen_for_dash", good.replace(DASH, "-"), keys, refused),
        case("no_space_after_dash", good.replace(f"{DASH} ", DASH), keys, refused),
        case("no_name", f"{TEXT}\n{DASH}  {b64(LOG.id + LOG.raw(TEXT))}\n", keys, refused),
        case("two_spaces", good.replace("log ", "log  "), keys, refused),
        case("plus_in_name", good + f"{DASH} a+b {b64(bytes(68))}\n", keys, refused),
        case("unicode_space_in_name", good + f"{DASH} a\u2003b {b64(bytes(68))}\n", keys, refused),
        case("no_signature_on_the_line", good + f"{DASH} a\n", keys, refused),
        case("signature_is_only_a_key_id", good + f"{DASH} a {b64(bytes(4))}\n", keys, refused),
        case("trailing_space", good[:-1] + " \n", keys, refused),
        case("base64_without_padding", good.replace("=\n", "\n"), keys, refused),
        case(
            "base64_with_stray_bits",
            good + f"{DASH} a AAAAAAB=\n",
            keys,
            refused,
            "one signature, one spelling",
        ),
        case("base64_of_the_url_alphabet", good + f"{DASH} a ____AAAA\n", keys, refused),
        case("carriage_return", good.replace("\n", "\r\n"), keys, refused),
        case("control_character_in_text", good.replace(" ", "\t"), keys, refused),
        case("nul_in_text", good.replace("rope", "ro\0e"), keys, refused),
        case(
            "second_note_after_the_first",
            good + "\n" + good,
            keys,
            unsigned,
            "the text then holds the first note",
        ),
        case(
            "sixteen_unknown_signatures",
            good + OTHER.line(TEXT) * 16,
            keys,
            opened(TEXT, [LOG.name], [OTHER.name] * 16),
        ),
        case("a_hundred_and_one_signatures", good + OTHER.line(TEXT) * 100, keys, error("TooLarge")),
        case("endless_signature_line", good + f"{DASH} a {'A' * 20_000}\n", keys, error("TooLarge")),
    ]
    bytes_cases: list[Case] = [
        {
            "name": "not_utf_8",
            "input": {"note_hex": good.encode().replace(b"rope", b"ro\xffe").hex(), "keys": keys},
            **refused,
        },
        {
            "name": "half_a_dash",
            "input": {"note_hex": good.encode().replace(b"\xe2\x80\x94", b"\xe2\x80").hex(), "keys": keys},
            **refused,
        },
    ]
    return {
        "name": "notes",
        "why": "Text, an empty line, signature lines. `verified` names known keys in order, each once.",
        "cases": cases + bytes_cases,
    }


def cosignatures() -> Case:
    signed = f"{HEAD}\n{LOG.line(HEAD)}"
    both = [LOG.vkey, WITNESS.vkey]
    limit = 2**63 - 1
    other_time = (5).to_bytes(8, "big") + WITNESS.raw(f"cosignature/v1\ntime 6\n{HEAD}")
    leading_zero = (5).to_bytes(8, "big") + WITNESS.raw(f"cosignature/v1\ntime 05\n{HEAD}")
    extended = f"{HEAD}extension\n"
    refused = error("SigInvalid")
    return {
        "name": "cosignatures",
        "why": "A witness signs `cosignature/v1`, the time and the text; the time travels in front of the signature.",
        "cases": [
            case(
                "log_and_witness",
                signed + WITNESS.cosigned(HEAD, 1679315147),
                both,
                opened(HEAD, [LOG.name, WITNESS.name], [], {WITNESS.name: 1679315147}),
            ),
            case(
                "time_zero",
                signed + WITNESS.cosigned(HEAD, 0),
                both,
                opened(HEAD, [LOG.name, WITNESS.name], [], {WITNESS.name: 0}),
            ),
            case(
                "largest_time",
                signed + WITNESS.cosigned(HEAD, limit),
                both,
                opened(HEAD, [LOG.name, WITNESS.name], [], {WITNESS.name: limit}),
            ),
            case("time_beyond_63_bits", signed + WITNESS.cosigned(HEAD, limit + 1), both, refused),
            case(
                "first_of_two_times_is_kept",
                signed + WITNESS.cosigned(HEAD, 7) + WITNESS.cosigned(HEAD, 9),
                both,
                opened(HEAD, [LOG.name, WITNESS.name], [], {WITNESS.name: 7}),
                "a witness may sign again; it still counts once",
            ),
            case(
                "log_key_as_witness_has_another_id",
                signed + SAME_KEY_AS_LOG.cosigned(HEAD, 7),
                [LOG.vkey],
                opened(HEAD, [LOG.name], [LOG.name]),
                "the key id covers the type",
            ),
            case("other_time_than_signed", signed + WITNESS.written(other_time), both, refused),
            case("time_with_leading_zero_signed", signed + WITNESS.written(leading_zero), both, refused),
            case("signature_without_time", signed + WITNESS.line(HEAD), both, refused),
            case("only_four_bytes", signed + WITNESS.written(bytes(4)), both, refused),
            case(
                "extension_not_covered",
                f"{extended}\n{LOG.line(extended)}{WITNESS.cosigned(HEAD, 7)}",
                both,
                refused,
                "a cosignature covers every line of the text",
            ),
        ],
    }


def keys() -> Case:
    name, key_id, encoded = LOG.vkey.split("+", 2)
    refused = error("InvalidKey")

    def key(case_name: str, text: str, verdict: Case, why: str = "") -> Case:
        return {"name": case_name, **({"why": why} if why else {}), "input": {"key": text}, **verdict}

    def reads(text: str) -> Case:
        name, key_id, encoded = text.split("+", 2)
        raw = base64.b64decode(encoded)
        return {"expect": {"name": name, "key_id": key_id, "type": raw[0], "public_key": raw[1:].hex()}}

    def renamed(new: str) -> str:
        key_id = hashlib.sha256(new.encode() + b"\n" + LOG.public).digest()[:4].hex()
        return f"{new}+{key_id}+{encoded}"

    def retyped(raw: bytes) -> str:
        return f"{name}+{hashlib.sha256(name.encode() + bytes([10]) + raw).digest()[:4].hex()}+{b64(raw)}"

    plus = "TEST+7997405c+AQcC+FTVKf0jlTdHDY3rbevmnKxxPjigCXlVtGe6RIr6"
    return {
        "name": "keys",
        "why": "A key in one line: name, key id in hex, base64 of the type byte and the key.",
        "cases": [
            *(
                key(each.partition("+")[0], each, reads(each))
                for each in (PETER, ENOCH, C2SP, REMORA, GARDEN, SMARTIT)
            ),
            key("plus_in_base64", plus, reads(plus)),
            key("made_here", LOG.vkey, reads(LOG.vkey)),
            key("witness", WITNESS.vkey, reads(WITNESS.vkey)),
            key("unicode_name", renamed("bücher.example/log"), reads(renamed("bücher.example/log"))),
            key("wrong_key_id", f"{name}+00000000+{encoded}", refused),
            key(
                "key_id_in_upper_case", f"{name}+{key_id.upper()}+{encoded}", refused, "one key, one spelling"
            ),
            key("short_key_id", f"{name}+{key_id[:-1]}+{encoded}", refused),
            key("no_name", renamed(""), refused),
            key("space_in_name", renamed("a b"), refused),
            key("no_break_space_in_name", renamed("a\u00a0b"), refused),
            key("newline_in_name", renamed("a\nb"), refused),
            key("control_character_in_name", renamed("a\x01b"), refused),
            key("two_parts", f"{name}+{key_id}", refused),
            key("one_part", name, refused),
            key("nothing", "", refused),
            key("not_base64", f"{name}+{key_id}+?{encoded[1:]}", refused),
            key("unknown_type", retyped(bytes([0x65]) + LOG.public[1:]), refused),
            key("ecdsa_type", retyped(bytes([2]) + LOG.public[1:]), refused),
            key("short_key", retyped(LOG.public[:-1]), refused),
            key("long_key", retyped(LOG.public + b"\0"), refused),
            key(
                "small_order_key",
                retyped(bytes([1]) + bytes(32)),
                refused,
                "anybody can sign under such a key",
            ),
            key("secret_key", LOG.skey, refused, "a secret is not a public key"),
        ],
    }


def heads() -> Case:
    root_hex = base64.b64decode(ROOT).hex()
    refused = error("InvalidNote")

    def head(name: str, text: str, verdict: Case, why: str = "") -> Case:
        return {"name": name, **({"why": why} if why else {}), "input": {"text": text}, **verdict}

    def reads(origin: str, size: int, extensions: list[str], root: str = root_hex) -> Case:
        return {"expect": {"origin": origin, "size": size, "root": root, "extensions": extensions}}

    empty = hashlib.sha256(b"").digest()
    return {
        "name": "heads",
        "why": "The text of a signed head: origin, size, root, and extension lines that are discouraged but covered.",
        "cases": [
            head(
                "c2sp_example",
                f"example.com/behind-the-sofa\n20852163\n{ROOT}\n",
                reads("example.com/behind-the-sofa", 20852163, []),
            ),
            head("empty_log", f"o\n0\n{b64(empty)}\n", reads("o", 0, [], empty.hex())),
            head("largest_size", f"o\n{2**63 - 1}\n{ROOT}\n", reads("o", 2**63 - 1, [])),
            head("extensions", f"o\n7\n{ROOT}\nfirst\n second \n", reads("o", 7, ["first", " second "])),
            head(
                "origin_with_spaces",
                f"any line + more\n7\n{ROOT}\n",
                reads("any line + more", 7, []),
                "advised against",
            ),
            head("leading_zero", f"o\n07\n{ROOT}\n", refused),
            head("zero_twice", f"o\n00\n{ROOT}\n", refused),
            head("plus_sign", f"o\n+7\n{ROOT}\n", refused),
            head("minus_zero", f"o\n-0\n{ROOT}\n", refused),
            head("space_around_size", f"o\n 7\n{ROOT}\n", refused),
            head("underscore_in_size", f"o\n1_000\n{ROOT}\n", refused, "some languages read it as a number"),
            head(
                "other_digits",
                f"o\n\u0667\n{ROOT}\n",
                refused,
                "ARABIC-INDIC SEVEN is a digit to some languages",
            ),
            head("hex_size", f"o\n0x7\n{ROOT}\n", refused),
            head("empty_size", f"o\n\n{ROOT}\n", refused),
            head("size_beyond_63_bits", f"o\n{2**63}\n{ROOT}\n", refused),
            head(
                "endless_size",
                f"o\n{'9' * 5000}\n{ROOT}\n",
                refused,
                "a number with work for whoever converts it",
            ),
            head("empty_origin", f"\n7\n{ROOT}\n", refused),
            head("no_root", "o\n7\n", refused),
            head("only_origin", "o\n", refused),
            head("nothing", "", refused),
            head("no_newline_at_the_end", f"o\n7\n{ROOT}", refused),
            head("empty_extension", f"o\n7\n{ROOT}\n\n", refused),
            head("empty_line_before_extension", f"o\n7\n{ROOT}\n\nmore\n", refused),
            head("root_of_31_bytes", f"o\n7\n{b64(bytes(31))}\n", refused),
            head("root_of_33_bytes", f"o\n7\n{b64(bytes(33))}\n", refused),
            head("root_without_padding", f"o\n7\n{ROOT[:-1]}\n", refused),
            head("root_with_stray_bits", f"o\n7\n{ROOT[:-2]}J=\n", refused),
            head("root_with_space", f"o\n7\n{ROOT} \n", refused),
            head("root_in_hex", f"o\n7\n{root_hex}\n", refused),
            head("carriage_returns", f"o\r\n7\r\n{ROOT}\r\n", refused),
            head("control_character_in_origin", f"o\x01\n7\n{ROOT}\n", refused),
        ],
    }


def signing() -> Case:
    signed = f"{HEAD}\n{LOG.line(HEAD)}"
    peter = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz"
    mallory = "cosignature/v1\ntime 7\n" + HEAD

    def sign(name: str, text: str, signers: list[str], verdict: Case, why: str = "") -> Case:
        given = {"text": text, "secret_keys": signers}
        return {"name": name, **({"why": why} if why else {}), "input": given, **verdict}

    refused = error("InvalidNote")
    return {
        "name": "signing",
        "why": "Ed25519 signatures are deterministic: the same key and text give the same note everywhere.",
        "cases": [
            sign("go_example", PETER_TEXT, [peter], {"expect": {"note": f"{PETER_TEXT}\n{PETER_LINE}"}}),
            sign("head", HEAD, [LOG.skey], {"expect": {"note": signed}}),
            sign(
                "two_signers",
                TEXT,
                [LOG.skey, OTHER.skey],
                {"expect": {"note": f"{TEXT}\n{LOG.line(TEXT)}{OTHER.line(TEXT)}"}},
            ),
            sign("no_signers", TEXT, [], refused),
            sign("text_does_not_end", TEXT[:-1], [LOG.skey], refused),
            sign("empty_text", "", [LOG.skey], refused),
            sign("control_character", "a\tb\n", [LOG.skey], refused),
            sign(
                "text_of_a_cosignature",
                mallory,
                [LOG.skey],
                refused,
                "would pass for a cosignature",
            ),
            sign(
                "witness_signs_plainly",
                HEAD,
                [WITNESS.skey],
                error("InvalidKey"),
                "a cosignature carries a time",
            ),
            sign("wrong_key_id", TEXT, [LOG.skey.replace(LOG.id.hex(), "00000000")], error("InvalidKey")),
            sign("public_key", TEXT, [LOG.vkey], error("InvalidKey")),
            sign("short_secret", TEXT, [LOG.skey[:-4]], error("InvalidKey")),
        ],
    }


def generate() -> dict[str, object]:
    return {
        "note/published.json": published(),
        "note/notes.json": notes(),
        "note/cosignatures.json": cosignatures(),
        "note/keys.json": keys(),
        "note/heads.json": heads(),
        "note/signing.json": signing(),
    }
