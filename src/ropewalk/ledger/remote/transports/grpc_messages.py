"""The ledger service of gRPC: its methods, its messages beside ours, and errors as google.rpc.Status."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import grpc
from google.rpc import error_details_pb2, status_pb2

from ropewalk.errors import Invalid, RopewalkError, Unavailable
from ropewalk.kernel import jcs
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.remote.messages import RemoteMessage, error_of, outcome_part
from ropewalk.ledger.remote.proto import ledger_pb2 as pb

SERVICE: Final = "ea.ledger.v1.Ledger"
DOMAIN: Final = "ea.ledger.v1"
DETAILS_KEY: Final = "grpc-status-details-bin"
PROBLEM_BYTES_MAX: Final = 4_000  # peers take 8 KiB of trailers
# Name, whether the request and the answer are streams, and their types.
METHODS: Final = (
    ("Negotiate", False, False, pb.NegotiateRequest, pb.NegotiateResponse),
    ("Append", True, True, pb.AppendRequest, pb.AppendResponse),
    ("Read", False, True, pb.ReadRequest, pb.ReadResponse),
    ("Head", False, False, pb.HeadRequest, pb.HeadResponse),
    ("Prove", False, False, pb.ProveRequest, pb.ProveResponse),
)
_CODES: Final = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    409: grpc.StatusCode.ABORTED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    422: grpc.StatusCode.FAILED_PRECONDITION,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}


def handlers(servicer: Any) -> grpc.GenericRpcHandler:
    """Return the methods of the service, each answered by the method of that name."""
    kinds = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            name: kinds[asks, answers](
                getattr(servicer, name),
                request_deserializer=request.FromString,
                response_serializer=response.SerializeToString,
            )
            for name, asks, answers, request, response in METHODS
        },
    )


def calls(channel: grpc.aio.Channel) -> dict[str, Any]:
    """Return the methods of the service, as a client calls them."""
    kinds = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, True): channel.stream_stream,
    }
    return {
        name: kinds[asks, answers](
            f"/{SERVICE}/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        for name, asks, answers, request, response in METHODS
    }


def outcome_message(outcome: LedgerReceipt | RopewalkError) -> pb.Outcome:
    """Return what became of an envelope."""
    if isinstance(outcome, LedgerReceipt):
        receipt = pb.Receipt(
            envelope_id=outcome.envelope_id,
            height=outcome.height,
            index=outcome.index,
            block_hash=outcome.block_hash,
            replayed=outcome.replayed,
            audit=outcome.audit,
        )
        return pb.Outcome(receipt=receipt)
    problem = pb.Problem(
        code=outcome.code, status=outcome.status, detail=outcome.detail[:2_000], json=outcome_part(outcome)
    )
    return pb.Outcome(problem=problem)


def outcome_from(raw: bytes) -> LedgerReceipt | RopewalkError:
    """Return the receipt or error of an `Outcome`, given as its bytes."""
    found = pb.Outcome.FromString(raw)
    if found.WhichOneof("outcome") == "problem":
        return problem_from(found.problem.json)
    said = found.receipt
    if len(said.envelope_id) != 32 or len(said.block_hash) != 32:
        raise Invalid("message: envelope_id and block_hash of a receipt must have 32 bytes")
    return LedgerReceipt(
        said.envelope_id, said.height, said.index, said.block_hash, said.replayed, tuple(said.audit)
    )


def problem_from(raw: bytes) -> RopewalkError:
    """Return the error of a problem in JSON."""
    value = jcs.parse(raw)
    if not isinstance(value, dict):
        raise Invalid("message: a problem must be an object")
    return error_of(value)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: RopewalkError) -> None:
    """End a call with an error, its problem in the details of the status."""
    code = _CODES.get(error.status, grpc.StatusCode.INTERNAL)
    problem = outcome_part(error)
    if len(problem) > PROBLEM_BYTES_MAX:
        problem = outcome_part(type(error)(error.detail[:500], advice=error.advice_now[:500]))
    info = error_details_pb2.ErrorInfo(
        reason=error.code, domain=DOMAIN, metadata={"problem": problem.decode()}
    )
    status = status_pb2.Status(code=code.value[0], message=error.detail[:500])
    status.details.add().Pack(info)
    await context.abort(code, error.detail[:500], ((DETAILS_KEY, status.SerializeToString()),))


def error_from(url: str, failed: grpc.aio.AioRpcError) -> RopewalkError:
    """Return the error that ended a call, as if it had been raised here."""
    for name, value in failed.trailing_metadata() or ():
        if name == DETAILS_KEY:
            info = error_details_pb2.ErrorInfo()
            for each in status_pb2.Status.FromString(value).details:
                if each.Unpack(info) and info.domain == DOMAIN and "problem" in info.metadata:
                    return problem_from(info.metadata["problem"].encode())
    text = f"{url}: {(failed.details() or failed.code().name)[:500]}"
    broken = (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNIMPLEMENTED,
    )
    return Unavailable(text) if failed.code() in broken else Invalid(text)


def request_message(message: RemoteMessage, session: pb.Session, bytes_max: int) -> tuple[str, Any]:
    """Return the method that a request means, and its message."""
    facts = message.facts
    if message.op == "blocks":
        make = partial(pb.ReadRequest, session=session, max_bytes=bytes_max, to=facts.get("to"))
        return "Read", make(**{"from": facts["from"]})
    if message.op == "prove":
        return "Prove", pb.ProveRequest(session=session, envelope_id=bytes.fromhex(facts["envelope_id"]))
    return "Head", pb.HeadRequest(session=session)
