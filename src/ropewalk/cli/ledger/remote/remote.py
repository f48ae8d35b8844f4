"""`ropewalk ledger serve`, `send` and `pull`: channels on a server."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ropewalk.cli.common.command import answer_line, command, counting, emit, parse_input, say
from ropewalk.cli.common.hangup import Hangup
from ropewalk.cli.common.locations import NODE_KEY, here, key_folder, signing_key
from ropewalk.cli.common.options import decimal, flag, integer, option, repeated, required, together
from ropewalk.cli.common.serving import connection_options, log_to_stderr, run_server
from ropewalk.cli.common.tls_options import address_option, tls_files, tls_options
from ropewalk.cli.ledger.append import LINE_BYTES_MAX, answer_lines, check_envelope, receipt_line
from ropewalk.cli.ledger.channel import channel_keys
from ropewalk.errors import Conflict, InvalidJson, RopewalkError, Unavailable
from ropewalk.kernel import jcs
from ropewalk.kernel.terminal_text import printable

if TYPE_CHECKING:
    from ropewalk.kernel.keys import SigningKey
    from ropewalk.ledger.remote.negotiate import Attest
    from ropewalk.ledger.remote.replica import ChannelPullResult
    from ropewalk.ledger.remote.server import LedgerServer
    from ropewalk.ledger.remote.sync_client import RemoteChannel

IDLE_S = 30.0  # written out so that --help loads no engine; a test compares
RETRY_S = 60.0
SESSIONS_MAX = 64
ATTEST_S = 30.0  # for a command to get evidence from the hardware


@command(
    "serve",
    "ropewalk ledger serve --port 7400 --channel audit",
    "ropewalk ledger serve --host 0.0.0.0 --port 7400 --tls-cert cert.pem --tls-key key.pem --client-ca ca.pem",
    "ropewalk ledger serve --quic 0.0.0.0:7400 --grpc 0.0.0.0:7402 --tls pki/server",
)
@option("--host", "HOST", "Address to listen on.", default="127.0.0.1")
@integer("--port", "P", "Port of tls:// or tcp://; 0 chooses a free one.", most=65535)
@option("--grpc", "HOST:PORT", "Serve gRPC, too; needs certificates.")
@option("--quic", "HOST:PORT", "Serve QUIC (UDP), too; needs certificates.")
@option(
    "--attest-command",
    "CMD",
    "Command that gets report data in hex on stdin and prints evidence of this server.",
)
@option(
    "--peer-trust", "F", "Trust file that the evidence of clients must satisfy; without, none is asked for."
)
@tls_options("--client-ca", "clients")
@flag("--plain", "Serve without TLS, also on addresses other than loopback.")
@repeated("--channel channels", "C", "Channel to serve (default: all); repeatable.")
@flag("--append-only", "Allow clients to append only.")
@flag("--read-only", "Allow clients to read only.")
@option("--record", "C", "Record the negotiation of every session in this channel.")
@decimal("--idle", "SECONDS", "Read timeout per message.", least=0.05, default=IDLE_S)
@connection_options(SESSIONS_MAX)
def serve(
    host: str,
    port: int | None,
    grpc: str | None,
    quic: str | None,
    attest_command: str | None,
    peer_trust: str | None,
    plain: bool,
    channels: tuple[str, ...],
    append_only: bool,
    read_only: bool,
    record: str | None,
    idle: float,
    max_connections: int,
    max_per_address: int | None,
    **certificates: Any,
) -> None:
    """Serve channels to remote clients over mutual TLS: as frames over TCP, as gRPC, as QUIC.

    Print one JSON line when it listens. Without certificates, listen on loopback only and reject restricted
    envelopes. Other commands can append to the channels while the server runs.
    """
    from ropewalk.ledger.proof.trust import parse_trust
    from ropewalk.ledger.remote.negotiate import FEATURES
    from ropewalk.ledger.remote.quarantine import Quarantine
    from ropewalk.ledger.remote.server import LedgerServer, is_loopback
    from ropewalk.net.admission import ConnectionLimits

    if append_only and read_only:
        raise click.UsageError("--append-only and --read-only exclude each other")
    if port is None and grpc is None and quic is None:
        raise click.UsageError("Missing option '--port', '--grpc' or '--quic'.")
    files = tls_files(certificates, "--client-ca")
    trusted = parse_input(peer_trust, parse_trust) if peer_trust is not None else None
    if files is not None and plain:
        raise click.UsageError("--plain and certificates exclude each other")
    if plain and not is_loopback(host):
        say(f"warning: anyone who can reach {host} can read the channels and append to them, unencrypted")
    closed = {"read"} if append_only else {"append"} if read_only else set[str]()
    server = LedgerServer(
        here().home,
        keys_from_here(),
        host=host,
        port=port,
        files=files,
        grpc=address_option(grpc, "--grpc"),
        quic=address_option(quic, "--quic"),
        attest=attest_by(attest_command),
        quarantine=Quarantine(trusted),
        plain=plain,
        channels=channels or None,
        features=FEATURES - closed,
        record=record,
        idle_s=idle,
        limits=ConnectionLimits(max_connections, address_max=max_per_address),
    )
    asyncio.run(run_ledger_server(server))


def attest_by(command: str | None) -> Attest | None:
    """Return what asks a command for evidence: report data in hex on its stdin, the evidence as JSON on its stdout."""
    if command is None:
        return None

    def attest(report_data: bytes) -> dict[str, jcs.Json]:
        try:
            done = subprocess.run(
                shlex.split(command),
                input=report_data.hex().encode(),
                capture_output=True,
                timeout=ATTEST_S,
                check=True,
            )
            found = jcs.parse(done.stdout)
        except (OSError, ValueError, InvalidJson, subprocess.SubprocessError) as error:
            raise Unavailable(f"--attest-command gave no evidence: {error}") from error
        if not isinstance(found, dict):
            raise Unavailable("--attest-command must print evidence as a JSON object")
        return found

    return attest


def keys_from_here() -> Callable[[str], Sequence[SigningKey]]:
    """Return a thread-safe function that finds the keys of a channel.

    For a replica, whose keys are on another machine, it returns the key of the repository. Keys that need a passphrase
    or PIN are opened at once: a service that lacks it fails when it starts, not at its first append.
    """
    from ropewalk.disk import key_files
    from ropewalk.ledger.channel.settings import channels

    context = click.get_current_context()

    def find(channel: str) -> Sequence[SigningKey]:
        with context.scope(cleanup=False):
            try:
                return channel_keys(channel)
            except Conflict:
                return (signing_key(NODE_KEY),)

    try:
        known = [each for folder in (here().keys, key_folder()) for each in key_files.ls(folder)]
        protected = any(each.protection != "none" for each in known)
    except RopewalkError:
        protected = True
    if protected and not channels(here().home):
        signing_key(NODE_KEY)  # of the channels to come
    for channel in channels(here().home) if protected else ():
        try:
            find(channel)
        except Unavailable:
            raise
        except (
            RopewalkError
        ) as error:  # a damaged channel, or one without its key, does not keep others from serving
            say(f"channel {channel} cannot be written: {error.detail}")
    return find


async def run_ledger_server(server: LedgerServer) -> None:
    """Serve, and log connections on stderr."""
    log_to_stderr("ropewalk.ledger.remote")

    def facts(served: LedgerServer) -> dict[str, Any]:
        if not served.channels:
            say("there are no channels to serve; create one with `ropewalk ledger create --channel NAME`")
        return {
            "url": served.url,
            **served.address,
            "transport": served.transport,
            **({} if len(served.transports) == 1 else {"urls": served.urls}),
            "channels": served.channels,
        }

    await run_server(server, facts)


# The options of a command that connects to a server.
_client_options: Callable[[Any], Any] = together(
    required("--channel", "C", "Channel on the server."),
    tls_options("--server-ca", "server"),
    option("--trust", "F", "Trust file with the accepted keys of the channel."),
    option("--key", "NAME", "Key for the negotiation (default: a temporary one)."),
    flag("--compress", "Compress messages if the server supports it."),
    option(
        "--attest-command",
        "CMD",
        "Command that gets report data in hex on stdin and prints our evidence.",
    ),
    flag("--attested", "Refuse a server whose answer is not sealed by evidence that --trust accepts."),
    decimal(
        "--retry",
        "SECONDS",
        "How long to retry a lost connection; if given, the first connection is retried, too.",
        default=RETRY_S,
    ),
)


def _connection(options: dict[str, Any], *, patient: bool = False, single: bool = True) -> dict[str, Any]:
    """Return the options of `connect_channel`. With --retry or `patient`, also wait for a server about to start.

    Of several servers none is waited for: the others are there.
    """
    from ropewalk.ledger.proof.trust import parse_trust

    files = tls_files(options, "--server-ca")
    trust, key, retry_s = options["trust"], options["key"], options["retry"] if single else 0.0
    patient |= click.get_current_context().get_parameter_source("retry") is not ParameterSource.DEFAULT
    return {
        "files": files,
        "key": signing_key(key) if key is not None else None,
        "trust": parse_input(trust, parse_trust) if trust is not None else None,
        "compression": ("zstd", "none") if options["compress"] else ("none", "zstd"),
        "retry_s": retry_s,
        "first_s": retry_s if patient else 0.0,
        "attest": attest_by(options["attest_command"]),
        "attested": options["attested"],
        "told": lambda error: say(f"{printable(error.detail)}; retrying for {retry_s:g} s"),
    }


def _connected(url: str, channel: str, connection: dict[str, Any]) -> RemoteChannel:
    """Connect, and say which transports were passed over."""
    from ropewalk.ledger.remote.sync_client import connect_channel

    remote = connect_channel(url, channel, **connection)
    for name, error in remote.missed.items():
        served = "; the server says that it serves it" if name in remote.downgraded else ""
        say(
            f"warning: {name} was not reached ({printable(error.detail)}){served}; using {remote.agreement.transport}"
        )
    return remote


@command(
    "send",
    "ropewalk ledger send tcp://127.0.0.1:7400 --channel audit --file envelope.json",
    "producer | ropewalk ledger send tls://ledger.example:7400 --channel audit --file - --jsonl --json \\",
    "    --tls-cert me.pem --tls-key me.key --server-ca ca.pem --trust trust.json",
)
@click.argument("url")
@required("--file file", "F", "Envelope as JSON or CBOR; `-` reads stdin.")
@flag("--jsonl", "Read one envelope per line; print one result per line, once it is durable.")
@flag("--stop-on-error", "With --jsonl: stop at the first rejected line (slower: one block per line).")
@_client_options
def send(url: str, channel: str, file: str, jsonl: bool, stop_on_error: bool, **options: Any) -> None:
    """Append envelopes to a channel at URL, and print the answers of `append`.

    URL is quic://HOST:PORT, grpc://HOST:PORT, tls://HOST:PORT, tcp://HOST:PORT or, on the same machine, mailbox:FOLDER.

    Several addresses, joined by commas, are tried in order: quic://HOST:PORT,grpc://HOST:PORT,tls://HOST:PORT.

    No local repository is needed. After a lost connection, envelopes without an answer are sent again; an envelope that
    was recorded before gives its first receipt.
    """
    if jsonl:
        with ExitStack() as stack:
            code = answer_lines(
                file,
                lambda: stack.enter_context(_connected(url, channel, _connection(options))),
                stop_on_error,
            )
        if code:
            raise click.exceptions.Exit(code)
        return
    raw = parse_input(file, check_envelope, limit=LINE_BYTES_MAX)
    with _connected(url, channel, _connection(options)) as remote:
        receipt = remote.submit(raw)
        emit(receipt.to_json(), receipt_line(receipt))


@command(
    "pull",
    "ropewalk ledger pull tcp://127.0.0.1:7400 --channel audit --trust trust.json",
    "ropewalk ledger pull tls://ledger.example:7400 --channel audit --follow --json \\",
    "    --tls-cert me.pem --tls-key me.key --server-ca ca.pem",
    "ropewalk ledger pull quic://a.example:7400 quic://b.example:7400 --channel audit --forks longest --tls pki/me",
)
@click.argument("urls", metavar="URL...", nargs=-1, required=True)
@flag("--follow", "Keep running and fetch new blocks; print a result whenever there are some.")
@decimal("--every", "SECONDS", "With --follow: polling interval.", least=0.05, default=1.0)
@option(
    "--forks",
    "RULE",
    "If the server has another history: refuse it, or take the longest; both are kept.",
    type=click.Choice(["refuse", "longest"]),
    default="refuse",
)
@_client_options
def pull(urls: tuple[str, ...], channel: str, follow: bool, every: float, forks: str, **options: Any) -> None:
    """Copy a channel at URL into this repository: fetch missing blocks, and verify them.

    Every block is verified before it is stored: signature, contents, link to its parent, and all eight rules for each
    envelope. The replica can be read, proved and verified like any channel, but not appended to. Without --trust, the
    key that the server names is trusted on first use.

    Several URLs are sources of one channel: the longest history is fetched first, and the newest block of each of the
    others is compared with it. A source that cannot be reached is passed over.
    """
    from ropewalk.ledger.remote.replica import pull_channel, pull_from

    home = here().home
    urls = tuple(dict.fromkeys(urls))
    connection = _connection(options, patient=follow, single=len(urls) == 1)
    rules = {"trust": connection["trust"], "forks": forks}
    gone = Hangup()
    with ExitStack() as stack:
        found: dict[str, RemoteChannel | RopewalkError] = {}
        if len(urls) == 1:
            found[urls[0]] = stack.enter_context(_connected(urls[0], channel, connection))
        said: dict[str, str] = {}
        first = True
        while first or (follow and not gone.wait(every)):
            if len(urls) > 1:
                _reach(urls, channel, connection, found, stack)
            with counting(f"pulling {channel}", "blocks") as told:
                only = found[urls[0]]
                if len(urls) == 1 and not isinstance(only, Exception):
                    pulled = pull_channel(only, home, channel, told=told, **rules)
                else:
                    pulled = pull_from(found, home, channel, told=told, **rules)
            for each in pulled.sources:
                if each.state not in ("equal", "behind", said.get(each.url)):
                    say(f"warning: {printable(each.url)} is {each.state}: {printable(each.detail)}")
                said[each.url] = each.state
            _say_pulled(pulled, connection["trust"] is None, follow, first)
            first = False


def _reach(
    urls: Sequence[str],
    channel: str,
    connection: dict[str, Any],
    found: dict[str, RemoteChannel | RopewalkError],
    stack: ExitStack,
) -> None:
    """Connect at once to all sources that are not connected yet."""

    def connect(url: str) -> RemoteChannel | RopewalkError:
        try:
            return _connected(url, channel, connection)
        except RopewalkError as error:
            return error

    missing = [url for url in urls if url not in found or isinstance(found[url], RopewalkError)]
    with ThreadPoolExecutor(len(urls)) as threads:
        for url, remote in zip(missing, threads.map(connect, missing), strict=True):
            found[url] = remote if isinstance(remote, RopewalkError) else stack.enter_context(remote)


def _say_pulled(pulled: ChannelPullResult, first_use: bool, follow: bool, first: bool) -> None:
    if pulled.replaced is not None:
        say(f"the server has a longer history; the one that was here lies in {pulled.replaced}")
    if pulled.made and first_use:
        say(f"trusted {pulled.signer} as the key of {pulled.channel} on first use; pin it with --trust")
    if first or pulled.blocks:
        place = f"height={pulled.to_json()['height']}" if pulled.head.height else "empty"
        line = f"ok  {pulled.channel}  blocks={pulled.blocks} envelopes={pulled.envelopes} {place}"
        if follow:
            answer_line(pulled.to_json(), line)
        else:
            emit(pulled.to_json(), line)
