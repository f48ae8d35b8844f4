// Verify a whole bundle: the five steps of S4 §12 and its anchors, with the same findings as `ropewalk bundle verify`.

import { blake3 } from "@noble/hashes/blake3.js";
import { TarReader, unpack } from "./archive.ts";
import { encodeCbor } from "./cbor.ts";
import { concat, decodeUtf8, equal, hashFromHex, toHex } from "./bytes.ts";
import { RopewalkError } from "./errors.ts";
import { type Json, encodeText, hasExactly, isObject, parseCanonical } from "./jcs.ts";
import { KeyHistory } from "./history.ts";
import { type TrustLike, evidenceStep, trustOf } from "./judge.ts";
import type { PublicKey } from "./keys.ts";
import { type BlockRecord, ENVELOPE_BYTES_MAX, type Trust, envelopeId, parseRecord } from "./ledger.ts";
import { type Anchor, type Manifest, SIGNATURE_BYTES_MAX, manifestLimit, openManifest } from "./manifest.ts";
import { LEDGER, RANGE, SHA256, root, verifyInclusion, verifyRange } from "./merkle.ts";
import { NoteKey, claimedHead, distinctWitnesses, isKeyName, openNote } from "./note.ts";
import { type Report, type Step, notChecked, reasonOf, reportOf } from "./report.ts";
import { maybeKeyStatement } from "./statements.ts";

const MANIFEST = "bundle.manifest.json";
const SIGNATURE = "bundle.manifest.sig";
const HEADERS = "headers.jsonl";
const ENVELOPES_MAX = 8192;
const BLOCK_MEMBER_MAX = (4 << 20) + ENVELOPES_MAX;
const PROOF_MEMBER_MAX = ENVELOPES_MAX * 1200;
const CBOR_MEMBER_MAX = 3 * (4 << 20);
const PROOF_LINE_MAX = 8 << 10;
const HEADERS_BYTES_MAX = 256 << 20;

export interface BundleOptions {
  trust?: TrustLike;
  /** How many witnesses must have signed anchors. */
  threshold?: number;
  /** Maximum unpacked size in bytes. */
  bytesMax?: number;
}

type Name = "bundle_signature" | "envelope_hashes" | "merkle_paths" | "block_signatures" | "policy_hash";
const CUT = "the bundle could not be read to its end";
const OWN_KEY = "valid under its own key; no trust file names that key";

/** Verify a bundle file. Hostile archives throw a `RopewalkError`; wrong ones are reported, every step by itself. */
export function verifyBundle(raw: Uint8Array, options: BundleOptions = {}): Report {
  const check = new BundleCheck(trustOf(options.trust), raw.length, options.threshold);
  check.read(raw, options.bytesMax);
  return check.report();
}

class BundleCheck {
  readonly #trust: Trust | null;
  readonly #packed: number;
  readonly #threshold: number | undefined;
  readonly #failures = new Map<Name, { detail: string; count: number; facts: Record<string, unknown> }>();
  readonly #blocks = new Map<number, { ids: Uint8Array[]; proofs: string; holds: boolean | null; cbor: Uint8Array }>();
  readonly #seen = new Set<string>();
  #members = 0;
  #name = "";
  #cut = "";
  #manifestRaw: Uint8Array | null = null;
  #opened = false;
  #history: KeyHistory;
  #manifest: Manifest | null = null;
  #expected: string[] = [];
  #records: (BlockRecord | null)[] | null = null;
  #envelopes = 0;
  #evidence = 0;
  #refs = 0;
  #proved = 0;

  constructor(trust: Trust | null, packed: number, threshold: number | undefined) {
    this.#trust = trust;
    this.#history = new KeyHistory(trust, true);
    this.#packed = packed;
    this.#threshold = threshold;
  }

  read(raw: Uint8Array, bytesMax: number | undefined): void {
    const tar = new TarReader((name, size) => this.#begin(name, size), (data) => this.#end(data));
    try {
      unpack(raw, (piece) => tar.feed(piece), bytesMax);
      if (this.#manifestRaw === null) throw noBundle("it holds no manifest");
      tar.finish();
    } catch (error) {
      if (!(error instanceof RopewalkError) || error.code !== "Damaged") throw error;
      if (!this.#members) throw noBundle(error.detail);
      this.#cut = error.detail;
    }
    if (!this.#cut) {
      this.#open(null); // unless it was opened with its signature
      if (this.#manifest === null && !this.#seen.has(SIGNATURE)) throw noBundle(this.#failures.get("bundle_signature")?.detail ?? "");
    }
  }

  report(): Report {
    this.#close();
    const blocks = this.#records?.length ?? 0;
    const [manifest, trust] = [this.#manifest, this.#trust];
    const isRead = !this.#cut && manifest !== null;
    const isRootless = [...this.#blocks.values()].some((block) => block.holds === null);
    const steps = [
      this.#step("bundle_signature", () => this.#signatureStep()),
      this.#step("envelope_hashes", () => (isRead ? passed(`${this.#envelopes} envelopes`) : notChecked("", CUT))),
      this.#step("merkle_paths", () => {
        if (!isRead) return notChecked("", CUT);
        if (isRootless) return notChecked("", "a header that paths should lead to could not be read");
        return passed(`${this.#envelopes} paths to ${this.#blocks.size} roots`);
      }),
      this.#step("block_signatures", () => {
        if (!isRead) return notChecked("", CUT);
        if (trust === null) return notChecked("", OWN_KEY, "trust");
        if (this.#history.unjudged) return notChecked("", this.#history.unjudged);
        return passed(`${blocks} blocks, linked, under one range root${this.#history.summary}`);
      }),
      this.#step("policy_hash", () => this.#policyStep()),
      ...this.#anchorSteps(),
    ];
    if (trust?.revocations.length) steps.push(notChecked("envelope_rules", "revoked authors are checked only by `ropewalk bundle verify --deep`"));
    if (trust?.judgesEvidence) steps.push(evidenceStep(this.#evidence, trust));
    return reportOf(steps, { envelopes: this.#envelopes, blocks });
  }

  // ---- members ----

  #begin(name: string, size: number): void {
    this.#members++;
    if (this.#members === 1 && name !== MANIFEST) throw noBundle(`it begins with ${name}`);
    if (this.#members === 2 && name !== SIGNATURE) {
      this.#open(null);
      if (this.#manifest === null) throw noBundle("its manifest cannot be read");
    }
    const limit = name === MANIFEST ? manifestLimit(this.#packed) : name === SIGNATURE ? SIGNATURE_BYTES_MAX
      : name === HEADERS ? HEADERS_BYTES_MAX : name.startsWith("proofs/") ? PROOF_MEMBER_MAX : name.startsWith("cbor/") ? CBOR_MEMBER_MAX : BLOCK_MEMBER_MAX;
    if (size > limit) throw new RopewalkError("TooLarge", `member ${name} must have at most ${limit} bytes, got ${size}`);
    const problem = this.#misplaced(name, size);
    if (problem) this.#fail("bundle_signature", problem, { member: name });
    const isLate = this.#members > 2 && (this.#manifest === null || name === MANIFEST || name === SIGNATURE);
    this.#name = isLate || this.#seen.has(name) ? "" : name; // the first one is used, and without a manifest none
    this.#seen.add(name);
  }

  #misplaced(name: string, size: number): string {
    if (this.#seen.has(name)) return `${name} is there twice`;
    if (this.#members === 2 && name !== SIGNATURE) return `${name} must be ${SIGNATURE}`;
    if (this.#members <= 2 || this.#manifest === null) return "";
    const listed = this.#listed(name);
    if (!this.#expected.includes(name)) return `${name} is not in the manifest`;
    const want = this.#expected[this.#members - 3];
    if (name !== want) return `${name} is out of order; expected ${want ?? "nothing"}`;
    return size === (listed?.bytes ?? 0) ? "" : `${name} has ${size} bytes, the manifest lists ${listed?.bytes ?? 0}`;
  }

  #listed(name: string): Manifest["files"][number] | undefined {
    return this.#manifest?.files.find((file) => file.name === name);
  }

  #end(data: Uint8Array): void {
    const name = this.#name;
    if (!name) return;
    if (name === MANIFEST) this.#manifestRaw = data;
    else if (name === SIGNATURE) this.#open(data);
    else {
      const isExpected = this.#expected.includes(name);
      if (isExpected && toHex(blake3(data)) !== (this.#listed(name)?.blake3 ?? "")) {
        this.#fail("bundle_signature", `${name} is not the file the manifest lists`, { member: name });
      }
      if (name === HEADERS) this.#readHeaders(data);
      else if (isExpected) {
        const height = parseInt(name.slice(name.indexOf("/") + 1), 10);
        if (name.startsWith("blocks/")) this.#readBlock(height, data);
        else if (name.startsWith("cbor/")) this.#readCbor(height, data);
        else this.#readProofs(height, data);
      }
    }
  }

  #open(signature: Uint8Array | null): void {
    if (this.#manifestRaw === null || this.#opened) return;
    this.#opened = true;
    const raw = this.#manifestRaw;
    const found: { opened?: ReturnType<typeof openManifest> } = {};
    const reason = reasonOf(() => { found.opened = openManifest(raw, signature, this.#trust?.bundleSigners ?? []); });
    if (reason !== null || found.opened === undefined) return this.#fail("bundle_signature", reason ?? "", { member: MANIFEST });
    const { manifest, refused } = found.opened;
    if (refused && signature !== null) this.#fail("bundle_signature", `the manifest's signature: ${refused}`, { member: SIGNATURE });
    if (manifest === null) return undefined;
    this.#manifest = manifest;
    const numbers = Array.from({ length: manifest.end - manifest.start + 1 }, (_, at) => String(manifest.start + at).padStart(10, "0"));
    const proofs = numbers.map((number) => `proofs/${number}.jsonl`);
    this.#expected = [HEADERS, ...numbers.map((number) => `blocks/${number}.jsonl`), ...proofs, ...(manifest.both ? numbers.map((number) => `cbor/${number}.cbor`) : [])];
    if (!isSame(manifest.files.map((file) => file.name), this.#expected)) this.#fail("bundle_signature", "the manifest does not list exactly the files of its range");
    if (!isSame(manifest.merkleProofs, proofs)) this.#fail("bundle_signature", "merkle_proofs does not list exactly the proofs of its range");
    const invalid = reasonOf(() => this.#history.follow(manifest.keys));
    if (invalid !== null) this.#fail("block_signatures", `the manifest's keys: ${invalid}`);
    if (refused) return undefined;
    const { signer } = manifest;
    if (this.#trust !== null && !this.#history.descends(signer, this.#trust.bundleSigners)) this.#fail("bundle_signature", `${signer.did()} is not trusted to sign bundles`);
    else if (this.#history.isRevoked(signer)) this.#fail("bundle_signature", `${signer.did()} was revoked; the channel's key can sign the bundle anew`);
    return undefined;
  }

  // ---- headers ----

  #readHeaders(data: Uint8Array): void {
    const manifest = this.#manifest!;
    const lines = linesOf(data);
    if (lines.rest) this.#fail("block_signatures", `${HEADERS}: the last line has no end`);
    this.#records = [];
    let below: BlockRecord | null = null;
    lines.whole.forEach((line, place) => {
      const height = manifest.start + place;
      const fail = (detail: string): void => this.#fail("block_signatures", detail, { height });
      if (place > manifest.end - manifest.start) return fail(`${HEADERS} has more lines than the range has blocks`);
      const found: { record?: BlockRecord } = {};
      const reason = reasonOf(() => { found.record = parseRecord(line); });
      const record = found.record ?? null;
      this.#records!.push(record);
      if (reason !== null || record === null) fail(`block ${height}: ${reason ?? ""}`);
      else this.#checkHeader(record, below, place, fail);
      below = record;
      return undefined;
    });
  }

  #checkHeader(record: BlockRecord, below: BlockRecord | null, place: number, fail: (detail: string) => void): void {
    const manifest = this.#manifest!;
    const height = manifest.start + place;
    if (toHex(record.hash) !== manifest.blockHashes[place]) fail(`block ${height}: its hash is not the one the manifest lists`);
    if (record.channel !== manifest.channel) fail(`block ${height}: channel must be "${manifest.channel}", got "${record.channel}"`);
    const reason = reasonOf(() => {
      checkPlace(record, below, place, height);
      this.#history.check(record);
      const said = manifest.keys.find((each) => each.record.height === height);
      if (said && !equal(said.record.hash, record.hash)) throw new RopewalkError("Invalid", `block ${height}: the manifest's keys are of another block`);
    });
    if (reason !== null) fail(reason);
    if (!this.#history.fitsPolicy(height, record.policyHash, this.#trust?.policyHash ?? null)) this.#fail("policy_hash", `block ${height}: policy_hash must be the expected one`, { height });
  }

  // ---- envelopes and paths ----

  #readBlock(height: number, data: Uint8Array): void {
    const { whole, rest } = linesOf(data);
    const fail = (name: Name, detail: string, index?: number): void => this.#failAt(name, height, detail, index);
    if (rest) fail("envelope_hashes", "the last line has no end");
    if (!whole.length || whole.length > ENVELOPES_MAX) return fail("envelope_hashes", `${whole.length} envelopes`);
    const ids = whole.map(envelopeId);
    const refs: Json[] = [];
    const cbor = blake3.create();
    whole.forEach((line, index) => {
      const reason = reasonOf(() => {
        const value = parseCanonical(line, ENVELOPE_BYTES_MAX);
        if (!isObject(value)) throw new RopewalkError("Invalid", "an envelope must be a JSON object");
        if (this.#manifest!.both) cbor.update(encodeCbor(value));
        if (Object.hasOwn(value, "attestation_evidence")) this.#evidence++;
        if (isObject(value.payload_ref) && value.payload === null) {
          refs.push({ envelope_id: toHex(ids[index]), payload_ref: value.payload_ref, payload_hash: value.payload_hash ?? null });
        }
      });
      if (reason !== null) fail("envelope_hashes", reason, index);
    });
    const isListed = this.#manifest!.keys.some((each) => each.record.height === height);
    if (whole.length === 1 && !isListed && maybeKeyStatement(latin1(whole[0]))) fail("block_signatures", "it is a key statement that the manifest does not list");
    this.#envelopes += ids.length;
    const listed = this.#manifest!.payloadRefs.slice(this.#refs, this.#refs + refs.length);
    this.#refs += refs.length;
    if (encodeText(listed) !== encodeText(refs)) fail("bundle_signature", "payload_refs of the manifest do not match its detached payloads");
    const record = this.#recordAt(height);
    const got = root(ids, LEDGER);
    const holds = record && equal(got, record.merkleRoot) && record.envelopeCount === ids.length;
    if (record && record.envelopeCount !== ids.length) fail("merkle_paths", `${ids.length} envelopes, its header counts ${record.envelopeCount}`);
    else if (record && !holds) fail("merkle_paths", `its envelopes have the root ${toHex(got).slice(0, 16)}…, its header has ${toHex(record.merkleRoot).slice(0, 16)}…`);
    this.#blocks.set(height, { ids, proofs: proofLines(ids), holds, cbor: cbor.digest() });
    return undefined;
  }

  /** Compare the CBOR member of a block with its JSON member: both must encode the same envelopes. */
  #readCbor(height: number, data: Uint8Array): void {
    const block = this.#blocks.get(height);
    if (block && !equal(blake3(data), block.cbor)) this.#failAt("envelope_hashes", height, "its CBOR is not the encoding of its JSON envelopes");
  }

  #recordAt(height: number): BlockRecord | null {
    return this.#records?.[height - this.#manifest!.start] ?? null;
  }

  #readProofs(height: number, data: Uint8Array): void {
    this.#proved++;
    const block = this.#blocks.get(height);
    if (block && latin1(data) === block.proofs) return; // these paths lead to the root that was compared with the header
    const { whole, rest } = linesOf(data);
    if (rest) this.#failAt("merkle_paths", height, "the last proof has no end");
    const record = this.#recordAt(height);
    const claimed: Uint8Array[] = [];
    whole.forEach((line, index) => {
      const found: { proof?: ReturnType<typeof parseProofLine> } = {};
      const malformed = reasonOf(() => { found.proof = parseProofLine(line); });
      if (malformed !== null || found.proof === undefined) return this.#failAt("merkle_paths", height, malformed ?? "", index);
      const { id, place, path } = found.proof;
      claimed.push(id);
      if (record === null) return undefined;
      const reason = reasonOf(() => {
        if (place !== index) throw new RopewalkError("Invalid", `expected index ${index}, got ${place}`);
        const leaf = block && !block.holds ? (block.ids[index] ?? id) : id; // a path proves the envelope in the bundle
        verifyInclusion(leaf, BigInt(place), BigInt(record.envelopeCount), path, record.merkleRoot, LEDGER);
      });
      if (reason !== null) this.#failAt("merkle_paths", height, reason, index);
      return undefined;
    });
    if (!block) return;
    if (whole.length !== block.ids.length) this.#failAt("merkle_paths", height, `${whole.length} proofs for ${block.ids.length} envelopes`);
    if (!equal(concat(...claimed), concat(...block.ids))) this.#failAt("envelope_hashes", height, "the bytes do not have the id in the bundle");
  }

  // ---- the steps ----

  #close(): void {
    const manifest = this.#manifest;
    if (this.#cut) this.#fail("bundle_signature", `the archive cannot be read to its end${this.#name ? ` in ${this.#name}` : ""}: ${this.#cut}`);
    if (manifest === null) return;
    const missing = this.#expected.find((name) => !this.#seen.has(name));
    if (missing !== undefined && !this.#cut) this.#fail("bundle_signature", `${missing} is missing`, { member: missing });
    if (!this.#seen.has(SIGNATURE) && !this.#cut) this.#fail("bundle_signature", `${SIGNATURE} is missing`, { member: SIGNATURE });
    if (this.#refs < manifest.payloadRefs.length && missing === undefined) this.#fail("bundle_signature", "the manifest lists detached payloads that are not there");
    if (this.#cut) return;
    const wanted = manifest.end - manifest.start + 1;
    for (let height = manifest.start; height <= manifest.end; height++) {
      if (!this.#blocks.has(height) && !this.#failures.has("envelope_hashes")) this.#fail("envelope_hashes", `block ${height} has no envelopes here`, { height });
    }
    if (this.#proved < wanted) this.#fail("merkle_paths", `proofs of ${this.#proved} blocks for ${wanted}`);
    this.#closeHeaders(manifest, wanted);
  }

  #closeHeaders(manifest: Manifest, wanted: number): void {
    const records = this.#records ?? [];
    const readable = records.filter((record) => record !== null);
    if (records.length < wanted) this.#fail("block_signatures", `${records.length} headers for ${wanted} blocks`);
    else if (toHex(root(readable.map((record) => record.hash), RANGE)) !== manifest.rangeRoot) this.#fail("block_signatures", "the headers do not match range_root");
    const { stranger } = this.#history;
    if (stranger) this.#fail("block_signatures", stranger.detail, { height: stranger.height });
    if (manifest.blockHashes.length !== wanted) this.#fail("block_signatures", `${manifest.blockHashes.length} hashes for ${wanted} blocks`);
    const last = records[records.length - 1] ?? null;
    if (last !== null && last.policyHash !== manifest.policyHash) this.#fail("policy_hash", "policy_hash of the manifest must be that of its last block");
    const ended = last === null ? null : reasonOf(() => this.#history.checkUnended(manifest.signer, last));
    if (ended !== null) this.#fail("bundle_signature", ended, { member: SIGNATURE });
  }

  #signatureStep(): Step {
    if (this.#trust === null) return notChecked("", OWN_KEY, "trust");
    return passed(`signed by ${this.#manifest!.signer.did()}; ${this.#manifest!.files.length} files as listed`);
  }

  #policyStep(): Step {
    const want = this.#trust?.policyHash ?? null;
    if (this.#manifest === null) return notChecked("", "the manifest could not be read");
    if (want === null) return notChecked("", "the trust file pins no policy", "optional");
    const last = this.#records?.[this.#records.length - 1] ?? null;
    if (last === null && this.#manifest.policyHash === want) return this.#records?.length ? passed(`policy ${want.slice(0, 16)}…`) : notChecked("", "no header could be read");
    if (last !== null && this.#history.fitsPolicy(last.height, last.policyHash, want)) return passed(`policy ${want.slice(0, 16)}…${last.policyHash === want ? "" : ", and those that followed it"}`);
    return { name: "", status: "failed", detail: `the bundle names ${this.#manifest.policyHash ?? "no policy"}, expected ${want}` };
  }

  #anchorSteps(): Step[] {
    const [manifest, witnesses] = [this.#manifest, this.#trust?.witnesses ?? []];
    if (!this.#threshold && !witnesses.length && !manifest?.anchors.length) return [];
    const isRequired = witnesses.length > 0 && this.#threshold === undefined;
    if (manifest === null) return [notChecked("anchors", CUT)];
    const leaves = (this.#records ?? []).filter((record) => record !== null).map((record) => SHA256.leaf(record.headerBytes));
    if (manifest.anchors.length && leaves.length !== manifest.end - manifest.start + 1) {
      return [notChecked("anchors", "the headers they should lead from could not all be read")];
    }
    const found = manifest.anchors.map((anchor) => judgeAnchor(anchor, manifest, leaves, this.#trust, this.#history.named));
    const step = found.find((each) => each.status === "failed") ?? found.find((each) => each.status === "passed") ?? found[0] ?? notChecked("anchors", "the bundle has no anchors");
    if (this.#threshold) {
      const signed = new Set(found.flatMap((each) => each.witnesses as string[]));
      const seen = distinctWitnesses(witnesses.filter((key) => signed.has(toHex(key.key.raw)))).length;
      if (step.status !== "failed" && seen < this.#threshold) {
        return [{ ...step, status: "failed", detail: `${step.detail}; ${seen} of ${distinctWitnesses(witnesses).length} witnesses named have signed, and ${this.#threshold} must have signed` }];
      }
    }
    return [step.status === "not_checked" ? { ...step, need: this.#threshold || isRequired ? "required" : "optional" } : step];
  }

  #step(name: Name, otherwise: () => Step): Step {
    const failure = this.#failures.get(name);
    if (!failure) return { ...otherwise(), name };
    const more = failure.count > 1 ? ` (and ${failure.count - 1} more)` : "";
    return { name, status: "failed", detail: failure.detail + more, ...failure.facts };
  }

  #failAt(name: Name, height: number, detail: string, index?: number): void {
    const where = index === undefined ? `block ${height}` : `block ${height}, envelope ${index}`;
    this.#fail(name, `${where}: ${detail}`, index === undefined ? { height } : { height, index });
  }

  #fail(name: Name, detail: string, facts: Record<string, unknown> = {}): void {
    const failure = this.#failures.get(name);
    if (failure) failure.count++;
    else this.#failures.set(name, { detail, count: 1, facts });
  }
}

/** Check that an anchor leads from the bundle's headers to its head, and that a trusted key has signed the head. */
function judgeAnchor(anchor: Anchor, manifest: Manifest, leaves: Uint8Array[], trust: Trust | null, sealers: PublicKey[]): Step {
  const facts = { witnesses: [] as string[] };
  const failed = (detail: string): Step => ({ name: "anchors", status: "failed", detail, ...facts });
  const found: { claimed?: ReturnType<typeof claimedHead> } = {};
  const reason = reasonOf(() => {
    const claimed = (found.claimed = claimedHead(anchor.note));
    const { origin, size, root: head } = claimed.head;
    if (!origin.endsWith(`/${manifest.channel}`)) throw new RopewalkError("InvalidNote", `a head of "${origin}"; those of channel ${manifest.channel} are of "<host>/${manifest.channel}"`);
    verifyRange(leaves, BigInt(manifest.start), size, anchor.left, anchor.right, head, SHA256);
  });
  if (reason !== null || found.claimed === undefined) return failed(reason ?? "");
  const { head, lines } = found.claimed;
  const where = `blocks ${manifest.start}–${manifest.end} under ${head.origin} at ${head.size}`;
  const own = isKeyName(head.origin) ? sealers.filter((key) => key.alg === "ed25519").map((key) => new NoteKey(head.origin, key)) : [];
  const keys = [...(trust?.witnesses ?? []), ...own];
  if (!lines.some((line) => keys.some((key) => key.name === line.name && key.keyId === line.keyId))) {
    return { ...notChecked("anchors", `${where}, without a trusted signature`, "optional"), ...facts };
  }
  const opened: { by?: NoteKey[] } = {};
  const refused = reasonOf(() => { opened.by = openNote(anchor.note, keys).verified.map((each) => each.key); });
  if (refused !== null || opened.by === undefined) return failed(`${where}: ${refused ?? ""}`);
  // The channel's own key is no witness under another name.
  facts.witnesses = opened.by.filter((key) => !sealers.some((each) => each.equals(key.key))).map((key) => toHex(key.key.raw));
  if (trust?.witnesses.length && !facts.witnesses.length) {
    return { ...notChecked("anchors", `${where}, signed by the channel's own key and by no witness that is trusted`, "optional"), ...facts };
  }
  const by = facts.witnesses.length ? `signed by ${facts.witnesses.length} named witnesses` : "signed by the channel's own key alone";
  return { name: "anchors", status: "passed", detail: `${where}, ${by}`, ...facts };
}

function checkPlace(record: BlockRecord, below: BlockRecord | null, place: number, height: number): void {
  const broken = (detail: string): RopewalkError => new RopewalkError("BrokenLink", detail);
  if (!place || below === null) {
    const isGenesis = record.prevBlockHash.every((byte) => byte === 0);
    if (record.height !== height || (place === 0 && (height === 0) !== isGenesis)) throw broken(`expected block ${height}, got block ${record.height}`);
    return;
  }
  if (record.height !== below.height + 1) throw broken(`expected block ${below.height + 1}, got block ${record.height}`);
  if (!equal(record.prevBlockHash, below.hash)) throw broken(`block ${record.height}: prev_block_hash must be ${toHex(below.hash).slice(0, 16)}…`);
  if (record.channel !== below.channel) throw broken(`block ${record.height}: channel must be "${below.channel}"`);
  if (record.timestampNs < below.timestampNs) throw broken(`block ${record.height}: earlier than the block below it`);
}

/** Return the proofs file of a block with these envelope ids. */
function proofLines(ids: readonly Uint8Array[]): string {
  const levels = [[...ids]];
  while (levels[levels.length - 1].length > 1) {
    const below = levels[levels.length - 1];
    const above = below.flatMap((left, at) => (at % 2 ? [] : [at + 1 < below.length ? LEDGER.node(left, below[at + 1]) : left]));
    levels.push(above);
  }
  const names = levels.map((level) => level.map(toHex));
  return ids.map((_, index) => {
    const path: string[] = [];
    for (let level = 0, at = index; level < names.length - 1; level++, at >>= 1) {
      const sibling = names[level][at ^ 1];
      if (sibling !== undefined) path.push(`"${sibling}"`);
    }
    return `{"envelope_id":"${names[0][index]}","index":${index},"path":[${path.join(",")}]}\n`;
  }).join("");
}

function parseProofLine(raw: Uint8Array): { id: Uint8Array; place: number; path: Uint8Array[] } {
  const value = parseCanonical(raw, PROOF_LINE_MAX);
  const wrong = (detail: string): RopewalkError => new RopewalkError("Invalid", detail);
  if (!hasExactly(value, ["envelope_id", "index", "path"])) throw wrong("a proof must have envelope_id, index and path");
  const { envelope_id: id, index, path } = value;
  if (typeof index !== "number" || !Number.isSafeInteger(index) || !Array.isArray(path) || path.length > 64) throw wrong("index must be a number and path a short list of hashes");
  const [name, ...hashes] = [id, ...path].map((each) => {
    const found = hashFromHex(each);
    if (found === null) throw wrong("hashes must be 64 lowercase hex digits");
    return found;
  });
  return { id: name, place: index, path: hashes };
}

function linesOf(data: Uint8Array): { whole: Uint8Array[]; rest: boolean } {
  const whole: Uint8Array[] = [];
  let start = 0;
  for (let end = data.indexOf(10); end >= 0; end = data.indexOf(10, start)) {
    whole.push(data.subarray(start, end));
    start = end + 1;
  }
  return { whole, rest: start < data.length };
}

const passed = (detail: string): Step => ({ name: "", status: "passed", detail });
const noBundle = (why: string): RopewalkError => new RopewalkError("Invalid", `not a bundle: ${why}`, {}, "Make one with `ropewalk bundle export`.");
const isSame = (one: string[], other: string[]): boolean => one.length === other.length && one.every((each, at) => each === other[at]);

/** Return bytes as text for a search or a comparison; bytes that are not UTF-8 match nothing. */
function latin1(raw: Uint8Array): string {
  try {
    return decodeUtf8(raw);
  } catch {
    return "";
  }
}

