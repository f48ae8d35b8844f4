// Keys and the strict rule for signatures: one verdict for one triple of key, message and signature on every machine.
//
// WebCrypto is not asked: engines differ in the Ed25519 signatures that they accept, and a verdict must not.

import { ed25519 } from "@noble/curves/ed25519.js";
import { p256 } from "@noble/curves/nist.js";
import { secp256k1 } from "@noble/curves/secp256k1.js";
import { blake3 } from "@noble/hashes/blake3.js";
import { sha512 } from "@noble/hashes/sha2.js";
import { concat, equal, fromBase58, fromBase64, fromHex, toBase58, toHex, utf8 } from "./bytes.ts";
import { RopewalkError } from "./errors.ts";
import { hasExactly } from "./jcs.ts";

export type Algorithm = "ed25519" | "p256" | "secp256k1";

const SIGNATURE_BYTES = 64;
const KEY_BYTES: Record<Algorithm, number> = { ed25519: 32, p256: 33, secp256k1: 33 };
const CODECS: Record<Algorithm, number[]> = { ed25519: [0xed, 0x01], p256: [0x80, 0x24], secp256k1: [0xe7, 0x01] };
const DID_PREFIX = "did:key:z";
const ED_P = 2n ** 255n - 19n;
const ED_L = 2n ** 252n + 27742317777372353535851937790883648493n;
// The y of two of the four points of order 8; the other two have its negative.
const ED_Y8 = 0x05fc536d880238b13933c6d305acdfd5f098eff289f4c345b027b2c28f95e826n;

const invalid = (detail: string): RopewalkError => new RopewalkError("InvalidKey", detail);
const refused = (detail: string): RopewalkError => new RopewalkError("SigInvalid", detail);
const isAlgorithm = (alg: string): alg is Algorithm => Object.hasOwn(KEY_BYTES, alg);

/** A public key that is fit to verify: shape, curve and order are checked when it is made. */
export class PublicKey {
  readonly alg: Algorithm;
  readonly raw: Uint8Array;

  constructor(alg: string, raw: Uint8Array) {
    if (!isAlgorithm(alg)) throw invalid(`algorithm "${alg.slice(0, 80)}": expected one of ed25519, p256, secp256k1`);
    if (raw.length !== KEY_BYTES[alg]) throw invalid(`${alg} public key: ${raw.length} bytes instead of ${KEY_BYTES[alg]}`);
    const found = alg === "ed25519" ? ed25519Fault(raw) : ecdsaFault(alg, raw);
    if (found) throw invalid(`${alg} public key: ${found}`);
    this.alg = alg;
    this.raw = raw;
  }

  /** Throw unless the signature holds over the message. */
  verify(message: Uint8Array, signature: Uint8Array): void {
    if (signature.length !== SIGNATURE_BYTES) throw invalid(`${this.alg} signature: ${signature.length} bytes instead of ${SIGNATURE_BYTES}`);
    if (this.alg === "ed25519") verifyEd25519(this.raw, message, signature);
    else verifyEcdsa(this.alg, this.raw, message, signature);
  }

  /** Return the key as did:key. */
  did(): string {
    return DID_PREFIX + toBase58(concat(new Uint8Array(CODECS[this.alg]), this.raw));
  }

  /** Return the digest that identifies this key in block headers. */
  identity(): Uint8Array {
    return blake3(concat(utf8("ea:identity:v1"), utf8(this.alg), new Uint8Array(1), this.raw));
  }

  toJSON(): { identity_type: Algorithm; public_key: string } {
    return { identity_type: this.alg, public_key: toHex(this.raw) };
  }

  equals(other: PublicKey): boolean {
    return this.alg === other.alg && equal(this.raw, other.raw);
  }

  static fromDid(text: string): PublicKey {
    if (!text.startsWith(DID_PREFIX)) throw invalid(`"${text.slice(0, 80)}": expected "${DID_PREFIX}" and base58`);
    let raw: Uint8Array;
    try {
      raw = fromBase58(text.slice(DID_PREFIX.length));
    } catch (error) {
      throw invalid((error as RopewalkError).detail);
    }
    for (const alg of Object.keys(CODECS) as Algorithm[]) {
      const codec = CODECS[alg];
      if (raw[0] === codec[0] && raw[1] === codec[1]) {
        const key = new PublicKey(alg, raw.slice(2));
        if (key.did() === text) return key;
      }
    }
    throw invalid("not an Ed25519, P-256 or secp256k1 key in its one spelling");
  }

  /** Return the key of `{"identity_type", "public_key"}`; its bytes may be lowercase hex or padded base64. */
  static fromJson(value: unknown): PublicKey {
    if (!hasExactly(value, ["identity_type", "public_key"])) throw invalid("expected an object with exactly identity_type and public_key");
    const { identity_type: alg, public_key: text } = value;
    if (typeof alg !== "string" || typeof text !== "string") throw invalid("identity_type and public_key must be texts");
    return PublicKey.fromText(alg, text);
  }

  static fromText(alg: string, text: string): PublicKey {
    if (!isAlgorithm(alg)) throw invalid(`algorithm "${alg.slice(0, 80)}": expected one of ed25519, p256, secp256k1`);
    if (text.length !== 2 * KEY_BYTES[alg]) return new PublicKey(alg, base64(text, alg));
    const raw = fromHex(text);
    if (raw === null) throw invalid(`${alg}: not lowercase hex`);
    return new PublicKey(alg, raw);
  }
}

/** Return algorithm and bytes of `{"alg", "sig"}`. */
export function signatureFromJson(value: unknown): { alg: Algorithm; raw: Uint8Array } {
  if (!hasExactly(value, ["alg", "sig"]) || typeof value.alg !== "string" || typeof value.sig !== "string") {
    throw invalid("expected an object with exactly alg and sig");
  }
  if (!isAlgorithm(value.alg)) throw invalid(`algorithm "${value.alg.slice(0, 80)}": expected one of ed25519, p256, secp256k1`);
  const raw = base64(value.sig, value.alg);
  if (raw.length !== SIGNATURE_BYTES) throw invalid(`${value.alg} signature: ${raw.length} bytes instead of ${SIGNATURE_BYTES}`);
  return { alg: value.alg, raw };
}

function base64(text: string, alg: string): Uint8Array {
  try {
    return fromBase64(text);
  } catch (error) {
    throw invalid(`${alg}: ${(error as RopewalkError).detail}`);
  }
}

// ---- Ed25519 (RFC 8032): canonical A and R without small order, S below L, and no cofactor in the equation ----

const little = (raw: Uint8Array): bigint => BigInt("0x" + toHex(raw.slice().reverse()));
const ED_SMALL = new Set([0n, 1n, ED_P - 1n, ED_Y8, ED_P - ED_Y8]);

function isRefusedPoint(raw: Uint8Array): boolean {
  const y = little(raw) & ((1n << 255n) - 1n);
  return y >= ED_P || ED_SMALL.has(y);
}

function ed25519Fault(raw: Uint8Array): string {
  if (isRefusedPoint(raw)) return "non-canonical encoding or small order";
  try {
    ed25519.Point.fromBytes(raw);
    return "";
  } catch {
    return "no point of the curve";
  }
}

function verifyEd25519(key: Uint8Array, message: Uint8Array, signature: Uint8Array): void {
  const [r, s] = [signature.subarray(0, 32), little(signature.subarray(32))];
  if (isRefusedPoint(r)) throw refused("Ed25519: R has a non-canonical encoding or small order");
  if (s >= ED_L) throw refused("Ed25519: S is not below the order of the group");
  const k = little(sha512(concat(r, key, message))) % ED_L;
  const { Point } = ed25519;
  const minus = Point.fromBytes(key).negate();
  const got = Point.BASE.multiplyUnsafe(s).add(minus.multiplyUnsafe(k));
  if (!equal(got.toBytes(), r)) throw refused("Ed25519: the equation does not hold");
}

// ---- ECDSA with SHA-256: compressed keys, r and s in range, s in the lower half ----

const CURVES = { p256, secp256k1 };

function ecdsaFault(alg: "p256" | "secp256k1", raw: Uint8Array): string {
  if (raw[0] !== 2 && raw[0] !== 3) return "not the compressed form";
  try {
    CURVES[alg].Point.fromBytes(raw).assertValidity();
    return "";
  } catch {
    return "no point of the curve";
  }
}

function verifyEcdsa(alg: "p256" | "secp256k1", key: Uint8Array, message: Uint8Array, signature: Uint8Array): void {
  const order = CURVES[alg].Point.Fn.ORDER;
  const [r, s] = [0, 32].map((at) => BigInt("0x" + toHex(signature.subarray(at, at + 32))));
  if (!(r > 0n && r < order && s > 0n && s < order)) throw refused(`${alg}: r or s outside 1 … n−1`);
  if (s > order / 2n) throw refused(`${alg}: s in the upper half`);
  if (!CURVES[alg].verify(signature, message, key)) throw refused(`${alg}: the equation does not hold`);
}
