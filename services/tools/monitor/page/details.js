// What is asked for only where a visitor opened it: what limits a run, its settings, its logs. And how runs ended.

import { element, renew, swatch } from "./format.js";

/** A part of the page that is closed at first. `draw(answers)` fills it; `address` is asked for each run shown. */
class Part {
  constructor(place, address, draw) {
    [this.place, this.address, this.draw] = [place, address, draw];
    this.body = place.querySelector(".body");
  }

  get isOpen() {
    return this.place.open;
  }
}

const titled = (name, color) => element("h3", {}, swatch(color), " ", element("span", { text: name }));
const list = (className, items) => element("ul", { className }, ...items.map((text) => element("li", { text })));

/** How the runs shown ended that did not end well: [[name, color, detail], …]. */
export function endings(runs) {
  return runs.filter(([, , detail]) => detail?.ended?.last_words || detail?.ended?.state === "failed").map(([name, color, detail]) => {
    const { state, cause, last_words: words } = detail.ended;
    const made = element("div", { className: "alert error" }, titled(name, color), element("p", { text: `${state}: ${cause || "no cause was told"}` }));
    if (words.trim().includes("\n")) made.append(element("pre", { text: words }));
    return made;
  });
}

/** What limits each run, as `seedbed explain` has it. */
export class Verdicts extends Part {
  constructor(place) {
    super(place, () => "/verdict", (runs) => this.body.replaceChildren(...runs.map(([name, color, said]) => this.card(name, color, said))));
  }

  card(name, color, said) {
    const made = element("div", { className: "map" }, titled(name, color));
    if (!said || said.problem) made.append(element("p", { className: "quiet", text: said?.problem ?? "nothing is known yet" }));
    else {
      const busy = Object.entries(said.busy).filter(([, share]) => share !== null).map(([who, share]) => `${who} ${Math.round(100 * share)} %`);
      made.append(element("p", {}, element("b", { text: said.bottleneck }), ` – ${said.evidence}`), element("p", { className: "quiet small", text: `busy: ${busy.join(", ")}` }), element("p", { text: "To turn:" }), list("", said.knobs));
      if (said.remarks.length) made.append(element("p", { text: "Also:" }), list("warn", said.remarks));
    }
    return made;
  }
}

/** A table of settings with a column for each run. */
export class Settings extends Part {
  constructor(place) {
    super(place, () => "/settings", (runs) => this.table(runs));
    this.onlyDifferent = place.querySelector("#differences");
    this.find = place.querySelector("#find-setting");
    for (const input of [this.onlyDifferent, this.find]) input.addEventListener("input", () => this.table(this.runs));
  }

  table(runs) {
    this.runs = runs;
    const tables = runs.map(([, , said]) => new Map(said?.settings ?? []));
    const words = this.find.value.toLowerCase().split(/\s+/);
    const isWanted = (key) => {
      const values = tables.map((table) => table.get(key));
      const text = [key, ...values].join(" ").toLowerCase();
      const isDifferent = tables.length < 2 || new Set(values).size > 1;
      return (isDifferent || !this.onlyDifferent.checked) && words.every((word) => text.includes(word));
    };
    const keys = [...new Set(tables.flatMap((table) => [...table.keys()]))].filter(isWanted);
    if (!keys.length) {
      this.body.replaceChildren(element("p", { className: "quiet", text: tables.length > 1 && this.onlyDifferent.checked ? "The runs shown have the same settings." : "No setting is found." }));
      return;
    }
    const head = element("tr", {}, element("th", { scope: "col", text: "setting" }), ...runs.map(([name, color]) => element("th", { scope: "col" }, swatch(color), " ", element("span", { text: name }))));
    const rows = keys.map((key) => element("tr", {}, element("th", { scope: "row", text: key }), ...tables.map((table) => element("td", { text: table.get(key) ?? "–" }))));
    this.body.replaceChildren(element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
  }
}

/** The last lines of one run's logs. */
export class Logs extends Part {
  constructor(place, wake) {
    super(place, (name) => (name === this.run.value ? `/logs?level=${this.level.value}` : ""), (runs) => this.lines(runs));
    this.run = place.querySelector("#log-run");
    this.level = place.querySelector("#log-level");
    for (const select of [this.run, this.level]) select.addEventListener("change", wake);
  }

  /** Which runs there are to choose from. */
  offer(names) {
    const chosen = this.run.value;
    if ([...this.run.options].map((option) => option.value).join("\n") !== names.join("\n")) {
      this.run.replaceChildren(...names.map((name) => element("option", { text: name })));
      if (names.includes(chosen)) this.run.value = chosen;
    }
  }

  lines(runs) {
    const said = runs.find(([name]) => name === this.run.value)?.[2];
    const wasAtEnd = this.body.scrollHeight - this.body.scrollTop - this.body.clientHeight < 40;
    const made = (said?.lines ?? []).map((line) => element("div", { className: `line ${line.level}` },
      element("time", { text: new Date(line.at * 1000).toLocaleTimeString([], { hour12: false }) }), element("b", { text: line.service }), element("span", { text: line.text })));
    renew(this.body, made.length ? made : [element("p", { className: "quiet", text: "No line of this level. In containers logs are with the engine: docker-compose logs." })]);
    if (wasAtEnd) this.body.scrollTop = this.body.scrollHeight;
  }
}
