// The keys and policies of a channel over time: whose signature is valid at which height and time (S4 §13), as `ropewalk verify` judges it.
//
// A statement changes which signatures are valid above its block, never below. If the trust file names only a later key, blocks of
// the earlier one are not checked where a rotation leads to the named key, and refused otherwise.

import { toHex } from "./bytes.ts";
import { RopewalkError } from "./errors.ts";
import { encode } from "./jcs.ts";
import type { PublicKey } from "./keys.ts";
import { type BlockRecord, type Envelope, type Trust, checkBlockSignature, checkEnvelopeSignature, checkPayloadHash, parseTimestamp } from "./ledger.ts";
import { type Policy, requireApprovals } from "./policy.ts";
import { reasonOf } from "./report.ts";
import { type KeyProof, type KeyStatement, blockBelow, checkAcceptance, checkPolicyRotation, checkPromotion, parseKeyStatement } from "./statements.ts";

/** For which blocks a key is valid; `ends` are times from which it is not, each with the height above which that applies. */
interface Validity {
  key: PublicKey;
  above: number;
  sinceNs: bigint;
  ends: [above: number, untilNs: bigint][];
  named: boolean;
  successor: PublicKey | null;
}
interface Revoked { above: number; sinceNs: bigint; reason: string }

const ALWAYS = -1; // the height above which the dates of a trust file hold
const idOf = (key: PublicKey): string => toHex(key.identity());
const unverified = (what: string): RopewalkError => new RopewalkError("Unverified", what);
const refused = (what: string): RopewalkError => new RopewalkError("SigInvalid", what);

const hasEnded = (found: Validity, height: number, atNs: bigint): boolean => found.ends.some(([above, untilNs]) => height > above && atNs >= untilNs);
const isValid = (found: Validity, height: number, atNs: bigint): boolean => height > found.above && atNs >= found.sinceNs && !hasEnded(found, height, atNs);

function timeOf(ns: bigint): string {
  const [seconds, rest] = [ns / 1_000_000_000n, ns % 1_000_000_000n];
  return `${new Date(Number(seconds) * 1000).toISOString().slice(0, 19)}${rest ? `.${String(rest).padStart(9, "0")}` : ""}Z`;
}

/** Say for which blocks a key is valid. */
function explain(found: Validity): string {
  const until = found.ends.map(([, untilNs]) => untilNs).reduce<bigint | null>((least, each) => (least === null || each < least ? each : least), null);
  const words = [found.above >= 0 ? ` above block ${found.above}` : "", found.sinceNs ? ` since ${timeOf(found.sinceNs)}` : "", until === null ? "" : ` until ${timeOf(until)}`];
  return `is valid${words.join("")}`;
}

/** Which signing keys are valid for the blocks read so far. Pass proofs first, then blocks in their order; without a trust file any key may sign. */
export class KeyHistory {
  readonly #trust: Trust | null;
  readonly #validities = new Map<string, Validity>();
  readonly #statements = new Map<number, string>();
  readonly #revoked = new Map<string, Revoked[]>();
  readonly #policies: { above: number; old: string | null; policy: Policy }[] = [];
  /** The hash of the evidence settings that the channel recorded last. */
  evidenceHash: string | null = null;
  readonly #changes: KeyStatement[] = []; // of policy and evidence settings
  #epoch = 0;
  #begun = false;
  #leads = false;
  #vouched = false;
  #unnamed: { first: number; last: number; key: PublicKey } | null = null;
  #runs: { key: PublicKey; first: number; last: number }[] = [];

  /** `lenient`: the first block may be signed by an unnamed key, if a rotation leads from it to a named one. */
  constructor(trust: Trust | null, lenient = false) {
    this.#trust = trust;
    this.#begun = !lenient;
    for (const { key, limit } of trust?.blockSigners ?? []) {
      const ends: Validity["ends"] = limit.untilNs === null ? [] : [[ALWAYS, limit.untilNs]];
      this.#validities.set(idOf(key), { key, above: -1, sinceNs: limit.sinceNs, ends, named: true, successor: null });
    }
    for (const each of trust?.revocations ?? []) this.#revoke(each.key, { above: ALWAYS, sinceNs: each.sinceNs, reason: each.reason });
  }

  /** Apply the key statements of a file; throw at the first that is invalid. */
  follow(proofs: readonly KeyProof[]): void {
    for (const proof of proofs) {
      const [runs, unnamed] = [this.#runs, this.#unnamed];
      this.#runs = [];
      if (proof.envelope.value.event_type === "ledger.key_promotion" && !this.#statements.has(proof.record.height)) {
        // A promotion is sealed by the key that it makes valid.
        const below = blockBelow(parseKeyStatement(proof.envelope));
        this.#judge(below.signer, below.height, below.timestampNs);
        this.#learn(proof);
      }
      this.check(proof.record);
      this.#learn(proof);
      this.#runs = runs;
      this.#unnamed = unnamed;
    }
  }

  /** Throw unless the block's signature holds and its key is valid at that height and time. */
  check(record: BlockRecord): void {
    this.#judge(record.signer, record.height, record.timestampNs);
    const run = this.#runs[this.#runs.length - 1];
    if (run?.key.equals(record.signer)) run.last = record.height;
    else this.#runs.push({ key: record.signer, first: record.height, last: record.height });
    checkBlockSignature(record);
  }

  /** Throw if the author's key was revoked before a block of that height and time. */
  checkAuthor(key: PublicKey, height: number, atNs: bigint): void {
    const found = this.#revoked.get(idOf(key))?.find((each) => height > each.above && atNs >= each.sinceNs);
    if (found) throw refused(`signed with ${key.did()}, which is revoked since ${timeOf(found.sinceNs)}${found.reason ? ` (${found.reason.slice(0, 80)})` : ""}`);
  }

  // ---- what is known ----

  /** Return whether the key may sign a block of that height and time. */
  isValid(key: PublicKey, height: number, atNs: bigint): boolean {
    const found = this.#validities.get(idOf(key));
    return found !== undefined && isValid(found, height, atNs);
  }

  /** Throw if the key that signs a range of blocks ended before the last of them. */
  checkUnended(key: PublicKey, last: BlockRecord): void {
    const found = this.#validities.get(idOf(key));
    if (found && hasEnded(found, last.height, last.timestampNs)) throw refused(`${key.did()} ${explain(found)}; block ${last.height} is of ${timeOf(last.timestampNs)}`);
  }

  isRevoked(key: PublicKey): boolean {
    return this.#revoked.has(idOf(key));
  }

  /** Keys that the trust file names, and their proven successors. */
  get named(): PublicKey[] {
    return [...this.#validities.values()].filter((each) => each.named).map((each) => each.key);
  }

  /** Return what is known of a signer: whether it is named, whether a rotation leads from it to a named one, and its validity in words. */
  signer(key: PublicKey): { named: boolean; leads: boolean; words: string } | null {
    const found = this.#validities.get(idOf(key));
    return found ? { named: found.named, leads: this.#leads, words: explain(found) } : null;
  }

  /** Return whether a key is one of `named`, or proven to be a successor of one. */
  descends(key: PublicKey, named: readonly PublicKey[]): boolean {
    const known = new Map(named.map((each) => [idOf(each), each]));
    for (const each of [...known.values()]) {
      for (let next = this.#validities.get(idOf(each))?.successor; next && !known.has(idOf(next)); next = this.#validities.get(idOf(next))?.successor) known.set(idOf(next), next);
    }
    return known.has(idOf(key));
  }

  /** Return whether a block of that height may have that policy; `pinned` is the first one, or one that followed it. */
  fitsPolicy(height: number, found: string | null, pinned: string | null): boolean {
    if (!this.#policies.length) return pinned === null || found === pinned;
    const hashes = [this.#policies[0].old, ...this.#policies.map((each) => each.policy.hash)];
    return found === hashes[this.#policies.filter((each) => each.above < height).length] && (pinned === null || hashes.includes(pinned));
  }

  /** The first block of an unnamed key that does not lead to a named one, as a refusal. */
  get stranger(): { height: number; detail: string } | null {
    if (!this.#unnamed || this.#vouched || this.#leads) return null;
    return { height: this.#unnamed.first, detail: `block ${this.#unnamed.first}: signer ${this.#unnamed.key.did()} is not trusted` };
  }

  /** Which blocks cannot be checked because only a later key is named; empty if all can. */
  get unjudged(): string {
    if (!this.#unnamed) return "";
    const { first, last, key } = this.#unnamed;
    return `blocks ${first}–${last} are signed by ${key.did()} or its successor, and the trust file names only a later one: whether that key was valid then cannot be checked`;
  }

  /** Who signed what, if there were several keys; else empty. */
  get summary(): string {
    if (this.#runs.length < 2) return "";
    const shown = this.#runs.slice(0, 4).map((run) => `${run.first === run.last ? `block ${run.first}` : `blocks ${run.first}–${run.last}`} by ${run.key.did()}`);
    return ` (${shown.join(", ")}${this.#runs.length > 4 ? `, and ${this.#runs.length - 4} more` : ""}, each while it was valid)`;
  }

  // ---- inside ----

  #judge(signer: PublicKey, height: number, atNs: bigint): void {
    if (this.#trust !== null) {
      let found = this.#validities.get(idOf(signer));
      if (!found) {
        if (this.#begun) throw refused(`block ${height}: signer ${signer.did()} is not trusted`);
        found = { key: signer, above: -1, sinceNs: 0n, ends: [], named: false, successor: null };
        this.#validities.set(idOf(signer), found);
      } else if (!isValid(found, height, atNs)) {
        throw refused(`block ${height}: signed on ${timeOf(atNs)} by ${signer.did()}, which ${explain(found)}${this.isRevoked(signer) ? ", and was revoked" : ""}`);
      }
      if (found.named) this.#vouched ||= this.#leads;
      else this.#unnamed = { first: this.#unnamed?.first ?? height, last: height, key: this.#unnamed?.key ?? signer };
    }
    this.#begun = true;
  }

  /** Apply a key statement whose block was checked. */
  #learn({ record, envelope }: KeyProof): void {
    const [hash, known] = [toHex(record.hash), this.#statements.get(record.height)];
    if (known === hash) return;
    const reason = reasonOf(() => {
      if (known !== undefined) throw unverified("two blocks of that height have key statements");
      if (toHex(envelope.id) !== toHex(record.merkleRoot) || record.envelopeCount !== 1) throw unverified("its envelope must be the only one of its block");
      const said = this.#look(envelope, record);
      if (said.act === "policy" || said.act === "evidence") {
        // A statement of an unnamed key must not change which policy a trust file pins.
        if (this.#validities.get(idOf(record.signer))?.named === false) return;
        if (said.act === "evidence") this.evidenceHash = said.signed.new_evidence_hash as string;
        else this.#policies.push({ above: record.height, old: said.signed.policy_hash as string | null, policy: checkPolicyRotation(said, record) });
        this.#changes.push(said);
      } else this.#apply(said, record.height);
      this.#statements.set(record.height, hash);
    });
    if (reason !== null) throw unverified(`block ${record.height}: invalid key statement: ${reason}`);
  }

  /** Return the key statement of an envelope if it is valid in its block; change nothing. */
  #look(envelope: Envelope, record: BlockRecord): KeyStatement {
    checkPayloadHash(envelope);
    checkEnvelopeSignature(envelope);
    const said = parseKeyStatement(envelope);
    const sealer = record.signer;
    if (!envelope.key.equals(sealer)) throw refused(`signed by ${envelope.key.did()}, but the block is signed by ${sealer.did()}`);
    if (said.channel !== record.channel) throw unverified(`it belongs to channel "${said.channel.slice(0, 80)}"`);
    if (said.act === "rotate") this.#lookAtRotation(said, envelope, sealer);
    else if (said.act === "promote") this.#lookAtPromotion(said, envelope, record);
    else if (said.act === "policy" || said.act === "evidence") this.#lookAtSettings(said, record);
    else {
      const found = this.#validities.get(said.key);
      if (!found && said.act !== "revoke") throw unverified(`${said.key.slice(0, 16)}… is not a key of this channel`);
      if (found && !found.successor && this.#trust !== null) throw unverified(`${found.key.did()} was not replaced yet: rotate first, then ${said.act}`);
    }
    const gone = said.approvals.find((each) => this.#revoked.get(idOf(each.approver))?.some((one) => record.height > one.above && record.timestampNs >= one.sinceNs));
    if (gone) throw refused(`approved with ${gone.approver.did()}, which was revoked`);
    const policy = this.#policies.find((each) => each.policy.hash === record.policyHash)?.policy;
    if (policy) requireApprovals(said.signed, said.approvals, policy.controls);
    return said;
  }

  #lookAtSettings(said: KeyStatement, record: BlockRecord): void {
    const { evidence_hash: from, new_evidence_hash: to } = said.signed;
    if (said.key !== idOf(record.signer)) throw unverified(`${said.key.slice(0, 16)}… is not the key that signed it`);
    const text = toHex(encode(said.signed));
    const former = this.#changes.filter((each) => each.act === said.act);
    if (former.some((each) => said.sinceNs < each.sinceNs || toHex(encode(each.signed)) === text)) throw unverified(`the ${said.act} change was made before, or is older than the last one`);
    if (said.act === "policy") checkPolicyRotation(said, record);
    else if (from === to || ![null, from].includes(this.evidenceHash)) throw unverified("it must replace the evidence settings that were recorded last by other ones");
  }

  #lookAtRotation(said: KeyStatement, envelope: Envelope, sealer: PublicKey): void {
    const next = said.newKey!;
    const successor = this.#validities.get(idOf(sealer))?.successor;
    if (said.key !== idOf(sealer)) throw unverified(`it rotates ${said.key.slice(0, 16)}…, which is not the key that signed it`);
    if (successor) throw unverified(`${sealer.did()} was already replaced by ${successor.did()}`);
    if (next.equals(sealer)) throw unverified("it rotates a key to itself");
    this.#checkNew(next);
    if (said.untilNs < said.sinceNs) throw unverified("the old key must not end before the new one is valid");
    if (said.sinceNs < parseTimestamp(envelope.value.timestamp)) throw unverified("the new key must not be valid before this statement");
    checkAcceptance(said);
  }

  #lookAtPromotion(said: KeyStatement, envelope: Envelope, record: BlockRecord): void {
    const below = checkPromotion(said, envelope, record);
    if (this.#trust !== null && !this.isValid(below.signer, below.height, below.timestampNs)) throw refused(`the block below is signed by ${below.signer.did()}, which is not valid there`);
    if (said.signed.epoch !== this.#epoch + 1) throw unverified(`it begins epoch ${String(said.signed.epoch)}, and epoch ${this.#epoch + 1} is next`);
    this.#checkNew(record.signer);
  }

  #checkNew(key: PublicKey): void {
    if (this.isRevoked(key)) throw unverified(`the new key ${key.did()} was revoked`);
    if (this.#validities.get(idOf(key))?.successor) throw unverified(`the new key ${key.did()} was replaced before`);
  }

  #apply(said: KeyStatement, height: number): void {
    const { key, newKey, sinceNs, untilNs } = said;
    const old = this.#validities.get(key);
    if (said.act === "promote") this.#epoch = said.signed.epoch as number;
    if (said.act === "revoke") return this.#revoke(key, { above: height, sinceNs, reason: said.reason });
    if (newKey === null || !old) return newKey === null ? this.#end(old, height, sinceNs) : undefined;
    let above = height;
    if (said.act === "promote") {
      above = height - 1;
      for (const other of [...this.#validities.values()]) {
        if (other === old || other.key.equals(newKey) || !(old.named || !other.named)) continue;
        this.#end({ ...other, successor: other.successor ?? newKey }, height, sinceNs);
      }
    }
    this.#end({ ...old, successor: newKey }, height, untilNs);
    const id = idOf(newKey);
    let known = this.#validities.get(id);
    this.#validities.delete(id); // the newest comes last
    if (!known) known = { key: newKey, above, sinceNs, ends: [], named: old.named, successor: null };
    else if (!old.named) this.#leads = true; // a statement of an unnamed key must not limit a named one
    else known = { ...known, above: Math.max(known.above, above), sinceNs: known.sinceNs > sinceNs ? known.sinceNs : sinceNs };
    this.#validities.set(id, known);
    return undefined;
  }

  #revoke(key: string, revoked: Revoked): void {
    this.#revoked.set(key, [...(this.#revoked.get(key) ?? []), revoked]);
    this.#end(this.#validities.get(key), revoked.above, revoked.sinceNs);
  }

  #end(found: Validity | undefined, height: number, untilNs: bigint): void {
    if (found) this.#validities.set(idOf(found.key), { ...found, ends: [...found.ends, [height, untilNs]] });
  }
}
