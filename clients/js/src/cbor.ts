// Deterministic CBOR (RFC 8949 §4.2) of values of the JSON model. There is no decoder: a verifier writes again what it compares.

import { equal, utf8 } from "./bytes.ts";
import { type Json, isObject } from "./jcs.ts";

const [TEXT, LIST, MAP] = [3, 4, 5];

/** Return the CBOR of a parsed JSON value: shortest heads and floats, members sorted by length and then by bytes. */
export function encodeCbor(value: Json): Uint8Array<ArrayBuffer> {
  const writer = new Writer();
  writer.value(value);
  return writer.bytes();
}

class Writer {
  #room = new Uint8Array(1024);
  #size = 0;

  bytes(): Uint8Array<ArrayBuffer> {
    return this.#room.slice(0, this.#size);
  }

  value(value: Json): void {
    if (typeof value === "number") this.#number(value);
    else if (typeof value === "string") this.#text(utf8(value));
    else if (Array.isArray(value)) {
      this.#head(LIST, value.length);
      for (const item of value) this.value(item);
    } else if (isObject(value)) {
      const members = Object.keys(value).map((name) => ({ name, raw: utf8(name) })).sort((a, b) => inOrder(a.raw, b.raw));
      this.#head(MAP, members.length);
      for (const { name, raw } of members) {
        this.#text(raw);
        this.value(value[name]);
      }
    } else this.#take(1).setUint8(0, value === null ? 0xf6 : value ? 0xf5 : 0xf4);
  }

  #text(raw: Uint8Array): void {
    this.#head(TEXT, raw.length);
    this.#take(raw.length);
    this.#room.set(raw, this.#size - raw.length);
  }

  #number(number: number): void {
    if (Number.isSafeInteger(number)) return number < 0 ? this.#head(1, -1 - number) : this.#head(0, number);
    const half = halfOf(number);
    const width = half !== null ? 2 : Math.fround(number) === number ? 4 : 8;
    const view = this.#take(1 + width);
    view.setUint8(0, { 2: 0xf9, 4: 0xfa, 8: 0xfb }[width]);
    if (half !== null) view.setUint16(1, half);
    else if (width === 4) view.setFloat32(1, number);
    else view.setFloat64(1, number);
    return undefined;
  }

  #head(major: number, count: number): void {
    const width = count < 24 ? 0 : count < 2 ** 8 ? 1 : count < 2 ** 16 ? 2 : count < 2 ** 32 ? 4 : 8;
    const view = this.#take(1 + width);
    view.setUint8(0, (major << 5) | (width ? 24 + Math.log2(width) : count));
    if (width === 8) view.setBigUint64(1, BigInt(count));
    else if (width === 4) view.setUint32(1, count);
    else if (width === 2) view.setUint16(1, count);
    else if (width === 1) view.setUint8(1, count);
  }

  /** Return a view of the next bytes, which count as written. */
  #take(size: number): DataView {
    const start = this.#size;
    this.#size += size;
    if (this.#size > this.#room.length) {
      const larger = new Uint8Array(2 * this.#size);
      larger.set(this.#room);
      this.#room = larger;
    }
    return new DataView(this.#room.buffer, start, size);
  }
}

function inOrder(one: Uint8Array, other: Uint8Array): number {
  if (one.length !== other.length || equal(one, other)) return one.length - other.length;
  const at = one.findIndex((byte, place) => byte !== other[place]);
  return one[at] - other[at];
}

/** Return the bits of a number that is exact in 16 bits, else null. */
function halfOf(number: number): number | null {
  const size = Math.abs(number);
  const sign = number < 0 ? 0x8000 : 0;
  const exponent = Math.max(-14, Math.floor(Math.log2(size)));
  const scaled = size * 2 ** (10 - exponent); // in units of the last place: 1024 … 2047, less for a subnormal
  if (exponent > 15 || !Number.isInteger(scaled)) return null;
  return sign | (scaled < 1024 ? scaled : ((exponent + 15) << 10) + scaled - 1024);
}
