"""Certificates that are replaced while clients are connected."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack
from datetime import UTC, datetime

import pytest
from tests.unit.ledger.certifying import files_of
from tests.unit.ledger.making import observed
from tests.unit.ledger.test_remote import served
from tests.waiting import LIMIT_S, soon

from ropewalk.disk.certificate_authority import init_authority
from ropewalk.ledger.remote.client import LedgerClient
from ropewalk.ledger.remote.messages import PROTOCOL
from ropewalk.ledger.remote.transports.grpc_server import _Certificates
from ropewalk.net.quic.client import connect_quic
from ropewalk.net.tls import TlsFiles, certificate_of, client_tls

pytestmark = pytest.mark.timeout(300)
ANY = ("127.0.0.1", 0)


async def shown(url: str, files: TlsFiles) -> str:
    """Whom the certificate names that a new client sees."""
    transport, _, address = url.partition("://")
    host, _, port = address.rpartition(":")
    if transport == "quic":
        link, close = await connect_quic(host, int(port), files, PROTOCOL, timeout_s=LIMIT_S)
        found = link.certificate
        await close()
    else:
        context = client_tls(files, "h2" if transport == "grpc" else PROTOCOL)
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        found = certificate_of(writer.get_extra_info("ssl_object"))
        writer.close()
    assert found is not None
    return found.subject


def test_certificates_are_renewed_on_every_transport(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("ropewalk.ledger.remote.server.RENEWAL_S", 0.02)
    pki = init_authority(tmp_path / "pki", "ropewalk", datetime.now(UTC))
    hosts: dict[str, list[str]] = {"first": ["127.0.0.1"], "second": ["127.0.0.1"], "ada": []}
    for name, addresses in hosts.items():
        pki.issue(name, addresses)
    files, new, own = (files_of(pki.folder / name) for name in hosts)

    async def main() -> None:
        async with served(tmp_path, files=files, grpc=ANY, quic=ANY) as server, AsyncExitStack() as stack:
            urls = server.urls
            assert set(urls) == {"tls", "grpc", "quic"}
            before = [
                await stack.enter_async_context(LedgerClient(url, "audit", files=own))
                for url in urls.values()
            ]
            assert {await shown(url, own) for url in urls.values()} == {"CN=first"}
            new.certificate.replace(files.certificate)
            await soon(lambda: "was not renewed" in caplog.text)
            assert {await shown(url, own) for url in urls.values()} == {"CN=first"}
            caplog.set_level("INFO", "ropewalk.ledger.remote")
            new.key.replace(files.key)
            await soon(lambda: "renewed the certificate" in caplog.text)
            assert {await shown(url, own) for url in urls.values()} == {"CN=second"}
            for number, remote in enumerate(before):
                assert (await remote.submit(observed(number).raw)).height == number
            for url in urls.values():
                async with LedgerClient(url, "audit", files=own) as remote:
                    assert remote.url == url

    asyncio.run(main())


class Raced(_Certificates):
    """Renewed by another thread between the two halves of `take`."""

    def __init__(self, files: TlsFiles) -> None:
        self.other = threading.Thread(target=self.renew, args=(files,))
        super().__init__(files)

    @property
    def _next(self):
        return self.kept

    @_next.setter
    def _next(self, value):
        if value is None and self.other.ident is None:
            self.other.start()
            self.other.join(0.2)  # it waits for us, or is done
        self.kept = value


def test_renewal_during_a_handshake_is_kept(tmp_path):
    pki = init_authority(tmp_path / "pki", "ropewalk", datetime.now(UTC))
    pki.issue("first", ["127.0.0.1"])
    raced = Raced(files_of(pki.folder / "first"))
    assert raced.take() is not None
    raced.other.join()
    assert raced.take() is not None and raced.take() is None
