"use strict";
// State 0 is the canvas before the first step, state s the one after step s - 1. Every position has the list of its
// events; a state is drawn from the last event of each position up to it.
const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const steps = data.steps, start = data.canvas, total = steps.length;
const ends = new Map(data.ends.map((id, i) => [id, i === 0 ? "eos" : "eot"]));
const CIVIDIS = [[18, 53, 112], [59, 73, 108], [87, 93, 109], [112, 113, 115], [138, 135, 121], [166, 157, 117], [196, 181, 108], [254, 232, 56]];

// ---- events ----

const events = start.map(() => []);
const masksLeft = new Array(total + 1);
const isMask = start.map((token) => token === data.mask);
masksLeft[0] = isMask.filter(Boolean).length;
let lowest = Infinity, highest = -Infinity;
steps.forEach((step, i) => {
  const state = i + 1;
  for (const p of step.r) events[p].push({ state, kind: "gone" });
  for (const [p, token, sure] of step.c) {
    events[p].push({ state, kind: "commit", token, sure, block: step.b });
    if (sure !== null) { lowest = Math.min(lowest, sure); highest = Math.max(highest, sure); }
  }
  for (const [p, token] of step.f) events[p].push({ state, kind: "rest", token });
  masksLeft[state] = masksLeft[i];
  for (const p of new Set([...step.r, ...step.c.map((c) => c[0]), ...step.f.map((f) => f[0])])) {
    const mask = tokenOf(events[p][events[p].length - 1]) === data.mask;
    masksLeft[state] += mask - isMask[p];
    isMask[p] = mask;
  }
});

if (lowest >= 0 && highest <= 1 || lowest > highest) { lowest = 0; highest = 1; }  // a probability, or nothing

function tokenOf(event) { return event.kind === "gone" ? data.mask : event.token; }

/** What position p holds in a state: {token, event or null, back: how often it was taken back so far}. */
function at(p, state) {
  let event = null, back = 0;
  for (const e of events[p]) {
    if (e.state > state) break;
    event = e;
    back += e.kind === "gone";
  }
  return { token: event ? tokenOf(event) : start[p], event, back };
}

// ---- colours and texts ----

function rgb(sure) {
  const x = (sure - lowest) / (highest - lowest || 1) * (CIVIDIS.length - 1);
  const i = Math.min(Math.floor(x), CIVIDIS.length - 2);
  return CIVIDIS[i].map((from, c) => Math.round(from + (CIVIDIS[i + 1][c] - from) * (x - i)));
}

function colour(sure) { return `rgb(${rgb(sure).join()})`; }

function inkOn(sure) {
  const [r, g, b] = rgb(sure).map((v) => (v / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 ? "#10141a" : "#ffffff";
}

function textOf(token) { return Object.hasOwn(data.texts, token) ? data.texts[token] : `${token}`; }

/** The text in a cell: control characters made visible. */
function shown(token) {
  if (token === data.mask) return "";
  if (ends.has(token)) return ends.get(token);
  const text = textOf(token).replace(/\r?\n/g, "\u21b5").replace(/\t/g, "\u21e5")
    .replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, "\ufffd");
  return text === "" ? "\u2205" : text;
}

// ---- canvas ----

const board = $("canvas");
const cells = start.map((token, p) => {
  const last = at(p, total).token;
  const cell = document.createElement("i");
  const ghost = document.createElement("b"), text = document.createElement("b");
  ghost.className = "ghost";  // keeps the room of the final token, so that nothing moves while it plays
  ghost.textContent = shown(last);
  ghost.setAttribute("aria-hidden", "true");
  text.className = "text";
  cell.append(ghost, text);
  cell.dataset.p = p;
  board.append(cell);
  if (textOf(last).includes("\n")) board.append(document.createElement("br"));
  return { cell, text, key: "" };
});

let state = 0, timer = null;

function draw() {
  cells.forEach((entry, p) => {
    const { token, event, back } = at(p, state);
    const fresh = event !== null && event.state === state;
    const kinds = ["tok"];
    let sure = null;
    if (start[p] !== data.mask && event === null) kinds.push("frozen");
    else if (token === data.mask) kinds.push("mask");
    else if (event.kind === "commit") sure = event.sure;
    if (ends.has(token) && !kinds.includes("frozen")) kinds.push("end");
    if (fresh && event.kind === "commit") kinds.push("new");
    if (fresh && event.kind === "gone") kinds.push("gone");
    else if (back > 0) kinds.push("was");
    const key = `${kinds.join(" ")}|${token}|${sure}`;
    if (key === entry.key) return;
    entry.key = key;
    entry.cell.className = kinds.join(" ");
    entry.text.textContent = shown(token);
    entry.cell.style.background = sure === null ? "" : colour(sure);
    entry.cell.style.color = sure === null ? "" : inkOn(sure);
  });
  const step = steps[state - 1];
  const facts = [["step", `${state} of ${total}`]];
  if (step) {
    facts.push(["block", step.b + 1], ["committed", step.c.length]);
    if (step.r.length) facts.push(["taken back", step.r.length, "back"]);
    facts.push(["rows", step.n], ["ms", step.t.toFixed(1)]);
  }
  facts.push(["masks left", masksLeft[state]]);
  if (step && step.e) facts.push(["ended by", step.e]);
  $("now").replaceChildren(...facts.map(([name, value, kind]) => {
    const part = document.createElement("span"), strong = document.createElement("strong");
    if (kind) part.className = kind;
    strong.textContent = value;
    part.append(`${name} `, strong);
    return part;
  }));
  $("slider").value = state;
  document.documentElement.dataset.step = state;
  drawTimeline();
  if (pointed !== null) showTip();
  if (timer !== null) keepInView(board.querySelector(".new"));
}

/** Scroll the canvas, and nothing else, to a cell. */
function keepInView(cell) {
  if (cell === null) return;
  const box = cell.getBoundingClientRect(), frame = board.getBoundingClientRect();
  if (box.top < frame.top || box.bottom > frame.bottom) board.scrollTop += box.top - frame.top - frame.height / 2;
}

function go(to) {
  state = Math.max(0, Math.min(total, to));
  draw();
}

// ---- timeline: a bar a step, its colour the mean confidence; below the line what was taken back. Heights are square
// roots, so that one token can be seen beside a hundred ----

const bars = steps.map((step) => {
  const known = step.c.map((c) => c[2]).filter((sure) => sure !== null);
  return { up: Math.sqrt(step.c.length), down: Math.sqrt(step.r.length), sure: known.reduce((a, b) => a + b, 0) / known.length };
});
const mostUp = Math.max(1, ...bars.map((b) => b.up)), mostDown = Math.max(0, ...bars.map((b) => b.down));

function drawTimeline() {
  const box = $("timeline"), scale = window.devicePixelRatio || 1;
  const width = box.clientWidth, height = box.clientHeight;
  if (!width) return;
  box.width = Math.round(width * scale);
  box.height = Math.round(height * scale);
  const pen = box.getContext("2d"), style = getComputedStyle(document.documentElement);
  const ink = (name) => style.getPropertyValue(name).trim();
  pen.scale(scale, scale);
  const unit = (height - 6) / (mostUp + mostDown), zero = 3 + mostUp * unit, slot = width / Math.max(total, 1);
  const gap = slot > 4 ? 1 : 0;
  bars.forEach((bar, i) => {
    pen.globalAlpha = i < state ? 1 : 0.28;
    pen.fillStyle = Number.isFinite(bar.sure) ? colour(bar.sure) : ink("--soft");
    pen.fillRect(i * slot, zero - bar.up * unit, Math.max(slot - gap, 0.6), bar.up * unit);
    pen.fillStyle = ink("--gone");
    pen.fillRect(i * slot, zero + 1, Math.max(slot - gap, 0.6), Math.max(bar.down * unit - 1, 0));
  });
  pen.globalAlpha = 1;
  pen.fillStyle = ink("--line");
  pen.fillRect(0, zero, width, 1);
  pen.fillStyle = ink("--accent");
  pen.fillRect(Math.min(Math.max(state * slot - 1, 0), width - 2), 0, 2, height);
}

function scrub(event) {
  const box = $("timeline").getBoundingClientRect();
  pause();
  go(Math.ceil((event.clientX - box.left) / box.width * total));
}
$("timeline").addEventListener("pointerdown", (event) => {
  event.target.setPointerCapture(event.pointerId);
  scrub(event);
});
$("timeline").addEventListener("pointermove", (event) => { if (event.buttons) scrub(event); });

// ---- what a token is: shown while the pointer is on it, or after a touch ----

const tip = $("tip");
let pointed = null;

function row(table, name, value) {
  const line = table.insertRow();
  line.insertCell().textContent = name;
  line.insertCell().textContent = value;
}

function number(sure) { return sure === null ? "not finite" : `${Number(sure.toPrecision(4))}`; }

function showTip() {
  const p = Number(pointed.dataset.p), { token, event, back } = at(p, state);
  const what = document.createElement("div"), table = document.createElement("table");
  what.className = "what";
  what.textContent = token === data.mask ? "mask" : Object.hasOwn(data.texts, token) ? JSON.stringify(textOf(token)) : "no text";
  row(table, "id", token);
  row(table, "position", p);
  if (event === null) row(table, "since", token === data.mask ? "the start" : "the start: frozen");
  else if (event.kind === "commit") {
    row(table, "confidence", number(event.sure));
    row(table, "committed", `step ${event.state}, block ${event.block + 1}`);
  } else if (event.kind === "rest") row(table, "written", `step ${event.state}, behind the end`);
  const times = events[p].filter((e) => e.kind === "gone" && e.state <= state).map((e) => e.state);
  if (back) row(table, "taken back", `${back} time${back > 1 ? "s" : ""}: step ${times.join(", ")}`);
  const tried = events[p].filter((e) => e.kind === "commit" && e.state <= state && e !== event);
  for (const e of tried.slice(-4)) row(table, `step ${e.state}`, `${JSON.stringify(textOf(e.token))} ${number(e.sure)}`);
  tip.replaceChildren(what, table);
  tip.hidden = false;
  const box = pointed.getBoundingClientRect(), size = tip.getBoundingClientRect();
  const above = box.top - size.height - 8;
  tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - size.width - 8))}px`;
  tip.style.top = `${above > 8 ? above : box.bottom + 8}px`;
}

function point(cell) {
  if (pointed !== null) pointed.classList.remove("seen");
  pointed = cell;
  if (cell === null) tip.hidden = true;
  else { cell.classList.add("seen"); showTip(); }
}
board.addEventListener("pointerover", (event) => point(event.target.closest("[data-p]")));
board.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") point(null); });
board.addEventListener("scroll", () => point(null));

// ---- player ----

const SPEEDS = [1, 2, 5, 10, 25, 50, 100];
for (const speed of SPEEDS) $("speed").add(new Option(`${speed} a second`, speed));
$("speed").add(new Option("as recorded", "real"));
$("speed").value = SPEEDS.find((speed) => total / speed <= 12) || 100;

function tick() {
  if (state >= total) { pause(); return; }
  go(state + 1);
  const speed = $("speed").value;
  timer = setTimeout(tick, speed === "real" ? steps[Math.min(state, total - 1)].t : 1000 / speed);
}

function play() {
  if (timer !== null || total === 0) return;
  if (state >= total) go(0);
  $("play").dataset.playing = "";
  timer = setTimeout(tick, 60);
}

function pause() {
  clearTimeout(timer);
  timer = null;
  delete $("play").dataset.playing;
}

const moves = {
  play: () => (timer === null ? play() : pause()),
  first: () => { pause(); go(0); },
  last: () => { pause(); go(total); },
  back: () => { pause(); go(state - 1); },
  next: () => { pause(); go(state + 1); },
};
for (const [id, move] of Object.entries(moves)) $(id).addEventListener("click", move);
$("slider").max = total;
$("slider").addEventListener("input", (event) => { pause(); go(Number(event.target.value)); });
$("slider").addEventListener("keydown", (event) => event.preventDefault());  // the keys below say it for all of the page

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.tagName === "SELECT") return;
  const far = event.shiftKey ? 10 : 1;
  const keys = {
    ArrowRight: () => { pause(); go(state + far); },
    ArrowLeft: () => { pause(); go(state - far); },
    Home: moves.first,
    End: moves.last,
    " ": moves.play,
    d: toggleTheme,
    Escape: () => point(null),
  };
  if (event.key === " " && event.target.tagName === "SUMMARY") return;
  if (!Object.hasOwn(keys, event.key)) return;
  event.preventDefault();
  if (event.key === " " && event.target.tagName === "BUTTON") event.target.blur();
  keys[event.key]();
});

// ---- theme, heading, settings ----

const asked = new URLSearchParams(location.hash.slice(1));  // page.html#step=5&theme=dark
const root = document.documentElement;

function setTheme(name) {
  root.dataset.theme = name;
  drawTimeline();
}
function toggleTheme() { setTheme(root.dataset.theme === "dark" ? "light" : "dark"); }
$("theme").addEventListener("click", toggleTheme);
const dark = matchMedia("(prefers-color-scheme: dark)");
dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));

function list(facts) { return facts.filter(Boolean).join(" \u00b7 "); }
const facts = data.facts;
$("model").textContent = data.model;
$("about").textContent = list([
  `${data.backend}, ${data.isa || "?"}, ${data.scheme}`,
  `${facts.steps} steps for ${facts.masks} masks`,
  facts.revoked ? `${facts.revoked} taken back` : "",
  `${facts.ms >= 1000 ? `${(facts.ms / 1000).toFixed(2)} s` : `${facts.ms.toFixed(1)} ms`}`,
  facts.finished ? `ended by ${facts.finished}` : "",
  facts.masks_left ? `${facts.masks_left} masks left` : "",
]);
$("low").textContent = number(lowest);
$("high").textContent = number(highest);
$("measure").textContent = `confidence (${(data.options && data.options.remasking) || "?"})`;
$("ramp").style.background = `linear-gradient(90deg, ${CIVIDIS.map((c) => `rgb(${c.join()})`).join()})`;
for (const [selector, sure] of [[".samples .new", 0.9], [".samples .was", 0.6]]) {
  const sample = document.querySelector(selector), value = lowest + sure * (highest - lowest);
  sample.style.background = colour(value);
  sample.style.color = inkOn(value);
}
for (const [key, value] of Object.entries(data.options || {})) {
  const line = document.createElement("div"), name = document.createElement("dt"), said = document.createElement("dd");
  name.textContent = key;
  said.textContent = typeof value === "string" ? value : JSON.stringify(value);
  if (JSON.stringify(value) !== JSON.stringify(data.defaults[key])) line.className = "set";
  line.append(name, said);
  $("options").append(line);
}

addEventListener("resize", drawTimeline);
setTheme(asked.get("theme") || (dark.matches ? "dark" : "light"));
pause();
go(Number(asked.get("step")) || 0);
root.dataset.ready = "1";
