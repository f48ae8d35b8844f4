import { useEffect, useState } from "preact/hooks";
import { post, Problem, useData, type Overview } from "../api.ts";
import { bytes, count, day, duration, line, plain } from "../format.ts";
import { Plot } from "../parts/plot.tsx";
import { Badge, Card, Copy, Empty, Hash, Notice, Show, Tile, Time } from "../parts/ui.tsx";
import { place, setQuery, to } from "../router.ts";

interface Warehouse {
  tables: { name: string; rows: number; bytes: number; heads: Record<string, string | null> }[];
  noted: string[];
  batches: { number: number; made_ms: number; rows: number; logs: { engine: string; topic: string; start: number; end: number; root: string; rejected: number }[] }[];
  runs: { job: string; started_ms: number; ended_ms?: number; ok?: boolean; rows?: number; entries?: number; rejected?: number; rows_per_s?: number; error?: string }[];
}
interface Answer { columns: string[]; rows: unknown[][]; truncated: boolean }

const QUERIES: [string, string][] = [
  ["What runs now", "SELECT env, service, artifact, ended, author FROM deployments WHERE current ORDER BY env, service"],
  ["Deployments per day", "SELECT date_trunc('day', ended) AS day, count(*) AS deployments, count(*) FILTER (status = 'failed') AS failed FROM deployments GROUP BY day ORDER BY day"],
  ["Four measures", "SELECT env, service, deployments, per_week, failure_rate, lead_time_median_s, recovery_mean_s FROM deployment_measures ORDER BY env, service"],
  ["Events by topic", "SELECT engine, topic, count(*) AS events FROM events GROUP BY ALL ORDER BY events DESC"],
];
const SHOWN = 500;

export function Pipeline({ overview }: { overview?: Overview }) {
  const found = useData<Warehouse>(overview?.warehouse === false ? null : "/warehouse", {}, 10_000);
  const head = <div class="head"><div><h1>Pipeline</h1><p>Tables that Spark made from the logs: every row verified on the way in, every table bound to the heads it was read from.</p></div></div>;
  if (overview?.warehouse === false)
    return <>{head}<Card><Empty title="This server shows no warehouse" command="ropewalk pipeline ingest --warehouse ./tables && ropewalk serve --warehouse ./tables">Make tables from the logs, then start the server with <code>--warehouse DIR</code>. Reading it needs the right <code>warehouse:read</code>.</Empty></Card></>;
  return (
    <>
      {head}
      <Show of={found}>
        {(data) => {
          const rejected = data.tables.find((each) => each.name === "events_rejected")?.rows ?? 0;
          const last = data.runs.at(-1);
          const events = data.tables.find((each) => each.name === "events")?.rows ?? 0;
          return (
            <>
              <div class="tiles">
                <Tile name="Tables" value={count(data.tables.length)} note={bytes(data.tables.reduce((sum, each) => sum + each.bytes, 0))} />
                <Tile name="Events" value={count(events)} href={to.sql("SELECT * FROM events ORDER BY time DESC")} note="verified rows" />
                <Tile name="Quarantine" value={count(rejected)} bad={rejected > 0} href={to.sql("SELECT topic, detail, count(*) AS rows FROM events_rejected GROUP BY ALL ORDER BY rows DESC")} note="rejected rows, with reasons" />
                <Tile name="Last run" value={last ? last.job : "none"} note={last ? <Time ms={last.started_ms} /> : ""} bad={last?.ok === false} />
              </div>
              <Sql tables={[...data.tables.map((each) => each.name), ...data.noted]} />
              <div class="columns">
                <Card title="Tables" note="rows and the heads up to which they were written">
                  {!data.tables.length ? <Empty title="No table yet" command="ropewalk pipeline ingest --warehouse ./tables" /> : (
                    <div class="scroll" tabIndex={0}><table><thead><tr><th>Table</th><th class="num">Rows</th><th class="num">Size</th><th>Heads</th></tr></thead><tbody>{data.tables.map((each) => <tr><td><a href={to.sql(`SELECT * FROM ${each.name}`)}><code>{plain(each.name)}</code></a></td><td class="num"><a href={to.sql(`SELECT * FROM ${each.name}`)}>{count(each.rows)}</a></td><td class="num">{bytes(each.bytes)}</td><td><details><summary class="muted">{Object.keys(each.heads).length} logs</summary>{Object.entries(each.heads).map(([log, point]) => <div class="spread"><span>{plain(log)}</span>{point && <Hash text={point} label="head" length={10} />}</div>)}</details></td></tr>)}</tbody></table></div>
                  )}
                </Card>
                <div class="stack">
                  <Card title="Runs" note="newest first">
                    {!data.runs.length ? <Empty title="No job has run" /> : (
                      <div class="scroll" tabIndex={0}><table><thead><tr><th>Job</th><th>Started</th><th>State</th><th class="num">Took</th><th class="num">Entries</th></tr></thead><tbody>{[...data.runs].reverse().map((each) => <tr><td>{plain(each.job)}</td><td><Time ms={each.started_ms} both /></td><td><Badge state={each.ok ? "ok" : "failed"} text={each.ok ? "done" : (each.error ?? "failed")} /></td><td class="num">{duration(each.ended_ms ? (each.ended_ms - each.started_ms) / 1000 : null)}</td><td class="num">{count(each.rows ?? each.entries ?? 0)}</td></tr>)}</tbody></table></div>
                    )}
                  </Card>
                  {data.noted.includes("health") && <Health />}
                  <Card title="Batches" note="what each ingest took in, with the root over its rows">
                    <div class="scroll" tabIndex={0}><table><thead><tr><th class="num">Batch</th><th>Made</th><th class="num">Rows</th><th class="num">Rejected</th><th>Logs</th></tr></thead><tbody>{[...data.batches].reverse().map((each) => <tr><td class="num">{each.number}</td><td><Time ms={each.made_ms} both /></td><td class="num">{count(each.rows)}</td><td class="num">{count(each.logs.reduce((sum, log) => sum + log.rejected, 0))}</td><td class="num">{each.logs.length}</td></tr>)}</tbody></table></div>
                  </Card>
                </div>
              </div>
            </>
          );
        }}
      </Show>
    </>
  );
}

function Health() {
  const [answer, setAnswer] = useState<Answer | null>(null);
  useEffect(() => void post<Answer>("/warehouse/sql", { query: "SELECT COLUMNS('^(channel|domain|envelopes|evidence_held|evidence_failed|stale)$') FROM health ORDER BY channel", limit: 100 }).then(setAnswer, () => {}), []);
  return !answer?.rows.length ? null : <Card title="Health of evidence" note="from the last health job"><Grid answer={answer} /></Card>;
}

function Sql({ tables }: { tables: string[] }) {
  const asked = place.value.query.get("sql") ?? "";
  const usual = tables.includes("deployments") ? QUERIES[1]![1] : "";
  const [text, setText] = useState(asked || usual);
  const [answer, setAnswer] = useState<Answer | Problem | null>(null);
  const [busy, setBusy] = useState(false);
  const [took, setTook] = useState(0);
  const query = asked || usual;
  useEffect(() => {
    let ended = false;
    setText(query);
    if (!query) return;
    setBusy(true);
    const start = performance.now();
    post<Answer>("/warehouse/sql", { query, limit: 1_000 })
      .catch((error) => error as Problem)
      .then((found) => !ended && (setAnswer(found), setBusy(false), setTook(performance.now() - start)));
    return () => void (ended = true);
  }, [query]);
  const run = () => setQuery({ sql: text }, true);
  return (
    <Card title="SQL" note="DuckDB over the tables, read-only: one SELECT, 10 s, 256 MiB, no files and no network" actions={<div class="tabs">{QUERIES.map(([name, sql]) => <button class="quiet" aria-pressed={sql === query} onClick={() => setQuery({ sql }, true)}>{name}</button>)}</div>}>
      <div class="body stack">
        <textarea rows={Math.min(10, Math.max(3, text.split("\n").length + 1))} spellcheck={false} aria-label="SQL query" placeholder={tables.length ? `SELECT * FROM ${tables[0]}` : "SELECT 1"} value={text} onInput={(event) => setText(event.currentTarget.value)} onKeyDown={(event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && run()} />
        <div class="spread">
          <span class="muted" role="status">{busy ? "Asking…" : answer && !(answer instanceof Problem) ? `${count(answer.rows.length)} rows${answer.truncated ? ", more were left out" : ""} in ${duration(took / 1000)}` : ""}</span>
          <span class="line"><Copy text={text} label="query" /><button class="primary" onClick={run}>Run <kbd>Ctrl Enter</kbd></button></span>
        </div>
        {answer instanceof Problem && <Notice kind="bad"><strong>{plain(answer.message)}</strong> {plain(answer.advice)}</Notice>}
      </div>
      {answer && !(answer instanceof Problem) && <><Chart answer={answer} /><Grid answer={answer} /></>}
    </Card>
  );
}

function Grid({ answer }: { answer: Answer }) {
  const numeric = answer.columns.map((_, at) => answer.rows.some((row) => typeof row[at] === "number") && answer.rows.every((row) => row[at] === null || typeof row[at] === "number"));
  if (!answer.rows.length) return <Empty title="No rows" />;
  return (
    <div class="scroll grid" tabIndex={0} role="region" aria-label="Rows">
      <table>
        <thead><tr>{answer.columns.map((name, at) => <th class={numeric[at] ? "num" : ""}>{plain(name)}</th>)}</tr></thead>
        <tbody>{answer.rows.slice(0, SHOWN).map((row) => <tr>{row.map((cell, at) => <td class={numeric[at] ? "num" : ""}>{cell === null ? <span class="muted">null</span> : typeof cell === "number" ? (Number.isInteger(cell) ? count(cell) : cell.toPrecision(6).replace(/\.?0+$/, "")) : <span class="clip" title={line(cell)}>{line(cell).slice(0, 160)}</span>}</td>)}</tr>)}</tbody>
      </table>
    </div>
  );
}

const INKS = ["--accent", "--ledger", "--messages", "--gossip"];

/** Plot an answer whose first column is a time or a number and whose others are numbers. */
function Chart({ answer }: { answer: Answer }) {
  const [first] = answer.columns;
  if (!first || answer.columns.length < 2 || answer.rows.length < 3) return null;
  const isTime = answer.rows.every((row) => typeof row[0] === "string" && /^\d{4}-\d\d-\d\d/.test(row[0]) && Number.isFinite(Date.parse(row[0])));
  const isNumber = answer.rows.every((row) => typeof row[0] === "number");
  const shown = answer.columns.flatMap((name, at) => (at > 0 && answer.rows.every((row) => row[at] === null || typeof row[at] === "number") ? [{ name, at }] : [])).slice(0, 4);
  if ((!isTime && !isNumber) || !shown.length) return null;
  const rows = [...answer.rows].map((row) => ({ x: isTime ? Date.parse(row[0] as string) / 1000 : (row[0] as number), row })).sort((a, b) => a.x - b.x);
  const series = shown.map(({ name, at }, number) => ({ name, color: /fail|reject|error/.test(name) ? "--bad" : INKS[number]!, hatched: /fail|reject|error/.test(name), values: rows.map(({ row }) => row[at] as number | null) }));
  return <><div class="body legend">{series.map((each) => <span><i style={{ background: `var(${each.color})` }} />{plain(each.name)}</span>)}<span>{isTime ? `${day(rows[0]!.x * 1000)} to ${day(rows.at(-1)!.x * 1000)}` : ""}</span></div><Plot times={rows.map(({ x }) => x)} series={series} kind={isTime && rows.length < 120 ? "bars" : "line"} numeric={!isTime} label={`Plot of ${answer.columns.join(", ")}`} /></>;
}
