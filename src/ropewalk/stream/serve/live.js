"use strict"
// What the stream tells, newest first. Everything shown is somebody else's text: it is set as text, never as markup.

const ROWS_MAX = 1000     // shown; older ones leave the page
const WAITING_MAX = 5000  // kept while paused
const SECONDS = 120       // plotted
const AGAIN_MS_MAX = 10000

const at = (id) => document.getElementById(id)
const asked = {topics: [], refs: [], find: ""}
let socket = null
let stream = null         // which run of the server the numbers belong to
let newest = 0            // the number of the last frame taken
let again = null          // the timer of the next attempt
let tries = 0
let paused = false
let waiting = []          // frames that came while paused, or since the last painting
let dropped = 0
let painting = false
let trouble = ""
const counts = new Array(SECONDS).fill(0)

// --- what is asked for; the address keeps it ---

const patterns = (text) => text.split(",").map((each) => each.trim()).filter(Boolean)

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1))
  asked.topics = given.getAll("topic")
  asked.refs = given.getAll("ref")
  asked.find = given.get("find") || ""
  if (!asked.topics.length && !asked.refs.length) {
    asked.topics = ["**"]
    asked.refs = ["refs/gatos/shiplog/**"]  // those of topics would say everything twice
  }
  at("topics").value = asked.topics.join(", ")
  at("refs").value = asked.refs.join(", ")
  at("find").value = asked.find
}

function writeAddress() {
  const said = new URLSearchParams()
  asked.topics.forEach((each) => said.append("topic", each))
  asked.refs.forEach((each) => said.append("ref", each))
  if (asked.find) said.set("find", asked.find)
  history.replaceState(null, "", "#" + said)
}

// --- the connection ---

function connect() {
  clearTimeout(again)
  const scheme = location.protocol === "https:" ? "wss:" : "ws:"
  const mine = (socket = new WebSocket(`${scheme}//${location.host}/api/v1/stream`))
  let welcomed = false
  socket.onmessage = (message) => {
    if (mine !== socket) return
    const frame = JSON.parse(message.data)
    if (frame.kind === "ack") {
      welcomed = true
      tries = 0
      trouble = ""
      if (frame.stream !== stream) newest = 0
      stream = frame.stream
      socket.send(JSON.stringify({op: "sub", topics: asked.topics, refs: asked.refs, sinceSeq: newest}))
    } else if (frame.kind === "ping") {
      socket.send('{"kind":"pong"}')
    } else if (frame.kind === "ref.update" || frame.kind === "bus.event" || frame.kind === "error") {
      if (frame.kind !== "error") {
        newest = Math.max(newest, frame.seq)
        counts[counts.length - 1] += 1
      } else if (frame.code === "INVALID_SUB") {
        trouble = frame.message
      }
      take(frame)
    }
    showState()
  }
  socket.onclose = (event) => {
    if (mine !== socket) return
    socket = null
    if (!trouble || event.code !== 1008) {
      if (!welcomed && tries > 0) trouble = `not let in or nobody there; start it with --origin ${location.origin} if it runs`
      again = setTimeout(connect, Math.min(AGAIN_MS_MAX, 250 * 2 ** tries++))
    }
    showState()
  }
}

function ask() {
  asked.topics = patterns(at("topics").value)
  asked.refs = patterns(at("refs").value)
  writeAddress()
  clearRows()
  trouble = ""
  newest = 0
  tries = 0
  const old = socket
  socket = null
  if (old) old.close()
  if (asked.topics.length || asked.refs.length) connect()
  showState()
}

function showState() {
  const open = socket && socket.readyState === WebSocket.OPEN
  const [mood, text] = trouble ? ["trouble", trouble]
    : paused ? ["paused", `paused, ${waiting.length} waiting` + (dropped ? `, ${dropped} passed over` : "")]
    : open ? ["live", "live"]
    : asked.topics.length || asked.refs.length ? ["trouble", "connecting"]
    : ["paused", "nothing asked for"]
  const state = at("state")
  if (state.textContent !== text) state.textContent = text
  state.dataset.mood = mood
}

// --- rows ---

function take(frame) {
  waiting.push(frame)
  // A tab that nobody looks at is never painted: it keeps no more than it would show.
  if (waiting.length > (paused ? WAITING_MAX : ROWS_MAX)) {
    waiting.shift()
    dropped += paused ? 1 : 0
  }
  if (!paused && !painting) {
    painting = true
    requestAnimationFrame(paint)
  }
}

function paint() {
  painting = false
  if (paused) return
  const rows = at("rows")
  const fresh = document.createDocumentFragment()
  const shown = waiting.slice(-ROWS_MAX)  // of what waited while paused
  waiting = []
  shown.reverse().forEach((frame) => fresh.append(rowOf(frame)))
  rows.prepend(fresh)
  while (rows.children.length > ROWS_MAX) rows.lastChild.remove()
  at("empty").hidden = rows.children.length > 0
}

// Letters that turn the reading order round would let a payload lie about what it says.
const plain = (text) => text.replace(/[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c]/g,
  (letter) => "\\u" + letter.charCodeAt(0).toString(16).padStart(4, "0"))

const short = (oid) => (oid ? oid.slice(0, 7) : "nothing")

function summaryOf(frame) {
  if (frame.kind === "ref.update") return `${short(frame.old)} → ${short(frame.new)}`
  if (frame.kind === "error") return `${frame.code}: ${frame.message}`
  return (frame.type ? frame.type + " " : "") + JSON.stringify(published(frame))
}

// A proxy puts the origin's number into the payload, as the specification has it; nobody has published that.
function published(frame) {
  if (frame.seq_proxy === undefined || frame.seq_origin !== undefined) return frame.payload
  const { seq_origin, ...payload } = frame.payload
  return payload
}

function commandOf(frame) {
  if (frame.kind === "ref.update" && frame.new && frame.ref.startsWith("refs/gatos/shiplog/")) return `ropewalk shiplog show ${frame.new}`
  if (frame.kind === "bus.event" && frame.commit) return `git show ${frame.commit}`
  return ""
}

function cell(row, text) {
  const line = document.createElement("span")
  line.className = "short"
  line.textContent = plain(text)
  row.insertCell().append(line)
}

// Made once: making it takes as long as a whole row.
const clock = new Intl.DateTimeFormat([], {
  hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, hourCycle: "h23",
})

function timeOf(frame) {
  const moment = frame.ts ? new Date(frame.ts) : new Date()
  return isNaN(moment) ? plain(frame.ts) : clock.format(moment)
}

function rowOf(frame) {
  const row = document.createElement("tr")
  row.frame = frame
  if (frame.kind === "error") row.className = "told"
  const opener = document.createElement("button")
  opener.type = "button"
  opener.setAttribute("aria-expanded", "false")
  opener.textContent = timeOf(frame)
  opener.onclick = () => toggle(row)
  row.insertCell().append(opener)
  cell(row, frame.topic || frame.ref || "the stream")
  cell(row, summaryOf(frame))
  cell(row, frame.seq === undefined ? "" : String(frame.seq))
  row.words = JSON.stringify(frame).toLowerCase()
  row.hidden = !isFound(row)
  return row
}

function toggle(row, open = !row.opened) {
  row.opened = open
  row.querySelector("button").setAttribute("aria-expanded", String(open))
  const place = row.cells[2]
  const old = place.querySelector("pre")
  if (old) old.remove()
  if (open) {
    const whole = document.createElement("pre")
    const command = commandOf(row.frame)
    whole.textContent = plain(JSON.stringify(row.frame, null, 2)) + (command ? `\n\n$ ${command}` : "")
    place.append(whole)
  }
}

const isFound = (row) => !asked.find || row.words.includes(asked.find.toLowerCase())

function clearRows() {
  at("rows").replaceChildren()
  waiting = []
  dropped = 0
  at("empty").hidden = false
}

function setPaused(now) {
  paused = now
  at("pause").setAttribute("aria-pressed", String(paused))
  if (!paused) {
    dropped = 0
    paint()
  }
  showState()
}

// --- the plot: one bar a second ---

function plot() {
  const top = Math.max(1, ...counts)
  const bars = counts.map((count, n) => (count ? `M${2 * n} 40v${(-38 * count) / top}h1.6v${(38 * count) / top}z` : "")).join("")
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path")
  path.setAttribute("d", bars || "M0 40")
  at("plot").replaceChildren(path)
  const lately = counts.slice(-11, -1).reduce((sum, count) => sum + count, 0) / 10
  at("rate").textContent = `${lately >= 10 ? Math.round(lately) : lately.toFixed(1)} a second`
}

setInterval(() => {
  plot()
  counts.shift()
  counts.push(0)
}, 1000)

// --- hands ---

at("asked").onsubmit = (event) => {
  event.preventDefault()
  ask()
}
for (const id of ["topics", "refs"]) at(id).onchange = ask
at("find").oninput = () => {
  asked.find = at("find").value
  writeAddress()
  for (const row of at("rows").children) row.hidden = !isFound(row)
}
at("pause").onclick = () => setPaused(!paused)
at("clear").onclick = clearRows
window.onhashchange = () => {
  readAddress()
  ask()
}

document.onkeydown = (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return
  const writing = event.target.tagName === "INPUT"
  if (event.key === "Escape") {
    if (writing) event.target.blur()
    for (const row of at("rows").children) if (row.opened) toggle(row, false)
  } else if (writing) {
    return
  } else if (event.key === "/") {
    event.preventDefault()
    at("find").focus()
  } else if (event.key === " " && event.target.tagName !== "BUTTON") {
    event.preventDefault()
    setPaused(!paused)
  } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault()
    const openers = [...at("rows").querySelectorAll("tr:not([hidden]) td button")]
    const now = openers.indexOf(document.activeElement)
    const next = openers[event.key === "ArrowDown" ? now + 1 : Math.max(0, now - 1)]
    if (next) next.focus()
  }
}

readAddress()
connect()
plot()
showState()
