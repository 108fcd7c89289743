// The page: the jobs of a machine, and one of them from top to bottom.

import { html, render, useEffect, useRef, useState } from "./vendor/htm-preact-3.1.1.module.js";
import { Actions } from "./actions.js";
import { Charts } from "./charts.js";
import { exported, Feed, fragment, History, jobs, linkTo } from "./feed.js";
import { Graph } from "./graph.js";
import { Aside, Checkpoints, EventTimes, Failures, KeepingUp, Log, Loops, Operators, Slices, Stalled, State, Status, Subtasks } from "./panels.js";
import { Chip, Panel, Table, Time } from "./parts.js";
import { jobState } from "./states.js";
import { duration, many } from "./words.js";

function Job({ snapshot, history, notice, frozen, freeze, live }) {
  const [selected, select] = useState(null);
  const choose = (uid) => {
    select(uid);
    if (uid) document.getElementById("subtasks")?.scrollIntoView({ block: "nearest" });
  };
  return html`<main id="main" data-job=${snapshot.job.id}>
    ${notice && html`<p class="notice" role="status">${notice}</p>`}
    <div class="head">
      <h1>${snapshot.job.name}</h1>
      <p class="muted">${live ? html`as of <${Time} at=${snapshot.at} /> <button type="button" aria-pressed=${frozen ? "true" : "false"} onClick=${freeze}>${frozen ? "Go on" : "Freeze"}</button>` : html`exported, as of <${Time} at=${snapshot.at} now=${Date.now() / 1000} />`}</p>
    </div>
    ${live && html`<${Actions} job=${snapshot.job} />`}
    <div class="panels">
      <${Status} snapshot=${snapshot} />
      <${Stalled} snapshot=${snapshot} />
      <${Panel} id="graph" title="Graph" wide><${Graph} snapshot=${snapshot} select=${choose} selected=${selected} /><//>
      ${live && html`<${Panel} id="rates" title="The last 15 minutes" about="As far as this page has been open and in view." wide><${Charts} history=${history} /><//>`}
      <div class="column">
        <${KeepingUp} snapshot=${snapshot} history=${history} live=${live} />
        <${Checkpoints} snapshot=${snapshot} />
        <${Slices} snapshot=${snapshot} />
      </div>
      <div class="column">
        <${EventTimes} snapshot=${snapshot} />
        <${Loops} snapshot=${snapshot} />
        <${State} snapshot=${snapshot} history=${history} />
        <${Aside} snapshot=${snapshot} />
      </div>
      <${Subtasks} snapshot=${snapshot} selected=${selected} select=${select} />
      <${Operators} snapshot=${snapshot} select=${choose} selected=${selected} />
      <${Failures} snapshot=${snapshot} />
      <${Log} snapshot=${snapshot} />
    </div>
  </main>`;
}

function JobPage({ id }) {
  const [snapshot, setSnapshot] = useState(null);
  const [notice, setNotice] = useState("");
  const [frozen, setFrozen] = useState(false);
  const history = useRef(null);
  const newest = useRef(null);
  const still = useRef(false);
  useEffect(() => {
    history.current = new History();
    const show = (found) => {
      history.current.lagUnit = (found.lag?.seconds ?? null) === null ? "records" : "seconds";
      history.current.add(found);
      newest.current = found;
      setNotice("");
      if (!still.current) setSnapshot(found);
    };
    window.tailraceShow = show; // for measurements: how long one more snapshot takes
    const feed = new Feed(id, show, setNotice);
    return () => feed.close();
  }, [id]);
  useEffect(() => {
    if (snapshot) document.title = `${jobState(snapshot.job.status)[1]} ${snapshot.job.name} – Tailrace`;
  }, [snapshot]);
  const freeze = () => {
    still.current = !frozen;
    setFrozen(!frozen);
    if (frozen) setSnapshot(newest.current);
  };
  if (snapshot === null) return html`<main id="main"><p class="empty">${notice || "Waiting for the first figures of the job …"}</p></main>`;
  return html`<${Job} snapshot=${snapshot} history=${history.current} notice=${frozen ? "Frozen: the figures stay until you go on." : notice} frozen=${frozen} freeze=${freeze} live />`;
}

/** The name of a job, with the beginning of its id where another job of the list has that name. */
const titleOf = (one, list) => (list.some((other) => other.name === one.name && other.id !== one.id) ? `${one.name} (${one.id.slice(0, 8)})` : one.name);

function JobList({ list }) {
  return html`<main id="main"><h1>Jobs</h1>
    <${Table} label="Jobs of this machine" heads=${["job", "status", "since", ["restarts"]]} empty="No job runs on this machine." rows=${list.map((one) => ({
      key: one.id,
      cells: [html`<a href=${linkTo(one.id)}>${titleOf(one, list)}</a>`, html`<${Chip} kind=${jobState(one.status)[0]} mark=${jobState(one.status)[1]}>${one.status}<//>`, html`<${Time} at=${one.since} now=${Date.now() / 1000} /> <small>${duration(Date.now() / 1000 - one.since)}</small>`, String(one.restarts)],
    }))} />
  </main>`;
}

function Page() {
  const [, move] = useState(location.hash);
  const [list, setList] = useState(null);
  const [error, setError] = useState("");
  useEffect(() => {
    const moved = () => move(location.hash);
    addEventListener("hashchange", moved);
    let timer = null;
    const look = async () => {
      if (!document.hidden) {
        try {
          setList(await jobs());
          setError("");
        } catch (failure) {
          setError(`The list of jobs did not come: ${failure.message}`);
        }
      }
      timer = setTimeout(look, 5000);
    };
    look();
    return () => {
      removeEventListener("hashchange", moved);
      clearTimeout(timer);
    };
  }, []);
  const id = fragment().get("job") ?? (list?.length === 1 ? list[0].id : null);
  const body = id !== null ? html`<${JobPage} key=${id} id=${id} />` : list === null ? html`<main id="main"><p class="empty">${error || "Loading the jobs …"}</p></main>` : html`<${JobList} list=${list} />`;
  return html`<${Frame} list=${list} id=${id}>${body}<//>`;
}

function Frame({ list, id, children }) {
  return html`<a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), document.getElementById("main").querySelector("h1, p")?.scrollIntoView())}>Skip to the job</a>
    <header><b>Tailrace</b>
      ${list && list.length > 1 && html`<nav aria-label="Jobs">${list.map((one) => html`<a key=${one.id} href=${linkTo(one.id)} aria-current=${one.id === id ? "page" : null}><span aria-hidden="true">${jobState(one.status)[1]}</span> ${titleOf(one, list)}</a>`)}</nav>`}
      <span class="muted">${list ? many(list.length, "job") : ""}</span>
    </header>
    ${children}`;
}

const held = exported();
const root = document.getElementById("page");
root.textContent = "";
if (held === null) {
  render(html`<${Page} />`, root);
} else {
  const history = new History();
  history.add(held);
  render(html`<${Frame} list=${null} id=${held.job.id}><${Job} snapshot=${held} history=${history} notice="" /><//>`, root);
}
