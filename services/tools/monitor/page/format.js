// Figures and times as text. An unknown value is a dash.

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const exact = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const TINY = 1e-3; // below it, zeros behind the point are harder to count than an exponent is to read

/** A number of things: 987, 45.6K, 1.23M. */
export function count(value) {
  return value === null || value === undefined ? "–" : compact.format(value);
}

/** A measured value, with a unit if one is given: 0.5, 1,435, 123K, 7.19e-7. */
export function figure(value, unit = "") {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  const text = size >= 1e5 ? compact.format(value) : size > 0 && size < TINY ? exponential(value) : exact.format(value);
  return unit ? `${text} ${unit}` : text;
}

/** Figures along an axis, with as many digits as tell them apart. */
export function distinct(values) {
  const short = values.map((value) => figure(value));
  if (new Set(short).size === short.length) return short;
  const digits = new Intl.NumberFormat("en", { maximumSignificantDigits: 9 });
  return values.map((value) => digits.format(value));
}

function exponential(value) {
  const [digits, exponent] = value.toExponential(2).split("e");
  return `${Number(digits)}e${Number(exponent)}`;
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

/** A moment, in seconds since 1970 or as text: the hour today, else the day and the hour. */
export function moment(at, now) {
  const date = typeof at === "number" ? new Date(at * 1000) : new Date(at);
  if (!at || Number.isNaN(date.getTime())) return "–";
  const isToday = date.toDateString() === new Date(now * 1000).toDateString();
  const time = { hour: "2-digit", minute: "2-digit" };
  return isToday ? date.toLocaleTimeString([], time) : date.toLocaleString([], { ...time, day: "numeric", month: "short" });
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

/**
 * Make `wanted` the children of a place. Elements that would look the same stay, and with them the focus, a press of the
 * mouse that is not over yet, and what a screen reader has read out already.
 */
export function renew(place, wanted) {
  let old = place.firstElementChild;
  for (const made of wanted) {
    let same = old;
    while (same && !same.isEqualNode(made)) same = same.nextElementSibling;
    if (same) {
      while (old !== same) old = removed(old);
      old = same.nextElementSibling;
    } else place.insertBefore(made, old);
  }
  while (old) old = removed(old);
}

/** Take an element off the page; the one after it. */
function removed(old) {
  const next = old.nextElementSibling;
  old.remove();
  return next;
}

/** The mark of a run: a short line in its colour (a CSS variable). */
export function swatch(color, className = "swatch") {
  const made = element("span", { className, "aria-hidden": "true" });
  made.style.borderColor = made.style.color = `var(${color})`;
  return made;
}
