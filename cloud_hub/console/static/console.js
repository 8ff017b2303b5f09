// What the console does in a browser: follows what moves, sends a page's changes to the hub's API, shows times.
// Texts of the hub are only ever set as text. Nothing is loaded but from this hub.
"use strict";

const byId = (id) => document.getElementById(id);
const meta = (name) => document.querySelector(`meta[name="${name}"]`)?.content ?? "";
const PREFIX = meta("prefix"); // below which a proxy serves the hub

// -- times: in the reader's own time, and how long ago

const AGO = new Intl.RelativeTimeFormat(undefined, { numeric: "auto", style: "short" });
const STEPS = [[60, 1, "second"], [3600, 60, "minute"], [86400, 3600, "hour"], [Infinity, 86400, "day"]];

function showTimes() {
  for (const element of document.querySelectorAll("time[data-ms]")) {
    const seconds = (Number(element.dataset.ms) - Date.now()) / 1000;
    const [, size, unit] = STEPS.find(([below]) => Math.abs(seconds) < below);
    const text = Math.abs(seconds) < 2 ? "now" : AGO.format(Math.round(seconds / size), unit);
    if (element.textContent !== text) element.textContent = text;
    const title = new Date(Number(element.dataset.ms)).toLocaleString();
    if (element.title !== title) element.title = title;
  }
}

// -- the map by site: a square for each device

const STEPS_OF = [[20000, 3], [3000, 5], [600, 8], [0, 14]]; // pixels from one square to the next, by size of the fleet

function drawMap(canvas) {
  const letters = canvas.dataset.map, width = canvas.parentElement.clientWidth;
  const [, step] = STEPS_OF.find(([above]) => Number(canvas.dataset.total) > above) ?? [0, 14], size = step * 0.8;
  const columns = Math.max(1, Math.floor((width + step - size) / step));
  const height = Math.ceil(letters.length / columns) * step, ratio = window.devicePixelRatio || 1;
  canvas.columns = columns; canvas.step = step;
  canvas.style.width = `${width}px`; canvas.style.height = `${height}px`;
  canvas.width = width * ratio; canvas.height = height * ratio;
  const pen = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const colours = Object.fromEntries([..."onwux"].map((key) => [key, style.getPropertyValue(`--map-${key}`).trim()]));
  pen.scale(ratio, ratio);
  for (let place = 0; place < letters.length; place++) {
    pen.fillStyle = colours[letters[place]] || colours.x;
    pen.fillRect((place % columns) * step, Math.floor(place / columns) * step, size, size);
  }
}

function placeOf(canvas, event) {
  const column = Math.floor(event.offsetX / canvas.step), row = Math.floor(event.offsetY / canvas.step);
  const place = row * canvas.columns + column;
  return column < canvas.columns && place < canvas.dataset.map.length ? place : -1;
}

document.addEventListener("mousemove", (event) => {
  const canvas = event.target;
  if (!(canvas instanceof HTMLCanvasElement) || !canvas.dataset.map) return;
  const place = placeOf(canvas, event), names = JSON.parse(canvas.dataset.names || "[]");
  canvas.title = place < 0 ? "" : names[place] ?? `device ${place + 1} of ${canvas.dataset.map.length}`;
});

document.addEventListener("click", (event) => {
  const canvas = event.target;
  if (canvas instanceof HTMLCanvasElement && canvas.dataset.map) {
    const place = placeOf(canvas, event);
    if (place >= 0) location.href = `${PREFIX}/devices?site=${encodeURIComponent(canvas.dataset.site)}&n=${place}`;
  }
});

function draw() {
  showTimes();
  document.querySelectorAll("canvas[data-map]").forEach(drawMap);
  window.drawPlots?.();
}

// -- light and dark

byId("theme")?.addEventListener("click", () => {
  const dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = document.documentElement.dataset.theme ?? (dark ? "dark" : "light");
  document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
  try { localStorage.setItem("skerry-theme", document.documentElement.dataset.theme); } catch { /* not kept */ }
  draw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

// -- what moves: one stream of events for a visible page

const POLL_MS = 10000, AGAIN_MS = 1500;
let stream = null, timer = 0;

function lost(is) { const banner = byId("lost"); if (banner) banner.hidden = !is; }
function refresh() { document.body.dispatchEvent(new CustomEvent("moved")); }

function close() { stream?.close(); stream = null; clearTimeout(timer); }

function follow(again = false) {
  close();
  if (!meta("topic") || document.hidden) return;
  stream = new EventSource(`${PREFIX}/live?topic=${encodeURIComponent(meta("topic"))}`);
  stream.addEventListener("open", () => { lost(false); if (again) refresh(); });
  stream.addEventListener("moved", refresh);
  stream.addEventListener("ended", () => { close(); refresh(); });
  stream.addEventListener("error", () => { close(); timer = setTimeout(() => findHub(), AGAIN_MS); });
}

async function findHub() {
  try {
    const reply = await fetch(`${PREFIX}/v1/session`, { cache: "no-store" });
    lost(false);
    if (reply.status === 401) { location.href = `${PREFIX}/signin?next=${encodeURIComponent(location.pathname + location.search)}`; return; }
    if (reply.ok) { follow(true); return; }
    timer = setTimeout(findHub, POLL_MS);
  } catch {
    lost(true);
    timer = setTimeout(findHub, AGAIN_MS);
  }
}

document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else follow(true); });

// -- changes: forms go to the hub's API as JSON, with the session's token

function toast(text) {
  const line = byId("toast");
  if (!line) return;
  line.textContent = text;
  line.classList.add("shown");
  clearTimeout(line.timer);
  line.timer = setTimeout(() => line.classList.remove("shown"), 6000);
}

function valueOf(field) {
  if (field.type === "checkbox") return field.checked;
  if (field.dataset.type === "number") return Number(field.value);
  return field.value;
}

function bodyOf(form) {
  const body = {};
  for (const field of form.elements) {
    if (!field.name || field.disabled) continue;
    if (field.type === "radio" && !field.checked) continue;
    if (field.dataset.optional !== undefined && field.value === "") continue;
    body[field.name] = valueOf(field);
  }
  return body;
}

function faultOf(xhr) {
  try { return String(JSON.parse(xhr.responseText).error); } catch { return ""; }
}

htmx.defineExtension("api-json", {
  onEvent(name, event) {
    if (name !== "htmx:configRequest") return;
    event.detail.headers["X-CSRF-Token"] = meta("csrf-token");
    if (event.detail.verb !== "get") event.detail.headers["Content-Type"] = "application/json";
  },
  encodeParameters(_xhr, _parameters, element) {
    const form = element.closest("form");
    return JSON.stringify(form ? bodyOf(form) : {});
  },
});

document.body.addEventListener("htmx:afterRequest", (event) => {
  const form = event.target.closest?.("form");
  if (!form || event.detail.requestConfig.verb === "get" || form.dataset.shows !== undefined) return;
  const line = form.querySelector(".error");
  const fault = event.detail.successful ? "" : faultOf(event.detail.xhr) || "The hub did not answer: try again.";
  if (line) { line.textContent = fault; line.hidden = !fault; } else if (fault) toast(fault);
  if (fault) return;
  if (form.dataset.then) { location.href = form.dataset.then; return; }
  form.closest("dialog")?.close();
  toast(form.dataset.done || "Done.");
  refresh();
});

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-dialog]");
  if (opener) {
    const dialog = byId(opener.dataset.dialog), line = dialog.querySelector(".error");
    if (line) line.hidden = true;
    dialog.showModal();
  }
  if (event.target.closest("[data-close]")) event.target.closest("dialog").close();
});

// A page that was refreshed keeps what was drawn into it.
Idiomorph.defaults.callbacks.beforeNodeMorphed = (now, next) => {
  if (!(now instanceof HTMLElement)) return true;
  if (now.matches("canvas[data-map]") || now.matches("[data-plot]")) {
    for (const key of Object.keys(next.dataset ?? {})) now.dataset[key] = next.dataset[key];
    if (next.hasAttribute?.("aria-label")) now.setAttribute("aria-label", next.getAttribute("aria-label"));
    return false;
  }
  if (now.matches("dialog[open]")) return false;
  if (now.matches("details") && now.open) next.setAttribute("open", "");
  return true;
};

document.body.addEventListener("htmx:afterSettle", draw);
document.body.addEventListener("htmx:sendError", () => lost(true));
document.body.addEventListener("htmx:afterOnLoad", () => lost(false));
addEventListener("resize", draw);
setInterval(showTimes, 1000);
draw();
follow();
