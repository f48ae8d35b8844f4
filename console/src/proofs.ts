/** What the browser recomputes by itself, with the JavaScript client: no answer of the server is believed here. */
import { blake3 } from "@noble/hashes/blake3.js";
import { hashFromHex, toHex } from "../../clients/js/src/bytes.ts";
import { encode } from "../../clients/js/src/jcs.ts";
import { LEDGER } from "../../clients/js/src/merkle.ts";
import type { Report } from "../../clients/js/src/report.ts";
import { verify, verifyProof } from "../../clients/js/src/verify.ts";

export { verify, verifyProof };
export type { Report };

/** Return whether the canonical bytes of an envelope have the content id that its commit names. */
export function checkContentId(envelope: unknown, contentId: string): boolean {
  try {
    return `blake3:${toHex(blake3(encode(envelope)))}` === contentId;
  } catch {
    return false;
  }
}

export interface PathStep {
  sibling: string;
  side: "left" | "right";
  result: string;
}

/** Fold the path of a proof and keep every node on the way, to draw it. */
export function pathSteps(id: string, index: number, size: number, path: string[]): PathStep[] {
  let got: Uint8Array | null = hashFromHex(id);
  let place = index;
  let last = size - 1;
  const steps: PathStep[] = [];
  for (const text of path) {
    const sibling = hashFromHex(text);
    if (!got || !sibling) break;
    const isRight = Boolean(place & 1) || place === last;
    got = isRight ? LEDGER.node(sibling, got) : LEDGER.node(got, sibling);
    if (isRight) while (!(place & 1) && place) (place >>= 1), (last >>= 1);
    (place >>= 1), (last >>= 1);
    steps.push({ sibling: text, side: isRight ? "left" : "right", result: toHex(got) });
  }
  return steps;
}
