// A GossipLog of the npm package, led by lines on stdin: {"do": …} in, {"done": …} out.
import { createInterface } from "node:readline";
import { GossipLog } from "@canvas-js/gossiplog/sqlite";
import { ed25519 } from "@canvas-js/signatures";

const [topic] = process.argv.slice(2);
const hex = (bytes) => Buffer.from(bytes).toString("hex");
const log = new GossipLog({ topic, apply() {} });
const say = (value) => process.stdout.write(JSON.stringify(value) + "\n");
const stop = new AbortController();
let writing = null;

const status = async () => {
  const root = await log.tree.read((txn) => txn.getRoot());
  const [clock, heads] = await log.getClock();
  const count = await log.db.count("$messages");
  return { root: { level: root.level, hash: hex(root.hash) }, clock, heads, count };
};

const acts = {
  status,
  // Another author writes on its own and is heard now and then, so that the log forks and joins.
  async fork({ count, every }) {
    const other = new GossipLog({ topic, apply() {} });
    const fresh = [];
    for (let n = 0; n < count; n++) {
      const payload = { n, text: `message ${n}`, raw: new Uint8Array([n & 255]) };
      if (n % 5 === 0) fresh.push(await other.append(payload));
      else await log.append(payload);
      if (n % every === every - 1) for (const signed of fresh.splice(0)) await log.insert(signed);
    }
    await other.close();
    return status();
  },
  async append({ payloads, codec }) {
    const ids = [];
    for (const payload of payloads) {
      const signer = codec === "dag-json" ? ed25519.create() : log.signer;
      if (codec === "dag-json") {
        const [clock, parents] = await log.getClock();
        const message = { topic, clock, parents, payload };
        const signed = log.encode(await signer.sign(message, { codec }), message);
        await log.insert(signed);
        ids.push(signed.id);
      } else {
        ids.push((await log.append(payload)).id);
      }
    }
    return { ids };
  },
  async insert({ raw }) {
    return log.insert(log.decode(Buffer.from(raw, "hex")));
  },
  async listen({ port }) {
    await log.listen(port, { signal: stop.signal });
    return { port };
  },
  async connect({ url }) {
    await log.connect(url, { signal: stop.signal });
    return { url };
  },
  // Writes until told to stop, without waiting for anybody.
  async write({ every_ms }) {
    let going = true;
    const loop = (async () => {
      let n = 0;
      for (; going; n++) {
        await log.append({ from: "node", n });
        await new Promise((resolve) => setTimeout(resolve, every_ms));
      }
      return n;
    })();
    writing = () => ((going = false), loop);
    return {};
  },
  async rest() {
    return { written: await writing() };
  },
  async dump() {
    const rows = [];
    for await (const signed of log.iterate()) rows.push([signed.id, hex(signed.value)]);
    return { rows };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { do: name, ...given } = JSON.parse(line);
  try {
    say({ done: name, ...(await acts[name](given)) });
  } catch (error) {
    say({ failed: name, error: String(error) });
  }
}
stop.abort();
await log.close();
process.exit(0);
