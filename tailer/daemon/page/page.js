"use strict";
// Texts of tables and errors only ever become text nodes.

const POLL_MS = 2000, HISTORY_MS = 15000, RATE_MS = 60000;
const STATES = ["stopped", "retrying", "paused", "waiting", "standby", "starting", "catching_up", "snapshot", "streaming", "idle"];
const DESCENDING = { lag: true, rate: true, progress: true };
const $ = (id) => document.getElementById(id);

const view = { find: "", states: new Set(), sort: "attention", down: false, open: new Set() };
const rows = new Map();      // by pipeline: the elements of its row
const counted = new Map();   // by pipeline: [time, rows] of the last answers, for the throughput
let status = null, history_ = null, lastAnswer = null, details = new Map();

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value; else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function put(target, text) {
  if (target.textContent !== text) target.textContent = text;
}

const label = (state) => state.replace("_", " ");
const total = (found) => Object.values(found.rows).reduce((sum, each) => sum + each, 0);
// Times are those of the log and of /status: in UTC, with 24 hours.
const date = (moment) => new Date(moment).toISOString().slice(0, 10);
const time = (moment) => `${new Date(moment).toISOString().slice(11, 19)} UTC`;
const clock = (moment) => date(moment) === date(Date.now()) ? time(moment) : `${date(moment)} ${time(moment)}`;
const number = (value) => value === null || value === undefined ? "–" : value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 1 : 0 });
const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;

// Of few rows, two digits.
const small = (value) => value > 0 && value < 10 ? value.toLocaleString("en", { maximumSignificantDigits: 2 }) : number(value);

function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 1) return seconds === 0 ? "0 s" : "< 1 s";
  for (const [unit, size, below] of [["s", 1, 120], ["min", 60, 7200], ["h", 3600, 172800]]) {
    if (seconds < below) return `${Math.round(seconds / size)} ${unit}`;
  }
  return `${Math.round(seconds / 86400)} days`;
}

function bytes(count) {
  if (count === null) return "–";
  for (const unit of ["bytes", "kB", "MB", "GB"]) {
    if (count < 1000) return `${number(count)} ${unit}`;
    count /= 1000;
  }
  return `${number(count)} TB`;
}

function rate(found) {
  const points = counted.get(found.name);
  if (!points || points.length < 2) return null;
  const [first, last] = [points[0], points[points.length - 1]];
  return last[0] > first[0] ? Math.max(last[1] - first[1], 0) / (last[0] - first[0]) : null;
}

function count(found) {
  const rowsNow = total(found);
  const points = counted.get(found.name) || [];
  points.push([Date.parse(status.at) / 1000, rowsNow]);
  // The mean of a minute: rows that come in transactions far apart are no zero between these.
  counted.set(found.name, points.slice(-RATE_MS / POLL_MS));
}

const KEYS = {
  attention: (each) => [STATES.indexOf(each.state), -(each.lag.seconds ?? -1)],
  name: () => [],
  lag: (each) => [each.lag.seconds ?? -1],
  rate: (each) => [rate(each) ?? -1],
  progress: (each) => [each.seconds_since_progress ?? Infinity],
};

function order(one, other) {
  const [a, b] = [KEYS[view.sort](one), KEYS[view.sort](other)];
  for (let i = 0; i < a.length; i++) if (a[i] !== b[i]) return view.down ? b[i] - a[i] : a[i] - b[i];
  const names = one.name.localeCompare(other.name, "en", { numeric: true });
  return view.sort === "name" && view.down ? -names : names;
}

function matches(found) {
  return (!view.states.size || view.states.has(found.state)) && isFound(found);
}

function isFound(found) {
  const text = [found.name, found.table, found.sink, found.state, found.why].join(" ").toLowerCase();
  return view.find.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

function makeRow(name) {
  const parts = {
    state: element("span"),
    name: element("button", { type: "button", className: "name", textContent: name, ariaExpanded: "false" }),
    where: element("div", { className: "where" }),
    why: element("div", { hidden: true }, element("b"), element("span", { className: "hint" })),
    lag: element("span"),
    versions: element("span", { className: "versions" }),
    rate: element("td", { className: "number", "data-label": "Rows/s" }),
    progress: element("td", { className: "number", "data-label": "Last progress" }),
  };
  parts.name.addEventListener("click", () => toggle(name));
  parts.row = element("tr", {}, element("td", {}, parts.state), element("td", {}, parts.name, parts.where, parts.why),
    element("td", { className: "number", "data-label": "Lag" }, parts.lag, parts.versions), parts.rate, parts.progress);
  return parts;
}

function showRow(found) {
  if (!rows.has(found.name)) rows.set(found.name, makeRow(found.name));
  const parts = rows.get(found.name);
  put(parts.state, label(found.state) + (found.draining ? ", ending" : ""));
  parts.state.className = `state ${found.state}`;
  parts.state.title = `since ${clock(found.since)}`;
  put(parts.where, `${found.table} → ${found.sink}`);
  const why = found.why && found.state !== "streaming" ? found.why : "";
  parts.why.hidden = !(why || found.order);
  const kind = ["retrying", "stopped", "paused"].includes(found.state) ? found.state : "calm";
  parts.why.className = `why ${kind}-why`;
  const lasted = (Date.parse(status.at) - Date.parse(found.since)) / 1000;
  put(parts.why.children[0], why ? `${why} (since ${clock(found.since)}, ${span(lasted)})` : `asked to ${found.order}`);
  put(parts.why.children[1], found.hint);
  put(parts.lag, span(found.lag.seconds));
  put(parts.versions, found.lag.versions ? plural(found.lag.versions, "version") : "");
  put(parts.rate, found.rows === null ? "–" : small(rate(found)));
  const progress = found.seconds_since_progress;
  put(parts.progress, progress === null ? "none yet" : `${span(progress)}${progress >= 1 ? " ago" : ""}`);
  return parts;
}

function toggle(name) {
  if (!view.open.delete(name)) view.open.add(name);
  show();
}

function show() {
  if (!status) return;
  const found = status.pipelines.filter(matches).sort(order);
  const wanted = [];
  for (const each of found) {
    const parts = showRow(each), open = view.open.has(each.name);
    parts.name.ariaExpanded = String(open);
    parts.row.classList.toggle("open", open);
    wanted.push(parts.row);
    if (open) {
      showDetails(each.name);
      wanted.push(details.get(each.name).row);
    }
  }
  // Rows that stay where they are keep the focus.
  const body = $("rows");
  wanted.forEach((row, index) => {
    if (body.children[index] !== row) body.insertBefore(row, body.children[index] || null);
  });
  while (body.children.length > wanted.length) body.lastChild.remove();
  const all = status.pipelines.length;
  put($("count"), found.length === all ? plural(all, "pipeline") : `${number(found.length)} of ${plural(all, "pipeline")}`);
  $("empty").hidden = found.length > 0 || all === 0;
  showEvents();
  showSummary();
  showSort();
}

function showSummary() {
  const tally = Object.fromEntries(STATES.map((state) => [state, status.pipelines.filter((each) => each.state === state).length]));
  const broken = tally.stopped + tally.retrying;
  document.title = broken ? `(${broken}) lake-tailer` : "lake-tailer";
  const up = span((Date.parse(status.at) - Date.parse(status.began)) / 1000);
  put($("summary"), `${broken ? `${plural(broken, "pipeline")} need${broken === 1 ? "s" : ""} attention` : "All pipelines are well"} · running for ${up}`);
  for (const state of STATES) {
    let button = $("states").querySelector(`[data-state="${state}"]`);
    if (!button) {
      button = element("button", { type: "button", "data-state": state, ariaPressed: "false" }, element("span", { className: `state ${state}` }));
      button.addEventListener("click", () => {
        if (!view.states.delete(state)) view.states.add(state);
        remember();
      });
      $("states").append(button);
    }
    button.hidden = !tally[state] && !view.states.has(state);
    button.ariaPressed = String(view.states.has(state));
    put(button.firstChild, `${label(state)} ${tally[state]}`);
  }
}

function showSort() {
  $("sort").value = view.sort;
  for (const button of document.querySelectorAll("thead button")) {
    const sorted = button.dataset.sort === view.sort;
    if (sorted) button.parentNode.ariaSort = view.down ? "descending" : "ascending";
    else button.parentNode.removeAttribute("aria-sort");
  }
}

function showEvents() {
  if (!history_) return;
  const shown = new Set(view.find && status ? status.pipelines.filter(isFound).map((each) => each.name) : []);
  const events = history_.events.filter((each) => !view.find || shown.has(each.pipeline));
  const items = events.slice(0, 50).map((each) => element("li", {},
    element("time", { dateTime: each.at, textContent: clock(each.at), title: `${date(each.at)} ${time(each.at)}` }),
    element("b", { textContent: each.pipeline }),
    element("span", {}, element("span", { className: `state ${each.state}`, textContent: label(each.state) }),
      ` after ${label(each.before)}${each.why ? `: ${each.why}` : ""}`)));
  if (!items.length) items.push(element("li", { className: "none", textContent: view.find ? "None of these pipelines." : "No pipeline has failed, fallen behind or been paused since the daemon began." }));
  const made = element("ol", {}, ...items);
  if (made.textContent !== $("events").textContent) $("events").replaceChildren(...items);
}

async function ask(path) {
  try {
    const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(10000) });
    return answer.ok ? await answer.json() : null;
  } catch {
    return null;
  }
}

async function refresh() {
  if (!document.hidden) {
    const found = await ask("/status");
    if (found && found.format === 1) {
      status = found;
      lastAnswer = new Date();
      status.pipelines.forEach(count);
      show();
    }
    const lost = !found || found.format !== 1;
    $("connection").className = lost ? "lost" : "";
    const since = lastAnswer ? `since ${clock(lastAnswer)}` : "yet";
    put($("connection"), lost ? (found ? "This page is older than the daemon: reload it" : `The daemon has not answered ${since}; trying again`) : "Live");
  }
}

async function poll() {
  await refresh();
  setTimeout(poll, POLL_MS);
}

async function pollHistory() {
  if (!document.hidden) {
    const found = await ask("/history");
    if (found && found.format === 2) {
      history_ = found;
      showEvents();
    }
  }
  setTimeout(pollHistory, HISTORY_MS);
}

function remember() {
  const kept = new URLSearchParams();
  if (view.find) kept.set("find", view.find);
  if (view.states.size) kept.set("states", [...view.states].join(","));
  if (view.sort !== "attention") kept.set("sort", (view.down ? "-" : "") + view.sort);
  history.replaceState(null, "", kept.size ? `#${kept}` : location.pathname);
  show();
}

function recall() {
  const kept = new URLSearchParams(location.hash.slice(1));
  const sort = kept.get("sort") || "attention";
  view.find = kept.get("find") || "";
  view.states = new Set((kept.get("states") || "").split(",").filter((state) => STATES.includes(state)));
  view.down = sort.startsWith("-");
  view.sort = sort.replace("-", "") in KEYS ? sort.replace("-", "") : "attention";
  $("find").value = view.find;
}

function sortBy(key) {
  view.down = key === view.sort ? !view.down : Boolean(DESCENDING[key]);
  view.sort = key;
  remember();
}

$("find").addEventListener("input", () => { view.find = $("find").value.trim(); remember(); });
$("sort").addEventListener("change", () => { view.down = Boolean(DESCENDING[$("sort").value]); view.sort = $("sort").value; remember(); });
$("clear").addEventListener("click", () => { view.find = $("find").value = ""; view.states.clear(); remember(); $("find").focus(); });
for (const button of document.querySelectorAll("thead button")) button.addEventListener("click", () => sortBy(button.dataset.sort));
// The address keeps the view, so a link to a part of the page must not change it.
for (const link of document.querySelectorAll('a[href^="#"]')) link.addEventListener("click", (event) => {
  event.preventDefault();
  document.querySelector(link.hash).focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|SELECT)$/.test(document.activeElement.tagName)) { event.preventDefault(); $("find").focus(); }
  if (event.key === "Escape" && document.activeElement === $("find")) { $("find").value = view.find = ""; remember(); }
});
document.addEventListener("visibilitychange", () => { if (!document.hidden && status) show(); });
