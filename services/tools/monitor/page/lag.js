// The histogram of policy lag: a column for each range of lags, a bar in it for each run.

import { element, figure } from "./format.js";

/** Draws into one figure; `update` takes [[name, color variable, lag of the run's detail], …]. */
export class LagPanel {
  constructor() {
    this.note = element("span", { className: "quiet small" });
    this.bars = element("div", { className: "lag" });
    const caption = element("figcaption", {}, element("h3", { text: "Policy lag, histogram" }), this.note);
    this.figure = element("figure", {}, caption, this.bars);
    this.update([]);
  }

  update(runs) {
    const known = runs.filter(([, , lag]) => lag).map(([name, color, lag]) => ({ name, color, lag, total: lag.counts.reduce((sum, count) => sum + count, 0) }));
    const isRecent = known.some(({ lag }) => lag.is_recent);
    this.note.textContent = `% of the transitions, by updates${known.length ? (isRecent ? " · last minute of live runs" : " · whole run") : ""}`;
    if (!known.length) {
      this.bars.replaceChildren(element("p", { className: "empty", text: "nothing yet: counted while a run trains" }));
      return;
    }
    const longest = known.reduce((best, { lag }) => (lag.lows.length > best.lows.length ? lag : best), known[0].lag);
    const used = Math.max(...known.map(({ lag }) => lag.counts.findLastIndex((count) => count > 0))) + 1;
    const tallest = Math.max(...known.flatMap(({ lag, total }) => lag.counts.map((count) => count / total)));
    this.bars.replaceChildren(...longest.lows.slice(0, used).map((low, place) => this.column(known, longest, low, place, tallest)));
  }

  column(known, longest, low, place, tallest) {
    const next = longest.lows[place + 1] ?? (place ? low * 2 : 1); // powers of two
    const isLast = place + 1 === longest.lows.length && longest.is_open;
    const name = isLast ? `${low}+` : next - 1 > low ? `${low}–${next - 1}` : String(low);
    const bounds = known.map(({ lag }) => lag.bound).filter((bound) => bound !== null);
    const isOld = bounds.length > 0 && low > Math.max(...bounds);
    const bars = known.map(({ name: run, color, lag, total }) => {
      const share = (lag.counts[place] ?? 0) / total;
      const text = percent(share);
      const bar = element("span", { className: "fill", title: `${run}: ${text}` });
      bar.style.height = `${(100 * share) / tallest}%`;
      bar.style.background = `var(${color})`;
      return element("span", { className: "track" }, known.length === 1 ? element("span", { className: "value", text }) : "", bar);
    });
    const said = known.map(({ name: run, lag, total }) => `${run} ${percent((lag.counts[place] ?? 0) / total)}`).join(", ");
    const range = element("span", { className: isOld ? "range bad" : "range", text: name, title: isOld ? "over learner.max_policy_lag: dropped" : "updates" });
    return element("div", { className: "lag-column", role: "img", "aria-label": `lag ${name}: ${said}` }, element("div", { className: "tracks" }, ...bars), range);
  }
}

function percent(share) {
  const value = 100 * share;
  return value === 0 ? "0 %" : value < 0.1 ? "< 0.1 %" : `${figure(Number(value.toPrecision(2)))} %`;
}
