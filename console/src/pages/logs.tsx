import { useCallback, useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, Problem, useData, type HistoryEvent, type Overview, type Report } from "../api.ts";
import { absolute, clock, count, engineOf, ENGINES, line, nameOf, person, plain, relative, ulidTime } from "../format.ts";
import { follow } from "../live.ts";
import { Icon } from "../parts/icons.tsx";
import { Rows, type Column } from "../parts/rows.tsx";
import { Tree } from "../parts/tree.tsx";
import { Badge, Card, Copy, Empty, Engine, Facts, Hash, Notice, Steps, Time } from "../parts/ui.tsx";
import { checkContentId } from "../proofs.ts";
import { go, place, setQuery, to } from "../router.ts";
import { readPage, type Filters, type Row } from "../sources.ts";
import { hrefOf } from "./overview.tsx";
import { SchemaOf } from "./schema.tsx";

const COLUMNS: Record<string, Column<Row>> = {
  time: { id: "time", title: "Time", width: "minmax(148px, 0.5fr)", cell: (row) => (row.ms === null ? <span class="muted">–</span> : <span title={`${absolute(row.ms)} · ${relative(row.ms)}`}>{clock(row.ms)}</span>) },
  type: { id: "type", title: "Type", width: "minmax(168px, 0.7fr)", cell: (row) => <span title={plain(row.type)}>{plain(row.type)}</span> },
  status: { id: "status", title: "Status", width: "112px", cell: (row) => (row.status ? <Badge state={row.status} /> : <span class="muted">–</span>) },
  author: { id: "author", title: "Author", width: "minmax(96px, 0.5fr)", cell: (row) => plain(person(row.author).slice(0, 40)) },
  payload: { id: "payload", title: "Payload", width: "minmax(130px, 2fr)", cell: (row) => <code>{line(row.payload).slice(0, 300)}</code> },
  height: { id: "height", title: "Height", width: "84px", cell: (row) => count(Math.floor(row.height)) },
  id: { id: "id", title: "Id", width: "260px", cell: (row) => <code>{plain(row.id)}</code> },
};
const USUAL = ["time", "type", "status", "author", "payload"];
const KEPT_MAX = 20_000;
const RETRY_MS = 2_000;

export function Logs({ log, overview }: { log: string; overview?: Overview }) {
  const logs = overview?.logs ?? [];
  const first = log || logs[0]?.log;
  useEffect(() => {
    if (!log && first) go(to.log(first), true);
  }, [log, first]);
  if (overview && !logs.length) return <Card><Empty title="There is no log that you may read" command={`echo '{"type":"note.added","payload":{"text":"hello"}}' | ropewalk shiplog append --ns notes --file -`} /></Card>;
  return (
    <div class="with-list">
      <nav class="list" aria-label="Logs">
        {Object.entries(ENGINES).map(([engine, title]) => {
          const found = logs.filter((each) => engineOf(each.log) === engine);
          return (
            found.length > 0 && (
              <section>
                <h2>{title}</h2>
                <ul>
                  {found.map((each) => (
                    <li>
                      <a href={to.log(each.log)} aria-current={each.log === log ? "page" : undefined}>
                        <Engine log={each.log} />
                        <span class="num">{count(each.entries)}</span>
                      </a>
                    </li>
                  ))}
                </ul>
              </section>
            )
          );
        })}
      </nav>
      {log && <Log key={log} log={log} />}
    </div>
  );
}

function useFilters(): Filters {
  const query = place.value.query;
  const until = query.get("until");
  return { type: query.get("type") ?? "", author: query.get("author") ?? "", path: query.get("path") ?? "", find: query.get("find") ?? "", until: until ? Date.parse(until) : null };
}

function Log({ log }: { log: string }) {
  const filters = useFilters();
  const query = place.value.query;
  const asked = JSON.stringify(filters);
  const [rows, setRows] = useState<Row[]>([]);
  const [next, setNext] = useState<string | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [loaded, setLoaded] = useState(false);
  const [waiting, setWaiting] = useState<Row[]>([]);
  const [state, setState] = useState("connecting");
  const fresh = useRef(new Set<string>());
  const busy = useRef(false);
  const ready = useRef(false);
  const wake = useRef(() => {});
  const paused = query.get("paused") === "1" || filters.until !== null;
  const selected = query.get("at");

  useEffect(() => {
    let ended = false;
    let timer = 0;
    setRows([]), setNext(null), setLoaded(false), setProblem(null), setWaiting([]);
    ready.current = false;
    const load = () =>
      readPage(log, filters, null)
        .then((page) => {
          if (ended) return;
          setRows(page.rows), setNext(page.next), setLoaded(true), setProblem(null);
          ready.current = true;
          setTimeout(() => wake.current(), 0); // what came while the first page was on its way
        })
        .catch((error: Problem) => {
          if (ended) return;
          setProblem(error), setLoaded(true);
          if (error.status === 0) timer = window.setTimeout(load, RETRY_MS); // no network, or no server
        });
    void load();
    return () => ((ended = true), clearTimeout(timer));
  }, [log, asked]);

  const older = useCallback(() => {
    if (next === null || busy.current) return;
    busy.current = true;
    readPage(log, filters, next, 500)
      .then((page) => (setRows((old) => merge(old, page.rows)), setNext(page.next)))
      .catch((error) => setProblem(error as Problem))
      .finally(() => (busy.current = false));
  }, [log, asked, next]);

  const known = useRef<Row[]>([]);
  known.current = [...waiting, ...rows];
  useEffect(() => {
    if (filters.until !== null) return setState("history");
    let ended = false;
    const look = async () => {
      const news: Row[] = [];
      if (!ready.current) return;
      const top = known.current[0]?.id;
      for (let before: string | null = null, turn = 0; turn < 20; turn++) {
        const page = await readPage(log, filters, before, before ? 500 : 100);
        const at = page.rows.findIndex((row) => row.id === top);
        news.push(...(at < 0 ? page.rows : page.rows.slice(0, at)));
        if (page.next === null || top === undefined || at >= 0) break;
        before = page.next;
      }
      if (!ended && news.length) setWaiting((old) => merge(news, old));
    };
    wake.current = () => void look().catch(() => {});
    const stop = follow(log, () => wake.current(), (text) => !ended && setState(text));
    return () => ((ended = true), stop());
  }, [log, asked]);
  useEffect(() => {
    if (paused || !waiting.length) return;
    fresh.current = new Set(waiting.map((row) => row.id));
    setRows((old) => merge(waiting, old).slice(0, KEPT_MAX));
    setWaiting([]);
  }, [paused, waiting]);

  useEffect(() => {
    const moved = (event: Event) => {
      event.preventDefault();
      const at = rows.findIndex((row) => row.id === selected);
      const row = rows[Math.min(Math.max(at + (event as CustomEvent<number>).detail, 0), rows.length - 1)];
      if (row) setQuery({ at: row.id });
    };
    const pressed = (event: KeyboardEvent) => {
      if ((event.target as HTMLElement).closest("input, textarea, select, button, dialog[open], a, summary")) return;
      if (event.key === " ") event.preventDefault(), setQuery({ paused: place.peek().query.get("paused") ? null : "1" });
      if (event.key === "Escape") setQuery({ at: null });
      if (event.key === "f") event.preventDefault(), document.getElementById("filter-type")?.focus();
    };
    addEventListener("move", moved);
    addEventListener("keydown", pressed);
    return () => (removeEventListener("move", moved), removeEventListener("keydown", pressed));
  }, [rows, selected]);

  const columns = (query.get("cols")?.split(",") ?? USUAL.filter((id) => (id !== "status" || engineOf(log) === "shiplog"))).flatMap((id) => COLUMNS[id] ?? []);
  const row = rows.find((each) => each.id === selected);
  return (
    <div class="stack">
      <div class="head">
        <div>
          <h1><Engine log={log} /></h1>
          <p class="line">
            <span>{ENGINES[engineOf(log)]}</span>·<code>{plain(log)}</code>
            {hrefOf(log) !== to.log(log) && <>· <a href={hrefOf(log)}>{engineOf(log) === "ledger" ? "blocks and keys" : "graph"}</a></>}
          </p>
        </div>
        <div class="line">
          <VerifyLog log={log} />
          <Live state={state} paused={paused} waiting={waiting.length} until={filters.until} />
        </div>
      </div>
      <div class={row || selected ? "split" : "stack"}>
        <Card label="Events">
          <FilterBar log={log} filters={filters} columns={columns.map((each) => each.id)} />
          {problem && <div class="body"><Notice kind={problem.status === 403 ? "warn" : "bad"}><strong>{problem.message}</strong> {problem.advice}</Notice></div>}
          {loaded && !rows.length && !problem ? (
            next !== null ? (
              <Empty title="Nothing found so far">Older events were not searched yet.<br /><button onClick={older}>Search older events</button></Empty>
            ) : (
              <Nothing log={log} filtered={Boolean(filters.type || filters.author || filters.path || filters.find || filters.until)} />
            )
          ) : (
            <Rows rows={rows} columns={columns} label={`Events of ${log}`} idOf={(each) => each.id} selected={selected} fresh={fresh.current} atEnd={next === null ? undefined : older} href={(each) => hrefWith({ at: each.id })} />
          )}
          <div class="body spread muted">
            <span>{count(rows.length)} {rows.length === 1 ? "entry" : "entries"} loaded{next === null ? ", all there are" : ", older ones follow as you scroll"}</span>
            {next !== null && <button class="quiet" onClick={older}>Load older</button>}
          </div>
        </Card>
        {(row || selected) && <Detail log={log} row={row} selected={selected!} />}
      </div>
    </div>
  );
}

function merge(newer: Row[], older: Row[]): Row[] {
  const seen = new Set<string>();
  return [...newer, ...older].filter((row) => !seen.has(row.id) && seen.add(row.id));
}

function hrefWith(changes: Record<string, string | null>): string {
  const query = new URLSearchParams(place.value.query);
  for (const [name, value] of Object.entries(changes)) value === null ? query.delete(name) : query.set(name, value);
  const text = query.toString();
  return place.value.path + (text ? `?${text}` : "");
}

function Live({ state, paused, waiting, until }: { state: string; paused: boolean; waiting: number; until: number | null }) {
  if (until !== null)
    return (
      <>
        <span class="badge plain" id="state">as of {clock(until)}</span>
        <button onClick={() => setQuery({ until: null })}><Icon name="play" />Back to now</button>
      </>
    );
  const text = paused ? `paused${waiting ? `, ${count(waiting)} waiting` : ""}` : state;
  return (
    <>
      <span class="line muted" role="status" id="state"><span class={`dot${!paused && state === "live" ? " live" : ""}`} />{text}</span>
      <button aria-pressed={paused} onClick={() => setQuery({ paused: paused ? null : "1" })}><Icon name={paused ? "play" : "pause"} />{paused ? "Continue" : "Pause"}</button>
    </>
  );
}

function FilterBar({ log, filters, columns }: { log: string; filters: Filters; columns: string[] }) {
  const field = (id: "type" | "author" | "path" | "find", title: string, hint: string) => (
    <label class="field">
      {title}
      <input id={`filter-${id}`} value={filters[id]} placeholder={hint} onChange={(event) => setQuery({ [id]: event.currentTarget.value.trim() || null, at: null })} />
    </label>
  );
  const zone = filters.until !== null ? new Date(filters.until - new Date(filters.until).getTimezoneOffset() * 60_000).toISOString().slice(0, 19) : "";
  const set = Boolean(filters.type || filters.author || filters.path || filters.find || filters.until);
  return (
    <div class="filters">
      {field("type", "Type", "deployment.*")}
      {field("author", "Author", "name or mail")}
      {field("path", "Payload path", "service=web")}
      {field("find", "Text", "anywhere in it")}
      {engineOf(log) !== "gossip" && (
        <label class="field">
          As of
          <input type="datetime-local" step="1" value={zone} onChange={(event) => setQuery({ until: event.currentTarget.value ? new Date(event.currentTarget.value).toISOString() : null })} />
        </label>
      )}
      <details class="field">
        <summary class="button">Columns</summary>
        <div class="card choices-inline">
          {Object.values(COLUMNS).map((each) => (
            <label class="line"><input type="checkbox" checked={columns.includes(each.id)} onChange={() => setQuery({ cols: Object.keys(COLUMNS).filter((id) => columns.includes(id) !== (id === each.id)).join(",") || null })} /> {each.title}</label>
          ))}
        </div>
      </details>
      {set && <button onClick={() => setQuery({ type: null, author: null, path: null, find: null, until: null })}>Clear filters</button>}
    </div>
  );
}

function Nothing({ log, filtered }: { log: string; filtered: boolean }) {
  if (filtered) return <Empty title="No entry fits these filters">A type may end with * and a path reads <code>member.member=value</code>.</Empty>;
  const name = nameOf(log);
  const commands: Record<string, string> = {
    shiplog: `echo '{"type":"note.added","payload":{}}' | ropewalk shiplog append --ns ${name} --file -`,
    messages: `echo '{"type":"job.made","payload":{}}' | ropewalk messages publish --topic ${name} --file -`,
    ledger: `ropewalk ledger append --channel ${name} --file envelope.json`,
    gossip: `ropewalk gossip append --topic ${name} --payload '{"text":"hello"}'`,
  };
  return <Empty title="This log has no entries yet" command={commands[engineOf(log)]} />;
}

function VerifyLog({ log }: { log: string }) {
  const [report, setReport] = useState<Report | Problem | null>(null);
  const [open, setOpen] = useState(false);
  const run = async () => {
    setOpen(true);
    setReport(null);
    setReport(await get<Report>("/verify", { log }).catch((error) => error as Problem));
  };
  return (
    <>
      <button onClick={() => void run()}><Icon name="verify" />Verify log</button>
      {open && (
        <dialog open class="inline-dialog" aria-label="Verification">
          <div class="stack">
            <div class="spread"><h2>Verified again from its bytes, by the server</h2><button class="quiet" aria-label="Close" onClick={() => setOpen(false)}><Icon name="cross" /></button></div>
            {report === null ? <p class="muted" role="status">Reading every entry…</p> : report instanceof Problem ? <Notice kind="bad">{report.message}</Notice> : <><div><Badge state={report.verdict} /></div><Steps steps={report.steps} /></>}
          </div>
        </dialog>
      )}
    </>
  );
}

function Detail({ log, row: shown, selected }: { log: string; row: Row | undefined; selected: string }) {
  const [found, setFound] = useState<Row | null>(null);
  useEffect(() => {
    if (shown || engineOf(log) === "gossip" || engineOf(log) === "ledger") return;
    const after = { type: "", author: "", path: "", find: "", until: null };
    const above = /^[0-9A-Z]{26}$/.test(selected) ? selected.slice(0, -1) + "Z" : null;
    readPage(log, { ...after, until: above ? ulidTime(selected) : null }, null, 100).then((page) => setFound(page.rows.find((each) => each.id === selected) ?? null), () => {});
  }, [selected, shown]);
  const row = shown ?? (found?.id === selected ? found : null);
  const own = useMemo(() => (row?.contentId ? checkContentId(row.raw, row.contentId) : null), [row]);
  const before = useParent(log, row);
  const card = useRef<HTMLElement>(null);
  useEffect(() => {
    if (row && matchMedia("(max-width: 1180px)").matches) card.current?.scrollIntoView(); // it is below the list then
  }, [row?.id]);
  if (!row) return <Card title="Event"><Empty title="Not among the loaded entries">Remove the filters, or load older entries.</Empty></Card>;
  return (
    <aside class="card detail" aria-label="Event" ref={card}>
      <header>
        <div>
          <h2>{plain(row.type)}</h2>
          {row.ms !== null && <p><Time ms={row.ms} both /></p>}
        </div>
        <div class="line">
          {row.status && <Badge state={row.status} />}
          <button class="quiet" aria-label="Close" onClick={() => setQuery({ at: null })}><Icon name="cross" /></button>
        </div>
      </header>
      <div class="body stack">
        {own !== null && (
          <Notice kind={own ? "good" : "bad"}>
            {own ? <><strong>Content id recomputed in your browser.</strong> The canonical bytes of this event hash to the id that its commit records.</> : <strong>The content id does not match these bytes.</strong>}
          </Notice>
        )}
        {row.proof && <a class="button" href={row.proof}><Icon name="verify" />Proof of this envelope, recomputed in your browser</a>}
        <section>
          <div class="spread"><h3>Payload</h3><Copy text={JSON.stringify(row.payload, null, 2)} label="payload" /></div>
          <Tree value={row.payload} filter={(path, value) => hrefWith({ path: `${path}=${value}`, at: null })} />
        </section>
        {row.trailer && <section><div class="spread"><h3>Trailer</h3><Copy text={JSON.stringify(row.trailer, null, 2)} label="trailer" /></div><Tree value={row.trailer} /></section>}
        <section class="stack">
          <h3>Place in the log</h3>
          <Facts
            rows={[
              ["Id", <Hash text={row.id} label="id" href={hrefWith({ at: row.id })} length={28} />],
              ["Height", count(Math.floor(row.height))],
              ["Author", <a href={hrefWith({ author: person(row.author), at: null })}>{plain(row.author)}</a>],
              ["Type", <a href={hrefWith({ type: row.type, at: null })}>{plain(row.type)}</a>],
              ...row.links.map(([name, text, href]): [string, preact.ComponentChildren] => [name, text.length > 20 && !/\s/.test(text) ? <Hash text={text} label={name} href={href ?? undefined} length={24} /> : href ? <a href={href}>{plain(text)}</a> : plain(text)]),
              ["Schema", engineOf(log) === "gossip" ? null : <SchemaOf log={log} row={row} />],
              ["Parents", row.parents.length ? row.parents.map(([text, href]) => <Hash text={text} label="parent" href={href ?? (before?.of === row.id && before.commit === text ? hrefWith({ at: before.ulid }) : undefined)} length={24} />) : <span class="muted">none: the first entry</span>],
              ["Causes", row.causes.length ? row.causes.map((each) => <a href={hrefWith({ find: each, at: null })}>{plain(each)} </a>) : null],
            ]}
          />
        </section>
        {engineOf(log) === "shiplog" && <Note ns={nameOf(log)} ulid={row.id} />}
        <details class="tree">
          <summary>Envelope as JSON</summary>
          <Tree value={row.raw} />
        </details>
      </div>
    </aside>
  );
}

/** The event before one of a git log: its commit names the parent by commit, the address by ULID. */
function useParent(log: string, row: Row | null) {
  const isGit = row && row.parents[0]?.[1] === null;
  const found = useData<{ events: HistoryEvent[] }>(isGit ? "/history" : null, { log, before: row?.id, limit: 1 });
  const [event] = found.data?.events ?? [];
  return row && event ? { of: row.id, commit: event.commit, ulid: event.ulid } : null;
}

/** The captured output of a command, which is a git note on the commit. */
function Note({ ns, ulid }: { ns: string; ulid: string }) {
  const [note, setNote] = useState<string | null>(null);
  useEffect(() => {
    let ended = false;
    setNote(null);
    get<{ note: string | null }>(`/shiplog/${encodeURIComponent(ns)}/events/${ulid}`).then((found) => !ended && setNote(found.note), () => {});
    return () => void (ended = true);
  }, [ns, ulid]);
  return note === null ? null : <section><div class="spread"><h3>Captured output</h3><Copy text={note} label="output" /></div><pre class="output">{note.split("\n").map(plain).join("\n")}</pre></section>;
}
