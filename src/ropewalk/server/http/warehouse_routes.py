"""The tables of a warehouse over HTTP, read-only: `serve --warehouse DIR`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from litestar import Response, Router, get, post

from ropewalk.errors import Invalid, NotFound, Unavailable
from ropewalk.kernel import jcs
from ropewalk.server.auth.rights import WAREHOUSE
from ropewalk.server.http import models
from ropewalk.server.http.replies import Asked, body_of, identity_of, node_of, reply
from ropewalk.server.node import ServerNode

if TYPE_CHECKING:
    from ropewalk.pipeline.tables.warehouse import Warehouse

SQL_BYTES_MAX = 64 << 10
SQL_ROWS_MAX = 10_000
SQL_SECONDS_MAX = 10.0
SQL_MEMORY_BYTES_MAX = 256 << 20
BATCHES_SHOWN = 50


def _open(request: Asked) -> Warehouse:
    """Return the warehouse for a caller with the right `read` on `warehouse`."""
    identity_of(request).require("read", WAREHOUSE)
    folder = node_of(request).settings.warehouse
    if folder is None:
        raise NotFound(
            "this server has no warehouse", advice="Start it with `ropewalk serve --warehouse DIR`."
        )
    try:
        from ropewalk.pipeline.tables.warehouse import Warehouse
    except ImportError as error:
        raise Unavailable(
            f"the warehouse needs {error.name}", advice='Run: pip install ".[spark]"'
        ) from error
    return Warehouse(folder)


@get("/warehouse")
async def show_warehouse(request: Asked) -> Response[models.WarehouseFacts]:
    """Show the tables with their rows and recorded heads, the newest batches, and the runs of all jobs."""
    store, node = _open(request), node_of(request)
    from ropewalk.pipeline.tables.warehouse import JOB_TABLES

    def look() -> dict[str, Any]:
        manifests = store.require().manifests()
        tables = []
        for name, files in store.current_files(manifests).items():
            last = next(each for each in reversed(manifests) if name in each.files)
            heads = {f"{log.engine}/{log.topic}": point.head for log, point in last.end.points.items()}
            size = sum(each.size for each in files)  # a writer may have removed the files meanwhile
            tables.append(
                {"name": name, "rows": sum(each.rows for each in files), "bytes": size, "heads": heads}
            )
        batches = [
            {"number": each.number, "made_ms": each.made_ms, "rows": each.rows, "logs": list(each.logs)}
            for each in manifests[-BATCHES_SHOWN:]
        ]
        noted = [name for name in JOB_TABLES if store.noted(name)]
        return {"tables": tables, "noted": noted, "batches": batches, "runs": store.runs()[-BATCHES_SHOWN:]}

    return reply(await node.read(look))


@post("/warehouse/sql", status_code=200)
async def ask_warehouse(request: Asked) -> Response[models.SqlAnswer]:
    """Answer one SELECT over the tables: `{"query", "limit"}`. Files, network and other statements are refused."""
    store, node = _open(request), node_of(request)
    raw = await body_of(request)
    document: Any = jcs.parse(raw, bytes_max=SQL_BYTES_MAX)
    if not isinstance(document, dict) or not {"query"} <= document.keys() <= {"query", "limit"}:
        raise Invalid('the body must be {"query": …} with, if wanted, "limit"')
    query, limit = document["query"], document.get("limit", 1_000)
    if not isinstance(query, str) or not isinstance(limit, int) or not 1 <= limit <= SQL_ROWS_MAX:
        raise Invalid(f'"query" must be a string and "limit" a number from 1 to {SQL_ROWS_MAX}')
    return reply(await node.read_long(_ask, node, store, query, limit))


def _ask(_node: ServerNode, store: Warehouse, query: str, limit: int) -> dict[str, Any]:
    from ropewalk.pipeline.tables.duck import ask_duckdb

    answer, is_cut = ask_duckdb(
        store.require(), query, limit + 1, seconds_max=SQL_SECONDS_MAX, memory_bytes=SQL_MEMORY_BYTES_MAX
    ).head(limit)
    return {**answer.to_json(), "truncated": is_cut}


ROUTES = Router("/", route_handlers=[show_warehouse, ask_warehouse], tags=["warehouse"])
