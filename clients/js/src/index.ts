// ropewalk for browsers and Node: follow, read and append logs of `ropewalk serve`, and verify what it hands out.

export { HttpProblem, RopewalkError } from "./errors.ts";
export { Client } from "./http.ts";
export type * from "./http.ts";
export { Stream, subscribe } from "./stream.ts";
export type * from "./stream.ts";
export { parseProof, pathFromHex, verify, verifyCheckpoint, verifyManifest, verifyProof } from "./verify.ts";
export type { CheckpointOptions } from "./verify.ts";
export { verifyBundle } from "./bundle.ts";
export type { BundleOptions } from "./bundle.ts";
export { KeyHistory } from "./history.ts";
export { parseKeyProofs } from "./statements.ts";
export { PublicKey } from "./keys.ts";
export { NoteKey, openNote, parseHead } from "./note.ts";
export { checkEnvelopeSignature, checkPayloadHash, envelopeId, parseEnvelope, parseRecord, parseTrust } from "./ledger.ts";
export { LEDGER, RANGE, SHA256, root, verifyConsistency, verifyInclusion, verifyRange } from "./merkle.ts";
export { blake3 } from "@noble/hashes/blake3.js";
export { encodeCbor } from "./cbor.ts";
export { encode, parse, parseCanonical } from "./jcs.ts";
export { fromBase64, fromHex, toHex } from "./bytes.ts";
export type { Need, Report, Status, Step, Verdict } from "./report.ts";
export type * from "./types.ts";
