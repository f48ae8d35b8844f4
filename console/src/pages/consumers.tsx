import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { address, post, Problem, send, useData, type Overview } from "../api.ts";
import { count, plain, ulidTime } from "../format.ts";
import { Badge, Card, Dialog, Empty, Engine, Hash, Notice, say, Show, Tile, Time } from "../parts/ui.tsx";
import { ask, to } from "../router.ts";
import { lagOf, LagPlot, LagSpark, useLag, type Lag } from "./lag.tsx";

interface Consumer {
  group: string;
  ns: string;
  log: string;
  ulid: string | null;
  head_ulid: string | null;
  behind: number | null;
}

const POLL_MS = 2_000;

/** Show acts that change something only to those who may somewhere; the server judges each. */
const mayAct = (overview?: Overview): boolean => !overview?.guarded || overview.identity.rights.some((each) => each.actions.includes("admin"));

export function Consumers({ overview }: { overview?: Overview }) {
  const found = useData<{ consumers: Consumer[] }>("/consumers", {}, POLL_MS);
  const lag = useLag();
  const [reset, setReset] = useState<Consumer | null>(null);
  const acts = mayAct(overview);
  return (
    <>
      <div class="head">
        <div>
          <h1>Consumers</h1>
          <p>Groups that read logs, the last event each has handled, and how many events it is behind.</p>
        </div>
      </div>
      <Show of={found}>
        {({ consumers }) =>
          consumers.length === 0 ? (
            <Card><Empty title="No group has a checkpoint yet" command="ropewalk consumer run --group reports --ns deploy -- ./handle.sh">A group appears here when it has read its first event.</Empty></Card>
          ) : (
            <>
              <div class="tiles">
                <Tile name="Groups" value={count(new Set(consumers.map((each) => each.group)).size)} />
                <Tile name="At the head" value={count(consumers.filter((each) => each.behind === 0).length)} note={`of ${consumers.length} checkpoints`} />
                <Tile name="Furthest behind" value={count(Math.max(0, ...consumers.map((each) => each.behind ?? 0)))} note="events" />
              </div>
              {lag.data && lag.data.groups.length > 0 && <LagPlot lag={lag.data} />}
              <Card title="Checkpoints" note="One for each group and log.">
                <div class="scroll" tabIndex={0} role="region" aria-label="Checkpoints">
                  <table>
                    <thead><tr><th>Group</th><th>Log</th><th>State</th><th class="num">Behind</th><th>Lag</th><th>Last handled</th><th>Checkpoint</th><th><span class="visually-hidden">Actions</span></th></tr></thead>
                    <tbody>{consumers.map((each) => <Row each={each} lag={lagOf(lag.data, each.group, each.log)} reset={acts ? () => setReset(each) : null} />)}</tbody>
                  </table>
                </div>
              </Card>
            </>
          )
        }
      </Show>
      <Bridges />
      <Webhooks acts={acts} />
      {reset && <Reset consumer={reset} close={() => setReset(null)} done={found.reload} />}
    </>
  );
}

interface Bridge {
  kind: string;
  source: string;
  target: string;
  position: string | null;
  lag: number | null;
  lost: number;
  run_ms: number | null;
  error: string | null;
  error_ms: number | null;
}

/** Mirrors, broker bridges and webhooks: where each copies from and to, how far it is, and what went wrong. */
function Bridges() {
  const found = useData<{ bridges: Bridge[] }>("/bridges", {}, POLL_MS);
  const bridges = found.data?.bridges ?? [];
  if (bridges.length === 0) return null;
  return (
    <Card title="Bridges" note="Mirrors, message brokers and webhooks. A running bridge reports every 15 seconds.">
      <div class="scroll" tabIndex={0} role="region" aria-label="Bridges">
        <table>
          <thead><tr><th>Kind</th><th>Source</th><th>Target</th><th>State</th><th class="num">Behind</th><th>Position</th><th>Last run</th><th>Last error</th></tr></thead>
          <tbody>
            {bridges.map((each) => (
              <tr>
                <td>{plain(each.kind)}</td>
                <td><End of={each.source} /></td>
                <td><End of={each.target} /></td>
                <td>{each.error ? <Badge state="failed" text="failing" /> : each.lost ? <Badge state="failed" text={`${count(each.lost)} lost`} /> : each.lag ? <Badge state="behind" /> : <Badge state="ok" text={each.lag === 0 ? "at the head" : "no error"} />}</td>
                <td class="num">{each.lag === null ? "–" : count(each.lag)}</td>
                <td>{each.position ? <Hash text={each.position} label="position" length={26} /> : <span class="muted">at the beginning</span>}</td>
                <td>{each.run_ms === null ? "–" : <Time ms={each.run_ms} />}</td>
                <td>{each.error ? <>{plain(each.error)} {each.error_ms !== null && <Time ms={each.error_ms} />}</> : "–"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </Card>
  );
}

/** A log of this repository, or the address of another system. */
function End({ of }: { of: string }) {
  if (of.includes("://")) return <code>{plain(of)}</code>;
  const [engine, ...name] = of.split("/");
  return <Engine log={of} href={engine === "ledger" ? to.channel(name.join("/")) : to.log(of)} />;
}

interface Webhook {
  id: string;
  url: string;
  log: string;
  ulid: string;
  retrying: number;
  dead: number;
}

interface Attempts {
  deliveries: { ulid: string; attempt: number; at_ms: number; status: number | null; detail: string }[];
  dead: { ulid: string; attempts: number; status: number | null; detail: string }[];
}

/** The webhooks, and for a chosen one its newest attempts and its dead letters. */
function Webhooks({ acts }: { acts: boolean }) {
  const found = useData<{ webhooks: Webhook[] }>("/webhooks", {}, POLL_MS);
  const [chosen, choose] = useState<Webhook | null>(null);
  const [replay, setReplay] = useState<string[] | null>(null);
  const attempts = useData<Attempts>(chosen ? `/webhooks/${chosen.id}/deliveries` : null, {}, POLL_MS);
  const hooks = found.data?.webhooks ?? [];
  if (hooks.length === 0) return null;
  return (
    <Card title="Webhooks" note="Events that the server posts to other systems, with retries and dead letters.">
      <div class="scroll" tabIndex={0} role="region" aria-label="Webhooks">
        <table>
          <thead><tr><th>Log</th><th>Address</th><th>State</th><th class="num">Retrying</th><th class="num">Dead</th><th>Last taken</th><th><span class="visually-hidden">Actions</span></th></tr></thead>
          <tbody>
            {hooks.map((each) => (
              <tr>
                <td><Engine log={each.log} href={to.log(each.log)} /></td>
                <td><code>{plain(each.url)}</code></td>
                <td>{each.dead ? <Badge state="failed" text="dead letters" /> : each.retrying ? <Badge state="pending" text="retrying" /> : <Badge state="ok" text="delivered" />}</td>
                <td class="num">{count(each.retrying)}</td>
                <td class="num">{count(each.dead)}</td>
                <td>{each.ulid ? <Time ms={ulidTime(each.ulid)} /> : "–"}</td>
                <td class="num"><button aria-label={`Deliveries of ${plain(each.log)} to ${plain(each.url)}`} aria-expanded={chosen?.id === each.id} onClick={() => choose(chosen?.id === each.id ? null : each)}>Deliveries</button></td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {chosen && (
        <Show of={attempts}>
          {({ deliveries, dead }) => (
            <>
              <Log name="Newest attempts" log={chosen.log} rows={deliveries.map((each) => ({ ...each, when: <Time ms={each.at_ms} /> }))} none="Nothing was sent yet." />
              <Log name="Dead letters" log={chosen.log} rows={dead.map((each) => ({ ...each, attempt: each.attempts, when: "–" }))} none="None: every event was delivered or is tried again." />
              {dead.length > 0 && acts && <div class="body actions"><button onClick={() => setReplay(dead.map((each) => each.ulid))}>Deliver {count(dead.length)} again…</button></div>}
              {replay && <Replay hook={chosen} ulids={replay} close={() => setReplay(null)} done={() => (found.reload(), attempts.reload())} />}
            </>
          )}
        </Show>
      )}
    </Card>
  );
}

function Replay({ hook, ulids, close, done }: { hook: Webhook; ulids: string[]; close: () => void; done: () => void }) {
  const [problem, setProblem] = useState<Problem | null>(null);
  const act = async () => {
    try {
      const { replayed } = await post<{ replayed: string[] }>(`/webhooks/${hook.id}/replay`, { ulids });
      say(`${count(replayed.length)} ${replayed.length === 1 ? "event is" : "events are"} delivered again`);
      done();
      close();
    } catch (error) {
      setProblem(error as Problem);
    }
  };
  return (
    <Dialog title={`Deliver ${count(ulids.length)} dead ${ulids.length === 1 ? "letter" : "letters"} again?`} open close={close}>
      <p>The server posts {ulids.length === 1 ? "this event" : "these events"} of <Engine log={hook.log} /> to <code>{plain(hook.url)}</code> once more, with retries. The receiver may have seen {ulids.length === 1 ? "it" : "them"} before.</p>
      {problem && <Notice kind="bad"><strong>{problem.message}</strong> {problem.advice}</Notice>}
      <div class="actions">
        <button onClick={close}>Cancel</button>
        <button class="primary" onClick={() => void act()}>Deliver again</button>
      </div>
    </Dialog>
  );
}

interface LogRow {
  ulid: string;
  attempt: number;
  status: number | null;
  detail: string;
  when: ComponentChildren;
}

function Log({ name, log, rows, none }: { name: string; log: string; rows: LogRow[]; none: string }) {
  return (
    <>
      <h3>{name}</h3>
      {rows.length === 0 ? <p class="muted">{none}</p> : (
        <div class="scroll" tabIndex={0} role="region" aria-label={name}>
          <table>
            <thead><tr><th>Event</th><th class="num">Attempt</th><th>Answer</th><th>When</th></tr></thead>
            <tbody>
              {rows.map((each) => (
                <tr>
                  <td><Hash text={each.ulid} label="ULID" href={to.log(log, { at: each.ulid })} length={26} /></td>
                  <td class="num">{each.attempt}</td>
                  <td><Badge state={each.status !== null && each.status < 300 ? "ok" : "failed"} text={each.status === null ? "no answer" : String(each.status)} /> {plain(each.detail)}</td>
                  <td>{each.when}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

function Row({ each, lag, reset }: { each: Consumer; lag: Lag["groups"][number]["samples"]; reset: (() => void) | null }) {
  return (
    <tr>
      <td><strong>{plain(each.group)}</strong></td>
      <td><Engine log={each.log} href={to.log(each.log)} /></td>
      <td>{each.behind === 0 ? <Badge state="ok" text="at the head" /> : each.behind === null ? <Badge state="unknown" text="not begun" /> : <Badge state="behind" />}</td>
      <td class="num">{each.behind === null ? "–" : <a href={to.log(each.log, each.ulid ? { at: each.ulid } : {})}>{count(each.behind)}</a>}</td>
      <td><a href={`/consumers${ask({ group: each.group, log: each.log })}`}><LagSpark samples={lag} label={`Lag of ${plain(each.group)} in ${plain(each.log)}, now ${each.behind ?? "unknown"}`} /></a></td>
      <td>{each.ulid ? <Time ms={ulidTime(each.ulid)} /> : "–"}</td>
      <td>{each.ulid ? <Hash text={each.ulid} label="ULID" href={to.log(each.log, { at: each.ulid })} length={26} /> : <span class="muted">begins at the first event</span>}</td>
      <td class="num">{reset && <button class="danger" onClick={reset}><span class="visually-hidden">{plain(each.group)} of {plain(each.log)}: </span>Reset…</button>}</td>
    </tr>
  );
}

function Reset({ consumer, close, done }: { consumer: Consumer; close: () => void; done: () => void }) {
  const [typed, setTyped] = useState("");
  const [problem, setProblem] = useState<Problem | null>(null);
  const act = async () => {
    try {
      await send("DELETE", address(`/consumers/${encodeURIComponent(consumer.group)}`, { log: consumer.log }));
      say("The checkpoint was deleted");
      done();
      close();
    } catch (error) {
      setProblem(error as Problem);
    }
  };
  return (
    <Dialog title={`Reset ${plain(consumer.group)}?`} open close={close}>
      <p>The group will handle <strong>all events</strong> of <Engine log={consumer.log} /> again, from the first one. The log itself does not change.</p>
      <label class="field">Type the name of the group to confirm<input value={typed} onInput={(event) => setTyped(event.currentTarget.value)} placeholder={consumer.group} /></label>
      {problem && <Notice kind="bad"><strong>{problem.message}</strong> {problem.advice}</Notice>}
      <div class="actions">
        <button onClick={close}>Cancel</button>
        <button class="danger" disabled={typed !== consumer.group} onClick={() => void act()}>Reset</button>
      </div>
    </Dialog>
  );
}
