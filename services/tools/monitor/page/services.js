// The map of a run's services: environments, inference, learner, in the order of the data.

import { count, duration, element, figure } from "./format.js";

const MAX_SHOWN = 12; // of one role; those that are not up come first
const ROLES = [
  ["actor", "Environments"],
  ["inference", "Inference"],
  ["learner", "Learner"],
];
const LOOKS = { up: ["up", "●"], starting: ["starting", "◌"], "not answering": ["down", "✗"], gone: ["down", "✗"] };

/** The column of a role: learner ranks besides the chief stand with it. */
function columnOf(role) {
  return role === "rank" ? "learner" : role || "actor";
}

/** The map of one run, from its detail; `now` in seconds since 1970. */
export function map(detail, now) {
  const roles = element("div", { className: "roles" });
  ROLES.forEach(([role, title], place) => {
    if (place) roles.append(element("div", { className: "arrow", text: place === 1 ? "steps → ← actions" : "unrolls → ← weights", "aria-hidden": "true" }));
    const found = detail.services.filter((item) => columnOf(item.role) === role);
    found.sort((a, b) => (a.health === "up") - (b.health === "up"));
    const group = element("div", { className: "role" }, element("h4", { text: `${title} (${found.length})` }));
    group.append(...found.slice(0, MAX_SHOWN).map((item) => card(item, now)));
    if (found.length > MAX_SHOWN) group.append(element("p", { className: "quiet small", text: rest(found.slice(MAX_SHOWN)) }));
    roles.append(group);
  });
  return element("div", { className: "map" }, element("h3", { text: detail.name }), roles);
}

function rest(services) {
  const up = services.filter((item) => item.health === "up").length;
  return `and ${services.length} more, ${up} of them up`;
}

function card(service, now) {
  const [look, sign] = LOOKS[service.health] ?? ["", "○"];
  const tone = { up: "good", down: "bad", starting: "warn" }[look] ?? "quiet";
  const since = service.health === "up" && service.started_at ? ` ${duration(now - service.started_at)}` : "";
  const head = element("div", {}, element("b", { text: service.name }), " ", element("span", { className: tone, text: `${sign} ${service.health}${since}` }));
  const list = element("dl");
  const add = (term, value) => list.append(element("dt", { text: term }), element("dd", { text: value }));
  if (service.cpu_percent !== null) add("processor", figure(service.cpu_percent, "% of a core"));
  if (service.memory_bytes !== null) add("memory", figure(Math.round(service.memory_bytes / 2 ** 20), "MiB"));
  if (service.loop_lag_ms !== null) add("loop lag", figure(service.loop_lag_ms, "ms"));
  if (service.lanes) add("environments", count(service.lanes));
  if (service.restarts) add("restarts", String(service.restarts));
  const death = service.last_death;
  if (death) add("last death", `${death.exit || "?"}, ${new Date(death.at * 1000).toLocaleString()}`);
  const made = element("div", { className: `service ${look}` }, head, list);
  if (service.drops.length) {
    const drops = service.drops.map((drop) => element("li", { text: `${count(drop.count)} ${drop.reason}` }));
    made.append(element("div", { className: "quiet", text: "dropped or repeated since its start" }), element("ul", {}, ...drops));
  }
  return made;
}
