import { useMemo } from "preact/hooks";
import { useData, type Deployment } from "../api.ts";
import { count, duration, line, percent, plain } from "../format.ts";
import { Legend, Plot } from "../parts/plot.tsx";
import { Badge, Card, Empty, Hash, Notice, Show, Tile, Time } from "../parts/ui.tsx";
import { ask, place, setQuery, to } from "../router.ts";

interface Found {
  deployments: Deployment[];
  current: string[];
}

const STANDING = ["success", "override", "revert", "finalize"];
const DAY_S = 86_400;
const ROWS = 200;
const ended = (each: Deployment): number => Date.parse(each.end ?? each.time);
const took = (each: Deployment): number | null => each.when?.dur_s ?? null;
const version = (each: Deployment): string => each.artifact ?? `…${each.ulid.slice(-8)}`;

export function Deployments({ part }: { part: string }) {
  const found = useData<Found>("/deployments", {}, 5_000);
  return <Show of={found}>{(data) => (part === "diff" ? <Diff data={data} /> : <Board data={data} />)}</Show>;
}

function Board({ data }: { data: Found }) {
  const query = place.value.query;
  const [service, env, status] = ["service", "env", "status"].map((name) => query.get(name) ?? "");
  const current = useMemo(() => new Set(data.current), [data]);
  const services = [...new Set(data.deployments.map((each) => each.service))].sort();
  const envs = [...new Set(data.deployments.map((each) => each.env))].sort();
  const narrowed = data.deployments.filter((each) => (!service || each.service === service) && (!env || each.env === env));
  const rows = narrowed.filter((each) => !status || each.status === status);
  const pick = query.get("pick");
  if (!data.deployments.length)
    return <Card><Empty title="No deployment was recorded" command="ropewalk shiplog run --ns deploy --env prod --service web --artifact web:1.0 -- ./deploy.sh">Wrap the command that deploys. What happened is recorded, with its output, and appears here.</Empty></Card>;
  return (
    <>
      <div class="head">
        <div>
          <h1>Deployments</h1>
          <p>What runs where, who deployed it and how it went. Each version leads to the event that records it.</p>
        </div>
      </div>
      <Card title="What runs where" note="The last deployment that took effect, by service and environment.">
        <div class="board" style={{ gridTemplateColumns: `minmax(110px, max-content) repeat(${envs.length}, minmax(176px, 1fr))` }} tabIndex={0} role="region" aria-label="What runs where">
          <div class="corner">Service</div>
          {envs.map((each) => <div class="env"><a href={to.deployments({ env: each })}>{plain(each)}</a></div>)}
          {services.map((name) => (
            <>
              <div class="service"><a href={to.deployments({ service: name })}>{plain(name)}</a></div>
              {envs.map((where) => <Cell here={data.deployments.filter((each) => each.service === name && each.env === where)} current={current} />)}
            </>
          ))}
        </div>
      </Card>
      <Measures rows={narrowed} />
      <History rows={rows} narrowed={narrowed} services={services} envs={envs} chosen={{ service: service!, env: env!, status: status! }} current={current} pick={pick} />
    </>
  );
}

function Cell({ here, current }: { here: Deployment[]; current: Set<string> }) {
  const runs = here.find((each) => current.has(each.ulid));
  const last = here[0];
  if (!last) return <div class="none">never deployed</div>;
  if (!runs) return <div class="none"><Badge state={last.status} text={`only ${last.status}`} /></div>;
  const failed = last.ulid !== runs.ulid && !STANDING.includes(last.status);
  return (
    <a class="cell" href={to.event(runs.ns, runs.ulid)}>
      <span class="version">{plain(version(runs))}</span>
      <span class="muted">{plain(runs.who ?? "unknown")} · <Time ms={ended(runs)} /></span>
      <span>{failed ? <Badge state="failed" text={`${version(last)} failed after it`} /> : <Badge state={runs.status} />}</span>
    </a>
  );
}

/** The four measures of delivery, as `deployment_measures` of the pipeline defines them. */
export function measure(rows: Deployment[]) {
  const tried = rows.filter((each) => [...STANDING, "failed"].includes(each.status));
  const failures = tried.filter((each) => each.status === "failed" || each.status === "revert");
  const times = tried.map(ended).filter(Number.isFinite);
  const weeks = Math.max((Math.max(...times) - Math.min(...times)) / 1000 / (7 * DAY_S), 1);
  const leads = tried.map((each) => {
    const committed = (each.payload as { committed_at?: string } | null)?.committed_at ?? each.when?.start_ts;
    return committed && each.end ? (Date.parse(each.end) - Date.parse(committed)) / 1000 : NaN;
  }).filter(Number.isFinite).sort((a, b) => a - b);
  const recoveries: number[] = [];
  const next = new Map<string, number>();
  for (const each of tried) {
    const key = `${each.ns} ${each.env} ${each.service}`;
    if (each.status === "failed" && next.has(key)) recoveries.push((next.get(key)! - ended(each)) / 1000);
    if (STANDING.includes(each.status)) next.set(key, ended(each));
  }
  const middle = leads.length >> 1;
  return {
    tried: tried.length,
    failures: failures.length,
    perWeek: tried.length / weeks,
    failureRate: tried.length ? failures.length / tried.length : null,
    lead: leads.length ? (leads.length % 2 ? leads[middle]! : (leads[middle - 1]! + leads[middle]!) / 2) : null,
    recovery: recoveries.length ? recoveries.reduce((a, b) => a + b, 0) / recoveries.length : null,
  };
}

function Measures({ rows }: { rows: Deployment[] }) {
  const found = measure(rows);
  const listed = (more: Record<string, string>) => `/deployments${ask({ ...chosen(), ...more })}`;
  return (
    <div class="tiles">
      <Tile name="Deployment frequency" value={`${found.perWeek.toFixed(1)}`} note="per week" href={listed({})} />
      <Tile name="Lead time" value={duration(found.lead)} note="median, start or commit to end" href={listed({ status: "success" })} />
      <Tile name="Change failure rate" value={found.failureRate === null ? "–" : percent(found.failureRate)} note={`${count(found.failures)} of ${count(found.tried)}`} href={listed({ status: "failed" })} />
      <Tile name="Time to recover" value={duration(found.recovery)} note="mean, failure to next success" href={listed({ status: "failed" })} />
    </div>
  );
}

const chosen = (): Record<string, string> => Object.fromEntries([...place.value.query].filter(([name]) => name === "service" || name === "env"));

function History({ rows, narrowed, services, envs, chosen: set, current, pick }: { rows: Deployment[]; narrowed: Deployment[]; services: string[]; envs: string[]; chosen: Record<string, string>; current: Set<string>; pick: string | null }) {
  const longest = Math.max(1, ...rows.slice(0, ROWS).map((each) => took(each) ?? 0));
  const choose = (name: string, title: string, values: string[]) => (
    <label class="field">
      {title}
      <select value={set[name]} onChange={(event) => setQuery({ [name]: event.currentTarget.value || null }, true)}>
        <option value="">all</option>
        {values.map((each) => <option value={each}>{plain(each)}</option>)}
      </select>
    </label>
  );
  return (
    <Card title="History" note={`${count(rows.length)} deployments, newest first`} actions={<>{choose("service", "Service", services)}{choose("env", "Environment", envs)}{choose("status", "Status", [...new Set(narrowed.map((each) => each.status))].sort())}</>}>
      <OverTime rows={rows} />
      {pick && <div class="body"><Notice kind="info">Choose the deployment to compare with. <a href={`/deployments${ask(Object.fromEntries([...place.value.query].filter(([name]) => name !== "pick")))}`}>Cancel</a></Notice></div>}
      <div class="scroll" tabIndex={0} role="region" aria-label="History of deployments">
        <table>
          <thead><tr><th>Time</th><th>Service</th><th>Environment</th><th>Version</th><th>Status</th><th>Took</th><th>By</th><th>Why</th><th>Event</th><th><span class="visually-hidden">Compare</span></th></tr></thead>
          <tbody>
            {rows.slice(0, ROWS).map((each) => {
              const before = narrowed.find((other) => other.ulid < each.ulid && other.service === each.service && other.env === each.env && STANDING.includes(other.status));
              const other = pick && pick !== each.ulid ? pick : before?.ulid;
              return (
                <tr>
                  <td><Time ms={ended(each)} both /></td>
                  <td>{plain(each.service)}</td>
                  <td>{plain(each.env)}</td>
                  <td class="nowrap"><a href={to.event(each.ns, each.ulid)}><code>{plain(version(each))}</code></a> {current.has(each.ulid) && <span class="badge good plain">runs now</span>}</td>
                  <td><Badge state={each.status} /></td>
                  <td class="nowrap"><div class="line"><span class="num took">{duration(took(each))}</span><span class={`bar${each.status === "failed" ? " bad" : ""}`} aria-hidden="true"><i style={{ width: `${((took(each) ?? 0) / longest) * 100}%` }} /></span></div></td>
                  <td class="nowrap">{plain(each.who ?? "–")}</td>
                  <td>{plain(each.why?.reason ?? "–")}{each.why?.ticket ? ` (${plain(each.why.ticket)})` : ""}</td>
                  <td><Hash text={each.commit} label="commit" href={to.event(each.ns, each.ulid)} length={8} /></td>
                  <td class="nowrap num">{other ? <a href={`/deployments/diff${ask({ a: other, b: each.ulid })}`}>{pick ? "Compare" : "Diff"}</a> : null} {!pick && <button class="quiet" onClick={() => setQuery({ pick: each.ulid })}>Pick</button>}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </div>
      {rows.length > ROWS && <div class="body muted">The newest {ROWS} of {count(rows.length)}; narrow the history by service, environment or status to see older ones.</div>}
    </Card>
  );
}

function OverTime({ rows }: { rows: Deployment[] }) {
  const stamps = rows.map((each) => ended(each) / 1000).filter(Number.isFinite);
  if (stamps.length < 2) return null;
  const low = Math.min(...stamps);
  const high = Math.max(...stamps);
  const step = [3600, 6 * 3600, DAY_S, 7 * DAY_S, 30 * DAY_S].find((size) => (high - low) / size <= 70) ?? 90 * DAY_S;
  const start = Math.floor(low / step) * step;
  const times = Array.from({ length: Math.floor((high - start) / step) + 1 }, (_, at) => start + at * step);
  const good = times.map(() => 0);
  const bad = times.map(() => 0);
  for (const each of rows) {
    const at = Math.floor((ended(each) / 1000 - start) / step);
    const place = STANDING.includes(each.status) && each.status !== "revert" ? good : bad;
    if (at in place) place[at]!++;
  }
  const series = [
    { name: "took effect", color: "--good", values: good },
    { name: "failed or reverted", color: "--bad", values: bad, hatched: true },
  ];
  return (
    <>
      <div class="body line"><Legend series={series} /></div>
      <Plot times={times} series={series} stacked height={150} label="Deployments over time by outcome" />
    </>
  );
}

function flatten(value: unknown, path = "", into: Map<string, string> = new Map()): Map<string, string> {
  if (value !== null && typeof value === "object") for (const [name, each] of Object.entries(value)) flatten(each, path ? `${path}.${name}` : name, into);
  else into.set(path, line(value));
  return into;
}

function Diff({ data }: { data: Found }) {
  const query = place.value.query;
  const [a, b] = ["a", "b"].map((name) => data.deployments.find((each) => each.ulid === query.get(name)));
  if (!a || !b) return <Card><Empty title="These deployments are not in the log">Choose two of them in <a href="/deployments">the history</a>.</Empty></Card>;
  const shown = (each: Deployment) => flatten({ service: each.service, environment: each.env, version: each.artifact, status: each.status, by: each.who, started: each.when?.start_ts, ended: each.end, took: duration(took(each)), why: each.why, payload: each.payload, type: each.type, commit: each.commit, content_id: each.content_id });
  const [one, two] = [shown(a), shown(b)];
  const names = [...new Set([...one.keys(), ...two.keys()])];
  const changed = names.filter((name) => one.get(name) !== two.get(name));
  const between = data.deployments.filter((each) => each.service === b.service && each.env === b.env && each.ulid > (a.ulid < b.ulid ? a : b).ulid && each.ulid < (a.ulid < b.ulid ? b : a).ulid);
  return (
    <>
      <div class="head">
        <div>
          <h1>{plain(version(a))} → {plain(version(b))}</h1>
          <p>{plain(b.service)} in {plain(b.env)}: {changed.length} of {names.length} members differ; {between.length} deployments lie between them.</p>
        </div>
        <a class="button" href={`/deployments/diff${ask({ a: b.ulid, b: a.ulid })}`}>Swap</a>
      </div>
      <Card title="Members">
        <div class="scroll" tabIndex={0} role="region" aria-label="Members">
          <table>
            <thead><tr><th>Member</th><th><a href={to.event(a.ns, a.ulid)}>{plain(version(a))}</a></th><th><a href={to.event(b.ns, b.ulid)}>{plain(version(b))}</a></th><th>Difference</th></tr></thead>
            <tbody>
              {names.map((name) => {
                const differs = one.get(name) !== two.get(name);
                return <tr><td class="muted">{plain(name)}</td>{[one, two].map((side) => <td class={`break${differs ? " changed" : ""}`}><code>{side.get(name) ?? "–"}</code></td>)}<td>{differs ? <Badge state="changed" /> : <span class="muted">same</span>}</td></tr>;
              })}
            </tbody>
          </table>
        </div>
      </Card>
    </>
  );
}
