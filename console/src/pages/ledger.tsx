import { useEffect, useState } from "preact/hooks";
import { address, offline, Problem, send, useData, type Block, type Overview, type Report as ServerReport } from "../api.ts";
import { count, engineOf, line, nameOf, plain } from "../format.ts";
import { Icon } from "../parts/icons.tsx";
import { Tree } from "../parts/tree.tsx";
import { Badge, Card, Copy, Empty, Facts, Hash, Notice, Show, Steps, Tile, Time } from "../parts/ui.tsx";
import { pathSteps, verifyProof, type Report } from "../proofs.ts";
import { ask, place, to } from "../router.ts";
import { PolicyCard } from "./schema.tsx";

const BLOCKS = 25;
const SHOWN = 500;

export function Ledger({ rest, overview }: { rest: string[]; overview?: Overview }) {
  const [channel, second, id] = rest;
  if (channel === undefined) return <Channels overview={overview} />;
  if (second === "envelope" && id) return <EnvelopePage key={id} channel={channel} id={id} />;
  if (second !== undefined && /^\d+$/.test(second)) return <BlockPage channel={channel} height={Number(second)} />;
  return <Channel channel={channel} />;
}

interface Peers { transports: Record<string, string>; sessions: number; quarantined: { peer: string; channel: string; reason: string; since_ns: number }[] }

/** Sessions over gRPC and QUIC; nothing where neither is served. */
function PeersCard() {
  const peers = useData<Peers>("/peers", {}, 3_000).data;
  if (!peers || !Object.keys(peers.transports).length) return null;
  const held = peers.quarantined;
  return (
    <Card title="Peers" note={`${Object.values(peers.transports).map(plain).join(", ")}; ${count(peers.sessions)} sessions open`} actions={<Badge state={held.length ? "failed" : "passed"} text={held.length ? `${held.length} in quarantine` : "none in quarantine"} />}>
      {!!held.length && (
        <div class="scroll" tabIndex={0}><table>
          <thead><tr><th>Peer</th><th>Channel</th><th>Refused because</th><th>Since</th></tr></thead>
          <tbody>{held.map((each) => <tr><td><Hash text={each.peer} label="peer" length={24} /></td><td><a href={to.channel(each.channel)}>{plain(each.channel)}</a></td><td>{plain(each.reason)}</td><td><Time ms={each.since_ns / 1e6} both /></td></tr>)}</tbody>
        </table></div>
      )}
    </Card>
  );
}

function Channels({ overview }: { overview?: Overview }) {
  const found = overview?.logs.filter((each) => engineOf(each.log) === "ledger");
  return (
    <>
      <div class="head">
        <div><h1>Ledger</h1><p>Channels of signed envelopes in sealed blocks. Each block names the one before it; each envelope has a proof that your browser can recompute.</p></div>
        <a class="button" href="/verify"><Icon name="verify" />Verify a file</a>
      </div>
      {!found ? null : !found.length ? (
        <Card><Empty title="There is no channel yet" command="ropewalk ledger create --channel audit">Then append envelopes with <code>ropewalk ledger append</code>.</Empty></Card>
      ) : (
        <Card title="Channels">
          <div class="scroll" tabIndex={0}><table>
            <thead><tr><th>Channel</th><th class="num">Blocks</th><th class="num">Envelopes</th><th>Newest block</th><th>Head</th></tr></thead>
            <tbody>{found.map((each) => <tr><td><a href={to.channel(nameOf(each.log))}>{plain(nameOf(each.log))}</a></td><td class="num">{count(each.blocks ?? 0)}</td><td class="num"><a href={to.log(each.log)}>{count(each.entries)}</a></td><td>{each.newest_ms ? <Time ms={each.newest_ms} both /> : <span class="muted">no block yet</span>}</td><td>{each.head && <Hash text={each.head} label="head" href={to.block(nameOf(each.log), (each.blocks ?? 1) - 1)} />}</td></tr>)}</tbody>
          </table></div>
        </Card>
      )}
      <PeersCard />
    </>
  );
}

interface Facts_ { channel: string; height: number | null; block_hash: string | null; envelopes: number; key: string; signer: { identity_type: string; public_key: string }; policy_hash: string | null }
interface Key { key: { identity_type: string; public_key: string }; did: string; above: number; since_ns: number; until_ns: number | null; current: boolean }

function Channel({ channel }: { channel: string }) {
  const path = `/channels/${encodeURIComponent(channel)}`;
  const facts = useData<Facts_>(path, {}, 3_000);
  const keys = useData<{ keys: Key[] }>(`${path}/keys`);
  const report = useData<ServerReport>("/verify", { log: `ledger/${channel}` });
  const height = facts.data?.height ?? -1;
  const top = Math.min(Number(place.value.query.get("below") ?? height), height);
  const from = Math.max(0, top - BLOCKS + 1);
  const blocks = useData<{ blocks: Block[] }>(top >= 0 ? `${path}/blocks` : null, { from, to: top });
  return (
    <>
      <div class="head">
        <div><h1>{plain(channel)}</h1><p><a href={to.log(`ledger/${channel}`)}>Show its envelopes as a log</a></p></div>
        <div class="line">
          <Download path={`${path}/checkpoint`} name={`${channel}.checkpoint`}>Checkpoint</Download>
          <Download path={`${path}/trust`} name={`${channel}.trust.json`}>Trust file</Download>
          <Download path={`${path}/bundle`} name={`${channel}.tar.zst`}>Bundle</Download>
        </div>
      </div>
      <Show of={facts}>
        {(data) => (
          <div class="tiles">
            <Tile name="Blocks" value={count(height + 1)} />
            <Tile name="Envelopes" value={count(data.envelopes)} href={to.log(`ledger/${channel}`)} />
            <Tile name="Verdict" value={report.data ? report.data.verdict : "…"} note="all blocks verified again" bad={report.data?.verdict === "failed"} />
            <Tile name="Keys so far" value={keys.data?.keys.length ?? "…"} note={`sealed by ${plain(data.key)}`} />
            <Tile name="Policy" value={data.policy_hash ? <Hash text={data.policy_hash} label="policy hash" length={8} /> : "none"} />
          </div>
        )}
      </Show>
      <div class="columns">
        <Card title="Blocks" note="newest first" actions={<>{top < height && <a href={to.channel(channel)}>Newest</a>}{from > 0 && <a href={`${to.channel(channel)}${ask({ below: String(from - 1) })}`}>Older</a>}</>}>
          {height < 0 && facts.data ? <Empty title="This channel has no block yet" command={`ropewalk ledger append --channel ${channel} --file envelope.json`} /> : (
            <Show of={blocks}>
              {(data) => (
                <div class="scroll" tabIndex={0}><table>
                  <thead><tr><th class="num">Height</th><th>Sealed</th><th class="num">Envelopes</th><th>Block hash</th></tr></thead>
                  <tbody>{[...data.blocks].reverse().map((each) => <tr><td class="num"><a href={to.block(channel, each.height)}>{each.height}</a></td><td><Time ms={Number(each.header.timestamp) / 1e6} both /></td><td class="num">{count(each.header.envelope_count)}</td><td><Hash text={each.block_hash} label="block hash" href={to.block(channel, each.height)} /></td></tr>)}</tbody>
                </table></div>
              )}
            </Show>
          )}
        </Card>
        <div class="stack">
          <Card title="Verification" note="by the server, from the stored bytes" actions={report.data && <Badge state={report.data.verdict} />}>
            <div class="body"><Show of={report}>{(data) => <Steps steps={data.steps} />}</Show></div>
          </Card>
          <Card title="Key history" note="which keys may seal which blocks">
            <Show of={keys}>
              {(data) => (
                <ol class="body stack">
                  {data.keys.map((each) => (
                    <li class="stack key">
                      <div class="line"><Badge state={each.current ? "valid" : "retired"} text={each.current ? "seals now" : "replaced"} /><span class="muted">{each.key.identity_type}</span></div>
                      <Hash text={each.did} label="key" length={40} />
                      <span class="muted">{each.above < 0 ? "from the first block" : `above block ${each.above}`}{each.until_ns ? <> until <Time ms={each.until_ns / 1e6} both /></> : ""}</span>
                    </li>
                  ))}
                </ol>
              )}
            </Show>
          </Card>
          <PolicyCard channel={channel} />
        </div>
      </div>
    </>
  );
}

function Download({ path, name, children }: { path: string; name: string; children: string }) {
  const run = async () => {
    const body = await (await send("GET", address(path))).blob();
    const link = document.createElement("a");
    link.href = URL.createObjectURL(body);
    link.download = name;
    link.click();
    URL.revokeObjectURL(link.href);
  };
  return <button onClick={() => void run().catch(() => {})}><Icon name="up" style={{ transform: "rotate(180deg)" }} />{children}</button>;
}

function BlockPage({ channel, height }: { channel: string; height: number }) {
  const path = `/channels/${encodeURIComponent(channel)}`;
  const found = useData<{ blocks: Block[] }>(`${path}/blocks`, { from: height, to: height });
  const newest = useData<Facts_>(path, {}, 3_000).data?.height ?? -1;
  return (
    <Show of={found}>
      {({ blocks: [block] }) =>
        !block ? <Card><Empty title={`There is no block ${height}`}>Go to <a href={to.channel(channel)}>the newest blocks</a>.</Empty></Card> : (
          <>
            <div class="head">
              <div><h1>Block {height} of {plain(channel)}</h1><p>Sealed <Time ms={Number(block.header.timestamp) / 1e6} both /> with {count(block.header.envelope_count)} envelopes</p></div>
              <div class="line">{height > 0 && <a class="button" href={to.block(channel, height - 1)}>Block {height - 1}</a>}{height < newest && <a class="button" href={to.block(channel, height + 1)}>Block {height + 1}</a>}</div>
            </div>
            <Card title="Header"><div class="body"><Facts rows={[["Block hash", <Hash text={block.block_hash} label="block hash" length={64} />], ["Block before", height ? <Hash text={block.header.prev_block_hash} label="previous hash" href={to.block(channel, height - 1)} length={64} /> : <span class="muted">none: the first block</span>], ["Merkle root", <Hash text={block.header.merkle_root} label="Merkle root" length={64} />], ["Policy", block.header.policy_hash ? <Hash text={block.header.policy_hash} label="policy" length={64} /> : <span class="muted">none</span>], ["Signer", <Hash text={block.signer.public_key} label="signer" length={64} />], ["Signature", <span><Hash text={block.signature.sig} label="signature" length={40} /> <span class="muted">{block.signature.alg}</span></span>]]} /></div></Card>
            <Card title="Envelopes" note="each leads to its proof">
              <div class="scroll" tabIndex={0} role="region" aria-label="Envelopes"><table>
                <thead><tr><th class="num">Index</th><th>Class</th><th>Type</th><th>Correlation</th><th>Payload</th><th>Envelope id</th></tr></thead>
                <tbody>{block.envelopes.slice(0, SHOWN).map((each, at) => <tr><td class="num">{at}</td><td>{plain(each.event_class)}</td><td>{plain(each.event_type)}</td><td>{each.correlation_id ? <a href={to.log(`ledger/${channel}`, { find: each.correlation_id })}>{plain(each.correlation_id)}</a> : "–"}</td><td class="break"><code>{line(each.payload).slice(0, 120)}</code></td><td><Hash text={block.envelope_ids[at]!} label="envelope id" href={to.envelope(channel, block.envelope_ids[at]!)} /></td></tr>)}</tbody>
              </table></div>
              {block.envelopes.length > SHOWN && <div class="body muted">The first {SHOWN} of {count(block.envelopes.length)}; <a href={to.log(`ledger/${channel}`)}>the log</a> shows all.</div>}
            </Card>
          </>
        )
      }
    </Show>
  );
}

interface ProofFile { envelope: Record<string, unknown>; envelope_id: string; height: number; index: number; path: string[]; block: { header: Block["header"] } }

function EnvelopePage({ channel, id }: { channel: string; id: string }) {
  const path = `/channels/${encodeURIComponent(channel)}`;
  const [found, setFound] = useState<{ raw: Uint8Array; proof: ProofFile; own: Report } | Problem | null>(null);
  const verdict = useData<ServerReport>(`${path}/envelopes/${encodeURIComponent(id)}/verdict`);
  useEffect(() => {
    let ended = false;
    (async () => {
      const [raw, trust] = await Promise.all([bytesOf(`${path}/envelopes/${encodeURIComponent(id)}/proof`), bytesOf(`${path}/trust`)]);
      const own = verifyProof(raw, trust);
      if (!ended) setFound({ raw, proof: JSON.parse(new TextDecoder().decode(raw)) as ProofFile, own });
    })().catch((error) => !ended && setFound(error instanceof Problem ? error : new Problem(0, "Invalid", String((error as Error).message))));
    return () => void (ended = true);
  }, [channel, id, found instanceof Problem && !offline.value]);
  if (found instanceof Problem) return <Notice kind="bad"><strong>{found.message}</strong> {found.advice}</Notice>;
  if (found === null) return <Show of={{ data: undefined, error: undefined, reload: () => {} }}>{() => null}</Show>;
  const { proof, own } = found;
  const envelope = proof.envelope as Record<string, never> & { event_type: string; event_class: string; timestamp: string; correlation_id?: string; causality_chain?: string[]; payload: unknown; domain: string; origin_identity: { public_key: string } };
  const good = !own.steps.some((step) => step.status === "failed");
  return (
    <>
      <div class="head">
        <div><h1>{plain(envelope.event_type)}</h1><p>{plain(envelope.event_class)} in <a href={to.block(channel, proof.height)}>block {proof.height}</a> of <a href={to.channel(channel)}>{plain(channel)}</a>, <Time ms={Date.parse(envelope.timestamp)} both /></p></div>
        <div class="line"><Download path={`${path}/envelopes/${id}/proof`} name={`${id.slice(0, 12)}.proof.json`}>Proof file</Download></div>
      </div>
      <Notice kind={good ? "good" : "bad"}>
        <strong>{good ? "The proof holds." : "The proof does not hold."}</strong> Your browser recomputed every hash and signature below with the trust file of this channel; verdict: {own.verdict}.
      </Notice>
      <div class="columns">
      <Card title="The path from this envelope to the sealed root" note={`envelope ${proof.index} of ${proof.block.header.envelope_count}; ${proof.path.length} hashes`}>
        <div class="body stack"><MerklePath id={id} proof={proof} /></div>
      </Card>
      <div class="stack">
        <Card title="Recomputed here" note="in your browser" actions={<Badge state={own.verdict} />}><div class="body"><Steps steps={own.steps as ServerReport["steps"]} /></div></Card>
        <Card title="Verdict of the server" note="signature, policy, evidence and rules" actions={verdict.data && <Badge state={verdict.data.verdict} />}><div class="body"><Show of={verdict}>{(data) => <Steps steps={data.steps} />}</Show></div></Card>
      </div>
      </div>
      <div class="columns">
        <Card title="Payload" actions={<Copy text={JSON.stringify(envelope.payload, null, 2)} label="payload" />}><div class="body"><Tree value={envelope.payload} /></div></Card>
        <Card title="Envelope" actions={<Copy text={JSON.stringify(envelope, null, 2)} label="envelope" />}>
          <div class="body stack">
            <Facts rows={[["Id", <Hash text={id} label="envelope id" length={30} />], ["Author", <a href={to.log(`ledger/${channel}`, { author: envelope.origin_identity.public_key })}><code>{envelope.origin_identity.public_key.slice(0, 24)}…</code></a>], ["Domain", plain(envelope.domain)], ["Correlation", envelope.correlation_id ? <a href={to.log(`ledger/${channel}`, { find: envelope.correlation_id })}>{plain(envelope.correlation_id)}</a> : null], ["Causes", envelope.causality_chain?.length ? envelope.causality_chain.map((each) => <a href={to.log(`ledger/${channel}`, { find: each })}>{plain(each)} </a>) : null]]} />
            <details class="tree"><summary>All members</summary><Tree value={envelope} /></details>
          </div>
        </Card>
      </div>
    </>
  );
}

async function bytesOf(path: string): Promise<Uint8Array> {
  return new Uint8Array(await (await send("GET", address(path))).arrayBuffer());
}

const [WIDTH, HEIGHT, GAP, LEFT, RIGHT] = [154, 38, 60, 79, 261];

/** The way up: at each level the two hashes that are hashed together, the one on the path in colour. */
export function MerklePath({ id, proof }: { id: string; proof: { index: number; path: string[]; block: { header: { merkle_root: string; envelope_count: number } } } }) {
  const { merkle_root: root, envelope_count: size } = proof.block.header;
  const steps = pathSteps(id, proof.index, size, proof.path);
  const nodes = [id, ...steps.map((each) => each.result)];
  const height = steps.length * GAP + HEIGHT + 2;
  const y = (level: number) => height - HEIGHT - 1 - level * GAP;
  const x = (level: number) => (level === steps.length ? (LEFT + RIGHT) / 2 : steps[level]!.side === "left" ? RIGHT : LEFT);
  const holds = nodes.at(-1) === root;
  const box = (kind: string, at: number, level: number, title: string, hash: string) => (
    <g class={kind}><rect x={at - WIDTH / 2} y={y(level)} width={WIDTH} height={HEIGHT} rx="7" /><text class="label" x={at} y={y(level) + 15} text-anchor="middle">{title}</text><text x={at} y={y(level) + 30} text-anchor="middle">{hash.slice(0, 20)}…</text></g>
  );
  return (
    <>
      <p class={holds ? "muted" : "failed"}>{holds ? "✓ The recomputed root equals the root in the sealed header:" : "✗ The recomputed root is not the root in the sealed header:"} <code title={root}>{root.slice(0, 20)}…</code></p>
      <svg class="merkle" viewBox={`0 0 340 ${height}`} role="img" aria-label={`Merkle path of ${steps.length} steps; the root ${holds ? "matches" : "does not match"}`}>
        {steps.map((step, level) => {
          const [own, other] = [x(level), LEFT + RIGHT - x(level)];
          return (
            <>
              <line x1={other} x2={x(level + 1)} y1={y(level)} y2={y(level + 1) + HEIGHT} />
              <line class="own" x1={own} x2={x(level + 1)} y1={y(level)} y2={y(level + 1) + HEIGHT} />
              {box("", other, level, `sibling on the ${step.side}`, step.sibling)}
            </>
          );
        })}
        {nodes.map((node, level) => {
          const last = level === steps.length;
          return box(last ? (holds ? "root" : "wrong") : "own", x(level), level, level === 0 ? (last ? "envelope = root" : "this envelope") : last ? "recomputed root" : `node ${level}`, node);
        })}
      </svg>
    </>
  );
}
