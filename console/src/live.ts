/** Wake-ups of a log: the stream says that something is new, the API says what. */
import { subscribe } from "../../clients/js/src/stream.ts";
import { token } from "./api.ts";
import { engineOf, nameOf } from "./format.ts";

const POLL_MS = 2_000;
const SETTLE_MS = 120;
const STATES = { open: "live", waiting: "reconnecting", closed: "closed" };

/** Call `news` whenever the log grows and `state` with how the connection is. Return what ends it. */
export function follow(log: string, news: () => void, state: (text: string) => void): () => void {
  let timer = 0;
  const wake = () => {
    if (!timer) timer = window.setTimeout(() => ((timer = 0), news()), SETTLE_MS);
  };
  if (engineOf(log) === "gossip") {
    const poll = window.setInterval(wake, POLL_MS); // the stream carries no gossip
    state("live");
    return () => (clearInterval(poll), clearTimeout(timer));
  }
  const stream = subscribe(location.origin, {
    topics: [engineOf(log) === "messages" ? nameOf(log) : log],
    token: token.value ?? undefined,
    onState: (found) => {
      state(STATES[found]);
      if (found === "open") wake(); // what came while there was no connection
    },
  });
  stream.forEach(wake).catch((error: Error) => state(error.message));
  return () => (stream.close(), clearTimeout(timer));
}
