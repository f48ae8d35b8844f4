"""Secrets are refused by kind and place, never shown; what only looks a little like one passes."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.errors import Denied, InvalidJson
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.planning import Receipt
from ropewalk.gitlog.privacy.secrets import ALLOW_MARK, KINDS, refuse_secrets, scan_json, scan_text

# Made here from letters and digits, so that no scanner of this repository takes them for real.
MIX = "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0fR"


def mix(length: int, letters: str = MIX) -> str:
    return (letters * (length // len(letters) + 1))[:length]


def jwt() -> str:
    def part(value):
        return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part({'sub': 'ada', 'iat': 1})}.{mix(43)}"


HEX, UPPER = mix(64, "0a1b2c3d4e5f6789"), mix(64, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567")
SECRETS = {
    "private-key": [
        "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNz",
        "-----BEGIN PGP PRIVATE KEY BLOCK-----\nVersion: 1\n\nlQdG",
        "-----BEGIN EC PRIVATE KEY-----\\nMHcC",
        "-----BEGIN PRIVATE KEY-----\r\nMIIE",
        "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES\n\nMIIE",
    ],
    "age-key": ["AGE-SECRET-KEY-1" + mix(58, UPPER)],
    "aws-access-key": ["AKIA" + UPPER[:16], "key=ASIA" + UPPER[:16] + ";"],
    "aws-secret-key": ["aws_secret_access_key = " + mix(40), '"SecretAccessKey": "' + mix(40) + '"'],
    "google-api-key": ["AIza" + mix(35)],
    "google-oauth-secret": ["GOCSPX-" + mix(28)],
    "azure-storage-key": ["DefaultEndpointsProtocol=https;AccountKey=" + mix(86) + "=="],
    "azure-client-secret": ["abc8Q~" + mix(34)],
    "github-token": ["ghp_" + mix(36), "ghs_" + mix(36), "github_pat_" + mix(22) + "_" + mix(59)],
    "gitlab-token": ["glpat-" + mix(20), "gldt-" + mix(20)],
    "slack-token": ["xoxb-123456789012-123456789012-" + mix(24), "xapp-1-A1B2-123-" + HEX],
    "slack-webhook": ["https://hooks.slack.com/services/T" + UPPER[:8] + "/B" + UPPER[:8] + "/" + mix(24)],
    "stripe-key": ["sk_live_" + mix(24), "rk_live_" + mix(24)],
    "stripe-webhook-secret": ["whsec_" + mix(32)],
    "twilio-key": ["TWILIO_KEY=SK" + HEX[:32]],
    "sendgrid-key": ["SG." + mix(22) + "." + mix(43)],
    "npm-token": ["//registry/:_authToken=npm_" + mix(36)],
    "pypi-token": ["pypi-AgE" + mix(80)],
    "rubygems-key": ["rubygems_" + HEX[:48]],
    "docker-token": ["dckr_pat_" + mix(27)],
    "openai-key": ["sk-proj-" + mix(48), "sk-" + mix(20) + "T3BlbkFJ" + mix(20)],
    "anthropic-key": ["sk-ant-api03-" + mix(90)],
    "huggingface-token": ["hf_" + mix(34)],
    "digitalocean-token": ["dop_v1_" + HEX],
    "hashicorp-token": ["hvs." + mix(28)],
    "databricks-token": ["dapi" + HEX[:32]],
    "shopify-token": ["shpat_" + HEX[:32]],
    "atlassian-token": ["ATATT3" + mix(180)],
    "telegram-token": ["123456789:AA" + mix(33)],
    "jwt": [jwt()],
    "bearer-token": ["Authorization: Bearer " + mix(32)],
    "basic-auth": ["authorization: Basic " + mix(20)],
    "connection-string": [
        "postgres://app:hunter2@db.internal:5432/prod",
        "mongodb+srv://app:p4ss%2Fword@cluster0.example.net",
        "redis://:s3cretpw@cache:6379/0",
        "https://ada:t0psecret@git.example.com/x.git",
        "Server=db;Database=x;User Id=sa;Password=hunter2;",
        "postgresql+psycopg2://u:pw123@h/db",
    ],
    "netrc-password": ["machine api.example.com login ada password hunter2"],
    "signed-url": [
        "https://b.s3.amazonaws.com/k?X-Amz-Signature=" + HEX,
        "https://a.blob.core.windows.net/c/b?sv=1&sig=" + mix(44),
    ],
}


def test_every_kind_has_an_example_here():
    assert set(SECRETS) == set(KINDS)


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind, texts in SECRETS.items() for text in texts]
)
def test_a_secret_is_found_wherever_it_stands(kind, text):
    assert kind in {each.kind for each in scan_text(text)}
    assert kind in {each.kind for each in scan_text(f"first line\nset {text} now")}
    assert kind in {each.kind for each in scan_json({"a": [{"b": f"x {text}"}]})}
    assert kind in {each.kind for each in scan_json({text: 1})}


@pytest.mark.parametrize(("kind", "text"), [(kind, texts[0]) for kind, texts in SECRETS.items()])
def test_a_refusal_says_where_and_which_kind_and_never_what(kind, text):
    with pytest.raises(Denied) as refused:
        refuse_secrets({"payload": {"log": ["fine", text]}}, "the event")
    problem = json.dumps(refused.value.to_problem())
    assert refused.value.exit_code == 6 and kind in problem and "/payload/log/1" in problem
    assert not any(piece in problem for piece in text.split() if len(piece) > 9)


def test_deep_json_in_a_token_is_no_crash():
    """The first part of what looks like a JWT is parsed; it may be nested without end."""
    head = urlsafe_b64encode(b'{"alg":' + b"[" * 60_000).decode().rstrip("=")
    assert list(scan_text(f"{head}.eyJhbGciOiJub25l.{'a' * 20}")) == []


def test_a_secret_that_is_a_key_is_not_shown_as_a_place():
    token = "ghp_" + mix(36)
    found = scan_json({"a": {token: {"b": token}}})
    assert found and token not in str(found)


@pytest.mark.parametrize(
    "text",
    [
        "AKIAIOSFODNN7EXAMPLE",
        "ghp_" + "x" * 36,
        "postgres://user:${DB_PASSWORD}@db/prod",
        "postgres://user:$PASS@db/prod",
        "postgres://user:<password>@db/prod",
        "postgres://user:***@db/prod",
        "postgres://user:password@localhost/db",
        "postgres://db.internal:5432/prod",
        "https://example.com/a:b@c",
        "https://example.com/path?user=a@b.com",
        "mailto:ada@example.com and https://example.com:8080/",
        "-----BEGIN PUBLIC KEY-----\nMIIB",
        "-----BEGIN CERTIFICATE-----\nMIIB",
        "docs say -----BEGIN RSA PRIVATE KEY----- marks a key",
        "sk_test_" + mix(24),
        "eyJhbGciOiJ",
        "Bearer of good news",
        "the secret of aws_secret_access_key is care",
        "blake3:" + HEX,
        HEX + HEX,
        UPPER,
        "01HF4Y9Q1SM8Q7K9DK2R4V5CXD",
        "did:key:z6Mk" + mix(44),
        "hf_hub and npm_config_registry and ghp_short",
        "a monkey=value",
        "SG.1.2",
        "refs/gatos/shiplog/prod/head",
        "ghcr.io/acme/web@sha256:" + HEX,
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI" + mix(43) + " ada@example.test",
        "git@github.com:acme/web.git",
        "Password=",
        "basic training",
    ],
)
def test_what_is_no_secret_passes(text):
    assert scan_text(text) == [] and scan_json({"x": text}) == []


def test_lines_are_counted():
    token = "glpat-" + mix(20)
    assert [each.where for each in scan_text(f"a\nb\n{token}\n\n{token}\n")] == ["line 3", "line 5"]


def test_a_kind_can_be_allowed():
    token = "ghp_" + mix(36)
    refuse_secrets({"x": token}, "the event", allow=("github-token",))
    with pytest.raises(Denied):
        refuse_secrets({"x": token}, "the event", allow=("jwt",))


def test_a_mark_on_the_same_line_allows():
    token = "ghp_" + mix(36)
    assert scan_text(f"{token}  # {ALLOW_MARK}") == []
    assert scan_text(f"{token}\n# {ALLOW_MARK}") != []


def test_many_findings_are_cut_short():
    tokens = "\n".join("ghp_" + mix(36) for _ in range(100))
    with pytest.raises(Denied) as refused:
        refuse_secrets(tokens, "the output")
    assert "more" in refused.value.detail and len(refused.value.fields["findings"]) == 20


@given(st.text(max_size=200))
def test_any_text_can_be_scanned(text):
    scan_text(text)
    scan_json({text: [text, {"x": text}]})


def test_half_characters_and_large_numbers_do_not_hide_a_secret():
    token = "ghp_" + mix(36)
    assert scan_json({"a": "\ud800 " + token, "n": 2**80})
    assert scan_text("\ud800 " + token)


def test_a_long_line_is_scanned_in_reasonable_time():
    # Each of these begins a pattern again and again; a pattern that looks back and forth would never end.
    for start in (
        "-----BEGIN RSA PRIVATE KEY-----\n" + "a: b: " * 20_000,
        "server=a;" * 20_000,
        "postgres://" + "a:" * 50_000,
    ):
        scan_text(start + " password= wd=")


# --- where they are refused ---


def test_events_trailers_attachments_and_output_are_vetted(log):
    from ropewalk.gitlog.core.layout import MESSAGES
    from ropewalk.kernel.digest import content_id

    token = "ghp_" + mix(36)
    with pytest.raises(Denied, match="the event"):
        log.append("prod", {"type": "a", "payload": {"t": token}})
    with pytest.raises(Denied, match="the trailer"):
        log.append("prod", {"type": "a", "payload": {}}, trailer={"why": {"reason": token}})
    raw = token.encode()
    with pytest.raises(Denied, match="attachment"):
        log.append(
            "jobs",
            {"type": "a", "payload": {}, "refs": {"state": content_id(raw)}},
            attachments={"log.txt": raw},
            layout=MESSAGES,
        )
    with pytest.raises(Denied, match="output"):
        refuse_secrets((b"\xff" + raw).decode("utf-8", "replace"), "the output")
    assert log.topics() == []


def test_one_refusal_harms_no_other_event(log):
    drafts = [Draft({"type": "a", "payload": {"t": text}}) for text in ("x", "ghp_" + mix(36), "y")]
    outcomes = log.append_all("prod", drafts)
    assert [type(each) for each in outcomes] == [Receipt, Denied, Receipt]
    assert [event.payload["t"] for event in log.events("prod")] == ["x", "y"]


def test_allowed_kinds_are_recorded(log):
    log.allow_secrets = ("github-token",)
    log.append("prod", {"type": "a", "payload": {"t": "ghp_" + mix(36)}})
    with pytest.raises(Denied):
        log.append("prod", {"type": "a", "payload": {"t": "glpat-" + mix(20)}})
    log.allow_secrets = True
    log.append("prod", {"type": "a", "payload": {"t": "glpat-" + mix(20)}})


class Opaque(Mapping[str, object]):
    """A mapping that is no dict and shows nothing when it is printed."""

    def __init__(self, members: dict[str, object]) -> None:
        self._members = members

    def __getitem__(self, name: str) -> object:
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __repr__(self) -> str:
        return "Opaque"


def test_a_mapping_that_is_no_dict_hides_no_secret(log):
    for secret in ("ghp_" + mix(36), Opaque({"t": "ghp_" + mix(36)})):
        with pytest.raises(Denied):
            log.append("prod", Opaque({"type": "a", "payload": {"t": secret}}))
    log.append("prod", Opaque({"type": "a", "payload": {"t": "fine"}}))


@pytest.mark.parametrize("beside", [0, 70], ids=["alone", "among others"])
@pytest.mark.parametrize("kind", ["holds itself", "too deep", "no such key", "no such value"])
def test_what_is_no_json_is_refused_and_harms_no_other_event(log, kind, beside):
    itself: list[object] = []
    itself += [itself, itself]
    deep: list[object] = []
    for _ in range(50_000):
        deep = [deep]
    odd = {
        "holds itself": itself,
        "too deep": deep,
        "no such key": {(1, 2): 3},
        "no such value": {"set": {1}},
    }[kind]
    others = [Draft({"type": "a", "payload": {"n": n}}) for n in range(beside)]
    outcomes = log.append_all("prod", [*others, Draft({"type": "a", "payload": {"odd": odd}})])
    assert [type(each) for each in outcomes] == [Receipt] * beside + [InvalidJson]


@pytest.mark.parametrize("count", [64, 65, 300])
def test_of_many_events_only_those_that_hold_a_secret_are_refused(log, count):
    token = "ghp_" + mix(36)
    held = {0, 63, count - 1}
    drafts = [
        Draft({"type": "a", "payload": {"t": token if n in held else token[:20]}}) for n in range(count)
    ]
    outcomes = log.append_all("prod", drafts)
    assert {n for n, each in enumerate(outcomes) if isinstance(each, Denied)} == held
    assert len(list(log.events("prod"))) == count - len(held)
