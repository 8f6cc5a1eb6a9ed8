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

/** What a run of several tasks shows of each: a panel, and the columns of a task. */
export const taskPanels = (curves) => [
  { title: "Return by task", unit: curves.name, training: "return_mean", evaluation: "eval_return_mean" },
  ...curves.statistics.map((name) => ({ title: `${name} by task`, unit: curves.name, training: `episode_${name}_mean`, evaluation: `eval_${name}_mean` })),
];

const STYLES = ["line", "dashed", "dotted", "dashdot"]; // of 8 tasks each, a colour for each of them
const NUM_COLORS = 8;

/** A line and marks for each task of one run: series for `Chart.update`, without bands, which would hide one another. */
export function taskSeries(panel, curves, axis) {
  return curves.tasks.flatMap((task, number) => {
    const style = STYLES[Math.floor(number / NUM_COLORS) % STYLES.length];
    const lines = [line(`${panel.training}/${task}`, "", { style }), mark(`${panel.evaluation}/${task}`, "")];
    return series({ lines }, { ...curves, name: task }, axis, `--run${number % NUM_COLORS}`)
      .map((item) => ({ ...item, low: undefined, high: undefined }));
  });
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
