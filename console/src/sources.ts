/** Rows of any log, newest first: one shape for events, envelopes and messages. */
import { get, type Block, type Envelope, type GossipMessage, type HistoryEvent } from "./api.ts";
import { engineOf, nameOf, ulidAt, ulidTime } from "./format.ts";
import { to } from "./router.ts";

export interface Row {
  id: string;
  ms: number | null;
  height: number;
  type: string;
  author: string;
  payload: unknown;
  status: string | null;
  links: [name: string, text: string, href: string | null][];
  parents: [text: string, href: string | null][];
  raw: unknown;
  trailer: Record<string, unknown> | null;
  contentId: string | null;
  causes: string[];
  proof: string | null;
}

export interface Filters {
  type: string;
  author: string;
  path: string;
  find: string;
  until: number | null;
}

export interface Page {
  rows: Row[];
  next: string | null;
  scanned: number;
}

const PAGE = 100;
const BLOCKS = 32;
const GOSSIP_MAX = 20_000;

/** Read a page below `before`; an empty `before` is the newest end. */
export async function readPage(log: string, filters: Filters, before: string | null, limit = PAGE): Promise<Page> {
  const engine = engineOf(log);
  if (engine === "ledger") return readLedger(nameOf(log), filters, before);
  if (engine === "gossip") return readGossip(nameOf(log), filters);
  const found = await get<{ events: HistoryEvent[]; next_before: string | null; scanned: number }>("/history", {
    log,
    limit,
    before: before ?? (filters.until ? ulidAt(filters.until) : null),
    type: filters.type,
    author: filters.author,
    path: filters.path,
    find: filters.find,
  });
  return { rows: found.events.map((each) => fromEvent(log, each)), next: found.next_before, scanned: found.scanned };
}

function fromEvent(log: string, event: HistoryEvent): Row {
  const trailer = event.trailer;
  const who = trailer?.who as { name?: unknown; email?: unknown } | undefined;
  const refs = (event.envelope.refs ?? null) as Record<string, unknown> | null;
  return {
    id: event.ulid,
    ms: ulidTime(event.ulid),
    height: event.height,
    type: event.envelope.type,
    author: String(who?.name ?? who?.email ?? event.author),
    payload: event.envelope.payload,
    status: typeof trailer?.status === "string" ? trailer.status : null,
    links: [["Commit", event.commit, null], ["Content id", event.content_id, null], ["Recorded by", event.author, null]],
    parents: event.parents.map((each) => [each, null]),
    raw: event.envelope,
    trailer,
    contentId: event.content_id,
    causes: refs ? Object.values(refs).filter((each): each is string => typeof each === "string") : [],
    proof: null,
  };
}

async function readLedger(channel: string, filters: Filters, before: string | null): Promise<Page> {
  const name = encodeURIComponent(channel);
  const top = before === null ? (await get<{ height: number | null }>(`/channels/${name}`)).height : Number(before) - 1;
  if (top === null || top < 0) return { rows: [], next: null, scanned: 0 };
  const from = Math.max(0, top - BLOCKS + 1);
  const blocks: Block[] = [];
  for (let start: number | null = from; start !== null && start <= top; ) {
    const found: { blocks: Block[]; next_from: number | null } = await get(`/channels/${name}/blocks`, { from: start, to: top });
    blocks.push(...found.blocks);
    start = found.next_from;
  }
  const rows: Row[] = [];
  for (const block of blocks.reverse()) block.envelopes.forEach((each, at) => rows.unshift(fromEnvelope(channel, block, each, at)));
  rows.sort((a, b) => b.height - a.height || Number(b.id.split(":")[0]! > a.id.split(":")[0]!));
  return { rows: rows.filter((row) => fits(row, filters)), next: from > 0 ? String(from) : null, scanned: rows.length };
}

export function fromEnvelope(channel: string, block: Block, envelope: Envelope, index: number): Row {
  const id = block.envelope_ids[index]!;
  return {
    id,
    ms: Date.parse(String(envelope.timestamp)) || Number(block.header.timestamp) / 1e6,
    height: block.height + index / 1e6,
    type: envelope.event_type,
    author: envelope.origin_identity.public_key,
    payload: envelope.payload,
    status: null,
    links: [["Block", `${block.height}`, to.block(channel, block.height)], ["Block hash", block.block_hash, to.block(channel, block.height)], ["Class", envelope.event_class, null], ["Domain", envelope.domain, null]],
    parents: block.height ? [[block.header.prev_block_hash, to.block(channel, block.height - 1)]] : [],
    raw: envelope,
    trailer: null,
    contentId: null,
    causes: [envelope.correlation_id, ...(envelope.causality_chain ?? [])].filter((each, at, all) => each && all.indexOf(each) === at),
    proof: to.envelope(channel, id),
  };
}

export async function readMessages(topic: string): Promise<GossipMessage[]> {
  const messages: GossipMessage[] = [];
  for (let after: string | null = null; messages.length < GOSSIP_MAX; ) {
    const found: { messages: GossipMessage[]; next_after: string | null } = await get(`/gossip/${encodeURIComponent(topic)}/messages`, { after, limit: 512 });
    messages.push(...found.messages);
    if (found.messages.length < 512) break;
    after = found.next_after;
  }
  return messages;
}

async function readGossip(topic: string, filters: Filters): Promise<Page> {
  const found = await readMessages(topic);
  const rows = found.map((each): Row => ({
    id: each.id,
    ms: null,
    height: each.clock,
    type: "message",
    author: each.author,
    payload: each.payload,
    status: null,
    links: [["Clock", String(each.clock), null], ["Graph", "in the graph of messages", to.gossip(topic, { at: each.id })]],
    parents: each.parents.map((id) => [id, to.log(`gossip/${topic}`, { at: id })]),
    raw: each,
    trailer: null,
    contentId: null,
    causes: [],
    proof: null,
  }));
  return { rows: rows.reverse().filter((row) => fits(row, filters)), next: null, scanned: rows.length };
}

function fits(row: Row, filters: Filters): boolean {
  const { type, author, path, find, until } = filters;
  if (type && !(type.endsWith("*") ? row.type.startsWith(type.slice(0, -1)) : row.type === type)) return false;
  if (author && !row.author.toLowerCase().includes(author.toLowerCase())) return false;
  if (find && !JSON.stringify(row.raw).toLowerCase().includes(find.toLowerCase())) return false;
  if (until !== null && row.ms !== null && row.ms > until) return false;
  if (!path) return true;
  const at = path.indexOf("=");
  let value: unknown = row.payload;
  for (const name of (at < 0 ? path : path.slice(0, at)).split(".")) {
    if (value === null || typeof value !== "object" || !Object.hasOwn(value, name)) return false;
    value = (value as Record<string, unknown>)[name];
  }
  return at < 0 || String(value) === path.slice(at + 1);
}
