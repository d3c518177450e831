
"use strict";
// The moments that a live page keeps: five minutes of figures, and a minute of blocks.
const KEPT = 1200, WITH_BLOCKS = 240;
// Rows of the map.
const ROWS = 24;
const STATES = [["used", "used"], ["evictable", "evictable"], ["set_aside", "set aside"], ["pending", "pending"], ["free", "free"]];
const PALETTE = ["#4a8fcf", "#e07b39", "#4fa858", "#9a6fc9", "#c9a227", "#d0587e", "#45b3a6", "#8c6d5a", "#7c8f3c", "#5d74d6"];

const byId = (id) => document.getElementById(id);
const start = JSON.parse(byId("start").textContent);
const frames = start.frames;
let current = 0;
// The page shows the latest frame as it comes.
let follows = start.is_live;
let selected = null;

function scaled(value, units, base) {
  let unit = 0;
  while (value >= base && unit < units.length - 1) { value /= base; unit += 1; }
  const digits = unit === 0 ? 0 : value < 10 ? 2 : value < 100 ? 1 : 0;
  return value.toFixed(digits) + " " + units[unit];
}
const bytes = (value) => scaled(value, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], 1024);
const time = (ns) => scaled(ns, ["ns", "µs", "ms", "s"], 1000);
const count = (value) => value.toLocaleString("en");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

// Text of the data reaches the page as text nodes only.
function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function list(id, entries) {
  byId(id).replaceChildren(...entries.map(([name, value, key]) => {
    const item = element("li");
    const label = element("span", name + (value === undefined ? "" : " "), key ? "key" : "");
    if (key) label.style.setProperty("--colour", key);
    item.append(label);
    if (value !== undefined) item.append(element("b", value));
    return item;
  }));
}

// Shows rows under headings. A column whose heading ends with "#" holds numbers.
function table(id, headings, rows, none) {
  if (rows.length === 0) { byId(id).replaceChildren(row("td", [none], [""])); return; }
  const names = headings.map((heading) => heading.replace("#", ""));
  byId(id).replaceChildren(row("th", names, headings), ...rows.map((cells) => row("td", cells, headings)));
}
function row(kind, cells, headings) {
  const made = element("tr");
  made.append(...cells.map((cell, column) => {
    const isNode = cell instanceof Node;
    const box = element(kind, isNode ? undefined : cell, headings[column].endsWith("#") ? "number" : "");
    if (kind === "th") box.scope = "col";
    if (isNode) box.append(cell);
    return box;
  }));
  return made;
}

function penOf(canvas) {
  const scale = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.font = "12px system-ui, sans-serif";
  return { pen, width, height };
}

// Memory over time.
const LEFT = 64, RIGHT = 8, BELOW = 20;
const span = () => [frames[0].time_ns, Math.max(frames.at(-1).time_ns, frames[0].time_ns + 1)];

function drawLevels() {
  const { pen, width, height } = penOf(byId("levels"));
  const [first, last] = span();
  const top = 1.05 * Math.max(1, ...frames.map(({ levels }) => Math.max(levels.reserved, levels.requested)));
  const x = (ns) => LEFT + (width - LEFT - RIGHT) * (ns - first) / (last - first);
  const y = (value) => (height - BELOW) - (height - BELOW - 10) * value / top;
  pen.fillStyle = colour("dim");
  pen.strokeStyle = colour("rule");
  for (let part = 0; part <= 4; part += 1) {
    const level = top * part / 4;
    pen.beginPath(); pen.moveTo(LEFT, y(level)); pen.lineTo(width - RIGHT, y(level)); pen.stroke();
    pen.textAlign = "right"; pen.fillText(bytes(level), LEFT - 6, y(level) + 4);
    const ns = (last - first) * part / 4;
    pen.textAlign = part === 4 ? "right" : part === 0 ? "left" : "center";
    const label = !start.is_live ? time(ns) : part === 4 ? "now" : "−" + time(last - first - ns);
    if (part % 2 === 0 || width > 500) pen.fillText(label, x(first + ns), height - 4);
  }
  const steps = (level) => frames.forEach((frame, index) => {
    if (index > 0) pen.lineTo(x(frame.time_ns), y(level(frames[index - 1].levels)));
    pen.lineTo(x(frame.time_ns), y(level(frame.levels)));
  });
  const area = (name, level) => {
    pen.beginPath(); pen.moveTo(x(first), y(0)); steps(level);
    pen.lineTo(x(last), y(0)); pen.closePath(); pen.fillStyle = colour(name); pen.fill();
  };
  const line = (name, level) => {
    pen.beginPath(); steps(level); pen.strokeStyle = colour(name); pen.lineWidth = 1.5; pen.stroke();
  };
  area("pending", (now) => now.used + now.pending);
  area("used", (now) => now.used);
  area("evictable", (now) => now.evictable);
  line("requested", (now) => now.requested);
  line("reserved", (now) => now.reserved);
  const at = x(frames[current].time_ns);
  pen.beginPath(); pen.moveTo(at, 0); pen.lineTo(at, height - BELOW);
  pen.strokeStyle = colour("ink"); pen.lineWidth = 1; pen.stroke();
}

// The map: segments one after another, each as long as it ever was, so that a block keeps its position.
const extents = new Map();
let perRow = 1;

function extend(frame) {
  let changed = false;
  for (const { address, blocks } of frame.segments) {
    const [offset, size] = blocks.at(-1);
    const known = extents.get(address) || { start: Infinity, end: 0 };
    const [from, to] = [Math.min(known.start, blocks[0][0]), Math.max(known.end, offset + size)];
    if (from === known.start && to === known.end) continue;
    extents.set(address, { start: from, end: to, base: 0 });
    changed = true;
  }
  if (!changed) return;
  let extent = 0;
  const ordered = [...extents.keys()].sort((a, b) => (BigInt(a) < BigInt(b) ? -1 : 1));
  for (const address of ordered) {
    const segment = extents.get(address);
    segment.base = extent - segment.start;
    extent += segment.end - segment.start;
  }
  perRow = Math.max(1, extent / ROWS);
}

// The blocks of a frame in the order of their addresses, with their positions in the map.
function placed(frame) {
  return (frame.segments || []).flatMap(({ address, blocks }) => {
    const { base } = extents.get(address);
    return blocks.map(([offset, size, state, stream, tag]) =>
      ({ from: base + offset, size, state, stream, tag, address: BigInt(address) + BigInt(offset) }));
  });
}

const numbers = new Map();
function coloured(kind) {
  if (kind === "state") {
    const colours = Object.fromEntries(STATES.map(([state]) => [state, colour(state)]));
    return (block) => colours[block.state] || colour("dim");
  }
  const free = colour("free");
  return (block) => {
    if (block.state === "free") return free;
    const name = kind === "tag" ? block.tag : block.stream;
    if (name === null) return colour("dim");
    const key = kind + " " + name;
    if (!numbers.has(key)) numbers.set(key, numbers.size);
    return PALETTE[numbers.get(key) % PALETTE.length];
  };
}

function drawMap() {
  const { pen, width, height } = penOf(byId("map"));
  const pitch = height / ROWS;
  const kind = byId("colours").value;
  const paint = coloured(kind);
  const blocks = placed(frames[current]);
  const legend = new Map();
  pen.fillStyle = colour("empty");
  for (let line = 0; line < ROWS; line += 1) pen.fillRect(0, line * pitch, width, pitch - 2);
  const draw = (block, fill) => {
    let { from } = block;
    const to = from + block.size;
    while (from < to) {
      const line = Math.min(ROWS - 1, Math.floor(from / perRow));
      const stop = line === ROWS - 1 ? to : Math.min(to, (line + 1) * perRow);
      const left = (from - line * perRow) / perRow * width;
      const wide = (stop - from) / perRow * width;
      fill(left, line * pitch, Math.max(0.5, wide > 3 ? wide - 0.75 : wide), pitch - 2);
      if (stop <= from) break;
      from = stop;
    }
  };
  for (const block of blocks) {
    pen.fillStyle = paint(block);
    draw(block, (...box) => pen.fillRect(...box));
    const name = kind === "state" ? null : block.state === "free" ? "free"
      : kind === "tag" ? block.tag || "no tag" : block.stream === null ? "no stream" : "S" + block.stream;
    if (name !== null && legend.size < 12) legend.set(name, pen.fillStyle);
  }
  const chosen = blocks.find((block) => block.address === selected);
  pen.strokeStyle = colour("ink");
  pen.lineWidth = 2;
  if (chosen) draw(chosen, (left, top, wide, tall) => pen.strokeRect(left, top, Math.max(3, wide), tall));
  list("legend", kind === "state" ? STATES.map(([state, name]) => [name, undefined, colour(state)])
    : [...legend].map(([name, fill]) => [name, undefined, fill]));
}

function describe(block) {
  const names = Object.fromEntries(STATES);
  const parts = [`0x${block.address.toString(16)}: ${bytes(block.size)}`, names[block.state] || block.state];
  if (block.stream !== null) parts.push(`stream S${block.stream}`);
  if (block.tag !== null) parts.push(block.tag);
  return parts.join(", ");
}

function drawBlockText() {
  const { segments, small_blocks, small_bytes } = frames[current];
  if (!segments) { byId("block").textContent = "The blocks of this moment are not kept."; return; }
  const blocks = placed(frames[current]);
  const chosen = blocks.find((block) => block.address === selected);
  const rest = small_blocks > 0
    ? `; ${count(small_blocks)} smaller blocks of ${bytes(small_bytes)} together are not drawn` : "";
  byId("block").textContent = chosen ? describe(chosen)
    : `${count(blocks.length)} blocks${rest}. Point at a block, or use the arrow keys, for its size and state.`;
}

function select(address) { selected = address; drawMap(); drawBlockText(); }

byId("map").addEventListener("mousemove", (event) => {
  const box = byId("map").getBoundingClientRect();
  const line = Math.min(ROWS - 1, Math.max(0, Math.floor((event.clientY - box.top) / box.height * ROWS)));
  const at = (line + (event.clientX - box.left) / box.width) * perRow;
  const found = placed(frames[current]).find((block) => block.from <= at && at < block.from + block.size);
  select(found ? found.address : null);
});
byId("map").addEventListener("mouseleave", () => select(null));
byId("map").addEventListener("blur", () => select(null));
byId("map").addEventListener("keydown", (event) => {
  const blocks = placed(frames[current]);
  if (blocks.length === 0) return;
  const at = blocks.findIndex((block) => block.address === selected);
  const next = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: Math.max(0, at - 1), ArrowUp: Math.max(0, at - 1),
    Home: 0, End: blocks.length - 1 }[event.key];
  if (event.key === "Escape") select(null);
  if (next === undefined) return;
  event.preventDefault();
  select(blocks[Math.min(next, blocks.length - 1)].address);
});
byId("colours").addEventListener("change", drawMap);

// Histograms: each bar is a power of two of nanoseconds.
function drawTimes() {
  const place = byId("times");
  const { times } = frames[current];
  while (place.children.length > times.length) place.lastChild.remove();
  while (place.children.length < times.length) {
    const section = element("section");
    const canvas = element("canvas");
    canvas.setAttribute("role", "img");
    section.append(element("h2"), canvas, element("p"));
    place.append(section);
  }
  times.forEach((figures, index) => {
    const [heading, canvas, text] = place.children[index].children;
    heading.textContent = figures.name[0].toUpperCase() + figures.name.slice(1);
    text.textContent = figures.count === 0 ? "None yet."
      : `${count(figures.count)} times; half up to ${time(figures.p50_ns)}, 99 % up to ${time(figures.p99_ns)}, the longest ${time(figures.longest_ns)}.`;
    canvas.setAttribute("aria-label", `${figures.name}: ${text.textContent}`);
    canvas.hidden = figures.count === 0;
    if (figures.count > 0) drawHistogram(canvas, figures.octaves);
  });
}

function drawHistogram(canvas, octaves) {
  const { pen, width, height } = penOf(canvas);
  const counts = new Map(octaves);
  const [first, last] = [octaves[0][0], octaves.at(-1)[0]];
  const most = Math.max(...counts.values());
  const wide = Math.min(60, width / (last - first + 1));
  for (let octave = first; octave <= last; octave += 1) {
    const number = counts.get(octave) || 0;
    const tall = number === 0 ? 0 : Math.max(1, (height - 36) * number / most);
    const left = (octave - first) * wide;
    pen.fillStyle = colour("used");
    pen.fillRect(left + 2, height - 18 - tall, wide - 4, tall);
    pen.fillStyle = colour("dim");
    pen.textAlign = "center";
    if (number > 0 && wide >= 34) pen.fillText(count(number), left + wide / 2, height - 22 - tall);
    const every = Math.ceil(70 / wide);
    pen.textAlign = "left";
    if ((octave - first) % every === 0 && left + 60 <= width) pen.fillText(time(2 ** octave), left + 2, height - 4);
  }
}

function quota(tag) {
  if (tag.limit === null) return "none";
  const place = element("span");
  const meter = element("meter");
  meter.max = Math.max(1, tag.limit);
  meter.value = tag.used;
  meter.high = 0.9 * tag.limit;
  meter.setAttribute("aria-label", `${tag.name}: ${bytes(tag.used)} of ${bytes(tag.limit)}`);
  place.append(meter, " " + bytes(tag.limit));
  return place;
}

// Events per second of the device's clock, since the frame a second earlier.
function rate(name) {
  const now = frames[current];
  const before = frames[Math.max(0, current - 4)];
  const seconds = (now.time_ns - before.time_ns) / 1e9;
  return seconds > 0 ? count(Math.round((now.counts[name] - before.counts[name]) / seconds)) + "/s" : "–";
}

function drawTables() {
  const now = frames[current];
  const { levels, counts } = now;
  list("now", [
    ["reserved", bytes(levels.reserved), colour("reserved")], ["requested", bytes(levels.requested), colour("requested")],
    ["used", bytes(levels.used), colour("used")], ["evictable", bytes(levels.evictable), colour("evictable")],
    ["pending", bytes(levels.pending), colour("pending")], ["free", bytes(levels.free), colour("free")],
    ["capacity", bytes(levels.leased)], ["live blocks", count(counts.live_blocks)], ["allocations", rate("allocations")],
    ["waiting", count(counts.waiting)], ["served after a wait", count(counts.waited)], ["refused or ended", count(counts.unserved)],
    ["evictions", count(counts.evictions)],
  ]);
  const more = counts.waiting - now.waiting.length;
  byId("waiting-title").textContent = more > 0
    ? `Waiting requests: the first ${now.waiting.length} of ${count(counts.waiting)}` : "Waiting requests";
  table("waiting", ["#", "requested#", "tag", "stream", "waited#", "expected from now#", "made at"],
    now.waiting.map((request, index) => [String(index + 1), bytes(request.requested),
      (request.tag || "–") + (request.is_over_limit ? " (at its limit)" : ""), request.stream, time(request.waited_ns),
      request.expected_ns === null ? "not known" : time(request.expected_ns), request.site]), "None.");
  byId("tags-section").hidden = now.tags.length === 0;
  table("tags", ["tag", "used#", "highest#", "limit", "weight#", "waiting#", "served after a wait#", "99 % waited up to#", "refused or ended#"],
    now.tags.map((tag) => [tag.name, bytes(tag.used), bytes(tag.high), quota(tag), tag.weight === 0 ? "–" : String(tag.weight),
      count(tag.waiting), count(tag.served), tag.served === 0 ? "–" : time(tag.p99_ns), count(tag.unserved + tag.rejected)]), "");
  table("streams", ["stream", "used#", "pending#", "cached#", "behind the host by#"],
    now.streams.map((stream) => [stream.name, bytes(stream.used), bytes(stream.pending), bytes(stream.cached), time(stream.latency_ns)]), "None.");
  byId("events-section").hidden = !now.has_history;
  byId("events").textContent = now.events.join("\n");
}

function show(frame) {
  current = Math.min(frames.length - 1, Math.max(0, frame));
  const slider = byId("frame");
  slider.max = String(frames.length - 1);
  slider.value = String(current);
  const now = frames[current];
  const shown = start.is_live ? (follows ? "now" : time(frames.at(-1).time_ns - now.time_ns) + " ago")
    : `${time(now.time_ns - span()[0])} of ${time(span()[1] - span()[0])}`;
  byId("time").textContent = shown;
  slider.setAttribute("aria-valuetext", shown);
  drawLevels();
  drawMap();
  drawBlockText();
  drawTables();
  drawTimes();
}

// A finished run plays; a live page follows or stays.
let timer = null;
function label() {
  byId("play").textContent = start.is_live ? (follows ? "Pause" : "Live") : timer === null ? "Play" : "Stop";
}
function stay() { follows = false; clearInterval(timer); timer = null; label(); }
byId("play").addEventListener("click", () => {
  if (start.is_live) {
    follows = !follows;
    label();
    show(follows ? frames.length - 1 : current);
    return;
  }
  if (timer !== null) { stay(); return; }
  if (current === frames.length - 1) show(0);
  timer = setInterval(() => (current === frames.length - 1 ? stay() : show(current + 1)), 60);
  label();
});
byId("frame").addEventListener("input", (event) => { stay(); show(Number(event.target.value)); });
byId("levels").addEventListener("click", (event) => {
  const box = byId("levels").getBoundingClientRect();
  const [first, last] = span();
  const at = first + (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT) * (last - first);
  const behind = frames.findIndex((frame) => frame.time_ns > at);
  stay();
  show((behind === -1 ? frames.length : behind) - 1);
});

function status(text, isGood) {
  const place = byId("status");
  if (place.textContent !== text) place.textContent = text;
  place.className = isGood ? "good" : "bad";
}

function receive(frame) {
  // Another process answers now, or the clock began anew.
  if (frames.length > 0 && frame.time_ns < frames.at(-1).time_ns) {
    frames.length = 0;
    extents.clear();
    current = 0;
  }
  frames.push(frame);
  extend(frame);
  if (frames.length > WITH_BLOCKS) frames[frames.length - 1 - WITH_BLOCKS].segments = null;
  if (frames.length > KEPT) { frames.shift(); current = Math.max(0, current - 1); }
  byId("main").hidden = false;
  status(frame.health.split(";")[0], frame.is_serving);
  show(follows ? frames.length - 1 : current);
}

// Frames come while the page is seen, and no longer.
let source = null;
function connect() {
  if (source !== null) return;
  source = new EventSource(location.pathname + location.search);
  source.onmessage = (event) => receive(JSON.parse(event.data));
  source.onerror = () => {
    status("not connected; trying again", false);
    // A refusal ends the source for good.
    if (source.readyState === EventSource.CLOSED) { disconnect(); setTimeout(connectIfSeen, 5000); }
  };
}
function disconnect() { if (source !== null) source.close(); source = null; }
function connectIfSeen() { if (document.hidden) disconnect(); else connect(); }

function redraw() { if (frames.length > 0) show(current); }
window.addEventListener("resize", redraw);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

document.title = start.title;
byId("title").textContent = start.title;
byId("about").textContent = start.about;
list("facts", start.facts);
label();
if (start.is_live) {
  status("connecting", false);
  document.addEventListener("visibilitychange", connectIfSeen);
  connectIfSeen();
} else if (frames.length > 0) {
  frames.forEach(extend);
  byId("main").hidden = false;
  // Begins with the moment of the most bytes in use.
  show(frames.reduce((best, frame, index) => (frame.levels.used > frames[best].levels.used ? index : best), 0));
} else {
  status("nothing was recorded", false);
}
