import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Loaded, Report } from "../api.ts";
import { absolute, clock, engineOf, nameOf, plain, relative, short } from "../format.ts";
import { Icon } from "./icons.tsx";

export const toast = signal("");
let toastTimer = 0;
export function say(text: string): void {
  toast.value = text;
  clearTimeout(toastTimer);
  toastTimer = window.setTimeout(() => (toast.value = ""), 1_800);
}

export async function copy(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied");
  } catch {
    say("The browser does not allow copying here");
  }
}

export function Copy({ text, label }: { text: string; label: string }) {
  return (
    <button type="button" class="copy" aria-label={`Copy ${label}`} title={`Copy ${label}`} onClick={(event) => (event.preventDefault(), event.stopPropagation(), void copy(text))}>
      <Icon name="copy" />
    </button>
  );
}

export function Hash({ text, label, href, length = 12 }: { text: string; label: string; href?: string; length?: number }) {
  const body = <code title={text}>{plain(short(text, length))}</code>;
  return (
    <span class="hash">
      {href ? <a href={href}>{body}</a> : body}
      <Copy text={text} label={label} />
    </span>
  );
}

export function Time({ ms, both = false }: { ms: number; both?: boolean }) {
  return (
    <time dateTime={new Date(ms).toISOString()} title={absolute(ms)} class="nowrap">
      {both ? (
        <>
          {clock(ms)} <span class="muted">· {relative(ms)}</span>
        </>
      ) : (
        relative(ms)
      )}
    </time>
  );
}

const GOOD = new Set(["success", "passed", "ok", "override", "finalize", "valid"]);
const BAD = new Set(["failed", "error", "page", "refused", "invalid"]);
const WARN = new Set(["revert", "ticket", "untrusted", "partly", "pending", "behind", "changed"]);

/** A state as icon and word, so that colour is never the only sign. */
export function Badge({ state, text }: { state: string; text?: string }) {
  const kind = GOOD.has(state) ? "good" : BAD.has(state) ? "bad" : WARN.has(state) ? "warn" : "";
  const icon = kind === "good" ? "check" : kind === "bad" ? "cross" : kind === "warn" ? "warn" : "dash";
  return (
    <span class={`badge ${kind}`}>
      <Icon name={icon} />
      {plain(text ?? state)}
    </span>
  );
}

export function Engine({ log, href }: { log: string; href?: string }) {
  const engine = engineOf(log);
  const name = plain(nameOf(log));
  return <span class={`engine ${engine}`} title={log}>{href ? <a href={href}>{name}</a> : name}</span>;
}

export function Card({ title, note, actions, children, label }: { title?: ComponentChildren; note?: ComponentChildren; actions?: ComponentChildren; children?: ComponentChildren; label?: string }) {
  return (
    <section class="card" aria-label={label ?? (typeof title === "string" ? title : undefined)}>
      {title && (
        <header>
          <div>
            <h2>{title}</h2>
            {note && <p>{note}</p>}
          </div>
          {actions && <div class="line">{actions}</div>}
        </header>
      )}
      {children}
    </section>
  );
}

export function Tile({ name, value, note, href, bad }: { name: ComponentChildren; value: ComponentChildren; note?: ComponentChildren; href?: string; bad?: boolean }) {
  const body = (
    <>
      <span class="tile-name">{name}</span>
      <span class="tile-value">{value}</span>
      {note && <small>{note}</small>}
    </>
  );
  const kind = `card tile${bad ? " bad" : ""}`;
  return href ? (
    <a class={kind} href={href}>
      {body}
    </a>
  ) : (
    <div class={kind}>{body}</div>
  );
}

export function Empty({ title, children, command }: { title: string; children?: ComponentChildren; command?: string }) {
  return (
    <div class="empty">
      <strong>{title}</strong>
      {children && <p>{children}</p>}
      {command && <Command text={command} />}
    </div>
  );
}

export function Command({ text }: { text: string }) {
  return (
    <div class="command">
      <code>{text}</code>
      <Copy text={text} label="command" />
    </div>
  );
}

export function Notice({ kind, children }: { kind: "bad" | "warn" | "good" | "info"; children: ComponentChildren }) {
  const icon = { bad: "cross", warn: "warn", good: "check", info: "info" }[kind];
  return (
    <div class={`notice ${kind}`} role={kind === "bad" ? "alert" : "status"}>
      <Icon name={icon} />
      <div>{children}</div>
    </div>
  );
}

/** Show what was loaded, or why it could not be, or that it is on its way. */
export function Show<T>({ of, children }: { of: Loaded<T>; children: (data: T) => ComponentChildren }) {
  if (of.data !== undefined) return <>{children(of.data)}</>;
  if (of.error)
    return (
      <Notice kind={of.error.status === 403 || of.error.status === 401 ? "warn" : "bad"}>
        <strong>{of.error.message}</strong>
        {of.error.advice && <p class="muted">{of.error.advice}</p>}
      </Notice>
    );
  return (
    <div class="loading" role="status" aria-label="Loading">
      <i /><i /><i />
    </div>
  );
}

export function Facts({ rows }: { rows: [string, ComponentChildren][] }) {
  return (
    <dl class="facts">
      {rows.filter(([, value]) => value !== null && value !== undefined).map(([name, value]) => (
        <>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </>
      ))}
    </dl>
  );
}

const WORDS: Record<string, string> = { passed: "passed", failed: "failed", not_checked: "not checked" };

export function Steps({ steps }: { steps: Report["steps"] }) {
  return (
    <ol class="steps">
      {steps.map((step) => (
        <li class={step.status}>
          <Icon name={{ passed: "check", failed: "cross", not_checked: "dash" }[step.status] ?? "dash"} />
          <span>
            {plain(step.name.replaceAll("_", " "))}
            <span class="visually-hidden">: {WORDS[step.status]}</span>
          </span>
          <span>{plain(step.detail || WORDS[step.status] || "")}</span>
        </li>
      ))}
    </ol>
  );
}

export function Spark({ values, label }: { values: number[]; label: string }) {
  const top = Math.max(1, ...values);
  const width = 140 / values.length;
  return (
    <svg class="spark" viewBox="0 0 140 26" preserveAspectRatio="none" role="img" aria-label={label}>
      <title>{label}</title>
      <path d="M0 25.5H140" stroke="var(--line-strong)" fill="none" />
      {values.map((value, at) => value > 0 && (
        <rect x={at * width + 0.3} width={Math.max(1, width - 0.6)} y={25 - (value / top) * 24} height={(value / top) * 24} fill="var(--engine, var(--accent))" rx="0.6" />
      ))}
    </svg>
  );
}

export function Dialog({ title, open, close, children }: { title: string; open: boolean; close: () => void; children: ComponentChildren }) {
  const ref = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (open && !ref.current?.open) ref.current?.showModal();
    if (!open && ref.current?.open) ref.current.close();
  }, [open]);
  return (
    <dialog ref={ref} onClose={close} aria-label={title} onClick={(event) => event.target === ref.current && close()}>
      {open && (
        <div class="stack">
          <h1>{title}</h1>
          {children}
        </div>
      )}
    </dialog>
  );
}
