// What proofs and bundles have in common when they are judged against a trust file.

import { type Trust, parseTrust } from "./ledger.ts";
import { type Step, notChecked } from "./report.ts";

/** The bytes of a trust file, its parsed form, or nothing: then no signer is known to be trusted. */
export type TrustLike = Uint8Array | Trust | null | undefined;

/** Return a trust file in its parsed form. */
export const trustOf = (trust: TrustLike): Trust | null => (trust instanceof Uint8Array ? parseTrust(trust) : (trust ?? null));

/** Return the step about evidence, which this client never checks. */
export function evidenceStep(count: number, trust: Trust | null): Step {
  if (!count) return { name: "evidence", status: "passed", detail: "no envelope carries evidence" };
  const detail = `${count} ${count === 1 ? "envelope carries" : "envelopes carry"} evidence, which this client does not check`;
  return notChecked("evidence", detail, trust?.judgesEvidence ? "required" : "optional");
}
