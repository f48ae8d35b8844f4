import { useData, type Deployment, type Overview } from "../api.ts";
import { count, duration, engineOf, ENGINES, nameOf, plain, relative } from "../format.ts";
import { Legend, Plot } from "../parts/plot.tsx";
import { Badge, Card, Empty, Engine, Notice, Show, Spark, Tile, Time } from "../parts/ui.tsx";
import { to } from "../router.ts";

export function hrefOf(log: string): string {
  const engine = engineOf(log);
  return engine === "ledger" ? to.channel(nameOf(log)) : engine === "gossip" ? to.gossip(nameOf(log)) : to.log(log);
}

export function OverviewPage({ overview }: { overview?: Overview }) {
  const consumers = useData<{ consumers: { group: string; behind: number | null }[] }>("/consumers", {}, 10_000);
  const running = useData<{ deployments: Deployment[]; current: string[] }>("/deployments", {}, 10_000);
  if (!overview) return <Show of={{ data: undefined, error: undefined, reload: () => {} }}>{() => null}</Show>;
  const logs = overview.logs;
  const total = logs.reduce((sum, each) => sum + each.entries, 0);
  const behind = Math.max(0, ...(consumers.data?.consumers.map((each) => each.behind ?? 0) ?? []));
  const newest = Math.max(0, ...logs.map((each) => each.newest_ms ?? 0));
  const inSpan = logs.reduce((sum, each) => sum + each.rates.reduce((a, b) => a + b, 0), 0);
  const engines = Object.keys(ENGINES).filter((engine) => logs.some((each) => engineOf(each.log) === engine));
  return (
    <>
      <div class="head">
        <div>
          <h1>Overview</h1>
          <p>Every log of this repository that you may read, how fast it grows, and what runs now.</p>
        </div>
      </div>
      {overview.alerts.map((each) => (
        <Notice kind={each.severity === "page" ? "bad" : "warn"}><strong>{plain(each.name)}</strong> {plain(each.summary)}</Notice>
      ))}
      <div class="tiles">
        <Tile name="Entries" value={count(total)} note={`in ${logs.length} logs`} href="/logs" />
        <Tile name="Last 30 days" value={count(inSpan)} note={newest ? `newest ${relative(newest)}` : "nothing yet"} href="/logs" />
        <Tile name="Running now" value={count(running.data?.current.length ?? 0)} note="service versions" href="/deployments" />
        <Tile name="Blocks" value={count(logs.reduce((sum, each) => sum + (each.blocks ?? 0), 0))} note="sealed in the ledger" href="/ledger" />
        <Tile name="Furthest behind" value={count(behind)} note="events of a consumer" href="/consumers" />
        <Tile name="Health" value={overview.fault ? "faulty" : overview.alerts.length ? `${overview.alerts.length} alerts` : "good"} note={`up for ${duration(overview.uptime_s)}`} bad={Boolean(overview.fault || overview.alerts.length)} />
      </div>
      {logs.length === 0 ? (
        <Card><Empty title="No log that you may read has entries yet" command={`echo '{"type":"note.added","payload":{"text":"hello"}}' | ropewalk shiplog append --ns notes --file -`}>Append the first event and it appears here.</Empty></Card>
      ) : (
        <>
          <div class="columns">
            <Rates overview={overview} engines={engines} />
            <Running rows={running.data} />
          </div>
          <Card title="Logs" note="Sorted by newest entry. The bars are the last 30 days.">
            <div class="scroll" tabIndex={0} role="region" aria-label="Logs">
              <table>
                <thead><tr><th>Log</th><th>Engine</th><th class="num">Entries</th><th>Activity</th><th>Newest entry</th><th>Head</th></tr></thead>
                <tbody>
                  {[...logs].sort((a, b) => (b.newest_ms ?? 0) - (a.newest_ms ?? 0)).map((each) => (
                    <tr>
                      <td><Engine log={each.log} href={hrefOf(each.log)} /></td>
                      <td class="muted">{ENGINES[engineOf(each.log)]}</td>
                      <td class="num"><a href={to.log(each.log)}>{count(each.entries)}</a></td>
                      <td class={`engine-cell engine-${engineOf(each.log)}`}>{engineOf(each.log) === "gossip" ? <span class="muted">has no clock time</span> : <Spark values={each.rates} label={`${each.rates.reduce((a, b) => a + b, 0)} entries in 30 days`} />}</td>
                      <td>{each.newest_ms ? <Time ms={each.newest_ms} /> : <span class="muted">–</span>}</td>
                      <td><a href={hrefOf(each.log)}><code title={each.head ?? ""}>{each.head?.slice(0, 10) ?? "–"}</code></a></td>
                    </tr>
                  ))}
                </tbody>
              </table>
            </div>
          </Card>
        </>
      )}
    </>
  );
}

function Rates({ overview, engines }: { overview: Overview; engines: string[] }) {
  const drawn = engines.filter((each) => each !== "gossip");
  const steps = overview.logs[0]?.rates.length ?? 0;
  const half = Math.floor(steps / 2);
  const start = overview.now_ms / 1000 - overview.span_s;
  const times = Array.from({ length: half }, (_, at) => Math.floor((start + (overview.span_s * at) / half) / 60) * 60);
  const series = drawn.map((engine) => ({
    name: ENGINES[engine]!,
    color: `--${engine}`,
    values: times.map((_, at) => overview.logs.filter((each) => engineOf(each.log) === engine).reduce((sum, each) => sum + (each.rates[at * 2] ?? 0) + (each.rates[at * 2 + 1] ?? 0), 0)),
  }));
  return (
    <Card title="Entries per day" note="last 30 days" actions={<Legend series={series} />}>
      <Plot times={times} series={series} stacked label="Entries per day by engine, last 30 days" height={320} />
    </Card>
  );
}

function Running({ rows }: { rows?: { deployments: Deployment[]; current: string[] } }) {
  const current = new Set(rows?.current);
  const found = rows?.deployments.filter((each) => current.has(each.ulid)) ?? [];
  return (
    <Card title="Running now" note="the last effective deployment" actions={<a href="/deployments">All deployments</a>}>
      {found.length === 0 ? (
        <Empty title="No deployment was recorded" command="ropewalk shiplog run --ns deploy --env prod --service web --artifact web:1.0 -- ./deploy.sh" />
      ) : (
        <div class="scroll" tabIndex={0} role="region" aria-label="Running now">
          <table>
            <thead><tr><th>Service</th><th>Environment</th><th>Version</th><th>By</th><th>Since</th></tr></thead>
            <tbody>
              {found.slice(0, 7).map((each) => (
                <tr>
                  <td><a href={to.deployments({ service: each.service, env: each.env })}>{plain(each.service)}</a></td>
                  <td>{plain(each.env)}</td>
                  <td><a href={to.event(each.ns, each.ulid)}><code>{plain(each.artifact ?? each.ulid.slice(-6))}</code></a></td>
                  <td class="nowrap">{plain(each.who ?? "–")}</td>
                  <td><Time ms={Date.parse(each.end ?? each.time)} /></td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
      {rows && rows.deployments.some((each) => each.status === "failed") && (
        <div class="body line"><Badge state="failed" text={`${rows.deployments.filter((each) => each.status === "failed").length} failed`} /> <a href={to.deployments({ status: "failed" })}>of {count(rows.deployments.length)} recorded</a></div>
      )}
    </Card>
  );
}
