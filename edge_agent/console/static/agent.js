// The device's console: asks the local API and shows what it says. Every text is set as text, never as HTML.
"use strict";

const FIRST = ["device, confident", "hub, verdict"]; // their colours stay the same, whatever else comes
const KEPT = 500, SHOWN = 15, AGAIN_MS = 1500, STATUS_MS = 2000, SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);
const answers = new Map(); // by answer_id, in the order in which they came: {answer, correction}
let token = "", dirty = true;

function el(name, text = "", className = "") {
  const made = document.createElement(name);
  if (text !== "") made.textContent = text;
  if (className) made.className = className;
  return made;
}

const fill = (id, children) => byId(id).replaceChildren(...children);
const words = (code) => String(code).replaceAll("_", " ");
const count = (number) => Number(number).toLocaleString();
const when = (ms) => (ms > 0 ? new Date(ms).toLocaleTimeString() : "never");
const bytes = (size) => (size < 1000 ? `${size} B` : size < 1e6 ? `${(size / 1e3).toFixed(1)} kB` : `${(size / 1e6).toFixed(1)} MB`);

async function ask(path) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const reply = await fetch(path, { headers, cache: "no-store" });
  if (reply.status === 401) { askToken(token !== ""); throw new Error("no token"); }
  if (!reply.ok) throw new Error((await reply.json().catch(() => ({}))).error || `status ${reply.status}`);
  return reply;
}

function askToken(wrong) {
  byId("door").hidden = false;
  byId("page").hidden = true;
  byId("wrong").hidden = !wrong;
  byId("wrong").textContent = "This is not the device's token.";
}

byId("door").addEventListener("submit", (event) => {
  event.preventDefault();
  token = byId("token").value.trim();
  byId("token").value = "";
  start();
});

// -- answers, as they come

function take(record) {
  const known = answers.get(record.answer_id) ?? {};
  known[record.kind] = record;
  answers.set(record.answer_id, known);
  while (answers.size > KEPT) answers.delete(answers.keys().next().value);
  dirty = true;
}

function answerText(record) {
  if (record.text) return record.text.length > 80 ? `${record.text.slice(0, 79)}…` : record.text;
  if (record.value !== null && record.value !== undefined) return String(+record.value.toPrecision(6));
  return record.label_name && record.label_name !== String(record.label) ? `${record.label} (${record.label_name})` : String(record.label);
}

function rowOf([id, { answer, correction }]) {
  const row = el("tr"), first = answer ?? correction, cell = (child) => { const td = el("td"); td.append(child); row.append(td); };
  cell(when(first.at_ms));
  cell(answerText(first));
  cell(`${(100 * first.confidence).toFixed(1)} %`);
  cell(el("span", first.source === "hub" ? "hub" : "device", `state ${first.source === "hub" ? "hub" : "good"}`));
  cell(words(first.reason));
  if (correction && answer) {
    const same = answerText(correction) === answerText(answer);
    cell(el("span", same ? `the same: ${answerText(correction)}` : `corrected: ${answerText(correction)}`, `state ${same ? "good" : "warn"}`));
  } else cell(first.source === "hub" ? "answered in time" : first.escalation_id ? "asked" : "–");
  const button = el("button", "Why");
  button.type = "button";
  button.setAttribute("aria-label", `Why answer ${id.slice(0, 8)}`);
  button.addEventListener("click", () => showWhy(id));
  cell(button);
  return row;
}

async function showWhy(id) {
  const box = byId("why-box");
  try {
    const facts = await (await ask(`/v1/answers/${encodeURIComponent(id)}/why`)).json();
    fill("why", facts.words.flatMap(({ about, text }) => [el("dt", about), el("dd", text)]));
  } catch (error) {
    fill("why", [el("dt", "not shown"), el("dd", error.message)]);
  }
  box.hidden = false;
  box.scrollIntoView({ block: "nearest" });
}

byId("why-close").addEventListener("click", () => { byId("why-box").hidden = true; });

// -- the chart: answers by minute, stacked by source and reason

const svg = (name, facts, text) => {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(facts)) made.setAttribute(key, value);
  if (text) made.textContent = text;
  return made;
};

function drawChart() {
  const records = [...answers.values()].map(({ answer, correction }) => answer ?? correction);
  const nameOf = (record) => `${record.source === "hub" ? "hub" : "device"}, ${words(record.reason)}`;
  const rank = (name) => FIRST.indexOf(name) < 0 ? FIRST.length : FIRST.indexOf(name);
  const names = [...new Set(records.map(nameOf))].sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1)).slice(0, 6);
  fill("legend", names.map((name, at) => { const key = el("span", "", `f${at}`); key.append(el("b", name)); return key; }));
  if (!records.length) { fill("chart", [el("p", "No answer yet.", "none")]); byId("span").textContent = ""; return; }
  const first = records[0].at_ms, last = Math.max(...records.map((record) => record.at_ms));
  const step = Math.max(1000, Math.ceil((last - first + 1) / 40 / 1000) * 1000), bins = Math.floor((last - first) / step) + 1;
  const counts = Array.from({ length: bins }, () => new Map());
  for (const record of records) {
    const bin = counts[Math.floor((record.at_ms - first) / step)], name = nameOf(record);
    bin?.set(name, (bin.get(name) ?? 0) + 1);
  }
  const most = Math.max(1, ...counts.map((bin) => [...bin.values()].reduce((sum, each) => sum + each, 0)));
  const drawing = svg("svg", { viewBox: "0 0 800 150", preserveAspectRatio: "none", class: "chart", role: "img", "aria-label": `The last ${records.length} answers by time, source and reason` });
  const width = 800 / bins;
  counts.forEach((bin, at) => {
    let top = 145;
    names.forEach((name, tone) => {
      const height = (140 * (bin.get(name) ?? 0)) / most;
      if (!height) return;
      top -= height;
      const bar = svg("rect", { x: at * width + 0.5, y: top, width: Math.max(1, width - 1.5), height, class: `f${tone}` });
      bar.append(svg("title", {}, `${name}: ${bin.get(name)}, from ${when(first + at * step)}`));
      drawing.append(bar);
    });
  });
  drawing.append(svg("line", { x1: 0, x2: 800, y1: 146, y2: 146, class: "axis" }));
  fill("chart", [drawing]);
  byId("span").textContent = `The last ${count(records.length)} answers, from ${when(first)} to ${when(last)}; at most ${most} in ${step / 1000} s.`;
}

// -- status

const tile = (value, text) => { const made = el("div", "", "tile"); made.append(el("b", value), el("span", text)); return made; };
const facts = (id, rows) => fill(id, rows.flatMap(([about, text]) => [el("dt", about), el("dd", text)]));

function showStatus(status) {
  const counts = status.counts ?? {};
  document.title = `${status.device} · Skerry device`;
  byId("device").textContent = status.device;
  byId("link").textContent = status.link === "up" ? "linked to the hub" : "no link: on its own";
  byId("link").className = `state ${status.link === "up" ? "good" : "warn"}`;
  fill("tiles", [
    tile(count((counts.answers_local ?? 0) + (counts.answers_hub ?? 0)), "answers since its start"),
    tile(count(counts.answers_hub ?? 0), "of them the hub's, in time"),
    tile(count(counts.corrections ?? 0), "corrections and confirmations"),
    tile(count(status.open), "questions open"),
    tile(bytes(status.spent_bytes ?? 0), "spent today"),
    tile(status.model || "none", "model"),
  ]);
  fill("alarms", (status.alarms ?? []).map((alarm) => el("p", words(alarm), "note")));
  const ledger = status.ledger ?? {};
  facts("ledger", [
    ["Entries", count(ledger.entries ?? 0)],
    ["Head signed", when(ledger.at_ms)],
    ["Witnessed", ledger.witnessed ? `up to entry ${count(ledger.witnessed)} by ${ledger.witnessed_by}, ${when(ledger.witnessed_ms)}` : "not yet: no hub has logged a head"],
    ["Not sent after all", count(ledger.unsent ?? 0)],
  ]);
  const updates = status.updates ?? {}, install = status.install ?? {};
  facts("updates", [
    ["Model", updates.model || status.model || "none"],
    ["Policy", status.policy_name ? `${status.policy_name}@${status.policy_version}` : "none"],
    ["Last look", when(updates.refreshed_ms)],
    ["Install", install.state ? `${words(install.state)}${install.rollout ? `, ${install.rollout}` : ""}${install.why ? `, ${install.why}` : ""}` : "none"],
    ["Drift", status.drift ? (status.drift.since_ms ? "alarm: inputs no longer look as they did" : "none seen") : "not measured"],
  ]);
  const budgets = Object.entries(status.budgets ?? {});
  fill("budgets", budgets.length ? budgets.flatMap(([name, { left, limit }]) => {
    const meter = el("meter");
    meter.max = limit || 1; meter.value = limit - left;
    meter.setAttribute("aria-label", `${name}: ${limit - left} of ${limit} spent`);
    return [el("div", `${name}: ${count(limit - left)} of ${count(limit)} spent, ${count(left)} left`), meter];
  }) : [el("p", "No account has a limit here.", "none")]);
}

async function showPolicy() {
  try {
    const policy = await (await ask("/v1/policy")).json();
    fill("policy", policy.words.length ? policy.words.map((line) => el("li", line)) : [el("li", "No policy: nothing leaves.")]);
  } catch (error) { fill("policy", [el("li", error.message)]); }
}

// -- following

async function followEvents(after) {
  const reply = await ask(`/v1/events?after=${after}`);
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (text + value).split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").find((line) => line.startsWith("data: "));
      if (data) { const record = JSON.parse(data.slice(6)); take(record); newest = Math.max(newest, record.event); }
    }
  }
}

let newest = 0, running = 0;

async function follow(run) {
  while (run === running) {
    try {
      const found = await (await ask(`/v1/answers?limit=${KEPT}`)).json();
      found.records.forEach(take);
      newest = found.last_event;
      byId("lost").hidden = true;
      showPolicy();
      await followEvents(newest);
    } catch (error) {
      if (error.message === "no token") return;
      byId("lost").hidden = false;
    }
    await new Promise((done) => setTimeout(done, AGAIN_MS));
  }
}

async function watchStatus(run) {
  while (run === running) {
    try {
      showStatus(await (await ask("/v1/status")).json());
      byId("page").hidden = false;
      byId("door").hidden = true;
      byId("lost").hidden = true;
    } catch (error) {
      if (error.message === "no token") return;
      byId("lost").hidden = false;
    }
    await new Promise((done) => setTimeout(done, document.hidden ? 10 * STATUS_MS : STATUS_MS));
  }
}

setInterval(() => {
  if (!dirty || document.hidden) return;
  dirty = false;
  drawChart();
  const rows = [...answers].slice(-SHOWN).reverse();
  const focused = document.activeElement?.getAttribute?.("aria-label");
  fill("answers", rows.length ? rows.map(rowOf) : []);
  if (focused) document.querySelector(`#answers button[aria-label="${CSS.escape(focused)}"]`)?.focus();
}, 500);

byId("theme").addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
});

function start() { running += 1; follow(running); watchStatus(running); }
start();
