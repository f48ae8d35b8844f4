// Verify proofs, bundle manifests and signed heads offline. What is not checked is reported as not checked.

import { hashFromHex, toHex } from "./bytes.ts";
import { MAGIC } from "./archive.ts";
import { type BundleOptions, verifyBundle } from "./bundle.ts";
import { RopewalkError } from "./errors.ts";
import { KeyHistory } from "./history.ts";
import { type TrustLike, evidenceStep, trustOf } from "./judge.ts";
import { type Json, type JsonObject, encode, hasExactly, isObject, parse } from "./jcs.ts";
import {
  type BlockRecord, type Envelope, type Trust, checkBlockSignature, checkEnvelopeSignature, checkPayloadHash, isDetached, natural, parseEnvelope, parseRecord,
} from "./ledger.ts";
import { openManifest } from "./manifest.ts";
import { LEDGER, RANGE, SHA256, verifyConsistency, verifyInclusion, verifyRange } from "./merkle.ts";
import { type NoteLine, NoteKey, type SignedHead, claimedHead, distinctWitnesses, isKeyName } from "./note.ts";
import { type Report, type Step, compared, notChecked, reasonOf, reportOf } from "./report.ts";
import { type KeyProof, parseKeyProofs } from "./statements.ts";

const PATH_MAX = 64;
const PROOF_BYTES_MAX = 16 << 20;

const short = (digest: Uint8Array): string => `${toHex(digest).slice(0, 16)}…`;
const invalid = (detail: string): RopewalkError => new RopewalkError("InvalidProof", `proof: ${detail}`);

/** Verify any file that ropewalk hands out: a bundle, a proof, a range, a consistency proof or a checkpoint. */
export function verify(raw: Uint8Array, options: BundleOptions & CheckpointOptions = {}): Report {
  if (MAGIC.every((byte, at) => raw[at] === byte)) return verifyBundle(raw, options);
  if (raw[0] !== 0x7b) return verifyCheckpoint(raw, options);
  const value = parse(raw, PROOF_BYTES_MAX);
  if (isObject(value) && (value.kind === "range" || value.kind === "consistency")) return verifyStatement(value);
  return verifyProof(raw, options.trust);
}

// ---- the proof of an envelope ----

interface Proof {
  envelope: Envelope;
  envelopeId: Json;
  height: number;
  index: number;
  path: Uint8Array[];
  block: BlockRecord;
  keys: KeyProof[];
}

/** Parse a proof file; only the form is checked. */
export function parseProof(raw: Uint8Array): Proof {
  const value = parse(raw, PROOF_BYTES_MAX);
  if (!hasExactly(value, ["version", "envelope", "envelope_id", "height", "index", "path", "block"], ["keys"])) {
    throw invalid("expected version, envelope, envelope_id, height, index, path and block");
  }
  if (value.version !== 1) throw invalid("version is unknown; expected 1");
  const found: { proof?: Proof } = {};
  const reason = reasonOf(() => {
    found.proof = {
      envelope: parseEnvelope(encode(value.envelope)),
      index: natural(value, "index", invalid),
      path: hashes(value.path),
      block: parseRecord(encode(value.block)),
      height: natural(value, "height", invalid),
      envelopeId: value.envelope_id,
      keys: Object.hasOwn(value, "keys") ? parseKeyProofs(value.keys) : [],
    };
  });
  if (reason !== null || found.proof === undefined) throw invalid((reason ?? "").replace(/^proof: /, ""));
  return found.proof;
}

/** Verify every step of a proof. Without a trust file the block's signer stays unchecked, and the verdict `untrusted`. */
export function verifyProof(raw: Uint8Array, trusted?: TrustLike): Report {
  const proof = parseProof(raw);
  const trust = trustOf(trusted);
  const { block, envelope } = proof;
  const history = new KeyHistory(trust, true);
  const broken = reasonOf(() => history.follow(proof.keys.filter((each) => each.record.channel === block.channel)));
  const signed = ((envelope.value.signature as JsonObject).signed_fields as Json[]).length;
  const steps = [
    compared("envelope_hash", `id ${short(envelope.id)} in block ${block.height}`, () => checkClaims(proof)),
    payloadStep(envelope),
    compared("envelope_signature", `${signed} fields, by ${envelope.key.did()}`, () => {
      checkEnvelopeSignature(envelope);
      if (trust) history.checkAuthor(envelope.key, block.height, block.timestampNs);
    }),
    compared("merkle_path", `envelope ${proof.index} among ${block.envelopeCount}, under root ${short(block.merkleRoot)}`, () =>
      verifyInclusion(envelope.id, BigInt(proof.index), BigInt(block.envelopeCount), proof.path, block.merkleRoot, LEDGER)),
    compared("block_signature", `block ${block.height} ${short(block.hash)} of ${block.channel}, sealed by ${block.signer.did()}`, () => checkBlockSignature(block)),
  ];
  if (trust === null) {
    steps.push(notChecked("block_signer", `no trust file: sealed by ${block.signer.did()}, which is not known to be trusted`, "trust"));
    steps.push(notChecked("policy_hash", "no trust file", "optional"));
  } else {
    steps.push(signerStep(block, history, broken, trust), policyStep(history, block.height, block.policyHash, trust.policyHash));
  }
  if (Object.hasOwn(envelope.value, "attestation_evidence")) steps.push(evidenceStep(1, trust));
  return reportOf(steps, { entries: 1 });
}

function checkClaims(proof: Proof): void {
  const id = toHex(proof.envelope.id);
  if (proof.envelopeId !== id) throw invalid(`the envelope has the id ${id}, the proof claims ${String(proof.envelopeId).slice(0, 64)}`);
  if (proof.height !== proof.block.height) throw invalid(`the block has height ${proof.block.height}, the proof claims ${proof.height}`);
}

function payloadStep(envelope: Envelope): Step {
  const reason = reasonOf(() => checkPayloadHash(envelope));
  if (reason === null) return { name: "payload_hash", status: "passed", detail: `payload ${String(envelope.value.payload_hash).slice(0, 16)}…` };
  if (isDetached(envelope.value)) return notChecked("payload_hash", "the payload is detached", "optional");
  return { name: "payload_hash", status: "failed", detail: reason };
}

function signerStep(block: BlockRecord, history: KeyHistory, broken: string | null, trust: Trust): Step {
  const name = "block_signer";
  const [did, found] = [block.signer.did(), history.signer(block.signer)];
  if (broken !== null) return { name, status: "failed", detail: broken };
  if (found && !found.named && found.leads) {
    return notChecked(name, `${did} was replaced by a key that the trust file names, and is not named itself: whether it was valid at block ${block.height} cannot be checked`);
  }
  if (!found?.named) return { name, status: "failed", detail: `block ${block.height}: signer ${did} is not trusted` };
  const isListed = trust.blockSigners.some((each) => each.key.equals(block.signer));
  const what = isListed ? `${did}, one of ${trust.blockSigners.length} trusted to seal blocks` : `${did}, which ${found.words}: it replaced a key that is trusted to seal blocks`;
  return compared(name, what, () => history.check(block));
}

function policyStep(history: KeyHistory, height: number, have: string | null, pinned: string | null): Step {
  if (pinned === null) return notChecked("policy_hash", "the trust file pins no policy", "optional");
  if (history.fitsPolicy(height, have, pinned)) {
    const how = have === pinned ? "as pinned" : `which follows ${pinned.slice(0, 16)}…`;
    return { name: "policy_hash", status: "passed", detail: `policy ${(have ?? "none").slice(0, 16)}…, ${how}` };
  }
  return { name: "policy_hash", status: "failed", detail: `policy mismatch: the trust file pins ${pinned.slice(0, 16)}…, the block has ${have === null ? "none" : `${have.slice(0, 16)}…`}` };
}

// ---- ranges and consistency ----

function verifyStatement(value: JsonObject): Report {
  const isRange = value.kind === "range";
  const names = isRange
    ? ["version", "kind", "channel", "start", "size", "block_hashes", "left", "right", "root"]
    : ["version", "kind", "channel", "old", "new", "old_root", "new_root", "path"];
  if (!hasExactly(value, names) || value.version !== 1 || typeof value.channel !== "string") throw invalid(`expected a ${String(value.kind)} statement of version 1`);
  const step = isRange ? rangeStep(value) : consistencyStep(value);
  const root = hashes([isRange ? value.root : value.new_root])[0];
  return reportOf([step, notChecked("signed_head", `root ${short(root)} is not signed: compare it with another proof about as many blocks`, "trust")], { entries: 1 });
}

function rangeStep(value: JsonObject): Step {
  const [start, size] = [natural(value, "start", invalid), natural(value, "size", invalid)];
  const blocks = hashes(value.block_hashes, Infinity);
  const [left, right, root] = [hashes(value.left), hashes(value.right), hashes([value.root])[0]];
  const what = `blocks ${start}–${start + blocks.length - 1} among ${size} of ${String(value.channel)}, under root ${short(root)}`;
  return compared("range", what, () => verifyRange(blocks, BigInt(start), BigInt(size), left, right, root, RANGE));
}

function consistencyStep(value: JsonObject): Step {
  const [old, size] = [natural(value, "old", invalid), natural(value, "new", invalid)];
  const [oldRoot, newRoot] = hashes([value.old_root, value.new_root]);
  const path = hashes(value.path, 2 * PATH_MAX);
  const what = `${old} blocks of ${String(value.channel)} under root ${short(oldRoot)}, ${size} under root ${short(newRoot)}`;
  return compared("consistency", what, () => verifyConsistency(BigInt(old), BigInt(size), path, oldRoot, newRoot, RANGE));
}

function hashes(value: Json, limit = PATH_MAX): Uint8Array[] {
  if (!Array.isArray(value) || value.length > limit) throw invalid("a path must be a list of at most 63 hashes");
  return value.map((each) => {
    const raw = hashFromHex(each);
    if (raw === null) throw invalid("hashes must be 64 lowercase hex digits");
    return raw;
  });
}

// ---- signed heads ----

export interface CheckpointOptions {
  trust?: TrustLike;
  /** Keys of logs and witnesses, in C2SP's text form. */
  keys?: readonly string[];
  /** The log that the head must be of; default: the name of its key. */
  origin?: string;
  /** How many witnesses must have signed. */
  threshold?: number;
  /** An older head of the same log, and the proof that this one extends it. */
  old?: Uint8Array;
  consistency?: readonly Uint8Array[];
}

interface HeadTrust {
  logKeys: NoteKey[];
  signers: NoteKey["key"][];
  witnesses: NoteKey[];
  origin: string | undefined;
  threshold: number | undefined;
}

/** Verify a signed head (C2SP checkpoint): the log's signature, its witnesses and, if given, an older head. */
export function verifyCheckpoint(raw: Uint8Array, options: CheckpointOptions = {}): Report {
  const { head, lines, text } = claimedHead(raw);
  const parsed = trustOf(options.trust);
  const keys = (options.keys ?? []).map((each) => NoteKey.fromText(each));
  const trust: HeadTrust = {
    logKeys: keys.filter((key) => !key.isWitness),
    signers: (parsed?.blockSigners ?? []).map((each) => each.key),
    witnesses: [...keys.filter((key) => key.isWitness), ...(parsed?.witnesses ?? [])],
    origin: options.origin,
    threshold: options.threshold,
  };
  const size = head.size <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(head.size) : String(head.size);
  const steps: Step[] = [
    { name: "checkpoint", status: "passed", detail: `${head.origin} at ${head.size}, root ${short(head.root)}, ${lines.length} signature${lines.length > 1 ? "s" : ""}`, origin: head.origin, size, root: toHex(head.root) },
    logStep("log_signature", head, text, lines, trust),
    witnessesStep(head, text, lines, trust),
  ];
  if (options.old === undefined) steps.push(notChecked("consistency", "no older checkpoint was given", "optional"));
  else {
    const older = claimedHead(options.old);
    steps.push(logStep("old_signature", older.head, older.text, older.lines, trust), growthStep(older.head, head, options.consistency));
  }
  return reportOf(steps, { entries: 1 });
}

function logKeysOf(origin: string, trust: HeadTrust): NoteKey[] {
  const named = trust.origin !== undefined ? trust.logKeys : trust.logKeys.filter((key) => key.name === origin);
  const sealing = isKeyName(origin) ? trust.signers.filter((key) => key.alg === "ed25519").map((key) => new NoteKey(origin, key)) : [];
  return [...named, ...sealing];
}

const namesOf = (names: string[]): string => names.slice(0, 3).map((name) => `"${name}"`).join(", ") + (names.length > 3 ? ` and ${names.length - 3} more` : "");

function logStep(name: string, head: SignedHead, text: string, lines: NoteLine[], trust: HeadTrust): Step {
  const failed = (detail: string): Step => ({ name, status: "failed", detail });
  const keys = logKeysOf(head.origin, trust);
  const signers = namesOf(lines.map((line) => line.name));
  const expected = trust.origin !== undefined ? [trust.origin] : trust.logKeys.map((key) => key.name);
  if ((trust.origin !== undefined && head.origin !== trust.origin) || (!keys.length && trust.logKeys.length)) {
    return failed(`head of "${head.origin}", where ${namesOf(expected)} was expected`);
  }
  if (!keys.length) return notChecked(name, `no key of the log was given: signed by ${signers}`, "trust");
  const ours = lines.flatMap((line) => keys.filter((key) => key.name === line.name && key.keyId === line.keyId).map((key) => ({ key, line })));
  if (!ours.length) return failed(`not signed by the log: signed by ${signers}, where ${keys.map((key) => key.keyId).join(", ")} is trusted`);
  const reason = reasonOf(() => ours.forEach(({ key, line }) => key.verify(text, line.raw)));
  return reason === null ? { name, status: "passed", detail: `${ours[0].key.name}, key ${ours[0].key.keyId}` } : failed(reason);
}

function witnessesStep(head: SignedHead, text: string, lines: NoteLine[], trust: HeadTrust): Step {
  const name = "witnesses";
  const own = [...logKeysOf(head.origin, trust).map((key) => key.key), ...trust.signers];
  // The log's key is not a witness under another name. Two names of a key, or two keys of a name, are one witness.
  const named = trust.witnesses.filter((witness) => !own.some((key) => key.equals(witness.key)));
  const wanted = trust.threshold ?? 1;
  if (!named.length) {
    return trust.threshold ? { name, status: "failed", detail: `no witness is named; ${wanted} must have signed` } : notChecked(name, "no witness is named", "optional");
  }
  const signed = new Map<NoteKey, string>();
  const reason = reasonOf(() => {
    for (const line of lines) {
      const witness = named.find((key) => key.name === line.name && key.keyId === line.keyId);
      const time = witness?.verify(text, line.raw);
      if (witness && !signed.has(witness)) signed.set(witness, `seen by ${line.name}${time ? ` in second ${time}` : ""}`);
    }
  });
  if (reason !== null) return { name, status: "failed", detail: reason };
  const seen = distinctWitnesses([...signed.keys()]).map((witness) => signed.get(witness));
  const detail = [`${seen.length} of ${distinctWitnesses(named).length} named`, ...seen].join(", ");
  if (seen.length < wanted && trust.threshold !== undefined) return { name, status: "failed", detail: `${detail}; ${wanted} must have signed` };
  if (!seen.length) return notChecked(name, detail, wanted ? "required" : "optional");
  return { name, status: "passed", detail };
}

function growthStep(old: SignedHead, head: SignedHead, path: readonly Uint8Array[] | undefined): Step {
  const name = "consistency";
  const what = `${old.size} under root ${short(old.root)}, ${head.size} under root ${short(head.root)}`;
  if (old.origin !== head.origin) return { name, status: "failed", detail: `the older head is of "${old.origin}"` };
  if (old.size > head.size) return { name, status: "failed", detail: `the older head has ${old.size} leaves, this one ${head.size}` };
  const trivial = old.size === head.size || old.size === 0n;
  if (path === undefined && !trivial) return notChecked(name, `no proof was given: ${what}`);
  return compared(name, what, () => verifyConsistency(old.size, head.size, path ?? [], old.root, head.root, SHA256));
}

// ---- the manifest of a bundle ----

/** Verify the signature of a bundle's manifest. Its files are not read, so the verdict is at best `partly`. */
export function verifyManifest(raw: Uint8Array, signature: Uint8Array, trusted?: TrustLike): Report {
  const trust = trustOf(trusted);
  const opened = openManifest(raw, signature, trust?.bundleSigners ?? []);
  const rest = ["envelope_hashes", "merkle_paths", "block_signatures"].map((name) => notChecked(name, "only the manifest was given"));
  const history = new KeyHistory(trust, true);
  const step = manifestStep(opened, history, trust);
  if (opened.manifest === null) return reportOf([step, ...rest]);
  const policy = policyStep(history, opened.manifest.end, opened.manifest.policyHash, trust?.policyHash ?? null);
  return reportOf([step, ...rest, policy], { channel: opened.manifest.channel, start: opened.manifest.start, end: opened.manifest.end });
}

function manifestStep(opened: ReturnType<typeof openManifest>, history: KeyHistory, trust: Trust | null): Step {
  const name = "bundle_signature";
  const { manifest, refused } = opened;
  if (refused || manifest === null) return { name, status: "failed", detail: refused };
  const did = manifest.signer.did();
  const reason = reasonOf(() => history.follow(manifest.keys));
  if (reason !== null) return { name, status: "failed", detail: `the manifest's keys: ${reason}` };
  if (trust === null) return notChecked(name, `signed by ${did}; no trust file names that key`, "trust");
  if (history.isRevoked(manifest.signer)) return { name, status: "failed", detail: `${did} was revoked` };
  if (history.descends(manifest.signer, trust.bundleSigners)) return { name, status: "passed", detail: `signed by ${did}` };
  return { name, status: "failed", detail: `${did} is not trusted to sign bundles` };
}

/** Return the bytes of a consistency path written as hex. */
export const pathFromHex = (path: readonly string[]): Uint8Array[] => hashes(path as Json[], 2 * PATH_MAX);

