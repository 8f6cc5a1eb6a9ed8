// Pictures: live ones of runs' evaluations, a canvas each, asked for only while it is in view; videos of ended runs.

import { duration, element } from "./format.js";

const WATCHED_MS = 280; // inference takes at most four a second while somebody watches
const NONE_MS = 2000;
const STALE_S = 3; // a picture that old does not move any more
const MAX_HEIGHT = 320; // CSS pixels

/** The panel of one run. `close` ends its asking. */
class Screen {
  constructor(name, address) {
    this.name = name;
    this.address = address;
    this.canvas = element("canvas", { role: "img", "aria-label": `lane 0 of ${name}'s evaluation` });
    this.note = element("p", { className: "quiet small", role: "status" });
    this.body = element("div", { className: "screen" }, this.canvas);
    this.figure = element("figure", { className: "live" }, element("figcaption", {}, element("h3", { text: name }), this.note), this.body);
    this.body.hidden = true;
    this.say("no picture yet: one comes with the next evaluation");
    this.etag = "";
    this.isOpen = true;
    this.isSeen = true;
    this.observer = new IntersectionObserver((entries) => { this.isSeen = entries.at(-1).isIntersecting; });
    this.observer.observe(this.figure);
    this.ask();
  }

  close() {
    this.isOpen = false;
    this.observer.disconnect();
    this.figure.remove();
  }

  say(text) {
    if (this.note.textContent !== text) this.note.textContent = text;
  }

  async ask() {
    while (this.isOpen) {
      let wait = NONE_MS;
      if (this.isSeen && !document.hidden) {
        try {
          wait = await this.turn();
        } catch {
          this.say("the monitor does not answer; trying again");
        }
      }
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }

  /** One look; how long to wait until the next, ms. */
  async turn() {
    const response = await fetch(this.address, { headers: this.etag ? { "If-None-Match": this.etag } : {}, cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (response.status === 200) {
      this.etag = response.headers.get("etag");
      this.draw(await response.arrayBuffer());
    } else if (response.status !== 304) {
      return NONE_MS;
    }
    const [epoch, step] = response.headers.get("x-seedbed-version").split(":");
    const age = Number(response.headers.get("x-seedbed-age"));
    const policy = `policy of update ${step}${epoch === "1" ? "" : `, learner's life ${epoch}`}`;
    this.body.classList.toggle("still", age > STALE_S);
    this.say(age > STALE_S ? `${policy} · ${duration(age)} ago; goes on with the next evaluation` : `${policy} · now`);
    return age > STALE_S ? NONE_MS / 2 : WATCHED_MS;
  }

  draw(buffer) {
    const sizes = new DataView(buffer);
    const [height, width] = [sizes.getUint32(0, true), sizes.getUint32(4, true)];
    const rgb = new Uint8Array(buffer, 8);
    if (rgb.length !== 3 * height * width) return;
    if (this.canvas.width !== width) this.canvas.width = width;
    if (this.canvas.height !== height) this.canvas.height = height;
    const image = new ImageData(width, height);
    for (let from = 0, to = 0; from < rgb.length; from += 3, to += 4) {
      image.data[to] = rgb[from];
      image.data[to + 1] = rgb[from + 1];
      image.data[to + 2] = rgb[from + 2];
      image.data[to + 3] = 255;
    }
    this.canvas.getContext("2d").putImageData(image, 0, 0);
    const scale = Math.max(1, Math.floor(MAX_HEIGHT / height));
    this.canvas.style.width = `${width * scale}px`;
    this.canvas.style.aspectRatio = `${width} / ${height}`;
    this.body.hidden = false;
  }
}

/** The panel of one video of a run that has ended. */
class Film {
  constructor(name, address) {
    this.video = element("video", { src: address, controls: "", loop: "", playsinline: "", preload: "auto", "aria-label": `the policy of ${name}` });
    this.video.muted = true;
    this.video.autoplay = !matchMedia("(prefers-reduced-motion: reduce)").matches;
    this.figure = element("figure", { className: "live" }, element("figcaption", {}, element("h3", { text: name })), element("div", { className: "screen" }, this.video));
  }

  close() {
    this.video.removeAttribute("src"); // ends its loading
    this.video.load();
    this.figure.remove();
  }
}

/** All panels: one for each live run that is shown, and one for each video of those that have ended. */
export class Screens {
  constructor(place, section) {
    this.place = place;
    this.section = section;
    this.open = new Map(); // address → panel
  }

  /** `live`, `videos`: [[name, address of its picture or video], …]. A run that is resumed or ends changes its address. */
  show(live, videos) {
    const wanted = new Map([
      ...live.map(([name, address]) => [address, () => new Screen(name, address)]),
      ...videos.map(([name, address]) => [address, () => new Film(name, address)]),
    ]);
    for (const [address, screen] of this.open) {
      if (!wanted.has(address)) {
        screen.close();
        this.open.delete(address);
      }
    }
    for (const [address, make] of wanted) {
      if (this.open.has(address)) continue;
      const screen = make();
      this.open.set(address, screen);
      this.place.append(screen.figure);
    }
    this.section.hidden = this.open.size === 0;
  }
}
