/** How far consumer groups were behind since the server started. */
import { useData } from "../api.ts";
import { count, nameOf, plain } from "../format.ts";
import { Legend, Plot } from "../parts/plot.tsx";
import { Card } from "../parts/ui.tsx";
import { place } from "../router.ts";

interface GroupLag {
  group: string;
  log: string;
  samples: { at_ms: number; behind: number | null }[];
}
export interface Lag {
  every_s: number;
  groups: GroupLag[];
}

const POLL_MS = 5_000;
const COLORS = ["--accent", "--messages", "--ledger", "--gossip", "--good", "--muted"];

export const useLag = () => useData<Lag>("/consumer-lag", {}, POLL_MS);

export const lagOf = (lag: Lag | undefined, group: string, log: string) => lag?.groups.find((each) => each.group === group && each.log === log)?.samples ?? [];

const worst = (each: GroupLag): number => Math.max(0, ...each.samples.map((sample) => sample.behind ?? 0));

/** A line for each group, or for the one in the address; a lag holds until the next sample. */
export function LagPlot({ lag }: { lag: Lag }) {
  const { query } = place.value;
  const chosen = lag.groups.filter((each) => each.group === query.get("group") && each.log === query.get("log"));
  const drawn = (chosen.length ? chosen : [...lag.groups].sort((a, b) => worst(b) - worst(a))).slice(0, COLORS.length);
  const times = [...new Set(drawn.flatMap((each) => each.samples.map((sample) => sample.at_ms)))].sort((a, b) => a - b);
  const series = drawn.map((each, at) => {
    let next = 0;
    let value: number | null = null;
    return {
      name: `${plain(each.group)} · ${plain(nameOf(each.log))}`,
      color: COLORS[at]!,
      note: `(at most ${count(worst(each))})`,
      values: times.map((time) => {
        for (; next < each.samples.length && each.samples[next]!.at_ms <= time; next++) value = each.samples[next]!.behind;
        return value;
      }),
    };
  });
  const left = lag.groups.length - drawn.length;
  const note = chosen.length ? "one group" : left > 0 ? `the ${drawn.length} groups that were furthest behind, of ${lag.groups.length}` : "";
  return (
    <Card title="Lag over time" note={`Events behind the head, sampled every ${lag.every_s} s since the server started${note ? `; ${note}` : ""}.`} actions={<>{chosen.length > 0 && <a href="/consumers">All groups</a>}<Legend series={series} /></>}>
      {times.length < 2 ? <p class="body muted">The first samples are on their way.</p> : <Plot times={times.map((ms) => ms / 1000)} series={series} kind="line" label={`Lag of ${series.map((each) => `${each.name} ${each.note}`).join("; ")}`} height={200} />}
    </Card>
  );
}

/** The lag of one group as a small line in a table. */
export function LagSpark({ samples, label }: { samples: Lag["groups"][number]["samples"]; label: string }) {
  const top = Math.max(1, ...samples.map((each) => each.behind ?? 0));
  const [first, last] = [samples[0]?.at_ms ?? 0, samples.at(-1)?.at_ms ?? 0];
  const path = samples.map((each, at) => `${at ? "L" : "M"}${last > first ? (((each.at_ms - first) / (last - first)) * 140).toFixed(1) : 0} ${(25 - ((each.behind ?? 0) / top) * 23).toFixed(1)}`).join("");
  return (
    <svg class="spark" viewBox="0 0 140 26" role="img" aria-label={label}>
      <path d="M0 25.5H140" stroke="var(--line-strong)" />
      <path d={path} fill="none" stroke="var(--accent)" stroke-width="1.8" />
    </svg>
  );
}
