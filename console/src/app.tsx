import { signal } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { needsToken, offline, setToken, token, useData, type Overview } from "./api.ts";
import { count, engineOf, plain, utc, zoneName } from "./format.ts";
import icon from "./icon.svg";
import { Consumers } from "./pages/consumers.tsx";
import { Deployments } from "./pages/deployments.tsx";
import { Gossip } from "./pages/gossip.tsx";
import { Ledger } from "./pages/ledger.tsx";
import { Logs } from "./pages/logs.tsx";
import { OverviewPage } from "./pages/overview.tsx";
import { Pipeline } from "./pages/pipeline.tsx";
import { SchemaPage } from "./pages/schema.tsx";
import { Verify } from "./pages/verify.tsx";
import { Icon } from "./parts/icons.tsx";
import { Dialog, Empty, Engine, Notice, toast } from "./parts/ui.tsx";
import { go, place, to } from "./router.ts";

const PAGES: [path: string, name: string, icon: string][] = [
  ["/", "Overview", "overview"],
  ["/logs", "Logs", "logs"],
  ["/deployments", "Deployments", "deployments"],
  ["/ledger", "Ledger", "ledger"],
  ["/gossip", "Gossip", "gossip"],
  ["/consumers", "Consumers", "consumers"],
  ["/pipeline", "Pipeline", "pipeline"],
  ["/verify", "Verify", "verify"],
];
const help = signal(false);

export function App() {
  const overview = useData<Overview>("/overview", {}, 5_000);
  const parts = place.value.path.split("/").filter(Boolean).map(decode);
  const name = parts[0] ?? "";
  useKeys();
  const anonymous = overview.data?.guarded && !overview.data.identity.known;
  useEffect(() => {
    if (anonymous) needsToken.value = true;
  }, [anonymous]);
  useEffect(() => {
    const page = PAGES.find(([path]) => path === `/${name}`)?.[1] ?? "Overview";
    document.title = [...parts.slice(1).reverse(), page, "ropewalk"].map(plain).join(" · ");
  });
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), event.stopPropagation(), document.getElementById("main")?.focus())}>Skip to content</a>
      <div class="shell">
        <Side name={name} overview={overview.data} />
        <div class="main">
          <Top parts={parts} overview={overview.data} />
          <main id="main" class="page" tabIndex={-1}>
            {offline.value && <Notice kind="bad"><strong>The server does not answer.</strong> What you see is from before; this page tries again by itself.</Notice>}
            {overview.data?.fault && <Notice kind="bad"><strong>The server cannot do its work:</strong> {plain(overview.data.fault)}</Notice>}
            <Page name={name} rest={parts.slice(1)} overview={overview.data} />
          </main>
        </div>
      </div>
      <Help />
      <SignIn />
      <div aria-live="polite">{toast.value && <div class="toast">{toast.value}</div>}</div>
    </>
  );
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function Page({ name, rest, overview }: { name: string; rest: string[]; overview?: Overview }) {
  switch (name) {
    case "": return <OverviewPage overview={overview} />;
    case "logs": return <Logs log={rest.join("/")} overview={overview} />;
    case "deployments": return <Deployments part={rest[0] ?? ""} />;
    case "ledger": return <Ledger rest={rest} overview={overview} />;
    case "gossip": return <Gossip topic={rest[0] ?? null} overview={overview} />;
    case "consumers": return <Consumers overview={overview} />;
    case "pipeline": return <Pipeline overview={overview} />;
    case "verify": return <Verify />;
    case "schemas": return <SchemaPage name={rest.join("/")} />;
    default: return <Empty title="This page does not exist">Choose a page on the left.</Empty>;
  }
}

function Side({ name, overview }: { name: string; overview?: Overview }) {
  useEffect(() => document.querySelector(".nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" }), [name]);
  const counts: Record<string, number> = { "/logs": overview?.logs.length ?? 0 };
  return (
    <header class="side">
      <a class="brand" href="/"><img src={icon} alt="" /><span>ropewalk</span></a>
      <nav class="nav" aria-label="Pages">
        {PAGES.map(([path, title, symbol]) => (
          <a href={path} aria-current={path === `/${name}` ? "page" : undefined}>
            <Icon name={symbol} />
            {title}
            {counts[path] ? <span class="count badge plain">{counts[path]}</span> : null}
          </a>
        ))}
      </nav>
      <footer>
        {overview && (
          <span class="line">
            <span class={`dot${offline.value ? "" : " live"}`} />
            {offline.value ? "no connection" : overview.guarded ? (overview.identity.known ? `signed in as ${plain(overview.identity.name)}` : "not signed in") : "local server"}
          </span>
        )}
        {overview?.guarded && !overview.identity.known && <button class="quiet" onClick={() => (needsToken.value = true)}>Sign in</button>}
        {overview?.guarded && token.value && <button class="quiet" onClick={() => setToken(null)}>Sign out</button>}
        <button class="quiet" onClick={() => { utc.value = !utc.value; localStorage.setItem("ropewalk-zone", utc.value ? "utc" : "local"); }} title="Switch between your zone and UTC">
          Times in {zoneName()}
        </button>
        {overview && <span>ropewalk {overview.version} · <a href="/docs">API</a></span>}
      </footer>
    </header>
  );
}

function Top({ parts, overview }: { parts: string[]; overview?: Overview }) {
  const trail: [string, string][] = [["/", "Overview"]];
  let path = "";
  parts.forEach((part, at) => {
    path += `/${encodeURIComponent(part)}`;
    if (part !== "envelope") trail.push([path, at ? plain(/^[0-9a-f]{40,}$/.test(part) ? `${part.slice(0, 12)}…` : part) : part[0]!.toUpperCase() + part.slice(1)]);
  });
  return (
    <div class="top">
      <nav class="crumbs" aria-label="Breadcrumbs">
        {trail.slice(parts.length ? 1 : 0).map(([href, text], at, all) => (
          <>
            {at > 0 && <span aria-hidden="true">/</span>}
            {at < all.length - 1 ? <a href={href}>{text}</a> : <span aria-current="location">{text}</span>}
          </>
        ))}
      </nav>
      <Finder overview={overview} />
      <button class="quiet" aria-label="Switch between light and dark" title="Light or dark" onClick={switchTheme}><Icon name="theme" /></button>
      <button class="quiet" aria-label="Keyboard help" title="Keyboard help (?)" onClick={() => (help.value = true)}><Icon name="help" /></button>
    </div>
  );
}

const theme = localStorage.getItem("ropewalk-theme");
if (theme) document.documentElement.dataset.theme = theme;

function switchTheme(): void {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("ropewalk-theme", root.dataset.theme);
  dispatchEvent(new Event("themechange"));
}

/** Find a log by name, or go to an event, envelope or message by its id. */
function Finder({ overview }: { overview?: Overview }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const input = useRef<HTMLInputElement>(null);
  const found = useMemo(() => choices(text.trim(), overview), [text, overview]);
  const leave = () => (setText(""), setAt(0), input.current?.blur());
  return (
    <div class="finder" role="search">
      <input
        ref={input}
        type="search"
        id="find"
        placeholder="Find a log, page or id"
        aria-label="Find a log, page or id"
        autocomplete="off"
        value={text}
        onInput={(event) => (setText(event.currentTarget.value), setAt(0))}
        onKeyDown={(event) => {
          if (event.key === "Escape") leave();
          if (event.key === "ArrowDown") setAt(Math.min(at + 1, found.length - 1)), event.preventDefault();
          if (event.key === "ArrowUp") setAt(Math.max(at - 1, 0)), event.preventDefault();
          if (event.key === "Enter" && found[at]) go(found[at].href), leave();
        }}
      />
      {!text && <kbd aria-hidden="true">/</kbd>}
      {text && (
        <div class="card choices">
          {found.map((each, number) => (
            <a href={each.href} aria-selected={number === at} onClick={leave}>
              {each.log ? <Engine log={each.log} /> : <span>{plain(each.name)}</span>}
              <span class="muted">{each.note}</span>
            </a>
          ))}
          {!found.length && <div class="empty">No log or page has this name.</div>}
        </div>
      )}
    </div>
  );
}

interface Choice { href: string; name: string; note: string; log?: string }

function choices(text: string, overview?: Overview): Choice[] {
  if (!text) return [];
  const found: Choice[] = [];
  const logs = overview?.logs ?? [];
  if (/^[0-9A-HJKMNP-TV-Z]{26}$/i.test(text))
    for (const each of logs) if (/^(shiplog|messages)\//.test(each.log)) found.push({ href: to.log(each.log, { at: text.toUpperCase() }), name: text, note: `event of ${each.log}` });
  if (/^[0-9a-f]{64}$/.test(text))
    for (const each of logs) if (engineOf(each.log) === "ledger") found.push({ href: to.envelope(each.log.slice(7), text), name: text.slice(0, 12), note: `envelope of ${each.log}` });
  const words = text.toLowerCase();
  for (const each of logs) if (each.log.toLowerCase().includes(words)) found.push({ href: to.log(each.log), name: each.log, log: each.log, note: `${count(each.entries)} entries` });
  for (const [path, name] of PAGES) if (name.toLowerCase().includes(words)) found.push({ href: path, name, note: "page" });
  return found.slice(0, 12);
}

function useKeys(): void {
  useEffect(() => {
    const pressed = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, textarea, select, dialog[open]")) return;
      if (event.key === "/") {
        event.preventDefault();
        document.getElementById("find")?.focus();
      } else if (event.key === "?") help.value = true;
      else if (event.key === "j" || event.key === "k") move(event.key === "j" ? 1 : -1);
      else if (event.key >= "1" && event.key <= "8") go(PAGES[Number(event.key) - 1]![0]);
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

/** Move along the rows of the page: open events by their link, focus the links of other tables. */
function move(step: number): void {
  if (dispatchEvent(new CustomEvent("move", { detail: step, cancelable: true }))) {
    const links = [...document.querySelectorAll<HTMLElement>("main tbody tr a:first-of-type, main .board a.cell, main .graph a")];
    const at = links.indexOf(document.activeElement as HTMLElement);
    links[Math.min(Math.max(at + step, 0), links.length - 1)]?.focus();
  }
}

function Help() {
  const rows = [["/", "Find a log, page or id"], ["j  k", "Next or previous row"], ["1 … 8", "Go to a page"], ["Space", "Pause or continue the live tail"], ["f", "Go to the filters of a log"], ["Enter", "Open what has the focus"], ["?", "This help"]];
  return (
    <Dialog title="Keyboard" open={help.value} close={() => (help.value = false)}>
      <table>
        <tbody>{rows.map(([key, text]) => <tr><td><kbd>{key}</kbd></td><td>{text}</td></tr>)}</tbody>
      </table>
      <div class="actions"><button onClick={() => (help.value = false)}>Close</button></div>
    </Dialog>
  );
}

function SignIn() {
  const [text, setText] = useState("");
  return (
    <Dialog title="Sign in" open={needsToken.value} close={() => (needsToken.value = false)}>
      <p class="muted">This server asks for a token. An operator makes one with <code>ropewalk auth add NAME --right LOG:read</code>. It stays in this tab only.</p>
      <label class="field">Token<input type="password" value={text} autocomplete="off" onInput={(event) => setText(event.currentTarget.value)} onKeyDown={(event) => event.key === "Enter" && setToken(text.trim())} /></label>
      <div class="actions">
        <button onClick={() => (needsToken.value = false)}>Cancel</button>
        <button class="primary" onClick={() => setToken(text.trim())}>Sign in</button>
      </div>
    </Dialog>
  );
}
