// The status page of a job: polls /api/v1/status every second and renders it. Loads nothing from other sites.

const INTERVAL_MS = 1000;
const LOST_AFTER = 3; // consecutive failed requests
const POINTS = 120; // of the history, one per second
const MOST_EVENTS = 200;
const DECISIONS = new Set(["autotune", "balance", "compression", "view", "recovery", "end"]);
const PARTS = [
  ["computing", "Computing"],
  ["exposed", "Exposed"],
  ["waiting", "Waiting"],
];

const token = new URLSearchParams(location.search).get("token") ?? "";
const $ = (id) => document.getElementById(id);

let status = null; // the last response
let chosen = null; // the process whose details are shown; null: see mostTelling()
let newest = 0; // number of the last event received
let missed = 0; // consecutive failed requests
const events = new Map(); // by id

// ---------------------------------------------------------------- elements

function make(name, className, text) {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

// Don't touch unchanged text: screen readers would announce it again, and selections would be lost.
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function mark(element, name, value) {
  const text = String(value);
  if (element.getAttribute(name) !== text) element.setAttribute(name, text);
}

// Make the children of a parent match the items, in order. Elements are reused by key.
function list(parent, items, keyOf, create, update) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, index) => {
    const key = String(keyOf(item));
    let element = known.get(key);
    if (!element) {
      element = create(item);
      element.dataset.key = key;
    }
    known.delete(key);
    if (parent.children[index] !== element) parent.insertBefore(element, parent.children[index] ?? null);
    update(element, item);
  });
  for (const gone of known.values()) gone.remove();
}

// Show terms and their values in a <dl>.
function pairs(parent, items) {
  list(parent, items, ([term]) => term, () => {
    const group = make("div");
    group.append(make("dt"), make("dd"));
    return group;
  }, (group, [term, value, className]) => {
    say(group.children[0], term);
    say(group.children[1], value);
    if (className) group.className = className;
  });
}

// ---------------------------------------------------------------- formatting

function duration(seconds) {
  if (seconds < 1e-3) return `${(seconds * 1e6).toFixed(0)} µs`;
  if (seconds < 1) return `${(seconds * 1e3).toFixed(seconds < 0.1 ? 1 : 0)} ms`;
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 120 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function bandwidth(bytes) {
  for (const [unit, size] of [["GB/s", 1e9], ["MB/s", 1e6], ["kB/s", 1e3]]) {
    if (bytes >= size) return `${(bytes / size).toFixed(bytes < 10 * size ? 2 : 0)} ${unit}`;
  }
  return `${Math.round(bytes)} B/s`;
}

function rate(perSecond) {
  return perSecond ? `${perSecond.toFixed(perSecond < 10 ? 2 : 1)} steps/s` : "no steps";
}

function clock(time) {
  return new Date(time * 1000).toLocaleTimeString([], { hour12: false });
}

const rankName = (one) => (one.rank === null ? `process ${one.process}` : `rank ${one.rank}`);

function sentence(one) {
  const parts = [one.state];
  if (one.status) parts.push(one.status < 0 ? `signal ${-one.status}` : `exit status ${one.status}`);
  if (one.pending && one.waits_seconds >= 2) parts.push(`in ${one.pending} for ${duration(one.waits_seconds)}`);
  parts.push(rate(one.steps_per_second));
  return `${rankName(one)}: ${parts.join(", ")}`;
}

// ---------------------------------------------------------------- sections of the page

function showJob(job) {
  say($("command"), job.command);
  document.title = `${job.state} · ${job.command}`;
  say($("state"), job.state);
  mark($("state"), "data-state", job.state);
  const step = sum(lastStep(status.history));
  const numbers = [
    ["Ranks", job.size.toLocaleString("en")],
    ["Hosts", Object.keys(job.hosts).length.toLocaleString("en")],
    ["Step", job.steps.toLocaleString("en")],
    ["Speed", job.steps_per_second ? rate(job.steps_per_second) : "–"],
    ["A step takes", step ? duration(step) : "–"],
    ["Reduced", bandwidth(job.reduced_bytes_per_second)],
    ["Running for", duration(job.seconds)],
  ];
  if (job.elastic) numbers.splice(2, 0, ["View", String(job.view)]);
  for (const [name, used] of Object.entries(job.encodings)) {
    numbers.push([`Sent as ${name}`, `${(used.bytes_before / (used.bytes_after || 1)).toFixed(1)} times fewer bytes`]);
  }
  pairs($("numbers"), numbers);
}

function showFindings(findings) {
  $("findings").hidden = findings.length === 0;
  list($("findings-list"), findings, (one) => one.what + one.text.replace(/\d+ s\b/, ""), () => make("li"),
    (element, one) => say(element, one.text));
}

const sum = (point) => PARTS.reduce((seconds, [part]) => seconds + (point?.[part] ?? 0), 0);

function median(values) {
  return [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)] ?? 0;
}

// The newest point with steps; undefined for a job that has made none in this time.
const lastStep = (history) => history.findLast((point) => sum(point) > 0);

function showSteps(history) {
  const whole = history.map(sum);
  // Cut off outliers, which would make the other bars too small to see.
  const longest = Math.max(...whole, 1e-9);
  const top = Math.min(longest, 4 * Math.max(median(whole.filter((seconds) => seconds > 0)), 1e-9)) * 1.05;
  const known = longest > 1e-6;
  say($("axis-top"), known ? duration(top) + (longest > top ? ", longer ones are cut off" : "") : "");
  say($("axis-half"), known ? duration(top / 2) : "");
  const width = 600 / POINTS;
  const base = history.map(() => 0);
  for (const [part] of PARTS) {
    let path = "";
    history.forEach((point, index) => {
      const x = (POINTS - history.length + index) * width;
      const height = (point[part] / top) * 150;
      const y = 150 - base[index] - height;
      base[index] += height;
      if (height > 0.05) path += `M${x.toFixed(2)} ${y.toFixed(2)}h${(width * 0.8).toFixed(2)}v${height.toFixed(2)}h${(-width * 0.8).toFixed(2)}z`;
    });
    mark($(`area-${part}`), "d", path);
  }
  const last = lastStep(history);
  const seconds = sum(last);
  const rows = PARTS.map(([part, name]) => ({ part, name, seconds: last ? last[part] : 0 }));
  rows.push({ part: "whole", name: "A step", seconds });
  list($("legend"), rows, (row) => row.part, (row) => {
    const group = make("div", row.part === "whole" ? "whole" : "");
    const term = make("dt");
    if (row.part !== "whole") term.append(make("span", `key ${row.part}`));
    term.append(row.name);
    group.append(term, make("dd"));
    return group;
  }, (group, row) => {
    const share = row.part === "whole" ? "" : ` · ${Math.round((100 * row.seconds) / seconds)} %`;
    say(group.lastChild, seconds ? duration(row.seconds) + share : "–");
  });
}

function makeTile() {
  const item = make("li");
  const tile = make("button", "tile");
  tile.type = "button";
  const head = make("span", "head");
  head.append(make("span"), make("span", "word"));
  const bar = make("span", "bar");
  for (const [part] of PARTS) bar.append(make("span", part));
  tile.append(head, bar);
  tile.addEventListener("click", () => {
    chosen = Number(item.dataset.key);
    showRanks();
  });
  item.append(tile);
  return item;
}

function showTile(item, one, shown) {
  const tile = item.firstChild;
  mark(tile, "data-state", one.state);
  mark(tile, "data-rank", one.rank ?? "");
  mark(tile, "aria-label", sentence(one));
  mark(tile, "aria-pressed", shown === one);
  const [head, bar] = tile.children;
  say(head.firstChild, one.rank === null ? "–" : String(one.rank));
  // Running is the normal state and needs no label; a duration implies waiting.
  const words = { running: "", waiting: `${Math.floor(one.waits_seconds)} s`, recovering: "recov." };
  say(head.lastChild, words[one.state] ?? one.state);
  PARTS.forEach(([part], index) => {
    const seconds = one.step ? one.step[`${part}_seconds`] : 0;
    bar.children[index].style.flexGrow = one.step ? String(seconds / (one.step.seconds || 1)) : "0";
  });
}

// The rank shown by default: one that blocks others, else one that waits, else the first.
function mostTelling(ranks) {
  for (const states of [["late", "silent", "failed"], ["waiting", "recovering"]]) {
    const found = ranks.find((one) => states.includes(one.state));
    if (found) return found;
  }
  return ranks[0];
}

// Count ranks by state: "7 waiting, 1 late".
function counted(ranks) {
  const count = new Map();
  for (const one of ranks) count.set(one.state, (count.get(one.state) ?? 0) + 1);
  return [...count].map(([state, number]) => `${number} ${state}`).join(", ");
}

function showRanks() {
  const { ranks, job } = status;
  $("ranks-empty").hidden = ranks.length > 0;
  const shown = ranks.find((one) => one.process === chosen) ?? mostTelling(ranks);
  const byHost = new Map();
  for (const one of ranks) {
    if (!byHost.has(one.host)) byHost.set(one.host, []);
    byHost.get(one.host).push(one);
  }
  mark($("hosts").parentElement, "data-few", ranks.length <= 16);
  list($("hosts"), [...byHost], ([host]) => host, ([host]) => {
    const card = make("div");
    const heading = make("h3");
    heading.append(make("span", "", host), make("span", "of"));
    card.append(heading, make("ul", "tiles"));
    return card;
  }, (card, [host, own]) => {
    const [heading, tiles] = card.children;
    const lost = job.hosts[host] === "lost" ? "lost · " : "";
    say(heading.lastChild, `${lost}${counted(own)}`);
    list(tiles, own, (one) => one.process, makeTile, (item, one) => showTile(item, one, shown));
  });
  showRank(shown);
}

function showRank(one) {
  $("rank").hidden = !one;
  if (!one) return;
  say($("rank-h"), `${rankName(one)} on ${one.host}`.replace(/^./, (first) => first.toUpperCase()));
  const step = one.step;
  const fields = [
    ["State", one.state],
    ["Speed", rate(one.steps_per_second)],
    ["Steps", one.steps.toLocaleString("en")],
    ...Object.entries(one.counters).map(([name, value]) => [`Script's ${name}`, value.toLocaleString("en")]),
    ["A step takes", step ? duration(step.seconds) : "–"],
    ...PARTS.map(([part, name]) => [name, step ? duration(step[`${part}_seconds`]) : "–"]),
    ["Reduced", bandwidth(one.reduced_bytes_per_second)],
    ["Pending", one.pending ? one.pending + (one.waits_seconds < 1 ? "" : `, ${duration(one.waits_seconds)}`) : "nothing"],
    ["Last report", `${duration(Math.max(one.reported_seconds_ago, 0.1))} ago`],
  ];
  const box = $("rank-fields");
  list(box, fields.flatMap(([term, value]) => [[`${term}.`, "dt", term], [term, "dd", value]]), ([key]) => key,
    ([, name]) => make(name), (element, [, , text]) => say(element, text));
}

function showSets(sets) {
  list($("sets"), sets, (one) => `${one.set}: ${one.ranks}`, () => {
    const row = make("tr");
    const first = make("th");
    first.scope = "row";
    row.append(first);
    for (const name of ["", "name", "name wait", "number wait", "", "miss", "number"]) row.append(make("td", name));
    return row;
  }, (row, one) => {
    mark(row, "data-waits", one.waits_for !== "");
    mark(row, "data-missing", one.missing);
    const cells = [String(one.set), one.ranks, one.executing || "–", one.waits_for || "–",
      one.waits_for ? duration(one.waits_seconds) : "–", one.waiting || "–",
      one.missing || (one.waits_for && one.executing ? "none: it is being executed" : "–"), one.operations.toLocaleString("en")];
    cells.forEach((text, index) => say(row.children[index], text));
  });
}

function showLinks(links) {
  const used = links.filter((one) => one.bytes_per_second > 0 || links.length <= 8);
  $("links-empty").hidden = used.length > 0;
  const top = Math.max(...used.map((one) => one.bytes_per_second), 1);
  list($("links"), used, (one) => `${one.from}\n${one.to}`, () => {
    const item = make("li");
    const words = make("div", "words");
    words.append(make("span"), make("span"));
    const meter = make("div", "meter");
    meter.append(make("span"));
    item.append(words, meter);
    return item;
  }, (item, one) => {
    const [words, meter] = item.children;
    say(words.firstChild, one.from === one.to ? `inside ${one.from} (shared memory)` : `${one.from} → ${one.to}`);
    say(words.lastChild, bandwidth(one.bytes_per_second));
    meter.firstChild.style.width = `${(100 * one.bytes_per_second) / top}%`;
  });
}

function showRecoveries(recoveries, elastic) {
  $("recoveries-section").hidden = !elastic;
  $("recoveries-empty").hidden = recoveries.length > 0;
  say($("recoveries-empty"), "No rank was lost.");
  list($("recoveries"), [...recoveries].reverse(), (one) => one.time, () => {
    const item = make("li");
    item.append(make("h3"), make("ol"));
    return item;
  }, (item, one) => {
    const lost = one.lost.map((who) => `rank ${who.rank} on ${who.host} (${who.how})`).join("; ");
    say(item.firstChild, `${clock(one.time)}: lost ${lost}`);
    const phases = one.phases.map((phase) => ({ ...phase, open: false }));
    if (!one.over) phases.push({ what: "going on", seconds: null, open: true });
    list(item.lastChild, phases, (phase) => phase.what, () => {
      const row = make("li");
      row.append(make("span", "when"), make("span"));
      return row;
    }, (row, phase) => {
      row.className = phase.open ? "open" : "";
      say(row.firstChild, phase.open ? "…" : phase.seconds ? `+${duration(phase.seconds)}` : "0 s");
      say(row.lastChild, phase.what);
    });
  });
}

function showEvents() {
  const sorted = [...events.values()].sort((a, b) => b.number - a.number).slice(0, MOST_EVENTS);
  for (const [id, wanted] of [["decisions", true], ["messages", false]]) {
    const own = sorted.filter((one) => DECISIONS.has(one.kind) === wanted);
    $(`${id}-empty`).hidden = own.length > 0;
    // Make scrollable lists focusable, so that the keyboard can scroll them.
    if ($(id).scrollHeight > $(id).clientHeight + 1) mark($(id), "tabindex", 0);
    else $(id).removeAttribute("tabindex");
    list($(id), own, (one) => one.id, () => {
      const item = make("li");
      item.append(make("time"), make("span", "kind"), make("span", "text"));
      return item;
    }, (item, one) => {
      mark(item, "data-severity", one.severity);
      mark(item, "data-kind", one.kind);
      const [time, kind, text] = item.children;
      mark(time, "datetime", new Date(one.time * 1000).toISOString());
      say(time, clock(one.time));
      say(kind, one.kind);
      const who = one.ranks ? `rank${/[,-]/.test(one.ranks) ? "s" : ""} ${one.ranks}: ` : "";
      say(text, `${who}${one.text}${one.count > 1 ? ` (${one.count} times)` : ""}`);
    });
  }
}

function showLive() {
  const lost = missed >= LOST_AFTER;
  mark(document.body, "data-live", status === null && !lost ? "connecting" : lost ? "lost" : "live");
  say($("live"), lost ? "no answer: the job has ended, or the way to it is cut; this is how it was last"
    : status ? "live" : "connecting");
}

// ---------------------------------------------------------------- polling

async function ask() {
  const answer = await fetch(`api/v1/status?since=${newest}`, {
    headers: { Authorization: `Bearer ${token}` },
    cache: "no-store",
    signal: AbortSignal.timeout(10000),
  });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

function show() {
  for (const one of status.events) {
    events.set(one.id, one);
    newest = Math.max(newest, one.number);
  }
  while (events.size > 2 * MOST_EVENTS) events.delete(events.keys().next().value);
  showJob(status.job);
  showFindings(status.findings);
  showSteps(status.history);
  showRanks();
  showSets(status.sets);
  showLinks(status.links);
  showRecoveries(status.recoveries, status.job.elastic);
  showEvents();
}

async function turn() {
  try {
    status = await ask();
    missed = 0;
    show();
    mark(document.body, "data-shown", Number(document.body.dataset.shown ?? 0) + 1);
  } catch (error) {
    missed += 1;
    console.info(String(error));
  }
  showLive();
  setTimeout(turn, document.hidden ? 5 * INTERVAL_MS : INTERVAL_MS);
}

document.addEventListener("visibilitychange", () => { if (!document.hidden) showLive(); });
turn();
