// A GossipLog of the npm package in a browser, kept in IndexedDB; the page drives it by `window.peer`.
import { GossipLog } from "@canvas-js/gossiplog/idb";

const topic = new URLSearchParams(location.search).get("topic");
const log = await GossipLog.open({ topic, apply() {} });

window.peer = {
  append: async (payload) => (await log.append(payload)).id,
  connect: (url) => log.connect(url),
  async status() {
    const { hash } = await log.tree.read((txn) => txn.getRoot());
    const root = [...hash].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    return { root, count: await log.db.count("$messages") };
  },
};
