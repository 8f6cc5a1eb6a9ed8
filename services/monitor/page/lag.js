// The histogram of policy lag: a row for each range of lags, a bar in it for each run. Text first, bars beside it.

import { element, figure } from "./format.js";

/** Draws into one figure; `update` takes [[name, color variable, lag of the run's detail], …]. */
export class LagPanel {
  constructor() {
    this.note = element("span", { className: "quiet small" });
    this.key = element("ul", { className: "key" });
    this.rows = element("div", { className: "lag" });
    const caption = element("figcaption", {}, element("h3", { text: "Policy lag, histogram" }), this.note);
    this.figure = element("figure", {}, caption, this.key, this.rows);
    this.update([]);
  }

  update(runs) {
    const known = runs.filter(([, , lag]) => lag);
    const isRecent = known.some(([, , lag]) => lag.is_recent);
    this.note.textContent = `% of the transitions${known.length ? (isRecent ? " · last minute of live runs" : " · whole run") : ""}`;
    this.key.replaceChildren(...known.map(([name, color]) => {
      const swatch = element("span", { className: "swatch bar", "aria-hidden": "true" });
      swatch.style.background = `var(${color})`;
      return element("li", {}, swatch, element("span", { className: "label", text: name, title: name }));
    }));
    if (!known.length) {
      this.rows.replaceChildren(element("p", { className: "empty", text: "nothing yet: counted while a run trains" }));
      return;
    }
    const longest = known.reduce((best, [, , lag]) => (lag.lows.length > best.lows.length ? lag : best), known[0][2]);
    this.rows.replaceChildren(...longest.lows.map((low, place) => this.row(known, longest, low, place)));
  }

  row(known, longest, low, place) {
    const next = longest.lows[place + 1] ?? (place ? low * 2 : 1); // powers of two
    const isLast = place + 1 === longest.lows.length && longest.is_open;
    const name = isLast ? `${low} and more` : next - 1 > low ? `${low}–${next - 1}` : String(low);
    const bounds = known.map(([, , lag]) => lag.bound).filter((bound) => bound !== null);
    const isOld = bounds.length > 0 && low > Math.max(...bounds);
    const bars = known.map(([, color, lag]) => {
      const total = lag.counts.reduce((sum, count) => sum + count, 0);
      const percent = (100 * (lag.counts[place] ?? 0)) / total;
      const bar = element("span", { className: "fill", "aria-hidden": "true" });
      bar.style.width = `${percent}%`;
      bar.style.background = `var(${color})`;
      const text = percent === 0 ? "0 %" : percent < 0.1 ? "< 0.1 %" : `${figure(Number(percent.toPrecision(2)))} %`;
      return element("div", { className: "bar" }, element("span", { className: "track" }, bar), element("span", { className: "value", text }));
    });
    const title = element("span", { className: isOld ? "range bad" : "range", text: name, title: isOld ? "over learner.max_policy_lag: dropped" : "updates" });
    return element("div", { className: "lag-row" }, title, element("div", {}, ...bars));
  }
}
