// Insert entries one by one into an okra tree in memory; time the loop alone. Entries as in bench_prolly.py.
import { createHash } from "node:crypto"
import { Tree } from "@canvas-js/okra-memory"

const sha256 = (text) => createHash("sha256").update(text).digest()
const count = Number(process.argv[2])
const entries = Array.from({ length: count }, (_, i) => [
  new Uint8Array(sha256(`key ${i}`).subarray(0, 20)),
  new Uint8Array(sha256(`value ${i}`)),
])

const tree = new Tree()
let seconds = 0
await tree.write((txn) => {
  const started = performance.now()
  for (const [key, value] of entries) txn.set(key, value)
  seconds = (performance.now() - started) / 1000
})
const { level, hash } = await tree.read((txn) => txn.getRoot())
console.log(JSON.stringify({ seconds, level, hash: Buffer.from(hash).toString("hex") }))
