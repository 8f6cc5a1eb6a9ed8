// What of its values a chart shows, and how smooth: pure functions of numbers.

const TAIL = 0.05; // of a series' values lies on either side of the range that the fence is made from
const REACH = 1.5; // such ranges beyond it
const MIN_VALUES = 8; // of fewer every one counts

/** The bounds within which a series' values are shown: all of them, but for few that lie far from the others. */
export function fence(values) {
  const ordered = values.filter((value) => value !== null).sort((a, b) => a - b);
  if (!ordered.length) return [Infinity, -Infinity];
  const [least, greatest] = [ordered[0], ordered.at(-1)];
  const at = (share) => ordered[Math.round(share * (ordered.length - 1))];
  const reach = REACH * (at(1 - TAIL) - at(TAIL));
  if (ordered.length < MIN_VALUES || reach === 0) return [least, greatest];
  const inside = ordered.filter((value) => value >= at(TAIL) - reach && value <= at(1 - TAIL) + reach);
  return [inside[0], inside.at(-1)];
}

/** The values with those beyond their fence moved to it, so that an average is not drawn after them. */
export function within(values) {
  const [low, high] = fence(values);
  return values.map((value) => (value === null ? null : Math.min(high, Math.max(low, value))));
}

/** The fence around all series, given the values of each: it has its own scale, so that no run makes outliers of another's. */
export function fenceOf(series) {
  const fences = series.map(fence);
  return [Math.min(...fences.map(([low]) => low)), Math.max(...fences.map(([, high]) => high))];
}

/** How many values of all series lie beyond the fence, as text; empty if none does. */
export function beyond(series, [low, high]) {
  const values = series.flat().filter((value) => value !== null);
  const [above, below] = [values.filter((value) => value > high).length, values.filter((value) => value < low).length];
  const said = [above && `${above} above`, below && `${below} below`].filter(Boolean).join(", ");
  return said && `outliers: ${said}`;
}

/** The exponential moving average of values without gaps, from the first on as if there had been others like it. */
export function smooth(values, weight) {
  let [sum, total] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    [sum, total] = [weight * sum + (1 - weight) * value, weight * total + (1 - weight)];
    return sum / total;
  });
}

/** The range of an axis around values, with some room, which does not reach below 0 for values that do not. */
export function padded(low, high) {
  if (low === null || high === null || low === undefined) return [0, 1];
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}
