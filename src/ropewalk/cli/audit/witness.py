"""`ropewalk witness`: cosign heads of other logs that extend the heads seen before."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ropewalk.cli.common.command import emit, group, parse_input, say, session, write_output
from ropewalk.cli.common.locations import cosigning_key
from ropewalk.cli.common.options import decimal, integer, option, path_option, required
from ropewalk.errors import SigInvalid, locate
from ropewalk.kernel.terminal_text import printable

if TYPE_CHECKING:
    from ropewalk.ledger.transparency.head_fork import HeadFork
    from ropewalk.ledger.transparency.witness import WatchedLog
    from ropewalk.ledger.transparency.witness_folder import Witness


@group(
    "witness",
    "ropewalk key new watcher",
    "ropewalk witness init watch --name witness.example.net --key watcher",
    "ropewalk witness add watch log.example.org/audit+1a2b3c4d+AQID…",
    "ropewalk witness cosign watch public/ -o seen.note",
)
def witness() -> None:
    """Cosign heads of logs that extend the heads seen before (C2SP tlog-witness), from files or over HTTP.

    A witness stores the largest head of each log in its folder. Never restore an older copy of that folder, and never
    use one key in two folders.
    """


@witness.command(
    "init",
    "ropewalk key new watcher",
    "ropewalk witness init watch --name witness.example.net --key watcher > witness.vkey",
)
@click.argument("folder", metavar="DIR")
@required("--name", "N", "What the witness is called: a URL without `https://`.")
@required("--key", "KEY", "Your key that signs (ed25519 or ml-dsa-44), used for nothing else.")
def init(folder: str, name: str, key: str) -> None:
    """Create the witness NAME in the new folder DIR, and print its verifier key.

    Give that key to verifiers that should trust this witness (`ledger trust --witness`, `bundle verify --witness`).
    """
    from ropewalk.ledger.transparency.witness_folder import make_witness

    made = make_witness(Path(folder), name, key, cosigning_key(key))
    vkey = made.vkey.to_text()
    if not session().json:
        say(f"ok  witness {printable(name)} in {folder}")
    emit({"path": folder, "name": name, "key": key, "vkey": vkey}, vkey)


@witness.command(
    "add",
    "ropewalk witness add watch log.example.org/audit+1a2b3c4d+AQID…",
    "ropewalk witness add watch sum.golang.org+033de0ae+Ac4z… --origin 'go.sum database tree'",
)
@click.argument("folder", metavar="DIR")
@click.argument("vkey")
@option("--origin", "TEXT", "The log's origin, where that is not the name of its key.")
def add(folder: str, vkey: str, origin: str | None) -> None:
    """Add a log by its verifier key, as `ledger tiles` prints it. A log may have several keys."""
    from ropewalk.cli.common.note_keys import note_key

    log = _opened(folder).add(note_key(vkey), origin)
    seen = f"seen at {log.head.size}" if log.note is not None else "nothing seen yet"
    emit(_log_json(log), f"ok  {printable(log.origin)}  {len(log.keys)} keys, {seen}")


@witness.command(
    "cosign",
    "ropewalk witness cosign watch public/ -o seen.note",
    "ropewalk witness cosign watch head.note --tiles public/ -o seen.note",
    "ropewalk ledger head --channel audit --note --old 4 | ropewalk witness cosign watch - -o seen.note",
)
@click.argument("folder", metavar="DIR")
@click.argument("file", metavar="CHECKPOINT")
@option("--tiles", "FOLDER", "The published folder; default: the one around the checkpoint.")
@option("-o --output", "F", "Output file (default: stdout).", default="-")
def cosign(folder: str, file: str, tiles: str | None, output: str) -> None:
    """Cosign CHECKPOINT if it extends the largest head of that log seen so far.

    CHECKPOINT is a signed head, a published folder, or the body of an `add-checkpoint` request, which brings its own
    proof. What was seen is on disk before anything is signed. The same checkpoint again gets a new time.

    Exit 3 if the log is not watched, 4 if the head is smaller than one seen before, 5 if a signature or the proof does
    not hold. Heads that disagree are kept in DIR, and `ropewalk verify` checks them.
    """
    from ropewalk.ledger.transparency.witness import REQUEST_BYTES_MAX, parse_request

    found = _opened(folder)
    path, around = _checkpoint(file)
    published = Path(tiles) if tiles is not None else around
    request = parse_input(path, parse_request, limit=REQUEST_BYTES_MAX)
    if request.old is not None and tiles is None:
        published = None  # it brings its own proof
    try:
        done = found.cosign(request, cosigning_key(found.key), lambda: int(time.time()), published)
    except SigInvalid as error:
        raise locate(error, "stdin" if path == "-" else path) from error
    if output == "-" and session().json:
        emit({**done.to_json(), "note": done.note.decode()}, "")
        return
    write_output(output, done.note)
    if output != "-":
        said = f"{printable(done.log.origin)} at {done.log.head.size}, before at {done.before}"
        emit({**done.to_json(), "path": output}, f"ok  {said}  {output}")


@witness.command("show", "ropewalk witness show watch", "ropewalk witness show watch --json")
@click.argument("folder", metavar="DIR")
def show(folder: str) -> None:
    """Show the key of the witness, the largest head of each log, and detected forks."""
    found = _opened(folder)
    logs, forks = found.logs(), found.forks()
    answer = {
        "name": found.vkey.name,
        "key": found.key,
        "vkey": found.vkey.to_text(),
        "logs": [_log_json(log) for log in logs],
        "forks": [{"path": str(path), "proven": fork.is_proven} for path, fork in forks],
    }
    lines = [f"witness  {found.vkey.to_text()}"]
    lines += [f"log      {_log_line(log)}" for log in logs]
    lines += [f"FORK     {_fork_line(fork)}  {path}" for path, fork in forks]
    emit(answer, lines)


@witness.command(
    "serve",
    "ropewalk witness serve watch --port 7490",
    "ropewalk witness serve watch --host 0.0.0.0 --port 443 --tls-cert cert.pem --tls-key key.pem",
)
@click.argument("folder", metavar="[DIR]", default=".")
@option("--host", "HOST", "Address to listen on.", default="127.0.0.1")
@integer("--port", "P", "Port; 0 takes a free one.", most=65535, default=7490)
@decimal("--rate", "N", "Requests a second of one address; twice as many at once.", above=0, default=10.0)
@path_option("--tls-cert", "F", "Certificate of the server (PEM).")
@path_option("--tls-key", "F", "Key of the certificate (PEM).")
def serve(
    folder: str, host: str, port: int, rate: float, tls_cert: Path | None, tls_key: Path | None
) -> None:
    """Cosign checkpoints over HTTP: answer `POST /add-checkpoint` for the logs of the witness in DIR.

    Also serves `GET /HASH/checkpoint` (HASH: SHA-256 of a log's origin), `/healthz` and `/metrics`. Prints one JSON
    line when it listens. Logs can be added while it runs.
    """
    import asyncio

    from ropewalk.cli.common.serving import log_to_stderr, run_server
    from ropewalk.cli.server.serve import need_server

    need_server()
    from ropewalk.server.witness import WitnessApp, serve_witness

    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("--tls-cert and --tls-key go together")
    found = _opened(folder)
    found.logs()  # a damaged folder is an error now, not at the first request
    app = WitnessApp(found, cosigning_key(found.key), rate=rate, now_s=lambda: int(time.time()))
    for name in ("ropewalk.witness", "ropewalk.server"):
        log_to_stderr(name)
    tls = (tls_cert, tls_key) if tls_cert is not None and tls_key is not None else None
    vkey = found.vkey.to_text()
    asyncio.run(run_server(serve_witness(app, host, port, tls), lambda url: {"url": url, "vkey": vkey}))


def _opened(folder: str) -> Witness:
    from ropewalk.ledger.transparency.witness_folder import open_witness

    return open_witness(Path(folder))


def _checkpoint(name: str) -> tuple[str, Path | None]:
    """Return the checkpoint file that was named, directly or by its folder, and the folder if it has tiles."""
    from ropewalk.ledger.transparency.publish import CHECKPOINT

    path = Path(name) / CHECKPOINT if name != "-" and Path(name).is_dir() else Path(name)
    around = path.parent if name != "-" and (path.parent / "tile").is_dir() else None
    return (name if name == "-" else str(path)), around


def _log_json(log: WatchedLog) -> dict[str, Any]:
    return {
        "origin": log.origin,
        "keys": [key.to_text() for key in log.keys],
        "size": log.head.size,
        "root": log.head.root.hex(),
        "time_s": log.time_s if log.note is not None else None,
        "note": None if log.note is None else log.note.decode(),
    }


def _log_line(log: WatchedLog) -> str:
    from ropewalk.ledger.transparency.head_check import describe_head

    return describe_head(log.head) if log.note is not None else f"{printable(log.origin)}, nothing seen yet"


def _fork_line(fork: HeadFork) -> str:
    from ropewalk.ledger.transparency.head_check import describe_head

    first, second = fork.heads()
    word = "" if fork.is_proven else " (not proven)"
    return f"{describe_head(first)}; {describe_head(second)}{word}"
