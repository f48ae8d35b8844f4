// Report a verification: named steps, each passed, failed or not checked, and the verdict computed from them.

import { RopewalkError } from "./errors.ts";

export type Status = "passed" | "failed" | "not_checked";
export type Verdict = "passed" | "failed" | "untrusted" | "partly";
export type Need = "required" | "trust" | "optional";

/** One thing that was looked at; `need` says what it means that a step was not checked. */
export interface Step {
  name: string;
  status: Status;
  detail: string;
  need?: Need;
  [fact: string]: unknown;
}

/** Steps in their order, and the verdict they lead to. `ok` only if the verdict is `passed`. */
export interface Report {
  ok: boolean;
  verdict: Verdict;
  steps: Step[];
  [count: string]: unknown;
}

/** Return a step that was not checked; unless told otherwise it was required. */
export const notChecked = (name: string, detail: string, need: Need = "required", facts: Record<string, unknown> = {}): Step =>
  ({ name, status: "not_checked", detail, need, ...facts });

/** Return a step that passes unless `act` throws. */
export function compared(name: string, what: string, act: () => void): Step {
  const detail = reasonOf(act);
  return detail === null ? { name, status: "passed", detail: what } : { name, status: "failed", detail: `${detail} (${what})` };
}

/** Return why `act` refuses, or null. Errors that are not refusals are defects and pass through. */
export function reasonOf(act: () => void): string | null {
  try {
    act();
    return null;
  } catch (error) {
    if (error instanceof RopewalkError) return error.detail;
    throw error;
  }
}

/** Return the report of some steps: failed before untrusted before partly before passed. */
export function reportOf(steps: Step[], counts: Record<string, unknown> = {}): Report {
  const needs = new Set(steps.filter((step) => step.status === "not_checked").map((step) => step.need ?? "required"));
  let verdict: Verdict = "passed";
  if (steps.some((step) => step.status === "failed")) verdict = "failed";
  else if (needs.has("trust")) verdict = "untrusted";
  else if (needs.has("required") || !steps.length) verdict = "partly";
  return { ok: verdict === "passed", verdict, steps, ...counts };
}
