/** Schemas of payloads: those that a channel's policy declares, and those that ship with ropewalk. */
import { useData } from "../api.ts";
import { engineOf, nameOf, plain } from "../format.ts";
import { Tree } from "../parts/tree.tsx";
import { Badge, Card, Empty, Facts, Hash, Show } from "../parts/ui.tsx";
import { ask, place, to } from "../router.ts";
import type { Row } from "../sources.ts";

interface Rule {
  id: string;
  name: string;
  kind: string;
  decision: string;
  when?: { domains?: string[]; classes?: string[]; types?: string[] };
  schema?: { title?: string };
  [member: string]: unknown;
}
interface Policy {
  policy_hash: string | null;
  policy: { name: string; rules: Rule[] } | null;
}

const SHIPPED: Record<string, string> = { shiplog: "shiplog/event_envelope", messages: "message-plane/event_envelope" };
const ruleHref = (channel: string, id: string): string => `${to.channel(channel)}${ask({ rule: id })}`;
const usePolicy = (channel: string | null) => useData<Policy>(channel === null ? null : `/channels/${encodeURIComponent(channel)}/policy`);

/** Match names as rules do: `*`, `?` and sets in brackets. */
function matches(patterns: string[] | undefined, text: string): boolean {
  const regex = (each: string) => new RegExp(`^${each.replace(/[.+^${}()|\\]/g, "\\$&").replace(/\[!/g, "[^").replace(/\*/g, ".*").replace(/\?/g, ".")}$`, "su");
  try {
    return patterns === undefined || patterns.some((each) => regex(each).test(text));
  } catch {
    return false;
  }
}

/** The schema of an entry's payload, as a link to it. */
export function SchemaOf({ log, row }: { log: string; row: Row }) {
  const isLedger = engineOf(log) === "ledger";
  const policy = usePolicy(isLedger ? nameOf(log) : null);
  const shipped = SHIPPED[engineOf(log)];
  if (shipped) return <a href={`/schemas/${shipped}`}>{shipped}</a>;
  if (!isLedger || !policy.data) return null;
  const { domain, event_class, event_type } = row.raw as Record<string, string>;
  const found = (policy.data.policy?.rules ?? []).filter(({ kind, when }) => kind === "schema" && matches(when?.domains, domain!) && matches(when?.classes, event_class!) && matches(when?.types, event_type!));
  if (!found.length) return <span class="muted">none declared by the channel's policy</span>;
  return <>{found.map((each) => <a href={ruleHref(nameOf(log), each.id)}>{plain(each.schema?.title ?? each.name)} </a>)}</>;
}

/** The rules of a channel's policy; the one in the address is open. */
export function PolicyCard({ channel }: { channel: string }) {
  const found = usePolicy(channel);
  const chosen = place.value.query.get("rule");
  return (
    <Card title="Policy" note="the rules that every envelope and every act on this channel must satisfy">
      <Show of={found}>
        {({ policy, policy_hash: hash }) =>
          policy === null ? <Empty title="This channel has no policy">Give it one with <code>ropewalk ledger policy rotate</code>.</Empty> : (
            <div class="body stack">
              <Facts rows={[["Name", plain(policy.name)], ["Hash", <Hash text={hash!} label="policy hash" length={24} />]]} />
              {policy.rules.map((each) => (
                <details class="tree" open={each.id === chosen} ref={(element: HTMLElement | null) => void (each.id === chosen && element?.scrollIntoView({ block: "nearest" }))}>
                  <summary><strong>{plain(each.id)}</strong> <span class="muted">{plain(each.kind.replaceAll("_", " "))}</span> <Badge state={each.decision === "deny" ? "failed" : each.decision === "audit" ? "pending" : "ok"} text={each.decision} /></summary>
                  <Tree value={each} />
                </details>
              ))}
            </div>
          )
        }
      </Show>
    </Card>
  );
}

export function SchemaPage({ name }: { name: string }) {
  const found = useData<{ title?: string; description?: string }>(`/schemas/${name.split("/").map(encodeURIComponent).join("/")}`);
  return (
    <>
      <div class="head"><div><h1>{plain(name)}</h1><p>{found.data?.description ? plain(found.data.description) : "A schema that ships with ropewalk."}</p></div></div>
      <Show of={found}>{(data) => <Card title={plain(data.title ?? name)}><div class="body"><Tree value={data} /></div></Card>}</Show>
    </>
  );
}
