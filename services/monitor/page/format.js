// Figures and times as text. An unknown value is a dash.

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const exact = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

/** A number of things: 987, 45.6K, 1.23M. */
export function count(value) {
  return value === null || value === undefined ? "–" : compact.format(value);
}

/** A measured value, with a unit if one is given. */
export function figure(value, unit = "") {
  if (value === null || value === undefined) return "–";
  const text = Math.abs(value) >= 1e5 ? compact.format(value) : exact.format(value);
  return unit ? `${text} ${unit}` : text;
}

/** 12 s, 3:05, 1:02:03, 2 d 3 h. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  if (h >= 48) return `${Math.floor(h / 24)} d ${h % 24} h`;
  const two = (n) => String(n).padStart(2, "0");
  return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}

/** An element with text or children. Never HTML: names come from folders that anybody may have named. */
export function element(name, { className = "", text = "", ...attributes } = {}, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}
