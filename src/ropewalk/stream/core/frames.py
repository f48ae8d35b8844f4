"""The frames of a stream, both ways. What a client sends is held to the schema; what a server sends may hold more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, ClassVar, Final, TypeAlias

from ropewalk.errors import Invalid, TooLarge
from ropewalk.kernel import jcs
from ropewalk.kernel.schema import shipped as schema
from ropewalk.stream.core.patterns import Kind

CLIENT_FRAME_BYTES_MAX: Final = 64 << 10  # forty patterns of the longest kind take a sixth of it


@dataclass(frozen=True, slots=True)
class Sub:
    """Send me what these patterns match, and what I have missed since a frame."""

    refs: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()
    since_seq: int | None = None


@dataclass(frozen=True, slots=True)
class Unsub:
    """Send me no more of these patterns."""

    refs: tuple[str, ...] = ()
    topics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Credit:
    """So many more frames may come."""

    credit: int


@dataclass(frozen=True, slots=True)
class Ping:
    """A ping. From a server, `credit` is how many frames it may still send."""

    credit: int | None = None


@dataclass(frozen=True, slots=True)
class Pong:
    """I am here. From a client, `credit` lets so many more frames come."""

    credit: int | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    """The first frame of a connection: which stream this is, and the newest frame it has.

    S2 shows an empty `ack`. Then there is no position to resume from, and no credit.
    """

    stream: str | None
    seq: int | None
    credit: int | None
    ts: str


@dataclass(frozen=True, slots=True)
class RefUpdate:
    """A ref moved, appeared (`old` is None) or went away (`new` is None)."""

    subject: ClassVar[Kind] = "ref"
    ref: str
    old: str | None
    new: str | None
    seq: int = 0
    ts: str = ""
    seq_origin: int | None = None
    seq_proxy: int | None = None
    credit: int | None = None

    @property
    def name(self) -> str:
        """What patterns are held against."""
        return self.ref


@dataclass(frozen=True, slots=True)
class BusEvent:
    """A message of a topic. `about` holds the other members of the frame: ulid, type, content_id, commit.

    S2 wants the origin's number inside the payload once a frame came through a proxy. There it travels, unless the
    payload has a member `seq_origin`; here it is kept apart from the payload, which is what was published.
    """

    subject: ClassVar[Kind] = "topic"
    topic: str
    payload: Mapping[str, Any]
    seq: int = 0
    ts: str = ""
    about: Mapping[str, Any] | None = None
    seq_origin: int | None = None
    seq_proxy: int | None = None
    credit: int | None = None

    @property
    def name(self) -> str:
        """What patterns are held against."""
        return self.topic


@dataclass(frozen=True, slots=True)
class ErrorFrame:
    """Something was refused or lost. `ref` or `topic` is the name it is about, as the client wrote it; `dropped` is
    that nothing will come of that name, not only less.

    Of frames that are lost, `missing_seq` is the first, `oldest_seq` the oldest still there; what comes after `seq`
    will be sent.
    """

    code: str
    message: str = ""
    missing_seq: int | None = None
    oldest_seq: int | None = None
    seq: int | None = None
    ref: str | None = None
    topic: str | None = None
    dropped: bool | None = None


ClientFrame: TypeAlias = Sub | Unsub | Credit | Ping | Pong
Data: TypeAlias = RefUpdate | BusEvent
ServerFrame: TypeAlias = Ack | RefUpdate | BusEvent | Ping | Pong | ErrorFrame

_OPS: Final = {Sub: "sub", Unsub: "unsub", Credit: "credit"}
_WIRE: Final = {"since_seq": "sinceSeq", "missing_seq": "missingSeq", "oldest_seq": "oldestSeq"}
# Of each kind that a server sends: its members with their types, and those that must be there.
_SHAPES: Final[Mapping[str, tuple[Any, Mapping[str, type], tuple[str, ...]]]] = {
    "ref.update": (
        RefUpdate,
        {
            **{"ref": str, "old": str, "new": str, "seq": int, "ts": str},
            **{"seq_origin": int, "seq_proxy": int, "credit": int},
        },
        ("ref", "seq", "ts"),
    ),
    "bus.event": (
        BusEvent,
        {"topic": str, "payload": dict, "seq": int, "ts": str, "seq_proxy": int, "credit": int},
        ("topic", "payload", "seq", "ts"),
    ),
    "ack": (Ack, {"stream": str, "seq": int, "credit": int, "ts": str}, ()),
    "ping": (Ping, {"credit": int}, ()),
    "pong": (Pong, {"credit": int}, ()),
    "error": (
        ErrorFrame,
        {
            **{"code": str, "message": str, "missing_seq": int, "oldest_seq": int, "seq": int},
            **{"ref": str, "topic": str},
        },
        ("code",),
    ),
}
_KINDS: Final = {shape[0]: kind for kind, shape in _SHAPES.items()}
_BUS_EVENT: Final = frozenset(("kind", "seq_origin", *_SHAPES["bus.event"][1]))


def encode(frame: ClientFrame | ServerFrame) -> str:
    """Return a frame as it travels.

    >>> encode(Sub(topics=("jobs.*",), since_seq=7))
    '{"op":"sub","refs":[],"sinceSeq":7,"topics":["jobs.*"]}'
    >>> encode(RefUpdate("refs/gatos/x", None, "8b1c", 9, "2026-01-02T03:04:05.000Z"))
    '{"kind":"ref.update","new":"8b1c","old":null,"ref":"refs/gatos/x","seq":9,"ts":"2026-01-02T03:04:05.000Z"}'
    """
    kind = type(frame)
    document: dict[str, Any] = dict(frame.about or {}) if isinstance(frame, BusEvent) else {}
    if kind in _KINDS:
        document["kind"] = _KINDS[kind]
    else:
        document["op"] = _OPS[kind]
    for name in frame.__slots__:
        value = getattr(frame, name)
        if name != "about" and (value is not None or name in ("old", "new")):
            document[_WIRE.get(name, name)] = value
    # Where the payload has a member of that name, the number is kept apart: payloads arrive unchanged.
    if isinstance(frame, BusEvent) and frame.seq_origin is not None and "seq_origin" not in frame.payload:
        document["payload"] = {**frame.payload, "seq_origin": document.pop("seq_origin")}
    return jcs.encode_foreign(document).decode()


def parse_client(data: str | bytes) -> ClientFrame:
    """Return what a client said. Anything the schema does not name is refused, and so are duplicate keys.

    >>> parse_client('{"op":"sub","topics":["jobs.*"]}')
    Sub(refs=(), topics=('jobs.*',), since_seq=None)
    >>> parse_client('{"op":"sub","sinceSeq":-1}')
    Traceback (most recent call last):
    ropewalk.errors.InvalidEnvelope: /sinceSeq: found -1, expected a sequence number, 0 or more (api/client_frame)
    """
    if isinstance(data, bytes):
        raise Invalid("a binary frame; frames are JSON texts", reason="binary")
    raw = data.encode("utf-8", "surrogatepass")
    if len(raw) > CLIENT_FRAME_BYTES_MAX:
        raise TooLarge(
            f"a frame of {len(raw)} bytes; at most {CLIENT_FRAME_BYTES_MAX} are taken",
            size=len(raw),
            limit=CLIENT_FRAME_BYTES_MAX,
        )
    document: Any = jcs.parse(raw)
    schema.validate("api/client_frame", document)
    match document.get("op") or document["kind"]:
        case "sub":
            since = document.get("sinceSeq")
            return Sub(_names(document, "refs"), _names(document, "topics"), _whole(since))
        case "unsub":
            return Unsub(_names(document, "refs"), _names(document, "topics"))
        case "credit":
            return Credit(int(document["credit"]))
        case "ping":
            return Ping(_whole(document.get("credit")))
        case _:
            return Pong(_whole(document.get("credit")))


def parse_server(data: str | bytes) -> ServerFrame | None:
    """Parse what a server said; None for a kind we do not know. Unknown members are no fault: servers may say more.

    >>> parse_server('{"kind":"ack","stream":"01HF","seq":77,"credit":1000}')
    Ack(stream='01HF', seq=77, credit=1000, ts='')
    >>> parse_server('{"kind":"weather"}') is None
    True
    """
    if isinstance(data, bytes):
        raise Invalid("the server sent a binary frame; frames are JSON texts", reason="binary")
    found = jcs.parse_foreign(data.encode("utf-8", "surrogatepass"))
    if not isinstance(found, dict):
        raise Invalid("the server sent a frame that is no JSON object", reason="frame")
    shape = _SHAPES.get(str(found.get("kind")))
    if shape is None:
        return None
    kind, members, needed = shape
    read: dict[str, Any] = {name: _member(found, name, of, name in needed) for name, of in members.items()}
    if kind is BusEvent:
        read |= _bus_event(read, found)
    if kind is ErrorFrame:
        read["dropped"] = found.get("dropped") is True or None
    frame: ServerFrame = kind(**read)
    return frame


def _bus_event(read: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what differs from the members as they travel: the origin's number may be inside the payload."""
    payload, seq_origin = read["payload"], None
    inside = payload.get("seq_origin")
    if read["seq_proxy"] is not None and "seq_origin" in found:
        # The payload has a member of that name, which is not the proxy's.
        seq_origin = _member(found, "seq_origin", int, needed=True)
    elif read["seq_proxy"] is not None and isinstance(inside, int) and not isinstance(inside, bool):
        seq_origin = inside  # a proxy has put it there
        payload = {key: value for key, value in payload.items() if key != "seq_origin"}
    about = {key: value for key, value in found.items() if key not in _BUS_EVENT}
    return {"payload": payload, "seq_origin": seq_origin, "about": about or None}


def _member(found: Mapping[str, Any], name: str, of: type, needed: bool) -> Any:
    """Return a member of the type that a frame needs; without one, an empty text for what is always a text."""
    wire = _WIRE.get(name, name)
    value = found.get(wire)
    if value is None and not needed:
        return "" if name in ("message", "ts") else None
    if of is int and isinstance(value, float) and value == value // 1:
        value = int(value)
    if not isinstance(value, of) or isinstance(value, bool) or (isinstance(value, int) and value < 0):
        kind = str(found.get("kind"))[:20]
        raise Invalid(f"the server sent a frame of kind {kind} without a sound {wire}", where=f"/{wire}")
    return value


def relayed(frame: Data, seq: int) -> Data:
    """Return a frame of an upstream as a proxy passes it on: numbered by the proxy, with the origin's number inside.

    >>> relayed(RefUpdate("refs/gatos/x", None, "8b1c", 9, ""), 123).seq_origin
    9
    >>> encode(relayed(BusEvent("jobs", {"id": 7}, 9, ""), 124))
    '{"kind":"bus.event","payload":{"id":7,"seq_origin":9},"seq":124,"seq_proxy":124,"topic":"jobs","ts":""}'
    """
    # Over two proxies it stays the origin's.
    origin = frame.seq if frame.seq_origin is None else frame.seq_origin
    return replace(frame, seq=seq, seq_proxy=seq, seq_origin=origin, credit=None)


def timestamp(time_ms: int) -> str:
    """Return a moment as frames write it.

    >>> timestamp(1_767_323_045_678)
    '2026-01-02T03:04:05.678Z'
    """
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"


def _names(document: Mapping[str, Any], member: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(document.get(member, ())))


def _whole(number: int | float | None) -> int | None:
    return None if number is None else int(number)  # the schema lets 7.0 pass for 7
