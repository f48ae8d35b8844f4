"""Pointers: sealed bytes open for whoever holds everything that was bound, and for nobody else."""

from __future__ import annotations

import json
import stat
from base64 import b64decode
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ropewalk.errors as errors
from ropewalk.errors import (
    Conflict,
    Damaged,
    Denied,
    DigestMismatch,
    Invalid,
    NotFound,
    RopewalkError,
    Unverified,
)
from ropewalk.gitlog.privacy.blob_store import PrivateRecord, PrivateStore
from ropewalk.gitlog.privacy.pointer import (
    context_of,
    is_pointer,
    nonce_of,
    open_pointer,
    parse_pointer,
    read_pointer,
    seal_pointer,
    size_shown,
)
from ropewalk.kernel.digest import content_id
from ropewalk.kernel.seal import SealingKey

VECTORS = Path(__file__).resolve().parents[3] / "vectors" / "gitlog"
KEY = SealingKey(bytes(range(32)))
PLACE = {"location": "gatos://private/local", "capability": "gatos-key://v1/xchacha20-poly1305/vault"}

NAMES = st.text(
    st.characters(min_codepoint=32, exclude_characters="\x7f", exclude_categories=["Cs"]),
    min_size=1,
    max_size=20,
)


def cases(name):
    found = json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))["cases"]
    return [pytest.param(case, id=case["name"]) for case in found]


@pytest.mark.parametrize("case", cases("pointer_seal"))
def test_sealing_is_what_the_vectors_say(case):
    given_, expect = case["input"], case["expect"]
    made = seal_pointer(
        SealingKey(bytes.fromhex(given_["key"])),
        bytes.fromhex(given_["plaintext"]),
        actor=given_["actor"],
        policy=given_["policy"],
        location=given_["location"],
        capability=given_["capability"],
        low_entropy=given_["low_entropy"],
    )
    assert (made.digest, made.blob.hex(), made.pointer.document) == (
        expect["digest"],
        expect["blob"],
        expect["pointer"],
    )
    assert made.blob[:24].hex() == expect["nonce"] and made.pointer.content_id == expect["content_id"]
    assert context_of(made.digest, given_["actor"], given_["policy"]).hex() == expect["aad"]


@pytest.mark.parametrize("case", cases("pointer_open"))
def test_opening_is_what_the_vectors_say(case):
    given_ = case["input"]

    def opened():
        return open_pointer(
            SealingKey(bytes.fromhex(given_["key"])),
            read_pointer(given_["pointer"]),
            bytes.fromhex(given_["blob"]),
            actor=given_["actor"],
            policy=given_["policy"],
        )

    if "expect" in case:
        assert opened().hex() == case["expect"]
    else:
        with pytest.raises(getattr(errors, case["error"])):
            opened()


@pytest.mark.parametrize("case", cases("pointer_form"))
def test_both_generations_are_read_and_nothing_else(case):
    if "expect" in case:
        assert read_pointer(case["input"]).generation == case["expect"] and is_pointer(case["input"])
    else:
        with pytest.raises(getattr(errors, case["error"])):
            read_pointer(case["input"])
        assert not is_pointer(case["input"])


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=300), NAMES, NAMES, st.booleans())
def test_what_was_sealed_opens(plaintext, actor, policy, low_entropy):
    made = seal_pointer(KEY, plaintext, actor=actor, policy=policy, low_entropy=low_entropy, **PLACE)
    again = parse_pointer(json.dumps(made.pointer.document).encode())
    assert open_pointer(KEY, again, made.blob, actor=actor, policy=policy, digest=made.digest) == plaintext
    assert ("digest" in again.document) is not low_entropy
    assert made == seal_pointer(KEY, plaintext, actor=actor, policy=policy, low_entropy=low_entropy, **PLACE)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=100), NAMES, NAMES, st.data())
def test_anything_changed_does_not_open(plaintext, actor, policy, data):
    made = seal_pointer(KEY, plaintext, actor=actor, policy=policy, low_entropy=True, **PLACE)
    blob, names = bytearray(made.blob), [made.digest, actor, policy]
    what = data.draw(st.sampled_from(["blob", "digest", "actor", "policy"]))
    if what == "blob":
        at = data.draw(st.integers(0, len(blob) - 1))
        blob[at] ^= 1 << data.draw(st.integers(0, 7))
        document = {**made.pointer.document, "ciphertext_digest": content_id(bytes(blob))}
        pointer = read_pointer(document)
    else:
        pointer = made.pointer
        place = ["digest", "actor", "policy"].index(what)
        names[place] = data.draw(
            (st.binary(max_size=9).map(content_id) if place == 0 else NAMES).filter(
                lambda x: x != names[place]
            )
        )
    with pytest.raises(Unverified):
        open_pointer(KEY, pointer, bytes(blob), digest=names[0], actor=names[1], policy=names[2])


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.binary(max_size=8), NAMES, NAMES), min_size=2, max_size=12, unique=True))
def test_no_nonce_serves_twice(rows):
    nonces = {nonce_of(KEY, content_id(raw), actor, policy) for raw, actor, policy in rows}
    assert len(nonces) == len(rows)


@given(NAMES, NAMES, NAMES, NAMES)
def test_parts_never_run_together(a, b, c, d):
    digest = content_id(b"")
    assert (context_of(digest, a, b) == context_of(digest, c, d)) == ((a, b) == (c, d))


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 257, "a\x7f"])
def test_names_that_cannot_be_bound_are_refused(name):
    with pytest.raises(Invalid):
        context_of("d", name, "v1")
    with pytest.raises(Invalid):
        context_of("d", "a", name)


@pytest.mark.parametrize(
    "uri",
    [
        "https://user:hunter2@vault.example/1",
        "https://vault.example/1?token=abc",
        "https://vault.example/1?x=1&X-Amz-Signature=00",
        "https://vault.example/1?sig=abc",
        "https://vault.example/ghp_" + "Zk3q" * 9,
    ],
)
def test_a_pointer_never_holds_a_token(uri):
    for place in ({**PLACE, "location": uri}, {**PLACE, "capability": uri}):
        with pytest.raises(Denied) as refused:
            seal_pointer(KEY, b"x", actor="a", policy="1", **place)
        assert "hunter2" not in str(refused.value.to_problem())


def test_sizes_tell_little():
    assert {size_shown(size) for size in range(1, 1025)} == {1024}
    assert size_shown(65_537) == 131_072


# --- the private store ---


@pytest.fixture
def store(tmp_path):
    return PrivateStore(tmp_path / "private")


def kept(store, plaintext=b"secret", low_entropy=False):
    made = seal_pointer(KEY, plaintext, actor="user:ada", policy="v1", low_entropy=low_entropy, **PLACE)
    name = made.pointer.ciphertext_digest
    assert name is not None
    store.put(made.blob, PrivateRecord(name, made.digest, "user:ada", "v1", "vault", "2026-01-01T00:00:00Z"))
    return made, name


def test_blobs_and_records_are_for_the_owner_only(store):
    kept(store)
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in store.folder.iterdir()} == {0o600}


def test_a_folder_left_open_is_closed(store):
    store.folder.mkdir(mode=0o755)
    kept(store)
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


def test_a_record_is_found_by_either_digest(store):
    made, name = kept(store)
    assert store.find(name) == store.find(None, made.digest)
    assert store.blob(name) == made.blob


def test_sealing_twice_changes_nothing(store):
    kept(store)
    before = {path.name: path.stat().st_mtime_ns for path in store.folder.iterdir()}
    kept(store)
    assert {path.name: path.stat().st_mtime_ns for path in store.folder.iterdir()} == before


def test_erasing_takes_the_bytes_and_the_digest_and_leaves_a_tombstone(store):
    made, name = kept(store)
    stone = store.erase(name, at="2026-02-02T00:00:00Z", reason="asked", by="Ada")
    left = b"".join(path.read_bytes() for path in store.folder.iterdir())
    assert made.blob not in left and made.digest.encode() not in left and list(store.records()) == []
    with pytest.raises(NotFound, match=r"erased at 2026-02-02.*asked"):
        store.find(name)
    assert store.erase(name, at="later", reason="again", by="Ben") == stone


def test_what_was_erased_is_not_brought_back_unasked(store):
    _, name = kept(store)
    store.erase(name, at="2026-02-02T00:00:00Z", reason="", by="Ada")
    with pytest.raises(Conflict):
        kept(store)


def test_an_erasure_that_was_cut_off_is_finished(store):
    made, name = kept(store)
    store.erase(name, at="2026-02-02T00:00:00Z", reason="", by="Ada")
    (store.folder / f"{name[7:]}.sealed").write_bytes(made.blob)  # as if the process had died before this
    with pytest.raises(NotFound):
        store.find(name)
    store.erase(name, at="later", reason="", by="Ada")
    assert not list(store.folder.glob("*.sealed"))


def test_damage_is_named(store):
    _, name = kept(store)
    (store.folder / f"{name[7:]}.sealed").write_bytes(b"other")
    with pytest.raises(DigestMismatch):
        store.blob(name)
    (store.folder / f"{name[7:]}.json").write_bytes(b"{")
    with pytest.raises(Damaged):
        store.find(name)


def test_nothing_sealed_is_not_found(store):
    with pytest.raises(NotFound):
        store.find("blake3:" + "0" * 64)
    with pytest.raises(NotFound):
        store.erase("blake3:" + "0" * 64, at="", reason="", by="")
    with pytest.raises(RopewalkError):
        store.find("blake3:../../x")


# --- the commands ---


@pytest.fixture
def person(tmp_path, monkeypatch):
    """Somebody with a repository and a key, at the command line."""
    from click.testing import CliRunner

    from ropewalk.cli.common.command import Session, fail
    from ropewalk.cli.main import root

    monkeypatch.setenv("ROPEWALK_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("ROPEWALK_REPO", str(tmp_path / "r.git"))

    def run(*arguments, ok=True):
        done = CliRunner().invoke(root, [*arguments], obj=Session(json="--json" in arguments))
        if isinstance(done.exception, RopewalkError):
            assert not ok, done.exception.detail
            return done.exception
        assert done.exit_code == 0, (done.output, done.exception)
        return done

    assert fail is not None
    run("init", str(tmp_path / "r.git"))
    run("key", "new", "vault", "--alg", "xchacha20poly1305")
    return run


def seal_at(person, tmp_path, raw=b'{"card":"4111 1111"}', *more):
    (tmp_path / "private.json").write_bytes(raw)
    done = person(
        *("pointer", "seal", "--file", str(tmp_path / "private.json"), "--actor", "user:ada"),
        *("--policy", "v1", "--key", "vault", "--json", *more),
    )
    (tmp_path / "pointer.json").write_text(done.stdout)
    return json.loads(done.stdout)


def test_seal_prints_a_pointer_and_open_the_bytes(person, tmp_path):
    pointer = seal_at(person, tmp_path)
    assert read_pointer(pointer).generation == "shiplog" and pointer["location"].startswith(
        "gatos-node://ed25519:"
    )
    assert person("pointer", "open", str(tmp_path / "pointer.json")).stdout_bytes == b'{"card":"4111 1111"}'
    answer = json.loads(person("pointer", "open", str(tmp_path / "pointer.json"), "--json").stdout)
    assert b64decode(answer["plaintext_base64"]) == b'{"card":"4111 1111"}'
    assert (answer["actor"], answer["policy"]) == ("user:ada", "v1")


def test_a_low_entropy_pointer_leaves_the_digest_out_and_still_opens(person, tmp_path):
    pointer = seal_at(person, tmp_path, b"yes", "--low-entropy")
    assert "digest" not in pointer and pointer["extensions"] == {"class": "low-entropy"}
    assert person("pointer", "open", str(tmp_path / "pointer.json")).stdout_bytes == b"yes"


def test_a_key_or_a_store_that_is_away_is_capability_unavailable(person, tmp_path):
    seal_at(person, tmp_path)
    opening = ("pointer", "open", str(tmp_path / "pointer.json"))
    private = tmp_path / "r.git/ropewalk/private"
    (record,) = private.glob("*.json")
    record.rename(record.with_suffix(".aside"))
    record.mkdir()  # what should be read cannot be, as on a disk that went away
    away = person(*opening, ok=False)
    assert (away.code, away.status, away.exit_code) == ("CapabilityUnavailable", 503, 7)
    record.rmdir()
    record.with_suffix(".aside").rename(record)
    (key,) = (tmp_path / "config/keys").glob("vault*")
    key.unlink()
    away = person(*opening, ok=False)
    assert (away.code, away.exit_code) == ("CapabilityUnavailable", 7)
    assert "ropewalk key new" not in away.advice_now  # another key of that name opens nothing


def test_open_refuses_other_names_with_5(person, tmp_path):
    seal_at(person, tmp_path)
    for change in (["--actor", "user:ben"], ["--policy", "v2"]):
        assert person("pointer", "open", str(tmp_path / "pointer.json"), *change, ok=False).exit_code == 5


def test_a_signing_key_does_not_seal(person, tmp_path):
    person("key", "new", "ada")
    (tmp_path / "x").write_bytes(b"x")
    seal = ("pointer", "seal", "--file", str(tmp_path / "x"), "--actor", "a", "--policy", "1", "--key")
    assert person(*seal, "ada", ok=False).exit_code == 8
    assert person(*seal, "nobody", ok=False).exit_code == 3


def test_sealed_bytes_open_elsewhere_with_everything_named(person, tmp_path):
    pointer = seal_at(person, tmp_path)
    blob = tmp_path / "r.git" / "ropewalk" / "private" / f"{pointer['ciphertext_digest'][7:]}.sealed"
    moved = tmp_path / "moved.sealed"
    blob.rename(moved)
    where = str(tmp_path / "pointer.json")
    assert person("pointer", "open", where, ok=False).exit_code == 3
    named = ("--blob", str(moved), "--actor", "user:ada", "--policy", "v1", "--key", "vault")
    assert person("pointer", "open", where, *named).stdout_bytes == b'{"card":"4111 1111"}'
    assert person("pointer", "open", where, "--blob", str(moved), ok=False).exit_code == 2


def test_erase_records_a_tombstone_and_the_pointer_stays(person, tmp_path):
    pointer = seal_at(person, tmp_path)
    where = str(tmp_path / "pointer.json")
    answer = json.loads(person("pointer", "erase", where, "--reason", "asked", "--json").stdout)
    assert answer["ciphertext_digest"] == pointer["ciphertext_digest"] and answer["event"]["ns"] == "privacy"
    refused = person("pointer", "open", where, ok=False)
    assert refused.exit_code == 3 and "erased" in refused.detail
    events = json.loads(person("shiplog", "read", "--ns", "privacy", "--json").stdout)["events"]
    assert events[0]["envelope"]["type"] == "pointer.erased"
    assert person("pointer", "ls").stdout == "nothing is sealed here\n"


def test_private_bytes_are_never_git_objects(person, tmp_path):
    seal_at(person, tmp_path)
    objects = tmp_path / "r.git" / "objects"
    assert not [path for path in objects.rglob("*") if path.is_file()]


def test_a_document_that_is_no_pointer_is_refused_with_8(person, tmp_path):
    (tmp_path / "x.json").write_text('{"kind":"opaque_pointer"}')
    assert person("pointer", "open", str(tmp_path / "x.json"), ok=False).exit_code == 8


def test_a_pointer_without_the_plaintext_s_digest_opens_only_with_it():
    made = seal_pointer(KEY, b"yes", actor="a", policy="v1", low_entropy=True, **PLACE)
    with pytest.raises(Unverified, match="leaves out"):
        open_pointer(KEY, made.pointer, made.blob, actor="a", policy="v1")
    assert open_pointer(KEY, made.pointer, made.blob, actor="a", policy="v1", digest=made.digest) == b"yes"
