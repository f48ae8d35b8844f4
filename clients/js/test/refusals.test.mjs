// What the verifier must refuse, each refusal alone: forged again and signed by the right keys, so that no other check notices.

import assert from "node:assert/strict";
import { createPrivateKey, sign } from "node:crypto";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import * as rw from "../dist/ropewalk.js";
import { packBundle, packFrame, packTar } from "./pack.mjs";

const { cases } = JSON.parse(readFileSync(new URL("../../../vectors/bundle/bundle.json", import.meta.url)));
const TRUST = cases[0].input.trust;
const MEMBERS = Object.fromEntries(cases[0].input.members);
const [MANIFEST, SIGNATURE, HEADERS] = ["bundle.manifest.json", "bundle.manifest.sig", "headers.jsonl"];
const RECORDS = MEMBERS[HEADERS].trim().split("\n").map((line) => JSON.parse(line));

// The seeds of vectors/generate/bundle.py: these keys protect nothing.
const keyOf = (first) => {
  const seed = Buffer.from(Array.from({ length: 32 }, (_, at) => first + at));
  const secret = createPrivateKey({ key: Buffer.concat([Buffer.from("302e020100300506032b657004220420", "hex"), seed]), format: "der", type: "pkcs8" });
  const raw = Buffer.from(secret.export({ format: "jwk" }).x, "base64url");
  return { public: new rw.PublicKey("ed25519", new Uint8Array(raw)), sign: (message) => sign(null, message, secret).toString("base64") };
};
const [AUTHOR, NODE, WITNESS] = [0, 32, 64].map(keyOf);

const bytes = (text) => new TextEncoder().encode(text);
const canonical = (value) => Buffer.from(rw.encode(value));
const tagged = (tag, value) => Buffer.concat([Buffer.from(tag), Buffer.isBuffer(value) ? value : canonical(value)]);
const trustOf = (changes = {}) => canonical({ ...TRUST, ...changes });
const failed = (report) => report.steps.filter((step) => step.status === "failed").map((step) => step.name);
const statusOf = (report, name) => report.steps.find((step) => step.name === name)?.status;
const other = (hex) => (hex[0] === "0" ? "1" : "0") + hex.slice(1);
const refuses = (act, code, detail = /./) => assert.throws(act, (error) => error instanceof rw.RopewalkError && error.code === code && detail.test(error.detail));

// ---- proofs ----

const lineOf = (name, index) => JSON.parse(MEMBERS[name].split("\n")[index]);
const GOOD = { version: 1, height: 1, block: RECORDS[1], envelope: lineOf("blocks/0000000001.jsonl", 1), ...lineOf("proofs/0000000001.jsonl", 1) };
const judge = (changes = {}, trust = {}) => rw.verifyProof(canonical({ ...GOOD, ...changes }), trustOf(trust));
const sealed = (header, key = NODE) => ({ header, signature: { alg: "ed25519", sig: key.sign(tagged("ea:block-signature:v1", header)) }, signer: { ...key.public.toJSON() } });
const authored = (changes, key = AUTHOR) => {
  const value = { ...GOOD.envelope, ...changes };
  const pairs = value.signature.signed_fields.map((name) => [name, value[name] ?? null]);
  return { ...value, signature: { ...value.signature, sig: key.sign(tagged("ea:signature:v1", pairs)) } };
};

test("a proof passes, and each changed part fails its own step", () => {
  assert.equal(judge().verdict, "passed");
  const { envelope, path } = GOOD;
  const sig = envelope.signature.sig;
  for (const [changes, want] of [
    [{ envelope_id: other(GOOD.envelope_id) }, "envelope_hash"],
    [{ height: 0 }, "envelope_hash"],
    [{ path: [other(path[0]), ...path.slice(1)] }, "merkle_path"],
    [{ path: [...path, path[0]] }, "merkle_path"],
    [{ path: path.slice(1) }, "merkle_path"],
    [{ index: 0 }, "merkle_path"],
    [{ index: 3 }, "merkle_path"],
    [{ block: { ...GOOD.block, signature: RECORDS[0].signature } }, "block_signature"],
  ]) assert.ok(failed(judge(changes)).includes(want) && failed(judge(changes)).length <= 2, `${JSON.stringify(changes)}: ${failed(judge(changes))}`);
  // The envelope is another one then: its id and path fail as well.
  assert.ok(failed(judge({ envelope: { ...envelope, payload: { n: 9 } } })).includes("payload_hash"));
  assert.ok(failed(judge({ envelope: { ...envelope, signature: { ...envelope.signature, sig: sig.replace(/^./, sig[0] === "A" ? "B" : "A") } } })).includes("envelope_signature"));
});

test("the signer of a block must be the one its header names, and trusted", () => {
  const block = (changes, key) => ({ block: sealed({ ...GOOD.block.header, ...changes }, key) });
  assert.equal(judge(block({})).verdict, "passed");
  assert.ok(failed(judge(block({ origin_identity: rw.toHex(AUTHOR.public.identity()) }))).includes("block_signature"));
  assert.deepEqual(failed(judge(block({ origin_identity: rw.toHex(AUTHOR.public.identity()) }, AUTHOR))), ["block_signer"]);
  assert.deepEqual(failed(judge({}, { block_signers: [] })), ["block_signer"]);
});

test("an author signs the required fields once each, with the key of the identity", () => {
  const fields = GOOD.envelope.signature.signed_fields;
  const step = (changes, key) => statusOf(judge({ envelope: authored(changes, key) }), "envelope_signature");
  assert.equal(step({}), "passed");
  assert.equal(step({}, NODE), "failed");
  for (const names of [fields.filter((name) => name !== "payload_hash"), [...fields, "payload_hash"], [...fields, "signature"]]) {
    assert.equal(step({ signature: { ...GOOD.envelope.signature, signed_fields: names } }), "failed");
  }
});

test("a proof with unknown members, of another version or beyond its limits is not read", () => {
  const { header } = GOOD.block;
  for (const changes of [
    { more: 1 }, { version: 2 }, { block: { ...GOOD.block, more: 1 } }, { block: sealed({ ...header, more: 1 }) }, { block: sealed({ ...header, protocol_version: 2 }) },
    { envelope: { ...GOOD.envelope, more: 1 } }, { envelope: { ...GOOD.envelope, policy_tag: null } }, { path: Array(65).fill(GOOD.path[0]) }, { index: -1 }, { index: 1.5 },
  ]) refuses(() => judge(changes), "InvalidProof");
  refuses(() => rw.verifyProof(new Uint8Array((16 << 20) + 1).fill(0x20), trustOf()), "TooLarge");
  refuses(() => rw.parseEnvelope(bytes(JSON.stringify({ payload: "x".repeat(4 << 20) }))), "TooLarge", /bytes/);
  refuses(() => rw.parseCanonical(bytes(`[${"0,".repeat(1 << 20)}0]`), 1 << 24), "TooLarge", /items/);
  refuses(() => rw.parse(bytes('{"a":1,"a":2}')), "InvalidJson");
});

// ---- trust files ----

test("a trust file narrows who is trusted, and when", () => {
  const dated = (limits) => ({ block_signers: [{ ...NODE.public.toJSON(), ...limits }] });
  assert.equal(judge({}, dated({ since: "2024-11-01T12:00:00Z", until: "2024-11-01T12:00:01Z" })).verdict, "passed");
  assert.deepEqual(failed(judge({}, dated({ since: "2024-11-01T12:00:01Z" }))), ["block_signer"]);
  assert.deepEqual(failed(judge({}, dated({ until: "2024-11-01T12:00:00Z" }))), ["block_signer"]);
  assert.deepEqual(failed(judge({}, { policy_hash: other(TRUST.policy_hash) })), ["policy_hash"]);
  const revoked = (key) => ({ revocations: [{ key: key.public.did(), since: "2024-11-01T00:00:00Z" }] });
  assert.deepEqual(failed(judge({}, revoked(AUTHOR))), ["envelope_signature"]);
  assert.deepEqual(failed(judge({}, revoked(NODE))), ["block_signer"]);
  assert.ok(failed(rw.verifyBundle(packBundle(Object.entries(MEMBERS)), { trust: trustOf(revoked(NODE)) })).includes("bundle_signature"));
});

test("a trust file with unknown members, versions or keys is not read", () => {
  for (const changes of [
    { more: [] }, { version: 2 }, { policy_hash: "00" }, { roots: ["x"] }, { block_signers: null }, { block_signers: ["did:key:z6Mk"] }, { witnesses: ["w+00000000+AQ=="] },
    { block_signers: [{ ...NODE.public.toJSON(), more: 1 }] }, { block_signers: [{ ...NODE.public.toJSON(), until: "2024-13-01T00:00:00Z" }] },
    { revocations: [{ key: AUTHOR.public.did(), since: "2024-11-01T00:00:00Z", more: 1 }] }, { names: { [AUTHOR.public.did()]: "a\u202eb" } },
  ]) assert.throws(() => rw.parseTrust(trustOf(changes)), rw.RopewalkError, JSON.stringify(changes));
  refuses(() => rw.parseTrust(new Uint8Array((4 << 20) + 1).fill(0x20)), "TooLarge");
});

// ---- bundles ----

/** Return the members with headers sealed again, one on the other, and a manifest made and signed for them. */
function bundled(headers = [{}, {}], changes = {}, { keys = [NODE, NODE], signer = NODE, members = {} } = {}) {
  const records = [];
  headers.forEach((each, at) => {
    const below = records.length ? rw.toHex(rw.parseRecord(canonical(records[at - 1])).hash) : "00".repeat(32);
    records.push(sealed({ ...RECORDS[at].header, prev_block_hash: below, origin_identity: rw.toHex(keys[at].public.identity()), ...each }, keys[at]));
  });
  const files = { ...MEMBERS, [HEADERS]: records.map((record) => `${canonical(record)}\n`).join(""), ...members };
  const hashes = records.map((record) => rw.parseRecord(canonical(record)).hash);
  const listed = Object.entries(files).filter(([name]) => !name.startsWith("bundle."));
  const manifest = canonical({
    ...JSON.parse(MEMBERS[MANIFEST]),
    block_hashes: hashes.map(rw.toHex),
    range_root: rw.toHex(rw.root(hashes, rw.RANGE)),
    files: listed.map(([name, text]) => ({ name, blake3: rw.toHex(rw.blake3(bytes(text))), bytes: bytes(text).length })),
    ...changes,
  });
  const signature = canonical({ alg: "ed25519", sig: signer.sign(tagged("ea:bundle:v1", manifest)) });
  return [[MANIFEST, manifest], [SIGNATURE, signature], ...listed];
}
const judgeBundle = (members, trust = {}) => rw.verifyBundle(packBundle(members), { trust: trustOf(trust) });

test("blocks of a bundle follow one another and are sealed by trusted keys", () => {
  assert.equal(judgeBundle(bundled()).verdict, "passed");
  const [first, second] = RECORDS.map((record) => record.header);
  for (const [headers, options] of [
    [[{}, { height: 2 }]], [[{}, { prev_block_hash: "11".repeat(32) }]], [[{ prev_block_hash: "11".repeat(32) }, {}]], [[{}, { channel: "ea.other" }]],
    [[{}, { timestamp: String(BigInt(first.timestamp) - 1n) }]], [[{}, {}], { keys: [NODE, AUTHOR] }], [[{}, { origin_identity: rw.toHex(AUTHOR.public.identity()) }]],
  ]) assert.deepEqual(failed(judgeBundle(bundled(headers, {}, options))), ["block_signatures"], JSON.stringify(headers));
  const broken = bundled();
  const lines = broken[2][1].trim().split("\n").map((line) => JSON.parse(line));
  lines[1].signature = lines[0].signature;
  assert.deepEqual(failed(judgeBundle(bundled([{}, {}], {}, { members: { [HEADERS]: lines.map((line) => `${canonical(line)}\n`).join("") } }))), ["block_signatures"]);
  assert.deepEqual(failed(judgeBundle(bundled([{}, { policy_hash: other(second.policy_hash) }], { policy_hash: other(second.policy_hash) }))), ["policy_hash"]);
  assert.deepEqual(failed(judgeBundle(bundled([{ policy_hash: other(first.policy_hash) }, {}]))), ["policy_hash"]);
  assert.deepEqual(failed(judgeBundle(bundled([{}, { merkle_root: other(second.merkle_root) }]))), ["merkle_paths"]);
  assert.deepEqual(failed(judgeBundle(bundled([{}, { envelope_count: 4 }]))), ["merkle_paths"]);
});

test("a manifest lists what is there, and its signer is trusted", () => {
  const signed = (changes, options) => failed(judgeBundle(bundled([{}, {}], changes, options)));
  assert.deepEqual(signed({}, { signer: AUTHOR }), ["bundle_signature"]);
  assert.deepEqual(signed({ signer: AUTHOR.public.toJSON() }, { signer: AUTHOR }), ["bundle_signature"]);
  for (const changes of [{ more: 1 }, { merkle_proofs: [] }, { payload_refs: [{ envelope_id: "", payload_ref: {}, payload_hash: "" }] }, { anchors: [] }, { keys: [] }, { end_height: 100_000 }]) {
    assert.ok(signed(changes).includes("bundle_signature"), JSON.stringify(changes));
  }
  assert.deepEqual(signed({ block_hashes: ["00".repeat(32), "00".repeat(32)] }), ["block_signatures"]);
  const members = bundled();
  const at = (place) => members.slice(0, place);
  for (const changed of [
    [...members, ["more.json", "{}"]], [...members, members[3]], [...at(3), members[4], members[3], ...members.slice(5)], [...at(1), ...members.slice(2)],
    members.map(([name, content]) => [name, name === HEADERS ? `${content}\n` : content]), members.slice(0, -1),
  ]) assert.ok(failed(judgeBundle(changed)).includes("bundle_signature"));
});

test("an archive within its limits, and only such, is unpacked", () => {
  const members = bundled();
  refuses(() => judgeBundle([...members, ["../more", ""]]), "Invalid", /name/);
  refuses(() => judgeBundle(members.slice(1)), "Invalid", /begins with/);
  refuses(() => judgeBundle([...members, [HEADERS.replace("headers", "other"), "x".repeat((4 << 20) + 8193)]]), "TooLarge", /member/);
  refuses(() => judgeBundle([members[0], [SIGNATURE, "x".repeat(1025)]]), "TooLarge", /member/);
  refuses(() => rw.verifyBundle(packBundle(members), { bytesMax: 1000 }), "TooLarge", /bomb/);
  const tar = packTar(members);
  const link = Buffer.from(tar);
  link[156] = 0x32;
  link.write((link.subarray(0, 512).reduce((sum, byte, place) => sum + (place >= 148 && place < 156 ? 32 : byte), 0)).toString(8).padStart(6, "0"), 148);
  refuses(() => rw.verifyBundle(packFrame(link), { trust: trustOf() }), "Invalid", /regular/);
  const damaged = Buffer.from(tar);
  damaged[600] ^= 1; // in the manifest
  assert.ok(failed(rw.verifyBundle(packFrame(damaged), { trust: trustOf() })).includes("bundle_signature"));
  for (const [raw, from] of [[Buffer.concat([packFrame(tar), Buffer.from([0])]), "bytes follow"], [packFrame(tar.subarray(0, -1024)), "too early"], [packFrame(Buffer.concat([tar, tar])), "goes on"]]) {
    const report = rw.verifyBundle(new Uint8Array(raw), { trust: trustOf() });
    assert.deepEqual([failed(report), report.verdict], [["bundle_signature"], "failed"]);
    assert.match(report.steps[0].detail, new RegExp(from));
  }
});

test("a small file that unpacks to a thousand times its size is a bomb", () => {
  const [front, size] = [packTar(bundled().slice(0, 2)).subarray(0, -1024), 200 << 20];
  const header = Buffer.from(packTar([[HEADERS, ""]]).subarray(0, 512));
  header.write(size.toString(8).padStart(11, "0"), 124);
  header.write(header.reduce((sum, byte, place) => sum + (place >= 148 && place < 156 ? 32 : byte), 0).toString(8).padStart(6, "0"), 148);
  const packed = Buffer.from(packFrame(Buffer.concat([front, header])));
  const run = Buffer.from([((1 << 17) << 3) & 255 | 2, ((1 << 17) << 3 >> 8) & 255, (1 << 17) << 3 >> 16, 0x20]); // 128 KiB of one byte
  const last = packed.length - 3 - front.length - 512; // the frame has one block, which must not be the last
  packed[last] &= 0xfe;
  refuses(() => rw.verifyBundle(new Uint8Array(Buffer.concat([packed, ...Array(800).fill(run)])), { trust: trustOf() }), "TooLarge", /bomb/);
});

// ---- signed heads ----

const ORIGIN = "log.example/ea.core";
const lineBy = (key, name, text, time = null) => {
  const id = (type) => Buffer.from(new rw.NoteKey(name, key.public, type).keyId, "hex");
  if (time === null) return `— ${name} ${Buffer.concat([id(1), Buffer.from(key.sign(Buffer.from(text)), "base64")]).toString("base64")}\n`;
  const stamp = Buffer.alloc(8);
  stamp.writeBigUInt64BE(BigInt(time));
  const raw = Buffer.from(key.sign(Buffer.from(`cosignature/v1\ntime ${time}\n${text}`)), "base64");
  return `— ${name} ${Buffer.concat([id(4), stamp, raw]).toString("base64")}\n`;
};
const leaves = [1, 2, 3, 4, 5].map((each) => rw.SHA256.leaf(new Uint8Array([each])));
function head(size, { origin = ORIGIN, key = NODE, name = origin, cosigned = [], root = rw.root(leaves.slice(0, size), rw.SHA256) } = {}) {
  const text = `${origin}\n${size}\n${Buffer.from(root).toString("base64")}\n`;
  return bytes(`${text}\n${lineBy(key, name, text)}${cosigned.map(([by, whose]) => lineBy(by, whose, text, 1_730_462_400)).join("")}`);
}
const textOf = (name, key, type) => {
  const raw = Buffer.concat([Buffer.from([type]), key.public.raw]);
  return `${name}+${new rw.NoteKey(name, key.public, type).keyId}+${raw.toString("base64")}`;
};
const [LOG, W] = [textOf(ORIGIN, NODE, 1), textOf("w", WITNESS, 4)];
const look = (raw, options) => rw.verifyCheckpoint(raw, options);

test("a checkpoint is signed by the log that was asked for", () => {
  assert.equal(statusOf(look(head(5), { keys: [LOG] }), "log_signature"), "passed");
  assert.equal(look(head(5)).verdict, "untrusted");
  assert.deepEqual(failed(look(head(5, { key: AUTHOR }), { keys: [LOG] })), ["log_signature"]);
  assert.deepEqual(failed(look(head(5, { origin: "log.example/other", name: ORIGIN }), { keys: [LOG] })), ["log_signature"]);
  assert.deepEqual(failed(look(head(5), { keys: [LOG], origin: "log.example/other" })), ["log_signature"]);
  const changed = new TextDecoder().decode(head(5)).replace("\n5\n", "\n6\n");
  assert.deepEqual(failed(look(bytes(changed), { keys: [LOG] })), ["log_signature"]);
  for (const text of ["", `${ORIGIN}\n05\n`, changed.slice(0, -1), changed.replace("\n6\n", "\n6\t\n")]) assert.throws(() => look(bytes(text), { keys: [LOG] }), rw.RopewalkError);
  refuses(() => look(new Uint8Array(1_000_001).fill(0x0a)), "TooLarge");
});

test("witnesses are other keys than the log's, each counted once", () => {
  const seen = head(5, { cosigned: [[WITNESS, "w"]] });
  const step = (raw, options) => statusOf(look(raw, { keys: [LOG, W], ...options }), "witnesses");
  assert.equal(step(seen, { threshold: 1 }), "passed");
  assert.equal(step(head(5), {}), "not_checked");
  assert.equal(step(head(5), { threshold: 1 }), "failed");
  const twice = textOf("w2", WITNESS, 4);
  assert.equal(step(head(5, { cosigned: [[WITNESS, "w"], [WITNESS, "w2"]] }), { keys: [LOG, W, twice], threshold: 2 }), "failed");
  const both = [[WITNESS, "w"], [AUTHOR, "w"]];
  assert.equal(step(head(5, { cosigned: both }), { keys: [LOG, W, textOf("w", AUTHOR, 4)], threshold: 2 }), "failed");
  assert.equal(step(head(5, { cosigned: [both[0], [AUTHOR, "v"]] }), { keys: [LOG, W, textOf("v", AUTHOR, 4)], threshold: 2 }), "passed");
  assert.equal(step(head(5, { cosigned: [[NODE, "self"]] }), { keys: [LOG, W, textOf("self", NODE, 4)], threshold: 1 }), "failed");
  assert.equal(step(head(5, { cosigned: [[AUTHOR, "w"]] }), { threshold: 1 }), "failed");
});

test("a checkpoint extends the older one that was given", () => {
  const path = (list) => list.map((each) => rw.fromHex(each));
  const node = (one, two) => rw.SHA256.node(one, two);
  const proof = [leaves[2], leaves[3], node(leaves[0], leaves[1]), leaves[4]]; // of 3 with 5
  const grown = (old, consistency, now = head(5)) => look(now, { keys: [LOG], old, consistency });
  assert.equal(statusOf(grown(head(3), proof), "consistency"), "passed");
  assert.equal(statusOf(grown(head(3)), "consistency"), "not_checked");
  for (const wrong of [proof.slice(1), [...proof, leaves[0]], [leaves[3], ...proof.slice(1)], path(["00".repeat(32)])]) assert.deepEqual(failed(grown(head(3), wrong)), ["consistency"]);
  assert.deepEqual(failed(grown(head(5), [], head(3))), ["consistency"]);
  assert.deepEqual(failed(grown(head(5), [], head(5, { root: rw.root(leaves.slice(1), rw.SHA256) }))), ["consistency"]);
  assert.deepEqual(failed(grown(head(3, { key: AUTHOR }), proof)), ["old_signature"]);
  assert.ok(failed(grown(head(3, { origin: "log.example/other" }), proof)).includes("consistency"));
});
