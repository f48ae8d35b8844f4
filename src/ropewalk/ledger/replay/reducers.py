"""Reducers: plain functions that fold events into a state. Three are built in; any function of this form works.

    def reduce(state, event, moment) -> state

`event` is the envelope's value and must not be changed. `state` is JSON data that belongs to the fold: change it and
return it, or return another. `moment` is the only clock: the time and height of the block. A reducer that uses
anything else (the clock, randomness, the network, the environment) cannot be replayed; the guard detects it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

from ropewalk.errors import NotFound
from ropewalk.kernel import jcs
from ropewalk.ledger.envelope.fields import parse_timestamp

State = Any
"""JSON data."""


@dataclass(frozen=True, slots=True)
class FoldContext:
    """Position and time of an event: the same for every event of a block."""

    channel: str
    height: int
    now_ns: int


Fold = Callable[[State, dict[str, Any], FoldContext], State]


@dataclass(frozen=True, slots=True)
class Reducer:
    """A fold function with the name that snapshots have, and its initial state."""

    name: str
    fold: Fold
    initial: Callable[[], State] = field(default=dict)


def counts(state: State, event: dict[str, Any], _moment: FoldContext) -> State:
    """Count events by class and by type.

    >>> counts(REDUCERS["counts"].initial(), {"event_class": "Alert", "event_type": "x"}, FoldContext("c", 0, 0))
    {'total': 1, 'by_class': {'Alert': 1}, 'by_type': {'x': 1}}
    """
    kind, name = event["event_class"], event["event_type"]
    by_class, by_type = state["by_class"], state["by_type"]
    by_class[kind] = by_class.get(kind, 0) + 1
    by_type[name] = by_type.get(name, 0) + 1
    state["total"] += 1
    return state


def registers(state: State, event: dict[str, Any], moment: FoldContext) -> State:
    """Fold registers in which the last write wins, by its author's time; of equal times the later in the log.

    `register.set` with payload `{"key","value"}` writes, `register.cleared` with `{"key"}` removes. A removed register
    keeps its time, so that an older write that arrives late does not restore it.

    >>> said = {"event_type": "register.set", "payload": {"key": "a", "value": 1}, "timestamp": "2024-11-01T12:00:00Z"}
    >>> registers({}, said, FoldContext("c", 3, 0))["a"]["value"]
    1
    """
    name, payload = event["event_type"], event["payload"]
    if name not in ("register.set", "register.cleared") or not isinstance(payload, dict):
        return state
    key, stamp = payload.get("key"), event["timestamp"]
    if not isinstance(key, str):
        return state
    known = state.get(key)
    if known is not None and parse_timestamp(stamp) < parse_timestamp(known["timestamp"]):
        return state
    state[key] = {"timestamp": stamp, "height": moment.height}
    if name == "register.set":
        state[key]["value"] = payload.get("value")
    return state


# Effect of a status on what runs: True starts it, False ends it; others change nothing.
_EFFECTS: Final = {
    **{
        f"deployment.{each}": True
        for each in ("success", "succeeded", "finished", "override", "revert", "finalize")
    },
    **{f"deployment.{each}": False for each in ("removed", "retired")},
}


def deployments(state: State, event: dict[str, Any], moment: FoldContext) -> State:
    """Fold deployments: by environment and service, the last deployment that took effect.

    Events are `deployment.<status>` with a payload of `environment`, `service`, and `version`, `artifact` or `commit`.
    A failed one changes nothing; `deployment.removed` ends it.

    >>> done = {"event_type": "deployment.success", "timestamp": "2024-11-01T12:00:00Z",
    ...         "payload": {"environment": "prod", "service": "web", "version": "7"}}
    >>> deployments({}, done, FoldContext("c", 3, 0))
    {'prod': {'web': {'since': '2024-11-01T12:00:00Z', 'height': 3, 'version': '7'}}}
    """
    effect = _EFFECTS.get(event["event_type"])
    if effect is None:
        return state
    payload = event["payload"]
    if type(payload) is not dict:
        return state
    environment, service = payload.get("environment"), payload.get("service")
    if type(environment) is not str or type(service) is not str:
        return state
    running = state.get(environment)
    if effect:
        entry = {"since": event["timestamp"], "height": moment.height}
        if "version" in payload:
            entry["version"] = payload["version"]
        if "artifact" in payload:
            entry["artifact"] = payload["artifact"]
        if "commit" in payload:
            entry["commit"] = payload["commit"]
        if running is None:
            state[environment] = {service: entry}
        else:
            running[service] = entry
    elif running is not None and running.pop(service, None) is not None and not running:
        del state[environment]
    return state


def _no_counts() -> State:
    return {"total": 0, "by_class": {}, "by_type": {}}


REDUCERS: Final[dict[str, Reducer]] = {
    "counts": Reducer("counts", counts, _no_counts),
    "registers": Reducer("registers", registers),
    "deployments": Reducer("deployments", deployments),
}
"""The built-in reducers by name."""


def find_reducer(name: str) -> Reducer:
    """Return a built-in reducer, or `module:function`; a function's attribute `initial` is its initial state.

    >>> find_reducer("counts").name
    'counts'
    """
    if name in REDUCERS:
        return REDUCERS[name]
    module, _, attribute = name.partition(":")
    try:
        fold = getattr(import_module(module), attribute) if attribute else None
    except (ImportError, AttributeError) as error:
        raise NotFound(f'no reducer "{name}": {error}', name=name) from error
    if not callable(fold):
        raise NotFound(
            f'no reducer "{name}"', name=name, advice=f"One of {', '.join(REDUCERS)}, or module:function."
        )
    initial = jcs.encode(getattr(fold, "initial", {}))
    return Reducer(name, fold, lambda: jcs.parse(initial))
