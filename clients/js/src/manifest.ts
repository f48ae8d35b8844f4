// The manifest of a bundle: its signature is checked before its size, and its size before it is parsed.

import { concat, hashFromHex, utf8 } from "./bytes.ts";
import { RopewalkError } from "./errors.ts";
import { type Json, type JsonObject, checkSize, encodeText, hasExactly, parse, parseCanonical } from "./jcs.ts";
import { PublicKey, signatureFromJson } from "./keys.ts";
import { natural } from "./ledger.ts";
import { reasonOf } from "./report.ts";
import { type KeyProof, parseKeyProofs } from "./statements.ts";

const BLOCKS_MAX = 100_000;
const MANIFEST_BYTES_MAX = 64 << 20;
const MANIFEST_UNKNOWN_BYTES_MAX = 16 << 20;
export const MANIFEST_UNSIGNED_BYTES_MAX = 1 << 20;
const MANIFEST_RATIO_MAX = 32;
const ITEM_BYTES_MIN = 16;
const ITEMS_FREE = 16_384;
export const SIGNATURE_BYTES_MAX = 1 << 10;
const ANCHORS_MAX = 16;
const ANCHOR_NOTE_MAX = 1 << 17;
const TAIL = /"signer":(\{"identity_type":"[a-z0-9]{1,16}","public_key":"[A-Za-z0-9+/=]{1,128}"\}),"start_height":[0-9]{1,16},"version":1\}$/;
const NAMES = [
  "version", "channel", "start_height", "end_height", "block_hashes", "range_root", "merkle_proofs", "payload_refs", "policy_hash", "created_at", "signer", "files",
];

export interface Anchor {
  note: Uint8Array;
  left: Uint8Array[];
  right: Uint8Array[];
}

/** The contents of a bundle as its manifest lists them. */
export interface Manifest {
  channel: string;
  start: number;
  end: number;
  blockHashes: string[];
  rangeRoot: string;
  payloadRefs: JsonObject[];
  policyHash: string | null;
  createdAt: string;
  signer: PublicKey;
  files: { name: string; blake3: string; bytes: number }[];
  merkleProofs: string[];
  anchors: Anchor[];
  keys: KeyProof[];
  /** Whether the envelopes are there in CBOR too. */
  both: boolean;
}

const wrong = (what: string): RopewalkError => new RopewalkError("Invalid", `manifest: ${what}`);

/** Return the largest manifest that a file of `packed` bytes may hold. */
export const manifestLimit = (packed: number): number =>
  Math.min(MANIFEST_BYTES_MAX, Math.max(MANIFEST_UNSIGNED_BYTES_MAX, packed * MANIFEST_RATIO_MAX));

/** Check the signature of a manifest, then its size, and parse it only then; `refused` says why the signature is invalid. */
export function openManifest(raw: Uint8Array, signature: Uint8Array | null, named: readonly PublicKey[]): { manifest: Manifest | null; refused: string } {
  const signer = claimedSigner(raw);
  let limit = named.some((key) => key.equals(signer)) ? MANIFEST_BYTES_MAX : MANIFEST_UNKNOWN_BYTES_MAX;
  const reason = reasonOf(() => {
    if (signature === null) throw wrong("bundle.manifest.sig is missing");
    const found = signatureFromJson(parse(signature, SIGNATURE_BYTES_MAX));
    if (found.alg !== signer.alg) throw wrong(`${found.alg} signature of a ${signer.alg} key`);
    signer.verify(concat(utf8("ea:bundle:v1"), raw), found.raw);
  });
  if (reason !== null) limit = MANIFEST_UNSIGNED_BYTES_MAX;
  if (raw.length > limit) {
    return { manifest: null, refused: `${reason === null ? "" : `${reason}; `}a manifest of ${raw.length} bytes by ${signer.did()} is not parsed; at most ${limit} unless the trust file names its signer` };
  }
  checkSize(raw, limit, ITEMS_FREE + Math.floor(raw.length / ITEM_BYTES_MIN));
  return { manifest: parseManifest(raw), refused: reason ?? "" };
}

/** Return the key that a manifest names as its signer, from its last bytes alone: nothing else is parsed. */
function claimedSigner(raw: Uint8Array): PublicKey {
  const tail = String.fromCharCode(...raw.subarray(Math.max(0, raw.length - 512)));
  const found = TAIL.exec(tail);
  if (found === null) throw wrong('must end with "signer", "start_height" and "version"');
  return PublicKey.fromJson(parse(utf8(found[1])));
}

function parseManifest(raw: Uint8Array): Manifest {
  const value = parseCanonical(raw);
  if (!hasExactly(value, NAMES, ["anchors", "keys", "encodings"])) throw wrong("expected exactly the members of a bundle manifest");
  const [start, end] = [natural(value, "start_height", wrong), natural(value, "end_height", wrong)];
  if (value.version !== 1) throw wrong("version is unknown; expected 1");
  if (end < start || end >= start + BLOCKS_MAX) throw wrong(`heights ${start} to ${end} must be a range of at most ${BLOCKS_MAX} blocks`);
  if (typeof value.channel !== "string" || typeof value.created_at !== "string") throw wrong("channel and created_at must be strings");
  const { channel } = value;
  return {
    channel,
    start,
    end,
    blockHashes: items(value, "block_hashes").map((each) => digest(each, "block_hashes")),
    rangeRoot: digest(value.range_root, "range_root"),
    payloadRefs: items(value, "payload_refs").map(payloadRef),
    policyHash: value.policy_hash === null ? null : digest(value.policy_hash, "policy_hash"),
    createdAt: value.created_at,
    signer: PublicKey.fromJson(value.signer),
    files: items(value, "files").map(file),
    merkleProofs: items(value, "merkle_proofs").map((each) => text(each, "merkle_proofs")),
    anchors: bounded(value, "anchors", ANCHORS_MAX).map(anchor),
    keys: Object.hasOwn(value, "keys") ? keyProofs(value.keys, channel) : [],
    both: hasBoth(value),
  };
}

function hasBoth(value: JsonObject): boolean {
  if (!Object.hasOwn(value, "encodings")) return false;
  if (encodeText(value.encodings) !== '["json","cbor"]') throw wrong('encodings must be ["json", "cbor"] or absent');
  return true;
}

function payloadRef(value: Json): JsonObject {
  if (!hasExactly(value, ["envelope_id", "payload_ref", "payload_hash"])) throw wrong("payload_refs must have envelope_id, payload_ref and payload_hash");
  return value;
}

function file(value: Json): Manifest["files"][number] {
  if (!hasExactly(value, ["name", "blake3", "bytes"])) throw wrong("files must have name, blake3 and bytes");
  return { name: text(value.name, "files"), blake3: digest(value.blake3, "files"), bytes: natural(value, "bytes", wrong) };
}

function anchor(value: Json): Anchor {
  if (!hasExactly(value, ["note", "left", "right"]) || typeof value.note !== "string") throw wrong("anchors must have note, left and right");
  const note = utf8(value.note);
  if (note.length > ANCHOR_NOTE_MAX) throw new RopewalkError("TooLarge", `an anchor's note of ${note.length} bytes`);
  return { note, left: hashes(value.left), right: hashes(value.right) };
}

function keyProofs(value: Json, channel: string): KeyProof[] {
  const found = parseKeyProofs(value);
  if (found.some((each) => each.record.channel !== channel)) throw wrong("keys: a statement of another channel");
  return found;
}

function hashes(value: Json): Uint8Array[] {
  if (!Array.isArray(value) || value.length > 64) throw wrong("left and right of an anchor must be short lists of hashes");
  return value.map((each) => {
    const found = hashFromHex(each);
    if (found === null) throw wrong("anchors: hashes must be 64 lowercase hex digits");
    return found;
  });
}

function items(value: JsonObject, name: string): Json[] {
  const found = value[name];
  if (!Array.isArray(found)) throw wrong(`${name} must be a list`);
  return found;
}

function bounded(value: JsonObject, name: string, most: number): Json[] {
  if (!Object.hasOwn(value, name)) return [];
  const found = items(value, name);
  if (!found.length || found.length > most) throw wrong(`${name} must have 1 to ${most} items or be absent, got ${found.length}`);
  return found;
}

function text(value: Json, name: string): string {
  if (typeof value !== "string") throw wrong(`${name} must hold strings`);
  return value;
}

function digest(value: Json, name: string): string {
  if (hashFromHex(value) === null) throw wrong(`${name}: hashes must be 64 lowercase hex digits`);
  return value as string;
}
