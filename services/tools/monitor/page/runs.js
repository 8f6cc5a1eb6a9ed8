// The table of all runs: found by a word, sorted by a column, and ticked to be compared.

import { count, duration, element, figure, moment, renew, swatch } from "./format.js";

const MAX_STATISTICS = 3; // columns of the environments' own; the charts show more
const TONES = { training: "good", evaluating: "good", finished: "quiet", starting: "warn", failed: "bad" };
const newest = ([training, evaluated]) => evaluated ?? training ?? null;

/** The columns: what they show as text, and what they are sorted by. */
function columns(runs, now) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.statistics)))].slice(0, MAX_STATISTICS);
  const measured = (name, key, format = figure) => ({ name, sort: (run) => run.figures[key] ?? null, text: (run) => format(run.figures[key]) });
  return [
    measured("return", "return_mean"), measured("evaluated", "eval_return_mean"),
    ...names.map((name) => {
      const value = (run) => (run.statistics[name] ? newest(run.statistics[name]) : null);
      return { name, hint: "evaluated; in training while nothing was evaluated", sort: value, text: (run) => figure(value(run)) };
    }),
    measured("trained, steps", "trained_steps", count), measured("trained, steps/s", "trained_steps_per_s", count),
    measured("acted, steps/s", "env_steps_per_s", count), measured("lag, updates", "lag_mean"),
    measured("time", "seconds", duration),
    { name: "begun", sort: (run) => Date.parse(run.created) || null, text: (run) => moment(run.created, now) },
  ];
}

function cellOf(name, text) {
  return element("td", { className: text === "–" ? "number none" : "number", "data-name": name, text });
}

/** How far a live run is, and how long the rest will take, by whichever of its limits comes first; "" without one. */
function progress(run) {
  const { steps, seconds } = run.goal;
  const f = run.figures;
  const limits = [];
  if (steps) limits.push([f.trained_steps / steps, f.trained_steps_per_s ? (steps - f.trained_steps) / f.trained_steps_per_s : Infinity]);
  if (seconds) limits.push([f.seconds / seconds, seconds - f.seconds]);
  if (!run.is_live || !limits.length) return "";
  const share = Math.min(1, Math.max(...limits.map(([done]) => done || 0)));
  const left = Math.min(...limits.map(([, rest]) => rest));
  return `${Math.floor(100 * share)} %${Number.isFinite(left) && left > 0 ? `, ${duration(left)} left` : ""}`;
}

/** Draws into the table. `choose(name, isWanted)` is called when a run is ticked, `changed()` when the order is. */
export class Runs {
  constructor(table, find, sort, choose, changed) {
    [this.table, this.find, this.select, this.choose, this.changed] = [table, find, sort, choose, changed];
    this.order = ""; // a column's name, "-" before it for the other way round; empty: the newest first
    find.addEventListener("input", changed);
    sort.addEventListener("change", () => this.sortBy(sort.value));
  }

  sortBy(order) {
    this.order = order;
    this.changed();
  }

  /** `shown`: run → colour number; `isFull`: no more can be shown. */
  draw(runs, shown, isFull, now) {
    const cells = columns(runs, now);
    const focused = document.activeElement?.dataset?.run ?? document.activeElement?.dataset?.column;
    this.drawHead(cells);
    const body = this.table.tBodies[0];
    const known = new Map([...body.rows].map((row) => [row.dataset.name, row]));
    renew(body, this.sorted(runs.filter((run) => this.matches(run)), cells).map((run) => {
      const made = this.row(run, cells, shown, isFull);
      const row = known.get(run.name) ?? made;
      if (row !== made) renew(row, [...made.cells]);
      return row;
    }));
    if (focused && document.activeElement === document.body) [...this.table.querySelectorAll("[data-run], [data-column]")].find((item) => (item.dataset.run ?? item.dataset.column) === focused)?.focus();
  }

  matches(run) {
    const text = [run.name, run.experiment, run.env, run.state, run.cause, ...run.differs.map((pair) => pair.join(" "))].join(" ").toLowerCase();
    return this.find.value.toLowerCase().split(/\s+/).every((word) => text.includes(word));
  }

  sorted(runs, cells) {
    const name = this.order.replace(/^-/, "");
    const cell = cells.find((item) => item.name === name);
    if (!cell) return runs;
    const sign = this.order.startsWith("-") ? 1 : -1; // the greatest first
    const [known, unknown] = [runs.filter((run) => cell.sort(run) !== null), runs.filter((run) => cell.sort(run) === null)];
    return [...known.sort((a, b) => sign * (cell.sort(a) - cell.sort(b))), ...unknown];
  }

  drawHead(cells) {
    const heads = cells.map((cell) => {
      const isBy = this.order.replace(/^-/, "") === cell.name;
      const isUp = this.order.startsWith("-");
      const button = element("button", { type: "button", text: `${cell.name}${isBy ? (isUp ? " ▲" : " ▼") : ""}`, title: cell.hint ?? "sort by this column" });
      button.dataset.column = cell.name;
      button.addEventListener("click", () => this.sortBy(!isBy ? cell.name : isUp ? "" : `-${cell.name}`));
      return element("th", { scope: "col", className: "number", "aria-sort": isBy ? (isUp ? "ascending" : "descending") : "none" }, button);
    });
    renew(this.table.tHead.rows[0], [element("th", { scope: "col", text: "show" }), element("th", { scope: "col", text: "run" }), element("th", { scope: "col", text: "state" }), ...heads]);
    const options = [["", "newest"], ...cells.flatMap((cell) => [[cell.name, `${cell.name} ▼`], [`-${cell.name}`, `${cell.name} ▲`]])];
    if (this.select.options.length !== options.length) this.select.replaceChildren(...options.map(([value, text]) => element("option", { value, text })));
    this.select.value = this.order;
  }

  row(run, cells, shown, isFull) {
    const box = element("input", { type: "checkbox", "aria-label": `show ${run.name}` });
    box.dataset.run = run.name;
    box.defaultChecked = shown.has(run.name); // an attribute: `renew` sees it
    box.disabled = !box.checked && isFull;
    box.addEventListener("change", () => this.choose(run.name, box.checked));
    const mark = box.checked ? swatch(`--run${shown.get(run.name)}`) : element("span", { className: "swatch" });
    const name = element("td", { className: "name" }, element("b", { text: run.name }), element("div", { className: "quiet small", text: run.env }));
    if (run.differs.length) name.append(element("div", { className: "small", text: run.differs.map(([key, value]) => `${key} = ${value}`).join(" · ") }));
    if (run.state === "failed" && run.cause) name.append(element("div", { className: "bad small", text: run.cause }));
    const state = element("td", {}, element("span", { className: TONES[run.state] ?? "warn", text: run.services_up ? `${run.state}, ${run.services_up} up` : run.state }));
    const more = progress(run) || (run.state === "failed" ? "" : run.cause);
    if (more) state.append(element("div", { className: "quiet small", text: more }));
    const row = element("tr", {}, element("td", { className: "tick" }, element("label", {}, box, mark)), name, state,
      ...cells.map((cell) => cellOf(cell.name, cell.text(run))));
    row.dataset.name = run.name;
    return row;
  }
}
