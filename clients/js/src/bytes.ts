// Bytes and their one spelling as text: hex, base64, base58, UTF-8.

import { RopewalkError } from "./errors.ts";

const HEX = /^(?:[0-9a-f]{2})*$/;
const HASH = /^[0-9a-f]{64}$/;
const BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
const BASE58_CHARS_MAX = 256;

export const utf8 = (text: string): Uint8Array<ArrayBuffer> => new TextEncoder().encode(text);

/** Return the text of UTF-8 bytes; throw a TypeError for anything else. */
export const decodeUtf8 = (raw: Uint8Array): string =>
  new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(raw);

export const toHex = (raw: Uint8Array): string => {
  let text = "";
  for (const byte of raw) text += (byte < 16 ? "0" : "") + byte.toString(16);
  return text;
};

/** Return the bytes of lowercase hex, or null. */
export function fromHex(text: unknown): Uint8Array<ArrayBuffer> | null {
  if (typeof text !== "string" || !HEX.test(text)) return null;
  const raw = new Uint8Array(text.length / 2);
  for (let at = 0; at < raw.length; at++) raw[at] = parseInt(text.slice(2 * at, 2 * at + 2), 16);
  return raw;
}

/** Return the 32 bytes of a hash in its one spelling, or null. */
export const hashFromHex = (text: unknown): Uint8Array<ArrayBuffer> | null =>
  typeof text === "string" && HASH.test(text) ? fromHex(text) : null;

export function concat(...parts: Uint8Array[]): Uint8Array<ArrayBuffer> {
  const joined = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    joined.set(part, at);
    at += part.length;
  }
  return joined;
}

export function equal(one: Uint8Array, other: Uint8Array): boolean {
  return one.length === other.length && one.every((byte, at) => byte === other[at]);
}

export function toBase64(raw: Uint8Array): string {
  let text = "";
  for (let at = 0; at < raw.length; at += 8192) text += String.fromCharCode(...raw.subarray(at, at + 8192));
  return btoa(text);
}

/** Return the bytes of padded base64 with zero trailing bits; refuse any other spelling. */
export function fromBase64(text: string): Uint8Array<ArrayBuffer> {
  let raw: Uint8Array<ArrayBuffer> | null = null;
  try {
    raw = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  } catch {
    // refused below
  }
  if (raw === null || toBase64(raw) !== text) {
    throw new RopewalkError("InvalidDigest", `base64 "${text.slice(0, 80)}": not the canonical spelling`);
  }
  return raw;
}

export function toBase58(raw: Uint8Array): string {
  let number = BigInt("0x0" + toHex(raw));
  let text = "";
  for (; number > 0n; number /= 58n) text = BASE58[Number(number % 58n)] + text;
  for (const byte of raw) {
    if (byte) break;
    text = "1" + text;
  }
  return text;
}

export function fromBase58(text: string): Uint8Array<ArrayBuffer> {
  if (text.length > BASE58_CHARS_MAX) {
    throw new RopewalkError("InvalidDigest", `base58 text has ${text.length} characters; at most ${BASE58_CHARS_MAX}`);
  }
  let number = 0n;
  for (const char of text) {
    const value = BASE58.indexOf(char);
    if (value < 0) throw new RopewalkError("InvalidDigest", `base58: "${char}" is not in the alphabet`);
    number = number * 58n + BigInt(value);
  }
  const zeros = text.length - text.replace(/^1+/, "").length;
  let hex = number === 0n ? "" : number.toString(16);
  if (hex.length % 2) hex = "0" + hex;
  return concat(new Uint8Array(zeros), fromHex(hex)!);
}
