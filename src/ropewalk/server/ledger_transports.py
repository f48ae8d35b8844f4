"""Channels of a node over gRPC and QUIC: the sessions of `ledger serve`, with the identities and rights of the node."""

from __future__ import annotations

from functools import partial

from ropewalk.errors import RateLimited, Unavailable, Usage
from ropewalk.ledger.remote.conversation import Peer
from ropewalk.ledger.remote.negotiate import FEATURES
from ropewalk.ledger.remote.quarantine import Quarantine
from ropewalk.ledger.remote.server import LedgerServer, is_loopback
from ropewalk.net.admission import ConnectionLimits
from ropewalk.net.tls import TlsFiles
from ropewalk.server.auth.auth_file import credentials_of
from ropewalk.server.node import ServerNode

SESSIONS_MAX = 256  # at once, of all clients


def ledger_server(node: ServerNode) -> LedgerServer | None:
    """Return what serves channels over the transports that were asked for; None without any."""
    settings = node.settings
    wanted = {"--grpc": settings.grpc, "--quic": settings.quic}
    named = [name for name, address in wanted.items() if address is not None]
    if not named:
        if settings.peer_trust is not None or settings.attest is not None:
            raise Usage("--peer-trust and --attest-command are for peers over --grpc or --quic")
        return None
    tls = settings.tls
    if tls is None or tls.client_ca is None:
        raise Usage(
            f"{named[0]} needs --tls-cert, --tls-key and --client-ca: S4 asks for mutual TLS",
            advice="`ropewalk pki` makes certificates.",
        )
    for name, address in wanted.items():
        if address is not None and settings.auth is None and not is_loopback(address[0]):
            raise Usage(
                f"{name} {address[0]} serves other machines and needs --auth FILE",
                advice="Make identities with `ropewalk auth add NAME --right LOG:ACTION`.",
            )
    return LedgerServer(
        node.place.home,
        node.channel_keys,
        port=None,
        files=TlsFiles(tls.certificate, tls.key, tls.client_ca, tls.crl),
        grpc=settings.grpc,
        quic=settings.quic,
        limits=ConnectionLimits(SESSIONS_MAX),
        attest=settings.attest,
        quarantine=Quarantine(settings.peer_trust),
        rights=partial(rights_of, node),
        leases=node.door,
    )


def rights_of(node: ServerNode, peer: Peer, channel: str) -> frozenset[str]:
    """Return what a client may do in a channel, by the auth file as it is now; raise Denied if it may do nothing."""
    if node.draining:
        raise Unavailable("the server is stopping")
    shown = [peer.token.encode()] if peer.token is not None else []
    identity = node.identify(
        credentials_of(shown, peer.certificate.der if peer.certificate is not None else None)
    )
    wait_s = node.wait_s(identity, peer.address)
    if wait_s:
        raise RateLimited(f"{identity.name} sends too many requests; wait {wait_s:.1f} s")
    log = f"ledger/{channel}"
    if not identity.may("append", log):
        identity.require("read", log)
        return FEATURES - {"append"}
    try:
        readable = identity.may("read", log)
    except Unavailable:  # a policy that cannot be read hides the channel; appends go on
        readable = False
    return FEATURES if readable else FEATURES - {"read"}
