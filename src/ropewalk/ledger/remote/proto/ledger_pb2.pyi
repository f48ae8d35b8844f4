from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Session(_message.Message):
    __slots__ = ("id", "channel")
    ID_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    channel: str
    def __init__(self, id: _Optional[bytes] = ..., channel: _Optional[str] = ...) -> None: ...

class NegotiateRequest(_message.Message):
    __slots__ = ("channel", "advertisement")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    ADVERTISEMENT_FIELD_NUMBER: _ClassVar[int]
    channel: str
    advertisement: bytes
    def __init__(self, channel: _Optional[str] = ..., advertisement: _Optional[bytes] = ...) -> None: ...

class NegotiateResponse(_message.Message):
    __slots__ = ("session", "advertisement", "agreed", "facts")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ADVERTISEMENT_FIELD_NUMBER: _ClassVar[int]
    AGREED_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    advertisement: bytes
    agreed: bytes
    facts: bytes
    def __init__(self, session: _Optional[bytes] = ..., advertisement: _Optional[bytes] = ..., agreed: _Optional[bytes] = ..., facts: _Optional[bytes] = ...) -> None: ...

class AppendRequest(_message.Message):
    __slots__ = ("session", "envelopes")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    session: Session
    envelopes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., envelopes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class AppendResponse(_message.Message):
    __slots__ = ("request", "first", "outcomes")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    request: int
    first: int
    outcomes: _containers.RepeatedCompositeFieldContainer[Outcome]
    def __init__(self, request: _Optional[int] = ..., first: _Optional[int] = ..., outcomes: _Optional[_Iterable[_Union[Outcome, _Mapping]]] = ...) -> None: ...

class Outcome(_message.Message):
    __slots__ = ("receipt", "problem")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    receipt: Receipt
    problem: Problem
    def __init__(self, receipt: _Optional[_Union[Receipt, _Mapping]] = ..., problem: _Optional[_Union[Problem, _Mapping]] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("envelope_id", "height", "index", "block_hash", "replayed", "audit")
    ENVELOPE_ID_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASH_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    AUDIT_FIELD_NUMBER: _ClassVar[int]
    envelope_id: bytes
    height: int
    index: int
    block_hash: bytes
    replayed: bool
    audit: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, envelope_id: _Optional[bytes] = ..., height: _Optional[int] = ..., index: _Optional[int] = ..., block_hash: _Optional[bytes] = ..., replayed: _Optional[bool] = ..., audit: _Optional[_Iterable[str]] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("code", "status", "detail", "json")
    CODE_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    code: str
    status: int
    detail: str
    json: bytes
    def __init__(self, code: _Optional[str] = ..., status: _Optional[int] = ..., detail: _Optional[str] = ..., json: _Optional[bytes] = ...) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("session", "to", "max_bytes")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    FROM_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    session: Session
    to: int
    max_bytes: int
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., to: _Optional[int] = ..., max_bytes: _Optional[int] = ..., **kwargs) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("height", "first", "lines_total", "lines")
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LINES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    height: int
    first: int
    lines_total: int
    lines: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, height: _Optional[int] = ..., first: _Optional[int] = ..., lines_total: _Optional[int] = ..., lines: _Optional[_Iterable[bytes]] = ...) -> None: ...

class HeadRequest(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: Session
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class HeadResponse(_message.Message):
    __slots__ = ("height", "block_hash", "envelopes", "key", "signer", "policy")
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HASH_FIELD_NUMBER: _ClassVar[int]
    ENVELOPES_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNER_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    height: int
    block_hash: bytes
    envelopes: int
    key: str
    signer: bytes
    policy: bytes
    def __init__(self, height: _Optional[int] = ..., block_hash: _Optional[bytes] = ..., envelopes: _Optional[int] = ..., key: _Optional[str] = ..., signer: _Optional[bytes] = ..., policy: _Optional[bytes] = ...) -> None: ...

class ProveRequest(_message.Message):
    __slots__ = ("session", "envelope_id")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    ENVELOPE_ID_FIELD_NUMBER: _ClassVar[int]
    session: Session
    envelope_id: bytes
    def __init__(self, session: _Optional[_Union[Session, _Mapping]] = ..., envelope_id: _Optional[bytes] = ...) -> None: ...

class ProveResponse(_message.Message):
    __slots__ = ("proof",)
    PROOF_FIELD_NUMBER: _ClassVar[int]
    proof: bytes
    def __init__(self, proof: _Optional[bytes] = ...) -> None: ...
