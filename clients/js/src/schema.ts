// The part of JSON Schema 2020-12 that the envelope's schema uses; an unknown keyword is a defect and throws.

import { type Json, isObject } from "./jcs.ts";
import { RopewalkError } from "./errors.ts";

type Schema = { readonly [keyword: string]: unknown };

const IGNORED = new Set(["$id", "$defs", "title", "description"]);
const DATE_TIME = /^\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])[Tt](?:[01]\d|2[0-3]):[0-5]\d:(?:[0-5]\d|60)(?:\.\d+)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)$/;
const URI = /^[A-Za-z][A-Za-z0-9+.-]*:(?:[A-Za-z0-9\-._~:/?#[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})*$/;
const FORMATS: Record<string, RegExp> = { "date-time": DATE_TIME, uri: URI };

/** Throw unless the value fits the schema. */
export function validate(value: Json, schema: Schema, name: string): void {
  const where = faultOf(value, schema, schema, "");
  if (where !== null) throw new RopewalkError("InvalidEnvelope", `${where || "document"}: does not fit the schema ${name}`, { where });
}

/** Return where the value does not fit, or null. */
function faultOf(value: Json, schema: Schema, root: Schema, where: string): string | null {
  for (const [keyword, rule] of Object.entries(schema)) {
    if (IGNORED.has(keyword) || keyword === "required" || keyword === "additionalProperties") continue;
    const found = keywordFault(keyword, rule, value, root, where);
    if (found !== null) return found;
  }
  return isObject(value) ? memberFault(value, schema, where) : null;
}

function keywordFault(keyword: string, rule: unknown, value: Json, root: Schema, where: string): string | null {
  const asText = typeof value === "string" ? value : null;
  switch (keyword) {
    case "$ref":
      return faultOf(value, definition(root, rule as string), root, where);
    case "type":
      return ([rule].flat() as string[]).some((kind) => isKind(value, kind)) ? null : where;
    case "enum":
      return (rule as readonly Json[]).includes(value) ? null : where;
    case "pattern":
      return asText === null || new RegExp(rule as string, "u").test(asText) ? null : where;
    case "format":
      return asText === null || FORMATS[rule as string].test(asText) ? null : where;
    case "minLength":
      return asText === null || [...asText].length >= (rule as number) ? null : where;
    case "minimum":
      return typeof value !== "number" || value >= (rule as number) ? null : where;
    case "minItems":
      return !Array.isArray(value) || value.length >= (rule as number) ? null : where;
    case "oneOf":
      return (rule as Schema[]).filter((each) => faultOf(value, each, root, where) === null).length === 1 ? null : where;
    case "items":
      return Array.isArray(value) ? first(value.map((item, at) => faultOf(item, rule as Schema, root, `${where}/${at}`))) : null;
    case "properties":
      return isObject(value)
        ? first(Object.entries(rule as Record<string, Schema>).map(([name, each]) => (Object.hasOwn(value, name) ? faultOf(value[name], each, root, `${where}/${name}`) : null)))
        : null;
    default:
      throw new Error(`schema keyword ${keyword} is not implemented`);
  }
}

function memberFault(value: { [name: string]: Json }, schema: Schema, where: string): string | null {
  const required = (schema.required ?? []) as string[];
  const known = (schema.properties ?? {}) as Record<string, Schema>;
  const isClosed = schema.additionalProperties === false;
  if (required.some((name) => !Object.hasOwn(value, name))) return where;
  return isClosed && Object.keys(value).some((name) => !Object.hasOwn(known, name)) ? where : null;
}

const first = (faults: (string | null)[]): string | null => faults.find((each) => each !== null) ?? null;

function definition(root: Schema, ref: string): Schema {
  const found = (root.$defs as Record<string, Schema>)[ref.replace("#/$defs/", "")];
  if (found === undefined) throw new Error(`schema reference ${ref} is unknown`);
  return found;
}

function isKind(value: Json, kind: string): boolean {
  if (kind === "null") return value === null;
  if (kind === "array") return Array.isArray(value);
  if (kind === "object") return isObject(value);
  if (kind === "integer") return Number.isInteger(value);
  return typeof value === kind;
}
