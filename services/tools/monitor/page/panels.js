// What charts draw: columns of metrics.csv, their names and units.

const line = (column, name, more = {}) => ({ column, name, style: "line", ...more });
const mark = (column, name, more = {}) => line(column, name, { style: "mark", ...more });
const EPISODES = "training: of the last 100 episodes";

/** [{title, unit, note, isOptional, lines: [{column, name, style, scale, unit, isRate}]}], as the server declares them. */
export const PANELS = await (await fetch("/api/panels")).json();

/** The panel of one of the environments' own statistics. */
export const statisticPanel = (name) => ({
  title: name, unit: "own statistic", note: EPISODES,
  lines: [line(`episode_${name}_mean`, "training"), mark(`eval_${name}_mean`, "evaluated")],
});

const STYLES = ["line", "dashed", "dotted", "dashdot"]; // of 8 tasks each, a colour for each of them
const NUM_COLORS = 8;

/** A panel with a line and marks for each task of one run. */
const byTask = (curves, title, training, evaluation) => ({
  title, unit: curves.name, members: curves.tasks,
  lines: (task, number) => [
    line(`${training}/${task}`, "", { style: STYLES[Math.floor(number / NUM_COLORS) % STYLES.length] }), mark(`${evaluation}/${task}`, ""),
  ],
});

/** What a run of several learner ranks shows of each. */
const byRank = (curves) => ({
  title: "Waits by learner rank", unit: "% of the time", note: `${curves.name}; dashed: for other ranks`, members: curves.ranks, prefix: "rank ",
  lines: (rank) => [
    line(`rank_batch_wait_share/${rank}`, "", { scale: 100, unit: "%", isRate: true }),
    line(`rank_ranks_wait_share/${rank}`, "", { style: "dashed", scale: 100, unit: "%", isRate: true }),
  ],
});

/** The panels that a run of several tasks or learner ranks has for itself. */
export const memberPanels = (curves) => [
  ...(curves.tasks.length > 1 ? [
    byTask(curves, "Return by task", "return_mean", "eval_return_mean"),
    ...curves.statistics.map((name) => byTask(curves, `${name} by task`, `episode_${name}_mean`, `eval_${name}_mean`)),
  ] : []),
  ...(curves.ranks.length > 1 ? [byRank(curves)] : []),
];

/** The lines of each task or rank of one run: series for `Chart.update`, without bands, which would hide one another. */
export function memberSeries(panel, curves, axis, isLive) {
  return panel.members.flatMap((member, number) =>
    series({ lines: panel.lines(member, number) }, { ...curves, name: `${panel.prefix ?? ""}${member}` }, axis, `--run${number % NUM_COLORS}`, isLive)
      .map((item) => ({ ...item, low: undefined, high: undefined })));
}

/** What a panel draws for one run: series for `Chart.update`. `isLive`: the newest value of a rate is that of now. */
export function series(panel, curves, axis, color, isLive = true) {
  const found = [];
  for (const item of panel.lines) {
    const [xs] = curves.columns[axis] ?? [];
    const [mean, low, high] = curves.columns[item.column] ?? [];
    if (!xs || !mean) continue;
    const places = mean.flatMap((value, at) => (value === null || xs[at] === null ? [] : [at]));
    const pick = (values) => places.map((at) => (values[at] === null ? null : values[at] * (item.scale ?? 1)));
    const y = pick(mean);
    const isBand = low && item.style !== "mark";
    found.push({
      run: curves.name, name: item.name, style: item.style, color, unit: item.unit ?? "", x: places.map((at) => xs[at]), y,
      low: isBand ? pick(low) : undefined, high: isBand ? pick(high) : undefined,
      mean: item.isRate && !isLive ? meanAtWork(y) : undefined,
    });
  }
  return found;
}

/** The mean of a rate's values up to the last that is not 0. */
function meanAtWork(values) {
  const worked = values.slice(0, values.findLastIndex((value) => value > 0) + 1);
  return worked.length ? worked.reduce((sum, value) => sum + value, 0) / worked.length : undefined;
}
