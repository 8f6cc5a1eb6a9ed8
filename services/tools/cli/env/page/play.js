// A person's game: keys go up one at a time, what the environment shows comes back.

const NAMES = { ArrowUp: "up", ArrowDown: "down", ArrowLeft: "left", ArrowRight: "right", " ": "space", Enter: "enter", Tab: "tab" };
const SIGNS = { up: "↑", down: "↓", left: "←", right: "→", space: "␣", enter: "⏎" };
const QUIT = "q";
const MAX_WAITING = 4; // keys that were pressed before the environment had answered
const MAX_HEIGHT = 480; // of the picture, CSS pixels

const at = (id) => document.getElementById(id);
const buttons = new Map(); // by action
const waiting = [];
let known = new Set();
let isBusy = false;
let isOver = false;
let shownPicture = 0;

function show(view) {
  at("environment").textContent = view.env_id;
  document.title = `${view.env_id} · seedbed play`;
  for (const name of ["episode", "steps", "return", "reward", "flags"]) {
    at(name).textContent = typeof view[name] === "number" ? Number(view[name].toPrecision(6)) : view[name] || "–";
  }
  at("state").textContent = view.note || (view.has_ended ? "the episode is over; any action begins the next" : "");
  at("state").classList.toggle("note", Boolean(view.note));
  at("actions").textContent = view.actions.join("  ") || "none yet";
  at("returns").textContent = view.returns.map((value) => Number(value.toPrecision(6))).join("  ") || "no whole episode yet";
  showKeys(view.keys);
  showValues(view.values);
  const last = view.actions.at(-1);
  for (const [action, button] of buttons) button.classList.toggle("pressed", action === last);
}

function showKeys(keys) {
  if (buttons.size) return;
  known = new Set(keys.flatMap(([, names]) => names));
  for (const [action, names] of keys) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...names.flatMap((name) => [kbd(SIGNS[name] ?? name), " "]), `→ ${action}`);
    button.setAttribute("aria-label", `action ${action}, keys ${names.join(", ")}`);
    button.addEventListener("click", () => press(names[0]));
    buttons.set(action, button);
    at("keys").append(button);
  }
}

function kbd(text) {
  const key = document.createElement("kbd");
  key.textContent = text;
  return key;
}

function showValues(values) {
  const rows = values.map(([name, value]) => {
    const row = document.createElement("tr");
    const [head, cell] = [document.createElement("th"), document.createElement("td")];
    [head.scope, head.textContent, cell.textContent] = ["row", name, value];
    row.append(head, cell);
    return row;
  });
  at("values").tBodies[0].replaceChildren(...rows);
  at("values").hidden = rows.length === 0;
}

async function showPicture(number) {
  if (number === shownPicture) return;
  const response = await fetch("/api/picture", { cache: "no-store" });
  shownPicture = number;
  at("picture").hidden = response.status !== 200;
  if (response.status === 200) draw(await response.arrayBuffer());
}

function draw(buffer) {
  const sizes = new DataView(buffer);
  const [height, width] = [sizes.getUint32(0, true), sizes.getUint32(4, true)];
  const rgb = new Uint8Array(buffer, 8);
  if (rgb.length !== 3 * height * width) return;
  const canvas = at("picture");
  const image = new ImageData(width, height);
  for (let from = 0, to = 0; from < rgb.length; from += 3, to += 4) {
    image.data[to] = rgb[from];
    image.data[to + 1] = rgb[from + 1];
    image.data[to + 2] = rgb[from + 2];
    image.data[to + 3] = 255;
  }
  [canvas.width, canvas.height] = [width, height];
  canvas.getContext("2d").putImageData(image, 0, 0);
  canvas.style.width = `${width * Math.max(1, Math.floor(MAX_HEIGHT / height))}px`;
}

function end(text) {
  isOver = true;
  waiting.length = 0;
  at("notice").textContent = text;
  at("notice").hidden = false;
  for (const button of buttons.values()) button.disabled = true;
}

/** One answer of the server, shown. */
async function take(response) {
  if (!response.ok) return end((await response.text()).trim());
  const view = await response.json();
  show(view);
  if (view.is_over) return end(`The game is over: ${view.summary}`);
  return showPicture(view.picture);
}

async function press(key) {
  if (isOver || waiting.length >= MAX_WAITING) return;
  waiting.push(key);
  if (isBusy) return;
  isBusy = true;
  while (waiting.length) {
    try {
      await take(await fetch(`/api/press?key=${encodeURIComponent(waiting.shift())}`, { method: "POST" }));
    } catch {
      end("seedbed play does not answer any more.");
    }
  }
  isBusy = false;
}

document.addEventListener("keydown", (event) => {
  const key = NAMES[event.key] ?? event.key;
  if (event.ctrlKey || event.metaKey || event.altKey || (!known.has(key) && key !== QUIT)) return;
  if (event.target.tagName === "BUTTON" && (key === "space" || key === "enter")) return; // it is clicked
  event.preventDefault();
  if (!event.repeat || !isBusy) press(key);
});

fetch("/api/game", { cache: "no-store" }).then(take, () => end("seedbed play does not answer."));
