"""Cases for a witness (C2SP tlog-witness): requests in order, and the answer to each.

Trees, proofs and signatures are made here from RFC 6962 and the C2SP texts, with libsodium, not with the product.
"""

from __future__ import annotations

import hashlib
from typing import Any

from vectors.generate.note import DASH, LOG, OTHER, SAME_KEY_AS_LOG, WITNESS, Party, b64

TIME_S = 1_700_000_000
LEAVES = [f"entry {number}".encode() for number in range(12)]
FORKED = [*LEAVES[:3], *(leaf + b" otherwise" for leaf in LEAVES[3:])]


def tree_hash(leaves: list[bytes]) -> bytes:
    """MTH of RFC 6962 §2.1."""
    if not leaves:
        return hashlib.sha256().digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\0" + leaves[0]).digest()
    k = split(len(leaves))
    return hashlib.sha256(b"\1" + tree_hash(leaves[:k]) + tree_hash(leaves[k:])).digest()


def split(n: int) -> int:
    k = 1
    while 2 * k < n:
        k *= 2
    return k


def consistency(old: int, leaves: list[bytes], whole: bool = True) -> list[bytes]:
    """SUBPROOF of RFC 6962 §2.1.2."""
    if old == len(leaves):
        return [] if whole else [tree_hash(leaves)]
    k = split(len(leaves))
    if old <= k:
        return [*consistency(old, leaves[:k], whole), tree_hash(leaves[k:])]
    return [*consistency(old - k, leaves[k:], False), tree_hash(leaves[:k])]


def text(size: int, leaves: list[bytes] = LEAVES, origin: str = LOG.name) -> str:
    return f"{origin}\n{size}\n{b64(tree_hash(leaves[:size]))}\n"


def checkpoint(size: int, leaves: list[bytes] = LEAVES) -> str:
    head = text(size, leaves)
    return f"{head}\n{LOG.line(head)}"


def request(old: int, note: str, path: list[bytes] | None = None) -> str:
    return "\n".join([f"old {old}", *map(b64, path or []), "", note])


def extend(old: int, size: int, leaves: list[bytes] = LEAVES) -> str:
    path = consistency(old, leaves[:size]) if 0 < old < size else []
    return request(old, checkpoint(size, leaves), path)


def cosigned(size: int) -> dict[str, Any]:
    return {"status": 200, "body": WITNESS.cosigned(text(size), TIME_S)}


def conflict(size: int) -> dict[str, Any]:
    return {"status": 409, "content_type": "text/x.tlog.size", "body": f"{size}\n"}


def steps() -> list[dict[str, Any]]:
    unknown = text(3, origin=OTHER.name)
    forged = text(3) + "\n" + LOG.line(text(4))
    stranger = text(3) + "\n" + OTHER.line(text(3))
    wrong_root = f"{LOG.name}\n0\n{b64(bytes(32))}\n"
    path = consistency(5, LEAVES[:7])
    listed: list[tuple[str, str, dict[str, Any]]] = [
        ("log_not_watched", request(0, f"{unknown}\n{OTHER.line(unknown)}"), {"status": 404}),
        ("signed_by_another_key", request(0, stranger), {"status": 403}),
        ("signature_of_another_text", request(0, forged), {"status": 403}),
        (
            "empty_tree_with_another_root",
            request(0, f"{wrong_root}\n{LOG.line(wrong_root)}"),
            {"status": 422},
        ),
        ("proof_where_old_is_zero", request(0, checkpoint(3), [bytes(32)]), {"status": 422}),
        ("old_before_anything_was_seen", extend(2, 3), conflict(0)),
        ("first_head", extend(0, 5), cosigned(5)),
        ("same_head_again", extend(5, 5), cosigned(5)),
        ("same_head_with_old_zero", extend(0, 5), conflict(5)),
        ("old_size_is_stale", extend(0, 7), conflict(5)),
        ("old_larger_than_the_head", request(7, checkpoint(5)), {"status": 400}),
        ("old_with_a_leading_zero", extend(5, 7).replace("old 5", "old 05", 1), {"status": 400}),
        ("no_old_line", checkpoint(7), {"status": 400}),
        ("same_size_another_root", extend(5, 5, FORKED), {"status": 422}),
        ("extends_another_history", extend(5, 7, FORKED), {"status": 422}),
        ("proof_cut_short", request(5, checkpoint(7), path[:-1]), {"status": 422}),
        ("proof_with_a_spare_hash", request(5, checkpoint(7), [*path, bytes(32)]), {"status": 422}),
        ("sixty_four_hashes", request(5, checkpoint(7), [bytes(32)] * 64), {"status": 400}),
        ("unknown_lines_are_ignored", extend(5, 7) + f"{DASH} x.example AAAAAAAA\n", cosigned(7)),
        ("head_that_grows", extend(7, 12), cosigned(12)),
        ("smaller_head", extend(5, 7), conflict(12)),
    ]
    return [{"name": name, "input": {"body": body}, "expect": answer} for name, body, answer in listed]


def counted() -> list[dict[str, Any]]:
    """Heads with cosignatures, the witnesses that a verifier names, and how many of them count."""
    second, third = Party("witness.example/w2", 5, 4), Party("witness.example/w3", 6, 4)
    renewed, renamed = Party(WITNESS.name, 7, 4), Party("witness.example/alias", 3, 4)
    head = text(5)

    def case(
        name: str, why: str, lines: list[str], named: list[Party], count: int | None, log: Party = LOG
    ) -> dict[str, Any]:
        given = {"note": f"{head}\n{log.line(head)}{''.join(lines)}", "log": LOG.vkey}
        given_all = {**given, "witnesses": [each.vkey for each in named]}
        outcome = {"error": "SigInvalid"} if count is None else {"expect": count}
        return {"name": name, "why": why, "input": given_all, **outcome}

    one, two, three = (each.cosigned(head, TIME_S) for each in (WITNESS, second, third))
    return [
        case("none", "the log alone", [], [WITNESS, second], 0),
        case("two_of_three", "two have signed", [one, three], [WITNESS, second, third], 2),
        case("not_named", "another witness counts for nothing", [one, two], [WITNESS], 1),
        case("listed_twice", "one witness, named twice", [one], [WITNESS, WITNESS], 1),
        case(
            "signed_twice", "one witness, two lines", [one, WITNESS.cosigned(head, TIME_S + 1)], [WITNESS], 1
        ),
        case(
            "two_keys_of_a_name",
            "one witness with two keys",
            [one, renewed.cosigned(head, TIME_S)],
            [WITNESS, renewed],
            1,
        ),
        case(
            "one_key_of_two_names",
            "one key with two names",
            [one, renamed.cosigned(head, TIME_S)],
            [WITNESS, renamed],
            1,
        ),
        case(
            "the_log_itself",
            "is no witness",
            [SAME_KEY_AS_LOG.cosigned(head, TIME_S)],
            [SAME_KEY_AS_LOG, WITNESS],
            0,
        ),
        case("other_head", "a line about another size", [WITNESS.cosigned(text(6), TIME_S)], [WITNESS], None),
        case(
            "other_key",
            "a line made with another key",
            [WITNESS.written(TIME_S.to_bytes(8, "big") + second.raw(head))],
            [WITNESS],
            None,
        ),
        case("log_did_not_sign", "nothing counts then", [one], [WITNESS], None, OTHER),
    ]


def generate() -> dict[str, object]:
    return {
        "witness/counted.json": {
            "name": "counted",
            "why": "How many of the named witnesses count towards a threshold, for a head that the log has signed: no "
            "name twice, no key twice, never the key of the log. A line of a named witness that does not hold is an "
            "error, as is a head that the log has not signed.",
            "cases": counted(),
        },
        "witness/add_checkpoint.json": {
            "name": "add_checkpoint",
            "why": "One witness that watches one log answers these bodies of POST /add-checkpoint, in this order. Its "
            "clock does not move. Bodies of 400, 403, 404 and 422 are free.",
            "witness": WITNESS.vkey,
            "witness_secret": WITNESS.skey,
            "log": LOG.vkey,
            "time_s": TIME_S,
            "cases": steps(),
        },
    }
