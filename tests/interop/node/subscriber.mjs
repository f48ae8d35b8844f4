// A client of the stream that knows S2 alone: it asks, reads, drops duplicates and answers pings.
// node subscriber.mjs URL COUNT: prints the numbers in the payloads of COUNT messages, and how many frames it ever had
// without having answered a ping in between.
import WebSocket from "ws"

const [url, count] = process.argv.slice(2)
const socket = new WebSocket(url)
const got = []
let last = 0
let outstanding = 0
let most = 0

socket.on("message", (data) => {
	const frame = JSON.parse(data)
	if (frame.kind === "ack") socket.send(JSON.stringify({ op: "sub", topics: ["gatos.jobs.*"], sinceSeq: frame.seq }))
	if (frame.kind === "ack") console.log(JSON.stringify({ ready: true }))
	if (frame.kind === "ping") {
		most = Math.max(most, outstanding)
		outstanding = 0
		socket.send(JSON.stringify({ kind: "pong" }))
	}
	if (frame.kind !== "bus.event" || frame.seq <= last) return
	last = frame.seq
	outstanding += 1
	got.push(frame.payload.n)
	if (got.length === Number(count)) {
		console.log(JSON.stringify({ got, most: Math.max(most, outstanding) }))
		socket.close()
	}
})
socket.on("error", (error) => {
	console.error(String(error))
	process.exit(1)
})
