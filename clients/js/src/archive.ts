// Read a bundle's .tar.zst within limits: one Zstandard frame, plain files only, nothing extracted.

import { Decompress } from "fzstd";
import { concat } from "./bytes.ts";
import { RopewalkError } from "./errors.ts";

export const MAGIC = new Uint8Array([0x28, 0xb5, 0x2f, 0xfd]);
const RECORD = 512;
const ZEROS_MAX = 1 << 20;
const NAME = /^[A-Za-z0-9_][A-Za-z0-9._-]*(?:\/[A-Za-z0-9_][A-Za-z0-9._-]*)*$/;
const OCTAL = /^ *([0-7]+)[ \0]*$/;
const RATIO_MAX = 1000;
const RATIO_FROM = 64 << 20;
export const UNPACKED_BYTES_MAX = 4 * 2 ** 30;

const damaged = (detail: string): RopewalkError => new RopewalkError("Damaged", detail);

/** Return where the Zstandard frame ends, its checksum and its size; throw `Damaged` if it ends too early. */
function frameOf(raw: Uint8Array): { end: number; checksum: number | null; size: number | null } {
  const early = damaged("the packed data end too early");
  const descriptor = raw[4];
  if (descriptor === undefined) throw early;
  const isSingle = (descriptor >> 5) & 1;
  const sizeBytes = [isSingle ? 1 : 0, 2, 4, 8][descriptor >> 6];
  let at = 5 + (isSingle ? 0 : 1) + [0, 1, 2, 4][descriptor & 3];
  let size: number | null = sizeBytes ? 0 : null;
  for (let byte = 0; size !== null && byte < sizeBytes; byte++) size += (raw[at + byte] ?? 0) * 2 ** (8 * byte);
  if (size !== null && sizeBytes === 2) size += 256;
  at += sizeBytes;
  for (;;) {
    if (at + 3 > raw.length) throw early;
    const head = raw[at] | (raw[at + 1] << 8) | (raw[at + 2] << 16);
    const kind = (head >> 1) & 3;
    if (kind === 3) throw damaged("the packed data are damaged (a reserved block type)");
    at += 3 + (kind === 1 ? 1 : head >> 3);
    if (head & 1) break;
  }
  const end = at + ((descriptor >> 2) & 1 ? 4 : 0);
  if (end > raw.length) throw early;
  return { end, size, checksum: end === at ? null : new DataView(raw.buffer, raw.byteOffset + at).getUint32(0, true) };
}

const PRIMES = [0x9e3779b185ebca87n, 0xc2b2ae3d27d4eb4fn, 0x165667b19e3779f9n, 0x85ebca77c2b2ae63n, 0x27d4eb2f165667c5n];
const wrap = (value: bigint): bigint => BigInt.asUintN(64, value);
const rotate = (value: bigint, by: bigint): bigint => wrap((value << by) | (value >> (64n - by)));
const round = (lane: bigint, word: bigint): bigint => wrap(rotate(wrap(lane + word * PRIMES[1]), 31n) * PRIMES[0]);

/** XXH64 with seed 0 over pieces, as Zstandard frames carry its low 32 bits. */
class Checksum {
  #lanes = [wrap(PRIMES[0] + PRIMES[1]), PRIMES[1], 0n, wrap(-PRIMES[0])];
  #rest: Uint8Array = new Uint8Array();
  #size = 0;

  update(piece: Uint8Array): void {
    this.#size += piece.length;
    const data = this.#rest.length ? concat(this.#rest, piece) : piece;
    const view = new DataView(data.buffer, data.byteOffset, data.length);
    let at = 0;
    for (; at + 32 <= data.length; at += 32) {
      for (let lane = 0; lane < 4; lane++) this.#lanes[lane] = round(this.#lanes[lane], view.getBigUint64(at + 8 * lane, true));
    }
    this.#rest = data.slice(at);
  }

  low32(): number {
    const [a, b, c, d] = this.#lanes;
    let hash = PRIMES[4];
    if (this.#size >= 32) {
      hash = wrap(rotate(a, 1n) + rotate(b, 7n) + rotate(c, 12n) + rotate(d, 18n));
      for (const lane of this.#lanes) hash = wrap((hash ^ round(0n, lane)) * PRIMES[0] + PRIMES[3]);
    }
    hash = wrap(hash + BigInt(this.#size));
    const view = new DataView(this.#rest.buffer, this.#rest.byteOffset, this.#rest.length);
    let at = 0;
    for (; at + 8 <= view.byteLength; at += 8) hash = wrap(rotate(hash ^ round(0n, view.getBigUint64(at, true)), 27n) * PRIMES[0] + PRIMES[3]);
    for (; at + 4 <= view.byteLength; at += 4) hash = wrap(rotate(hash ^ wrap(BigInt(view.getUint32(at, true)) * PRIMES[0]), 23n) * PRIMES[1] + PRIMES[2]);
    for (; at < view.byteLength; at++) hash = wrap(rotate(hash ^ wrap(BigInt(view.getUint8(at)) * PRIMES[4]), 11n) * PRIMES[0]);
    hash = wrap((hash ^ (hash >> 33n)) * PRIMES[1]);
    hash = wrap((hash ^ (hash >> 29n)) * PRIMES[2]);
    return Number((hash ^ (hash >> 32n)) & 0xffffffffn);
  }
}

/** Unpack one frame piece by piece; `TooLarge` for a decompression bomb, `Damaged` after what could be read. */
export function unpack(raw: Uint8Array, take: (piece: Uint8Array) => void, bytesMax = UNPACKED_BYTES_MAX): void {
  if (!MAGIC.every((byte, at) => raw[at] === byte)) throw new RopewalkError("Invalid", "not a bundle: it is not packed with Zstandard");
  let [end, want, size] = [raw.length, null as number | null, null as number | null];
  let fault: RopewalkError | null = null;
  try {
    ({ end, checksum: want, size } = frameOf(raw));
    if (end < raw.length) fault = damaged("bytes follow after the end of the packed data");
  } catch (error) {
    fault = error as RopewalkError;
  }
  let given = 0;
  const checksum = new Checksum();
  const stream = new Decompress((piece) => {
    given += piece.length;
    if (given > bytesMax || (given > RATIO_FROM && given > raw.length * RATIO_MAX)) {
      throw new RopewalkError("TooLarge", `unpacks to more than ${given} bytes from ${raw.length}; refused as a decompression bomb`);
    }
    if (want !== null) checksum.update(piece);
    take(piece);
  });
  try {
    for (let at = 0; at < end; at += 1 << 16) stream.push(raw.subarray(at, Math.min(end, at + (1 << 16))), at + (1 << 16) >= end);
  } catch (error) {
    if (error instanceof RopewalkError) throw error;
    throw fault ?? damaged(`the packed data are damaged (${(error as Error).message})`);
  }
  if (size !== null && given !== size) throw damaged(`the packed data are damaged (${given} bytes instead of ${size})`);
  if (want !== null && checksum.low32() !== want) throw damaged("the packed data are damaged (another checksum)");
  if (fault !== null) throw fault;
}

/** Takes an archive in pieces and hands on whole members; `check` refuses a member by its name and size. */
export class TarReader {
  #buffer: Uint8Array = new Uint8Array();
  #pieces: Uint8Array[] = [];
  #member: { name: string; size: number } | null = null;
  #left = 0;
  #zeros = 0;
  readonly #begin: (name: string, size: number) => void;
  readonly #end: (data: Uint8Array) => void;

  constructor(begin: (name: string, size: number) => void, end: (data: Uint8Array) => void) {
    this.#begin = begin;
    this.#end = end;
  }

  feed(piece: Uint8Array): void {
    let rest = piece.slice(); // the decoder uses its buffer again
    if (this.#buffer.length) {
      rest = concat(this.#buffer, rest);
      this.#buffer = new Uint8Array();
    }
    for (;;) {
      if (this.#member !== null) {
        const part = rest.subarray(0, this.#left);
        if (part.length) this.#pieces.push(part);
        this.#left -= part.length;
        rest = rest.subarray(part.length);
        const padding = (RECORD - (this.#member.size % RECORD)) % RECORD;
        if (this.#left || rest.length < padding) break;
        if (rest.subarray(0, padding).some((byte) => byte)) throw damaged("padding must be zero bytes");
        rest = rest.subarray(padding);
        const data = concat(...this.#pieces);
        this.#pieces = [];
        this.#member = null;
        this.#end(data);
      }
      if (rest.length < RECORD) break;
      const record = rest.subarray(0, RECORD);
      rest = rest.subarray(RECORD);
      if (record.every((byte) => !byte)) {
        this.#zeros += RECORD;
        if (this.#zeros > ZEROS_MAX) throw damaged("the archive goes on after its end");
        continue;
      }
      if (this.#zeros) throw damaged("the archive goes on after its end");
      this.#member = parseRecord(record);
      this.#left = this.#member.size;
      this.#begin(this.#member.name, this.#member.size);
    }
    this.#buffer = rest;
  }

  /** Throw unless the archive ended properly. */
  finish(): void {
    if (this.#member !== null || this.#zeros < 2 * RECORD || this.#buffer.length) throw damaged("the archive ends too early");
  }
}

function parseRecord(record: Uint8Array): { name: string; size: number } {
  const ascii = (start: number, end: number): string => String.fromCharCode(...record.subarray(start, end));
  const octal = (start: number, end: number): number | null => {
    const found = OCTAL.exec(ascii(start, end));
    return found === null ? null : parseInt(found[1], 8);
  };
  const checksum = record.reduce((sum, byte, at) => sum + (at >= 148 && at < 156 ? 32 : byte), 0);
  if (ascii(257, 262) !== "ustar" || octal(148, 156) !== checksum) throw damaged("invalid header checksum in the archive");
  const name = ascii(0, 100).replace(/\0+$/, "");
  const kind = record[156];
  if (kind !== 0x30 && kind !== 0) throw new RopewalkError("Invalid", `member "${name.slice(0, 80)}" is not a regular file`);
  if (name.length > 99 || !NAME.test(name) || record.subarray(345, 500).some((byte) => byte)) throw new RopewalkError("Invalid", `member name "${name.slice(0, 80)}" is not allowed`);
  const size = octal(124, 136);
  if (size === null) throw new RopewalkError("Invalid", `member "${name}" has an invalid size`);
  return { name, size };
}
