// The part of a policy that key statements rest on: its hash, and who must approve which act.

import { blake3 } from "@noble/hashes/blake3.js";
import { concat, toHex, utf8 } from "./bytes.ts";
import { RopewalkError } from "./errors.ts";
import { type Json, type JsonObject, encode, hasExactly, isObject } from "./jcs.ts";
import { PublicKey, signatureFromJson } from "./keys.ts";
import { reasonOf } from "./report.ts";

const APPROVALS_MAX = 32;
const POLICY_BYTES_MAX = 4 << 20;
const ACTS = ["rotate", "retire", "revoke", "destroy", "promote", "policy", "evidence", "version"];
const COMMON = { id: "string", name: "string", version: "integer", kind: "string", decision: "string" };
const KINDS: Record<string, Record<string, string>> = {
  signers: { allowed: "list" }, domains: { allowed: "list" }, signed_fields: {}, correlation: {}, evidence: { formats: "list" }, evidence_checked: {},
  proofs: { types: "list" }, policy_tag: {}, alert_repeat: {}, confidentiality: { level: "string", requires: "list" }, schema: { schema: "object" },
  schema_declared: {}, key_lifetime: { days: "integer", overlap_days: "integer" }, policy_lifetime: { until: "string", overlap_days: "integer" },
  control: { acts: "list", approvals: "integer", approvers: "list" }, alert_fanout: { channels: "list" }, rehearsal: { followers: "list", rehearsals: "integer" },
};
const OPTIONAL: Record<string, string[]> = { signed_fields: ["fields"], schema: ["detached"], policy_lifetime: ["since"], rehearsal: ["within_blocks", "downgrade"] };

/** Which acts need the approval of how many of which people. */
export interface Control { acts: string[]; count: number; people: { name: string; key: PublicKey }[] }
export interface Policy { hash: string; controls: Control[] }
export interface Approval { approver: PublicKey; signature: ReturnType<typeof signatureFromJson> }

const wrong = (what: string): RopewalkError => new RopewalkError("Invalid", `policy: ${what}`);
const OF_KIND: Record<string, (value: Json | undefined) => boolean> = {
  string: (value) => typeof value === "string",
  integer: (value) => Number.isSafeInteger(value) || typeof value === "boolean",
  list: Array.isArray,
  object: (value) => value !== undefined && isObject(value),
};

/** Parse a policy. Rules that decide about envelopes are checked for known kinds and members only; nothing here asks them. */
export function parsePolicy(value: Json): Policy {
  if (encode(value).length > POLICY_BYTES_MAX) throw wrong(`must have at most ${POLICY_BYTES_MAX} bytes`);
  if (!hasExactly(value, ["version", "rules"], ["name", "evaluator_version", "capability_matrix"]) || value.version !== 1) throw wrong("a policy must be an object with version 1 and rules");
  const { name = "policy", evaluator_version = "ropewalk/1", capability_matrix = {}, rules } = value;
  if (typeof name !== "string" || typeof evaluator_version !== "string" || !isObject(capability_matrix)) throw wrong("name and evaluator_version must be strings, capability_matrix an object");
  if (!Array.isArray(rules)) throw wrong("rules must be a list");
  const checked = rules.map(checkRule);
  if (new Set(checked.map((rule) => rule.id)).size !== checked.length) throw wrong("two rules share an id");
  const sorted = [...checked].sort((a, b) => inOrder(a.name, b.name) || Number(a.version) - Number(b.version) || inOrder(a.id, b.id));
  const frozen = encode({ rules: sorted, evaluator_version, capability_matrix });
  return { hash: toHex(blake3(concat(utf8("ea:policy:v1"), frozen))), controls: checked.filter((rule) => rule.kind === "control").map(parseControl) };
}

/** Compare texts by code points, as UTF-8 bytes do; JavaScript compares UTF-16 units. */
function inOrder(one: Json, other: Json): number {
  const [a, b] = [toHex(utf8(String(one))), toHex(utf8(String(other)))];
  return a < b ? -1 : Number(a > b);
}

function checkRule(rule: Json): JsonObject {
  if (!isObject(rule)) throw wrong("a rule must be an object");
  const extra = typeof rule.kind === "string" && Object.hasOwn(KINDS, rule.kind) ? KINDS[rule.kind] : null;
  if (extra === null) throw wrong(`rule of the unknown kind "${String(rule.kind).slice(0, 40)}"`);
  for (const [name, kind] of Object.entries({ ...COMMON, ...extra })) if (!OF_KIND[kind](rule[name])) throw wrong(`"${name}" of a rule is missing or has the wrong type`);
  if (!["allow", "audit", "deny"].includes(String(rule.decision))) throw wrong("decision must be allow, audit or deny");
  const known = new Set([...Object.keys(COMMON), ...Object.keys(extra), ...(OPTIONAL[String(rule.kind)] ?? []), "when", "description"]);
  const odd = Object.keys(rule).find((name) => !known.has(name));
  if (odd !== undefined) throw wrong(`unknown member "${odd.slice(0, 40)}" of a rule`);
  return rule;
}

function parseControl(rule: JsonObject): Control {
  const acts = rule.acts as Json[];
  const [count, approvers] = [rule.approvals, rule.approvers as Json[]];
  if (rule.decision !== "deny" || Object.hasOwn(rule, "when")) throw wrong("a control rule must deny, and must not have when");
  if (!acts.length || !acts.every((act) => typeof act === "string" && ACTS.includes(act))) throw wrong(`acts must be a list of ${ACTS.join(", ")}`);
  const people = approvers.map((each) => {
    if (!isObject(each) || typeof each.name !== "string" || !each.name) throw wrong("approvers must have name, identity_type and public_key");
    const { name, ...identity } = each;
    return { name, key: PublicKey.fromJson(identity) };
  });
  const names = new Set(people.map((each) => each.name)).size;
  if (people.some((each, at) => people.slice(0, at).some((other) => other.key.equals(each.key)))) throw wrong("a key of the approvers is listed twice");
  if (typeof count !== "number" || count < 1 || count > Math.min(APPROVALS_MAX, names)) throw wrong(`approvals must be a number from 1 to ${Math.min(APPROVALS_MAX, names)}`);
  // Any two sets of approvers then share a person, who approves one promotion of an epoch only.
  if (acts.includes("promote") && (count < 2 || 2 * count <= names)) throw wrong("to promote takes at least 2 approvals, and more than half of the approvers");
  return { acts: acts as string[], count, people };
}

/** Parse an approval; only the form is checked. */
export function parseApproval(value: Json): Approval {
  if (!hasExactly(value, ["approver", "signature"])) throw new RopewalkError("Invalid", "an approval must have approver and signature");
  return { approver: PublicKey.fromJson(value.approver), signature: signatureFromJson(value.signature) };
}

/** Throw unless every approval is signed, and as many people approved as each control of the act asks for. */
export function requireApprovals(act: JsonObject, approvals: readonly Approval[], controls: readonly Control[]): void {
  if (approvals.length > APPROVALS_MAX) throw new RopewalkError("Invalid", `at most ${APPROVALS_MAX} approvals are allowed, got ${approvals.length}`);
  const message = concat(utf8("ea:approval:v1"), encode(act));
  for (const { approver, signature } of approvals) {
    const reason = signature.alg === approver.alg ? reasonOf(() => approver.verify(message, signature.raw)) : `${signature.alg} signature of a ${approver.alg} key`;
    if (reason !== null) throw new RopewalkError("SigInvalid", `the approval of ${approver.did()}: ${reason}`);
  }
  for (const { count, people } of controls.filter((each) => each.acts.includes(String(act.act)))) {
    const names = new Set(approvals.flatMap(({ approver }) => people.filter((each) => each.key.equals(approver)).map((each) => each.name)));
    if (names.size < count) throw new RopewalkError("Denied", `to ${String(act.act)} needs ${count} approvals, got ${names.size} from approvers that the policy names`);
  }
}
