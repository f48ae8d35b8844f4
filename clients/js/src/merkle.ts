// Merkle proofs in the shape of RFC 6962, verified bit by bit as RFC 9162 does; sizes are bigint, up to 2^63 − 1.

import { blake3 } from "@noble/hashes/blake3.js";
import { sha256 } from "@noble/hashes/sha2.js";
import { concat, equal, toHex, utf8 } from "./bytes.ts";
import { RopewalkError } from "./errors.ts";

export interface Hasher {
  leaf(data: Uint8Array): Uint8Array;
  node(left: Uint8Array, right: Uint8Array): Uint8Array;
  empty: Uint8Array;
}

const hasher = (hash: (raw: Uint8Array) => Uint8Array, leaf: Uint8Array, node: Uint8Array, empty: Uint8Array): Hasher => ({
  leaf: (data) => hash(concat(leaf, data)),
  node: (left, right) => hash(concat(node, left, right)),
  empty: hash(empty),
});

/** Trees over the envelopes of a block, over the blocks of a channel, and of C2SP heads. */
export const LEDGER = hasher(blake3, utf8("ea:envelope:v1"), utf8("ea:node:v1"), utf8("ea:empty:v1"));
export const RANGE = hasher(blake3, utf8("ea:block:v1"), utf8("ea:range-node:v1"), utf8("ea:empty:v1"));
export const SHA256 = hasher(sha256, new Uint8Array([0]), new Uint8Array([1]), new Uint8Array());

const SIZE_MAX = 2n ** 63n - 1n;
const invalid = (detail: string): RopewalkError => new RopewalkError("InvalidProof", detail);

/** Return the root over leaf hashes. */
export function root(leaves: readonly Uint8Array[], by: Hasher): Uint8Array {
  if (!leaves.length) return by.empty;
  checkHashes(...leaves);
  let level = leaves;
  while (level.length > 1) {
    const above: Uint8Array[] = [];
    for (let at = 0; at + 1 < level.length; at += 2) above.push(by.node(level[at], level[at + 1]));
    if (level.length % 2) above.push(level[level.length - 1]);
    level = above;
  }
  return level[0];
}

/** Throw unless the leaf hash is at `index` under the root of `size` leaves. */
export function verifyInclusion(leaf: Uint8Array, index: bigint, size: bigint, path: readonly Uint8Array[], want: Uint8Array, by: Hasher): void {
  checkSize(size);
  if (index < 0n || index >= size) throw invalid(`leaf ${index} is outside a tree of ${size}`);
  checkHashes(leaf, ...path, want);
  let [place, last, got] = [index, size - 1n, leaf];
  for (const sibling of path) {
    if (last === 0n) throw invalid(`path has ${path.length} hashes, too many for leaf ${index} of ${size}`);
    if (place & 1n || place === last) {
      got = by.node(sibling, got);
      while (!(place & 1n) && place) [place, last] = [place >> 1n, last >> 1n];
    } else got = by.node(got, sibling);
    [place, last] = [place >> 1n, last >> 1n];
  }
  if (last) throw invalid(`path has ${path.length} hashes; leaf ${index} of ${size} takes more`);
  arrive(`inclusion of leaf ${index} of ${size}`, "root", got, want);
}

/** Throw unless the first `old` leaves under the new root are all the leaves under the old one. */
export function verifyConsistency(old: bigint, size: bigint, path: readonly Uint8Array[], oldRoot: Uint8Array, newRoot: Uint8Array, by: Hasher): void {
  checkSize(size);
  if (old < 0n || old > size) throw invalid(`a tree of ${size} does not extend one of ${old}`);
  checkHashes(...path, oldRoot, newRoot);
  const claim = `consistency of ${old} with ${size}`;
  if (old === 0n || old === size) {
    if (path.length) throw invalid(`${claim} takes no hashes, path has ${path.length}`);
    arrive(claim, "old root", old === 0n ? by.empty : newRoot, oldRoot);
    if (size === 0n) arrive(claim, "new root", by.empty, newRoot);
    return;
  }
  let [place, last] = [old - 1n, size - 1n];
  while (place & 1n) [place, last] = [place >> 1n, last >> 1n];
  const nodes = (old & (old - 1n)) === 0n ? [oldRoot, ...path] : [...path];
  if (!nodes.length) throw invalid(`${claim} takes more hashes than none`);
  let [oldGot, newGot] = [nodes[0], nodes[0]];
  for (const sibling of nodes.slice(1)) {
    if (last === 0n) throw invalid(`${claim}: path has ${path.length} hashes, too many`);
    if (place & 1n || place === last) {
      [oldGot, newGot] = [by.node(sibling, oldGot), by.node(sibling, newGot)];
      while (!(place & 1n) && place) [place, last] = [place >> 1n, last >> 1n];
    } else newGot = by.node(newGot, sibling);
    [place, last] = [place >> 1n, last >> 1n];
  }
  if (last) throw invalid(`${claim}: path has ${path.length} hashes, too few`);
  arrive(claim, "old root", oldGot, oldRoot);
  arrive(claim, "new root", newGot, newRoot);
}

/** Throw unless these leaves are consecutive from `start` under the root of `size` leaves. */
export function verifyRange(
  leaves: readonly Uint8Array[], start: bigint, size: bigint, left: readonly Uint8Array[], right: readonly Uint8Array[], want: Uint8Array, by: Hasher,
): void {
  checkSize(size);
  const end = start + BigInt(leaves.length);
  if (!(start >= 0n && start < end && end <= size)) throw invalid(`leaves ${start} to ${end} are no range of a tree of ${size}`);
  checkHashes(...leaves, ...left, ...right, want);
  const claim = `range ${start} to ${end} of ${size}`;
  const [before, after] = [[...left], [...right]];
  let level = [...leaves];
  let [first, final, last] = [start, end - 1n, size - 1n];
  for (; last; [first, final, last] = [first >> 1n, final >> 1n, last >> 1n]) {
    if (first & 1n) level.unshift(next(before, claim));
    if (!(final & 1n) && final < last) level.push(next(after, claim));
    const above: Uint8Array[] = [];
    for (let at = 0; at + 1 < level.length; at += 2) above.push(by.node(level[at], level[at + 1]));
    if (level.length % 2) above.push(level[level.length - 1]);
    level = above;
  }
  if (before.length || after.length) throw invalid(`${claim}: the proof has too many hashes`);
  arrive(claim, "root", concat(...level), want);
}

function next(hashes: Uint8Array[], claim: string): Uint8Array {
  const found = hashes.shift();
  if (found === undefined) throw invalid(`${claim}: the proof has too few hashes`);
  return found;
}

function checkSize(size: bigint): void {
  if (size < 0n || size > SIZE_MAX) throw invalid(`${size} is no size of a tree`);
}

function checkHashes(...hashes: Uint8Array[]): void {
  for (const each of hashes) if (each.length !== 32) throw invalid(`hashes must have 32 bytes, one has ${each.length}`);
}

function arrive(claim: string, what: string, got: Uint8Array, want: Uint8Array): void {
  if (!equal(got, want)) {
    throw new RopewalkError("ProofRefused", `${claim} leads to ${toHex(got).slice(0, 8)}…, not to the ${what} ${toHex(want).slice(0, 8)}…`);
  }
}
