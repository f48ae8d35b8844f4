"""Bridges over HTTP: the state of all; webhooks, deliveries, dead letters. A secret is answered once at most."""

from __future__ import annotations

import secrets
from typing import Annotated, Any

from litestar import Response, Router, delete, get, post
from litestar.params import FromPath, QueryParameter

from ropewalk.bridge.progress import list_progress
from ropewalk.bridge.webhooks.hooks import Webhook, origin_of
from ropewalk.errors import Denied, Invalid
from ropewalk.kernel import jcs
from ropewalk.server.auth.rights import Identity
from ropewalk.server.http import models
from ropewalk.server.http.replies import Asked, body_of, identity_of, node_of, reply
from ropewalk.server.node import ServerNode

DELIVERIES_DEFAULT, DELIVERIES_MAX = 50, 500
REQUIRED = {"url": str, "log": str}
OPTIONAL = {"secret": str, "format": str, "ordered": bool, "allow_private": bool, "from_start": bool}


@get("/webhooks")
async def list_webhooks(request: Asked) -> Response[models.Webhooks]:
    """List the webhooks of the logs that the caller may read. Without the right admin, addresses are shortened."""
    node, identity = node_of(request), identity_of(request)
    rows = await node.read(node.webhooks.rows)
    return reply({"webhooks": [_shown(row, identity) for row in rows if identity.may("read", row["log"])]})


@post("/webhooks", status_code=201)
async def add_webhook(request: Asked) -> Response[models.NewWebhook]:
    """Create a webhook for a log. Needs the right admin. Without `secret` the server makes one and answers it once."""
    node, identity = node_of(request), identity_of(request)
    asked = _parse(await body_of(request))
    identity.require("admin", asked["log"])
    private = asked.pop("allow_private", False)
    if private and not node.settings.webhooks_private:
        raise Denied(
            "this server delivers to public addresses only",
            advice='Set "webhooks_private": true in the "server" object of --config, or add it with the command.',
        )
    made = None if "secret" in asked else secrets.token_hex(32)
    hook = Webhook(
        secrets.token_hex(8),
        asked["url"],
        asked["log"],
        (made or asked["secret"]).encode().hex(),
        asked.get("format", "envelope"),
        asked.get("ordered", False),
        private,
    )
    await node.read(node.webhooks.check, hook)
    await _record(node, identity, "webhook.add", hook)
    await node.read(node.webhooks.add, hook, from_start=asked.get("from_start", False))
    return reply({**hook.to_json(), "secret": made}, 201)


@delete("/webhooks/{hook:str}", status_code=200)
async def remove_webhook(request: Asked, hook: FromPath[str]) -> Response[models.RemovedWebhook]:
    """Delete a webhook with its dead letters. Needs the right admin."""
    node, identity = node_of(request), identity_of(request)
    found = await _require(node, identity, hook, "admin")
    await _record(node, identity, "webhook.remove", found)
    await node.read(node.webhooks.hooks.remove, hook)
    return reply({"removed": hook})


@get("/webhooks/{hook:str}/deliveries")
async def list_deliveries(
    request: Asked,
    hook: FromPath[str],
    limit: Annotated[
        int, QueryParameter(description="Newest attempts.", ge=1, le=DELIVERIES_MAX)
    ] = DELIVERIES_DEFAULT,
) -> Response[models.Deliveries]:
    """List the newest attempts of a webhook, what waits for another one, and its dead letters."""
    node = node_of(request)
    await _require(node, identity_of(request), hook, "read")
    return reply(await node.read(node.webhooks.hooks.deliveries, hook, limit))


@post("/webhooks/{hook:str}/replay", status_code=200)
async def replay_dead(request: Asked, hook: FromPath[str]) -> Response[models.ReplayedDeliveries]:
    """Deliver dead letters again, those of `{"ulids": […]}` or all. Needs the right admin, or a server on loopback."""
    node, identity = node_of(request), identity_of(request)
    found = await _require(node, identity, hook, "admin" if node.auth.required else "checkpoint")
    asked: Any = jcs.parse(await body_of(request))
    ulids = asked.get("ulids", []) if isinstance(asked, dict) and asked.keys() <= {"ulids"} else None
    if not isinstance(ulids, list) or not all(isinstance(each, str) for each in ulids):
        raise Invalid('the body must be {} or {"ulids": […]} with strings')
    await _record(node, identity, "webhook.replay", found)
    return reply({"replayed": await node.read(node.webhooks.hooks.raise_dead, hook, ulids)})


@get("/bridges")
async def list_bridges(request: Asked) -> Response[models.Bridges]:
    """List mirrors, broker bridges and webhooks with position, lag, last run and last error.

    A caller sees those whose logs it may read, source and target.
    """
    node, identity = node_of(request), identity_of(request)
    rows = await node.read(lambda: list(list_progress(node.log)))
    return reply({"bridges": [row for row in rows if _may_read(row, identity)]})


def _may_read(row: dict[str, Any], identity: Identity) -> bool:
    logs = [row[end] for end in ("source", "target") if "://" not in row[end]]
    return all(identity.may("read", log) for log in logs)


async def _require(node: ServerNode, identity: Identity, hook: str, action: Any) -> Webhook:
    found: Webhook = await node.read(node.webhooks.hooks.get, hook)
    identity.require(action, found.log)
    return found


async def _record(node: ServerNode, identity: Identity, act: str, hook: Webhook) -> None:
    if node.auth.required:
        facts = {"webhook": hook.id, "log": hook.log, "origin": origin_of(hook.url)}
        await node.record_act(act, identity.name, facts)


def _parse(raw: bytes) -> dict[str, Any]:
    value: Any = jcs.parse(raw)
    kinds = REQUIRED | OPTIONAL
    if not isinstance(value, dict) or not REQUIRED.keys() <= value.keys() <= kinds.keys():
        raise Invalid(f"the body must have url and log, and may have {', '.join(OPTIONAL)}")
    for name, given in value.items():
        if type(given) is not kinds[name]:
            raise Invalid(f"{name} must be a {'string' if kinds[name] is str else 'boolean'}")
    return value


def _shown(row: dict[str, Any], identity: Identity) -> dict[str, Any]:
    """Return a row as a caller may see it: the path of an address is often a secret itself."""
    return row if identity.may("admin", row["log"]) else {**row, "url": f"{origin_of(row['url'])}/…"}


ROUTES = Router(
    "/",
    route_handlers=[list_bridges, list_webhooks, add_webhook, remove_webhook, list_deliveries, replay_dead],
)
