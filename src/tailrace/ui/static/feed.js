// Snapshots of a job as they come: server-sent events, else polling. Nothing is requested while the page is hidden.

export const MINUTES = 15;
const KEEP = MINUTES * 60;
const PATIENCE = 5000; // milliseconds without an event, behind which the page polls: a proxy may hold events back

/** The parameters behind `#` of the page's address: `job` and `token`. */
export function fragment() {
  return new URLSearchParams(location.hash.slice(1));
}

/** The address of another job on this page: the token stays. */
export function linkTo(id) {
  const found = fragment();
  found.set("job", id);
  return `#${found}`;
}

/** The snapshot that a static export of the page holds, or null. */
export function exported() {
  const held = document.getElementById("tailrace-snapshot");
  return held === null ? null : JSON.parse(held.textContent);
}

async function json(url, options) {
  const answer = await fetch(url, { cache: "no-store", ...options });
  const body = await answer.json().catch(() => null);
  if (!answer.ok) throw new Error(body?.error ?? body?.detail ?? `${answer.status} ${answer.statusText}`);
  return body;
}

/** The jobs of the machine. */
export const jobs = () => json("api/jobs");

/** One snapshot with the figures of each subtask. */
export const withSubtasks = (id) => json(`api/jobs/${encodeURIComponent(id)}?subtasks=1`);

/** The keys on which the time of operators goes, by uid. It takes two seconds. */
export const keysOf = (id) => json(`api/jobs/${encodeURIComponent(id)}/keys`).then((found) => found.keys);

/** The last lines of the log of a job. */
export const linesOf = (id) => json(`api/jobs/${encodeURIComponent(id)}/logs`).then((found) => found.lines);

/** Sends an order to a job: checkpoint, savepoint, rescale, stop, drain or cancel. */
export function order(id, verb, parameters = "") {
  const headers = { "X-Tailrace-Token": fragment().get("token") ?? "" };
  return json(`api/jobs/${encodeURIComponent(id)}/${verb}${parameters}`, { method: "POST", headers });
}

/** The snapshots of one job. Calls `show(snapshot)` at each, and `fail(text)` where none comes. */
export class Feed {
  constructor(id, show, fail) {
    Object.assign(this, { id, show, fail, events: null, timer: null, closed: false });
    this.visible = () => (document.hidden ? this.pause() : this.open());
    document.addEventListener("visibilitychange", this.visible);
    this.open();
  }

  open() {
    if (this.closed || document.hidden || this.events !== null || this.timer !== null) return;
    const events = new EventSource(`api/jobs/${encodeURIComponent(this.id)}/events`);
    this.events = events;
    this.timer = setTimeout(() => this.ask(), PATIENCE);
    events.onmessage = (event) => {
      clearTimeout(this.timer);
      this.show(JSON.parse(event.data));
    };
    events.addEventListener("gone", (event) => {
      this.fail(`The job is gone: ${JSON.parse(event.data).error}`);
      this.close();
    });
    events.onerror = () => {
      if (events.readyState === EventSource.CLOSED && this.events === events) {
        this.ask(); // a proxy without events, or a server that is away
      } else {
        this.fail("The connection to the job is interrupted; it is tried again.");
      }
    };
  }

  ask() {
    this.pause();
    this.poll();
  }

  async poll() {
    let next = 2000;
    try {
      this.show(await json(`api/jobs/${encodeURIComponent(this.id)}`));
    } catch (error) {
      this.fail(`No figures of the job: ${error.message}. This is tried again.`);
      next = 5000;
    }
    if (!this.closed && !document.hidden && this.events === null) {
      this.timer = setTimeout(() => {
        this.timer = null;
        this.poll();
      }, next);
    }
  }

  pause() {
    this.events?.close();
    clearTimeout(this.timer);
    this.events = this.timer = null;
  }

  close() {
    this.closed = true;
    document.removeEventListener("visibilitychange", this.visible);
    this.pause();
  }
}

/** Figures of the last 15 minutes, as columns for charts: a gap where no snapshot came for a while. */
export class History {
  constructor() {
    this.at = [];
    this.columns = { rate_in: [], rate_out: [], busy: [], lag: [], waiting: [] };
    this.state = new Map();
  }

  add(snapshot) {
    const last = this.at.at(-1);
    if (last !== undefined && snapshot.at < last - 10) Object.assign(this, new History()); // another clock
    else if (last !== undefined && snapshot.at <= last) return;
    if (this.at.length && snapshot.at - last > 10) this.push(last + 1, {});
    const job = snapshot.job;
    const lag = snapshot.lag ?? {};
    this.push(snapshot.at, {
      rate_in: job.rate_in,
      rate_out: job.rate_out,
      busy: job.busy === null ? null : job.busy.worst * 100,
      lag: lag.seconds ?? lag.records ?? null,
      waiting: job.inflight_bytes,
    });
    for (const [uid, one] of Object.entries(snapshot.operators)) {
      if (one.state_entries === null) continue;
      const seen = this.state.get(uid) ?? [];
      seen.push([snapshot.at, one.state_entries]);
      while (seen[0][0] < snapshot.at - 60) seen.shift();
      this.state.set(uid, seen);
    }
  }

  push(at, figures) {
    this.at.push(at);
    for (const [name, column] of Object.entries(this.columns)) column.push(figures[name] ?? null);
    while (this.at.length > 2 && this.at[0] < at - KEEP) {
      this.at.shift();
      for (const column of Object.values(this.columns)) column.shift();
    }
  }

  /** Entries by which the state of an operator has grown in the last minute; null where that is not known yet. */
  growth(uid) {
    const seen = this.state.get(uid);
    if (seen === undefined || seen.length < 2) return null;
    const [[first, before], [last, now]] = [seen[0], seen.at(-1)];
    return last - first < 10 ? null : ((now - before) * 60) / (last - first);
  }
}
