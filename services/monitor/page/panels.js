// Which figures are drawn where: columns of metrics.csv, their names and units.

const line = (column, name, more = {}) => ({ column, name, style: "line", ...more });
const dashed = (column, name, more = {}) => line(column, name, { style: "dashed", ...more });
const percent = { scale: 100, unit: "%" };

export const PANELS = [
  { title: "Return", unit: "sum of an episode's rewards", note: "line: last 100 training episodes; ○: evaluations",
    lines: [line("return_mean", ""), line("eval_return_mean", "evaluated", { style: "mark" })] },
  { title: "Speed", unit: "steps/s", lines: [line("trained_steps_per_s", "trained"), dashed("env_steps_per_s", "acted")] },
  { title: "Episode length", unit: "steps, mean", lines: [line("length_mean", "")] },
  { title: "Policy lag", unit: "updates", lines: [line("lag_mean", "mean"), dashed("lag_max", "most")] },
  { title: "Batch fill", unit: "lanes of a forward pass", lines: [line("inference_batch_fill", "filled"), dashed("inference_lanes", "all lanes")] },
  { title: "Inference", unit: "ms", lines: [line("inference_queue_wait_ms", "queue"), dashed("inference_forward_ms", "forward")] },
  { title: "Update", unit: "ms", lines: [line("update_ms", "")] },
  { title: "Busy", unit: "% of the time", lines: [line("update_busy_share", "updates", percent), dashed("inference_env_busy_share", "environments", percent)] },
  { title: "Dropped", unit: "% of the steps of an update, too old", lines: [line("dropped_share", "", percent)] },
  { title: "Entropy", unit: "nats", lines: [line("entropy", "")] },
  { title: "Explained variance", unit: "share, 1 is best", lines: [line("explained_variance", "")] },
  { title: "KL divergence", unit: "nats, behaviour to target policy", lines: [line("kl", "")] },
  { title: "Loss", unit: "per transition", lines: [line("loss", "")] },
  { title: "Gradient norm", unit: "before clipping", lines: [line("grad_norm", "")] },
];

export const TASKS_PANEL = { title: "Return by task", unit: "", note: "line: last 100 training episodes; ○: evaluations" };
const STYLES = ["line", "dashed", "dotted", "dashdot"]; // of 8 tasks each, a colour for each of them
const NUM_COLORS = 8;

/** A line and marks for each task of one run: series for `Chart.update`, without bands, which would hide one another. */
export function taskSeries(curves, axis) {
  return curves.tasks.flatMap((task, number) => {
    const style = STYLES[Math.floor(number / NUM_COLORS) % STYLES.length];
    const lines = [line(`return_mean/${task}`, "", { style }), line(`eval_return_mean/${task}`, "", { style: "mark" })];
    return series({ lines }, { ...curves, name: task }, axis, `--run${number % NUM_COLORS}`)
      .map((item) => ({ ...item, low: undefined, high: undefined }));
  });
}

/** What a panel draws for one run: series for `Chart.update`. */
export function series(panel, curves, axis, color) {
  const found = [];
  for (const item of panel.lines) {
    const [xs] = curves.columns[axis] ?? [];
    const [mean, low, high] = curves.columns[item.column] ?? [];
    if (!xs || !mean) continue;
    const places = mean.flatMap((value, at) => (value === null || xs[at] === null ? [] : [at]));
    const pick = (values) => places.map((at) => (values[at] === null ? null : values[at] * (item.scale ?? 1)));
    const isBand = low && item.style !== "mark";
    found.push({
      run: curves.name, name: item.name, style: item.style,
      color, unit: item.unit ?? "", x: places.map((at) => xs[at]), y: pick(mean),
      low: isBand ? pick(low) : undefined, high: isBand ? pick(high) : undefined,
    });
  }
  return found;
}
