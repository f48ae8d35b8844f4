// The parts of a ledger that proofs and bundles are made of: envelopes, block records and trust files.

import { blake3 } from "@noble/hashes/blake3.js";
import { concat, equal, fromBase64, hashFromHex, toHex, utf8 } from "./bytes.ts";
import { RopewalkError } from "./errors.ts";
import { type Json, type JsonObject, encode, hasExactly, isObject, parse, parseCanonical } from "./jcs.ts";
import { type Algorithm, PublicKey, signatureFromJson } from "./keys.ts";
import { LEDGER } from "./merkle.ts";
import { NoteKey } from "./note.ts";
import { reasonOf } from "./report.ts";
import { validate } from "./schema.ts";
import { LEDGER_ENVELOPE_SCHEMA } from "./types.ts";

export const ENVELOPE_BYTES_MAX = 4 << 20;
const INLINE_BYTES_MAX = 1 << 20;
const TRUST_BYTES_MAX = 4 << 20;
const HEADER_BYTES_MAX = 60_000;
const TIMESTAMP = /^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?Z$/;
const DECIMAL = /^(?:0|[1-9][0-9]{0,19})$/;
const FIELDS = [
  "protocol_version", "domain", "event_class", "event_type", "correlation_id", "causality_chain", "timestamp", "origin_identity",
  "attestation_evidence", "payload_hash", "payload_ref", "integrity_proof", "confidentiality_tag", "policy_tag", "signature", "payload",
];
const OPTIONAL = ["correlation_id", "causality_chain", "attestation_evidence", "payload_ref", "integrity_proof", "confidentiality_tag", "policy_tag"];
const MINIMUM_SIGNED = ["protocol_version", "domain", "event_class", "event_type", "timestamp", "origin_identity", "payload_hash"];
const SIGNABLE = new Set(FIELDS.filter((name) => name !== "signature"));
const HEADER_MEMBERS = [
  "protocol_version", "channel", "height", "prev_block_hash", "merkle_root", "timestamp", "origin_identity", "integrity_proof", "policy_hash", "envelope_count",
];

const invalid = (code: string, detail: string): RopewalkError => new RopewalkError(code, detail);

/** Return the nanoseconds since the epoch of an RFC 3339 time in UTC. */
export function parseTimestamp(text: unknown): bigint {
  const found = typeof text === "string" ? TIMESTAMP.exec(text) : null;
  const moment = found ? Date.parse(`${found[1]}Z`) : NaN;
  // Date.parse rolls impossible days over; its own text then differs.
  if (!found || Number.isNaN(moment) || found[1].startsWith("0000") || !new Date(moment).toISOString().startsWith(found[1])) {
    throw invalid("InvalidEnvelope", `timestamp "${String(text).slice(0, 64)}": expected RFC 3339 in UTC, as 2024-11-01T12:00:00Z`);
  }
  return BigInt(moment / 1000) * 1_000_000_000n + BigInt((found[2] ?? "").padEnd(9, "0"));
}

// ---- envelopes ----

/** A checked envelope: its canonical bytes, its id, its members and its author's key. */
export interface Envelope {
  raw: Uint8Array;
  id: Uint8Array;
  value: JsonObject;
  key: PublicKey;
}

/** Return the id of canonical envelope bytes, which is also its leaf in the block's tree. */
export const envelopeId = (raw: Uint8Array): Uint8Array => LEDGER.leaf(raw);

/** Parse an envelope from its canonical bytes; only the form is checked. */
export function parseEnvelope(raw: Uint8Array): Envelope {
  const value = parseCanonical(raw, ENVELOPE_BYTES_MAX);
  if (!isObject(value)) throw invalid("InvalidEnvelope", "an envelope must be a JSON object");
  if (OPTIONAL.some((name) => Object.hasOwn(value, name) && value[name] === null)) {
    throw invalid("InvalidEnvelope", "null optional members are not canonical; leave them out");
  }
  if (typeof value.timestamp !== "string") throw invalid("InvalidEnvelope", "timestamp must be RFC 3339 text");
  validate(value, LEDGER_ENVELOPE_SCHEMA, "ledger/envelope");
  parseTimestamp(value.timestamp);
  if (hashFromHex(value.payload_hash) === null) throw invalid("InvalidEnvelope", "payload_hash must be 64 lowercase hex digits, the canonical form");
  if (raw.length > INLINE_BYTES_MAX && value.payload !== null) {
    throw invalid("TooLarge", `envelope of ${raw.length} canonical bytes; a payload must be detached above ${INLINE_BYTES_MAX} bytes`);
  }
  const identity = value.origin_identity as JsonObject;
  const signature = value.signature as JsonObject;
  const alg = identity.identity_type === "attested-domain" ? signature.alg : identity.identity_type;
  let key: PublicKey;
  try {
    key = PublicKey.fromText(alg as string, identity.public_key as string);
  } catch (error) {
    throw invalid("InvalidEnvelope", `origin_identity: ${(error as RopewalkError).detail}`);
  }
  return { raw, id: envelopeId(raw), value, key };
}

/** Return whether only the hash of the payload is in the envelope. */
export const isDetached = (value: JsonObject): boolean => value.payload === null && Object.hasOwn(value, "payload_ref");

/** Throw unless payload_hash is the hash of the canonical payload. */
export function checkPayloadHash(envelope: Envelope): void {
  const got = toHex(blake3(encode(envelope.value.payload)));
  if (got !== envelope.value.payload_hash) {
    throw invalid("DigestMismatch", `payload has hash ${got}, the envelope claims ${String(envelope.value.payload_hash)}`);
  }
}

/** Throw unless the signature holds over the listed fields, and the list names the required ones. */
export function checkEnvelopeSignature(envelope: Envelope): void {
  const signature = envelope.value.signature as { alg: string; sig: string; signed_fields: string[] };
  const names = signature.signed_fields;
  const missing = MINIMUM_SIGNED.filter((name) => !names.includes(name));
  const odd = names.find((name) => !SIGNABLE.has(name));
  if (new Set(names).size !== names.length) throw invalid("SigInvalid", "a field is listed twice");
  if (missing.length) throw invalid("SigInvalid", `not signed: ${missing.join(", ")}`);
  if (odd !== undefined) throw invalid("SigInvalid", `"${odd.slice(0, 40)}" cannot be signed`);
  const kind = (envelope.value.origin_identity as JsonObject).identity_type;
  if (kind !== signature.alg && kind !== "attested-domain") throw invalid("SigInvalid", `a ${kind} identity cannot sign with ${signature.alg}`);
  envelope.key.verify(signaturePreimage(envelope.value), fromBase64(signature.sig));
}

/** Return the bytes an author signs: pairs of names and values in the order of the list. */
export function signaturePreimage(value: JsonObject): Uint8Array {
  const names = (value.signature as JsonObject).signed_fields as string[];
  return concat(utf8("ea:signature:v1"), encode(names.map((name) => [name, Object.hasOwn(value, name) ? value[name] : null])));
}

// ---- block records ----

/** The signed header of a block, its signature and the exact bytes of both. */
export interface BlockRecord {
  raw: Uint8Array;
  channel: string;
  height: number;
  prevBlockHash: Uint8Array;
  merkleRoot: Uint8Array;
  timestampNs: bigint;
  originIdentity: Uint8Array;
  envelopeCount: number;
  policyHash: string | null;
  headerBytes: Uint8Array;
  hash: Uint8Array;
  signature: { alg: Algorithm; raw: Uint8Array };
  signer: PublicKey;
}

const wrong = (what: string): RopewalkError => invalid("Invalid", `block record: ${what}`);

/** Parse a block record from its canonical bytes; only the form is checked. */
export function parseRecord(raw: Uint8Array): BlockRecord {
  const value = parseCanonical(raw, HEADER_BYTES_MAX + 1024);
  if (!hasExactly(value, ["header", "signature", "signer"])) throw wrong("expected exactly header, signature and signer");
  const header = value.header;
  if (!hasExactly(header, HEADER_MEMBERS)) throw wrong("a header must have exactly the ten members of S4 §2");
  if (header.protocol_version !== 1) throw wrong("block format is unknown; expected 1");
  if (typeof header.channel !== "string") throw wrong("channel must be a string");
  const stamp = header.timestamp;
  if (typeof stamp !== "string" || !DECIMAL.test(stamp) || BigInt(stamp) >= 2n ** 64n) throw wrong("timestamp must be nanoseconds as a decimal string");
  const headerBytes = encode(header);
  if (headerBytes.length > HEADER_BYTES_MAX) throw wrong(`header must have at most ${HEADER_BYTES_MAX} bytes, got ${headerBytes.length}`);
  return {
    raw,
    channel: header.channel,
    height: natural(header, "height", wrong),
    prevBlockHash: hash(header, "prev_block_hash"),
    merkleRoot: hash(header, "merkle_root"),
    timestampNs: BigInt(stamp),
    originIdentity: hash(header, "origin_identity"),
    envelopeCount: natural(header, "envelope_count", wrong),
    policyHash: header.policy_hash === null ? null : toHex(hash(header, "policy_hash")),
    headerBytes,
    hash: blake3(concat(utf8("ea:block:v1"), headerBytes)),
    signature: signatureFromJson(value.signature),
    signer: PublicKey.fromJson(value.signer),
  };
}

/** Throw unless the block's signature holds and the header names its signer. */
export function checkBlockSignature(record: BlockRecord): void {
  const { height, signer, signature } = record;
  if (!equal(record.originIdentity, signer.identity())) throw invalid("SigInvalid", `block ${height}: the header names another signer`);
  if (signature.alg !== signer.alg) throw invalid("SigInvalid", `block ${height}: ${signature.alg} signature of a ${signer.alg} key`);
  const reason = reasonOf(() => signer.verify(concat(utf8("ea:block-signature:v1"), record.headerBytes), signature.raw));
  if (reason !== null) throw invalid("SigInvalid", `block ${height}: ${reason}`);
}

/** Return a member that is a natural number. */
export function natural(value: JsonObject, name: string, fault: (what: string) => RopewalkError): number {
  const found = value[name];
  if (typeof found !== "number" || !Number.isSafeInteger(found) || found < 0) throw fault(`${name} must be a natural number`);
  return found;
}

function hash(value: JsonObject, name: string): Uint8Array {
  const found = hashFromHex(value[name]);
  if (found === null) throw wrong(`${name} must be 64 lowercase hex digits`);
  return found;
}

// ---- trust files ----

interface Revocation { key: string; sinceNs: bigint; reason: string }
interface Limit { sinceNs: bigint; untilNs: bigint | null }

/** What a verifier trusts. An empty list of signers trusts no key. */
export interface Trust {
  blockSigners: { key: PublicKey; limit: Limit }[];
  bundleSigners: PublicKey[];
  policyHash: string | null;
  witnesses: NoteKey[];
  revocations: Revocation[];
  judgesEvidence: boolean;
  pinsEvidence: boolean;
}

const wrongTrust = (what: string): RopewalkError => invalid("Invalid", `trust file: ${what}`);

/** Parse a trust file; unknown members are refused, because they might be meant to narrow the trust. */
export function parseTrust(raw: Uint8Array): Trust {
  const value = parse(raw, TRUST_BYTES_MAX);
  if (!hasExactly(value, ["version", "block_signers", "bundle_signers", "policy_hash", "roots"], ["evidence", "witnesses", "revocations", "names"])) {
    throw wrongTrust("expected version, block_signers, bundle_signers, policy_hash and roots");
  }
  if (value.version !== 1) throw wrongTrust("version is unknown; expected 1");
  if (value.policy_hash !== null && hashFromHex(value.policy_hash) === null) throw wrongTrust("policy_hash must be 64 lowercase hex digits or null");
  const roots = value.roots;
  if (!Array.isArray(roots) || !roots.every((root) => typeof root === "string" && root.includes("BEGIN"))) throw wrongTrust("roots must be certificates in PEM");
  for (const [did, name] of Object.entries(record(value.names ?? {}))) {
    identity(did);
    if (typeof name !== "string" || !name || [...name].length > 80 || /\p{C}|(?! )\p{Z}/u.test(name)) throw wrongTrust("names: a name must be 1 to 80 printable characters");
  }
  return {
    blockSigners: list(value.block_signers, "block_signers").map(datedIdentity),
    bundleSigners: list(value.bundle_signers, "bundle_signers").map(identity),
    policyHash: value.policy_hash as string | null,
    witnesses: list(value.witnesses ?? [], "witnesses").map((each) => {
      if (typeof each !== "string") throw wrongTrust("witnesses must be strings of the form NAME+ID+KEY");
      return NoteKey.fromText(each);
    }),
    revocations: list(value.revocations ?? [], "revocations").map(revocation),
    judgesEvidence: roots.length > 0 || Object.hasOwn(value, "evidence"),
    pinsEvidence: Object.hasOwn(value, "evidence"),
  };
}

function record(value: Json): { [member: string]: Json } {
  if (value === null || typeof value !== "object" || Array.isArray(value)) throw wrongTrust("names must be an object from did:key to a name");
  return value;
}

function list(value: Json, name: string): Json[] {
  if (!Array.isArray(value)) throw wrongTrust(`${name} must be a list`);
  return value;
}

const identity = (value: Json): PublicKey => {
  const found: { key?: PublicKey } = {};
  const reason = reasonOf(() => { found.key = typeof value === "string" ? PublicKey.fromDid(value) : PublicKey.fromJson(value); });
  if (reason !== null || found.key === undefined) throw wrongTrust(reason ?? "no identity");
  return found.key;
};

function datedIdentity(value: Json): { key: PublicKey; limit: Limit } {
  if (!isObject(value)) return { key: identity(value), limit: { sinceNs: 0n, untilNs: null } };
  const { since, until, ...bare } = value;
  const limit = { sinceNs: since === undefined ? 0n : parseTimestamp(since), untilNs: until === undefined ? null : parseTimestamp(until) };
  return { key: identity(bare), limit };
}

function revocation(value: Json): Revocation {
  if (!hasExactly(value, ["key", "since"], ["reason"])) throw wrongTrust("revocations must have key, since and optionally reason");
  const reason = value.reason ?? "";
  if (typeof reason !== "string") throw wrongTrust("reason of a revocation must be a string");
  const fingerprint = hashFromHex(value.key) === null ? toHex(identity(value.key).identity()) : (value.key as string);
  return { key: fingerprint, sinceNs: parseTimestamp(value.since), reason };
}
