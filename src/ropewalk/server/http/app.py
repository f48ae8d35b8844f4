"""The Litestar application: every route, and problem+json for whatever goes wrong."""

from __future__ import annotations

from typing import Any

from litestar import Litestar, Router
from litestar.datastructures import State
from litestar.openapi.config import OpenAPIConfig

from ropewalk import __version__
from ropewalk.server import webhook_routes
from ropewalk.server.http import (
    console,
    git_routes,
    gossip_routes,
    ledger_routes,
    live_routes,
    overview_routes,
    warehouse_routes,
)
from ropewalk.server.http.guard import Gate, Guard
from ropewalk.server.http.openapi import operation_id
from ropewalk.server.http.problems import on_error
from ropewalk.server.node import ServerNode

API = "/api/v1"


def make_routes(node: ServerNode | None) -> Litestar:
    """Return the routes; without a node, for the document alone."""
    api = Router(
        API,
        route_handlers=[
            git_routes.ROUTES,
            ledger_routes.ROUTES,
            gossip_routes.ROUTES,
            overview_routes.ROUTES,
            warehouse_routes.ROUTES,
            webhook_routes.ROUTES,
            live_routes.API_ROUTES,
        ],
    )
    pages: list[Any] = console.page_routes() if node is not None and node.settings.console else []
    outer: list[Any] = [*live_routes.OUTER_ROUTES]
    return Litestar(
        [api, *outer, *pages],
        state=State({"node": node}),
        exception_handlers={Exception: on_error},
        openapi_config=OpenAPIConfig(
            title="ropewalk",
            version=__version__,
            path="/.openapi",
            use_handler_docstrings=True,
            operation_id_creator=operation_id,
        ),
        request_max_body_size=node.settings.body_bytes_max if node is not None else None,
        logging_config=None,
        debug=False,
    )


def make_app(node: ServerNode, gate: Gate) -> Guard:
    """Return the whole application."""
    return Guard(make_routes(node), node, gate)  # type: ignore[arg-type]
