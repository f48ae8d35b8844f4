/** A JSON value as a tree. Every leaf can be copied and, where a log is shown, filtered by. */
import { plain } from "../format.ts";
import { Copy } from "./ui.tsx";

interface Props {
  value: unknown;
  path?: string;
  name?: string;
  depth?: number;
  filter?: (path: string, value: string) => string;
}

const CHILDREN_MAX = 200;

export function Tree({ value, path = "", name, depth = 0, filter }: Props) {
  const key = name !== undefined && <span class="key">{plain(name)}: </span>;
  if (value !== null && typeof value === "object") {
    const rows = Object.entries(value);
    const open = depth < 3;
    const note = Array.isArray(value) ? `[${rows.length}]` : `{${rows.length}}`;
    return (
      <div class={depth ? "" : "tree"}>
        <details open={open}>
          <summary>
            {key}
            <span class="muted">{note}</span>
          </summary>
          <ul>
            {rows.slice(0, CHILDREN_MAX).map(([each, item]) => (
              <li>
                <Tree value={item} name={each} path={path ? `${path}.${each}` : each} depth={depth + 1} filter={filter} />
                {(item === null || typeof item !== "object") && <Copy text={typeof item === "string" ? item : JSON.stringify(item)} label={each} />}
              </li>
            ))}
            {rows.length > CHILDREN_MAX && <li class="muted">and {rows.length - CHILDREN_MAX} more</li>}
          </ul>
        </details>
      </div>
    );
  }
  const kind = typeof value === "string" ? "string" : typeof value === "number" ? "number" : "other";
  const text = typeof value === "string" ? value : JSON.stringify(value);
  return (
    <div class={depth ? "leaf" : "tree"}>
      {filter && path ? (
        <a class="key" href={filter(path, String(text))} title={`Show events with ${path}=${text}`}>
          {plain(name ?? "")}:{" "}
        </a>
      ) : (
        key
      )}
      <span class={kind}>{typeof value === "string" ? `"${plain(text)}"` : text}</span>
    </div>
  );
}
