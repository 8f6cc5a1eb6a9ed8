// Which figures are drawn where: columns of metrics.csv, their names and units.

const line = (column, name, more = {}) => ({ column, name, style: "line", ...more });
const dashed = (column, name, more = {}) => line(column, name, { style: "dashed", ...more });
const mark = (column, name, more = {}) => line(column, name, { style: "mark", ...more });
const percent = { scale: 100, unit: "%" };
const rate = { isRate: true }; // 0 in the last rows of a run that ended with an evaluation, so its median stands for it
const EPISODES = "training: of the last 100 episodes";

export const PANELS = [
  { title: "Return", unit: "of an episode", note: EPISODES,
    lines: [line("return_mean", "training"), mark("eval_return_mean", "evaluated")] },
  { title: "Speed", unit: "steps/s", lines: [line("trained_steps_per_s", "trained", rate), dashed("env_steps_per_s", "acted", rate)] },
  { title: "Episode length", unit: "steps, mean", lines: [line("length_mean", "")] },
  { title: "Policy lag", unit: "updates", lines: [line("lag_mean", "mean"), dashed("lag_max", "most")] },
  { title: "Batch fill", unit: "lanes of a forward pass", lines: [line("inference_batch_fill", "filled"), dashed("inference_lanes", "all lanes")] },
  { title: "Inference", unit: "ms", lines: [line("inference_queue_wait_ms", "queue"), dashed("inference_forward_ms", "forward")] },
  { title: "Update", unit: "ms", lines: [line("update_ms", "")] },
  { title: "Busy", unit: "% of the time", lines: [line("update_busy_share", "updates", { ...percent, ...rate }), dashed("inference_env_busy_share", "environments", { ...percent, ...rate })] },
  { title: "Dropped", unit: "% of the steps, too old", lines: [line("dropped_share", "", percent)] },
  { title: "Entropy", unit: "nats", lines: [line("entropy", "")] },
  { title: "Explained variance", unit: "share, 1 is best", lines: [line("explained_variance", "")] },
  { title: "KL divergence", unit: "nats, behaviour to target", lines: [line("kl", "")] },
  { title: "Disagreement", unit: "|log ρ| at lag 0", note: "near 0 is right", lines: [line("log_rho_mean_abs_lag0", "")] },
  { title: "Loss", unit: "per transition", lines: [line("loss", "")] },
  { title: "Gradient norm", unit: "before clipping", lines: [line("grad_norm", "")] },
];

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
      median: item.isRate && !isLive ? median(y.filter((value) => value > 0)) : undefined,
    });
  }
  return found;
}

function median(values) {
  const ordered = [...values].sort((a, b) => a - b);
  return ordered.length ? ordered[Math.floor(ordered.length / 2)] : undefined;
}
