// The page: asks for what has changed, and draws it. It asks nothing while nobody sees it, and goes on asking after a failure.

import { Chart } from "./chart.js";
import { Logs, Settings, Verdicts, endings } from "./details.js";
import { element, renew, swatch } from "./format.js";
import { Screens } from "./live.js";
import { LagPanel } from "./lag.js";
import { memberPanels, memberSeries, PANELS, series, statisticPanel } from "./panels.js";
import { Runs } from "./runs.js";
import { map } from "./services.js";

const LIVE_MS = 1500;
const IDLE_MS = 4000;
const READING_MS = 300; // while a long table is being read
const MAX_SHOWN = 8; // one colour each
const at = (id) => document.getElementById(id);

let wake = () => {};
const answers = new Map(); // address → { etag, value }
const shown = new Map(); // run → colour number
const charts = PANELS.map((panel) => new Chart(panel));
const ownCharts = new Map(); // of what only some runs have: key → chart
const lagPanel = new LagPanel();
const screens = new Screens(at("screens"), at("live"));
const runs = new Runs(at("runs"), at("find"), at("sort"), choose, () => { writeAddress(); drawRuns(); });
const parts = [new Verdicts(at("verdicts")), new Settings(at("settings")), new Logs(at("logs"), () => wake())];
const view = { axis: "trained_steps", smoothing: 0, isWhole: false }; // how charts are drawn
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
const known = (name, rest) => answers.get(address(name, rest))?.value;
const colored = () => [...shown].map(([name, number]) => [name, `--run${number}`]);
const listed = (name) => overview?.runs.find((run) => run.name === name);
const now = () => Date.now() / 1000 + skew_s;

function readAddress() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  for (const name of wanted.getAll("run").slice(0, MAX_SHOWN)) show(name);
  hasChosen = shown.size > 0;
  if (wanted.get("over") === "time") view.axis = "seconds";
  view.smoothing = Math.min(0.98, Math.max(0, Number(wanted.get("smoothing")) || 0));
  view.isWhole = wanted.has("outliers");
  runs.order = wanted.get("by") ?? "";
  at("find").value = wanted.get("find") ?? "";
  at("smoothing").value = view.smoothing;
  at("whole").checked = view.isWhole;
  for (const input of document.querySelectorAll("#axis input")) input.checked = input.value === view.axis;
}

function writeAddress() {
  const wanted = new URLSearchParams(hasChosen ? [...shown.keys()].map((name) => ["run", name]) : []);
  if (view.axis === "seconds") wanted.set("over", "time");
  if (view.smoothing) wanted.set("smoothing", view.smoothing);
  if (view.isWhole) wanted.set("outliers", "yes");
  if (runs.order) wanted.set("by", runs.order);
  if (at("find").value) wanted.set("find", at("find").value);
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
  drawRest();
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
  runs.draw(overview.runs, shown, shown.size >= MAX_SHOWN, now());
}

function drawAlerts() {
  const made = overview.alerts.map((alert) => element("div", { className: `alert ${alert.level}` },
    element("b", { text: alert.level === "error" ? "Error" : "Warning" }), `${alert.run ? `${alert.run}: ` : ""}${alert.text}. `, element("span", { className: "quiet", text: alert.remedy })));
  renew(at("alerts"), made);
}

function drawLegend() {
  renew(at("legend"), colored().map(([name, color]) => {
    const leave = element("button", { type: "button", text: "×", "aria-label": `do not show ${name}`, title: "do not show" });
    leave.addEventListener("click", () => choose(name, false));
    return element("li", {}, swatch(color), element("span", { className: "label", text: name, title: name }), leave);
  }));
}

function drawCurves() {
  drawLegend();
  const reading = [...shown.keys()].map((name) => known(name, "/curves")).filter((curves) => curves && curves.share_read < 1);
  at("reading").textContent = reading.map((curves) => `${curves.name}: ${Math.floor(100 * curves.share_read)} % read so far`).join(", ");
  at("reading").hidden = reading.length === 0;
  const drawn = colored().filter(([name]) => known(name, "/curves"));
  const all = (panel) => drawn.flatMap(([name, color]) => series(panel, known(name, "/curves"), view.axis, color, listed(name)?.is_live));
  PANELS.forEach((panel, place) => {
    charts[place].update(all(panel), view);
    charts[place].figure.hidden = panel.isOptional && charts[place].series.length === 0;
  });
  drawOwn(drawn.map(([name]) => known(name, "/curves")), all);
  lagPanel.update(colored().map(([name, color]) => [name, color, known(name, "")?.lag]));
}

/** After the returns, a chart for each statistic of the environments' own, and those of each run of several tasks or learner ranks. */
function drawOwn(tables, all) {
  const statistics = [...new Set(tables.flatMap((curves) => curves.statistics))].map(statisticPanel);
  const wanted = new Map(statistics.map((panel) => [`statistic ${panel.title}`, { panel, series: () => all(panel) }]));
  for (const curves of tables) {
    for (const panel of memberPanels(curves)) wanted.set(`${panel.title} ${curves.name}`, { panel: { ...panel, isNamed: true }, series: () => memberSeries(panel, curves, view.axis, listed(curves.name)?.is_live) });
  }
  for (const [key, chart] of ownCharts) {
    if (wanted.has(key)) continue;
    chart.remove();
    ownCharts.delete(key);
  }
  let before = charts[0].figure;
  for (const [key, { panel, series: made }] of wanted) {
    if (!ownCharts.has(key)) ownCharts.set(key, new Chart(panel));
    const chart = ownCharts.get(key);
    chart.figure.className = panel.isNamed ? "members" : "";
    if (before.nextSibling !== chart.figure) before.after(chart.figure);
    chart.update(made(), view);
    before = chart.figure;
  }
}

/** How runs ended, their pictures, the open parts below the curves, and the services. */
function drawRest() {
  const details = colored().map(([name, color]) => [name, color, known(name, "")]);
  renew(at("ended"), endings(details));
  const live = overview.runs.filter((run) => run.is_live && run.services_up && shown.has(run.name)).map((run) => [run.name, address(run.name, "/picture")]);
  const videos = details.filter(([, , detail]) => detail && !detail.is_live).flatMap(([name, , detail]) => detail.videos.map((file) => [`${name} ${file.replace(/^policy-?|\.mp4$/g, "")}`.trim(), address(name, `/videos/${encodeURIComponent(file)}`)]));
  screens.show(live, videos);
  const isOfInterest = (service) => service.health !== "ended" || service.last_death || service.drops.length;
  const maps = details.map(([, , detail]) => detail).filter((detail) => detail?.services.some(isOfInterest));
  renew(at("services"), maps.length ? maps.map((detail) => map(detail, now())) : [element("p", { className: "quiet", text: "None of the runs shown has services at work." })]);
}

/** Ask for what the open parts show, and draw those of which something is new, or other runs are shown. */
async function turnParts() {
  parts.at(-1).offer([...shown.keys()].sort((a, b) => (listed(b)?.state === "failed") - (listed(a)?.state === "failed")));
  for (const part of parts.filter((item) => item.isOpen)) {
    const asked = colored().map(([name, color]) => [name, color, part.address(name)]);
    const found = await Promise.all(asked.map(([name, , rest]) => (rest ? ask(address(name, rest)) : null)));
    const signature = JSON.stringify(asked);
    if (signature === part.signature && !found.some((answer) => answer?.isNew)) continue;
    part.signature = signature;
    part.draw(asked.map(([name, color], place) => [name, color, found[place]?.value]));
  }
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
  const asked = (rest) => [...shown.keys()].map((name) => ask(address(name, rest)));
  const [details, curves] = await Promise.all([Promise.all(asked("")), Promise.all(asked("/curves"))]);
  if ([...details, ...curves].some((answer) => answer.isNew)) drawCurves();
  drawRest();
  if (!performance.getEntriesByName("drawn").length && curves.every((answer) => answer.value?.share_read === 1)) performance.mark("drawn");
  await turnParts();
  if (curves.some((answer) => answer.value && answer.value.share_read < 1)) return READING_MS;
  return overview.runs.some((run) => run.is_live) ? LIVE_MS : IDLE_MS;
}

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

function changeView(change) {
  Object.assign(view, change);
  writeAddress();
  drawCurves();
}

document.querySelectorAll("#axis input").forEach((input) => input.addEventListener("change", () => changeView({ axis: input.value })));
at("smoothing").addEventListener("input", () => changeView({ smoothing: Number(at("smoothing").value) }));
at("whole").addEventListener("change", () => changeView({ isWhole: at("whole").checked }));
for (const part of parts) part.place.addEventListener("toggle", () => wake());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => [...charts, ...ownCharts.values()].forEach((chart) => chart.repaint()));
readAddress();
run();
