"""What a Spark user would write instead of `pipeline ingest`: read, check, parse, write Parquet. Run beside ours."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ropewalk.disk.repository_paths import find_repository
from ropewalk.ledger.channel.channel import open_channel


def dump_envelopes(repository: Path, channel: str, folder: Path, files: int = 4) -> None:
    """Write a channel's envelopes as JSON lines with what a verifier needs: the signed bytes, signature and key."""
    folder.mkdir(parents=True)
    outs = [(folder / f"{number}.jsonl").open("w", encoding="utf-8") for number in range(files)]
    with open_channel(find_repository(repository).home, channel) as opened:
        from ropewalk.ledger.envelope.envelope import parse_stored

        for height, place in opened.segments.places():
            for raw in opened.segments.read(place, height).lines[1:]:
                envelope = parse_stored(raw)
                line = {
                    "envelope": raw.decode(),
                    "signed": envelope.preimage.hex(),
                    "sig": envelope.signature_bytes.hex(),
                    "key": envelope.public_key.raw.hex(),
                }
                outs[height % files].write(json.dumps(line) + "\n")
    for out in outs:
        out.close()


def ingest_envelopes(spark: Any, lines: Path, target: Path) -> int:
    """Read JSON, verify every signature in a pandas UDF, parse the envelope, write Parquet."""
    import pandas as pd
    from pyspark.sql import functions as F

    def verified(signed: Any, sig: Any, key: Any) -> Any:
        from nacl.bindings import crypto_sign_open
        from nacl.exceptions import BadSignatureError

        def check(one: str, two: str, three: str) -> bool:
            try:
                crypto_sign_open(bytes.fromhex(two) + bytes.fromhex(one), bytes.fromhex(three))
            except BadSignatureError:
                return False
            return True

        return pd.Series(list(map(check, signed, sig, key)))

    verified.__annotations__ = dict.fromkeys(("signed", "sig", "key", "return"), pd.Series)
    checked: Any = getattr(F, "pandas_udf")("boolean")(verified)  # noqa: B009 - the stubs lack it
    schema = "domain string, event_class string, event_type string, payload string, timestamp string"
    rows = spark.read.schema("envelope string, signed string, sig string, key string").json(str(lines))
    rows = rows.withColumn("ok", checked("signed", "sig", "key"))
    rows = rows.select("envelope", "key", "ok", F.from_json("envelope", schema).alias("e"))
    rows.select("key", "ok", "e.*").write.mode("overwrite").parquet(str(target))
    return int(spark.read.parquet(str(target)).where("ok").count())


def ingest_commits(spark: Any, repository: Path, ref: str, target: Path, parts: int = 4) -> int:
    """List commits with `git log`, read envelopes with `git cat-file`, check content ids, write Parquet."""
    git = ["git", "-C", str(repository)]
    listed = subprocess.run(
        [*git, "log", "--reverse", "--format=%H %P", ref], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    share = -(-len(listed) // parts)
    shares = [listed[at : at + share] for at in range(0, len(listed), share)]

    def work(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield pa.RecordBatch.from_pylist(_read_commits(git, shares[number]))

    types = "commit string, parent string, content_id string, ulid string, type string, payload string, author string"
    frame = spark.range(0, len(shares), 1, len(shares)).mapInArrow(work, types)
    frame.write.mode("overwrite").parquet(str(target))
    return int(spark.read.parquet(str(target)).count())


def _read_commits(git: list[str], lines: list[str]) -> list[dict[str, Any]]:
    from blake3 import blake3

    commits = [line.partition(" ")[::2] for line in lines]
    messages = _cat(git, [commit for commit, _ in commits])
    paths = []
    for (commit, _), message in zip(commits, messages, strict=True):
        ulid = _header(message, b"Event-Id: ulid:" if b"Event-Id: ulid:" in message else b"Event-Id: ")
        space = _header(message, b"Namespace: ")
        paths.append(f"{commit}:gatos/shiplog/{space}/{ulid}.json")
    rows = []
    for (commit, parent), message, raw in zip(commits, messages, _cat(git, paths), strict=True):
        content_id = _header(message, b"Content-Id: ")
        assert content_id.removeprefix("blake3:") == blake3(raw).hexdigest(), commit
        value = json.loads(raw)
        author = message.split(b"\nauthor ", 1)[1].split(b">", 1)[0].decode() + ">"
        rows.append(
            {
                "commit": commit,
                "parent": parent or None,
                "content_id": content_id,
                "ulid": value["ulid"],
                "type": value["type"],
                "payload": json.dumps(value["payload"]),
                "author": author,
            }
        )
    return rows


def _header(message: bytes, name: bytes) -> str:
    return message.split(name, 1)[1].split(b"\n", 1)[0].decode()


def _cat(git: list[str], names: list[str]) -> list[bytes]:
    out = subprocess.run(
        [*git, "cat-file", "--batch"],
        input="\n".join(names).encode() + b"\n",
        check=True,
        capture_output=True,
    ).stdout
    found, at = [], 0
    for name in names:
        head, at = out[at : (end := out.index(b"\n", at))].split(), end + 1
        assert len(head) == 3, (name, head)
        size = int(head[2])
        found.append(out[at : at + size])
        at += size + 1
    return found
