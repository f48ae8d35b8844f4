// Signed notes and signed heads, as C2SP writes them: signed-note, tlog-checkpoint, tlog-cosignature.

import { sha256 } from "@noble/hashes/sha2.js";
import { concat, decodeUtf8, fromBase64, toBase64, toHex, utf8 } from "./bytes.ts";
import { RopewalkError } from "./errors.ts";
import { PublicKey } from "./keys.ts";

const NOTE_BYTES_MAX = 1_000_000;
const SIGNATURES_MAX = 100;
const SIGNATURE_LINE_MAX = 16_384;
const SIZE_MAX = 2n ** 63n - 1n;
const DASH = "\u2014 ";
const ED25519 = 1;
const COSIGNATURE = 4;

const invalid = (code: string, detail: string): RopewalkError => new RopewalkError(code, detail);

/** Return whether a key may be called so: not empty, without spaces, plus signs or control characters. */
export const isKeyName = (name: string): boolean =>
  // eslint-disable-next-line no-control-regex
  name !== "" && !/[+\s\u0000-\u001f\u0085\ud800-\udfff]/u.test(name);

/** An Ed25519 key under a name, in the text form `NAME+ID+KEY`. */
export class NoteKey {
  readonly name: string;
  readonly key: PublicKey;
  readonly type: number;
  readonly keyId: string;

  constructor(name: string, key: PublicKey, type = ED25519) {
    if (!isKeyName(name)) throw invalid("InvalidKey", `note key name "${name.slice(0, 80)}": not empty, no spaces, no plus`);
    if (key.alg !== "ed25519") throw invalid("InvalidKey", `notes are signed with ed25519, not ${key.alg}`);
    this.name = name;
    this.key = key;
    this.type = type;
    this.keyId = toHex(sha256(concat(utf8(`${name}\n`), new Uint8Array([type]), key.raw)).subarray(0, 4));
  }

  get isWitness(): boolean {
    return this.type === COSIGNATURE;
  }

  static fromText(text: string): NoteKey {
    const [name, keyId, ...rest] = text.split("+");
    let raw: Uint8Array;
    try {
      raw = fromBase64(rest.join("+"));
    } catch {
      throw invalid("InvalidKey", `note key of "${name.slice(0, 80)}": the key is not base64`);
    }
    if (raw[0] !== ED25519 && raw[0] !== COSIGNATURE) {
      throw invalid("InvalidKey", `note key of "${name.slice(0, 80)}": only types 1 (Ed25519) and 4 (cosignature) are known`);
    }
    const key = new NoteKey(name, new PublicKey("ed25519", raw.slice(1)), raw[0]);
    if (key.keyId !== keyId) throw invalid("InvalidKey", `note key of "${name}" has the id ${key.keyId}, not ${(keyId ?? "").slice(0, 80)}`);
    return key;
  }

  /** Throw unless the signature holds over the text; return the time of a cosignature in seconds. */
  verify(text: string, signature: Uint8Array): bigint | null {
    let [message, time, raw] = [utf8(text), null as bigint | null, signature];
    if (this.isWitness) {
      time = BigInt("0x0" + toHex(signature.subarray(0, 8)));
      message = utf8(`cosignature/v1\ntime ${time}\n${text}`);
      raw = signature.subarray(8);
    }
    if (raw.length !== 64 || (time ?? 0n) > SIZE_MAX) throw invalid("SigInvalid", `signature of "${this.name}" is not of the kind its key makes`);
    try {
      this.key.verify(message, raw);
    } catch (error) {
      throw invalid("SigInvalid", `signature of "${this.name}" does not hold: ${(error as RopewalkError).detail}`);
    }
    return time;
  }
}

/** Return the keys that count as witnesses: no name twice and no key twice; the first of each is kept. */
export const distinctWitnesses = (keys: readonly NoteKey[]): NoteKey[] =>
  keys.reduce<NoteKey[]>((found, key) => (found.some((each) => each.name === key.name || each.key.equals(key.key)) ? found : [...found, key]), []);

/** One signature line: a claim until its key verifies it. */
export interface NoteLine {
  name: string;
  keyId: string;
  raw: Uint8Array;
}

/** Split a note into its text and its signature lines; nothing is verified. */
export function splitNote(raw: Uint8Array): { text: string; lines: NoteLine[] } {
  if (raw.length > NOTE_BYTES_MAX) throw invalid("TooLarge", `note of ${raw.length} bytes`);
  let whole: string;
  try {
    whole = decodeUtf8(raw);
  } catch {
    throw invalid("InvalidNote", "note: not UTF-8");
  }
  checkText(whole);
  const border = whole.lastIndexOf("\n\n"); // the text may hold empty lines itself
  if (border < 0 || border + 2 === whole.length) throw invalid("InvalidNote", "note: no signature lines after an empty line");
  const lines = whole.slice(border + 2, -1).split("\n");
  if (lines.length > SIGNATURES_MAX) throw invalid("TooLarge", `note with ${lines.length} signatures`);
  return { text: whole.slice(0, border + 1), lines: lines.map(parseLine) };
}

function parseLine(line: string, at: number): NoteLine {
  if (line.length > SIGNATURE_LINE_MAX) throw invalid("TooLarge", `note: signature line ${at + 1} is too long`);
  const space = line.indexOf(" ", DASH.length);
  const name = line.slice(DASH.length, Math.max(space, 0));
  if (!line.startsWith(DASH) || space < 0 || !isKeyName(name)) {
    throw invalid("InvalidNote", `note: signature line ${at + 1} is not a dash, a name and a signature`);
  }
  let raw: Uint8Array;
  try {
    raw = fromBase64(line.slice(space + 1));
  } catch (error) {
    throw invalid("InvalidNote", `note: signature line ${at + 1}: ${(error as RopewalkError).detail}`);
  }
  if (raw.length <= 4) throw invalid("InvalidNote", `note: signature line ${at + 1} has no signature after the key id`);
  return { name, keyId: toHex(raw.subarray(0, 4)), raw: raw.slice(4) };
}

function checkText(text: string): void {
  if (!text.endsWith("\n")) throw invalid("InvalidNote", "note: the last line does not end");
  // eslint-disable-next-line no-control-regex
  if (/[\u0000-\u0009\u000b-\u001f]/.test(text)) throw invalid("InvalidNote", "note: holds a control character");
}

/** A note that at least one known key signed; lines of unknown keys prove nothing. */
export interface Note {
  text: string;
  verified: { key: NoteKey; time: bigint | null }[];
  unverified: NoteLine[];
}

/** Return the note if a known key signed it and no known key's signature is bad. */
export function openNote(raw: Uint8Array, keys: readonly NoteKey[]): Note {
  const known = new Map<string, NoteKey>();
  for (const key of keys) {
    const who = `${key.name}+${key.keyId}`;
    const before = known.get(who) ?? key;
    if (!before.key.equals(key.key) || before.type !== key.type) throw invalid("InvalidKey", `two keys of "${key.name}" share the id ${key.keyId}`);
    known.set(who, key);
  }
  const { text, lines } = splitNote(raw);
  const verified = new Map<NoteKey, bigint | null>();
  const unverified: NoteLine[] = [];
  for (const line of lines) {
    const key = known.get(`${line.name}+${line.keyId}`);
    if (key === undefined) unverified.push(line);
    else {
      const time = key.verify(text, line.raw); // a second line of one key is verified too
      if (!verified.has(key)) verified.set(key, time);
    }
  }
  if (!verified.size) throw invalid("SigInvalid", `no signature of a known key; signed by ${unverified.map((line) => `"${line.name}"`).join(", ")}`);
  return { text, verified: [...verified].map(([key, time]) => ({ key, time })), unverified };
}

/** The statement of a signed head: this log, at this size, has this root. */
export interface SignedHead {
  origin: string;
  size: bigint;
  root: Uint8Array;
  extensions: string[];
}

/** Return the head that a text states; nothing is verified. */
export function parseHead(text: string): SignedHead {
  const lines = text.split("\n");
  if (lines.pop() !== "" || lines.length < 3) throw invalid("InvalidNote", "signed head: origin, size and root take three lines");
  const [origin, size, root, ...extensions] = lines;
  if (!/^(?:0|[1-9][0-9]{0,18})$/.test(size) || BigInt(size) > SIZE_MAX) throw invalid("InvalidNote", `signed head: the size is written "${size.slice(0, 80)}"`);
  if (!origin || extensions.includes("")) throw invalid("InvalidNote", "origin and extensions of a signed head must not be empty lines");
  checkText(text);
  let raw: Uint8Array;
  try {
    raw = fromBase64(root);
  } catch (error) {
    throw invalid("InvalidNote", `signed head: ${(error as RopewalkError).detail}`);
  }
  if (raw.length !== 32) throw invalid("InvalidNote", `a root has 32 bytes, this one ${raw.length}`);
  return { origin, size: BigInt(size), root: raw, extensions };
}

/** Return the head and the signature lines that a note claims; nothing is verified. */
export function claimedHead(raw: Uint8Array): { head: SignedHead; lines: NoteLine[]; text: string } {
  const { text, lines } = splitNote(raw);
  return { head: parseHead(text), lines, text };
}

export const rootText = (head: SignedHead): string => toBase64(head.root);
