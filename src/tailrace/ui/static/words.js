// Figures as text for people: durations, sizes, times. What is not known has words of its own; NaN appears nowhere.

export const NONE = "no report yet";
export const UNMEASURED = "not measured yet"; // a rate takes two reports

const whole = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** True for a figure that is there. */
export const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

/** A count: 207,594; from ten million on 12.3 M. */
export function count(value, none = NONE) {
  if (!known(value)) return none;
  if (Math.abs(value) >= 1e10) return `${short.format(value / 1e9)} G`;
  if (Math.abs(value) >= 1e7) return `${short.format(value / 1e6)} M`;
  return whole.format(Math.round(value));
}

/** A rate: 21,476/s; below ten with a decimal. */
export function rate(value, none = UNMEASURED) {
  if (!known(value)) return none;
  return `${value !== 0 && Math.abs(value) < 10 ? short.format(value) : count(value)}/s`;
}

/** A share of 1 as a percentage. */
export function percent(value, none = UNMEASURED) {
  return known(value) ? `${Math.round(value * 100)} %` : none;
}

/** A size in bytes: 3.3 MiB, as the command line and the settings count. */
export function size(value, none = NONE) {
  if (!known(value)) return none;
  let amount = value;
  for (const unit of ["B", "KiB", "MiB", "GiB", "TiB"]) {
    if (Math.abs(amount) < 1024 || unit === "TiB") return `${unit === "B" ? whole.format(amount) : short.format(amount)} ${unit}`;
    amount /= 1024;
  }
  return none;
}

/** A duration in seconds: 342 ms, 9.8 s, 3 min 12 s, 2 h 5 min, 3 d 4 h. */
export function duration(seconds, none = NONE) {
  if (!known(seconds)) return none;
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 59.95) return `${short.format(seconds)} s`;
  const all = Math.round(seconds);
  if (all < 3600) return pair(Math.floor(all / 60), "min", all % 60, "s");
  const minutes = Math.round(seconds / 60);
  if (minutes < 1440) return pair(Math.floor(minutes / 60), "h", minutes % 60, "min");
  const hours = Math.round(seconds / 3600);
  return pair(Math.floor(hours / 24), "d", hours % 24, "h");
}

const pair = (more, unit, less, small) => (less ? `${more} ${unit} ${less} ${small}` : `${more} ${unit}`);

/** A time (seconds since 1970) in the zone of the reader: the time of day, with the date where it is not that of `now`. */
export function clock(seconds, now) {
  if (!known(seconds)) return NONE;
  const date = new Date(seconds * 1000);
  const time = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  const today = new Date((now ?? seconds) * 1000).toDateString() === date.toDateString();
  return today ? time : `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
}

const two = (value) => String(value).padStart(2, "0");

/** A time (seconds since 1970) in UTC, for a tooltip. */
export function utc(seconds) {
  if (!known(seconds)) return "";
  return `${new Date(seconds * 1000).toISOString().replace("T", " ").slice(0, 19)} UTC`;
}

/** Event time as the snapshot has it, in seconds since 1970; null before the first and behind the last. */
export function eventSeconds(text) {
  const millis = Date.parse(text ?? "");
  return Number.isNaN(millis) ? null : millis / 1000;
}

/** "1 restart", "2 restarts". */
export const many = (value, noun) => `${count(value)} ${noun}${value === 1 ? "" : "s"}`;

/** The file and line, and the code, of a sentence such as `map is written at flows.py:3: rows.map(f)`. */
export function place(written) {
  const found = /^(?:.*? is written at )?(.*?:\d+|.*?line \d+)(?:: ([^]*))?$/.exec(written ?? "");
  return found ? { file: found[1], code: found[2] ?? "" } : { file: "", code: written ?? "" };
}

/** The last part of a path, which is enough to find a file. */
export const shortPath = (path) => path.split("/").slice(-2).join("/");
