// The page: asks for what has changed, and draws it. It asks nothing while nobody sees it, and goes on asking after a failure.

import { Chart } from "./chart.js";
import { count, duration, element, figure } from "./format.js";
import { Screens } from "./live.js";
import { LagPanel } from "./lag.js";
import { PANELS, TASKS_PANEL, series, taskSeries } from "./panels.js";
import { map } from "./services.js";

const LIVE_MS = 1500;
const IDLE_MS = 4000;
const READING_MS = 300; // while a long table is being read
const MAX_SHOWN = 8; // one colour each
const at = (id) => document.getElementById(id);

const answers = new Map(); // address → { etag, value }
const shown = new Map(); // run → colour number
const charts = PANELS.map((panel) => new Chart(panel));
const taskCharts = new Map(); // run → the chart of its tasks
const lagPanel = new LagPanel();
const screens = new Screens(at("screens"), at("live"));
let axis = "trained_steps";
let overview = null;
let hasChosen = false; // the visitor ticked or the address named runs
let skew_s = 0; // the server's clock minus ours

at("charts").append(...[charts[0], charts[1], charts[2], charts[3], lagPanel, ...charts.slice(4)].map((chart) => chart.figure));

class Refused extends Error {}

/** The JSON at an address, and whether it is new; null if there is none (any more). */
async function ask(address) {
  const known = answers.get(address);
  const response = await fetch(address, { headers: known ? { "If-None-Match": known.etag } : {}, cache: "no-store", signal: AbortSignal.timeout(15000) });
  skew_s = (Date.parse(response.headers.get("date")) || Date.now()) / 1000 - Date.now() / 1000;
  if (response.status === 304) return { value: known.value, isNew: false };
  if (response.status === 404) return { value: null, isNew: answers.delete(address) };
  if (response.status === 401 || response.status === 421) throw new Refused((await response.text()).trim());
  if (!response.ok) throw new Error(`the monitor answered ${response.status}`);
  const value = await response.json();
  answers.set(address, { etag: response.headers.get("etag"), value });
  return { value, isNew: true };
}

const address = (name, rest = "") => `/api/runs/${encodeURIComponent(name)}${rest}`;
const now = () => Date.now() / 1000 + skew_s;

function readAddress() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  for (const name of wanted.getAll("run").slice(0, MAX_SHOWN)) show(name);
  hasChosen = shown.size > 0;
  if (wanted.get("over") === "time") axis = "seconds";
  for (const input of document.querySelectorAll("#axis input")) input.checked = input.value === axis;
}

function writeAddress() {
  const wanted = new URLSearchParams([...shown.keys()].map((name) => ["run", name]));
  if (axis === "seconds") wanted.set("over", "time");
  history.replaceState(null, "", `#${wanted}`);
}

function show(name) {
  const taken = new Set(shown.values());
  const free = [...Array(MAX_SHOWN).keys()].find((number) => !taken.has(number));
  if (free !== undefined && !shown.has(name)) shown.set(name, free);
}

function choose(name, isWanted) {
  hasChosen = true;
  if (isWanted) show(name);
  else shown.delete(name);
  writeAddress();
  drawRuns();
  drawCurves();
  drawServices();
  wake();
}

/** Without a choice: every live run, else the newest. */
function chooseForVisitor() {
  const names = overview.runs.filter((run) => run.is_live).map((run) => run.name);
  const wanted = (names.length ? names : overview.runs.slice(0, 1).map((run) => run.name)).slice(0, MAX_SHOWN);
  for (const name of shown.keys()) if (!wanted.includes(name)) shown.delete(name);
  wanted.forEach(show);
}

function drawRuns() {
  const notice = [overview.problem, overview.runs.length ? "" : `No run in ${overview.folder}/ yet: seedbed train cartpole makes one.`];
  if (overview.num_left_out) notice.push(`${overview.num_left_out} older runs are not shown.`);
  at("runs-notice").textContent = notice.filter(Boolean).join(" ");
  at("runs-notice").hidden = !at("runs-notice").textContent;
  at("folder").textContent = overview.folder;
  const focused = document.activeElement?.dataset?.run;
  at("runs").tBodies[0].replaceChildren(...overview.runs.map(row));
  if (focused) [...document.querySelectorAll("#runs input")].find((input) => input.dataset.run === focused)?.focus();
}

function row(run) {
  const box = element("input", { type: "checkbox", "aria-label": `show ${run.name}` });
  box.dataset.run = run.name;
  box.checked = shown.has(run.name);
  box.disabled = !box.checked && shown.size >= MAX_SHOWN;
  box.addEventListener("change", () => choose(run.name, box.checked));
  const swatch = element("span", { className: "swatch", "aria-hidden": "true" });
  if (box.checked) swatch.style.borderColor = `var(--run${shown.get(run.name)})`;
  const f = run.figures;
  const tone = { training: "good", evaluating: "good", finished: "quiet", starting: "warn" }[run.state] ?? "warn";
  const state = run.services_up ? `${run.state}, ${run.services_up} up` : run.state;
  const cells = [figure(f.return_mean), figure(f.eval_return_mean), count(f.trained_steps), count(f.trained_steps_per_s), count(f.env_steps_per_s), figure(f.lag_mean), duration(f.seconds)];
  const name = element("td", { className: "name" }, element("b", { text: run.name }), element("div", { className: "quiet small", text: run.env_id }));
  return element("tr", {}, element("td", {}, element("label", {}, box, swatch)), name, element("td", {}, element("span", { className: tone, text: state })),
    ...cells.map((text) => element("td", { className: "number", text })));
}

function drawAlerts() {
  const made = overview.alerts.map((alert) => element("div", { className: `alert ${alert.level}` },
    element("b", { text: alert.level === "error" ? "Error" : "Warning" }), `${alert.run ? `${alert.run}: ` : ""}${alert.text}. `, element("span", { className: "quiet", text: alert.remedy })));
  at("alerts").replaceChildren(...made);
}

const known = (name, rest) => answers.get(address(name, rest))?.value;
const colored = () => [...shown].map(([name, number]) => [name, `--run${number}`]);

function drawCurves() {
  const reading = [...shown.keys()].map((name) => known(name, "/curves")).filter((curves) => curves && curves.share_read < 1);
  at("reading").textContent = reading.map((curves) => `${curves.name}: ${Math.floor(100 * curves.share_read)} % read so far`).join(", ");
  at("reading").hidden = reading.length === 0;
  const runs = colored().filter(([name]) => known(name, "/curves"));
  PANELS.forEach((panel, place) => charts[place].update(runs.flatMap(([name, color]) => series(panel, known(name, "/curves"), axis, color)), axis));
  drawTasks(runs.map(([name]) => known(name, "/curves")).filter((curves) => curves.tasks.length > 1));
  lagPanel.update(colored().map(([name, color]) => [name, color, known(name, "")?.lag]));
}

/** A chart for each run of several tasks, behind that of all returns. */
function drawTasks(runs) {
  for (const [name, chart] of taskCharts) {
    if (runs.some((curves) => curves.name === name)) continue;
    chart.remove();
    taskCharts.delete(name);
  }
  let before = charts[0].figure;
  for (const curves of runs) {
    const chart = taskCharts.get(curves.name) ?? new Chart({ ...TASKS_PANEL, unit: curves.name });
    taskCharts.set(curves.name, chart);
    chart.figure.className = "tasks";
    if (before.nextSibling !== chart.figure) before.after(chart.figure);
    chart.update(taskSeries(curves, axis), axis);
    before = chart.figure;
  }
}

function drawServices() {
  const maps = [...shown.keys()].map((name) => known(name, "")).filter((detail) => detail?.services.length);
  at("services").replaceChildren(...(maps.length ? maps.map((detail) => map(detail, now())) : [element("p", { className: "quiet", text: "None of the runs shown has services here." })]));
}

/** Ask for everything that is shown; how long to wait until the next time, ms. */
async function turn() {
  const { value, isNew } = await ask("/api/runs");
  overview = value;
  if (!hasChosen) chooseForVisitor();
  if (isNew) {
    drawRuns();
    drawAlerts();
  }
  screens.show(overview.runs.filter((run) => run.is_live && run.services_up && shown.has(run.name)).map((run) => [run.name, address(run.name, "/picture")]));
  const details = await Promise.all([...shown.keys()].map((name) => ask(address(name))));
  const curves = await Promise.all([...shown.keys()].map((name) => ask(address(name, "/curves"))));
  drawServices();
  if ([...details, ...curves].some((answer) => answer.isNew)) drawCurves();
  if (!performance.getEntriesByName("drawn").length && curves.every((answer) => answer.value?.share_read === 1)) performance.mark("drawn");
  if (curves.some((answer) => answer.value && answer.value.share_read < 1)) return READING_MS;
  return overview.runs.some((run) => run.is_live) ? LIVE_MS : IDLE_MS;
}

let wake = () => {};
const pause = (ms) => new Promise((resolve) => { wake = resolve; setTimeout(resolve, ms); });
const visible = () => new Promise((resolve) => {
  if (!document.hidden) resolve();
  else document.addEventListener("visibilitychange", () => resolve(), { once: true });
});

function say(text, tone) {
  if (at("connection").textContent !== text) at("connection").textContent = text;
  at("connection").className = tone;
}

async function run() {
  for (;;) {
    await visible();
    let wait = IDLE_MS;
    try {
      wait = await turn();
      document.body.classList.remove("loading");
      say("connected", "good");
    } catch (error) {
      const isRefused = error instanceof Refused;
      say(isRefused ? error.message : "the monitor does not answer; trying again", "bad");
      if (!isRefused && !(error instanceof TypeError) && error.name !== "TimeoutError") console.warn(error);
      wait = LIVE_MS;
    }
    await pause(wait);
  }
}

document.querySelectorAll("#axis input").forEach((input) => input.addEventListener("change", () => {
  axis = input.value;
  writeAddress();
  drawCurves();
}));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  [...charts, ...taskCharts.values()].forEach((chart) => chart.repaint(axis));
});
readAddress();
run();
