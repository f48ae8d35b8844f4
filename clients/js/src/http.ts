// The HTTP API of `ropewalk serve`: refusals are `HttpProblem`, appends carry an Idempotency-Key and may be repeated.

import { HttpProblem, RopewalkError } from "./errors.ts";
import type { Json, JsonObject } from "./jcs.ts";
import type { Report } from "./report.ts";
import { type Stream, type SubscribeOptions, subscribe } from "./stream.ts";
import type { LedgerEnvelope, ShiplogEventEnvelope } from "./types.ts";

export interface ClientOptions {
  /** The address of the server; default: the origin of the page. */
  url?: string;
  /** A bearer token, sent in the header Authorization. */
  token?: string;
  fetch?: typeof fetch;
  /** How often a request is repeated after 429, 503 or a lost connection (default 3). */
  retries?: number;
}

export interface AppendOptions {
  /** Default: a random key, so that a repeated request appends once. */
  idempotencyKey?: string;
  signal?: AbortSignal;
}

export interface EventReceipt { ulid: string; content_id: string; commit: string; replayed: boolean; ns: string }
export interface MessageReceipt { ulid: string; content_id: string; commit: string; replayed: boolean; topic: string }
export interface StoredEvent { ulid: string; content_id: string; commit: string; envelope: ShiplogEventEnvelope }
export interface EventPage { events: StoredEvent[]; next_since: string | null }
export interface Message { ulid: string; commit: string; content_id: string; envelope_path: string; canonical_json: string; checkpoint_hint: { group: string; topic: string } | null }
export interface MessagePage { messages: Message[]; next_since: string | null; restarted: boolean }
export interface ChannelFacts { channel: string; height: number | null; block_hash: string | null; envelopes: number; key: string; signer: JsonObject; policy_hash: string | null }
export interface StoredBlock { height: number; block_hash: string; header: JsonObject; signature: JsonObject; signer: JsonObject; envelopes: LedgerEnvelope[] }
export interface BlockPage { blocks: StoredBlock[]; next_from: number | null }
export interface EnvelopeReceipt { envelope_id: string; height: number; index: number; block_hash: string; replayed: boolean }
export interface GossipMessage { id: string; clock: number; parents: string[]; payload: Json; author: string }
export interface GossipPage { messages: GossipMessage[]; next_after: string | null }
export interface GossipReceipt { id: string; clock: number; parents: string[] }
export interface Draft { type: string; payload: JsonObject; [member: string]: Json }

type Query = Record<string, string | number | undefined | null>;

const API = "/api/v1";
const WAIT_MS_MAX = 10_000;
const JSON_TYPE = "application/json";

/** A client of one server. */
export class Client {
  readonly url: string;
  readonly #token: string | undefined;
  readonly #fetch: typeof fetch;
  readonly #retries: number;

  constructor(options: ClientOptions = {}) {
    const url = options.url ?? (globalThis as { location?: { origin: string } }).location?.origin;
    if (!url) throw new RopewalkError("Usage", "url must be the address of a server, as http://127.0.0.1:7480");
    this.url = url.replace(/\/+$/, "");
    this.#token = options.token;
    this.#fetch = options.fetch ?? globalThis.fetch.bind(globalThis);
    this.#retries = options.retries ?? 3;
  }

  // ---- namespaces and messages ----

  /** Append an event to a namespace; the receipt means that it is on disk. */
  appendEvent(ns: string, event: Draft, options?: AppendOptions): Promise<EventReceipt> {
    return this.#post(`/shiplog/${part(ns)}/events`, event, {}, options);
  }

  /** Append several events; an item that was refused is a problem with `code` instead of a receipt. */
  async appendEvents(ns: string, events: readonly Draft[], options?: AppendOptions): Promise<(EventReceipt | JsonObject)[]> {
    return (await this.#post<{ receipts: (EventReceipt | JsonObject)[] }>(`/shiplog/${part(ns)}/events`, events, {}, options)).receipts;
  }

  /** Read a page of events, oldest first. */
  readEvents(ns: string, { since, limit }: { since?: string | null; limit?: number } = {}): Promise<EventPage> {
    return this.#get(`/shiplog/${part(ns)}/events`, { since, limit });
  }

  /** Yield all events of a namespace after `since`, page by page. */
  async *events(ns: string, { since = null, limit }: { since?: string | null; limit?: number } = {}): AsyncGenerator<StoredEvent> {
    for (let at: string | null = since; ; ) {
      const page: EventPage = await this.readEvents(ns, { since: at, limit });
      yield* page.events;
      if (!page.events.length || page.next_since === null || page.next_since === at) return;
      at = page.next_since;
    }
  }

  /** Show one event with its trailer, author and note. */
  showEvent(ns: string, ulid: string): Promise<StoredEvent & JsonObject> {
    return this.#get(`/shiplog/${part(ns)}/events/${part(ulid)}`);
  }

  publishMessage(topic: string, message: Draft, options?: AppendOptions): Promise<MessageReceipt> {
    return this.#post("/messages", message, { topic }, options);
  }

  /** Read messages in order; with `group` its checkpoint moves behind the page. */
  readMessages(topic: string, { sinceUlid, limit, group }: { sinceUlid?: string | null; limit?: number; group?: string } = {}): Promise<MessagePage> {
    return this.#get("/messages", { topic, since_ulid: sinceUlid, limit, group });
  }

  // ---- ledger channels ----

  async channels(): Promise<string[]> {
    return (await this.#get<{ channels: string[] }>("/channels")).channels;
  }

  showChannel(channel: string): Promise<ChannelFacts> {
    return this.#get(`/channels/${part(channel)}`);
  }

  readBlocks(channel: string, { from, to }: { from?: number; to?: number } = {}): Promise<BlockPage> {
    return this.#get(`/channels/${part(channel)}/blocks`, { from, to });
  }

  /** Append a signed envelope; the receipt names its block, which is on disk. */
  appendEnvelope(channel: string, envelope: LedgerEnvelope, options?: AppendOptions): Promise<EnvelopeReceipt> {
    return this.#post(`/channels/${part(channel)}/envelopes`, envelope, {}, options);
  }

  showEnvelope(channel: string, envelopeId: string): Promise<LedgerEnvelope> {
    return this.#get(`/channels/${part(channel)}/envelopes/${part(envelopeId)}`);
  }

  /** Return the proof of an envelope as the bytes that `verifyProof` takes. */
  proof(channel: string, envelopeId: string): Promise<Uint8Array> {
    return this.#bytes(`/channels/${part(channel)}/envelopes/${part(envelopeId)}/proof`);
  }

  /** Return the trust file that the server claims. Trust that comes from the party to be verified proves little: pin it. */
  trust(channel: string): Promise<Uint8Array> {
    return this.#bytes(`/channels/${part(channel)}/trust`);
  }

  /** Return the signed head of a channel, a C2SP note. */
  checkpoint(channel: string, host?: string): Promise<Uint8Array> {
    return this.#bytes(`/channels/${part(channel)}/checkpoint`, { host });
  }

  /** Return a bundle of blocks, a .tar.zst file. */
  bundle(channel: string, { from, to }: { from?: number; to?: number } = {}): Promise<Uint8Array> {
    return this.#bytes(`/channels/${part(channel)}/bundle`, { from, to });
  }

  // ---- gossip ----

  async gossipTopics(): Promise<string[]> {
    return (await this.#get<{ topics: string[] }>("/gossip")).topics;
  }

  readGossip(topic: string, { after, limit }: { after?: string | null; limit?: number } = {}): Promise<GossipPage> {
    return this.#get(`/gossip/${part(topic)}/messages`, { after, limit });
  }

  /** Let the server sign a payload with its key and append it. */
  appendGossip(topic: string, payload: Json, options?: AppendOptions): Promise<GossipReceipt> {
    return this.#post(`/gossip/${part(topic)}/messages`, { payload }, {}, options);
  }

  gossipHeads(topic: string): Promise<{ heads: string[]; clock: number; pending: number }> {
    return this.#get(`/gossip/${part(topic)}/heads`);
  }

  // ---- the rest ----

  /** Let the server verify a log: `shiplog/NS`, `messages/TOPIC`, `ledger/CHANNEL` or `gossip/TOPIC`. */
  verifyLog(log: string): Promise<Report> {
    return this.#get("/verify", { log });
  }

  /** Follow refs and topics live. In a browser a client with a token reads Server-Sent Events, which can carry it. */
  subscribe(options: SubscribeOptions): Stream {
    return subscribe(this.url, { token: this.#token, fetch: this.#fetch, ...options });
  }

  /** Send a GET request to any path below /api/v1 and return its JSON. */
  get<T = Json>(path: string, query: Query = {}): Promise<T> {
    return this.#get(path, query);
  }

  async #get<T>(path: string, query: Query = {}): Promise<T> {
    return (await (await this.#send(path, query, {})).json()) as T;
  }

  async #bytes(path: string, query: Query = {}): Promise<Uint8Array> {
    return new Uint8Array(await (await this.#send(path, query, {})).arrayBuffer());
  }

  async #post<T>(path: string, body: unknown, query: Query, options: AppendOptions = {}): Promise<T> {
    const headers = { "Content-Type": JSON_TYPE, "Idempotency-Key": options.idempotencyKey ?? randomKey() };
    const init: RequestInit = { method: "POST", body: JSON.stringify(body), headers };
    if (options.signal) init.signal = options.signal;
    return (await (await this.#send(path, query, init)).json()) as T;
  }

  async #send(path: string, query: Query, init: RequestInit): Promise<Response> {
    const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
    const search = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
    const headers = { ...(init.headers as Record<string, string>), ...(this.#token === undefined ? {} : { Authorization: `Bearer ${this.#token}` }) };
    const address = `${this.url}${API}${path}${search ? `?${search}` : ""}`;
    for (let attempt = 0; ; attempt++) {
      let failure: RopewalkError;
      try {
        const response = await this.#fetch(address, { ...init, headers, redirect: "error" });
        if (response.ok) return response;
        failure = await problemOf(response);
      } catch (error) {
        if (init.signal?.aborted) throw error;
        failure = new RopewalkError("Unavailable", `${address}: ${(error as Error).message}`);
      }
      const isPassing = !(failure instanceof HttpProblem) || failure.status === 429 || failure.status === 503;
      if (!isPassing || attempt >= this.#retries) throw failure;
      const asked = failure instanceof HttpProblem ? failure.retryAfterSeconds : null;
      await wait(Math.min(WAIT_MS_MAX, asked === null ? 100 * 2 ** attempt * (0.5 + Math.random() / 2) : asked * 1000));
    }
  }
}

async function problemOf(response: Response): Promise<HttpProblem> {
  let problem: unknown = null;
  try {
    problem = await response.json();
  } catch {
    // not JSON: the status must do
  }
  const after = Number(response.headers.get("Retry-After") ?? NaN);
  return new HttpProblem(response.status, typeof problem === "object" && problem !== null ? { ...problem } : {}, Number.isFinite(after) ? after : null);
}

const part = (text: string): string => encodeURIComponent(text);
const wait = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));
const randomKey = (): string => [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
