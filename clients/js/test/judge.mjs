// Verify files that come as JSON lines on stdin, {"file", "trust"} in base64; answer with a verdict or an error's code.

import { createInterface } from "node:readline";
import { RopewalkError, fromBase64, verify } from "../dist/ropewalk.js";

for await (const line of createInterface({ input: process.stdin })) {
  const { file, trust } = JSON.parse(line);
  try {
    const report = verify(fromBase64(file), { trust: trust === null ? null : fromBase64(trust) });
    console.log(JSON.stringify(report));
  } catch (error) {
    if (!(error instanceof RopewalkError)) throw error;
    console.log(JSON.stringify({ error: error.code, detail: error.detail }));
  }
}
