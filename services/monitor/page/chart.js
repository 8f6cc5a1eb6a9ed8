// One chart: lines, marks and bands of several runs over one axis, with a key that shows the values under the cursor.

import uPlot from "./uplot/uPlot.esm.js";
import { count, duration, element, figure } from "./format.js";

const HEIGHT = 210;
const theme = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/**
 * A series: { run, name, color (a CSS variable), style: "line" | "dashed" | "dotted" | "dashdot" | "mark", unit, x, y, low, high }.
 * `low` and `high` are a band around `y`, or missing.
 */
export class Chart {
  constructor({ title, unit, note = "" }) {
    this.title = title;
    this.key = element("ul", { className: "key" });
    this.body = element("div", { className: "plot", "aria-hidden": "true" });
    this.empty = element("p", { className: "empty", text: "nothing yet" });
    const caption = element("figcaption", {}, element("h3", { text: title }), element("span", { className: "quiet small", text: unit + (note ? ` · ${note}` : "") }));
    this.figure = element("figure", {}, caption, this.key, this.body, this.empty);
    this.plot = null;
    this.signature = "";
    this.isZoomed = false;
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.body);
    this.update([], "trained_steps");
  }

  /** Draw the series; `axis` is "trained_steps" or "seconds". */
  update(series, axis) {
    series = series.filter((item) => item.x && item.y && item.y.some((value) => value !== null));
    this.body.hidden = series.length === 0;
    this.empty.hidden = series.length > 0;
    const signature = JSON.stringify([axis, series.map((item) => [item.run, item.name, item.style, item.color, Boolean(item.low)])]);
    const data = series.length ? uPlot.join(series.map((item) => [item.x, item.y, ...(item.low ? [item.low, item.high] : [])])) : [[]];
    this.series = series;
    if (signature !== this.signature || (series.length && !this.plot)) {
      this.signature = signature;
      this.build(data, axis);
    } else if (this.plot) {
      this.plot.setData(data, !this.isZoomed);
      if (this.isZoomed) this.plot.redraw();
    }
    this.showValues(null);
  }

  /** Draw again in the colours of the present theme. */
  repaint(axis) {
    this.signature = "";
    this.update(this.series, axis);
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

  build(data, axis) {
    this.plot?.destroy();
    this.plot = null;
    this.isZoomed = false;
    this.key.replaceChildren();
    this.values = [];
    this.runs = new Map(); // run → its line in the key
    if (!this.series.length) return;
    const drawn = [{}];
    const bands = [];
    for (const item of this.series) {
      const color = theme(item.color); // #rrggbb
      drawn.push(lineOf(item, color));
      if (item.low) {
        const faint = { stroke: "transparent", points: { show: false }, spanGaps: true };
        drawn.push(faint, { ...faint });
        bands.push({ series: [drawn.length - 1, drawn.length - 2], fill: `${color}38` });
      }
      this.addToKey(item, color);
    }
    const [ink, grid] = [theme("--quiet"), theme("--grid")];
    const lines = { stroke: ink, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 }, font: "11px system-ui, sans-serif" };
    const format = axis === "seconds" ? duration : count;
    this.plot = new uPlot(
      {
        width: this.body.clientWidth || 400, height: HEIGHT, legend: { show: false }, series: drawn, bands,
        scales: { x: { time: false }, y: { range: padded } },
        axes: [
          { ...lines, ...(axis === "seconds" ? { incrs: SECONDS } : {}), values: (_, ticks) => ticks.map(format), label: AXES[axis], labelSize: 16, labelFont: lines.font, size: 30, space: 70 },
          { ...lines, values: (_, ticks) => ticks.map((tick) => figure(tick)), size: 54 },
        ],
        cursor: { y: false, drag: { x: true, y: false }, points: { size: 6 }, sync: { key: axis } },
        hooks: {
          setCursor: [(plot) => this.showValues(plot.cursor.idx ?? null)],
          setSelect: [(plot) => { if (plot.select.width > 0) this.isZoomed = true; }],
          ready: [(plot) => plot.over.addEventListener("dblclick", () => { this.isZoomed = false; })],
        },
      },
      data,
      this.body,
    );
  }

  addToKey(item, color) {
    const shape = { line: "swatch", mark: "swatch dot" }[item.style] ?? `swatch ${item.style}`;
    const swatch = element("span", { className: shape, "aria-hidden": "true" });
    swatch.style.borderColor = swatch.style.color = color;
    const value = element("span", { className: "value" });
    this.values.push(value);
    if (!this.runs.has(item.run)) {
      this.runs.set(item.run, element("li", {}, element("span", { className: "label", text: item.run, title: item.run })));
      this.key.append(this.runs.get(item.run));
    }
    const words = item.name ? [element("span", { text: item.name }), " "] : [];
    this.runs.get(item.run).append(element("span", { className: "entry" }, swatch, ...words, value));
  }

  /** The values at a place on the axis; without one, the newest. */
  showValues(place) {
    this.series.forEach((item, number) => {
      if (!this.values?.[number]) return;
      const column = this.plot?.data[columnOf(this.series, number)] ?? [];
      let at = place ?? column.length - 1;
      while (at >= 0 && (column[at] === null || column[at] === undefined)) at -= 1;
      this.values[number].textContent = at < 0 ? "–" : figure(column[at], item.unit);
    });
  }
}

const SECONDS = [1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 432000, 864000];
const DASHES = { dashed: [5, 4], dotted: [1.5, 3], dashdot: [7, 3, 1.5, 3] };
const AXES = { trained_steps: "trained steps", seconds: "time with a policy" };

function columnOf(series, number) {
  return 1 + series.slice(0, number).reduce((sum, item) => sum + (item.low ? 3 : 1), 0);
}

function lineOf(item, color) {
  const line = { label: `${item.run} ${item.name}`, stroke: color, width: 1.6, spanGaps: true, points: { show: false } };
  if (item.style === "mark") return { ...line, paths: () => null, points: { show: true, size: 8, width: 2, stroke: color, fill: theme("--card") } };
  if (item.y.length === 1) return { ...line, points: { show: true, size: 6, fill: color } };
  if (item.style in DASHES) return { ...line, dash: DASHES[item.style] };
  return line;
}

function padded(_, low, high) {
  if (low === null || high === null) return [0, 1];
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}
