// Follow the stream of a server (S2): reconnect with backoff, catch up by sinceSeq, give credit, hand out each frame once.

import { RopewalkError } from "./errors.ts";
import type { ApiStreamFrameAck, ApiStreamFrameBusEvent, ApiStreamFrameError, ApiStreamFrameRefUpdate } from "./types.ts";

export type BusEvent = ApiStreamFrameBusEvent;
export type RefUpdate = ApiStreamFrameRefUpdate;
/** Frames that cannot be had any more: everything after `seq` will come. */
export interface Lost { kind: "lost"; missingSeq: number | null; oldestSeq: number | null; seq: number; reason: string }
export type Notice = ApiStreamFrameError;
export type Item = BusEvent | RefUpdate | Lost | Notice;

export interface SubscribeOptions {
  topics?: readonly string[];
  refs?: readonly string[];
  /** Go on after this frame; 0 asks for all that the server still keeps. */
  sinceSeq?: number;
  signal?: AbortSignal;
  /** Called when a connection is made or lost, with the reason while the next attempt is waited for. */
  onState?: (state: "open" | "waiting" | "closed", reason?: string) => void;
  token?: string;
  fetch?: typeof fetch;
  /** Default: `websocket`, or `sse` where there is none, or with a token in a browser, whose WebSocket cannot send one. */
  transport?: "websocket" | "sse";
}

const PAUSE_MS_MIN = 250;
const PAUSE_MS_MAX = 10_000;
const ACK_MS = 10_000;
const SILENT_MS = 75_000; // two pings and a half
const AHEAD_MAX = 1_000; // frames that wait for the program; credit keeps the server from sending more
const CREDIT_EVERY = 100;
const FRAME_CHARS_MAX = 16 << 20;

type Frame = ApiStreamFrameAck | BusEvent | RefUpdate | Notice | { kind: "ping" };

/** One connection of either transport. */
interface Wire {
  send(text: string): void;
  close(): void;
}

/** Subscribe to topics and refs of a server; iterate over the result, and `close` it or abort the signal to leave. */
export function subscribe(url: string, options: SubscribeOptions): Stream {
  return new Stream(url, options);
}

/** The frames of a stream as an async iterable. */
export class Stream implements AsyncIterable<Item> {
  /** The last frame handed out; to go on from here another time, give it as `sinceSeq`. */
  seq: number | null;
  readonly #options: SubscribeOptions;
  readonly #url: string;
  readonly #items: Item[] = [];
  #received: number | null; // the last frame that arrived
  #streamId: string | null = null;
  #wire: Wire | null = null;
  #taken = 0; // frames consumed that no credit was given for
  #pauseMs = PAUSE_MS_MIN;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #waiting: ((result: IteratorResult<Item>) => void)[] = [];
  #failing: ((error: Error) => void)[] = [];
  #failure: Error | null = null;
  #isClosed = false;
  #isOpen = false;

  constructor(url: string, options: SubscribeOptions) {
    if (!options.topics?.length && !options.refs?.length) throw new RopewalkError("Invalid", "nothing to follow: name at least one topic or ref");
    this.#url = url.replace(/\/+$/, "");
    this.#options = options;
    this.seq = this.#received = options.sinceSeq ?? null;
    options.signal?.addEventListener("abort", () => this.close(), { once: true });
    if (options.signal?.aborted) this.close();
    else this.#connect();
  }

  [Symbol.asyncIterator](): AsyncIterator<Item> {
    return { next: () => this.#next(), return: async () => (this.close(), { done: true, value: undefined }) };
  }

  /** Call a function for each item until the stream is closed. */
  async forEach(act: (item: Item) => void | Promise<void>): Promise<void> {
    for await (const item of this) await act(item);
  }

  /** Leave the stream; what waits for the next item gets the end. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    clearTimeout(this.#timer);
    this.#wire?.close();
    this.#wire = null;
    for (const resolve of this.#waiting.splice(0)) resolve({ done: true, value: undefined });
    this.#failing = [];
    this.#options.onState?.("closed");
  }

  #next(): Promise<IteratorResult<Item>> {
    const item = this.#items.shift();
    if (item !== undefined) return Promise.resolve({ done: false, value: this.#handOut(item) });
    if (this.#failure !== null) return Promise.reject(this.#failure);
    if (this.#isClosed) return Promise.resolve({ done: true, value: undefined });
    return new Promise((resolve, reject) => {
      this.#waiting.push(resolve);
      this.#failing.push(reject);
    });
  }

  #handOut(item: Item): Item {
    if (typeof item.seq === "number" && item.kind !== "error") this.seq = item.seq;
    if (item.kind === "bus.event" || item.kind === "ref.update") {
      this.#taken++;
      if (this.#taken >= CREDIT_EVERY || !this.#items.length) {
        this.#wire?.send(JSON.stringify({ op: "credit", credit: this.#taken }));
        this.#taken = 0;
      }
    }
    return item;
  }

  #push(item: Item): void {
    this.#items.push(item);
    const resolve = this.#waiting.shift();
    this.#failing.shift();
    if (resolve) resolve({ done: false, value: this.#handOut(this.#items.shift()!) });
  }

  #fail(error: Error): void {
    this.#failure = error;
    const failing = this.#failing.splice(0);
    this.#waiting = [];
    this.close();
    for (const reject of failing) reject(error);
  }

  // ---- connections ----

  #connect(): void {
    this.#isOpen = false;
    this.#taken = 0;
    this.#expect(ACK_MS, "no ack from the server");
    const handlers = { frame: (text: string): void => this.#receive(text), end: (reason: string): void => this.#lose(reason), refuse: (error: Error): void => this.#fail(error), isFull: (): boolean => this.#items.length >= AHEAD_MAX };
    const isBrowser = typeof (globalThis as { document?: unknown }).document !== "undefined";
    const { token, refs } = this.#options;
    const noSocket = globalThis.WebSocket === undefined && !refs?.length;
    const transport = this.#options.transport ?? (noSocket || (token !== undefined && (isBrowser || !hasHeaderSockets())) ? "sse" : "websocket");
    try {
      this.#wire = transport === "sse" ? sseWire(this.#url, this.#options, this.#received, handlers) : socketWire(this.#url, this.#options, handlers);
    } catch (error) {
      this.#fail(error as Error);
    }
  }

  #expect(ms: number, otherwise: string): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#lose(otherwise), ms);
  }

  /** The connection is gone: try again after a pause. */
  #lose(reason: string): void {
    if (this.#isClosed) return;
    const wire = this.#wire;
    this.#wire = null;
    wire?.close();
    clearTimeout(this.#timer);
    this.#options.onState?.("waiting", reason || "the connection was lost");
    this.#timer = setTimeout(() => this.#connect(), this.#pauseMs * (0.5 + Math.random() / 2));
    this.#pauseMs = Math.min(PAUSE_MS_MAX, this.#pauseMs * 2);
  }

  #receive(text: string): void {
    if (this.#isClosed) return;
    if (text.length > FRAME_CHARS_MAX) return this.#lose("a frame is too large");
    let frame: Frame;
    try {
      frame = JSON.parse(text) as Frame;
    } catch {
      return this.#lose("a frame is not JSON");
    }
    if (!this.#isOpen && frame.kind !== "ack") return this.#lose("the stream does not begin with ack");
    this.#expect(SILENT_MS, "the server is silent");
    switch (frame.kind) {
      case "ack":
        return this.#begin(frame);
      case "ping":
        return this.#wire?.send('{"kind":"pong"}');
      case "error":
        return this.#error(frame);
      case "bus.event":
      case "ref.update":
        if (this.#received !== null && frame.seq <= this.#received) return undefined; // handed out before
        if (this.#items.length >= 2 * AHEAD_MAX) return this.#lose("the server sent more than it has credit for"); // asked for again
        this.#received = frame.seq;
        this.#pauseMs = PAUSE_MS_MIN;
        return this.#push(frame);
      default:
        return undefined; // a kind of a later version
    }
  }

  #begin(ack: ApiStreamFrameAck): void {
    this.#isOpen = true;
    const hasChanged = this.#streamId !== null && ack.stream !== this.#streamId;
    this.#streamId = ack.stream ?? null;
    const { topics, refs } = this.#options;
    // Without a frame yet, everything since this connection counts: the next one must not skip what comes in between.
    const since = this.#received ?? ack.seq ?? null;
    if (!hasChanged && this.#received === null && ack.seq !== undefined) this.#received = ack.seq;
    this.#wire?.send(JSON.stringify({ op: "sub", ...(topics?.length ? { topics } : {}), ...(refs?.length ? { refs } : {}), ...(since === null ? {} : { sinceSeq: since }) }));
    this.#options.onState?.("open");
  }

  #error(frame: Notice): void {
    if (frame.code === "INVALID_SUB") return this.#fail(new RopewalkError("Invalid", `the server refuses: ${frame.message ?? frame.code}`));
    if (frame.code === "SLOW_READER") return undefined; // the connection ends; the next one catches up, or reports what is lost
    if (frame.code !== "REPLAY_EXPIRED") return this.#push(frame);
    const seq = frame.seq ?? 0;
    this.#received = seq; // numbers of another run may be smaller
    return this.#push({ kind: "lost", missingSeq: frame.missingSeq ?? null, oldestSeq: frame.oldestSeq ?? null, seq, reason: frame.message ?? frame.code });
  }
}

interface Handlers {
  frame(text: string): void;
  end(reason: string): void;
  refuse(error: Error): void;
  isFull(): boolean;
}

// Node's own WebSocket (undici) takes headers; a browser's does not.
const hasHeaderSockets = (): boolean => typeof (globalThis as { process?: { versions?: { node?: string } } }).process?.versions?.node === "string";

function socketWire(url: string, options: SubscribeOptions, handlers: Handlers): Wire {
  const Socket = (globalThis as { WebSocket?: typeof WebSocket }).WebSocket;
  if (Socket === undefined) throw new RopewalkError("Unavailable", "this runtime has no WebSocket: use Node 22, `node --experimental-websocket`, or transport: \"sse\"");
  const address = `${url.replace(/^http/, "ws")}/api/v1/stream`;
  const headers = options.token === undefined ? undefined : { headers: { Authorization: `Bearer ${options.token}` } };
  const socket = headers === undefined ? new Socket(address) : new Socket(address, headers as unknown as string[]);
  socket.onmessage = (event) => handlers.frame(String(event.data));
  socket.onclose = (event) => handlers.end(event.reason);
  socket.onerror = () => undefined; // close follows
  return {
    send: (text) => socket.readyState === Socket.OPEN && socket.send(text),
    close: () => {
      socket.onclose = socket.onmessage = null;
      socket.close();
    },
  };
}

/** The same frames as Server-Sent Events, read with fetch; the server answers pings and gives credit in our place. */
function sseWire(url: string, options: SubscribeOptions, since: number | null, handlers: Handlers): Wire {
  const gone = new AbortController();
  const query = new URLSearchParams();
  for (const topic of options.topics ?? []) query.append("topic", topic);
  if (options.refs?.length) throw new RopewalkError("Invalid", "Server-Sent Events carry topics only; refs need a WebSocket");
  if (since !== null) query.set("since", String(since));
  const headers = { Accept: "text/event-stream", ...(options.token === undefined ? {} : { Authorization: `Bearer ${options.token}` }) };
  const read = async (): Promise<void> => {
    const response = await (options.fetch ?? fetch)(`${url}/api/v1/events?${query.toString()}`, { headers, signal: gone.signal, cache: "no-store" });
    if (response.status === 401 || response.status === 403) {
      return handlers.refuse(new RopewalkError(response.status === 401 ? "Unauthenticated" : "Denied", `the server refuses the stream with status ${response.status}`));
    }
    if (!response.ok || response.body === null) return handlers.end(`status ${response.status}`);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      while (handlers.isFull() && !gone.signal.aborted) await new Promise((resolve) => setTimeout(resolve, 50)); // no credit here: stop reading
      const { done, value } = await reader.read();
      if (done) return handlers.end("the stream ended");
      rest += value;
      const blocks = rest.split("\n\n");
      rest = blocks.pop() ?? "";
      if (rest.length > FRAME_CHARS_MAX) return handlers.end("a frame is too large");
      for (const block of blocks) {
        const data = block.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
        if (data) handlers.frame(data);
        else handlers.frame('{"kind":"ping"}');
      }
    }
  };
  read().catch((error: Error) => handlers.end(error.message));
  return { send: () => undefined, close: () => gone.abort() };
}
