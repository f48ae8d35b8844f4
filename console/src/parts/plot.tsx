import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { clock, day, utc } from "../format.ts";

export interface Series {
  name: string;
  color: string;
  values: (number | null)[];
  hatched?: boolean;
}

interface Props {
  times: number[];
  series: Series[];
  label: string;
  kind?: "bars" | "line";
  height?: number;
  stacked?: boolean;
  numeric?: boolean;
}

const color = (name: string) => {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
};

/** Stripes, so that a failure differs from a success without colour. */
function hatch(ink: string): CanvasPattern | string {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d")!;
  pen.strokeStyle = ink;
  pen.lineWidth = 2.4;
  for (const shift of [-6, 0, 6]) {
    pen.beginPath();
    pen.moveTo(shift, 6);
    pen.lineTo(shift + 6, 0);
    pen.stroke();
  }
  return pen.createPattern(tile, "repeat") ?? ink;
}

export function Plot({ times, series, label, kind = "bars", height = 180, stacked = false, numeric = false }: Props) {
  const box = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const element = box.current!;
    let plot: uPlot | undefined;
    const draw = () => {
      plot?.destroy();
      const first = times[0] ?? 0;
      const last = times.at(-1) ?? 0;
      const step = times.length > 1 ? (last - first) / (times.length - 1) : 1;
      const line = color("--line");
      const text = color("--muted");
      const sums = times.map(() => 0);
      const data = series.map((each) => each.values.map((value, at) => (stacked ? (sums[at] = (sums[at] ?? 0) + (value ?? 0)) : value)));
      const order = stacked ? series.map((_, at) => series.length - 1 - at) : series.map((_, at) => at);
      const axis = { stroke: text, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1, size: 4 }, font: "11.5px Inter, sans-serif" };
      plot = new uPlot(
        {
          width: element.clientWidth,
          height,
          legend: { show: false },
          cursor: { y: false, points: { show: kind === "line" } },
          tzDate: (seconds) => (utc.value ? uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC") : new Date(seconds * 1000)),
          scales: { x: { time: !numeric, range: (_plot, low, high) => [low, kind === "bars" ? high + step : high] }, y: { range: (_plot, low, high) => [Math.min(0, low), high > 0 ? high * 1.08 : 1] } },
          axes: [{ ...axis, grid: { show: false }, space: 76, values: numeric ? undefined : (_plot, splits) => splits.map((at) => (last - first > 2 * 86_400 ? day(at * 1000) : last - first < 900 ? clock(at * 1000).slice(-8) : clock(at * 1000).slice(-8, -3))) }, { ...axis, size: 46, space: 34 }],
          series: [
            {},
            ...order.map((at) => {
              const ink = color(series[at]!.color);
              return {
                label: series[at]!.name,
                stroke: ink,
                width: kind === "line" ? 2 : 1,
                fill: kind === "bars" ? () => (series[at]!.hatched ? hatch(ink) : ink) : undefined,
                paths: kind === "bars" ? uPlot.paths.bars!({ size: [0.78, 26], radius: 0.1, align: 1 }) : undefined,
                points: { show: kind === "line" && times.length < 60 },
              };
            }),
          ],
        },
        [times, ...order.map((at) => data[at]!)] as uPlot.AlignedData,
        element,
      );
    };
    draw();
    const watcher = new ResizeObserver(() => plot && plot.width !== element.clientWidth && element.clientWidth > 0 && plot.setSize({ width: element.clientWidth, height }));
    watcher.observe(element);
    const media = matchMedia("(prefers-color-scheme: dark)");
    media.addEventListener("change", draw);
    addEventListener("themechange", draw);
    return () => {
      watcher.disconnect();
      media.removeEventListener("change", draw);
      removeEventListener("themechange", draw);
      plot?.destroy();
    };
  }, [JSON.stringify([times, series, kind, height])]);
  return (
    <figure class="chart" aria-label={label} role="img">
      <div ref={box} />
    </figure>
  );
}

export function Legend({ series }: { series: { name: string; color: string; hatched?: boolean; note?: string }[] }) {
  return (
    <div class="legend">
      {series.map((each) => (
        <span>
          <i style={{ background: each.hatched ? `repeating-linear-gradient(135deg, var(${each.color}) 0 2px, transparent 2px 4px)` : `var(${each.color})` }} />
          {each.name} {each.note}
        </span>
      ))}
    </div>
  );
}
