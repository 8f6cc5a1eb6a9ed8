// One chart: lines, marks and bands of several runs over one axis, with the values under the cursor.

import uPlot from "./uplot/uPlot.esm.js";
import { count, distinct, duration, element, figure } from "./format.js";
import { beyond, fenceOf, padded, smooth, within } from "./scale.js";

const HEIGHT = 210;
const theme = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/**
 * A series: { run, name, color (a CSS variable), style: "line" | "dashed" | "dotted" | "dashdot" | "mark", unit, x, y, low, high, mean }.
 * `low` and `high` are a band around `y`, or missing; `mean` stands for the newest value, where there is one.
 * `isNamed`: the key says whose each line is; else one legend for all charts does.
 */
export class Chart {
  constructor({ title, unit, note = "", isNamed = false }) {
    this.isNamed = isNamed;
    this.key = element("ul", { className: "key" });
    this.body = element("div", { className: "plot", "aria-hidden": "true" });
    this.empty = element("p", { className: "empty", text: "nothing yet" });
    this.left = element("span", { className: "warn small" });
    const caption = element("figcaption", {}, element("h3", { text: title }), element("span", { className: "quiet small", text: unit + (note ? ` · ${note}` : "") }), this.left);
    this.figure = element("figure", {}, caption, this.key, this.body, this.empty);
    this.plot = null;
    this.signature = "";
    this.isZoomed = false;
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.body);
    this.update([], { axis: "trained_steps", smoothing: 0, isWhole: false });
  }

  /** Draw the series as `view` says: { axis: "trained_steps" or "seconds", smoothing: 0 to 1, isWhole: outliers too }. */
  update(series, view) {
    series = series.filter((item) => item.x && item.y && item.y.some((value) => value !== null));
    this.body.hidden = series.length === 0;
    this.empty.hidden = series.length > 0;
    const isSmooth = (item) => view.smoothing > 0 && item.style !== "mark";
    const signature = JSON.stringify([view.axis, series.map((item) => [item.run, item.name, item.style, item.color, Boolean(item.low), isSmooth(item)])]);
    const tables = series.map((item) => [item.x, ...(isSmooth(item) ? [smooth(view.isWhole ? item.y : within(item.y), view.smoothing), item.y] : [item.y, ...(item.low ? [item.low, item.high] : [])])]);
    const data = series.length ? uPlot.join(tables) : [[]];
    this.columns = tables.map((_, number) => 1 + tables.slice(0, number).reduce((sum, table) => sum + table.length - 1, 0));
    const values = series.map((item) => (item.low && !isSmooth(item) ? [...item.low, ...item.high] : item.y)); // a band holds its line
    this.fence = fenceOf(values);
    this.left.textContent = view.isWhole ? "" : beyond(values, this.fence);
    [this.series, this.view] = [series, view];
    if (signature !== this.signature || (series.length && !this.plot)) {
      this.signature = signature;
      this.build(data, isSmooth);
    } else if (this.plot) {
      this.plot.setData(data, !this.isZoomed);
      if (this.isZoomed) this.plot.redraw();
    }
    this.showValues(null);
  }

  /** Draw again in the colours of the present theme. */
  repaint() {
    this.signature = "";
    this.update(this.series, this.view);
  }

  resize() {
    if (this.plot && this.body.clientWidth) this.plot.setSize({ width: this.body.clientWidth, height: HEIGHT });
  }

  /** Take it off the page, for good. */
  remove() {
    this.observer.disconnect();
    this.plot?.destroy();
    this.figure.remove();
  }

  build(data, isSmooth) {
    this.plot?.destroy();
    this.plot = null;
    this.isZoomed = false;
    this.key.replaceChildren();
    this.values = [];
    this.lines = new Map(); // run or name → its line in the key
    if (!this.series.length) return;
    const drawn = [{}];
    const bands = [];
    for (const item of this.series) {
      const color = theme(item.color); // #rrggbb
      drawn.push(lineOf(item, color));
      const faint = { stroke: "transparent", points: { show: false }, spanGaps: true };
      if (isSmooth(item)) drawn.push({ ...faint, stroke: `${color}55`, width: 1 });
      else if (item.low) {
        drawn.push(faint, { ...faint });
        bands.push({ series: [drawn.length - 1, drawn.length - 2], fill: `${color}38` });
      }
      this.addToKey(item, color);
    }
    this.plot = new uPlot(this.options(drawn, bands), data, this.body);
  }

  options(drawn, bands) {
    const { axis } = this.view;
    const [ink, grid] = [theme("--quiet"), theme("--grid")];
    const lines = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "11px system-ui, sans-serif" };
    const format = axis === "seconds" ? duration : count;
    return {
      width: this.body.clientWidth || 400, height: HEIGHT, legend: { show: false }, series: drawn, bands,
      scales: { x: { time: false }, y: { range: (_, low, high) => this.range(low, high) } },
      axes: [
        { ...lines, ...(axis === "seconds" ? { incrs: SECONDS } : {}), values: (_, ticks) => ticks.map(format), label: AXES[axis], labelSize: 16, labelFont: lines.font, size: 30, space: 70 },
        { ...lines, values: (_, ticks) => distinct(ticks), size: (_, texts) => 18 + 6.5 * Math.max(4, ...(texts ?? []).map((text) => text.length)) },
      ],
      cursor: { y: false, drag: { x: true, y: false }, points: { size: 6 }, sync: { key: axis } },
      hooks: {
        setCursor: [(plot) => this.showValues(plot.cursor.idx ?? null)],
        setSelect: [(plot) => { if (plot.select.width > 0) this.isZoomed = true; }],
        ready: [(plot) => plot.over.addEventListener("dblclick", () => { this.isZoomed = false; })],
      },
    };
  }

  /** The y axis for values that lie between these: without outliers, unless nothing else is in view. */
  range(low, high) {
    const [least, greatest] = this.fence;
    if (this.view.isWhole || low === null || low > greatest || high < least) return padded(low, high);
    return padded(Math.max(low, least), Math.min(high, greatest));
  }

  addToKey(item, color) {
    const shape = { line: "swatch", mark: "swatch dot" }[item.style] ?? `swatch ${item.style}`;
    const mark = element("span", { className: shape, "aria-hidden": "true" });
    mark.style.borderColor = mark.style.color = color;
    const value = element("span", { className: "value" });
    this.values.push(value);
    const label = this.isNamed ? item.run : item.name;
    if (!this.lines.has(label)) {
      this.lines.set(label, element("li", {}, ...(label ? [element("span", { className: "label", text: label, title: label })] : [])));
      this.key.append(this.lines.get(label));
    }
    this.lines.get(label).append(element("span", { className: "entry", title: item.run }, mark, value));
  }

  /** The values at a place on the axis; without one, the newest. */
  showValues(place) {
    this.series.forEach((item, number) => {
      if (!this.values?.[number]) return;
      const column = this.plot?.data[this.columns[number]] ?? [];
      let at = place ?? column.length - 1;
      while (at >= 0 && (column[at] === null || column[at] === undefined)) at -= 1;
      const value = place === null && item.mean !== undefined ? item.mean : column[at];
      this.values[number].textContent = at < 0 ? "–" : figure(value, item.unit);
    });
  }
}

const SECONDS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000, 864000];
const DASHES = { dashed: [5, 4], dotted: [1.5, 3], dashdot: [7, 3, 1.5, 3] };
const AXES = { trained_steps: "trained steps", seconds: "time with a policy" };

function lineOf(item, color) {
  const line = { label: `${item.run} ${item.name}`, stroke: color, width: 1.6, spanGaps: true, points: { show: false } };
  if (item.style === "mark") return { ...line, paths: () => null, points: { show: true, size: 8, width: 2, stroke: color, fill: theme("--card") } };
  if (item.y.length === 1) return { ...line, points: { show: true, size: 6, fill: color } };
  if (item.style in DASHES) return { ...line, dash: DASHES[item.style] };
  return line;
}
