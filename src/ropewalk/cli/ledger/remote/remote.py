"""`ropewalk ledger serve`, `send` and `pull`: channels that are elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ropewalk.cli.common.command import Command, counting, emit, parse_input, say
from ropewalk.cli.common.locations import NODE_KEY, here, signing_key
from ropewalk.cli.common.serving import connection_options, run_server, say_journal
from ropewalk.kernel.terminal_text import printable

if TYPE_CHECKING:
    import ssl

    from ropewalk.kernel.keys import SigningKey
    from ropewalk.ledger.remote.server import LedgerServer
    from ropewalk.ledger.remote.sync_client import RemoteChannel

IDLE_S = 30.0  # written out so that --help loads no engine; a test compares
RETRY_S = 60.0
SESSIONS_MAX = 64
F = TypeVar("F", bound=Callable[..., Any])


@click.command(
    "serve",
    cls=Command,
    epilog="Examples:\n  ropewalk ledger serve --port 7400 --channel audit\n"
    "  ropewalk ledger serve --host 0.0.0.0 --port 7400 --tls-cert cert.pem --tls-key key.pem --client-ca ca.pem\n",
)
@click.option(
    "--host", default="127.0.0.1", show_default=True, metavar="HOST", help="The address to listen on."
)
@click.option("--port", required=True, type=click.IntRange(0, 65535), metavar="P", help="0 takes a free one.")
@click.option("--tls-cert", metavar="F", help="The server's certificate, PEM.")
@click.option("--tls-key", metavar="F", help="Its key, PEM.")
@click.option("--client-ca", metavar="F", help="Clients show a certificate that leads to one of these, PEM.")
@click.option(
    "--plain", is_flag=True, help="Encrypt nothing, also where others than this machine can connect."
)
@click.option(
    "--channel",
    "channels",
    multiple=True,
    metavar="C",
    help="A channel to serve; may be given again. Default: all that exist.",
)
@click.option("--append-only", is_flag=True, help="Clients may append, and read nothing.")
@click.option("--read-only", is_flag=True, help="Clients may read, and append nothing.")
@click.option(
    "--record", metavar="C", help="Seal what every session negotiates in this channel, before it begins."
)
@click.option(
    "--idle",
    type=click.FloatRange(min=0.05),
    default=IDLE_S,
    show_default=True,
    metavar="SECONDS",
    help="How long a client may make no progress in the middle of a message.",
)
@connection_options(SESSIONS_MAX)
def serve(
    host: str,
    port: int,
    tls_cert: str | None,
    tls_key: str | None,
    client_ca: str | None,
    plain: bool,
    channels: tuple[str, ...],
    append_only: bool,
    read_only: bool,
    record: str | None,
    idle: float,
    max_connections: int,
    max_per_address: int | None,
) -> None:
    """Let others append to channels here, and read them, over TLS in which both sides show a certificate.

    Prints one JSON line when it listens. Without certificates nothing is encrypted: then only this machine can
    connect, and restricted envelopes are refused. Commands that append here go on working beside it.
    """
    from ropewalk.ledger.remote.negotiate import FEATURES
    from ropewalk.ledger.remote.server import LedgerServer, is_loopback
    from ropewalk.net.admission import ConnectionLimits

    if append_only and read_only:
        raise click.UsageError("--append-only and --read-only leave nothing to do")
    tls = _tls(tls_cert, tls_key, client_ca, "--tls-cert, --tls-key and --client-ca", server=True)
    if tls is not None and plain:
        raise click.UsageError("--plain and certificates exclude each other")
    if plain and not is_loopback(host):
        say(f"anybody who reaches {host} can append to the channels and read them, and listen in")
    closed = {"read"} if append_only else {"append"} if read_only else set[str]()
    server = LedgerServer(
        here().home,
        keys_from_here(),
        host=host,
        port=port,
        tls=tls,
        plain=plain,
        channels=channels or None,
        features=FEATURES - closed,
        record=record,
        idle_s=idle,
        limits=ConnectionLimits(max_connections, address_max=max_per_address),
    )
    asyncio.run(run_ledger_server(server))


def keys_from_here() -> Callable[[str], Sequence[SigningKey]]:
    """The keys of a channel, from any thread: which folders they lie in is known to this one alone.

    A copy, whose keys are elsewhere, can be read all the same: the key of the repository answers for it.
    """
    from ropewalk.cli.ledger.channel import channel_keys
    from ropewalk.errors import Conflict

    context = click.get_current_context()

    def find(channel: str) -> Sequence[SigningKey]:
        with context.scope(cleanup=False):
            try:
                return channel_keys(channel)
            except Conflict:
                return (signing_key(NODE_KEY),)

    return find


async def run_ledger_server(server: LedgerServer) -> None:
    """Serve, and say who comes; also what a server without channels needs."""
    say_journal("ropewalk.ledger.remote")

    def facts(served: LedgerServer) -> dict[str, Any]:
        if not served.channels:
            say("no channel is here to be served yet: `ropewalk ledger create --channel NAME` makes one")
        return {
            "url": served.url,
            **served.address,
            "transport": served.transport,
            "channels": served.channels,
        }

    await run_server(server, facts)


def _reaching(command: F) -> F:
    """The options of a command that connects to a channel elsewhere."""
    options = (
        click.option("--channel", required=True, metavar="C", help="The channel there."),
        click.option("--tls-cert", metavar="F", help="With tls://: your certificate, PEM."),
        click.option("--tls-key", metavar="F", help="With tls://: its key, PEM."),
        click.option(
            "--server-ca", metavar="F", help="With tls://: what the server's certificate leads to, PEM."
        ),
        click.option(
            "--trust", metavar="F", help="A trust file: only a key it names may answer for the channel."
        ),
        click.option(
            "--key", metavar="NAME", help="The key you negotiate with; default: one made for the occasion."
        ),
        click.option("--compress", is_flag=True, help="Compress what is sent, if the other side can."),
        click.option(
            "--retry",
            type=click.FloatRange(min=0),
            default=RETRY_S,
            show_default=True,
            metavar="SECONDS",
            help="How long a connection that was lost is tried again; if given, the first one, too.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def _connected(url: str, channel: str, options: dict[str, Any], *, patient: bool = False) -> RemoteChannel:
    """Connect. Who said how long to try, or is patient anyway, waits for a server that is about to start."""
    from click.core import ParameterSource

    from ropewalk.ledger.proof.trust import parse_trust
    from ropewalk.ledger.remote.sync_client import connect_channel

    own, key_file, roots = (options[name] for name in ("tls_cert", "tls_key", "server_ca"))
    tls = _tls(own, key_file, roots, "--tls-cert, --tls-key and --server-ca", server=False)
    trust, key, retry_s = options["trust"], options["key"], options["retry"]
    patient |= click.get_current_context().get_parameter_source("retry") is not ParameterSource.DEFAULT
    return connect_channel(
        url,
        channel,
        tls=tls,
        key=signing_key(key) if key is not None else None,
        trust=parse_input(trust, parse_trust) if trust is not None else None,
        compression=("zstd", "none") if options["compress"] else ("none", "zstd"),
        retry_s=retry_s,
        first_s=retry_s if patient else 0.0,
        told=lambda error: say(f"{printable(error.detail)}; trying again for {retry_s:g} s"),
    )


def _tls(
    certificate: str | None, key: str | None, roots: str | None, names: str, *, server: bool
) -> ssl.SSLContext | None:
    if certificate is None and key is None and roots is None:
        return None
    if certificate is None or key is None or roots is None:
        raise click.UsageError(f"{names} go together: both sides show a certificate")
    from ropewalk.ledger.remote.messages import PROTOCOL
    from ropewalk.net.tls import TlsFiles, client_tls, server_tls

    files = TlsFiles(Path(certificate), Path(key), Path(roots))
    return server_tls(files, PROTOCOL) if server else client_tls(files, PROTOCOL)


@click.command(
    "send",
    cls=Command,
    epilog="Examples:\n  ropewalk ledger send tcp://127.0.0.1:7400 --channel audit --file envelope.json\n"
    "  producer | ropewalk ledger send tls://ledger.example:7400 --channel audit --file - --jsonl --json \\\n"
    "      --tls-cert me.pem --tls-key me.key --server-ca ca.pem --trust trust.json\n",
)
@click.argument("url")
@click.option("--file", "file", required=True, metavar="F", help="The envelope, JSON or CBOR; `-` for stdin.")
@click.option(
    "--jsonl", is_flag=True, help="One envelope a line; one answer a line, in order, when it is durable."
)
@click.option(
    "--stop-on-error", is_flag=True, help="With --jsonl: end at the first refusal; slower, line by line."
)
@_reaching
def send(url: str, channel: str, file: str, jsonl: bool, stop_on_error: bool, **options: Any) -> None:
    """Append envelopes to a channel at URL, and print the answers of `append`.

    URL is tls://HOST:PORT, tcp://HOST:PORT or, on the same machine, mailbox:FOLDER.

    No repository is needed here. A connection that is lost is made again, and what has no answer is sent again: an
    envelope that stands there already gives its first receipt.
    """
    from ropewalk.cli.ledger.append import LINE_BYTES_MAX, answer_lines, check_envelope, receipt_line

    if jsonl:
        with ExitStack() as stack:
            code = answer_lines(
                file, lambda: stack.enter_context(_connected(url, channel, options)), stop_on_error
            )
        if code:
            raise click.exceptions.Exit(code)
        return
    raw = parse_input(file, check_envelope, limit=LINE_BYTES_MAX)
    with _connected(url, channel, options) as remote:
        receipt = remote.submit(raw)
        emit(receipt.to_json(), receipt_line(receipt))


@click.command(
    "pull",
    cls=Command,
    epilog="Examples:\n  ropewalk ledger pull tcp://127.0.0.1:7400 --channel audit --trust trust.json\n"
    "  ropewalk ledger pull tls://ledger.example:7400 --channel audit --follow --json \\\n"
    "      --tls-cert me.pem --tls-key me.key --server-ca ca.pem\n",
)
@click.argument("url")
@click.option(
    "--follow", is_flag=True, help="Go on, and fetch what is new; one answer whenever there was some."
)
@click.option(
    "--every",
    type=click.FloatRange(min=0.05),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="With --follow: how long to wait before looking again.",
)
@_reaching
def pull(url: str, channel: str, follow: bool, every: float, **options: Any) -> None:
    """Keep a verified copy of a channel at URL in this repository: fetch the blocks that are missing here.

    Every block is verified before it is kept: its seal, its contents, its link to the one before, and all eight rules
    over each envelope. The copy can be read, proved and verified like any channel, and grows by pulling only. Without
    --trust, the key that the server names is believed the first time.
    """
    from ropewalk.cli.common.hangup import Hangup
    from ropewalk.ledger.proof.trust import parse_trust
    from ropewalk.ledger.remote.replica import pull_channel

    home = here().home
    trust = parse_input(options["trust"], parse_trust) if options["trust"] is not None else None
    gone = Hangup()
    with _connected(url, channel, options, patient=follow) as remote:
        first = True
        while first or (follow and not gone.wait(every)):
            with counting(f"pulling {channel}", "blocks") as told:
                pulled = pull_channel(remote, home, channel, trust=trust, told=told)
            if pulled.made and trust is None:
                say(f"believed the server that {pulled.signer} seals {channel}; --trust names who may")
            if first or pulled.blocks:
                place = f"height={pulled.to_json()['height']}" if pulled.head.height else "empty"
                line = f"ok  {channel}  blocks={pulled.blocks} envelopes={pulled.envelopes} {place}"
                if follow:
                    from ropewalk.cli.common.command import answer_line

                    answer_line(pulled.to_json(), line)
                else:
                    emit(pulled.to_json(), line)
            first = False
