/** The address is the state: every page is a path, every filter a query member. */
import { signal } from "@preact/signals";

export interface Place {
  path: string;
  query: URLSearchParams;
}

const here = (): Place => ({ path: location.pathname, query: new URLSearchParams(location.search) });

export const place = signal<Place>(here());

export function go(href: string, replace = false): void {
  if (href !== location.pathname + location.search) history[replace ? "replaceState" : "pushState"](null, "", href);
  place.value = here();
}

/** Change some query members; null removes one. Small changes replace the entry, so that Back leaves the page. */
export function setQuery(changes: Record<string, string | null>, push = false): void {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  go(location.pathname + (text ? `?${text}` : ""), !push);
}

addEventListener("popstate", () => (place.value = here()));
addEventListener("click", (event) => {
  const link = event.target instanceof Element ? event.target.closest("a") : null;
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  if (link.origin !== location.origin || link.target || link.hasAttribute("download") || /^\/(api|docs|metrics|openapi)/.test(link.pathname)) return;
  event.preventDefault();
  const same = link.pathname === location.pathname;
  go(link.pathname + link.search);
  if (!same) scrollTo(0, 0);
});

const segment = (text: string) => encodeURIComponent(text);

/** Paths of things. Names may hold any character. */
export const to = {
  log: (log: string, query: Record<string, string> = {}) => `/logs/${log.split("/").map(segment).join("/")}${ask(query)}`,
  event: (ns: string, ulid: string) => to.log(`shiplog/${ns}`, { at: ulid }),
  channel: (name: string) => `/ledger/${segment(name)}`,
  block: (name: string, height: number) => `/ledger/${segment(name)}/${height}`,
  envelope: (name: string, id: string) => `/ledger/${segment(name)}/envelope/${id}`,
  gossip: (topic: string, query: Record<string, string> = {}) => `/gossip/${segment(topic)}${ask(query)}`,
  deployments: (query: Record<string, string> = {}) => `/deployments${ask(query)}`,
  sql: (query: string) => `/pipeline${ask({ sql: query })}`,
};

export function ask(query: Record<string, string>): string {
  const text = new URLSearchParams(query).toString();
  return text ? `?${text}` : "";
}
