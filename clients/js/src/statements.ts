// Key statements of a channel (S4 §13): rotations, retirements, revocations, destructions, promotions, rotations of policy and trusted evidence.

import { concat, hashFromHex, toHex, utf8 } from "./bytes.ts";
import { RopewalkError } from "./errors.ts";
import { type Json, type JsonObject, encode, hasExactly, isObject } from "./jcs.ts";
import { PublicKey, signatureFromJson } from "./keys.ts";
import { type BlockRecord, type Envelope, checkBlockSignature, parseEnvelope, parseRecord, parseTimestamp } from "./ledger.ts";
import { type Approval, type Policy, parseApproval, parsePolicy, requireApprovals } from "./policy.ts";
import { reasonOf } from "./report.ts";

const PROOFS_MAX = 4_096;
const REASON_MAX = 1_000;
const TYPES: Record<string, string> = {
  "ledger.key_rotation": "rotate", "ledger.key_retirement": "retire", "ledger.key_revocation": "revoke", "ledger.key_destruction": "destroy",
  "ledger.key_promotion": "promote", "ledger.policy_rotation": "policy", "ledger.evidence_rotation": "evidence",
};
const HINTS = ['"event_type":"ledger.key_', '"event_type":"ledger.policy_rotation', '"event_type":"ledger.evidence_rotation'];
const COMMON = ["version", "act", "channel", "key", "since"];
const MORE: Record<string, string[]> = {
  rotate: ["until", "new_key", "new_fingerprint"],
  promote: ["reason", "new_key", "new_fingerprint", "epoch", "height", "prev_block_hash"],
  policy: ["reason", "policy_hash", "new_policy_hash"],
  evidence: ["reason", "evidence_hash", "new_evidence_hash", "roots", "keys"],
};
const BASIS: Record<string, string[]> = { promote: ["below", "policy"], policy: ["policy", "new_policy"] };

/** A key statement with the sealed block that holds only it. */
export interface KeyProof { record: BlockRecord; envelope: Envelope }

/** An act with its signatures; `signed` is what the new key and the approvers sign. */
export interface KeyStatement {
  act: string;
  channel: string;
  key: string;
  sinceNs: bigint;
  untilNs: bigint;
  reason: string;
  newKey: PublicKey | null;
  signed: JsonObject;
  acceptance: ReturnType<typeof signatureFromJson> | null;
  approvals: Approval[];
  basis: JsonObject;
}

const wrong = (what: string): RopewalkError => new RopewalkError("Invalid", `key statement: ${what}`);
const unverified = (what: string): RopewalkError => new RopewalkError("Unverified", what);

/** Return whether the canonical text of an envelope could be a key statement; there are no false negatives. */
export const maybeKeyStatement = (text: string): boolean => HINTS.some((hint) => text.includes(hint));

/** Parse proofs from a JSON list, lowest height first; only the form is checked. */
export function parseKeyProofs(value: Json): KeyProof[] {
  if (!Array.isArray(value) || !value.length || value.length > PROOFS_MAX) throw new RopewalkError("Invalid", `keys must be a list of 1 to ${PROOFS_MAX} statements, or absent`);
  let below = -1;
  return value.map((each) => {
    if (!hasExactly(each, ["block", "envelope"])) throw new RopewalkError("Invalid", "keys: each item must have block and envelope");
    const record = parseRecord(encode(each.block));
    if (record.height <= below) throw new RopewalkError("Invalid", "keys must be sorted by height without duplicates");
    below = record.height;
    return { record, envelope: parseEnvelope(encode(each.envelope)) };
  });
}

/** Parse the key statement of an envelope; only the form is checked. */
export function parseKeyStatement(envelope: Envelope): KeyStatement {
  const { event_type: type, event_class: kind, payload } = envelope.value;
  const act = typeof type === "string" && Object.hasOwn(TYPES, type) ? TYPES[type] : null;
  if (act === null) throw wrong(`type "${String(type).slice(0, 80)}" is not one of ${Object.keys(TYPES).join(", ")}`);
  if (kind !== "Alert" || !isObject(payload)) throw wrong("it must be an Alert with an inline payload");
  const hasNewKey = act === "rotate" || act === "promote";
  const names = BASIS[act] ?? [];
  if (!hasExactly(payload, [...COMMON, ...(MORE[act] ?? ["reason"]), "approvals", ...(hasNewKey ? ["acceptance"] : []), ...names])) throw wrong(`expected exactly the members of the act ${act}`);
  if (payload.act !== act) throw wrong(`type ${type} does not match the act`);
  if (payload.version !== 1) throw wrong("version is unknown; expected 1");
  const { channel, key, since, approvals, reason = "" } = payload;
  if (typeof channel !== "string" || hashFromHex(key) === null) throw wrong("channel must be a string, key 64 lowercase hex digits");
  if (typeof reason !== "string" || [...reason].length > REASON_MAX) throw wrong(`reason must be a string of at most ${REASON_MAX} characters`);
  if (!Array.isArray(approvals)) throw wrong("approvals must be a list");
  const signed: JsonObject = Object.fromEntries([...COMMON, ...(MORE[act] ?? ["reason"])].map((name) => [name, payload[name]]));
  const newKey = hasNewKey ? newKeyOf(signed) : null;
  checkNumbers(signed, act);
  const sinceNs = parseTimestamp(since);
  return {
    act, channel, key: key as string, sinceNs, reason, newKey, signed,
    untilNs: act === "rotate" ? parseTimestamp(payload.until) : sinceNs,
    acceptance: hasNewKey ? signatureFromJson(payload.acceptance) : null,
    approvals: approvals.map(parseApproval),
    basis: Object.fromEntries(names.map((name) => [name, payload[name]])),
  };
}

function newKeyOf(signed: JsonObject): PublicKey {
  const key = PublicKey.fromJson(signed.new_key);
  if (signed.new_fingerprint !== toHex(key.identity())) throw wrong("new_fingerprint must be that of new_key");
  signed.new_key = { ...key.toJSON() }; // the bytes may be written in base64; hex is signed
  return key;
}

function checkNumbers(signed: JsonObject, act: string): void {
  const isHash = (name: string): boolean => hashFromHex(signed[name]) !== null;
  const isPositive = (name: string): boolean => Number.isSafeInteger(signed[name]) && (signed[name] as number) > 0;
  if (act === "promote" && !(isPositive("epoch") && isPositive("height") && isHash("prev_block_hash"))) {
    throw wrong("epoch and height must be positive integers, prev_block_hash 64 lowercase hex digits");
  }
  const hash = `${act}_hash`;
  if (["policy", "evidence"].includes(act) && !(isHash(`new_${hash}`) && (isHash(hash) || signed[hash] === null))) throw wrong(`${hash} and new_${hash} must be 64 lowercase hex digits`);
  for (const name of act === "evidence" ? ["roots", "keys"] : []) {
    const list = signed[name];
    if (!Array.isArray(list) || list.some((each) => hashFromHex(each) === null)) throw wrong(`${name} must be a list of 64 lowercase hex digits each`);
  }
}

/** Throw unless the new key, if any, accepted the act. */
export function checkAcceptance({ newKey, acceptance, signed }: KeyStatement): void {
  if (newKey === null) return;
  const message = concat(utf8("ea:key-acceptance:v1"), encode(signed));
  const reason = acceptance?.alg !== newKey.alg ? "its algorithm is not that of the key" : reasonOf(() => newKey.verify(message, acceptance.raw));
  if (reason !== null) throw new RopewalkError("SigInvalid", `the new key has not accepted: ${reason}`);
}

/** Return the block record that a promotion carries; nothing about it is checked. */
export const blockBelow = (said: KeyStatement): BlockRecord => parseRecord(encode(said.basis.below));

/** Throw unless a promotion is valid in itself; return the block below, whose signer the caller must trust. */
export function checkPromotion(said: KeyStatement, envelope: Envelope, record: BlockRecord): BlockRecord {
  const below = blockBelow(said);
  checkBlockSignature(record);
  checkBlockSignature(below);
  if (!said.newKey?.equals(record.signer) || !envelope.key.equals(record.signer)) throw new RopewalkError("SigInvalid", "the new key must sign the promotion and its block");
  const place = toHex(record.prevBlockHash);
  if (said.signed.height !== record.height || said.signed.prev_block_hash !== place) throw unverified(`it was approved for another place than block ${record.height} on ${place.slice(0, 16)}…`);
  if (toHex(below.hash) !== place || below.channel !== record.channel || below.height + 1 !== record.height) throw unverified("the block below must be the one before it in its channel");
  if (said.key !== toHex(below.signer.identity())) throw unverified(`${said.key.slice(0, 16)}… did not seal the block below`);
  const policy = parsePolicy(said.basis.policy);
  if (policy.hash !== below.policyHash || policy.hash !== record.policyHash) throw unverified("the policy must be that of the block below");
  checkAcceptance(said);
  if (!policy.controls.some((each) => each.acts.includes("promote"))) throw new RopewalkError("Denied", "no rule of the channel's policy says who may promote a replica");
  requireApprovals(said.signed, said.approvals, policy.controls);
  return below;
}

/** Return the new policy of a policy rotation; throw unless it is valid in its block. */
export function checkPolicyRotation(said: KeyStatement, record: BlockRecord): Policy {
  const old = said.basis.policy === null ? null : parsePolicy(said.basis.policy);
  const next = parsePolicy(said.basis.new_policy);
  const { policy_hash: from, new_policy_hash: to } = said.signed;
  if (record.policyHash !== from || from !== (old?.hash ?? null)) throw unverified("the old policy must be that of the block");
  if (to !== next.hash || next.hash === from) throw unverified("the new policy must be the one that the act names, and another than the old one");
  // Whatever acts a control names: a policy must not be a way around its own rules.
  if (old) requireApprovals(said.signed, said.approvals, old.controls.map((each) => ({ ...each, acts: ["policy"] })));
  return next;
}
