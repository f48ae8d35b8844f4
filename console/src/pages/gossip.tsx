import { useEffect, useMemo, useState } from "preact/hooks";
import { Problem, useData, type GossipMessage, type Overview } from "../api.ts";
import { count, engineOf, line, nameOf, plain } from "../format.ts";
import { Tree } from "../parts/tree.tsx";
import { Badge, Card, Empty, Facts, Hash, Notice, Show, Tile } from "../parts/ui.tsx";
import { place, to } from "../router.ts";
import { readMessages } from "../sources.ts";

interface Heads {
  heads: string[];
  clock: number;
  pending: number;
  peers: Record<string, unknown>[];
}

const ROW = 32;
const LANE = 18;
const DRAWN = 400;

export function Gossip({ topic, overview }: { topic: string | null; overview?: Overview }) {
  return topic === null ? <Topics overview={overview} /> : <Topic key={topic} topic={topic} />;
}

function Topics({ overview }: { overview?: Overview }) {
  const found = overview?.logs.filter((each) => engineOf(each.log) === "gossip");
  return (
    <>
      <div class="head"><div><h1>Gossip</h1><p>Logs without a centre: every peer appends, signs, and exchanges what it has.</p></div></div>
      {!found ? null : !found.length ? (
        <Card><Empty title="There is no gossip topic" command={`ropewalk gossip append --topic com.example.notes --payload '{"text":"hello"}'`} /></Card>
      ) : (
        <Card title="Topics">
          <table>
            <thead><tr><th>Topic</th><th class="num">Messages</th><th class="num">Heads</th><th>A head</th></tr></thead>
            <tbody>{found.map((each) => <tr><td><a href={to.gossip(nameOf(each.log))}>{plain(nameOf(each.log))}</a></td><td class="num"><a href={to.log(each.log)}>{count(each.entries)}</a></td><td class="num">{each.heads}</td><td>{each.head && <Hash text={each.head} label="head" href={to.gossip(nameOf(each.log), { at: each.head })} />}</td></tr>)}</tbody>
          </table>
        </Card>
      )}
    </>
  );
}

function Topic({ topic }: { topic: string }) {
  const heads = useData<Heads>(`/gossip/${encodeURIComponent(topic)}/heads`, {}, 2_000);
  const [messages, setMessages] = useState<GossipMessage[] | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const mark = heads.data?.heads.join();
  useEffect(() => void readMessages(topic).then(setMessages, (error) => setProblem(error as Problem)), [topic, mark]);
  const authors = useMemo(() => [...new Set(messages?.map((each) => each.author))], [messages]);
  const at = place.value.query.get("at");
  const chosen = messages?.find((each) => each.id === at);
  return (
    <>
      <div class="head">
        <div>
          <h1>{plain(topic)}</h1>
          <p>Each message names those it was written after. <a href={to.log(`gossip/${topic}`)}>Show as a list</a></p>
        </div>
      </div>
      <Show of={heads}>
        {(data) => (
          <div class="tiles">
            <Tile name="Messages" value={messages ? count(messages.length) : "…"} href={to.log(`gossip/${topic}`)} />
            <Tile name="Authors" value={authors.length} />
            <Tile name="Heads" value={data.heads.length} note={data.heads.length > 1 ? "written at the same time" : "all is joined"} />
            <Tile name="Pending" value={count(data.pending)} note="wait for a parent" bad={data.pending > 0} />
            <Tile name="Peers" value={count(data.peers.length)} note="connected now" />
            <Tile name="Next clock" value={count(data.clock)} />
          </div>
        )}
      </Show>
      {problem && <Notice kind="bad">{problem.message}</Notice>}
      {messages && (
        <div class={chosen ? "split" : "stack"}>
          <Card title="Graph" note={messages.length > DRAWN ? `the newest ${DRAWN} of ${count(messages.length)}` : "newest first"} actions={<div class="legend">{authors.slice(0, 8).map((each, number) => <a href={to.log(`gossip/${topic}`, { author: each })}><span><i style={{ background: inks[number % inks.length], borderRadius: "50%" }} />{letter(number)} {plain(each.slice(-8))}</span></a>)}</div>}>
            <Graph topic={topic} messages={messages} authors={authors} heads={new Set(heads.data?.heads)} at={at} />
          </Card>
          {chosen && (
            <aside class="card detail" aria-label="Message">
              <header><h2>Message at clock {chosen.clock}</h2><a href={to.gossip(topic)} aria-label="Close">Close</a></header>
              <div class="body stack">
                <Tree value={chosen.payload} />
                <Facts rows={[["Id", <Hash text={chosen.id} label="id" length={34} />], ["Author", <span>{plain(chosen.author)}</span>], ["Parents", chosen.parents.length ? chosen.parents.map((each) => <Hash text={each} label="parent" href={to.gossip(topic, { at: each })} length={34} />) : "none: a first message"], ["Children", messages.filter((each) => each.parents.includes(chosen.id)).map((each) => <Hash text={each.id} label="child" href={to.gossip(topic, { at: each.id })} length={34} />)]]} />
              </div>
            </aside>
          )}
        </div>
      )}
      <Card title="Peers" note="connected to processes that have this topic open">
        {heads.data?.peers.length ? (
          <div class="scroll" tabIndex={0}><table><thead><tr><th>Peer</th><th>State</th><th>Facts</th></tr></thead><tbody>{heads.data.peers.map((each) => <tr><td>{line(each.url ?? each.peer ?? each.address ?? "?")}</td><td><Badge state={String(each.state ?? "connected") === "connected" ? "ok" : "behind"} text={line(each.state ?? "connected")} /></td><td class="break"><code>{line(each)}</code></td></tr>)}</tbody></table></div>
        ) : (
          <Empty title="No peer is connected" command={`ropewalk gossip serve --topic ${topic} --peer ws://other.example:9000`} />
        )}
      </Card>
    </>
  );
}

const inks = ["var(--gossip)", "var(--shiplog)", "var(--ledger)", "var(--messages)", "var(--good)", "var(--bad)"];
const letter = (number: number): string => String.fromCharCode(65 + (number % 26));

function Graph({ topic, messages, authors, heads, at }: { topic: string; messages: GossipMessage[]; authors: string[]; heads: Set<string>; at: string | null }) {
  const rows = useMemo(() => [...messages].sort((a, b) => b.clock - a.clock || (a.id < b.id ? 1 : -1)).slice(0, DRAWN), [messages]);
  const { lanes, edges, width } = useMemo(() => layOut(rows), [rows]);
  const x = (lane: number) => 16 + lane * LANE;
  const y = (row: number) => row * ROW + ROW / 2;
  return (
    <div class="graph scroll">
      <svg width={width * LANE + 26} height={rows.length * ROW} aria-hidden="true">
        {edges.map(([from, to]) => {
          const [x1, y1, x2, y2] = [x(lanes[from]!), y(from), x(lanes[to]!), y(to)];
          const d = x1 === x2 ? `M${x1} ${y1}V${y2}` : lanes[to]! > lanes[from]! ? `M${x1} ${y1}C${x1} ${y1 + ROW} ${x2} ${y1} ${x2} ${y1 + ROW}V${y2}` : `M${x1} ${y1}V${y2 - ROW}C${x1} ${y2} ${x2} ${y2 - ROW} ${x2} ${y2}`;
          return <path d={d} fill="none" stroke="var(--line-strong)" stroke-width="1.8" />;
        })}
        {rows.map((each, row) => {
          const author = authors.indexOf(each.author);
          const ink = inks[author % inks.length];
          return <circle cx={x(lanes[row]!)} cy={y(row)} r={heads.has(each.id) ? 6.5 : 5} fill={heads.has(each.id) ? "var(--surface)" : ink} stroke={ink} stroke-width={heads.has(each.id) ? 3 : 1} />;
        })}
      </svg>
      <ol>
        {rows.map((each) => (
          <li aria-current={each.id === at ? "true" : undefined}>
            <span class="badge plain" title={each.author}>{letter(authors.indexOf(each.author))}</span>
            <span class="muted num">{each.clock}</span>
            <a href={to.gossip(topic, { at: each.id })}><code>{line(each.payload).slice(0, 200)}</code></a>
            {heads.has(each.id) && <span class="badge good plain">head</span>}
          </li>
        ))}
      </ol>
    </div>
  );
}

/** Give every message a lane: a child hands its lane to its first parent, other parents get free lanes. */
function layOut(rows: GossipMessage[]): { lanes: number[]; edges: [number, number][]; width: number } {
  const place = new Map(rows.map((each, at) => [each.id, at]));
  const open: (string | null)[] = [];
  const lanes: number[] = [];
  const edges: [number, number][] = [];
  let width = 1;
  rows.forEach((each, at) => {
    let lane = open.indexOf(each.id);
    if (lane < 0) lane = open.indexOf(null) < 0 ? open.push(null) - 1 : open.indexOf(null);
    lanes.push(lane);
    open.forEach((id, other) => id === each.id && (open[other] = null));
    const parents = each.parents.filter((id) => place.has(id));
    parents.forEach((id, number) => {
      edges.push([at, place.get(id)!]);
      if (open.includes(id)) return;
      const free = number === 0 ? lane : open.indexOf(null, 0) < 0 ? open.push(null) - 1 : open.indexOf(null);
      open[free] = id;
    });
    width = Math.max(width, open.length);
  });
  return { lanes, edges, width };
}
