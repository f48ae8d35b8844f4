/** Data for pages: one cache by address, polled while a page shows it. */
import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";

export const token = signal<string | null>(sessionStorage.getItem("ropewalk-token"));
export const needsToken = signal(false);
export const offline = signal(false);

export class Problem extends Error {
  constructor(readonly status: number, readonly code: string, detail: string, readonly advice = "") {
    super(detail);
  }
}

export function setToken(text: string | null): void {
  if (text) sessionStorage.setItem("ropewalk-token", text);
  else sessionStorage.removeItem("ropewalk-token");
  token.value = text;
  needsToken.value = false;
  cache.clear();
}

export function headers(): Record<string, string> {
  return token.value ? { Authorization: `Bearer ${token.value}` } : {};
}

export type Params = Record<string, string | number | null | undefined>;

export function address(path: string, params: Params = {}): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params)) if (value !== null && value !== undefined && value !== "") query.set(name, String(value));
  const text = query.toString();
  return `/api/v1${path}${text ? `?${text}` : ""}`;
}

export async function send(method: string, url: string, body?: unknown): Promise<Response> {
  let answer: Response;
  try {
    const init: RequestInit = { method, headers: headers() };
    if (body !== undefined) {
      init.body = JSON.stringify(body);
      init.headers = { ...headers(), "Content-Type": "application/json" };
    }
    answer = await fetch(url, init);
  } catch {
    offline.value = true;
    throw new Problem(0, "Offline", "The server does not answer.", "Check that `ropewalk serve` runs. This page tries again by itself.");
  }
  offline.value = false;
  if (answer.ok) return answer;
  const found = await answer.json().catch(() => ({}));
  if (answer.status === 401) needsToken.value = true;
  throw new Problem(answer.status, found.code ?? "Error", found.detail ?? answer.statusText, found.advice ?? "");
}

export async function get<T>(path: string, params: Params = {}): Promise<T> {
  return (await send("GET", address(path, params))).json() as Promise<T>;
}

export async function post<T>(path: string, body: unknown): Promise<T> {
  return (await send("POST", address(path), body)).json() as Promise<T>;
}

export interface Loaded<T> {
  data: T | undefined;
  error: Problem | undefined;
  reload: () => void;
}

const cache = new Map<string, unknown>();
const CACHED_MAX = 200;

/** Load what an address answers; null loads nothing. The last answer stays visible while a newer one is on its way. */
export function useData<T>(path: string | null, params: Params = {}, pollMs = 0): Loaded<T> {
  const url = path === null ? null : address(path, params);
  const [state, setState] = useState<{ url: string | null; data?: T; error?: Problem }>({ url: null });
  const [turn, setTurn] = useState(0);
  const who = token.value;
  useEffect(() => {
    if (url === null) return;
    let ended = false;
    let timer = 0;
    const load = async () => {
      try {
        const data = (await (await send("GET", url)).json()) as T;
        if (cache.size > CACHED_MAX) cache.clear();
        cache.set(url, data);
        if (!ended) setState({ url, data });
      } catch (error) {
        if (!ended) setState((old) => ({ url, data: old.url === url ? old.data : undefined, error: error as Problem }));
      }
      const wait = pollMs || (offline.value ? 2_000 : 0);
      if (!ended && wait) timer = window.setTimeout(load, document.hidden ? wait * 5 : wait);
    };
    void load();
    return () => {
      ended = true;
      clearTimeout(timer);
    };
  }, [url, pollMs, turn, who]);
  const data = state.url === url ? state.data : undefined;
  return {
    data: data ?? (url !== null ? (cache.get(url) as T | undefined) : undefined),
    error: state.url === url ? state.error : undefined,
    reload: () => setTurn((n) => n + 1),
  };
}

export interface LogFacts {
  log: string;
  entries: number;
  head: string | null;
  newest_ms: number | null;
  rates: number[];
  blocks?: number;
  heads?: number;
}

export interface Overview {
  version: string;
  now_ms: number;
  span_s: number;
  identity: { name: string; known: boolean; rights: { logs: string[]; actions: string[] }[] };
  guarded: boolean;
  warehouse: boolean;
  fault: string | null;
  uptime_s: number;
  alerts: { name: string; severity: string; labels: Record<string, string>; summary: string }[];
  logs: LogFacts[];
}

export interface HistoryEvent {
  ulid: string;
  content_id: string;
  commit: string;
  parents: string[];
  height: number;
  author: string;
  envelope: { type: string; payload: unknown; [name: string]: unknown };
  trailer: Record<string, unknown> | null;
}

export interface Deployment {
  ulid: string;
  ns: string;
  type: string;
  time: string;
  env: string;
  status: string;
  service: string;
  artifact: string | null;
  who: string | null;
  end: string | null;
  content_id: string;
  commit: string;
  when: { start_ts?: string; end_ts?: string; dur_s?: number } | null;
  why: { reason?: string; ticket?: string } | null;
  payload: unknown;
}

export interface Block {
  height: number;
  block_hash: string;
  header: { merkle_root: string; prev_block_hash: string; timestamp: string; envelope_count: number; policy_hash: string | null; [name: string]: unknown };
  signature: { alg: string; sig: string };
  signer: { identity_type: string; public_key: string };
  envelopes: Envelope[];
  envelope_ids: string[];
}

export interface Envelope {
  event_class: string;
  event_type: string;
  domain: string;
  correlation_id: string;
  causality_chain?: string[];
  timestamp: string;
  origin_identity: { identity_type: string; public_key: string };
  payload?: unknown;
  payload_hash: string;
  [name: string]: unknown;
}

export interface Report {
  ok: boolean;
  verdict: string;
  steps: { name: string; status: "passed" | "failed" | "not_checked"; detail: string }[];
}

export interface GossipMessage {
  id: string;
  clock: number;
  parents: string[];
  payload: unknown;
  author: string;
}
