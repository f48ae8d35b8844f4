const PATHS: Record<string, string> = {
  overview: "M3 12a9 9 0 1 1 18 0M12 12l4-4M3 12h2m14 0h2M12 3v2M5.6 5.6 7 7",
  logs: "M5 6h14M5 12h14M5 18h9",
  deployments: "M12 3c4 2 6 6 5 11l-2 2H9l-2-2C6 9 8 5 12 3zM9 19l-1 2m7-2 1 2m-4-11v.01",
  ledger: "M4 8l8-5 8 5-8 5zM4 8v8l8 5 8-5V8M12 13v8",
  gossip: "M6 6a2 2 0 1 0 .01 0M18 8a2 2 0 1 0 .01 0M9 18a2 2 0 1 0 .01 0M7.7 7.4l8.4 2M7 9.8l1.6 6.4m2-.2 6-4.8",
  consumers: "M4 5h16M4 12h10M4 19h6m8-10v10m0 0-3-3m3 3 3-3",
  pipeline: "M4 6c0-1.7 3.6-3 8-3s8 1.3 8 3-3.6 3-8 3-8-1.3-8-3zm0 0v12c0 1.7 3.6 3 8 3s8-1.3 8-3V6M4 12c0 1.7 3.6 3 8 3s8-1.3 8-3",
  verify: "M12 3l8 3v6c0 5-3.5 8-8 9-4.5-1-8-4-8-9V6zM8.5 12l2.5 2.5 4.5-5",
  check: "M4 12.5l5 5L20 6.5",
  cross: "M6 6l12 12M18 6L6 18",
  dash: "M6 12h12",
  warn: "M12 4l9 16H3zM12 10v4m0 3v.01",
  info: "M12 3a9 9 0 1 0 .01 0M12 11v6m0-9v.01",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  pause: "M8 5v14M16 5v14",
  play: "M7 5l12 7-12 7z",
  theme: "M12 3a9 9 0 1 0 .01 0M12 3v18",
  help: "M9 9a3 3 0 1 1 4 3c-.7.4-1 1-1 2m0 3v.01",
  up: "M12 19V6m-6 6 6-6 6 6",
  undo: "M9 7L4 12l5 5M4 12h10a6 6 0 0 1 6 6",
  arrow: "M5 12h14m-5-5 5 5-5 5",
};

export function Icon({ name, ...rest }: { name: string; style?: Record<string, string> }) {
  return (
    <svg viewBox="0 0 24 24" fill="none" stroke="currentColor" stroke-width="1.9" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true" {...rest}>
      <path d={PATHS[name]} />
    </svg>
  );
}
