
"use strict";
// A live page keeps ten minutes of figures, as the server does, and a minute of frames.
const KEPT = 600, FRAMES = 240;
const RANGES = [["1 min", 60e3], ["5 min", 300e3], ["10 min", 600e3]];
// Rows of the map.
const ROWS = 24;
const STATES = [["used", "used"], ["evictable", "evictable"], ["set_aside", "set aside"], ["pending", "pending"], ["free", "free"]];
const OTHERS = "others";

const byId = (id) => document.getElementById(id);
const start = JSON.parse(byId("start").textContent);
const frames = start.frames;
let current = 0;

function scaled(value, units, base) {
  let unit = 0;
  while (value >= base && unit < units.length - 1) { value /= base; unit += 1; }
  const digits = unit === 0 && Number.isInteger(value) ? 0 : value < 10 ? 2 : value < 100 ? 1 : 0;
  return value.toFixed(digits).replace(/\.0+$/, "") + " " + units[unit];
}
const bytes = (value) => scaled(value, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], 1024);
const time = (ns) => scaled(ns, ["ns", "µs", "ms", "s"], 1000);
const count = (value) => value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");
const ago = (ms) => ms < 500 ? "now" : ms < 60e3 ? Math.round(ms / 1e3) + " s ago"
  : ms % 60e3 === 0 ? ms / 60e3 + " min ago" : `${Math.floor(ms / 60e3)} min ${Math.round(ms % 60e3 / 1e3)} s ago`;
// A time on the axis: of day, or since the beginning of a finished run.
const moment = (t) => start.is_live ? clock(t) : time((t - past.t[0]) * 1e6);
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

// Text of the data reaches the page as text nodes only.
function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}
function button(text, act) {
  const made = element("button", text);
  made.type = "button";
  made.addEventListener("click", act);
  return made;
}
function key(name, fill) {
  const label = element("span", name, fill ? "key" : "");
  if (fill) label.style.setProperty("--colour", fill);
  return label;
}
function list(id, entries) {
  byId(id).replaceChildren(...entries.map(([name, value, fill, className]) => {
    const item = element("li");
    item.append(key(name + (value === undefined ? "" : " "), fill));
    if (value !== undefined) item.append(element("b", value, className));
    return item;
  }));
}

// A colour for each name: hues a golden angle apart, in three shades.
const numbers = new Map();
function shade(name) {
  if (name === OTHERS) return colour("dim");
  if (!numbers.has(name)) numbers.set(name, numbers.size);
  const number = numbers.get(name);
  const light = Number(colour("light")) + [0, 0.13, -0.12][number % 3];
  return `oklch(${light} ${[0.14, 0.11, 0.15][number % 3]} ${(250 + number * 137.508) % 360})`;
}

// What was measured: a column of numbers for each figure, beside the times.
const past = { t: [], pool: {}, counters: new Map(), tags: new Map(), others: {} };

function forget() {
  past.t.length = 0;
  past.pool = {}; past.others = {};
  past.counters.clear(); past.tags.clear();
}

// Adds columns to others: a figure that is new was 0 before, and one that ended is 0 from now on.
function extend(known, added, before, length) {
  for (const name of Object.keys(added)) known[name] ??= Array(before).fill(0);
  for (const [name, values] of Object.entries(known)) values.push(...(added[name] ?? Array(length).fill(0)));
}

// Numbers of the server are differences.
function summed(values) { let sum = 0; return values.map((value) => (sum += value)); }

function receiveRows(rows) {
  const t = summed(rows.times);
  // All rows, another process, or a clock that began anew.
  if (rows.is_whole || t[0] <= (past.t.at(-1) ?? 0) - 60e3) forget();
  const first = t.findIndex((t) => t > (past.t.at(-1) ?? 0));
  if (first === -1) return;
  const columns = (added) => Object.fromEntries(Object.entries(added).map(([name, values]) => [name, summed(values).slice(first)]));
  append(t.slice(first), columns(rows.pool), rows.counters.map(([name, values]) => [name, columns({ count: values })]),
    rows.tags.map(([name, values]) => [name, columns(values)]), columns(rows.others));
}

function append(t, pool, counters, tags, others) {
  const before = past.t.length;
  past.t.push(...t);
  extend(past.pool, pool, before, t.length);
  extend(past.others, others, before, t.length);
  for (const [known, added] of [[past.counters, new Map(counters)], [past.tags, new Map(tags)]]) {
    for (const name of added.keys()) if (!known.has(name)) known.set(name, {});
    for (const [name, columns] of known) extend(columns, added.get(name) ?? {}, before, t.length);
  }
  const spare = start.is_live ? past.t.length - KEPT : 0;
  if (spare <= 0) return;
  past.t.splice(0, spare);
  for (const columns of [past.pool, past.others, ...past.counters.values(), ...past.tags.values()])
    for (const values of Object.values(columns)) values.splice(0, spare);
  // What a tag did is forgotten.
  const isSilent = (values) => values.every((value) => value === 0);
  const present = new Set(tags.map(([name]) => name));
  for (const [name, columns] of past.tags)
    if (!present.has(name) && Object.values(columns).every(isSilent)) past.tags.delete(name);
}

// A finished run has frames alone: its figures are theirs.
function appendFrame(frame, before) {
  const since = (now, earlier, name) => [earlier ? Math.max(0, now[name] - earlier[name]) : 0];
  const { levels, counts } = frame;
  const pool = { limit: [levels.leased], waiting: [counts.waiting] };
  for (const name of ["used", "evictable", "pending", "reserved", "requested"]) pool[name] = [levels[name]];
  for (const [column, name] of [["allocated", "allocations"], ["refused", "refused"], ["unserved", "unserved"], ["evicted", "evictions"]])
    pool[column] = since(counts, before?.counts, name);
  append([frame.time_ns / 1e6], pool, [], frame.tags.map((tag) => {
    const earlier = before?.tags.find(({ name }) => name === tag.name);
    return [tag.name, { used: [tag.used], waiting: [tag.waiting], granted: since(tag, earlier, "granted"),
      served: since(tag, earlier, "served"), waited_us: since(tag, earlier, "waited_us"), refused: since(tag, earlier, "refused") }];
  }), {});
}

// The view: a range up to now, or what was zoomed into; the moment that is shown, unless the page follows; and the pointer.
let range = 600e3, zoom = null, pinned = start.is_live ? null : 0, hover = null, drag = null;

function view() {
  const last = past.t.at(-1);
  if (zoom !== null) return zoom;
  if (!start.is_live) return [past.t[0], Math.max(last, past.t[0] + 1e-6)];
  return [last - Math.min(range, Math.max(60e3, last - past.t[0])), last];
}
// The last row that is not later.
function rowAt(t) {
  let [low, high] = [0, past.t.length];
  while (low < high) { const middle = (low + high) >> 1; if (past.t[middle] <= t) low = middle + 1; else high = middle; }
  return Math.max(0, low - 1);
}
const shown = () => pinned ?? past.t.at(-1);
const perSecond = (values) => (row) => row === 0 || !values?.[row] ? 0 : values[row] / (past.t[row] - past.t[row - 1] || 1e-3) * 1e3;
const level = (values) => (row) => values === undefined ? 0 : values[row];

function penOf(canvas) {
  const scale = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.font = "11px system-ui, sans-serif";
  return { pen, width, height };
}

// Round steps, at most `most` of them up to `extent`: powers of two of bytes; else 1, 2 or 5 times a power of ten.
function step(extent, most, isBytes) {
  const least = extent / most;
  if (isBytes) return 2 ** Math.ceil(Math.log2(Math.max(1, least)));
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].find((part) => part * power >= least * 0.9999) * power;
}
function timeStep(extent, most) {
  if (!start.is_live) return step(extent, most);
  return [1, 2, 5, 10, 15, 30, 60, 120, 300].map((s) => s * 1e3).find((ms) => extent / ms <= most) ?? 600e3;
}

const LEFT = 62, RIGHT = 10, BELOW = 17;
const along = (t, width) => { const [from, to] = view(); return LEFT + (width - LEFT - RIGHT) * (t - from) / (to - from); };

// Draws stacked areas and lines over the view; `low` charts have no times below.
function drawChart(id, { areas = [], lines = [], format, isBytes = false, least = 1 }) {
  const canvas = byId(id);
  const { pen, width, height } = penOf(canvas);
  const below = canvas.classList.contains("low") ? 4 : BELOW;
  const [from, to] = view();
  const [first, last] = [rowAt(from), rowAt(to)];
  const x = (row) => Math.max(LEFT, along(past.t[row], width));
  // The sums of the areas, from the lowest up.
  const sums = [];
  for (const { value } of areas) {
    const under = sums.at(-1);
    const sum = new Float64Array(last + 1);
    for (let row = first; row <= last; row += 1) sum[row] = value(row) + (under ? under[row] : 0);
    sums.push(sum);
  }
  let top = least;
  for (let row = first; row <= last; row += 1) {
    if (sums.length > 0) top = Math.max(top, sums.at(-1)[row]);
    for (const { value, isBound } of lines) if (!isBound) top = Math.max(top, value(row));
  }
  // A limit is seen if it is near.
  for (const { value, isBound } of lines) if (isBound && value(last) <= 2 * top) top = Math.max(top, value(last));
  const every = step(top, Math.max(2, Math.floor(height / 45)), isBytes);
  top *= 1.06;
  const y = (value) => (height - below) - (height - below - 6) * value / top;
  pen.save();
  pen.beginPath(); pen.rect(LEFT, 0, width - LEFT - RIGHT, height); pen.clip();
  const trace = (value) => {
    for (let row = first; row <= last; row += 1) {
      if (row > first) pen.lineTo(x(row), y(value(row - 1)));
      pen.lineTo(x(row), y(value(row)));
    }
    pen.lineTo(Math.max(x(last), Math.min(width - RIGHT, along(to, width))), y(value(last)));
  };
  // The largest sum first: each further one is drawn over it.
  for (let area = areas.length - 1; area >= 0; area -= 1) {
    pen.beginPath(); pen.moveTo(x(first), y(0));
    trace((row) => sums[area][row]);
    pen.lineTo(width - RIGHT, y(0)); pen.closePath();
    pen.globalAlpha = areas[area].alpha ?? 1;
    pen.fillStyle = colour("paper"); if (pen.globalAlpha < 1) { pen.globalAlpha = 1; pen.fill(); pen.globalAlpha = areas[area].alpha; }
    pen.fillStyle = areas[area].fill; pen.fill();
    pen.globalAlpha = 1;
  }
  for (const { value, fill, dash } of lines) {
    pen.beginPath(); trace(value);
    pen.strokeStyle = fill; pen.lineWidth = 1.4; pen.setLineDash(dash ?? []); pen.stroke(); pen.setLineDash([]);
  }
  pen.restore();
  pen.lineWidth = 1;
  pen.strokeStyle = colour("rule"); pen.fillStyle = colour("dim");
  pen.textAlign = "right";
  for (let value = 0; value <= top; value += every) {
    pen.globalAlpha = value === 0 ? 1 : 0.55;
    pen.beginPath(); pen.moveTo(LEFT, y(value)); pen.lineTo(width - RIGHT, y(value)); pen.stroke();
    pen.globalAlpha = 1;
    pen.fillText(format(value), LEFT - 6, y(value) + 4);
  }
  if (below === BELOW) drawTimesBelow(pen, width, height, from, to);
  const mark = (t, ink, dash) => {
    if (t < from || t > to) return;
    pen.setLineDash(dash); pen.strokeStyle = ink; pen.beginPath();
    pen.moveTo(along(t, width), 0); pen.lineTo(along(t, width), height - below); pen.stroke(); pen.setLineDash([]);
  };
  if (pinned !== null) mark(pinned, colour("ink"), []);
  if (hover !== null) mark(hover, colour("dim"), [3, 3]);
  if (drag !== null && drag.to !== drag.from) {
    pen.fillStyle = colour("ink"); pen.globalAlpha = 0.13;
    pen.fillRect(along(drag.from, width), 0, along(drag.to, width) - along(drag.from, width), height - below);
    pen.globalAlpha = 1;
  }
}

function drawTimesBelow(pen, width, height, from, to) {
  const every = timeStep(to - from, Math.max(2, Math.floor((width - LEFT) / 92)));
  // Up to now, ticks are as long ago; else they are round times.
  const isAgo = start.is_live && zoom === null;
  const origin = isAgo ? to : start.is_live ? 0 : past.t[0];
  for (let at = origin + Math.ceil((from - origin) / every - 1e-9) * every; at <= to + every * 1e-9; at += every) {
    const left = along(at, width);
    pen.textAlign = left > width - 40 ? "right" : left < LEFT + 24 ? "left" : "center";
    pen.fillText(isAgo ? ago(to - at) : moment(at), Math.min(left, width - 2), height - 4);
  }
}

// The tags of the charts. Chosen ones are shown alone, and so are those whose names have the text of the filter.
const chosen = new Set();
let pointed = null;
const isFound = (name) => name.toLowerCase().includes(byId("filter").value.toLowerCase());
const isShown = (name) => isFound(name) && (chosen.size === 0 || chosen.has(name));

function measure(columns) {
  const by = byId("measure").value;
  if (by === "wait") return (row) => columns.served?.[row] > 0 ? columns.waited_us[row] / columns.served[row] * 1e3 : 0;
  return by === "used" || by === "waiting" ? level(columns[by]) : perSecond(columns[by]);
}

function drawTags(row) {
  const by = byId("measure").value;
  const format = by === "used" ? bytes : by === "wait" ? time : count;
  const all = [...past.tags, ...(Object.values(past.others).some((values) => values.some((value) => value > 0)) ? [[OTHERS, past.others]] : [])];
  byId("tenants-figure").hidden = all.length === 0;
  const parts = all.filter(([name]) => isShown(name)).map(([name, columns]) =>
    ({ value: measure(columns), fill: shade(name), alpha: pointed === null || pointed === name ? 1 : 0.15 }));
  const isLines = by === "wait";
  drawChart("tenants", { areas: isLines ? [] : parts, lines: isLines ? parts : [], format, isBytes: by === "used", least: isLines ? 1000 : 1 });
  // The buttons stay, so that the one with the focus does.
  const place = byId("tenants-legend");
  while (place.children.length > all.length) place.lastChild.remove();
  all.forEach(([name, columns], at) => {
    if (place.children.length <= at) place.append(chip());
    const made = place.children[at].firstChild;
    const [label, value] = made.children;
    made.dataset.name = name;
    made.title = name;
    label.textContent = name;
    label.style.setProperty("--colour", shade(name));
    value.textContent = format(measure(columns)(row));
    made.setAttribute("aria-pressed", String(chosen.has(name)));
    made.classList.toggle("off", !isShown(name));
    place.children[at].hidden = !isFound(name);
  });
}
function chip() {
  const item = element("li");
  const made = button(undefined, () => {
    const { name } = made.dataset;
    if (!chosen.delete(name)) chosen.add(name);
    redraw();
  });
  for (const [event, isOver] of [["pointerenter", true], ["pointerleave", false], ["focus", true], ["blur", false]])
    made.addEventListener(event, () => { pointed = isOver ? made.dataset.name : null; redraw(); });
  made.append(element("span", "", "key"), element("b"));
  item.append(made);
  return item;
}
byId("measure").addEventListener("change", () => redraw());
byId("filter").addEventListener("input", () => redraw());

function drawCharts() {
  const row = rowAt(hover ?? shown());
  const { pool } = past;
  const legend = (id, parts, format) => list(id, parts.map(({ name, value, fill }) => [name, format(value(row)), fill]));
  const part = (name, value, fill = name) => ({ name, value, fill: colour(fill) });
  const used = [part("evictable", level(pool.evictable)),
    part("used", (row) => Math.max(0, pool.used[row] - pool.evictable[row])), part("pending", level(pool.pending))];
  const lines = [part("requested", level(pool.requested)), part("reserved", level(pool.reserved)),
    { ...part("limit", level(pool.limit)), isBound: true, dash: [5, 4] }];
  drawChart("levels", { areas: used, lines, format: bytes, isBytes: true });
  used[1] = part("used", level(pool.used));
  legend("levels-legend", [used[1], used[0], used[2], ...lines], bytes);
  const waiting = part("requests", level(pool.waiting), "pending");
  drawChart("waits", { areas: [waiting], format: count, least: 4 });
  legend("waits-legend", [waiting], count);
  const rates = [part("allocated", perSecond(pool.allocated)), part("evicted", perSecond(pool.evicted)),
    part("refused", perSecond(pool.refused)), { ...part("ended unserved", perSecond(pool.unserved), "unserved") }];
  drawChart("rates", { lines: rates, format: count, least: 4 });
  legend("rates-legend", rates, count);
  byId("counters-figure").hidden = past.counters.size === 0;
  if (past.counters.size > 0) {
    const counters = [...past.counters].map(([name, columns], at) =>
      ({ name, value: perSecond(columns.count), fill: colour(["used", "evictable", "reserved", "pending"][at]) }));
    drawChart("counters", { lines: counters, format: count, least: 4 });
    legend("counters-legend", counters, count);
  }
  drawTags(row);
}

// Pointing shows the figures of a moment, a click stays there, and dragging zooms.
for (const canvas of document.querySelectorAll(".chart")) {
  const timeAt = (event) => {
    const box = canvas.getBoundingClientRect();
    const [from, to] = view();
    const part = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    return from + Math.min(1, Math.max(0, part)) * (to - from);
  };
  canvas.addEventListener("pointerdown", (event) => {
    const t = timeAt(event);
    drag = { from: t, to: t, view: view() };
    try { canvas.setPointerCapture(event.pointerId); } catch { /* It has gone already. */ }
  });
  canvas.addEventListener("pointermove", (event) => {
    hover = timeAt(event);
    if (drag !== null) drag.to = hover;
    drawCharts();
    label();
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag === null) return;
    const [from, to] = [drag.from, timeAt(event)].sort((a, b) => a - b);
    drag = null;
    const [begin, end] = view();
    if (to - from > (end - begin) / 100) { zoom = [from, to]; labelRanges(); redraw(); } else stay(from);
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => { hover = null; if (past.t.length > 0) { drawCharts(); label(); } });
  canvas.addEventListener("dblclick", () => unzoom(range));
}
function unzoom(span) {
  [range, zoom] = [span, null];
  labelRanges();
  redraw();
}
function labelRanges() {
  const live = start.is_live ? RANGES : [["whole run", range]];
  if (byId("ranges").children.length === 0) byId("ranges").append(...live.map(([name, span]) => button(name, () => unzoom(span))));
  live.forEach(([, span], at) => byId("ranges").children[at].setAttribute("aria-pressed", String(zoom === null && span === range)));
}

// Shows rows under headings that sort. A column is: its name, the cell of a row, what it sorts by, and its kind.
const sorted = {};
function table(id, columns, rows, none) {
  const place = byId(id);
  if (rows.length === 0) { place.replaceChildren(rowOf("td", [[none, ""]])); return; }
  const isNumber = ([, , order]) => typeof order(rows[0]) === "number";
  const kind = (column) => (column[3] ?? "") + (isNumber(column) ? " number" : "");
  const by = sorted[id];
  if (by) {
    const order = columns[by.column][2];
    const compare = (a, b) => typeof a === "number" ? a - b : a < b ? -1 : a > b ? 1 : 0;
    rows = rows.toSorted((a, b) => compare(order(a), order(b)) * by.sign);
  }
  // The headings stay: a click that begins on one ends there.
  if (place.querySelector("th") === null) {
    place.replaceChildren(rowOf("th", columns.map((column, at) => [button(column[0], () => {
      // Numbers begin with the largest.
      const sign = isNumber(column) ? -1 : 1;
      sorted[id] = { column: at, sign: sorted[id]?.column === at ? -sorted[id].sign : sign };
      redraw();
    }), kind(column)])));
  }
  const [head, ...old] = place.rows;
  [...head.children].forEach((cell, at) => {
    if (by?.column === at) cell.setAttribute("aria-sort", by.sign > 0 ? "ascending" : "descending");
    else cell.removeAttribute("aria-sort");
  });
  old.forEach((row) => row.remove());
  place.append(...rows.map((row) => rowOf("td", columns.map((column) => [column[1](row), kind(column)]))));
}
function rowOf(kind, cells) {
  const made = element("tr");
  made.append(...cells.map(([cell, className]) => {
    const box = element(kind, undefined, className);
    box.append(cell);
    if (kind === "th") box.scope = "col";
    return box;
  }));
  return made;
}

// The map: segments one after another, each as long as it ever was, so that a block keeps its position.
const extents = new Map();
let perRow = 1;

function extendMap(frame) {
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
  return frame.segments.flatMap(({ address, blocks }) => {
    const { base } = extents.get(address);
    return blocks.map(([offset, size, state, stream, tag]) =>
      ({ from: base + offset, size, state, stream, tag, address: BigInt(address) + BigInt(offset) }));
  });
}

let selected = null;
function drawMap() {
  const { pen, width, height } = penOf(byId("map"));
  const pitch = height / ROWS;
  const kind = byId("colours").value;
  const states = Object.fromEntries(STATES.map(([state]) => [state, colour(state)]));
  const nameOf = (block) => kind === "state" ? block.state : block.state === "free" ? "free"
    : kind === "tag" ? block.tag ?? "no tag" : block.stream === null ? "no stream" : "S" + block.stream;
  const known = new Map();
  const fillOf = (name) => {
    if (!known.has(name)) known.set(name, states[name] ?? (name.startsWith("no ") ? colour("dim") : shade(name)));
    return known.get(name);
  };
  const blocks = placed(frames[current]);
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
    pen.fillStyle = fillOf(nameOf(block));
    draw(block, (...box) => pen.fillRect(...box));
  }
  const chosenBlock = blocks.find((block) => block.address === selected);
  pen.strokeStyle = colour("ink");
  pen.lineWidth = 2;
  if (chosenBlock) draw(chosenBlock, (left, top, wide, tall) => pen.strokeRect(left, top, Math.max(3, wide), tall));
  list("legend", kind === "state" ? STATES.map(([state, name]) => [name, undefined, states[state]])
    : [...known.keys()].sort().map((name) => [name, undefined, fillOf(name)]));
}

function describe(block) {
  const names = Object.fromEntries(STATES);
  const parts = [`0x${block.address.toString(16)}: ${bytes(block.size)}`, names[block.state] || block.state];
  if (block.stream !== null) parts.push(`stream S${block.stream}`);
  if (block.tag !== null) parts.push(block.tag);
  return parts.join(", ");
}

function drawBlockText() {
  const { small_blocks, small_bytes } = frames[current];
  const blocks = placed(frames[current]);
  const found = blocks.find((block) => block.address === selected);
  const rest = small_blocks > 0
    ? `; ${count(small_blocks)} smaller blocks of ${bytes(small_bytes)} together are not drawn` : "";
  byId("block").textContent = found ? describe(found)
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

function drawFigures() {
  const { pool } = past;
  const row = rowAt(shown());
  const minute = rowAt(past.t[row] - 60e3);
  const inMinute = (values) => values.slice(minute + 1, row + 1).reduce((sum, value) => sum + value, 0);
  const [limit, used] = [pool.limit[row], pool.used[row]];
  const refused = inMinute(pool.refused);
  // On a screen of a phone, the first ones matter most.
  list("now", [
    ["limit", bytes(limit)], ["waiting", count(pool.waiting[row])],
    [start.is_live ? "refused, 1 min" : "refused", count(start.is_live ? refused : frames[current].counts.refused), undefined, refused > 0 ? "bad" : ""],
    [`used, ${Math.round(100 * used / limit)} %`, bytes(used)], ["evictable", bytes(pool.evictable[row])],
    ["pending", bytes(pool.pending[row])], ["reserved", bytes(pool.reserved[row])],
    ["allocated", count(perSecond(pool.allocated)(row)) + "/s"], ["evicted", count(perSecond(pool.evicted)(row)) + "/s"],
    ...[...past.counters].map(([name, columns]) => [name, count(perSecond(columns.count)(row)) + "/s"]),
  ]);
}

function drawTables() {
  const now = frames[current];
  const { counts } = now;
  const more = counts.waiting - now.waiting.length;
  byId("waiting-title").textContent = more > 0
    ? `Waiting requests: the first ${now.waiting.length} of ${count(counts.waiting)}` : "Waiting requests";
  now.waiting.forEach((request, index) => { request.place = index + 1; });
  table("waiting", [
    ["place", (one) => String(one.place), (one) => one.place],
    ["requested", (one) => bytes(one.requested), (one) => one.requested],
    ["tag", (one) => (one.tag ?? "–") + (one.is_over_limit ? " (at its limit)" : ""), (one) => one.tag ?? ""],
    ["stream", (one) => one.stream, (one) => one.stream, "minor"],
    ["waited", (one) => time(one.waited_ns), (one) => one.waited_ns],
    ["expected from now", (one) => one.expected_ns === null ? "not known" : time(one.expected_ns), (one) => one.expected_ns ?? -1, "minor"],
    ["made at", (one) => one.site, (one) => one.site, "minor"],
  ], now.waiting, "None.");
  const tags = now.tags.filter((tag) => isShown(tag.name));
  byId("tags-section").hidden = now.tags.length === 0;
  table("tags", [
    ["tag", (tag) => key(tag.name, shade(tag.name)), (tag) => tag.name],
    ["used", (tag) => bytes(tag.used), (tag) => tag.used],
    ["limit", quota, (tag) => tag.limit === null ? "" : String(tag.limit).padStart(20)],
    ["waiting", (tag) => count(tag.waiting), (tag) => tag.waiting],
    ["refused", (tag) => count(tag.refused), (tag) => tag.refused],
    ["highest", (tag) => bytes(tag.high), (tag) => tag.high, "minor"],
    ["weight", (tag) => tag.weight === 0 ? "–" : String(tag.weight), (tag) => tag.weight, "minor"],
    ["granted", (tag) => count(tag.granted), (tag) => tag.granted, "minor"],
    ["served after a wait", (tag) => count(tag.served), (tag) => tag.served, "minor"],
    ["99 % waited up to", (tag) => tag.served === 0 ? "–" : time(tag.p99_ns), (tag) => tag.p99_ns, "minor"],
  ], tags, "None of them has this name.");
  table("streams", [
    ["stream", (one) => one.name, (one) => one.name],
    ["used", (one) => bytes(one.used), (one) => one.used],
    ["pending", (one) => bytes(one.pending), (one) => one.pending],
    ["cached", (one) => bytes(one.cached), (one) => one.cached],
    ["behind the host by", (one) => time(one.latency_ns), (one) => one.latency_ns, "minor"],
  ], now.streams, "None.");
  byId("events-section").hidden = !now.has_history;
  // Events have times of the device's clock.
  const at = (ns) => start.is_live ? new Date(now.unix_ms - (now.time_ns - ns) / 1e6).toTimeString().slice(0, 8)
    + "." + String(Math.floor(now.unix_ms - (now.time_ns - ns) / 1e6) % 1000).padStart(3, "0") : time(ns).padStart(9);
  byId("events").textContent = now.events.map(([ns, text]) => `${at(ns)}  ${text}`).join("\n");
}

function drawAlerts() {
  const { alerts } = frames.at(-1);
  const place = byId("alerts");
  const texts = alerts.map(({ kind, text, since }) => [kind, since === null ? text : `${text}, since ${clock(since)}`]);
  // Screen readers read it aloud when it changes.
  if (place.dataset.shown === JSON.stringify(texts)) return;
  place.dataset.shown = JSON.stringify(texts);
  place.replaceChildren(...texts.map(([kind, text]) => {
    const item = element("li", undefined, ["device lost", "deadlock", "device stalled"].includes(kind) ? "bad" : "");
    item.append(element("b", kind), text);
    return item;
  }));
}

const timeOf = (frame) => start.is_live ? frame.unix_ms : frame.time_ns / 1e6;

// Shows the moment that is pinned, or the latest one.
function redraw() {
  if (past.t.length === 0 || frames.length === 0) return;
  byId("main").hidden = false;
  const [from, to] = view();
  const slider = byId("frame");
  [slider.min, slider.max] = [String(rowAt(from)), String(rowAt(to))];
  slider.value = String(rowAt(shown()));
  const behind = pinned === null ? -1 : frames.findIndex((frame) => timeOf(frame) > pinned + 1e-6);
  // A row and a frame of the same moment are a second apart, at most.
  const isKept = behind !== 0 || timeOf(frames[0]) - pinned < 1000;
  current = (behind === -1 ? frames.length : Math.max(1, behind)) - 1;
  byId("gone").hidden = isKept;
  byId("details").hidden = !isKept;
  label();
  drawFigures();
  drawCharts();
  drawTables();
  drawAlerts();
  if (!isKept) return;
  drawMap();
  drawBlockText();
  drawTimes();
}
function stay(t) { pinned = t; clearInterval(timer); timer = null; redraw(); }

// A finished run plays; a live page follows or stays.
let timer = null;
function label() {
  byId("play").textContent = start.is_live ? (pinned === null ? "Pause" : "Live") : timer === null ? "Play" : "Stop";
  const t = hover ?? shown();
  const text = t === undefined ? "" : !start.is_live ? `${moment(t)} of ${moment(past.t.at(-1))}`
    : t === past.t.at(-1) ? "now" : `${clock(t)}, ${ago(past.t.at(-1) - t)}`;
  byId("time").textContent = text;
  byId("frame").setAttribute("aria-valuetext", text);
}
byId("play").addEventListener("click", () => {
  if (start.is_live) { if (pinned !== null) zoom = null; labelRanges(); stay(pinned === null ? past.t.at(-1) : null); return; }
  if (timer !== null) { stay(pinned); return; }
  if (current === frames.length - 1) pinned = past.t[0];
  timer = setInterval(() => {
    if (current === frames.length - 1) { stay(pinned); return; }
    pinned = past.t[current + 1];
    redraw();
  }, 60);
  redraw();
});
byId("frame").addEventListener("input", (event) => stay(past.t[Number(event.target.value)]));
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && zoom !== null) unzoom(range); });

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
  }
  frames.push(frame);
  extendMap(frame);
  if (frames.length > FRAMES) frames.shift();
  status(frame.health.split(";")[0], frame.is_serving);
  byId("clock").textContent = clock(frame.unix_ms);
  redraw();
}

// Frames come while the page is seen, and no longer.
let source = null;
function connect() {
  if (source !== null) return;
  source = new EventSource(location.pathname + location.search);
  source.addEventListener("rows", (event) => receiveRows(JSON.parse(event.data)));
  source.onmessage = (event) => receive(JSON.parse(event.data));
  source.onerror = () => {
    status("not connected; trying again", false);
    // A refusal ends the source for good.
    if (source.readyState === EventSource.CLOSED) { disconnect(); setTimeout(connectIfSeen, 5000); }
  };
}
function disconnect() { if (source !== null) source.close(); source = null; }
function connectIfSeen() { if (document.hidden) disconnect(); else connect(); }

window.addEventListener("resize", redraw);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

document.title = start.title;
byId("title").textContent = start.title;
byId("about").textContent = start.about;
list("facts", start.facts);
labelRanges();
label();
if (start.is_live) {
  status("connecting", false);
  document.addEventListener("visibilitychange", connectIfSeen);
  connectIfSeen();
} else if (frames.length > 0) {
  frames.forEach((frame, at) => { extendMap(frame); appendFrame(frame, frames[at - 1]); });
  // Begins with the moment of the most bytes in use.
  stay(timeOf(frames.reduce((best, frame) => (frame.levels.used > best.levels.used ? frame : best))));
} else {
  status("nothing was recorded", false);
}
