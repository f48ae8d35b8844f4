// The client against a real `ropewalk serve`; ROPEWALK_URL names it, ROPEWALK_CHANNEL a channel with blocks.

import assert from "node:assert/strict";
import { createServer, connect } from "node:net";
import { after, test } from "node:test";
import { Client, HttpProblem, fromHex, verify } from "../dist/ropewalk.js";

const url = process.env.ROPEWALK_URL;
const channel = process.env.ROPEWALK_CHANNEL;
const client = new Client({ url });
const closing = [];
after(() => closing.forEach((close) => close()));

/** A proxy whose connections can be cut, so that a stream must reconnect. */
async function cuttable() {
  const target = new URL(url);
  const sockets = new Set();
  const server = createServer((near) => {
    const far = connect(Number(target.port), target.hostname);
    for (const each of [near, far]) {
      sockets.add(each);
      each.on("error", () => undefined).on("close", () => sockets.delete(each));
    }
    near.pipe(far).pipe(near);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const cut = () => sockets.forEach((socket) => socket.destroy());
  closing.push(() => (server.close(), cut()));
  return { url: `http://127.0.0.1:${server.address().port}`, cut };
}

test("an event is appended once under one key and read back", async () => {
  const draft = { type: "order.placed", payload: { n: 1, text: "é" } };
  const first = await client.appendEvent("js.orders", draft, { idempotencyKey: "one" });
  const second = await client.appendEvent("js.orders", draft, { idempotencyKey: "one" });
  assert.equal(second.ulid, first.ulid);
  const { events } = await client.readEvents("js.orders");
  assert.deepEqual(events.map((event) => event.envelope.payload), [{ n: 1, text: "é" }]);
  assert.equal((await client.showEvent("js.orders", first.ulid)).content_id, first.content_id);
});

test("pages follow one another to the last event", async () => {
  await client.appendEvents("js.pages", Array.from({ length: 25 }, (_, n) => ({ type: "n", payload: { n } })));
  const seen = [];
  for await (const event of client.events("js.pages", { limit: 10 })) seen.push(event.envelope.payload.n);
  assert.deepEqual(seen, Array.from({ length: 25 }, (_, n) => n));
});

test("a refusal is a typed problem", async () => {
  await assert.rejects(client.appendEvent("js.bad", { type: "", payload: {} }), (error) => {
    assert.ok(error instanceof HttpProblem);
    assert.ok(error.status >= 400 && error.status < 500 && error.code && error.detail && error.advice !== undefined);
    return true;
  });
  await assert.rejects(client.showChannel("nothing.here"), { code: "NotFound", status: 404 });
});

test("messages and gossip go both ways", async () => {
  await client.publishMessage("js/jobs", { type: "made", payload: { n: 7 } });
  const { messages } = await client.readMessages("js/jobs");
  assert.deepEqual(JSON.parse(atob(messages[0].canonical_json)).payload, { n: 7 });
  const receipt = await client.appendGossip("js.chat", { text: "hello" });
  const page = await client.readGossip("js.chat");
  assert.deepEqual(page.messages.map((each) => [each.id, each.payload]), [[receipt.id, { text: "hello" }]]);
  assert.deepEqual((await client.gossipHeads("js.chat")).heads, [receipt.id]);
});

for (const transport of ["websocket", "sse"]) {
  test(`${transport}: every event comes once and in order, whatever is cut`, async () => {
    const ns = `js.live.${transport}`;
    const proxy = await cuttable();
    const [states, reasons] = [[], []];
    const stream = new Client({ url: proxy.url }).subscribe({ topics: [`shiplog/${ns}`], transport, onState: (state, reason) => (states.push(state), reason && reasons.push(reason)) });
    while (!states.includes("open")) await new Promise((resolve) => setTimeout(resolve, 20));
    const total = 1_200; // more than may be outstanding without credit
    const seen = [];
    const writing = (async () => {
      for (let n = 0; n < total; n += 200) {
        while (n - seen.length > 600) await new Promise((resolve) => setTimeout(resolve, 20)); // the server keeps 1,000 frames
        await client.appendEvents(ns, Array.from({ length: 200 }, (_, at) => ({ type: "n", payload: { n: n + at } })));
        if (n === 400 || n === 800) proxy.cut();
      }
    })();
    for await (const item of stream) {
      assert.equal(item.kind, "bus.event", JSON.stringify(item));
      seen.push(item.payload.n);
      if (seen.length === total) break;
    }
    await writing;
    assert.deepEqual(seen, Array.from({ length: total }, (_, n) => n));
    assert.ok(states.filter((state) => state === "open").length > 1, states.join());
    assert.equal(reasons.length, states.filter((state) => state === "waiting").length);
  });
}

test("frames that are gone are reported as lost", async () => {
  const stream = client.subscribe({ topics: ["shiplog/js.lost"], sinceSeq: 1 });
  for await (const item of stream) {
    assert.equal(item.kind, "lost");
    assert.ok(item.seq > 1);
    break;
  }
});

test("a pattern that is none ends the stream with an error", async () => {
  await assert.rejects(client.subscribe({ refs: ["not-a-ref"], transport: "websocket" }).forEach(() => undefined), { code: "Invalid" });
});

test("what the server hands out verifies under its trust file", async () => {
  const trust = await client.trust(channel);
  const { blocks } = await client.readBlocks(channel);
  const ids = blocks.flatMap((block) => block.envelopes);
  assert.ok(ids.length > 1);
  const bundle = await client.bundle(channel);
  const report = verify(bundle, { trust });
  assert.equal(report.verdict, "passed", JSON.stringify(report));
  assert.equal(report.envelopes, ids.length);
  assert.equal(verify(bundle).verdict, "untrusted");
  const id = process.env.ROPEWALK_ENVELOPE;
  const proof = await client.proof(channel, id);
  assert.equal(verify(proof, { trust }).verdict, "passed");
  assert.equal(verify(proof).verdict, "untrusted");
  assert.notEqual(fromHex(id), null);
  const head = await client.checkpoint(channel, "log.example");
  assert.equal(verify(head, { trust }).verdict, "passed");
  assert.equal(verify(head).verdict, "untrusted");
});
