/** A table of any length: only the rows in view are in the page. */
import type { ComponentChildren } from "preact";
import { go } from "../router.ts";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

export interface Column<T> {
  id: string;
  title: string;
  width: string;
  cell: (row: T) => ComponentChildren;
}

interface Props<T> {
  rows: T[];
  columns: Column<T>[];
  label: string;
  idOf: (row: T) => string;
  href: (row: T) => string;
  selected: string | null;
  fresh?: Set<string>;
  atEnd?: () => void;
  foot?: ComponentChildren;
}

const OVERSCAN = 12;

export function Rows<T>({ rows, columns, label, idOf, href, selected, fresh, atEnd, foot }: Props<T>) {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ top: 0, height: 700 });
  const [height, setHeight] = useState(36);
  useLayoutEffect(() => {
    const element = box.current!;
    const measure = () => {
      const room = innerHeight - element.getBoundingClientRect().top - scrollY - 34;
      element.style.setProperty("--vt-height", `${Math.max(320, Math.min(room, 1600))}px`);
      setHeight(parseFloat(getComputedStyle(element).getPropertyValue("--row")) || 36);
      setView({ top: element.scrollTop, height: element.clientHeight });
    };
    measure();
    addEventListener("resize", measure);
    return () => removeEventListener("resize", measure);
  }, []);
  const first = Math.max(0, Math.floor(view.top / height) - OVERSCAN);
  const last = Math.min(rows.length, Math.ceil((view.top + view.height) / height) + OVERSCAN);
  useEffect(() => {
    if (atEnd && last >= rows.length - 1) atEnd();
  }, [last, rows.length, atEnd]);
  const place = rows.findIndex((row) => idOf(row) === selected);
  useEffect(() => {
    const element = box.current;
    if (!element || place < 0) return;
    const top = place * height;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + height * 2 > element.scrollTop + element.clientHeight) element.scrollTop = top - element.clientHeight + height * 2;
  }, [selected, place < 0]);
  const grid = columns.map((each) => each.width).join(" ");
  const minWidth = `${columns.reduce((sum, each) => sum + parseInt(/\d+(?=px)/.exec(each.width)?.[0] ?? "0"), 0)}px`;
  return (
    <div class="vt" ref={box} role="table" aria-label={label} aria-rowcount={rows.length + 1} tabIndex={0} onScroll={(event) => setView({ top: event.currentTarget.scrollTop, height: event.currentTarget.clientHeight })}>
      <div class="vt-head" role="rowgroup" style={{ minWidth }}>
        <div class="vt-row" role="row" aria-rowindex={1} style={{ gridTemplateColumns: grid }}>
          {columns.map((each) => <span role="columnheader">{each.title}</span>)}
        </div>
      </div>
      <div class="vt-body" role="rowgroup" style={{ minWidth, height: `${rows.length * height}px` }}>
        {rows.slice(first, last).map((row, at) => {
          const id = idOf(row);
          return (
            <div key={id} class={`vt-row${fresh?.has(id) ? " fresh" : ""}`} role="row" aria-rowindex={first + at + 2} aria-selected={id === selected} style={{ gridTemplateColumns: grid, top: `${(first + at) * height}px` }} onClick={(event) => !(event.target as Element).closest("a") && go(href(row))}>
              {columns.map((each, number) => <span role="cell">{number ? each.cell(row) : <a class="row-link" href={href(row)}>{each.cell(row)}</a>}</span>)}
            </div>
          );
        })}
      </div>
      {foot}
    </div>
  );
}
