// The panels of a job, from top to bottom in the order in which people look for them.

import { html, useEffect, useState } from "./vendor/htm-preact-3.1.1.module.js";
import { exported, keysOf, linesOf, withSubtasks } from "./feed.js";
import { Bar, Chip, EventTime, Facts, Panel, Table, Time } from "./parts.js";
import { chainsOf, isOver, jobState, operatorState } from "./states.js";
import { count, duration, known, many, NONE, percent, place, rate, shortPath, size } from "./words.js";

const nameOf = (snapshot) => {
  const names = new Map(snapshot.graph.operators.map((one) => [one.uid, one.name]));
  return (uid) => names.get(uid) ?? uid;
};

const MOMENT = /(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)/;

/** A sentence with `names` in it as code, and with times as the reader's. */
export function Sentence({ text, now }) {
  const times = (part) => part.split(MOMENT).map((one, number) => (number % 2 ? html`<${EventTime} text=${one} now=${now} />` : one));
  return text.split(/`([^`]+)`/).map((part, number) => (number % 2 ? html`<code>${part}</code>` : times(part)));
}

/** The user's line in which something failed. */
function Line({ text }) {
  const { file, code } = place(text);
  return html`<span class="line">${file && html`<span class="file">${file}</span>`}${code && html`<code>${code}</code>`}</span>`;
}

// 1: the state in a word, with its reason.

export function Status({ snapshot }) {
  const { job, failures, at } = snapshot;
  const [kind, mark] = jobState(job.status);
  const last = failures.at(-1);
  return html`<section class="panel wide status" id="status" aria-labelledby="status-title">
    <h2 id="status-title" class="hidden">The job</h2>
    <p class="state"><${Chip} kind=${`big ${kind}`} mark=${mark}>${job.status}<//>
      <span>for ${duration(at - job.since)}, since <${Time} at=${job.since} now=${at} /></span>
      <span>${many(job.restarts, "restart")}</span>
      <span>${count(job.workers_reporting)} of ${many(job.workers, "worker")} report</span></p>
    <p class="sentence"><${Sentence} text=${snapshot.sentence} now=${at} /></p>
    ${snapshot.findings?.length > 1 && html`<ul class="also">${snapshot.findings.slice(1).map((one) => html`<li key=${one.text}><${Sentence} text=${one.text} now=${at} /></li>`)}</ul>`}
    ${job.reason && !`${snapshot.sentence} ${last?.text}`.includes(job.reason) && html`<p>${job.reason}</p>`}
    ${last && html`<div class="failure">
      <p><b>Last failure</b> <${Time} at=${last.at} now=${at} />, ${duration(at - last.at)} ago${snapshot.sentence.includes(last.text) ? "" : `: ${last.text}`} <${After} failure=${last} /></p>
      ${last.line && html`<p><${Line} text=${last.line} /></p>`}
      ${last.advice && html`<p class="muted">${last.advice}</p>`}
    </div>`}
  </section>`;
}

function After({ failure }) {
  if (known(failure.restart)) return html`<span class="muted">(restart ${count(failure.restart)} followed)</span>`;
  if (known(failure.worker)) return html`<span class="muted">(worker ${count(failure.worker)} is replaced alone; the others go on)</span>`;
  return null;
}

// 2: is it keeping up?

function verdict(snapshot, live) {
  if (isOver(snapshot.job.status)) return ["over", "✓", "the job has ended"];
  const lag = snapshot.lag ?? null;
  if (lag === null) return ["unknown", "?", "no source measures how far it is behind"];
  const unit = lag.seconds === null ? (value) => `${count(value)} records` : duration;
  const value = lag.seconds ?? lag.records;
  const behind = lag.source === null ? `event time is ${unit(value)} behind the clock` : `${unit(value)} behind`;
  const change = lag.change;
  if (!live) return ["waits", "◌", behind];
  if (!known(change)) return ["waits", "◌", `${behind}; the trend shows after some seconds`];
  if (lag.grows && lag.source === null) return ["waits", "▲", `${behind}, ${unit(change)} more than a minute ago`];
  if (lag.grows) return ["bad", "▲", `falling behind: ${behind}, ${unit(change)} more than a minute ago`];
  if (change < -Math.max(0.02 * value, 0.5)) return ["good", "▼", `catching up: ${behind}, ${unit(-change)} less than a minute ago`];
  return ["good", "▶", `keeping up: ${behind}, steady`];
}

export function KeepingUp({ snapshot, live }) {
  const name = nameOf(snapshot);
  const [kind, mark, text] = verdict(snapshot, live);
  const job = snapshot.job;
  return html`<${Panel} id="keeping-up" title="Is it keeping up?">
    <p><${Chip} kind=${kind} mark=${mark}>${text}<//></p>
    <${Facts} facts=${[["in", rate(job.rate_in), `${count(job.records_in)} since the start`], ["out", rate(job.rate_out), `${count(job.records_out)} since the start`], ["busiest worker", percent(job.busy?.worst), job.busy ? `worker ${job.busy.subtask}; the least busy ${percent(job.busy.least)}` : ""], ["waiting in channels", size(job.inflight_bytes)]]} />
    <${Table} label="Sources" heads=${["source", ["read"], ["rate"], ["behind"]]} empty="The job has no source." rows=${snapshot.sources.map((one) => ({
      key: one.operator,
      cells: [name(one.operator), count(one.records), rate(one.rate), lagText(one)],
    }))} />
  <//>`;
}

function lagText(one) {
  const parts = [];
  if (known(one.lag_seconds)) parts.push(duration(one.lag_seconds));
  if (known(one.lag_records)) parts.push(`${count(one.lag_records)} records`);
  return parts.length ? parts.join(", ") : html`<span class="muted">not measured</span>`;
}

// 4: the operators, as a table: all that the graph shows, in text.

export function Operators({ snapshot, select, selected }) {
  const chains = chainsOf(snapshot.graph);
  const [search, setSearch] = useState("");
  const wish = search.trim().toLowerCase();
  const rows = chains.flatMap((chain) =>
    chain.operators.map((one, number) => {
      const own = snapshot.operators[one.uid] ?? {};
      const state = operatorState(snapshot.operators[chain.operators[0].uid], chain.parallelism);
      return { one, own, state, first: number === 0, chain };
    }),
  );
  const shown = rows.filter(({ one }) => !wish || one.name.toLowerCase().includes(wish) || one.uid.includes(wish));
  return html`<${Panel} id="operators" title="Operators" wide about="Counts are since the last start or restart. Operators of one chain work in one step: the state is that of the chain's worst subtask.">
    <div class="tools"><label>Find <input type="search" value=${search} onInput=${(event) => setSearch(event.target.value)} placeholder="name or uid" /></label></div>
    <${Table} label="Operators" empty="No operator has such a name." heads=${["operator", "state", ["in"], ["in/s"], ["out"], ["out/s"], ["largest part"], ["waits"], "line"]} rows=${shown.map(({ one, own, state, first, chain }) => ({
      key: one.uid,
      mark: one.uid === selected ? "selected" : "",
      cells: [
        html`<button type="button" class="name" onClick=${() => select(one.uid)} title="Show its subtasks">${one.name}</button> ${one.scope && html`<small>in a loop</small>`}`,
        first ? html`<${Chip} kind=${state.kind} mark=${state.mark}>${state.text}<//>` : html`<span class="muted">as above</span>`,
        count(own.records_in, "–"),
        rate(own.rate_in, "–"),
        count(own.records_out, "–"),
        rate(own.rate_out, "–"),
        own.skew ? html`${percent(own.skew.share)} <small>subtask ${own.skew.subtask} of ${chain.parallelism}</small>` : "–",
        first ? size(own.waiting_bytes, "–") : "",
        html`<${Line} text=${one.line} />`,
      ],
    }))} />
  <//>`;
}

// 5: event time, and who holds it.

export function EventTimes({ snapshot }) {
  const name = nameOf(snapshot);
  const { inputs, job, at } = snapshot;
  const used = job.watermark !== null;
  const behind = (one) => !isOver(job.status) && one.holds && inputs.some((other) => other.operator === one.operator && other.watermark !== one.watermark);
  return html`<${Panel} id="event-time" title="Event time" about="An operator is as far as the slowest of its inputs. An input is as far as the slowest subtask that sends to it.">
    ${used
      ? html`<p>The job is at <b><${EventTime} text=${job.watermark} now=${at} /></b>${known(job.event_time_lag) && html`, ${duration(job.event_time_lag)} behind the clock`}.</p>
        <${Table} label="Event time of each input" heads=${["input of", "from", "is at", ["behind the clock"], "held by"]} empty="No operator has reported an input yet." rows=${inputs.map((one) => ({
          key: `${one.operator} ${one.source}`,
          mark: behind(one) ? "holds" : "",
          cells: [
            name(one.operator),
            name(one.source),
            html`<${EventTime} text=${one.watermark} now=${at} />`,
            duration(one.lag, "–"),
            html`${name(one.source)}, subtask ${one.held_by}${behind(one) ? html` <${Chip} kind="warns" mark="◀">holds it back<//>` : ""}`,
          ],
        }))} />`
      : html`<p class="empty">The job uses no event time: no stream has timestamps.</p>`}
  <//>`;
}

// 6: checkpoints.

const PARTS = ["trigger", "alignment", "freeze", "write"];
const PART_TEXT = {
  trigger: "until all subtasks had begun it",
  alignment: "until the barriers of all inputs had come",
  freeze: "the pause of the subtasks while they set their state aside",
  write: "until the files were written",
};

function CheckpointBars({ history, choose }) {
  const last = history.slice(-40);
  const most = Math.max(...last.map((one) => one.duration), 0.001);
  return html`<svg class="bars" viewBox="0 0 400 60" preserveAspectRatio="none" aria-hidden="true">
    ${last.map((one, number) => {
      let top = 60;
      return PARTS.map((part) => {
        const height = (one[part] / most) * 56;
        top -= height;
        return html`<rect key=${`${one.id}${part}`} class=${part} x=${number * 10 + 1} y=${top} width="8" height=${height} onClick=${() => choose(one)}><title>checkpoint ${one.id}: ${part} ${duration(one[part])}</title></rect>`;
      });
    })}
  </svg>`;
}

function CheckpointDetails({ one, at, close }) {
  return html`<div class="details" role="region" aria-label=${`Checkpoint ${one.id}`}>
    <h3>Checkpoint ${one.id} <button type="button" onClick=${close}>Close</button></h3>
    <${Facts} facts=${[["complete at", html`<${Time} at=${one.at} now=${at} />`], ["took", duration(one.duration)], ["policy", one.policy], ["size", size(one.bytes), one.full_bytes !== one.bytes ? `${size(one.full_bytes)} with earlier files` : ""], ["records in flight", size(one.inflight_bytes)]]} />
    <table class="small"><caption class="hidden">Parts of checkpoint ${one.id}</caption><tbody>
      ${PARTS.map((part) => html`<tr key=${part}><th scope="row"><span class=${`swatch ${part}`} aria-hidden="true"></span>${part}</th><td class="figure">${duration(one[part])}</td><td>${PART_TEXT[part]}</td></tr>`)}
    </tbody></table>
    <p class="path">${one.path}</p>
  </div>`;
}

export function Checkpoints({ snapshot }) {
  const [chosen, choose] = useState(null); // a copy: what is open does not change
  const taken = snapshot.checkpoints;
  if (taken === null) {
    return html`<${Panel} id="checkpoints" title="Checkpoints"><p class="empty">The job takes no checkpoints: after a failure it starts from the beginning.</p><//>`;
  }
  const { at } = snapshot;
  const last = taken.history.at(-1);
  return html`<${Panel} id="checkpoints" title="Checkpoints">
    <p>
      ${last ? html`<${Chip} kind=${taken.failed_in_a_row ? "warns" : "good"} mark=${taken.failed_in_a_row ? "!" : "✓"}>number ${last.id} complete ${duration(at - last.at)} ago<//>` : html`<${Chip} kind="waits" mark="◌">none complete yet<//>`}
      ${taken.failed_in_a_row > 0 && html` <${Chip} kind="bad" mark="✕">${many(taken.failed_in_a_row, "failure")} in a row<//>`}
    </p>
    <${Facts} facts=${[["complete", count(taken.completed)], ["failed", count(taken.aborted)], last && ["last one", duration(last.duration), `${size(last.bytes)}, ${last.policy}`]]} />
    ${taken.waits_for.map((one) => html`<p class="failure" key=${one.place}>The job waits for ${one.place} for ${duration(one.age)} (${one.tries === 1 ? "one try" : `${count(one.tries)} tries`}): ${one.reason}</p>`)}
    ${taken.under_way.map((one) => html`<p key=${one.id}>Number ${one.id} is under way for ${duration(one.age)}: ${one.phase}${one.workers.length ? `, waits for ${one.workers.length === 1 ? "worker" : "workers"} ${one.workers.join(", ")}` : ""}.</p>`)}
    ${taken.history.length > 1 && html`<${CheckpointBars} history=${taken.history} choose=${choose} /><p class="legend">${PARTS.map((part) => html`<span key=${part}><span class=${`swatch ${part}`} aria-hidden="true"></span>${part}</span> `)}<span class="muted">the last ${Math.min(40, taken.history.length)}, by duration</span></p>`}
    ${chosen && html`<${CheckpointDetails} one=${chosen} at=${at} close=${() => choose(null)} />`}
    <${Table} label="Complete checkpoints, the newest first" heads=${["number", "complete at", ["took"], ["size"], "policy"]} empty="No checkpoint is complete yet." rows=${taken.history.slice(-8).reverse().map((one) => ({
      key: one.id,
      cells: [html`<button type="button" class="name" onClick=${() => choose(one)} title="Show its parts">${one.id}</button>`, html`<${Time} at=${one.at} now=${at} />`, duration(one.duration), size(one.bytes), one.policy],
    }))} />
    ${taken.failures.length > 0 && html`<h3>Given up</h3><${Table} label="Checkpoints that were given up, the newest first" heads=${["number", "given up at", "reason"]} rows=${taken.failures.slice(-8).reverse().map((one) => ({ key: one.id, mark: one.failure === false ? "" : "holds", cells: [count(one.id), html`<${Time} at=${one.at} now=${at} />`, one.reason] }))} />`}
  <//>`;
}

// 7: state.

export function State({ snapshot, history }) {
  const name = nameOf(snapshot);
  const rows = Object.entries(snapshot.operators)
    .filter(([, one]) => known(one.state_entries) && (one.state_entries > 0 || known(one.state_bytes)))
    .sort((a, b) => b[1].state_entries - a[1].state_entries);
  const most = Math.max(1, ...rows.map(([, one]) => one.state_entries));
  const growth = (uid) => {
    const found = history.growth(uid);
    return found === null ? html`<span class="muted">not known yet</span>` : `${found > 0 ? "+" : ""}${count(found)} a minute`;
  };
  const expired = (one) => Object.entries(one.metrics ?? {}).filter(([key]) => key.includes("expired")).map(([, value]) => count(value.total)).join(", ");
  return html`<${Panel} id="state" title="State by operator" about="Entries, the largest first.">
    <${Table} label="State by operator" heads=${["operator", "part", ["entries"], ["growth"], ["size"], ["expired"]]} empty="No operator holds state." rows=${rows.map(([uid, one]) => ({
      key: uid,
      cells: [name(uid), html`<${Bar} share=${one.state_entries / most} />`, count(one.state_entries), growth(uid), size(one.state_bytes, "–"), expired(one) || "–"],
    }))} />
  <//>`;
}

// 8: skew, on request.

export function Subtasks({ snapshot, selected, select }) {
  const [held, hold] = useState(null);
  const [error, setError] = useState("");
  const chain = chainsOf(snapshot.graph).find((one) => one.operators.some((other) => other.uid === selected));
  useEffect(() => {
    if (!chain) return undefined;
    if (snapshot.subtasks !== null) {
      hold(snapshot.subtasks);
      return undefined;
    }
    let current = true;
    withSubtasks(snapshot.job.id).then(
      (found) => current && (hold(found.subtasks), setError("")),
      (failure) => current && setError(`The figures of the subtasks did not come: ${failure.message}`),
    );
    return () => (current = false);
  }, [selected, Math.floor(snapshot.at / 2)]);
  const rows = chain && held ? held.filter((one) => String(one.chain) === chain.id).sort((a, b) => a.subtask - b.subtask) : [];
  const most = (figure) => Math.max(1, ...rows.map((one) => one[figure]));
  const [records, queued, entries] = ["records_in", "queued_bytes", "state_entries"].map(most);
  const first = chain ? snapshot.operators[chain.operators[0].uid] : null;
  return html`<${Panel} id="subtasks" title="Subtasks and skew" wide about="Records, waiting input and state of each subtask of one chain. Choose an operator in the graph, in the table, or here.">
    <div class="tools"><label>Operator <select onChange=${(event) => select(event.target.value || null)}>
      <option value="" selected=${!chain}>choose one</option>
      ${snapshot.graph.operators.map((one) => html`<option key=${one.uid} value=${one.uid} selected=${one.uid === selected}>${one.name}</option>`)}
    </select></label></div>
    ${error && html`<p class="failure">${error}</p>`}
    ${chain && html`<${Keys} snapshot=${snapshot} chain=${chain} />`}
    ${chain && html`<${Table} label=${`Subtasks of ${chain.operators.map((one) => one.name).join(", ")}`} empty=${held ? NONE : "The figures are on their way …"} heads=${["subtask", "", ["records in"], "", ["busy"], "", ["waiting input"], "", ["entries"], "waits for", "event time"]} rows=${rows.map((one) => ({
      key: one.subtask,
      cells: [
        count(one.subtask),
        html`<${Bar} share=${one.records_in / records} />`,
        count(one.records_in),
        html`<${Bar} share=${one.busy ?? 0} kind="busy" />`,
        percent(one.busy),
        html`<${Bar} share=${one.queued_bytes / queued} />`,
        size(one.queued_bytes),
        html`<${Bar} share=${one.state_entries / entries} />`,
        count(one.state_entries),
        one.finished ? "finished" : one.under_way_seconds > 10 ? html`<${Chip} kind="bad" mark="!">a step runs for ${duration(one.under_way_seconds)}<//>` : one.waits_for || "–",
        html`<${EventTime} text=${one.watermark} now=${snapshot.at} />`,
      ],
    }))} />`}
  <//>`;
}

function Keys({ snapshot, chain }) {
  const [state, setState] = useState("");
  const name = nameOf(snapshot);
  const found = chain.operators.flatMap((one) => (snapshot.operators[one.uid]?.heaviest_keys ?? []).slice(0, 8).map((key) => ({ ...key, uid: one.uid })));
  const look = () => {
    setState("The workers look for two seconds …");
    keysOf(snapshot.job.id).then(
      (keys) => setState(chain.operators.some((one) => keys[one.uid]?.length) ? "" : "No operator of this chain was seen at work on a key."),
      (failure) => setState(`The keys did not come: ${failure.message}`),
    );
  };
  const saved = exported() !== null;
  return html`<p class="keys">${!saved && html`<button type="button" onClick=${look} title="The workers look for two seconds on which keys their time goes">Look for heavy keys</button>`}
    ${state ? html` <span class="muted">${state}</span>` : found.map((one) => html` <span key=${`${one.uid} ${one.key}`}><code>${one.key}</code> ${percent(one.share)} of the time of ${name(one.uid)};</span>`)}</p>`;
}

// 9: late records, and those set aside.

export function Aside({ snapshot }) {
  const name = nameOf(snapshot);
  const rows = Object.entries(snapshot.operators).filter(([, one]) => known(one.late) || known(one.failed));
  return html`<${Panel} id="aside" title="Late and failed records" about="Late: behind event time when it came; it is not counted in a result, and goes to the side output of late records where there is one. Failed: set aside because user code raised.">
    <${Table} label="Late and failed records" heads=${["operator", ["late"], ["failed"]]} empty="No operator drops late records or sets failed ones aside." rows=${rows.map(([uid, one]) => ({
      key: uid,
      mark: one.late > 0 || one.failed > 0 ? "holds" : "",
      cells: [name(uid), count(one.late, "–"), count(one.failed, "–")],
    }))} />
  <//>`;
}

// 11: loops.

export function Loops({ snapshot }) {
  if (!snapshot.loops.length) return null;
  const rest = (one) => {
    if (isOver(snapshot.job.status)) return "at rest";
    if (!known(one.feedback_waiting)) return NONE;
    return one.feedback_waiting === 0 && !one.feedback_rate ? "near to rest: nothing waits, nothing goes around" : "going around";
  };
  return html`<${Panel} id="loops" title="Loops" about="A loop is at rest when no record is in it and none waits at its head.">
    <${Table} label="Loops" heads=${["loop", "state", ["waiting at its head"], ["gone around"], ["around/s"], ["spilled"], ["round"]]} rows=${snapshot.loops.map((one) => ({
      key: one.scope,
      cells: [one.name, rest(one), count(one.feedback_waiting), count(one.feedback_total), rate(one.feedback_rate), size(one.feedback_spilled_bytes), known(one.round) ? `${one.round}${known(one.rounds) ? ` of ${one.rounds}` : ""}` : "–"],
    }))} />
  <//>`;
}

// 10: slices and standbys.

const FAILOVER = [["process_ms", "a process was there"], ["survivors_ms", "the other workers had answered"], ["restore_ms", "its state was there"], ["replay_ms", "it had done again what was lost"]];

export function Slices({ snapshot }) {
  const { slices, standbys, at } = snapshot;
  const standby = (one) => {
    const ready = one.standbys.filter((other) => other.ready).length;
    if (!one.standbys.length) return html`<span class="muted">none</span>`;
    const behind = Math.min(...one.standbys.filter((other) => known(other.behind)).map((other) => other.behind));
    return `${ready} of ${one.standbys.length} ready${Number.isFinite(behind) ? `, ${behind === 0 ? "up to date" : `${many(behind, "checkpoint")} behind`}` : ""}`;
  };
  const failovers = slices.filter((one) => one.last_failover !== null);
  return html`<${Panel} id="slices" title="Workers and standbys">
    ${standbys !== null && html`<p>${count(standbys[0])} of ${many(standbys[1], "standby")} ready.</p>`}
    <${Table} label="Workers" heads=${["worker", "where", ["attempt"], "standby", ["history"], ["replaced"]]} empty=${NONE} rows=${slices.map((one) => ({
      key: one.slot,
      mark: one.being_replaced || one.not_replaced ? "holds" : "",
      cells: [
        count(one.slot),
        one.host === null ? html`<${Chip} kind="bad" mark="✕">no process<//>` : html`${one.host} <small>${one.executor ? `executor ${one.executor}, ` : ""}pid ${one.pid}</small>`,
        count(one.attempt),
        standby(one),
        size(one.log_bytes),
        one.being_replaced ? html`<${Chip} kind="warns" mark="↻">is being replaced<//>` : count(one.replaced),
      ],
    }))} />
    ${failovers.map((one) => {
      const last = one.last_failover;
      return html`<div key=${one.slot}><p>Worker ${one.slot} was lost at <${Time} at=${last.timestamp} now=${at} />; the job went on without a restart, and the worker was replaced in <b>${duration(last.total_ms / 1000)}</b>${last.hot ? " by a hot standby" : ""}:</p>
        <ul class="parts">${FAILOVER.map(([part, text]) => html`<li key=${part}><${Bar} share=${last[part] / (last.total_ms || 1)} /> <b>${duration(last[part] / 1000)}</b> until ${text}</li>`)}</ul></div>`;
    })}
    ${slices.filter((one) => one.not_replaced).map((one) => html`<p class="failure" key=${one.slot}>Worker ${one.slot} could not be replaced alone: ${one.not_replaced}</p>`)}
  <//>`;
}

// 12: attempts as a strip of time, and the failures.

function Strip({ snapshot }) {
  const { job, at } = snapshot;
  const end = isOver(job.status) ? Math.max(job.since, job.started + 0.001) : at;
  const span = Math.max(end - job.started, 0.001);
  const x = (time) => Math.max(0, Math.min(1000, ((time - job.started) / span) * 1000));
  const restarts = snapshot.failures.filter((one) => known(one.restart));
  const edges = [job.started, ...restarts.map((one) => one.at), end];
  return html`<div class="strip">
    <svg viewBox="0 0 1000 26" preserveAspectRatio="none" role="img" aria-label=${`${many(edges.length - 1, "attempt")} since the start`}>
      ${edges.slice(1).map((until, number) => html`<rect key=${number} class=${`attempt ${number % 2 ? "odd" : ""} ${number === edges.length - 2 ? jobState(job.status)[0] : "lost"}`} x=${x(edges[number])} y="5" width=${Math.max(1, x(until) - x(edges[number]) - 1)} height="16"><title>${number === edges.length - 2 ? "the last attempt" : "an attempt"}: ${duration(until - edges[number])}</title></rect>`)}
      ${snapshot.failures.map((one, number) => html`<rect key=${number} class=${known(one.worker) ? "mark replaced" : "mark"} x=${Math.max(0, x(one.at) - 2)} y="0" width="4" height="26"><title>${one.text}</title></rect>`)}
    </svg>
    <div class="ends"><span><${Time} at=${job.started} now=${at} /> started</span><span><${Time} at=${end} now=${at} /> ${isOver(job.status) ? "ended" : "now"}</span></div>
  </div>`;
}

export function Failures({ snapshot }) {
  const { failures, at } = snapshot;
  const newest = [...failures].reverse();
  return html`<${Panel} id="failures" title="Restarts and exceptions" wide>
    <${Strip} snapshot=${snapshot} />
    ${newest.length === 0 && html`<p class="empty">No attempt has failed since the start.</p>`}
    ${newest.map((one) => html`<details key=${`${one.at}`} class="exception">
      <summary><${Time} at=${one.at} now=${at} /> ${one.text} <${After} failure=${one} /></summary>
      ${one.line && html`<p><${Line} text=${one.line} /></p>`}
      <pre tabindex="0">${one.details || one.text}</pre>
      ${one.advice && html`<p>${one.advice}</p>`}
    </details>`)}
  <//>`;
}

/** The log of the job by attempt, while it is open. */
export function Log({ snapshot }) {
  const [open, setOpen] = useState(false);
  const [lines, hold] = useState(null);
  const [attempt, choose] = useState("");
  const [error, setError] = useState("");
  useEffect(() => {
    if (!open) return undefined;
    let current = true;
    linesOf(snapshot.job.id).then(
      (found) => current && (hold(found), setError("")),
      (failure) => current && setError(`The lines did not come: ${failure.message}`),
    );
    return () => (current = false);
  }, [open, Math.floor(snapshot.at / 2)]);
  if (exported() !== null) return null;
  const name = nameOf(snapshot);
  const attempts = [...new Set((lines ?? []).map((one) => one.attempt ?? 0))];
  const shown = (lines ?? []).filter((one) => attempt === "" || (one.attempt ?? 0) === Number(attempt)).slice(-200).reverse();
  const who = (one) => [known(one.slot) ? `worker ${one.slot}` : "", one.uid ? name(one.uid) : ""].filter(Boolean).join(", ");
  return html`<${Panel} id="log" title="Log" wide>
    <details onToggle=${(event) => setOpen(event.target.open)}><summary>What the job has logged, and what its functions have logged and printed</summary>
      <div class="tools"><label>Attempt <select onChange=${(event) => choose(event.target.value)}>
        <option value="">all</option>${attempts.map((one) => html`<option key=${one} value=${one}>${one === 0 ? "the first" : `behind restart ${one}`}</option>`)}
      </select></label></div>
      ${error && html`<p class="failure">${error}</p>`}
      <${Table} label="Lines of the log, the newest first" heads=${["time", "level", "attempt", "from", "line"]} empty=${lines === null ? "The lines are on their way …" : "Nothing was logged or printed yet."} rows=${shown.map((one, number) => ({
        key: `${one.at} ${number}`,
        mark: ["ERROR", "CRITICAL"].includes(one.level) ? "holds" : "",
        cells: [html`<${Time} at=${one.at} now=${snapshot.at} />`, one.level.toLowerCase(), count(one.attempt ?? 0), who(one) || "the job", html`<span class="text">${one.text}</span>`],
      }))} />
    </details>
  <//>`;
}

/** Steps that have not come back for long, with their stacks. */
export function Stalled({ snapshot }) {
  const name = nameOf(snapshot);
  if (!snapshot.stalled.length) return null;
  return html`<${Panel} id="stalled" title="Calls that have not come back" wide>
    ${snapshot.stalled.map((one) => html`<div key=${`${one.operator} ${one.subtask}`}><p><b>${one.operator ? `${name(one.operator)}, subtask` : "Worker"} ${one.subtask}</b>: ${one.work ?? "a step"}, for ${duration(one.seconds)}.</p>${one.stack && html`<pre tabindex="0">${one.stack}</pre>`}</div>`)}
  <//>`;
}
