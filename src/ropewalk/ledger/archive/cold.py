"""Where archives are kept: a folder, or S3-compatible object storage (`s3://BUCKET/PREFIX`).

Objects have the names that files have in a folder: `<prefix>/<channel>/<first>-<last>/<file>`. The endpoint and the
credentials are those of the AWS SDK (`AWS_ENDPOINT_URL`, its profiles and variables).
"""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from blake3 import blake3

from ropewalk.errors import Conflict, Damaged, RopewalkError, Unavailable, Usage
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.archive.files import ArchiveFolder, archive_folders, read_blocks
from ropewalk.ledger.archive.manifest import BLOCKS, MANIFEST
from ropewalk.ledger.archive.write import ArchivedRange, ArchiveResult, archive_channel
from ropewalk.ledger.block.block import check_channel_name

PIECE_BYTES: Final = 1 << 20
_KEY: Final = re.compile(
    r"([a-z][a-z0-9._-]{0,127})/([0-9]{20})-([0-9]{20})/([A-Za-z0-9_-][A-Za-z0-9._-]{0,127})"
)
_URL: Final = re.compile(r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(.*))?")


def cold_store(location: str) -> FolderStore | ObjectStore:
    """Return the store at a location.

    >>> cold_store("s3://Bad_Bucket")
    Traceback (most recent call last):
    ropewalk.errors.Usage: archives must be in a folder or at s3://BUCKET[/PREFIX], got 's3://Bad_Bucket'
    """
    if "://" not in location:
        return FolderStore(Path(location))
    found = _URL.fullmatch(location)
    if found is None:
        raise Usage(f"archives must be in a folder or at s3://BUCKET[/PREFIX], got {location[:80]!r}")
    return ObjectStore(found[1], (found[2] or "").strip("/"))


def _covering(
    found: list[ArchiveFolder], start: int, end: int, path_of: Callable[[ArchiveFolder], Path]
) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the blocks of a range out of the archives that hold them, without a gap."""
    height = start
    for one in found:
        if one.last < height or height > end:
            continue
        if one.first > height:
            break
        for at, lines in read_blocks(path_of(one), one.first, one.last):
            if height <= at <= end:
                yield at, lines
        height = one.last + 1
    if height <= end:
        raise Unavailable(
            f"no archive holds block {height}",
            height=height,
            advice="Bring the archives back, or restore the channel from another copy.",
        )


class FolderStore:
    """Archives in a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def archive(
        self, home: Path, channel: str, key: SigningKey, *, lock_days: float | None = None, **options: Any
    ) -> ArchiveResult:
        """Archive the blocks that are not there yet; `options` are those of `archive_channel`. A lock needs S3."""
        if lock_days is not None:
            raise Usage("a retention lock needs object storage: --to s3://BUCKET/PREFIX")
        return archive_channel(home, channel, key, self._path, **options)

    def blocks(self, channel: str, start: int, end: int) -> Iterator[tuple[int, list[bytes]]]:
        """Yield heights and lines of archived blocks from `start` to `end`, inclusive."""
        found = archive_folders(self._path / check_channel_name(channel))
        return _covering(found, start, end, lambda one: one.path / BLOCKS)

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """Return the folder itself, for restores and drills."""
        yield self._path


class ObjectStore:
    """Archives in a bucket. An object is written once; with a lock it cannot be deleted before its date."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket, self._prefix = bucket, f"{prefix}/" if prefix else ""
        try:
            boto3, failures = import_module("boto3"), import_module("botocore.exceptions")
        except ImportError as error:
            raise Unavailable(
                "object storage needs boto3, which is not installed", advice='Run: pip install ".[objects]"'
            ) from error
        self._failures: tuple[type[Exception], ...] = (failures.BotoCoreError, failures.ClientError)
        try:
            self._client: Any = boto3.client("s3")
        except self._failures as error:
            raise self._error("connecting", error) from error

    def archive(
        self, home: Path, channel: str, key: SigningKey, *, lock_days: float | None = None, **options: Any
    ) -> ArchiveResult:
        """Archive in a temporary folder, upload, and read every object back before it counts."""
        names = self._names()
        with tempfile.TemporaryDirectory(prefix="ropewalk-cold-") as staging:
            for name, size in names.items():
                target = Path(staging, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                if target.name == BLOCKS:  # only its size is compared, and no one else sees this folder
                    with target.open("wb") as stream:
                        stream.truncate(size)
                else:
                    self._fetch(name, target)
            done = archive_channel(home, channel, key, Path(staging), **options)
            until = None if lock_days is None else datetime.now(UTC) + timedelta(days=lock_days)
            for one in (*done.made, *(done.snapshots.made if done.snapshots is not None else ())):
                self._upload(Path(staging), one, until)
        return done

    def blocks(self, channel: str, start: int, end: int) -> Iterator[tuple[int, list[bytes]]]:
        """Yield archived blocks; one archive at a time is on the local disk."""
        with tempfile.TemporaryDirectory(prefix="ropewalk-cold-") as folder:
            target = Path(folder, BLOCKS)

            def path_of(one: ArchiveFolder) -> Path:
                self._fetch(f"{channel}/{one.name}/{BLOCKS}", target)
                return target

            yield from _covering(self._archives(channel), start, end, path_of)

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """Download all archives into a temporary folder."""
        with tempfile.TemporaryDirectory(prefix="ropewalk-cold-") as folder:
            for name in self._names():
                target = Path(folder, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                self._fetch(name, target)
            yield Path(folder)

    def _archives(self, channel: str) -> list[ArchiveFolder]:
        """Return the archives that are complete: the manifest is written last."""
        found = [_KEY.fullmatch(name) for name in self._names()]
        return sorted(
            (
                ArchiveFolder(int(one[2]), int(one[3]), Path(one[1], f"{one[2]}-{one[3]}"))
                for one in found
                if one is not None and one[1] == channel and one[4] == MANIFEST
            ),
            key=lambda one: one.first,
        )

    def _names(self) -> dict[str, int]:
        """Return the objects of complete archives by name, with their sizes; other objects are left alone."""
        sizes: dict[str, int] = {}
        try:
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix
            )
            for page in pages:
                for each in page.get("Contents", ()):
                    sizes[each["Key"].removeprefix(self._prefix)] = int(each["Size"])
        except self._failures as error:
            raise self._error("listing", error) from error
        whole = {name.rpartition("/")[0] for name in sizes if name.endswith(f"/{MANIFEST}")}
        return {n: s for n, s in sizes.items() if _KEY.fullmatch(n) and n.rpartition("/")[0] in whole}

    def _upload(self, staging: Path, one: ArchivedRange, until: datetime | None) -> None:
        # The manifest last: with it the archive exists.
        files = sorted(one.path.iterdir(), key=lambda path: (path.name == MANIFEST, path.name))
        lock = {} if until is None else {"ObjectLockMode": "COMPLIANCE", "ObjectLockRetainUntilDate": until}
        for path in files:
            name = str(path.relative_to(staging))
            try:
                with path.open("rb") as stream:
                    self._client.put_object(
                        Bucket=self._bucket,
                        Key=self._prefix + name,
                        Body=stream,
                        ChecksumAlgorithm="SHA256",
                        IfNoneMatch="*",
                        **lock,
                    )
            except self._failures as error:
                if "PreconditionFailed" in str(error):
                    self._require_same(name, path, error)
                    continue
                raise self._error(f"writing {name}", error) from error
            self._require_same(name, path, None)

    def _require_same(self, name: str, path: Path, cause: Exception | None) -> None:
        """Raise unless the stored object has the bytes of the file, read back from the store."""
        stored, local = blake3(), blake3(path.read_bytes())
        for piece in self._pieces(name):
            stored.update(piece)
        if stored.digest() != local.digest():
            kind = Damaged if cause is None else Conflict
            raise kind(
                f"s3://{self._bucket}/{self._prefix}{name} does not hold the bytes of the archive",
                advice="Nothing was dropped or written over. Choose another prefix, or ask the storage's operator.",
            ) from cause

    def _fetch(self, name: str, target: Path) -> None:
        with target.open("wb") as stream:
            for piece in self._pieces(name):
                stream.write(piece)

    def _pieces(self, name: str) -> Iterator[bytes]:
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)
            yield from answer["Body"].iter_chunks(PIECE_BYTES)
        except self._failures as error:
            raise self._error(f"reading {name}", error) from error

    def _error(self, act: str, error: Exception) -> RopewalkError:
        return Unavailable(
            f"{act} in s3://{self._bucket}/{self._prefix}: {error}"[:400],
            advice="Check the bucket, the endpoint (AWS_ENDPOINT_URL) and the credentials of the AWS SDK.",
        )
