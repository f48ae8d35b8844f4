/** Numbers, times and names as people read them. */
import { signal } from "@preact/signals";

export const utc = signal(localStorage.getItem("ropewalk-zone") === "utc");
export const now = signal(Date.now());
setInterval(() => (now.value = Date.now()), 10_000);

const COUNT = new Intl.NumberFormat("en");
export const count = (value: number): string => COUNT.format(value);
export const percent = (value: number): string => `${(value * 100).toFixed(value > 0 && value < 0.1 ? 1 : 0)} %`;

export function bytes(value: number): string {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (value >= 1024 && at < units.length - 1) (value /= 1024), at++;
  return `${at && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[at]}`;
}

export function duration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  if (seconds < 36 * 3600) return `${(seconds / 3600).toFixed(1)} h`;
  return `${(seconds / 86400).toFixed(1)} d`;
}

const STEPS: [number, Intl.RelativeTimeFormatUnit][] = [
  [60, "second"], [60, "minute"], [24, "hour"], [7, "day"], [4.35, "week"], [12, "month"], [Infinity, "year"],
];
const RELATIVE = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "short" });

export function relative(ms: number): string {
  let value = (ms - now.value) / 1000;
  if (Math.abs(value) < 5) return "just now";
  for (const [size, unit] of STEPS) {
    if (Math.abs(value) < size) return RELATIVE.format(Math.round(value), unit);
    value /= size;
  }
  return "";
}

export const zoneName = (): string => (utc.value ? "UTC" : Intl.DateTimeFormat().resolvedOptions().timeZone);
const shown = (ms: number, options: Intl.DateTimeFormatOptions) =>
  new Intl.DateTimeFormat("en-GB", { ...options, timeZone: utc.value ? "UTC" : undefined }).format(ms);

export const absolute = (ms: number): string =>
  `${shown(ms, { day: "2-digit", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit" })} ${zoneName()}`;
export const clock = (ms: number): string => shown(ms, { day: "2-digit", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });
export const day = (ms: number): string => shown(ms, { day: "2-digit", month: "short" });

export const short = (text: string, length = 12): string => (text.length > length + 3 ? `${text.slice(0, length)}…` : text);
export const person = (text: string): string => text.replace(/\s*<[^>]*>$/, "") || text;

const CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
export function ulidTime(ulid: string): number {
  let value = 0;
  for (const letter of ulid.slice(0, 10)) value = value * 32 + CROCKFORD.indexOf(letter);
  return value;
}
/** The largest ULID of a moment: everything recorded up to it lies below. */
export function ulidAt(ms: number): string {
  let text = "";
  for (let at = 0; at < 10; at++) (text = CROCKFORD[ms % 32] + text), (ms = Math.floor(ms / 32));
  return text + "Z".repeat(16);
}

export const engineOf = (log: string): string => log.slice(0, log.indexOf("/"));
export const nameOf = (log: string): string => log.slice(log.indexOf("/") + 1);
export const ENGINES: Record<string, string> = { shiplog: "Namespaces", messages: "Messages", ledger: "Ledger", gossip: "Gossip" };

/** Text of untrusted values in one line; direction and control characters are spelled out. */
export function line(value: unknown): string {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return plain(text ?? "");
}
export const plain = (text: string): string =>
  text.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);
