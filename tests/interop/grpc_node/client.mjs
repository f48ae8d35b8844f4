// Append the envelopes of stdin, one a line, then read everything back; the answers go to stdout as JSON.
// node client.mjs PROTO HOST:PORT CHANNEL CA CERT KEY
import { readFileSync } from "node:fs"
import grpc from "@grpc/grpc-js"
import { loadSync } from "@grpc/proto-loader"

const [proto, address, channel, ...files] = process.argv.slice(2)
const [ca, cert, key] = files.map((file) => readFileSync(file))
const { Ledger } = grpc.loadPackageDefinition(loadSync(proto, { longs: Number, defaults: true })).ea.ledger.v1
const client = new Ledger(address, grpc.credentials.createSsl(ca, key, cert))
const session = { channel }
const envelopes = readFileSync(0, "utf8").trim().split("\n").map((line) => Buffer.from(line))

const unary = (method, request) =>
  new Promise((resolve, reject) =>
    client[method](request, { deadline: Date.now() + 30_000 }, (error, said) => (error ? reject(error) : resolve(said))),
  )
const all = (stream) =>
  new Promise((resolve, reject) => {
    const found = []
    stream.on("data", (each) => found.push(each)).on("error", reject).on("end", () => resolve(found))
  })

const appending = client.Append()
const appended = all(appending)
appending.write({ session, envelopes })
appending.end()
const outcomes = (await appended).flatMap((each) => each.outcomes)
const ids = outcomes.filter((each) => each.receipt).map((each) => each.receipt.envelope_id ?? each.receipt.envelopeId)
const head = await unary("Head", { session })
const blocks = await all(client.Read({ session, from: 0 }))
const { proof } = await unary("Prove", { session, envelopeId: ids[0] })
const refused = await unary("Head", { session: { channel: "none" } }).catch((error) => error)
console.log(
  JSON.stringify({
    ids: ids.map((id) => id.toString("hex")),
    problems: outcomes.filter((each) => each.problem).map((each) => each.problem.code),
    envelopes: head.envelopes,
    lines: blocks.flatMap((each) => each.lines.map((line) => line.toString())),
    proof: proof.toString(),
    refused: { code: refused.code, details: refused.metadata.get("grpc-status-details-bin")[0].toString("latin1") },
  }),
)
client.close()
