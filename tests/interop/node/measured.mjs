// The npm GossipLog, measured by its own clock. One JSON request a line in, one JSON answer a line out.
// Logs are in memory and named; `directory` puts one on disk.
import readline from "node:readline";
import { GossipLog } from "@canvas-js/gossiplog/sqlite";
import { ed25519 } from "@canvas-js/signatures";

const topic = "com.example.bench";
const logs = new Map();
const open = (name, directory = null) => {
	const log = new GossipLog({ directory, topic, apply: () => {}, signer: ed25519.create() });
	logs.set(name, log);
	return log;
};
const payload = (i) => ({ index: i, text: `hello ${i}` });
const timed = async (act) => {
	const start = performance.now();
	const before = process.cpuUsage();
	const count = await act();
	const { user, system } = process.cpuUsage(before);
	return { seconds: (performance.now() - start) / 1000, cpu: (user + system) / 1e6, count };
};
const pull = (target, source) => source.serve((snapshot) => target.sync(snapshot));

const jobs = {
	async append({ log, n, directory }) {
		const target = logs.get(log) ?? open(log, directory ?? null);
		return timed(async () => {
			for (let i = 0; i < n; i++) await target.append(payload(i));
			return n;
		});
	},
	async insert({ from, n, directory }) {
		const values = [];
		for await (const signed of logs.get(from).iterate({ limit: n })) values.push(signed.value);
		const target = open("insert", directory ?? null);
		return timed(async () => {
			for (const value of values) await target.insert(target.decode(value));
			return values.length;
		});
	},
	async pull({ into, from }) {
		const target = logs.get(into) ?? open(into);
		return timed(async () => (await pull(target, logs.get(from))).messageCount);
	},
	async both({ one, two }) {
		return timed(async () => {
			const there = await pull(logs.get(one), logs.get(two));
			const back = await pull(logs.get(two), logs.get(one));
			return there.messageCount + back.messageCount;
		});
	},
	async iterate({ log }) {
		return timed(async () => {
			let count = 0;
			for await (const _ of logs.get(log).iterate()) count++;
			return count;
		});
	},
	async root({ log }) {
		const root = logs.get(log).tree.read((txn) => txn.getRoot());
		const { level, hash } = await root;
		return { level, hash: Buffer.from(hash).toString("hex") };
	},
};

for await (const line of readline.createInterface({ input: process.stdin })) {
	const { job, ...rest } = JSON.parse(line);
	const answer = await jobs[job](rest);
	process.stdout.write(JSON.stringify(answer) + "\n");
}
process.exit(0);
