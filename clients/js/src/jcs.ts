// Canonical JSON (RFC 8785) and a strict parser: the same rules, reasons and byte positions as ropewalk's kernel.

import { decodeUtf8, utf8 } from "./bytes.ts";
import { RopewalkError } from "./errors.ts";

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type JsonObject = { [name: string]: Json };

export const DEPTH_MAX = 128;
export const ITEMS_MAX = 1 << 20;
const INTEGER_MAX = Number.MAX_SAFE_INTEGER;
const EXPONENT_FROM = 1e21;
const LONE = /[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/;
const NUMBER = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?/y;
const NOT_A_NUMBER = /NaN|-?Infinity/y;
const WORDS: [string, Json][] = [["true", true], ["false", false], ["null", null]];

const fault = (reason: string, position: number, detail = reason): RopewalkError =>
  new RopewalkError("InvalidJson", `${detail} at byte ${position}`, { reason, position });

/** Return whether a value is a JSON object. */
export const isObject = (value: unknown): value is JsonObject =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** Return whether an object has exactly these members, and perhaps some of the optional ones. */
export function hasExactly(value: unknown, names: readonly string[], optional: readonly string[] = []): value is JsonObject {
  if (!isObject(value)) return false;
  const found = Object.keys(value);
  return names.every((name) => Object.hasOwn(value, name)) &&
    found.every((name) => names.includes(name) || optional.includes(name));
}

/** Return the canonical text of a value. */
export function encodeText(value: unknown, depth = DEPTH_MAX): string {
  if (value === null || typeof value === "boolean") return String(value);
  if (typeof value === "string") return encodeString(value);
  if (typeof value === "number") return encodeNumber(value);
  if (typeof value !== "object" || value instanceof Uint8Array) {
    throw new RopewalkError("InvalidJson", `${typeof value} is not a JSON type`, { reason: "not JSON" });
  }
  if (depth === 0) {
    throw new RopewalkError("InvalidJson", `nested deeper than ${DEPTH_MAX}`, { reason: "nested too deep" });
  }
  if (Array.isArray(value)) return `[${value.map((item) => encodeText(item, depth - 1)).join(",")}]`;
  const members = value as Record<string, unknown>;
  const parts = Object.keys(members).sort().map((name) => `${encodeString(name)}:${encodeText(members[name], depth - 1)}`);
  return `{${parts.join(",")}}`;
}

/** Return the canonical bytes of a value. */
export const encode = (value: unknown): Uint8Array<ArrayBuffer> => utf8(encodeText(value));

function encodeString(text: string): string {
  if (LONE.test(text)) throw new RopewalkError("InvalidJson", "lone surrogate in a string", { reason: "lone surrogate" });
  return JSON.stringify(text);
}

function encodeNumber(number: number): string {
  const size = Math.abs(number);
  if (!Number.isFinite(number)) throw new RopewalkError("InvalidJson", `${number} is not finite`, { reason: "not finite" });
  if (size > INTEGER_MAX && size < EXPONENT_FROM) {
    throw new RopewalkError("InvalidJson", `${number}: integer beyond ±(2^53−1)`, { reason: "big integer" });
  }
  return String(number); // ECMAScript's text is RFC 8785's; -0 is written 0
}

/** Refuse a document by its size and its commas and brackets, before it is parsed. */
export function checkSize(raw: Uint8Array, bytesMax: number, itemsMax = ITEMS_MAX): void {
  if (raw.length > bytesMax) {
    throw new RopewalkError("TooLarge", `document has ${raw.length} bytes, expected at most ${bytesMax}`);
  }
  let items = 0;
  for (const byte of raw) if (byte === 0x2c || byte === 0x5b || byte === 0x7b) items++;
  if (items > itemsMax) throw new RopewalkError("TooLarge", `document has ${items} items, expected at most ${itemsMax}`);
}

/** Return the value of strict JSON: UTF-8, unique keys, numbers and nesting within bounds. */
export function parse(raw: Uint8Array, bytesMax?: number): Json {
  if (bytesMax !== undefined) checkSize(raw, bytesMax);
  return new Reader(raw).document();
}

/** Return the value of bytes that must already be canonical. */
export function parseCanonical(raw: Uint8Array, bytesMax?: number): Json {
  if (bytesMax !== undefined) checkSize(raw, bytesMax);
  const quick = parseQuickly(raw);
  if (quick !== undefined) return quick;
  const value = new Reader(raw).document();
  const canonical = encode(value);
  let at = 0;
  while (at < raw.length && at < canonical.length && raw[at] === canonical[at]) at++;
  throw fault("not canonical", at, "not canonical");
}

/** Return the value if the text is written again byte by byte, which also excludes duplicate keys; else undefined. */
function parseQuickly(raw: Uint8Array): Json | undefined {
  try {
    const text = decodeUtf8(raw);
    if (nestingOf(raw) > DEPTH_MAX) return undefined; // the built-in parser would recurse
    const value = JSON.parse(text) as Json;
    return encodeText(value) === text ? value : undefined;
  } catch {
    return undefined;
  }
}

function nestingOf(raw: Uint8Array): number {
  let open = 0;
  let most = 0;
  for (const byte of raw) {
    if (byte === 0x5b || byte === 0x7b) most = Math.max(most, ++open); // also counts those in strings: only slower
    else if (byte === 0x5d || byte === 0x7d) open--;
  }
  return most;
}

class Reader {
  #at = 0;
  readonly #raw: Uint8Array;
  readonly #text: string; // one character for each byte, so that expressions match by position

  constructor(raw: Uint8Array) {
    this.#raw = raw;
    checkEncoding(raw);
    this.#text = latin1(raw);
  }

  document(): Json {
    this.#skip();
    if (this.#at === this.#raw.length) throw fault("unexpected end", this.#at, "no JSON value");
    const value = this.#value(DEPTH_MAX);
    this.#skip();
    if (this.#at !== this.#raw.length) throw fault("trailing bytes", this.#at, `${this.#raw.length - this.#at} more bytes after the value`);
    return value;
  }

  #value(room: number): Json {
    const char = this.#text[this.#at];
    if (char === "{" || char === "[") {
      if (room === 0) throw fault("nested too deep", this.#at, `nested deeper than ${DEPTH_MAX}`);
      this.#at++;
      this.#skip();
      return char === "{" ? this.#object(room - 1) : this.#array(room - 1);
    }
    if (char === '"') return this.#string();
    for (const [word, value] of WORDS) {
      if (this.#text.startsWith(word, this.#at)) {
        this.#at += word.length;
        return value;
      }
    }
    return this.#number();
  }

  #array(room: number): Json[] {
    const items: Json[] = [];
    if (this.#take("]")) return items;
    for (;;) {
      items.push(this.#value(room));
      this.#skip();
      if (this.#take("]")) return items;
      this.#expect(",", '"," or "]"');
    }
  }

  #object(room: number): JsonObject {
    const members: JsonObject = {};
    if (this.#take("}")) return members;
    for (;;) {
      const start = this.#at;
      if (this.#text[start] !== '"') throw this.#unexpected("a key");
      const name = this.#string();
      if (Object.hasOwn(members, name)) throw fault("duplicate key", start, `duplicate key "${name.slice(0, 60)}"`);
      this.#skip();
      this.#expect(":", '":"');
      const value = this.#value(room);
      if (name === "__proto__") Object.defineProperty(members, name, { value, enumerable: true, writable: true, configurable: true });
      else members[name] = value;
      this.#skip();
      if (this.#take("}")) return members;
      this.#expect(",", '"," or "}"');
    }
  }

  #string(): string {
    const start = this.#at;
    let at = start + 1;
    for (; ; at++) {
      const byte = this.#raw[at];
      if (byte === undefined) throw fault("unexpected end", at, "unexpected end inside a string");
      if (byte === 0x22) break;
      if (byte < 0x20) throw fault("control character", at);
      if (byte !== 0x5c) continue;
      if (this.#raw[at + 1] === 0x75) {
        if (!/^[0-9a-fA-F]{4}$/.test(this.#text.slice(at + 2, at + 6))) throw fault("bad escape", at);
        at += 5;
      } else if ('"\\/bfnrt'.includes(this.#text[at + 1] ?? " ")) at++;
      else throw fault("bad escape", at);
    }
    const text = JSON.parse(decodeUtf8(this.#raw.subarray(start, at + 1))) as string;
    if (LONE.test(text)) throw fault("lone surrogate", this.#loneAt(start, at));
    this.#at = at + 1;
    return text;
  }

  #loneAt(start: number, end: number): number {
    let high = -1;
    for (const found of this.#text.slice(start, end).matchAll(/\\(?:u([0-9a-fA-F]{4})|.)/g)) {
      const code = parseInt(found[1] ?? "0", 16);
      const isLow = code >= 0xdc00 && code <= 0xdfff;
      if (high >= 0) {
        if (!isLow || found.index !== high + 6) return start + high;
        high = -1;
      } else if (isLow) return start + found.index;
      else if (code >= 0xd800 && code <= 0xdbff) high = found.index;
    }
    return start + Math.max(high, 0);
  }

  #number(): number {
    const at = this.#at;
    NOT_A_NUMBER.lastIndex = NUMBER.lastIndex = at;
    if (NOT_A_NUMBER.test(this.#text)) throw fault("not finite", at, "not a JSON number");
    const digits = NUMBER.exec(this.#text)?.[0];
    if (digits === undefined || /[0-9.eE+-]/.test(this.#text[at + digits.length] ?? " ")) {
      if (digits === undefined && !"-+.".includes(this.#text[at] ?? " ")) throw this.#unexpected("a value");
      throw fault("bad number", at);
    }
    const number = Number(digits);
    const size = Math.abs(number);
    if (!Number.isFinite(number)) throw fault("not finite", at, "number is beyond the range of a double");
    const isExact = /^-?[0-9]+$/.test(digits) ? BigInt(digits) === BigInt(number) : true;
    if (size > INTEGER_MAX && (size < EXPONENT_FROM || !isExact)) throw fault("big integer", at, "integer beyond ±(2^53−1)");
    this.#at = at + digits.length;
    return number === 0 ? 0 : number;
  }

  #skip(): void {
    while (" \t\n\r".includes(this.#text[this.#at] ?? "x")) this.#at++;
  }

  #take(char: string): boolean {
    if (this.#text[this.#at] !== char) return false;
    this.#at++;
    return true;
  }

  #expect(char: string, wanted: string): void {
    if (!this.#take(char)) throw this.#unexpected(wanted);
    this.#skip();
  }

  #unexpected(wanted: string): RopewalkError {
    if (this.#at >= this.#raw.length) return fault("unexpected end", this.#at, `unexpected end, expected ${wanted}`);
    return fault("unexpected character", this.#at, `unexpected character, expected ${wanted}`);
  }
}

function latin1(raw: Uint8Array): string {
  let text = "";
  for (let at = 0; at < raw.length; at += 8192) text += String.fromCharCode(...raw.subarray(at, at + 8192));
  return text;
}

function checkEncoding(raw: Uint8Array): void {
  if (raw[0] === 0xef && raw[1] === 0xbb && raw[2] === 0xbf) throw fault("byte order mark", 0);
  try {
    decodeUtf8(raw);
  } catch {
    throw fault("bad UTF-8", badByte(raw));
  }
}

/** Return the start of the first sequence that is not UTF-8. */
function badByte(raw: Uint8Array): number {
  for (let at = 0; at < raw.length; ) {
    const lead = raw[at];
    const size = lead < 0x80 ? 1 : lead >= 0xc2 && lead < 0xe0 ? 2 : lead >= 0xe0 && lead < 0xf0 ? 3 : lead >= 0xf0 && lead < 0xf5 ? 4 : 0;
    try {
      if (!size) return at;
      decodeUtf8(raw.subarray(at, at + size));
    } catch {
      return at;
    }
    at += size;
  }
  return 0;
}
